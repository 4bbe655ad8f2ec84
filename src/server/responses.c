/* The dialect of OpenAI's /v1/responses: output items, each with its own events, numbered. */
#define _GNU_SOURCE
#include "server/marks_internal.h"
#include "server/put_internal.h"
#include "server/read_internal.h"
#include "server/responses_internal.h"

#include <inttypes.h>
#include <time.h>

static bool put_id(const fl_job *j, const char *prefix, size_t index, fl_buf *b)
{
    return fl_put(b, "\"%s_%016" PRIx64 "_%zu\"", prefix, j->id, index);
}

/* The text of an item as its one content part. */
static bool put_part(const fl_choice *c, const fl_item *item, bool filled, fl_buf *b)
{
    bool text = item->kind == FL_ITEM_TEXT;
    return fl_put(b, "{\"type\": \"%s\", \"text\": ", text ? "output_text" : "reasoning_text") &&
           (filled ? fl_put_buf(b, &item->text) : fl_put(b, "\"\"")) &&
           (!text || (fl_put(b, ", \"annotations\": [], \"logprobs\": ") &&
                      fl_marks_list(c, 0, filled ? c->marks_shown : 0, b))) &&
           fl_put(b, "}");
}

static bool put_item(const fl_choice *c, size_t index, const char *status, fl_buf *b)
{
    const fl_item *item = &c->items.data[index];
    bool filled = strcmp(status, "in_progress") != 0;
    static const char *const forms[][2] = {[FL_ITEM_REASONING] = {"reasoning", "rs"},
                                           [FL_ITEM_TEXT] = {"message", "msg"},
                                           [FL_ITEM_CALL] = {"function_call", "fc"}};
    const char *const *form = forms[item->kind];
    if (!fl_put(b, "{\"type\": \"%s\", \"status\": \"%s\", \"id\": ", form[0], status) ||
        !put_id(c->job, form[1], index, b))
        return false;
    if (item->kind == FL_ITEM_CALL)
        return fl_put(b, ", \"call_id\": ") && put_id(c->job, "call", index, b) &&
               fl_put(b, ", \"name\": ") && fl_put_buf(b, &item->name) &&
               fl_put(b, ", \"arguments\": ") &&
               (filled ? fl_put_buf(b, &item->text) : fl_put(b, "\"\"")) && fl_put(b, "}");
    return fl_put(b, item->kind == FL_ITEM_TEXT ? ", \"role\": \"assistant\", \"content\": ["
                                                : ", \"summary\": [], \"content\": [") &&
           (!filled || put_part(c, item, true, b)) && fl_put(b, "]}");
}

static bool put_usage(const fl_job *j, fl_buf *b)
{
    long long in = (long long)j->prompt.n, out = (long long)fl_job_tokens(j);
    return fl_put(b,
                  "{\"input_tokens\": %lld, \"input_tokens_details\": {\"cached_tokens\": %lld}, "
                  "\"output_tokens\": %lld, \"output_tokens_details\": {\"reasoning_tokens\": "
                  "%lld}, \"total_tokens\": %lld}",
                  in, (long long)j->n_cached, out, (long long)fl_job_reasoning_tokens(j), in + out);
}

/* A member of the request as it came, or what stands for its absence. */
static bool echo(const fl_job *j, const char *name, const char *absent, fl_buf *b)
{
    const fl_json *v = fl_read(j->body, name);
    return fl_put(b, ", \"%s\": ", name) && (v ? fl_put_json(b, v) : fl_put(b, "%s", absent));
}

static bool put_output(const fl_job *j, bool ended, fl_buf *b)
{
    const fl_choice *c = &j->choices[0];
    bool ok = fl_put(b, ", \"output\": [");
    for (size_t i = 0; ok && ended && i < c->items.n; i++)
        ok = fl_put(b, i ? ", " : "") && put_item(c, i, "completed", b);
    return ok && fl_put(b, "]");
}

static bool put_response(const fl_job *j, bool ended, fl_buf *b)
{
    static const char *const echoes[][2] = {{"instructions", "null"},
                                            {"max_output_tokens", "null"},
                                            {"metadata", "{}"},
                                            {"parallel_tool_calls", "true"},
                                            {"reasoning", "{\"effort\": null, \"summary\": null}"},
                                            {"temperature", "1.0"},
                                            {"text", "{\"format\": {\"type\": \"text\"}}"},
                                            {"tool_choice", "\"auto\""},
                                            {"tools", "[]"},
                                            {"top_p", "1.0"},
                                            {"user", "null"}};
    bool cut = ended && j->choices[0].end == FL_END_LENGTH;
    bool ok = fl_put(b, "{\"id\": \"resp_%016" PRIx64 "\", \"object\": \"response\", ", j->id) &&
              fl_put(b, "\"created_at\": %" PRId64 ", \"status\": \"%s\", \"model\": ", j->created,
                     !ended ? "in_progress"
                     : cut  ? "incomplete"
                            : "completed") &&
              fl_put_bytes(b, fl_server_alias(j->server)) &&
              (!ended || fl_put(b, ", \"completed_at\": %" PRId64, (int64_t)time(NULL))) &&
              fl_put(b,
                     ", \"error\": null, \"incomplete_details\": %s, \"previous_response_id\": "
                     "null, \"store\": false, \"truncation\": \"disabled\"",
                     cut ? "{\"reason\": \"max_output_tokens\"}" : "null");
    for (size_t i = 0; ok && i < sizeof echoes / sizeof *echoes; i++)
        ok = echo(j, echoes[i][0], echoes[i][1], b);
    return ok && put_output(j, ended, b) && fl_put(b, ", \"usage\": ") &&
           (ended ? put_usage(j, b) : fl_put(b, "null")) && fl_put(b, "}");
}

