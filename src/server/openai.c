/* The dialects of /v1/chat/completions and /v1/completions. */
#define _GNU_SOURCE
#include "server/marks_internal.h"
#include "server/put_internal.h"

#include <inttypes.h>

/* The members that every chunk and every answer begins with. */
static bool head(const fl_job *j, fl_buf *b)
{
    fl_bytes name = fl_server_alias(j->server);
    return fl_put(b,
                  "{\"id\": \"%s-%016" PRIx64 "\", \"object\": \"%s\", \"created\": %" PRId64
                  ", \"model\": ",
                  j->dialect->prefix, j->id,
                  !j->dialect->chat  ? "text_completion"
                  : j->params.stream ? "chat.completion.chunk"
                                     : "chat.completion",
                  j->created) &&
           fl_put_bytes(b, name);
}

static bool usage(const fl_job *j, fl_buf *b)
{
    long long in = (long long)j->prompt.n, out = (long long)fl_job_tokens(j);
    return fl_put(b,
                  "\"usage\": {\"prompt_tokens\": %lld, \"completion_tokens\": %lld, "
                  "\"total_tokens\": %lld, \"prompt_tokens_details\": {\"cached_tokens\": %lld}, "
                  "\"completion_tokens_details\": {\"reasoning_tokens\": %lld}}",
                  in, out, in + out, (long long)j->n_cached, (long long)fl_job_reasoning_tokens(j));
}

static const char *reason(const fl_choice *c)
{
    /* A call that was forced by name is no choice of the model's: as OpenAI has it. */
    bool named = fl_json_is(c->job->params.tool_choice, FL_JSON_OBJECT);
    return c->end == FL_END_CALLS && !named ? "tool_calls"
           : c->end == FL_END_LENGTH        ? "length"
                                            : "stop";
}

/* "index", and after the choice's own members: logprobs, finish_reason. */
static bool choice_head(const fl_choice *c, fl_buf *b)
{
    return fl_put(b, "{\"index\": %d, ", c->index);
}

static bool choice_tail(const fl_choice *c, size_t mark0, size_t n_marks, bool ended, fl_buf *b)
{
    return fl_put(b, ", \"logprobs\": ") &&
           (c->job->dialect->chat ? fl_marks_chat(c, mark0, n_marks, b)
                                  : fl_marks_completion(c, mark0, n_marks, b)) &&
           (ended ? fl_put(b, ", \"finish_reason\": \"%s\"}", reason(c))
                  : fl_put(b, ", \"finish_reason\": null}"));
}

/* An event's beginning, up to its one choice's own members, and its end. */
static bool event_head(const fl_choice *c, fl_buf *b)
{
    return fl_put(b, "data: ") && head(c->job, b) && fl_put(b, ", \"choices\": [") &&
           choice_head(c, b);
}

static bool event_tail(const fl_choice *c, const fl_piece *p, bool ended, fl_buf *b)
{
    return choice_tail(c, p ? p->mark0 : c->marks_shown, p ? p->n_marks : 0, ended, b) &&
           fl_put(b, "]}\n\n");
}

static bool call_head(const fl_choice *c, const fl_item *item, fl_buf *b)
{
    return fl_put(b,
                  "\"id\": \"call_%016" PRIx64 "_%d_%d\", \"type\": \"function\", \"function\": "
                  "{\"name\": ",
                  c->job->id, c->index, item->call) &&
           fl_put_buf(b, &item->name) && fl_put(b, ", \"arguments\": ");
}

/* ---- chat ---- */

static bool chat_begin(fl_job *j, fl_buf *b)
{
    bool ok = true;
    for (int i = 0; ok && i < j->n_choices; i++)
        ok = event_head(&j->choices[i], b) &&
             fl_put(b, "\"delta\": {\"role\": \"assistant\", \"content\": \"\"}") &&
             event_tail(&j->choices[i], NULL, false, b);
    return ok;
}

static bool chat_open(fl_choice *c, const fl_piece *p, fl_buf *b)
{
    if (p->item->kind != FL_ITEM_CALL)
        return true;
    return event_head(c, b) &&
           fl_put(b, "\"delta\": {\"tool_calls\": [{\"index\": %d, ", p->item->call) &&
           call_head(c, p->item, b) && fl_put(b, "\"\"}}]}") && event_tail(c, p, false, b);
}

