/* The scheduler's part of a job: the prompt's tokens before, the answer's text after.
 *
 * Tokens become text through the model's chat parser, or as bytes in /v1/completions.  Text that
 * may be the beginning of a stop string is held back until it is known; a stop string ends the
 * answer before it, wherever tokens are cut.  Stop strings are looked for in content only. */
#define _GNU_SOURCE
#include "server/server_internal.h"

static bool nomem(fl_refusal *r)
{
    return fl_refuse(r, 500, "internal_error", "", "no memory for the request");
}

static bool prompt_ids(fl_job *j, const fl_json *list, fl_refusal *r)
{
    for (size_t i = 0; i < fl_json_size(list); i++) {
        const fl_json *v = fl_json_at(list, i);
        if (!fl_json_is(v, FL_JSON_INT) || fl_json_int(v) < 0 || fl_json_int(v) > INT32_MAX)
            return fl_refuse(r, 400, "invalid_value", "prompt",
                             "prompt must be one string or one list of token ids; element %zu is "
                             "%s",
                             i, fl_json_type_name(v));
        if (!fl_vec_push(&j->prompt, (int32_t)fl_json_int(v)))
            return nomem(r);
    }
    return true;
}

static bool make_prompt(fl_job *j, fl_refusal *r)
{
    const fl_params *p = &j->params;
    fl_error err = {0};
    fl_status s;
    if (p->chat) {
        fl_chat_options o = {.messages = p->messages,
                             .tools = p->tools,
                             .tool_choice = p->tool_choice,
                             .effort = p->thinking ? p->effort : NULL,
                             .thinking = p->thinking,
                             .generation_prompt = true};
        s = fl_chat_render(j->server->model, &o, NULL, &j->prompt, &err);
        return s == FL_OK || fl_refuse_error(r, &err);
    }
    const fl_json *text = p->prompt;
    if (fl_json_is(text, FL_JSON_ARRAY) && fl_json_size(text) == 1 &&
        fl_json_is(fl_json_at(text, 0), FL_JSON_STRING))
        text = fl_json_at(text, 0);
    if (fl_json_is(text, FL_JSON_ARRAY))
        return prompt_ids(j, text, r);
    fl_bytes b = fl_json_string(text);
    s = fl_tokenizer_encode(j->tokenizer, b.data, b.len, false, &j->prompt, &err);
    return s == FL_OK || fl_refuse_error(r, &err);
}

static void sink(void *job, const fl_chat_event *e);

bool fl_answer_prepare(fl_job *j, fl_refusal *r)
{
    fl_error err = {0};
    const int64_t context = j->server->options.context;
    j->tokenizer = j->server->tokenizer;
    if (!make_prompt(j, r))
        return false;
    int64_t n = (int64_t)j->prompt.n, *max = &j->params.max_tokens;
    if (n == 0)
        return fl_refuse(r, 400, "invalid_value", "prompt", "the prompt is empty");
    if (n >= context || (*max >= 0 && n + *max > context))
        return fl_refuse(r, 400, "context_length_exceeded", j->params.chat ? "messages" : "prompt",
                         "the context is %lld tokens; the prompt has %lld and max_tokens asks for "
                         "%lld",
                         (long long)context, (long long)n, (long long)(*max < 0 ? 1 : *max));
    if (*max < 0)
        *max = context - n;
    if (j->params.chat && fl_chat_parser_create(j->server->model, j->params.thinking, sink, j,
                                                &j->parser, &err) != FL_OK)
        return fl_refuse_error(r, &err);
    return true;
}

/* ---- text ---- */

static void fail(fl_job *j, const char *what)
{
    if (!j->failed)
        (void)!fl_fail(&j->error, FL_NOMEM, "%s", what);
    j->failed = true;
}

static void show(fl_job *j, fl_part_kind kind, const char *text, size_t len)
{
    if (len && !fl_write_text(j, kind, text, len))
        fail(j, "no memory for the answer");
}

static void flush(fl_job *j)
{
    show(j, FL_PART_CONTENT, j->hold.data, j->hold.n);
    j->hold.n = 0;
}

/* Where the first stop string begins, or SIZE_MAX. */
static size_t find_stop(const fl_job *j)
{
    for (size_t at = 0; at < j->hold.n; at++) {
        for (int i = 0; i < j->params.n_stop; i++) {
            fl_bytes s = j->params.stop[i];
            if (s.len <= j->hold.n - at && memcmp(j->hold.data + at, s.data, s.len) == 0)
                return at;
        }
    }
    return SIZE_MAX;
}

/* Where the longest end of the held text begins that a stop string could begin with. */
static size_t find_partial(const fl_job *j)
{
    for (size_t at = 0; at < j->hold.n; at++) {
        for (int i = 0; i < j->params.n_stop; i++) {
            fl_bytes s = j->params.stop[i];
            if (s.len > j->hold.n - at && memcmp(j->hold.data + at, s.data, j->hold.n - at) == 0)
                return at;
        }
    }
    return j->hold.n;
}