static bool whole(const fl_job *j, fl_buf *b)
{
    return put_response(j, true, b);
}

/* ---- events ---- */

static bool event(fl_job *j, const char *name, fl_buf *b)
{
    return fl_put(b, "event: %s\ndata: {\"type\": \"%s\", \"sequence_number\": %lld", name, name,
                  (long long)j->sequence++);
}

static bool response_event(fl_job *j, const char *name, bool ended, fl_buf *b)
{
    return event(j, name, b) && fl_put(b, ", \"response\": ") && put_response(j, ended, b) &&
           fl_put(b, "}\n\n");
}

/* An event about an item: with its place, and for text with that of its one part. */
static bool item_event(fl_choice *c, const fl_piece *p, const char *name, fl_buf *b)
{
    fl_item_kind kind = p->item->kind;
    return event(c->job, name, b) &&
           fl_put(b, ", \"output_index\": %zu, \"item_id\": ", p->index) &&
           put_id(c->job,
                  kind == FL_ITEM_CALL   ? "fc"
                  : kind == FL_ITEM_TEXT ? "msg"
                                         : "rs",
                  p->index, b) &&
           (kind == FL_ITEM_CALL || fl_put(b, ", \"content_index\": 0"));
}

static bool whole_item_event(fl_choice *c, const fl_piece *p, const char *name, const char *status,
                             fl_buf *b)
{
    return event(c->job, name, b) && fl_put(b, ", \"output_index\": %zu, \"item\": ", p->index) &&
           put_item(c, p->index, status, b) && fl_put(b, "}\n\n");
}

static bool part_event(fl_choice *c, const fl_piece *p, const char *name, bool filled, fl_buf *b)
{
    return item_event(c, p, name, b) && fl_put(b, ", \"part\": ") &&
           put_part(c, p->item, filled, b) && fl_put(b, "}\n\n");
}

static bool begin(fl_job *j, fl_buf *b)
{
    return response_event(j, "response.created", false, b) &&
           response_event(j, "response.in_progress", false, b);
}

static bool open(fl_choice *c, const fl_piece *p, fl_buf *b)
{
    return whole_item_event(c, p, "response.output_item.added", "in_progress", b) &&
           (p->item->kind == FL_ITEM_CALL ||
            part_event(c, p, "response.content_part.added", false, b));
}

static const char *const NAMES[][3] = {
    [FL_ITEM_REASONING] = {"response.reasoning_text.delta", "response.reasoning_text.done", "text"},
    [FL_ITEM_TEXT] = {"response.output_text.delta", "response.output_text.done", "text"},
    [FL_ITEM_CALL] = {"response.function_call_arguments.delta",
                      "response.function_call_arguments.done", "arguments"}};

static bool delta(fl_choice *c, const fl_piece *p, fl_buf *b)
{
    return item_event(c, p, NAMES[p->item->kind][0], b) && fl_put(b, ", \"delta\": ") &&
           fl_json_quote(p->text.data, p->text.len, b) &&
           (p->item->kind != FL_ITEM_TEXT ||
            (fl_put(b, ", \"logprobs\": ") && fl_marks_list(c, p->mark0, p->n_marks, b))) &&
           fl_put(b, "}\n\n");
}

static bool close_item(fl_choice *c, const fl_piece *p, fl_buf *b)
{
    fl_item_kind kind = p->item->kind;
    if (!item_event(c, p, NAMES[kind][1], b) || !fl_put(b, ", \"%s\": ", NAMES[kind][2]) ||
        !fl_put_buf(b, &p->item->text))
        return false;
    if (kind == FL_ITEM_CALL)
        return fl_put(b, ", \"name\": ") && fl_put_buf(b, &p->item->name) && fl_put(b, "}\n\n") &&
               whole_item_event(c, p, "response.output_item.done", "completed", b);
    return (kind != FL_ITEM_TEXT ||
            (fl_put(b, ", \"logprobs\": ") && fl_marks_list(c, 0, c->marks_shown, b))) &&
           fl_put(b, "}\n\n") && part_event(c, p, "response.content_part.done", true, b) &&
           whole_item_event(c, p, "response.output_item.done", "completed", b);
}

static bool end_choice(fl_choice *c, fl_buf *b)
{
    (void)c, (void)b;
    return true;
}

static bool end(fl_job *j, fl_buf *b)
{
    return response_event(
        j, j->choices[0].end == FL_END_LENGTH ? "response.incomplete" : "response.completed", true,
        b);
}

static bool error(const fl_refusal *r, bool as_event, fl_buf *b)
{
    if (!as_event)
        return fl_put_error(r, false, b);
    return fl_put(b,
                  "event: error\ndata: {\"type\": \"error\", \"code\": \"%s\", \"param\": null, "
                  "\"message\": ",
                  r->code) &&
           fl_put_string(b, r->message) && fl_put(b, "}\n\n");
}

const fl_dialect fl_dialect_responses = {.path = "/v1/responses",
                                         .prefix = "resp",
                                         .chat = true,
                                         .translate = fl_responses_translate,
                                         .whole = whole,
                                         .begin = begin,
                                         .open = open,
                                         .delta = delta,
                                         .close = close_item,
                                         .end_choice = end_choice,
                                         .end = end,
                                         .error = error};