static bool chat_delta(fl_choice *c, const fl_piece *p, fl_buf *b)
{
    fl_item_kind kind = p->item->kind;
    if (!event_head(c, b))
        return false;
    bool ok = kind == FL_ITEM_CALL
                  ? fl_put(b,
                           "\"delta\": {\"tool_calls\": [{\"index\": %d, \"function\": "
                           "{\"arguments\": ",
                           p->item->call) &&
                        fl_json_quote(p->text.data, p->text.len, b) && fl_put(b, "}}]}")
                  : fl_put(b, "\"delta\": {\"%s\": ",
                           kind == FL_ITEM_TEXT ? "content" : "reasoning_content") &&
                        fl_json_quote(p->text.data, p->text.len, b) && fl_put(b, "}");
    return ok && event_tail(c, p, false, b);
}

static bool chat_end_choice(fl_choice *c, fl_buf *b)
{
    return event_head(c, b) && fl_put(b, "\"delta\": {}") && event_tail(c, NULL, true, b);
}

static bool end(fl_job *j, fl_buf *b)
{
    return (!j->params.include_usage ||
            (fl_put(b, "data: ") && head(j, b) && fl_put(b, ", \"choices\": [], ") && usage(j, b) &&
             fl_put(b, "}\n\n"))) &&
           fl_put(b, "data: [DONE]\n\n");
}

static bool put_calls(const fl_choice *c, fl_buf *b)
{
    bool ok = fl_put(b, ", \"tool_calls\": [");
    for (size_t i = 0; ok && i < c->items.n; i++) {
        const fl_item *item = &c->items.data[i];
        if (item->kind == FL_ITEM_CALL)
            ok = fl_put(b, item->call ? ", {" : "{") && call_head(c, item, b) &&
                 fl_put_buf(b, &item->text) && fl_put(b, "}}");
    }
    return ok && fl_put(b, "]");
}

static bool message(const fl_choice *c, fl_buf *b)
{
    fl_buf text = {0}, reasoning = {0};
    bool ok =
        fl_item_put(c, FL_ITEM_TEXT, &text) && fl_item_put(c, FL_ITEM_REASONING, &reasoning) &&
        fl_put(b, "\"message\": {\"role\": \"assistant\", \"content\": ") &&
        (text.n == 0 && c->n_calls ? fl_put(b, "null") : fl_put_buf(b, &text)) &&
        (!reasoning.n || (fl_put(b, ", \"reasoning_content\": ") && fl_put_buf(b, &reasoning))) &&
        (!c->n_calls || put_calls(c, b)) && fl_put(b, "}");
    fl_vec_free(&text);
    fl_vec_free(&reasoning);
    return ok;
}

static bool whole(const fl_job *j, fl_buf *b)
{
    bool ok = head(j, b) && fl_put(b, ", \"choices\": [");
    for (int i = 0; ok && i < j->n_choices; i++) {
        const fl_choice *c = &j->choices[i];
        fl_buf text = {0};
        ok = fl_put(b, i ? ", " : "") && choice_head(c, b) &&
             (j->dialect->chat ? message(c, b)
                               : fl_item_put(c, FL_ITEM_TEXT, &text) && fl_put(b, "\"text\": ") &&
                                     fl_put_buf(b, &text)) &&
             choice_tail(c, 0, c->marks_shown, true, b);
        fl_vec_free(&text);
    }
    return ok && fl_put(b, "], ") && usage(j, b) && fl_put(b, "}");
}

/* ---- completions ---- */

static bool text_begin(fl_job *j, fl_buf *b)
{
    (void)j, (void)b;
    return true;
}

static bool text_delta(fl_choice *c, const fl_piece *p, fl_buf *b)
{
    return event_head(c, b) && fl_put(b, "\"text\": ") &&
           fl_json_quote(p->text.data, p->text.len, b) && event_tail(c, p, false, b);
}

static bool text_end_choice(fl_choice *c, fl_buf *b)
{
    return event_head(c, b) && fl_put(b, "\"text\": \"\"") && event_tail(c, NULL, true, b);
}

const fl_dialect fl_dialect_chat = {.path = "/v1/chat/completions",
                                    .prefix = "chatcmpl",
                                    .chat = true,
                                    .whole = whole,
                                    .begin = chat_begin,
                                    .open = chat_open,
                                    .delta = chat_delta,
                                    .end_choice = chat_end_choice,
                                    .end = end,
                                    .error = fl_put_error};

const fl_dialect fl_dialect_completions = {.path = "/v1/completions",
                                           .prefix = "cmpl",
                                           .whole = whole,
                                           .begin = text_begin,
                                           .delta = text_delta,
                                           .end_choice = text_end_choice,
                                           .end = end,
                                           .error = fl_put_error};
