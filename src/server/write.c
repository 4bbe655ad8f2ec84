/* Answers in OpenAI's form.  A stream is written as events at once; an answer that is sent whole is
 * gathered in the job and written at its end. */
#define _GNU_SOURCE
#include "server/server_internal.h"

#include <inttypes.h>
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

static bool quote(fl_buf *b, const char *text, size_t len)
{
    return fl_json_quote(text ? text : "", len, b);
}

static bool quote_string(fl_buf *b, const char *text)
{
    return quote(b, text, strlen(text));
}

/* The members that every chunk and every answer begins with. */
static bool head(const fl_job *j, fl_buf *b)
{
    bool chat = j->params.chat;
    return fl_put(b,
                  "{\"id\": \"%s-%016" PRIx64 "\", \"object\": \"%s\", \"created\": %" PRId64
                  ", \"model\": ",
                  chat ? "chatcmpl" : "cmpl", j->id,
                  !chat              ? "text_completion"
                  : j->params.stream ? "chat.completion.chunk"
                                     : "chat.completion",
                  j->created) &&
           quote_string(b, j->server->options.alias);
}

static bool usage(const fl_job *j, fl_buf *b)
{
    long long in = (long long)j->prompt.n, out = (long long)j->n_tokens;
    return fl_put(b,
                  "\"usage\": {\"prompt_tokens\": %lld, \"completion_tokens\": %lld, "
                  "\"total_tokens\": %lld, \"prompt_tokens_details\": {\"cached_tokens\": 0}}",
                  in, out, in + out);
}

/* Sends the event whose choice has j->piece as its delta (or its text). */
static bool send_event(fl_job *j, const char *finish)
{
    fl_buf *b = &j->chunk;
    b->n = 0;
    if (!fl_put(b, "data: ") || !head(j, b) ||
        !fl_put(b, ", \"choices\": [{\"index\": 0, \"%s\": %.*s, \"logprobs\": null, ",
                j->params.chat ? "delta" : "text", (int)j->piece.n, j->piece.data) ||
        !(finish ? fl_put(b, "\"finish_reason\": \"%s\"}]}\n\n", finish)
                 : fl_put(b, "\"finish_reason\": null}]}\n\n")))
        return false;
    fl_job_send(j, b->data, b->n);
    return true;
}

bool fl_write_text(fl_job *j, fl_part_kind kind, const char *text, size_t len)
{
    fl_buf *p = &j->piece;
    if (!j->params.stream)
        return fl_vec_append(kind == FL_PART_REASONING ? &j->reasoning : &j->content, text, len);
    p->n = 0;
    if (!j->params.chat)
        return kind == FL_PART_ROLE || (quote(p, text, len) && send_event(j, NULL));
    bool ok = kind == FL_PART_ROLE
                  ? fl_put(p, "{\"role\": \"assistant\", \"content\": \"\"}")
                  : fl_put(p, kind == FL_PART_REASONING ? "{\"reasoning_content\": "
                                                        : "{\"content\": ") &&
                        quote(p, text, len) && fl_put(p, "}");
    return ok && send_event(j, NULL);
}

static bool call_head(const fl_job *j, int index, fl_bytes name, fl_buf *b)
{
    return fl_put(b,
                  "\"id\": \"call_%016" PRIx64 "_%d\", \"type\": \"function\", \"function\": "
                  "{\"name\": ",
                  j->id, index) &&
           quote(b, name.data, name.len) && fl_put(b, ", \"arguments\": ");
}

static bool gather_tool(fl_job *j, const fl_chat_event *e)
{
    fl_buf *b = &j->tools;
    switch (e->kind) {
    case FL_CHAT_TOOL_BEGIN:
        j->call.n = 0;
        return fl_put(b, b->n ? ", {" : "{") && call_head(j, e->index, e->text, b);
    case FL_CHAT_TOOL_ARGS:
        return fl_vec_append(&j->call, e->text.data, e->text.len);
    default:
        return quote(b, j->call.data, j->call.n) && fl_put(b, "}}");
    }
}

bool fl_write_tool(fl_job *j, const fl_chat_event *e)
{
    fl_buf *p = &j->piece;
    if (e->kind == FL_CHAT_TOOL_BEGIN)
        j->n_calls++;
    if (!j->params.stream)
        return gather_tool(j, e);
    if (e->kind == FL_CHAT_TOOL_END)
        return true;
    p->n = 0;
    bool begin = e->kind == FL_CHAT_TOOL_BEGIN;
    return fl_put(p, "{\"tool_calls\": [{\"index\": %d, ", e->index) &&
           (begin ? call_head(j, e->index, e->text, p) && fl_put(p, "\"\"")
                  : fl_put(p, "\"function\": {\"arguments\": ") &&
                        quote(p, e->text.data, e->text.len)) &&
           fl_put(p, "}}]}") && send_event(j, NULL);
}

static bool end_stream(fl_job *j, const char *finish)
{
    fl_buf *b = &j->chunk;
    j->piece.n = 0;
    if (!fl_put(&j->piece, j->params.chat ? "{}" : "\"\"") || !send_event(j, finish))
        return false;
    b->n = 0;
    if (j->params.include_usage &&
        (!fl_put(b, "data: ") || !head(j, b) || !fl_put(b, ", \"choices\": [], ") || !usage(j, b) ||
         !fl_put(b, "}\n\n")))
        return false;
    if (!fl_put(b, "data: [DONE]\n\n"))
        return false;
    fl_job_send(j, b->data, b->n);
    fl_job_end(j, 200);
    return true;
}

static bool message(fl_job *j, fl_buf *b)
{
    bool silent = j->content.n == 0 && j->tools.n != 0;
    return fl_put(b, "\"message\": {\"role\": \"assistant\", \"content\": ") &&
           (silent ? fl_put(b, "null") : quote(b, j->content.data, j->content.n)) &&
           (!j->reasoning.n || (fl_put(b, ", \"reasoning_content\": ") &&
                                quote(b, j->reasoning.data, j->reasoning.n))) &&
           (!j->tools.n || fl_put(b, ", \"tool_calls\": [%.*s]", (int)j->tools.n, j->tools.data)) &&
           fl_put(b, "}");
}

bool fl_write_end(fl_job *j, const char *finish)
{
    fl_buf *b = &j->chunk;
    if (j->params.stream)
        return end_stream(j, finish);
    b->n = 0;
    if (!head(j, b) || !fl_put(b, ", \"choices\": [{\"index\": 0, ") ||
        !(j->params.chat ? message(j, b)
                         : fl_put(b, "\"text\": ") && quote(b, j->content.data, j->content.n)) ||
        !fl_put(b, ", \"logprobs\": null, \"finish_reason\": \"%s\"}], ", finish) || !usage(j, b) ||
        !fl_put(b, "}"))
        return false;
    fl_job_send(j, b->data, b->n);
    fl_job_end(j, 200);
    return true;
}

bool fl_write_error(fl_buf *b, const fl_refusal *r)
{
    const char *type = r->http >= 500   ? "server_error"
                       : r->http == 429 ? "rate_limit_error"
                       : r->http == 401 ? "authentication_error"
                                        : "invalid_request_error";
    return fl_put(b, "{\"error\": {\"message\": ") && quote_string(b, r->message) &&
           fl_put(b, ", \"type\": \"%s\", \"param\": ", type) &&
           (r->param[0] ? quote_string(b, r->param) : fl_put(b, "null")) &&
           fl_put(b, ", \"code\": \"%s\"}}", r->code);
}
