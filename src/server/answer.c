/* From tokens to items.
 *
 * Tokens become text through the model's chat parser, or as bytes in /v1/completions.  Text that
 * may be the beginning of a stop string is held back until it is known; a stop string ends the
 * answer before it, wherever tokens are cut.  Stop strings are looked for in text only, not in
 * reasoning and calls. */
#define _GNU_SOURCE
#include "server/job_internal.h"

static void fail(fl_job *j, const char *what)
{
    if (!j->failed)
        (void)!fl_fail(&j->error, FL_NOMEM, "%s", what);
    j->failed = true;
}

static void check(fl_choice *c, bool ok)
{
    if (!ok)
        fail(c->job, "no memory for the answer");
}

static void close_with(fl_choice *c, fl_end end)
{
    c->end = end;
    c->done = true;
    c->hold.n = 0;
}

static void flush(fl_choice *c)
{
    check(c, fl_item_more(c, FL_ITEM_TEXT, c->hold.data, c->hold.n));
    c->hold.n = 0;
}

static void text(fl_choice *c, const char *data, size_t len)
{
    const fl_params *p = &c->job->params;
    int found;
    if (c->done || len == 0)
        return;
    c->marks_sure = c->marks.n;
    c->fed += len;
    if (p->stops.n == 0) {
        check(c, fl_item_more(c, FL_ITEM_TEXT, data, len));
        return;
    }
    if (!fl_vec_append(&c->hold, data, len)) {
        check(c, false);
        return;
    }
    size_t safe = fl_stops_scan(&p->stops, c->hold.data, c->hold.n, &found);
    size_t show = safe + (found >= 0 && p->show_stop ? p->stops.text[found].len : 0);
    check(c, fl_item_more(c, FL_ITEM_TEXT, c->hold.data, show));
    if (found >= 0) {
        c->stop = found;
        close_with(c, FL_END_STOP);
        return;
    }
    memmove(c->hold.data, c->hold.data + safe, c->hold.n - safe);
    c->hold.n -= safe;
}

void fl_answer_sink(void *choice, const fl_chat_event *e)
{
    fl_choice *c = choice;
    if (c->done)
        return;
    if (e->kind == FL_CHAT_CONTENT) {
        text(c, e->text.data, e->text.len);
        return;
    }
    flush(c);
    c->marks.n = c->marks_sure;
    switch (e->kind) {
    case FL_CHAT_REASONING:
        check(c, fl_item_more(c, FL_ITEM_REASONING, e->text.data, e->text.len));
        break;
    case FL_CHAT_TOOL_BEGIN:
        check(c, fl_item_open(c, FL_ITEM_CALL, e->text));
        break;
    case FL_CHAT_TOOL_ARGS:
        check(c, fl_item_more(c, FL_ITEM_CALL, e->text.data, e->text.len));
        break;
    default:
        check(c, fl_item_close(c));
        if (c->job->params.one_call)
            close_with(c, FL_END_CALLS);
    }
}

/* ---- tokens ---- */

static void forbid(uint32_t *allowed, int64_t id, int64_t vocab)
{
    if (id >= 0 && id < vocab)
        allowed[id / 32] &= ~(UINT32_C(1) << (id % 32));
}

fl_status fl_answer_mask(void *ctx, int choice, const int32_t *answer, int64_t n, uint32_t *allowed,
                         fl_error *err)
{
    const fl_job_prompt *p = ctx;
    fl_job *j = p->job;
    const int64_t vocab = fl_graph_vocab(fl_model_graph(j->server->model));
    if (!j->matcher) {
        for (size_t i = 0; n < j->params.min_tokens && i < j->stop_ids.n; i++)
            forbid(allowed, j->stop_ids.data[i], vocab);
        return FL_OK;
    }
    FL_TRY(fl_matcher_mask(j->matcher, p->choice + choice, answer, n, allowed,
                           err)); /* ends when it ends */
    for (int64_t id = fl_tokenizer_size(j->server->tokenizer); id < vocab; id++)
        forbid(allowed, id, vocab); /* logits that no token belongs to */
    return FL_OK;
}

