/* Requests: taking one in, ending it.
 *
 * Submit checks everything, copies what it needs and reserves the rows of the whole request, so a
 * request that was taken cannot run out of memory or context later.  A request ends exactly once,
 * by fl_request_end; its memory goes when the outermost call into the engine returns, because a
 * callback further down may still look at it. */
#include "engine/engine_internal.h"

#include "base/mem.h"

#include <string.h>

void fl_request_free(fl_request *r)
{
    if (!r)
        return;
    fl_free((void *)r->p.prompt);
    fl_free((void *)r->p.stop_ids);
    fl_sampler_free(&r->sampler);
    fl_free(r);
}

void fl_engine_enter(fl_engine *e)
{
    e->depth++;
}

void fl_engine_leave(fl_engine *e)
{
    if (--e->depth > 0)
        return;
    while (e->ended) {
        fl_request *r = e->ended;
        e->ended = r->next;
        fl_request_free(r);
    }
}

static fl_status copy_ids(const int32_t *ids, size_t n, const int32_t **out, fl_error *err)
{
    int32_t *copy = fl_realloc_array(NULL, n, sizeof *copy);
    if (!copy)
        return fl_fail(err, FL_NOMEM, "no memory for %zu token ids", n);
    if (n)
        memcpy(copy, ids, n * sizeof *copy);
    *out = copy;
    return FL_OK;
}

static fl_status check_prompt(const fl_engine *e, const fl_request_params *p, fl_error *err)
{
    if (p->n_prompt < 1)
        return fl_fail(err, FL_ARGUMENT, "the prompt is empty");
    if (p->max_tokens < 0)
        return fl_fail(err, FL_ARGUMENT, "max_tokens is %lld", (long long)p->max_tokens);
    for (int64_t i = 0; i < p->n_prompt; i++) {
        if (p->prompt[i] < 0 || p->prompt[i] >= e->vocab)
            return fl_fail(err, FL_ARGUMENT,
                           "token %lld of the prompt is %d, the vocabulary has %lld", (long long)i,
                           p->prompt[i], (long long)e->vocab);
    }
    return FL_OK;
}

/* The rows a request will run: the last token of an answer is given and not run. */
static int64_t rows_needed(const fl_request_params *p)
{
    return p->n_prompt + (p->max_tokens ? p->max_tokens - 1 : 0);
}

/* Whether the request could run with the engine to itself. */
static fl_status check_room(const fl_engine *e, const fl_request_params *p, int64_t kept,
                            fl_error *err)
{
    const fl_state_limits *l = &e->sizes.state;
    int64_t room = l->max_context - kept;
    if (p->n_prompt > room || p->max_tokens > room - p->n_prompt)
        return fl_fail(err, FL_ARGUMENT,
                       "%lld kept tokens, %lld of prompt and %lld of answer exceed the context of "
                       "%lld tokens",
                       (long long)kept, (long long)p->n_prompt, (long long)p->max_tokens,
                       (long long)l->max_context);
    int64_t cache = l->n_tokens + FL_PAGE_TOKENS - 1; /* whole pages */
    cache -= cache % FL_PAGE_TOKENS;
    if (kept + rows_needed(p) > cache)
        return fl_fail(err, FL_ARGUMENT,
                       "%lld tokens can never fit the cache of %lld: make it larger",
                       (long long)(kept + rows_needed(p)), (long long)cache);
    return FL_OK;
}

static bool in_use(const fl_engine *e, fl_seq seq)
{
    for (int i = 0; i < e->n_live; i++) {
        if (e->live[i]->seq == seq)
            return true;
    }
    return false;
}

/* Finds or makes the sequence and reserves its rows; nothing changes on failure. */
static fl_status reserve(fl_engine *e, fl_request *r, fl_error *err)
{
    fl_seq seq = r->p.keep_from;
    int64_t kept = 0;
    if (seq != FL_NONE) {
        kept = fl_state_pos(e->state, seq);
        if (kept < 0 || in_use(e, seq))
            return fl_fail(err, FL_ARGUMENT, "sequence %d is not a kept one", seq);
    }
    FL_TRY(check_room(e, &r->p, kept, err));
    if (seq == FL_NONE)
        FL_TRY(fl_state_admit(e->state, &seq, err));
    fl_status s = fl_state_extend(e->state, seq, rows_needed(&r->p), err);
    if (s != FL_OK) {
        if (r->p.keep_from == FL_NONE)
            fl_state_release(e->state, seq);
        return s;
    }
    r->seq = seq;
    return FL_OK;
}

static fl_status prepare(fl_engine *e, const fl_request_params *p, fl_request *r, fl_error *err)
{
    r->p.prompt = NULL;
    r->p.stop_ids = NULL;
    FL_TRY(check_prompt(e, p, err));
    FL_TRY(copy_ids(p->prompt, (size_t)p->n_prompt, &r->p.prompt, err));
    FL_TRY(copy_ids(p->stop_ids, p->n_stop, &r->p.stop_ids, err));
    FL_TRY(fl_sampler_init(&r->sampler, &p->sampling, e->vocab, err));
    for (int64_t i = 0; i < p->n_prompt; i++)
        fl_sampler_note(&r->sampler, p->prompt[i], false);
    return reserve(e, r, err);
}

fl_status fl_engine_submit(fl_engine *e, const fl_request_params *p, fl_request **out,
                           fl_error *err)
{
    *out = NULL;
    fl_request *r = fl_calloc(1, sizeof *r);
    if (!r)
        return fl_fail(err, FL_NOMEM, "no memory for a request");
    r->p = *p;
    r->last = FL_NO_TOKEN;
    r->seq = r->kept = FL_NONE;
    fl_status s = prepare(e, p, r, err);
    if (s != FL_OK) {
        fl_request_free(r);
        return s;
    }
    e->live[e->n_live++] = r; /* as many places as sequences */
    *out = r;
    return FL_OK;
}

void fl_request_end(fl_engine *e, fl_request *r, fl_token_event *event)
{
    r->finish = event->finish;
    if (r->p.keep && event->finish != FL_FINISH_ERROR) {
        fl_state_trim(e->state, r->seq);
        r->kept = r->seq;
    } else {
        fl_state_release(e->state, r->seq);
    }
    r->seq = FL_NONE;
    int at = 0;
    while (e->live[at] != r)
        at++;
    memmove(&e->live[at], &e->live[at + 1], (size_t)(--e->n_live - at) * sizeof *e->live);
    r->next = e->ended;
    e->ended = r;
    event->request = r;
    if (r->p.on_token)
        r->p.on_token(r->p.ctx, event);
}

void fl_request_fail(fl_engine *e, fl_request *r, const fl_error *why)
{
    fl_token_event event = {.id = FL_NO_TOKEN, .finish = FL_FINISH_ERROR, .error = *why};
    fl_request_end(e, r, &event);
}

void fl_engine_cancel(fl_engine *e, fl_request *r)
{
    if (r->finish != FL_FINISH_NONE)
        return;
    fl_engine_enter(e);
    fl_token_event event = {.id = FL_NO_TOKEN, .finish = FL_FINISH_CANCEL};
    fl_request_end(e, r, &event);
    fl_engine_leave(e);
}

int64_t fl_request_done(const fl_request *r)
{
    return r->done;
}

fl_seq fl_request_kept(const fl_request *r)
{
    return r->kept;
}
