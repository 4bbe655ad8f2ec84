/* Requests: taking one in, ending it.
 *
 * Submit checks everything, copies what it needs and reserves the rows of the whole request, so a
 * request that was taken cannot run out of memory or context later.  A request ends exactly once,
 * by its last choice; its memory goes when the outermost call into the engine returns, because a
 * callback further down may still look at it. */
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
    r->choices[0].seq = seq;
    return FL_OK;
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
    FL_TRY(check_prompt(e, p, err));
    FL_TRY(check_room(e, p, 0, err));
    FL_TRY(copy_ids(p->prompt, (size_t)p->n_prompt, &r->p.prompt, err));
    FL_TRY(copy_ids(p->stop_ids, p->n_stop, &r->p.stop_ids, err));
    for (int i = 0; i < r->p.n; i++)
        FL_TRY(prepare_choice(e, r, i, err));
    r->p.sampling.bias = NULL; /* the samplers have their own */
    return reserve(e, r, err);
}

fl_status fl_engine_submit(fl_engine *e, const fl_request_params *p, fl_request **out,
                           fl_error *err)
{
    *out = NULL;
    int n = p->n ? p->n : 1;
    if (n < 1 || n > e->sizes.state.n_seqs)
        return fl_fail(err, FL_ARGUMENT, "%d answers asked for, possible are 1 to %d", n,
                       e->sizes.state.n_seqs);
    if (p->keep && n > 1)
        return fl_fail(err, FL_ARGUMENT, "a sequence is kept of a request with one answer only");
    fl_request *r = fl_calloc(1, sizeof *r + (size_t)n * sizeof r->choices[0]);
    if (!r)
        return fl_fail(err, FL_NOMEM, "no memory for a request");
    r->p = *p;
    r->p.n = r->n_alive = n;
    r->p.prompt = r->p.stop_ids = NULL;
    r->kept = FL_NONE;
    for (int i = 0; i < n; i++)
        r->choices[i] = (fl_choice){.request = r, .index = i, .seq = FL_NONE};
    fl_status s = prepare(e, p, r, err);
    if (s != FL_OK) {
        fl_request_free(r);
        return s;
    }
    e->live[e->n_live++] = &r->choices[0]; /* as many places as sequences */
    *out = r;
    return FL_OK;
}

/* Alive, and its prompt runs in another choice. */
static bool is_behind(const fl_choice *c)
{
    return c->finish == FL_FINISH_NONE && c->seq == FL_NONE;
}

void fl_choice_fork(fl_engine *e, fl_choice *c)
{
    fl_request *r = c->request;
    for (int i = 0; i < r->p.n; i++) {
        fl_choice *other = &r->choices[i];
        fl_error why;
        if (!is_behind(other))
            continue;
        fl_status s = fl_state_fork(e->state, c->seq, &other->seq, &why);
        if (s == FL_OK)
            s = fl_state_extend(e->state, other->seq, r->p.max_tokens - 1, &why);
        other->run = c->run;
        if (s == FL_OK)
            e->live[e->n_live++] = other;
        else
            fl_choice_fail(e, other, &why);
    }
}

/* A choice that ends while it runs the prompt leaves it to the next. */
static void hand_over(fl_engine *e, fl_choice *c)
{
    fl_request *r = c->request;
    int at = 0, i = 0;
    while (i < r->p.n && !is_behind(&r->choices[i]))
        i++;
    if (i == r->p.n)
        return;
    while (e->live[at] != c)
        at++;
    e->live[at] = &r->choices[i];
    r->choices[i].run = c->run;
    r->choices[i].seq = c->seq;
    c->seq = FL_NONE;
}

static void leave_live(fl_engine *e, const fl_choice *c)
{
    int at = 0;
    while (at < e->n_live && e->live[at] != c)
        at++;
    if (at == e->n_live) /* it had no sequence yet */
        return;
    memmove(&e->live[at], &e->live[at + 1], (size_t)(--e->n_live - at) * sizeof *e->live);
}

void fl_choice_end(fl_engine *e, fl_choice *c, fl_token_event *event)
{
    fl_request *r = c->request;
    c->finish = event->finish;
    if (r->p.keep && event->finish != FL_FINISH_ERROR) {
        fl_state_trim(e->state, c->seq);
        r->kept = c->seq;
    } else {
        fl_state_release(e->state, c->seq);
    }
    c->seq = FL_NONE;
    leave_live(e, c);
    if (--r->n_alive == 0) {
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
    fl_token_event event = {.id = FL_NO_TOKEN, .finish = FL_FINISH_ERROR, .error = *why};
    fl_request *r = c->request;
    fl_engine_enter(e);
    fl_choice_end(e, c, &event);
    for (int i = 0; i < r->p.n; i++) {
        if (is_behind(&r->choices[i]))
            fl_choice_end(e, &r->choices[i], &event);
    }
    fl_engine_leave(e);
}

void fl_engine_cancel_choice(fl_engine *e, fl_request *r, int choice)
{
    if (choice < 0 || choice >= r->p.n || r->choices[choice].finish != FL_FINISH_NONE)
        return;
    fl_engine_enter(e);
    if (r->choices[choice].seq != FL_NONE)
        hand_over(e, &r->choices[choice]);
    fl_token_event event = {.id = FL_NO_TOKEN, .finish = FL_FINISH_CANCEL};
    fl_choice_end(e, &r->choices[choice], &event);
    fl_engine_leave(e);
}

void fl_engine_cancel(fl_engine *e, fl_request *r)
{
    fl_engine_enter(e);                   /* r stays until here, whatever the callbacks do */
    for (int i = r->p.n - 1; i >= 0; i--) /* the one that runs the prompt last */
        fl_engine_cancel_choice(e, r, i);
    fl_engine_leave(e);
}

int64_t fl_request_done(const fl_request *r)
{
    int64_t run = 0;
    for (int i = 0; i < r->p.n; i++)
        run = r->choices[i].run > run ? r->choices[i].run : run;
    return run < r->p.n_prompt ? run : r->p.n_prompt;
}

fl_seq fl_request_kept(const fl_request *r)
{
    return r->kept;
}
