/* Writing JSON: printf into a growing buffer, strings, values, OpenAI's error object. */
#define _GNU_SOURCE
#include "server/put_internal.h"

#include "server/server_internal.h"

#include <stdarg.h>
#include <stdio.h>

bool fl_put(fl_buf *b, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    int n = vsnprintf(NULL, 0, fmt, ap);
    va_end(ap);
    if (n < 0 || !fl_vec_reserve(b, (size_t)n + 1))
        return false;
    va_start(ap, fmt);
    vsnprintf(b->data + b->n, (size_t)n + 1, fmt, ap);
    va_end(ap);
    b->n += (size_t)n;
    return true;
}

bool fl_put_string(fl_buf *b, const char *text)
{
    return fl_json_quote(text, strlen(text), b);
}

bool fl_put_buf(fl_buf *b, const fl_buf *text)
{
    return fl_json_quote(text->data ? text->data : "", text->n, b);
}

bool fl_put_bytes(fl_buf *b, fl_bytes text)
{
    fl_buf whole = {0};
    fl_utf8_stream u = {0};
    bool ok = fl_utf8_feed(&u, text.data, text.len, &whole) && fl_utf8_end(&u, &whole) &&
              fl_put_buf(b, &whole);
    fl_vec_free(&whole);
    return ok;
}

bool fl_put_json(fl_buf *b, const fl_json *v)
{
    return v ? fl_json_dump(v, true, false, b) == FL_OK : fl_put(b, "null");
}

bool fl_put_error(const fl_refusal *r, bool event, fl_buf *b)
{
    const char *type = r->http >= 500                     ? "server_error"
                       : r->http == 429                   ? "rate_limit_error"
                       : r->http == 401 || r->http == 403 ? "authentication_error"
                                                          : "invalid_request_error";
    return (!event || fl_put(b, "data: ")) && fl_put(b, "{\"error\": {\"message\": ") &&
           fl_put_string(b, r->message) && fl_put(b, ", \"type\": \"%s\", \"param\": ", type) &&
           (r->param[0] ? fl_put_string(b, r->param) : fl_put(b, "null")) &&
           fl_put(b, ", \"code\": \"%s\"}}%s", r->code, event ? "\n\n" : "");
}
