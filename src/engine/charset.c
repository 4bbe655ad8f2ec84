/* Sets of characters: sorted spans that do not touch. */
#include "engine/grammar_internal.h"

bool fl_charset_add(fl_charset *s, uint32_t low, uint32_t high)
{
    if (!fl_vec_reserve(s, 1))
        return false;
    size_t from = 0, to;
    while (from < s->n && s->data[from].high + 1 < low)
        from++;
    for (to = from; to < s->n && s->data[to].low <= high + 1; to++) {
        low = s->data[to].low < low ? s->data[to].low : low;
        high = s->data[to].high > high ? s->data[to].high : high;
    }
    memmove(&s->data[from + 1], &s->data[to], (s->n - to) * sizeof *s->data);
    s->data[from] = (fl_span){low, high};
    s->n = s->n - (to - from) + 1;
    return true;
}

bool fl_charset_invert(fl_charset *s)
{
    fl_charset out = {0};
    uint32_t at = FL_CHAR_FIRST;
    bool ok = fl_charset_add(s, FL_SURROGATE, FL_SURROGATE_END - 1);
    for (size_t i = 0; ok && i <= s->n; i++) {
        uint32_t end = i < s->n ? s->data[i].low : FL_CHAR_LAST + 1;
        if (at < end)
            ok = fl_vec_push(&out, ((fl_span){at, end - 1}));
        if (i < s->n && s->data[i].high + 1 > at)
            at = s->data[i].high + 1;
    }
    if (!ok) {
        fl_vec_free(&out);
        return false;
    }
    fl_vec_free(s);
    *s = out;
    return true;
}
