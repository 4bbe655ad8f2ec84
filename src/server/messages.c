/* The dialect of Anthropic's /v1/messages: content blocks, opened, filled and closed one after the
 * other. */
#define _GNU_SOURCE
#include "server/messages_internal.h"
#include "server/put_internal.h"

#include <inttypes.h>

/* Tokens found in the cache are counted apart from those that were run. */
static bool usage(const fl_job *j, fl_buf *b)
{
    return fl_put(b,
                  "\"usage\": {\"input_tokens\": %lld, \"cache_creation_input_tokens\": 0, "
                  "\"cache_read_input_tokens\": %lld, \"output_tokens\": %lld}",
                  (long long)j->prompt.n - (long long)j->n_cached, (long long)j->n_cached,
                  (long long)fl_job_tokens(j));
}

static bool head(const fl_job *j, fl_buf *b)
{
    return fl_put(b,
                  "{\"id\": \"msg_%016" PRIx64
                  "\", \"type\": \"message\", \"role\": \"assistant\", \"model\": ",
                  j->id) &&
           fl_put_bytes(b, fl_server_alias(j->server)) && fl_put(b, ", ");
}

static bool stop(const fl_choice *c, fl_buf *b)
{
    const char *reason = c->stop >= 0              ? "stop_sequence"
                         : c->end == FL_END_CALLS  ? "tool_use"
                         : c->end == FL_END_LENGTH ? "max_tokens"
                                                   : "end_turn";
    return fl_put(b, "\"stop_reason\": \"%s\", \"stop_sequence\": ", reason) &&
           (c->stop >= 0 ? fl_put_bytes(b, c->job->params.stops.text[c->stop]) : fl_put(b, "null"));
}

static bool event(fl_buf *b, const char *name)
{
    return fl_put(b, "event: %s\ndata: {\"type\": \"%s\"", name, name);
}

static bool begin(fl_job *j, fl_buf *b)
{
    return event(b, "message_start") && fl_put(b, ", \"message\": ") && head(j, b) &&
           fl_put(b, "\"content\": [], \"stop_reason\": null, \"stop_sequence\": null, ") &&
           usage(j, b) && fl_put(b, "}}\n\nevent: ping\ndata: {\"type\": \"ping\"}\n\n");
}

static bool use_head(const fl_choice *c, const fl_item *item, fl_buf *b)
{
    return fl_put(b, "{\"type\": \"tool_use\", \"id\": \"toolu_%016" PRIx64 "_%d\", \"name\": ",
                  c->job->id, item->call) &&
           fl_put_buf(b, &item->name) && fl_put(b, ", \"input\": ");
}

static bool open(fl_choice *c, const fl_piece *p, fl_buf *b)
{
    if (!event(b, "content_block_start") ||
        !fl_put(b, ", \"index\": %zu, \"content_block\": ", p->index))
        return false;
    bool ok = p->item->kind == FL_ITEM_CALL   ? use_head(c, p->item, b) && fl_put(b, "{}}")
              : p->item->kind == FL_ITEM_TEXT ? fl_put(b, "{\"type\": \"text\", \"text\": \"\"}")
                                              : fl_put(b, "{\"type\": \"thinking\", \"thinking\": "
                                                          "\"\", \"signature\": \"\"}");
    return ok && fl_put(b, "}\n\n");
}

static bool delta(fl_choice *c, const fl_piece *p, fl_buf *b)
{
    static const char *const forms[][2] = {[FL_ITEM_REASONING] = {"thinking_delta", "thinking"},
                                           [FL_ITEM_TEXT] = {"text_delta", "text"},
                                           [FL_ITEM_CALL] = {"input_json_delta", "partial_json"}};
    const char *const *form = forms[p->item->kind];
    (void)c;
    return event(b, "content_block_delta") &&
           fl_put(b, ", \"index\": %zu, \"delta\": {\"type\": \"%s\", \"%s\": ", p->index, form[0],
                  form[1]) &&
           fl_json_quote(p->text.data, p->text.len, b) && fl_put(b, "}}\n\n");
}

static bool close_block(fl_choice *c, const fl_piece *p, fl_buf *b)
{
    (void)c;
    return event(b, "content_block_stop") && fl_put(b, ", \"index\": %zu}\n\n", p->index);
}

static bool end_choice(fl_choice *c, fl_buf *b)
{
    return event(b, "message_delta") && fl_put(b, ", \"delta\": {") && stop(c, b) &&
           fl_put(b, "}, ") && usage(c->job, b) && fl_put(b, "}\n\n");
}

static bool end(fl_job *j, fl_buf *b)
{
    (void)j;
    return event(b, "message_stop") && fl_put(b, "}\n\n");
}

/* A call that was cut short has no complete arguments: it is left out. */
static bool put_block(const fl_choice *c, const fl_item *item, bool *any, fl_buf *b)
{
    fl_json *arguments = NULL;
    if (item->kind == FL_ITEM_CALL &&
        fl_json_parse(item->text.data ? item->text.data : "", item->text.n, "arguments", &arguments,
                      NULL) != FL_OK)
        return true;
    bool ok = fl_put(b, *any ? ", " : "");
    *any = true;
    if (item->kind == FL_ITEM_CALL)
        ok = ok && use_head(c, item, b) && fl_vec_append(b, item->text.data, item->text.n);
    else if (item->kind == FL_ITEM_TEXT)
        ok = ok && fl_put(b, "{\"type\": \"text\", \"text\": ") && fl_put_buf(b, &item->text);
    else
        ok = ok && fl_put(b, "{\"type\": \"thinking\", \"signature\": \"\", \"thinking\": ") &&
             fl_put_buf(b, &item->text);
    fl_json_free(arguments);
    return ok && fl_put(b, "}");
}

static bool whole(const fl_job *j, fl_buf *b)
{
    const fl_choice *c = &j->choices[0];
    bool ok = head(j, b) && fl_put(b, "\"content\": ["), any = false;
    for (size_t i = 0; ok && i < c->items.n; i++)
        ok = put_block(c, &c->items.data[i], &any, b);
    return ok && fl_put(b, "], ") && stop(c, b) && fl_put(b, ", ") && usage(j, b) && fl_put(b, "}");
}

static bool error(const fl_refusal *r, bool as_event, fl_buf *b)
{
    const char *type = r->http == 401   ? "authentication_error"
                       : r->http == 403 ? "permission_error"
                       : r->http == 404 ? "not_found_error"
                       : r->http == 413 ? "request_too_large"
                       : r->http == 429 ? "rate_limit_error"
                       : r->http == 503 ? "overloaded_error"
                       : r->http >= 500 ? "api_error"
                                        : "invalid_request_error";
    return (!as_event || fl_put(b, "event: error\ndata: ")) &&
           fl_put(b, "{\"type\": \"error\", \"error\": {\"type\": \"%s\", \"message\": ", type) &&
           fl_put_string(b, r->message) && fl_put(b, "}}%s", as_event ? "\n\n" : "");
}

const fl_dialect fl_dialect_messages = {.path = "/v1/messages",
                                        .prefix = "msg",
                                        .chat = true,
                                        .translate = fl_messages_translate_needed,
                                        .whole = whole,
                                        .begin = begin,
                                        .open = open,
                                        .delta = delta,
                                        .close = close_block,
                                        .end_choice = end_choice,
                                        .end = end,
                                        .error = error};

const fl_dialect fl_dialect_count = {.path = "/v1/messages/count_tokens",
                                     .prefix = "count",
                                     .chat = true,
                                     .translate = fl_messages_translate,
                                     .act = fl_chore_count,
                                     .error = error};
