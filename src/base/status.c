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

fl_status fl_fail(fl_error *err, fl_status status, const char *fmt, ...)
{
    if (err) {
        va_list ap;
        err->status = status;
        va_start(ap, fmt);
        vsnprintf(err->message, sizeof err->message, fmt, ap);
        va_end(ap);
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
}
