/* Requests: taking one in, ending it.
 *
 * Submit checks everything and copies what it needs.  A request ends exactly once, with its last
 * choice; its memory goes when the outermost call into the engine returns, because a callback
 * further down may still look at it. */
#include "engine/engine_internal.h"

#include "base/mem.h"

#include <string.h>

void fl_request_free(fl_request *r)
{
    if (!r)
        return;
    for (int i = 0; i < r->p.n; i++) {
        fl_sampler_free(&r->choices[i].sampler);
        fl_free(r->choices[i].said);
    }
    fl_free((void *)r->p.prompt);
    fl_free((void *)r->p.stop_ids);
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
    int64_t rows = kept + p->n_prompt + (p->max_tokens ? p->max_tokens - 1 : 0);
    if (rows > cache)
        return fl_fail(err, FL_ARGUMENT,
                       "%lld tokens can never fit the cache of %lld: make it larger",
                       (long long)rows, (long long)cache);
    return FL_OK;
}

static bool in_use(const fl_engine *e, fl_seq seq)
{
    for (int i = 0; i < e->n_live; i++) {
        if (e->live[i]->seq == seq)
            return true;
    }
    for (const fl_choice *c = e->waiting; c; c = c->next) {
        if (c->seq == seq)
            return true;
    }
    return false;
}

static fl_status prepare_choice(const fl_engine *e, fl_request *r, int i, fl_error *err)
{
    fl_choice *c = &r->choices[i];
    fl_sampling s = r->p.sampling;
    s.seed += (uint64_t)i;
    FL_TRY(fl_sampler_init(&c->sampler, &s, e->vocab, err));
    for (int64_t k = 0; k < r->p.n_prompt; k++)
        fl_sampler_note(&c->sampler, r->p.prompt[k], false);
    c->said = fl_realloc_array(NULL, (size_t)r->p.max_tokens, sizeof *c->said);
    return c->said ? FL_OK : fl_fail(err, FL_NOMEM, "no memory for an answer");
}

/* p is the caller's; the request has a copy of it but for the arrays. */
static fl_status prepare(fl_engine *e, const fl_request_params *p, fl_request *r, fl_error *err)
{
    int64_t kept = 0;
    FL_TRY(check_prompt(e, p, err));
    if (p->keep_from != FL_NONE) {
        kept = fl_state_pos(e->state, p->keep_from);
        if (kept < 0 || in_use(e, p->keep_from))
            return fl_fail(err, FL_ARGUMENT, "sequence %d is not a kept one", p->keep_from);
    }
    FL_TRY(check_room(e, p, kept, err));
    FL_TRY(copy_ids(p->prompt, (size_t)p->n_prompt, &r->p.prompt, err));
    FL_TRY(copy_ids(p->stop_ids, p->n_stop, &r->p.stop_ids, err));
    for (int i = 0; i < r->p.n; i++)
        FL_TRY(prepare_choice(e, r, i, err));
    r->p.sampling.bias = NULL; /* the samplers have their own */
    return fl_queue_join(e, r, p->client, err);
}

/* Runs the request, or has it wait. */
static fl_status enqueue(fl_engine *e, fl_request *r, fl_error *err)
{
    fl_choice *c = &r->choices[0];
    c->seq = r->p.keep_from;
    bool alone = e->n_waiting == e->n_settling;
    if (alone && !(e->sizes.max_waiting > 0 && fl_reuse_defers(e, c))) {
        fl_status s = fl_queue_start(e, c, err);
        if (s != FL_BUSY || e->sizes.max_waiting == 0)
            return s;
    }
    if (e->n_waiting - e->n_settling >= e->sizes.max_waiting)
        return fl_fail(err, FL_BUSY, "%d are waiting for room, that is the limit",
                       e->n_waiting - e->n_settling);
    fl_queue_wait(e, c);
    return FL_OK;
}

static fl_status check_choices(const fl_engine *e, const fl_request_params *p, bool pinned,
                               fl_error *err)
{
    int most = pinned ? 1 : e->sizes.state.n_seqs;
    if (p->n >= 0 && p->n <= most)
        return FL_OK;
    return fl_fail(err, FL_ARGUMENT, "%d answers asked for, possible are 1 to %d%s", p->n, most,
                   pinned ? " when a sequence is kept or watched" : "");
}