static bool is_among(int32_t id, const int32_t *ids, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        if (ids[i] == id)
            return true;
    }
    return false;
}

/* A stop id is no text, even where it does not end the answer. */
static bool is_stop_id(const fl_job *j, int32_t id)
{
    size_t n;
    const int32_t *model = fl_model_stop_ids(j->server->model, &n);
    return is_among(id, model, n) || is_among(id, j->stop_ids.data, j->stop_ids.n);
}

static void plain(fl_choice *c, int32_t id, bool end)
{
    fl_buf more = {0};
    fl_bytes b = end ? (fl_bytes){0} : fl_tokenizer_bytes(c->job->server->tokenizer, id);
    if (!(end ? fl_utf8_end(&c->utf8, &more) : fl_utf8_feed(&c->utf8, b.data, b.len, &more)))
        check(c, false);
    text(c, more.data, more.n);
    fl_vec_free(&more);
}

/* Remembers a token's log-probability until it is known whether it is text. */
static void mark(fl_choice *c, const fl_token_event *e)
{
    if (c->job->params.sampling.n_top < 0)
        return;
    if (c->parser && fl_tokenizer_is_special(c->job->server->tokenizer, e->id)) {
        c->marks.n = c->marks_sure; /* what came since the last text was a tag */
        return;
    }
    fl_mark m = {
        .id = e->id, .logprob = e->logprob, .at = c->fed, .top = c->tops.n, .n_top = e->n_top};
    check(c, fl_vec_append(&c->tops, e->top, (size_t)e->n_top) && fl_vec_push(&c->marks, m));
}

static void take(fl_choice *c, const fl_token_event *e)
{
    fl_job *j = c->job;
    bool stop = is_stop_id(j, e->id);
    c->n_tokens++;
    if (!stop)
        mark(c, e);
    if (!c->parser) {
        if (!stop)
            plain(c, e->id, false);
        return;
    }
    size_t items = c->items.n, before = items ? c->items.data[items - 1].text.n : 0;
    if (fl_chat_parser_feed(c->parser, &e->id, 1, &j->error) != FL_OK)
        j->failed = true;
    const fl_item *item = c->items.n ? &c->items.data[c->items.n - 1] : NULL;
    c->n_reasoning +=
        item && item->kind == FL_ITEM_REASONING && (c->items.n > items || item->text.n > before);
}

/* The engine gives no more tokens to this choice. */
static void finish(fl_choice *c, fl_finish how)
{
    fl_job *j = c->job;
    if (!c->done && !j->failed) {
        if (!c->parser)
            plain(c, 0, true);
        else if (fl_chat_parser_end(c->parser, &j->error) != FL_OK)
            j->failed = true;
    }
    if (!c->done) {
        flush(c);
        close_with(c, how != FL_FINISH_STOP ? FL_END_LENGTH
                      : c->n_calls          ? FL_END_CALLS
                                            : FL_END_STOP);
    }
    check(c, fl_item_close(c));
    if (j->params.stream && !j->failed)
        check(c, j->dialect->end_choice(c, &j->chunk));
}

/* Why a request that was in order failed. */
static void explain(const fl_job *j, fl_refusal *r)
{
    if (j->timed_out && !j->started)
        fl_refuse(r, 503, "queue_timeout", "", "there was no room for the request in time");
    else if (j->timed_out)
        fl_refuse(r, 504, "timeout", "", "the answer took longer than %d seconds",
                  j->server->options.request_seconds);
    else
        fl_refuse_error(r, &j->error);
}

