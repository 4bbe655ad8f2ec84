/* Stop strings: found wherever tokens and chunks are cut. */
#include "server/stop_internal.h"

static bool ends_here(fl_bytes stop, const char *text, size_t end)
{
    return stop.len <= end && memcmp(text + end - stop.len, stop.data, stop.len) == 0;
}

static bool may_begin(const fl_stops *s, const char *text, size_t len)
{
    for (int i = 0; i < s->n; i++) {
        if (s->text[i].len > len && memcmp(text, s->text[i].data, len) == 0)
            return true;
    }
    return false;
}

size_t fl_stops_scan(const fl_stops *s, const char *text, size_t len, int *found)
{
    *found = -1;
    for (size_t end = 1; end <= len && *found < 0; end++) {
        for (int i = 0; i < s->n; i++) {
            if (ends_here(s->text[i], text, end) &&
                (*found < 0 || s->text[i].len > s->text[*found].len))
                *found = i;
        }
        if (*found >= 0)
            return end - s->text[*found].len;
    }
    size_t at = 0;
    while (at < len && !may_begin(s, text + at, len - at))
        at++;
    return at;
}