/* A request that has everything but a place. */
static fl_status make(fl_engine *e, const fl_request_params *p, fl_request **out, fl_error *err)
{
    bool pinned = p->keep || p->keep_from != FL_NONE || p->on_rows || p->tap;
    FL_TRY(check_choices(e, p, pinned, err));
    int n = p->n ? p->n : 1;
    fl_request *r = fl_calloc(1, sizeof *r + (size_t)n * sizeof r->choices[0]);
    if (!r)
        return fl_fail(err, FL_NOMEM, "no memory for a request");
    r->p = *p;
    r->p.n = r->n_alive = n;
    r->p.prompt = r->p.stop_ids = NULL;
    r->number = e->arrivals;
    r->submitted = fl_engine_now(e);
    r->pinned = pinned;
    r->shared = p->keep_from == FL_NONE && !p->on_rows && !p->tap;
    r->kept = FL_NONE;
    for (int i = 0; i < n; i++)
        r->choices[i] = (fl_choice){
            .request = r, .index = i, .phase = FL_BEHIND, .seq = FL_NONE, .last_block = FL_NONE};
    fl_status s = prepare(e, p, r, err);
    if (s == FL_OK) {
        e->arrivals++;
        *out = r;
    } else {
        fl_request_free(r);
    }
    return s;
}

fl_status fl_engine_submit(fl_engine *e, const fl_request_params *p, fl_request **out,
                           fl_error *err)
{
    *out = NULL;
    fl_request *r;
    FL_TRY(make(e, p, &r, err));
    fl_status s = enqueue(e, r, err);
    if (s != FL_OK) {
        fl_queue_part(e, r);
        fl_request_free(r);
        return s;
    }
    *out = r;
    return FL_OK;
}

void fl_request_settle(fl_engine *e, const fl_request_params *p)
{
    fl_request *r;
    if (make(e, p, &r, NULL) != FL_OK)
        return;
    r->settles = true;
    fl_queue_wait(e, &r->choices[0]);
}

void fl_choice_end(fl_engine *e, fl_choice *c, fl_token_event *event)
{
    fl_request *r = c->request;
    c->finish = event->finish;
    e->stats.finished[event->finish] += !r->settles;
    fl_queue_leave(e, c);
    if (event->finish != FL_FINISH_ERROR && c->n_said > 0)
        fl_reuse_settle(e, c);
    if (r->p.keep && event->finish != FL_FINISH_ERROR) {
        fl_state_trim(e->state, c->seq);
        r->kept = c->seq;
    } else {
        fl_state_release(e->state, c->seq);
    }
    c->seq = FL_NONE;
    if (--r->n_alive == 0) {
        fl_queue_part(e, r);
        r->next = e->ended;
        e->ended = r;
    }
    event->request = r;
    event->choice = c->index;
    event->last = r->n_alive == 0;
    if (r->p.on_token)
        r->p.on_token(r->p.ctx, event);
}

void fl_choice_fail(fl_engine *e, fl_choice *c, const fl_error *why)
{
    fl_request *r = c->request;
    fl_engine_enter(e); /* r stays until here, whatever the callbacks do */
    fl_token_event event = {.id = FL_NO_TOKEN, .finish = FL_FINISH_ERROR, .error = *why};
    fl_choice_end(e, c, &event);
    for (int i = 0; i < r->p.n; i++) {
        if (r->choices[i].phase == FL_BEHIND)
            fl_choice_end(e, &r->choices[i], &event);
    }
    fl_engine_leave(e);
}

void fl_request_end(fl_engine *e, fl_request *r, fl_finish finish)
{
    fl_engine_enter(e);
    for (int pass = 0; pass < 2; pass++) { /* those behind first: nothing has to be handed over */
        for (int i = 0; i < r->p.n; i++) {
            fl_choice *c = &r->choices[i];
            fl_token_event event = {.id = FL_NO_TOKEN, .finish = finish};
            if (c->finish == FL_FINISH_NONE && (pass || c->phase == FL_BEHIND))
                fl_choice_end(e, c, &event);
        }
    }
    fl_engine_leave(e);
}

void fl_engine_cancel(fl_engine *e, fl_request *r)
{
    fl_request_end(e, r, FL_FINISH_CANCEL);
}

void fl_engine_cancel_choice(fl_engine *e, fl_request *r, int choice)
{
    if (choice < 0 || choice >= r->p.n || r->choices[choice].finish != FL_FINISH_NONE)
        return;
    fl_choice *c = &r->choices[choice];
    for (int i = 0; i < r->p.n && (c->phase == FL_WAITING || c->phase == FL_RUNNING); i++) {
        if (r->choices[i].phase == FL_BEHIND) /* the prompt goes on in another */
            fl_queue_replace(e, c, &r->choices[i]);
    }
    fl_engine_enter(e);
    fl_token_event event = {.id = FL_NO_TOKEN, .finish = FL_FINISH_CANCEL};
    fl_choice_end(e, c, &event);
    fl_engine_leave(e);
}

int64_t fl_request_done(const fl_request *r)
{
    int64_t high = 0;
    for (int i = 0; i < r->p.n; i++)
        high = r->choices[i].high > high ? r->choices[i].high : high;
    return high < r->p.n_prompt ? high : r->p.n_prompt;
}

int64_t fl_request_cached(const fl_request *r)
{
    return r->cached;
}

bool fl_request_started(const fl_request *r)
{
    return r->started;
}

fl_seq fl_request_kept(const fl_request *r)
{
    return r->kept;
}
