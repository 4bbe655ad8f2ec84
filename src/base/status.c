#include "base/status.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

static const char *const status_text[] = {
#define FL_STATUS_TEXT(name, text) text,
    FL_STATUS_MAP(FL_STATUS_TEXT)
#undef FL_STATUS_TEXT
};

const char *fl_status_text(fl_status status)
{
    size_t n = sizeof status_text / sizeof *status_text;
    return (size_t)status < n ? status_text[status] : "unknown status";
}

const char *fl_version(void)
{
    return FL_VERSION;
}

/* The length of the well-formed UTF-8 sequence at p that is no control character, else 0. */
static size_t printable(const unsigned char *p)
{
    if (*p < 0x80)
        return (*p >= 0x20 && *p != 0x7f) || *p == '\n';
    size_t n = *p >= 0xf0 ? 4 : *p >= 0xe0 ? 3 : 2;
    if (*p < 0xc2 || *p > 0xf4 || (*p == 0xc2 && p[1] < 0xa0))
        return 0;
    for (size_t i = 1; i < n; i++) {
        if ((p[i] & 0xc0) != 0x80)
            return 0;
    }
    return n;
}

/* Names in messages come from files: whatever a terminal would obey, or a cut through a character
 * left, becomes '?'. */
static void clean(char *text)
{
    for (size_t n; *text; text += n) {
        n = printable((const unsigned char *)text);
        if (n == 0) {
            *text = '?';
            n = 1;
        }
    }
}

fl_status fl_fail(fl_error *err, fl_status status, const char *fmt, ...)
{
    if (err) {
        va_list ap;
        err->status = status;
        va_start(ap, fmt);
        vsnprintf(err->message, sizeof err->message, fmt, ap);
        va_end(ap);
        clean(err->message);
    }
    return status;
}

void fl_error_prefix(fl_error *err, const char *fmt, ...)
{
    if (!err)
        return;
    char old[sizeof err->message], head[sizeof err->message];
    memcpy(old, err->message, sizeof old);
    old[sizeof old - 1] = 0;
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(head, sizeof head, fmt, ap);
    va_end(ap);
    size_t n = strlen(head);
    size_t room = sizeof err->message - 1;
    if (n > room - 2)
        n = room - 2;
    memcpy(err->message, head, n);
    memcpy(err->message + n, ": ", 2);
    size_t tail = strlen(old);
    if (tail > room - n - 2)
        tail = room - n - 2;
    memcpy(err->message + n + 2, old, tail);
    err->message[n + 2 + tail] = 0;
    clean(err->message);
}