static void finish_job(fl_job *j, fl_finish how)
{
    j->finished = true;
    if (j->timed_out || j->failed)
        how = j->timed_out ? FL_FINISH_TIMEOUT : FL_FINISH_ERROR;
    else if (j->choices[0].stop >= 0)
        how = FL_FINISH_STOP; /* ended by us */
    fl_count_end(j, how);
    if (!j->failed && j->params.stream)
        check(&j->choices[0], j->dialect->end(j, &j->chunk));
    else if (!j->failed)
        check(&j->choices[0], j->dialect->whole(j, &j->chunk));
    if (j->failed) {
        fl_refusal r;
        explain(j, &r);
        fl_job_fail(j, &r);
        return;
    }
    fl_job_send(j, j->chunk.data, j->chunk.n);
    fl_job_end(j, 200);
}

void fl_answer_stop(fl_job *j)
{
    j->stopped = true;
    for (size_t i = 0; i < j->n_asked; i++) {
        if (j->prompts.data[i].request)
            fl_engine_cancel(j->server->engine, j->prompts.data[i].request);
    }
    if (!j->finished)
        finish_job(j, FL_FINISH_CANCEL);
}

/* The engine has ended a prompt. */
static void finish_prompt(fl_job_prompt *p, fl_finish how)
{
    fl_job *j = p->job;
    p->request = NULL;
    j->n_alive--;
    if (j->n_alive == 0 && (j->stopped || j->n_asked == j->prompts.n))
        finish_job(j, how);
}

void fl_answer_token(void *ctx, const fl_token_event *e)
{
    fl_job_prompt *p = ctx;
    fl_job *j = p->job;
    fl_choice *c = &j->choices[p->choice + e->choice];
    bool token = e->id != FL_NO_TOKEN;
    if (token)
        fl_count_token(j);
    if (!p->opened)
        j->n_cached += fl_request_cached(e->request);
    p->opened = true;
    if (j->params.stream && !j->opened && !j->failed)
        check(c, j->dialect->begin(j, &j->chunk));
    j->opened = true;
    if (token && !c->done && !j->failed)
        take(c, e);
    if (e->finish == FL_FINISH_ERROR && !j->failed)
        j->error = e->error;
    j->timed_out |= e->finish == FL_FINISH_TIMEOUT;
    j->failed |= e->finish == FL_FINISH_ERROR || e->finish == FL_FINISH_TIMEOUT;
    if (e->finish != FL_FINISH_NONE) {
        finish(c, e->finish);
        if (e->last)
            finish_prompt(p, e->finish);
    }
    if (j->failed && !j->finished && !j->stopped)
        fl_answer_stop(j);
    if (j->finished || j->stopped)
        return;
    if (j->params.stream && !j->failed && j->chunk.n) {
        fl_job_begin(j);
        fl_job_send(j, j->chunk.data, j->chunk.n);
        j->chunk.n = 0;
    }
    if (e->finish == FL_FINISH_NONE && c->done)
        fl_engine_cancel_choice(j->server->engine, e->request, e->choice);
}

int64_t fl_job_tokens(const fl_job *j)
{
    int64_t sum = 0;
    for (int i = 0; j->choices && i < j->n_choices; i++)
        sum += j->choices[i].n_tokens;
    return sum;
}

int64_t fl_job_reasoning_tokens(const fl_job *j)
{
    int64_t sum = 0;
    for (int i = 0; j->choices && i < j->n_choices; i++)
        sum += j->choices[i].n_reasoning;
    return sum;
}

void fl_answer_free(fl_job *j)
{
    for (int i = 0; j->choices && i < j->n_choices; i++) {
        fl_choice *c = &j->choices[i];
        fl_chat_parser_destroy(c->parser);
        fl_vec_free(&c->hold);
        fl_items_free(c);
    }
    fl_free(j->choices);
    j->choices = NULL;
    fl_matcher_destroy(j->matcher);
    j->matcher = NULL;
    fl_vec_free(&j->stop_ids);
    fl_vec_free(&j->prompt);
    fl_vec_free(&j->prompts);
    fl_vec_free(&j->chunk);
}