static void content(fl_job *j, const char *text, size_t len)
{
    if (j->stopped || len == 0)
        return;
    if (j->params.n_stop == 0) {
        show(j, FL_PART_CONTENT, text, len);
        return;
    }
    if (!fl_vec_append(&j->hold, text, len)) {
        fail(j, "no memory for the answer");
        return;
    }
    size_t stop = find_stop(j), safe = stop != SIZE_MAX ? stop : find_partial(j);
    show(j, FL_PART_CONTENT, j->hold.data, safe);
    j->stopped = stop != SIZE_MAX;
    memmove(j->hold.data, j->hold.data + safe, j->hold.n - safe);
    j->hold.n = j->stopped ? 0 : j->hold.n - safe;
}

static void sink(void *job, const fl_chat_event *e)
{
    fl_job *j = job;
    if (j->stopped)
        return;
    if (e->kind == FL_CHAT_CONTENT) {
        content(j, e->text.data, e->text.len);
        return;
    }
    flush(j);
    if (e->kind == FL_CHAT_REASONING)
        show(j, FL_PART_REASONING, e->text.data, e->text.len);
    else if (!fl_write_tool(j, e))
        fail(j, "no memory for the answer");
}

static void plain(fl_job *j, int32_t id, bool end)
{
    fl_buf text = {0};
    fl_bytes b = end ? (fl_bytes){0} : fl_tokenizer_bytes(j->tokenizer, id);
    if (!(end ? fl_utf8_end(&j->utf8, &text) : fl_utf8_feed(&j->utf8, b.data, b.len, &text)))
        fail(j, "no memory for the answer");
    content(j, text.data, text.n);
    fl_vec_free(&text);
}

/* ---- tokens ---- */

static bool is_stop_id(const fl_job *j, int32_t id)
{
    size_t n;
    const int32_t *stop = fl_model_stop_ids(j->server->model, &n);
    for (size_t i = 0; i < n; i++) {
        if (stop[i] == id)
            return true;
    }
    return false;
}

static void take(fl_job *j, int32_t id)
{
    j->n_tokens++;
    if (j->parser) {
        if (fl_chat_parser_feed(j->parser, &id, 1, &j->error) != FL_OK)
            j->failed = true;
    } else if (!is_stop_id(j, id)) {
        plain(j, id, false);
    }
}

static void finish(fl_job *j, fl_finish how)
{
    if (how != FL_FINISH_ERROR && !j->failed && !j->stopped) {
        if (!j->parser)
            plain(j, 0, true);
        else if (fl_chat_parser_end(j->parser, &j->error) != FL_OK)
            j->failed = true;
        flush(j);
    }
    const char *reason = j->stopped || how == FL_FINISH_STOP ? "stop" : "length";
    if (j->n_calls && how == FL_FINISH_STOP && !j->stopped)
        reason = "tool_calls";
    if (!j->failed && how != FL_FINISH_ERROR && !fl_write_end(j, reason))
        fail(j, "no memory for the answer");
    if (j->failed || how == FL_FINISH_ERROR) {
        fl_refusal r;
        fl_refuse_error(&r, &j->error);
        r.http = 500; /* the request was in order */
        r.code = "internal_error";
        fl_job_fail(j, &r);
    }
}

void fl_answer_token(void *job, const fl_token_event *e)
{
    fl_job *j = job;
    fl_counters *c = &j->server->counters;
    if (e->id != FL_NO_TOKEN && !j->stopped && !j->failed)
        take(j, e->id);
    if (e->id != FL_NO_TOKEN) {
        pthread_mutex_lock(&j->server->lock);
        c->generation_tokens++;
        pthread_mutex_unlock(&j->server->lock);
    }
    if (e->finish == FL_FINISH_NONE) {
        if (j->stopped || j->failed)
            fl_engine_cancel(j->server->engine, e->request);
        return;
    }
    j->request = NULL;
    j->finished = true;
    if (e->finish == FL_FINISH_ERROR)
        j->error = e->error;
    finish(j, e->finish);
    pthread_mutex_lock(&j->server->lock);
    c->ended[j->failed ? FL_FINISH_ERROR : j->stopped ? FL_FINISH_STOP : e->finish]++;
    pthread_mutex_unlock(&j->server->lock);
}

void fl_answer_free(fl_job *j)
{
    fl_chat_parser_destroy(j->parser);
    fl_vec_free(&j->prompt);
    fl_vec_free(&j->hold);
    fl_vec_free(&j->content);
    fl_vec_free(&j->reasoning);
    fl_vec_free(&j->tools);
    fl_vec_free(&j->call);
    fl_vec_free(&j->piece);
    fl_vec_free(&j->chunk);
}
