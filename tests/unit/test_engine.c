/* The engine over a fake network (support/fake_model.h): scheduling, ends of every kind, room,
 * callbacks that call back.  test_invariance.c does the same to a real model. */
#include "base/mem.h"
#include "engine/engine_internal.h"
#include "support/cmocka_all.h"
#include "support/collect.h"
#include "support/fake_model.h"
#include "support/rng.h"

#include <stdlib.h>
#include <string.h>

static fl_graph *graph;
static rng dice;

static uint32_t rnd(uint32_t n)
{
    return (uint32_t)rng_int(&dice, 0, (int64_t)n - 1);
}

static fl_engine *make(int threads, int seqs, int chunk, int64_t cache)
{
    fl_engine_options o = fl_engine_options_default();
    o.threads = threads;
    o.max_seqs = seqs;
    o.chunk = chunk;
    o.cache_tokens = cache;
    fl_engine *e;
    fl_error err;
    if (fl_engine_create_graph(graph, FAKE_CONTEXT, &o, &e, &err) != FL_OK)
        fail_msg("%s", err.message);
    return e;
}

static void some_ids(int32_t *ids, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        ids[i] = (int32_t)rnd(FAKE_NAN);
}

static fl_request_params params(const int32_t *ids, int64_t n, int64_t max_tokens)
{
    fl_request_params p = fl_request_params_default();
    p.prompt = ids;
    p.n_prompt = n;
    p.max_tokens = max_tokens;
    return p;
}

static fl_request *submit(fl_engine *e, const fl_request_params *p)
{
    fl_request *r;
    fl_error err;
    if (fl_engine_submit(e, p, &r, &err) != FL_OK)
        fail_msg("%s", err.message);
    return r;
}

static fl_status try_submit(fl_engine *e, const fl_request_params *p)
{
    fl_request *r;
    fl_error err = {0};
    int64_t tokens = fl_state_free_tokens(e->state);
    int32_t seqs = fl_state_free_seqs(e->state);
    fl_status s = fl_engine_submit(e, p, &r, &err);
    if (s != FL_OK) { /* a refusal changes nothing and says why */
        assert_null(r);
        assert_int_equal(err.status, s);
        assert_int_equal(fl_state_free_tokens(e->state), tokens);
        assert_int_equal(fl_state_free_seqs(e->state), seqs);
    }
    return s;
}

static void assert_idle(fl_engine *e, int64_t cache)
{
    assert_int_equal(e->n_live, 0);
    assert_null(e->ended);
    assert_int_equal(fl_state_free_tokens(e->state), cache);
    assert_int_equal(fl_state_free_seqs(e->state), e->sizes.state.n_seqs);
}

/* What greedy decoding of the fake network gives: the text so far grows by n tokens. */
static void expect_greedy(const collector *c, int32_t *text, int64_t n, int64_t max_tokens)
{
    assert_int_equal(c->ids.n, max_tokens);
    for (int64_t i = 0; i < max_tokens; i++) {
        text[n + i] = fake_next(text, n + i);
        assert_int_equal(c->ids.data[i], text[n + i]);
    }
}

static void test_one_request(void **state)
{
    (void)state;
    dice = (rng){1};
    fl_engine *e = make(1, 2, 64, 2048);
    int32_t text[FAKE_CONTEXT];
    const int64_t lengths[] = {1, 2, 63, 64, 65, 128, 200, 700};
    for (size_t i = 0; i < sizeof lengths / sizeof lengths[0]; i++) {
        collector c;
        some_ids(text, lengths[i]);
        fl_request_params p = params(text, lengths[i], 9);
        collect(&c, &p, 0);
        submit(e, &p);
        run_all(e);
        assert_true(c.ended);
        assert_int_equal(c.finish, FL_FINISH_LENGTH);
        assert_int_equal(c.kept, FL_NONE);
        expect_greedy(&c, text, lengths[i], 9);
        collector_free(&c);
    }
    assert_idle(e, 2048);
    fl_engine_destroy(e);
}

static void test_stop_ids(void **state)
{
    (void)state;
    dice = (rng){2};
    fl_engine *e = make(1, 1, 64, 1024);
    int32_t text[200];
    some_ids(text, 100);
    for (int i = 0; i < 20; i++)
        text[100 + i] = fake_next(text, 100 + i);
    int32_t stop[2] = {text[104], FAKE_NAN};
    int first = 0;
    while (text[100 + first] != stop[0])
        first++;
    collector c;
    fl_request_params p = params(text, 100, 20);
    p.stop_ids = stop;
    p.n_stop = 2;
    collect(&c, &p, 0);
    submit(e, &p);
    stop[0] = -1; /* copied */
    run_all(e);
    assert_int_equal(c.finish, FL_FINISH_STOP);
    assert_int_equal(c.ids.n, first + 1);
    collector_free(&c);
    fl_engine_destroy(e);
}

static void test_prompt_only(void **state)
{
    (void)state;
    dice = (rng){3};
    fl_engine *e = make(2, 3, 128, 4096);
    int32_t text[300];
    some_ids(text, 300);
    collector c;
    fl_request_params p = params(text, 300, 0);
    collect(&c, &p, FAKE_VOCAB);
    fl_request *r = submit(e, &p);
    bool busy;
    assert_int_equal(fl_request_done(r), 0);
    assert_int_equal(fl_engine_step(e, &busy, NULL), FL_OK);
    assert_true(busy);
    assert_int_equal(fl_request_done(r), 128);
    run_all(e);
    assert_int_equal(c.finish, FL_FINISH_LENGTH);
    assert_int_equal(c.ids.n, 0);
    assert_int_equal(c.n_rows, 300);
    for (int i = 0; i < 300; i++) {
        float logits[FAKE_VOCAB], h[FAKE_WIDTH];
        fake_logits(text, i + 1, logits, h);
        assert_memory_equal(&c.rows.data[(size_t)i * FAKE_VOCAB], logits, sizeof logits);
    }
    collector_free(&c);
    fl_engine_destroy(e);
}

/* ---- many requests at once, in random order of everything ---- */

enum { JOBS = 8 };

typedef struct job {
    bool active;
    collector c;
    fl_request *request;
    int32_t text[FAKE_CONTEXT];
    int64_t n, max_tokens; /* whole text before the answer */
    bool poisoned, cancelled;
    int64_t first_new;
} job;

static void check_job(fl_engine *e, job *j)
{
    collector *c = &j->c;
    assert_true(c->ended);
    if (j->cancelled) {
        assert_int_equal(c->finish, FL_FINISH_CANCEL);
        j->max_tokens = (int64_t)c->ids.n;
        expect_greedy(c, j->text, j->n, j->max_tokens);
    } else if (j->poisoned) {
        assert_int_equal(c->finish, FL_FINISH_ERROR);
        assert_int_equal(c->error.status, FL_NUMERIC);
        assert_int_equal(c->ids.n, 0);
        assert_int_equal(c->kept, FL_NONE);
    } else {
        assert_int_equal(c->finish, FL_FINISH_LENGTH);
        expect_greedy(c, j->text, j->n, j->max_tokens);
        assert_int_equal(c->n_rows, c->rows_vocab ? j->n - j->first_new : 0);
    }
    for (int64_t i = 0; i < c->n_rows; i++) {
        float logits[FAKE_VOCAB], h[FAKE_WIDTH];
        fake_logits(j->text, c->first_row + i + 1, logits, h);
        assert_memory_equal(&c->rows.data[i * FAKE_VOCAB], logits, sizeof logits);
    }
    if (c->kept != FL_NONE)
        assert_true(fl_state_pos(e->state, c->kept) <= j->n + j->max_tokens);
}

/* Submits a new text, or goes on with the sequence that the job's last request left. */
static void start_job(fl_engine *e, job *j)
{
    fl_seq from = j->c.kept;
    collector_free(&j->c);
    j->first_new = 0;
    if (from != FL_NONE) {
        j->first_new = fl_state_pos(e->state, from);
        j->n += j->max_tokens;
    } else {
        j->n = 0;
    }
    int64_t more = 1 + rnd(rnd(3) ? 40 : 300);
    if (j->n + more > 800) { /* let it go and begin again */
        fl_state_release(e->state, from);
        from = FL_NONE;
        j->n = j->first_new = 0;
    }
    some_ids(j->text + j->n, more);
    bool was = from != FL_NONE && j->poisoned; /* and kept, because it was cancelled in time */
    j->poisoned = was || rnd(12) == 0;
    if (j->poisoned && !was)
        j->text[j->n + rnd((uint32_t)more)] = FAKE_NAN;
    j->n += more;
    j->max_tokens = j->poisoned ? 1 : rnd(12);
    j->cancelled = false;
    fl_request_params p = params(j->text + j->first_new, j->n - j->first_new, j->max_tokens);
    p.keep_from = from;
    p.keep = rnd(2);
    collect(&j->c, &p, j->poisoned || rnd(2) ? 0 : FAKE_VOCAB);
    fl_status s = fl_engine_submit(e, &p, &j->request, NULL);
    if (s == FL_BUSY) { /* the kept sequence is still ours */
        if (from != FL_NONE)
            assert_int_equal(fl_state_pos(e->state, from), j->first_new);
        fl_state_release(e->state, from);
        return;
    }
    assert_int_equal(s, FL_OK);
    j->active = true;
}

/* Prompts end on the grid or at their end, rows of logits are where the shares say, all is within
 * the plan's limits. */
static void check_composition(fl_engine *e)
{
    int32_t row = 0, logit = 0, prompt_rows = 0;
    fl_engine_compose(e); /* only lays out; the step composes anew */
    for (int32_t i = 0; i < e->step.n_seqs; i++) {
        const fl_share *s = &e->shares[i];
        const fl_request *r = s->request;
        int64_t end = e->seqs[i].pos0 + s->n_rows;
        assert_true(s->n_rows > 0 && s->row0 == row && s->logit0 == logit);
        assert_true(end <= e->sizes.state.max_context);
        if (!s->prompt)
            assert_true(s->n_rows == 1 && s->n_logits == 1 && i == row);
        else if (r->done + s->n_rows < r->p.n_prompt)
            assert_true(end % FL_PAGE_TOKENS == 0 && s->n_logits == (r->p.on_rows ? s->n_rows : 0));
        prompt_rows += s->prompt ? s->n_rows : 0;
        for (int32_t k = 0; k < s->n_logits; k++)
            assert_int_equal(e->logit_rows[logit + k], row + s->n_rows - s->n_logits + k);
        row += s->n_rows;
        logit += s->n_logits;
    }
    assert_int_equal(row, e->step.n_rows);
    assert_int_equal(logit, e->step.n_logits);
    assert_true(prompt_rows <= e->sizes.chunk && row <= e->sizes.plan.limits.max_rows);
    assert_true(logit <= e->sizes.plan.limits.max_logits);
}

static void run_random(uint32_t seed)
{
    dice = (rng){seed};
    int64_t cache = 64 * (16 + (int64_t)rnd(60));
    fl_engine *e = make(1 + (int)rnd(2), JOBS, 64 * (1 + (int)rnd(4)), cache);
    job *jobs = calloc(JOBS, sizeof *jobs);
    for (int i = 0; i < JOBS; i++)
        jobs[i].c.kept = FL_NONE;
    for (int i = 0; i < 120; i++) {
        job *j = &jobs[rnd(JOBS)];
        if (!j->active && rnd(2)) {
            start_job(e, j);
        } else if (j->active && rnd(20) == 0) {
            j->cancelled = true;
            fl_engine_cancel(e, j->request);
            assert_true(j->c.ended);
        }
        bool busy;
        check_composition(e);
        assert_int_equal(fl_engine_step(e, &busy, NULL), FL_OK);
        for (int k = 0; k < JOBS; k++) {
            if (jobs[k].active && jobs[k].c.ended) {
                check_job(e, &jobs[k]);
                jobs[k].active = false;
            }
        }
    }
    run_all(e);
    for (int k = 0; k < JOBS; k++) {
        if (jobs[k].active)
            check_job(e, &jobs[k]);
        fl_state_release(e->state, jobs[k].c.kept);
        collector_free(&jobs[k].c);
    }
    free(jobs);
    assert_idle(e, cache);
    fl_engine_destroy(e);
}

static void test_random_schedules(void **state)
{
    (void)state;
    for (uint32_t seed = 1; seed <= 25; seed++) {
        print_message("seed %u\n", seed);
        run_random(seed);
    }
}

/* A long prompt neither holds up a decoding request nor, for more than a turn each, other prompts;
 * and decoding requests cannot starve a prompt out of the smallest chunk. */
static void test_fairness(void **state)
{
    (void)state;
    dice = (rng){5};
    fl_engine *e = make(1, 4, 64, 8192);
    int32_t text[FAKE_CONTEXT];
    some_ids(text, 900);
    collector decoding, longest, second, third;
    fl_request_params p = params(text, 5, 30);
    collect(&decoding, &p, 0);
    submit(e, &p);
    bool busy;
    assert_int_equal(fl_engine_step(e, &busy, NULL), FL_OK);
    p = params(text, 900, 1);
    collect(&longest, &p, 0);
    fl_request *long_one = submit(e, &p);
    p = params(text, 70, 1);
    collect(&second, &p, 0);
    submit(e, &p);
    p = params(text, 30, 1);
    collect(&third, &p, 0);
    submit(e, &p);
    for (int i = 0; i < 6; i++) {
        assert_int_equal(fl_engine_step(e, &busy, NULL), FL_OK);
        assert_int_equal(decoding.ids.n, i + 2);
    }
    /* Turns of 64 rows: long, second, third + long's next would cross the grid, ... */
    assert_true(second.ended && third.ended);
    assert_true(fl_request_done(long_one) >= 192);
    run_all(e);
    assert_int_equal(longest.finish, FL_FINISH_LENGTH);
    collector_free(&decoding);
    collector_free(&longest);
    collector_free(&second);
    collector_free(&third);
    fl_engine_destroy(e);
}

/* ---- room ---- */

static void test_room(void **state)
{
    (void)state;
    dice = (rng){6};
    fl_engine *e = make(1, 2, 64, 512);
    int32_t text[FAKE_CONTEXT + 1];
    some_ids(text, FAKE_CONTEXT + 1);
    fl_request_params p = params(text, 0, 1);
    assert_int_equal(try_submit(e, &p), FL_ARGUMENT);
    p = params(text, 1, -1);
    assert_int_equal(try_submit(e, &p), FL_ARGUMENT);
    p = params(text, 1, INT64_MAX);
    assert_int_equal(try_submit(e, &p), FL_ARGUMENT);
    p = params(text, FAKE_CONTEXT + 1, 0);
    assert_int_equal(try_submit(e, &p), FL_ARGUMENT);
    p = params(text, 500, 14); /* 513 rows never fit 512 */
    assert_int_equal(try_submit(e, &p), FL_ARGUMENT);
    p = params(text, 500, 13);
    assert_int_equal(try_submit(e, &p), FL_OK);
    p = params(text, 1, 0);
    assert_int_equal(try_submit(e, &p), FL_BUSY);
    run_all(e);
    p = params(text, 10, 100);
    assert_int_equal(try_submit(e, &p), FL_OK);
    assert_int_equal(try_submit(e, &p), FL_OK);
    assert_int_equal(try_submit(e, &p), FL_BUSY);
    run_all(e);
    p.sampling.temperature = -1;
    assert_int_equal(try_submit(e, &p), FL_ARGUMENT);
    p = params(text, 10, 1);
    const int32_t outside[] = {-1, FAKE_VOCAB, INT32_MAX, INT32_MIN};
    for (int i = 0; i < 4; i++) {
        text[7] = outside[i];
        assert_int_equal(try_submit(e, &p), FL_ARGUMENT);
    }
    text[7] = 0;
    p.keep_from = 0; /* not alive */
    assert_int_equal(try_submit(e, &p), FL_ARGUMENT);
    p.keep_from = FL_NONE;
    fl_request *r = submit(e, &p);
    p.keep_from = r->seq; /* alive, but another request's */
    assert_int_equal(try_submit(e, &p), FL_ARGUMENT);
    run_all(e);
    assert_idle(e, 512);
    fl_engine_destroy(e);
}

/* A kept sequence occupies a place until it is continued or released, and only what it holds. */
static void test_keep(void **state)
{
    (void)state;
    dice = (rng){7};
    fl_engine *e = make(1, 1, 64, 512);
    int32_t text[500];
    some_ids(text, 300);
    collector c;
    fl_request_params p = params(text, 100, 60);
    int32_t stop;
    for (int i = 0; i < 4; i++)
        text[100 + i] = stop = fake_next(text, 100 + i);
    p.stop_ids = &stop;
    p.n_stop = 1;
    p.keep = true;
    collect(&c, &p, 0);
    submit(e, &p);
    run_all(e);
    fl_seq kept = c.kept;
    int64_t n = 100 + (int64_t)c.ids.n;
    assert_int_equal(c.finish, FL_FINISH_STOP);
    assert_int_equal(fl_state_pos(e->state, kept), n - 1);
    assert_int_equal(fl_state_free_tokens(e->state), 512 - 128);
    collector_free(&c);

    p = params(text, 10, 1);
    assert_int_equal(try_submit(e, &p), FL_BUSY);
    p = params(text + n - 1, 500, 1);
    p.keep_from = kept;
    assert_int_equal(try_submit(e, &p), FL_ARGUMENT);
    p = params(text + n - 1, 100, 5); /* the stop token and what the user says next */
    p.keep_from = kept;
    collect(&c, &p, 0);
    submit(e, &p);
    run_all(e);
    expect_greedy(&c, text, n - 1 + 100, 5);
    collector_free(&c);
    assert_idle(e, 512);
    fl_engine_destroy(e);
}

/* ---- failure ---- */

static void test_nan_in_shown_rows(void **state)
{
    (void)state;
    dice = (rng){9};
    fl_engine *e = make(1, 2, 64, 1024);
    int32_t text[100];
    some_ids(text, 100);
    text[80] = FAKE_NAN;
    collector bad, good;
    fl_request_params p = params(text, 100, 0);
    collect(&bad, &p, FAKE_VOCAB);
    submit(e, &p);
    p = params(text, 80, 3);
    collect(&good, &p, FAKE_VOCAB);
    submit(e, &p);
    run_all(e);
    assert_int_equal(bad.finish, FL_FINISH_ERROR);
    assert_int_equal(bad.error.status, FL_NUMERIC);
    assert_int_equal(bad.n_rows, 64);
    assert_int_equal(good.finish, FL_FINISH_LENGTH);
    expect_greedy(&good, text, 80, 3);
    collector_free(&bad);
    collector_free(&good);
    assert_idle(e, 1024);
    fl_engine_destroy(e);
}

/* ---- callbacks that call back ---- */

typedef struct meddler {
    fl_engine *e;
    fl_request *victim;
    const fl_request_params *again;
    int events, depth_refused;
    fl_finish finish;
    char message[sizeof(((fl_error *)0)->message)];
} meddler;

static void meddle(void *ctx, const fl_token_event *event)
{
    meddler *m = ctx;
    bool busy;
    m->events++;
    m->finish = event->finish;
    memcpy(m->message, event->error.message, sizeof m->message);
    m->depth_refused += fl_engine_step(m->e, &busy, NULL) == FL_ARGUMENT;
    fl_request *victim = m->victim;
    m->victim = NULL;
    if (victim)
        fl_engine_cancel(m->e, victim);
    if (m->again) {
        submit(m->e, m->again);
        m->again = NULL;
    }
    fl_engine_cancel(m->e, event->request); /* itself, ended or not */
}

static void test_failed_step(void **state)
{
    (void)state;
    dice = (rng){8};
    fl_engine *e = make(1, 3, 64, 2048);
    int32_t text[200];
    some_ids(text, 150);
    meddler m = {.e = e};
    collector b, later;
    fl_request_params p = params(text, 10, 50);
    p.on_token = meddle;
    p.ctx = &m;
    p.keep = true;
    submit(e, &p);
    p = params(text, 50, 5);
    p.keep = true;
    collect(&b, &p, 0);
    m.victim = submit(e, &p); /* cancelled from the event of the first */
    bool busy;
    fl_error err = {0};
    const fl_state_pool *pools = e->step.states;
    e->step.states = NULL; /* the plan refuses such a step */
    assert_int_equal(fl_engine_step(e, &busy, &err), FL_ARGUMENT);
    e->step.states = pools;
    assert_false(busy);
    assert_int_equal(m.events, 1);
    assert_int_equal(m.finish, FL_FINISH_ERROR);
    assert_string_equal(m.message, err.message);
    assert_int_equal(b.finish, FL_FINISH_CANCEL);
    assert_int_equal(b.kept, FL_NONE); /* its record may be torn */
    assert_idle(e, 2048);
    p = params(text, 150, 5);
    collect(&later, &p, 0);
    submit(e, &p);
    run_all(e);
    expect_greedy(&later, text, 150, 5);
    collector_free(&b);
    collector_free(&later);
    fl_engine_destroy(e);
}

static void test_callbacks(void **state)
{
    (void)state;
    dice = (rng){10};
    fl_engine *e = make(1, 3, 64, 4096);
    int32_t text[100];
    some_ids(text, 60);
    collector victim, again;
    fl_request_params p_again = params(text, 60, 4);
    collect(&again, &p_again, 0);
    meddler m = {.e = e, .again = &p_again};
    fl_request_params p = params(text, 20, 10);
    p.on_token = meddle;
    p.ctx = &m;
    submit(e, &p);
    fl_request_params p_victim = params(text, 40, 10);
    p_victim.keep = true;
    collect(&victim, &p_victim, 0);
    m.victim = submit(e, &p_victim);
    run_all(e);
    /* One token, then its own cancellation, whose event tried to meddle again. */
    assert_int_equal(m.events, 2);
    assert_int_equal(m.finish, FL_FINISH_CANCEL);
    assert_int_equal(m.depth_refused, 2);
    assert_int_equal(victim.finish, FL_FINISH_CANCEL);
    assert_int_equal(victim.ids.n, 0);
    assert_int_equal(fl_state_pos(e->state, victim.kept), 40); /* it was in the step */
    expect_greedy(&again, text, 60, 4);
    fl_state_release(e->state, victim.kept);
    collector_free(&victim);
    collector_free(&again);
    assert_idle(e, 4096);
    fl_engine_destroy(e);
}

static void test_cancel_in_every_phase(void **state)
{
    (void)state;
    dice = (rng){11};
    fl_engine *e = make(1, 2, 64, 2048);
    int32_t text[200];
    some_ids(text, 150);
    for (int steps = 0; steps < 8; steps++) { /* queued, prompt, prompt, first token, ... */
        collector c;
        bool busy = true;
        fl_request_params p = params(text, 150, 5);
        p.keep = steps % 2;
        collect(&c, &p, 0);
        fl_request *r = submit(e, &p);
        for (int i = 0; i < steps; i++)
            assert_int_equal(fl_engine_step(e, &busy, NULL), FL_OK);
        if (busy)
            fl_engine_cancel(e, r);
        assert_int_equal(c.finish, busy ? FL_FINISH_CANCEL : FL_FINISH_LENGTH);
        assert_int_equal(c.ids.n, steps > 2 ? (steps < 7 ? steps - 2 : 5) : 0);
        const int64_t pos[] = {0, 64, 128, 150, 151, 152, 153, 154};
        assert_int_equal(fl_state_pos(e->state, c.kept), p.keep ? pos[steps] : -1);
        fl_state_release(e->state, c.kept);
        collector_free(&c);
        assert_idle(e, 2048);
    }
    fl_engine_destroy(e);
}

/* Destroying ends everything without a word. */
static void test_destroy_while_busy(void **state)
{
    (void)state;
    dice = (rng){12};
    fl_engine *e = make(2, 2, 64, 1024);
    int32_t text[100];
    some_ids(text, 100);
    collector c;
    fl_request_params p = params(text, 100, 5);
    collect(&c, &p, 0);
    submit(e, &p);
    bool busy;
    assert_int_equal(fl_engine_step(e, &busy, NULL), FL_OK);
    fl_engine_destroy(e);
    assert_false(c.ended);
    fl_engine_destroy(NULL);
}

/* ---- taps ---- */

typedef struct tapped {
    FL_VEC(float) rows;
    int calls;
} tapped;

static void on_tap(void *ctx, const char *kind, int index, const fl_arg *value, int32_t rows)
{
    tapped *t = ctx;
    assert_string_equal(kind, "sum");
    assert_int_equal(index, 0);
    t->calls++;
    for (int32_t r = 0; r < rows; r++)
        assert_true(fl_vec_append(&t->rows, fl_row_f32(value, r), FAKE_WIDTH));
}

static void test_taps(void **state)
{
    (void)state;
    dice = (rng){13};
    fl_engine *e = make(2, 3, 64, 2048);
    int32_t text[3][100];
    tapped taps[3] = {{{0}, 0}};
    for (int i = 0; i < 3; i++) {
        some_ids(text[i], 100);
        fl_request_params p = params(text[i], 90 - 30 * i, 3);
        p.tap = i == 1 ? NULL : on_tap;
        p.tap_ctx = &taps[i];
        submit(e, &p);
    }
    run_all(e);
    assert_int_equal(taps[1].calls, 0);
    for (int i = 0; i < 3; i += 2) {
        int64_t n = 90 - 30 * i;
        assert_int_equal(taps[i].rows.n, (n + 2) * FAKE_WIDTH); /* its own rows only */
        text[i][n] = fake_next(text[i], n);
        text[i][n + 1] = fake_next(text[i], n + 1);
        for (int64_t r = 0; r < n + 2; r++) {
            float logits[FAKE_VOCAB], h[FAKE_WIDTH];
            fake_logits(text[i], r + 1, logits, h);
            assert_memory_equal(&taps[i].rows.data[r * FAKE_WIDTH], h, sizeof h);
        }
        fl_vec_free(&taps[i].rows);
    }
    fl_engine_destroy(e);
}

/* ---- sampling through the engine ---- */

static void test_sampled_answers_do_not_depend_on_company(void **state)
{
    (void)state;
    dice = (rng){14};
    int32_t text[4][80];
    collector alone[4], together[4];
    fl_request_params p[4];
    fl_engine *e = make(1, 4, 64, 4096);
    for (int i = 0; i < 4; i++) {
        some_ids(text[i], 80);
        p[i] = params(text[i], 20 * (i + 1), 25);
        p[i].sampling.temperature = 0.7f + (float)i;
        p[i].sampling.seed = (uint64_t)i;
        p[i].sampling.top_p = 0.9f;
        p[i].sampling.presence = 0.1f * (float)i;
        p[i].sampling.repetition = 1.1f;
        p[i].sampling.n_top = 2;
        collect(&alone[i], &p[i], 0);
        submit(e, &p[i]);
        run_all(e);
    }
    for (int i = 0; i < 4; i++) {
        collect(&together[i], &p[i], 0);
        submit(e, &p[i]);
    }
    run_all(e);
    for (int i = 0; i < 4; i++) {
        assert_int_equal(alone[i].ids.n, 25);
        assert_memory_equal(alone[i].ids.data, together[i].ids.data, 25 * sizeof(int32_t));
        assert_memory_equal(alone[i].logprobs.data, together[i].logprobs.data, 25 * sizeof(float));
        collector_free(&alone[i]);
        collector_free(&together[i]);
    }
    fl_engine_destroy(e);
}

/* ---- options ---- */

static void test_options(void **state)
{
    (void)state;
    fl_engine_options ok = fl_engine_options_default(), bad[10];
    for (int i = 0; i < 10; i++)
        bad[i] = ok;
    bad[0].threads = -1;
    bad[1].threads = 100000;
    bad[2].max_seqs = -3;
    bad[3].chunk = 100;
    bad[4].chunk = -64;
    bad[5].max_context = FAKE_CONTEXT + 1;
    bad[6].max_context = -1;
    bad[7].cache_tokens = -1;
    bad[8].cache_tokens = INT64_MAX;
    bad[9].max_snapshots = -1;
    fl_engine *e;
    fl_engine_memory m;
    for (int i = 0; i < 10; i++) {
        fl_error err = {0};
        assert_int_equal(fl_engine_create_graph(graph, FAKE_CONTEXT, &bad[i], &e, &err),
                         FL_ARGUMENT);
        assert_null(e);
        assert_int_equal(err.status, FL_ARGUMENT);
        assert_int_equal(fl_engine_predict_graph(graph, FAKE_CONTEXT, &bad[i], &m, &err),
                         FL_ARGUMENT);
    }

    /* A small model: its whole context for each of 8.  A model of a million tokens: one context of
     * 65536 shared by all. */
    fl_engine_sizes z;
    assert_int_equal(fl_engine_resolve(graph, 1000, &ok, &z, NULL), FL_OK);
    assert_int_equal(z.state.max_context, 1000);
    assert_int_equal(z.state.n_tokens, 8 * 1024);
    assert_int_equal(fl_engine_resolve(graph, 1 << 20, &ok, &z, NULL), FL_OK);
    assert_int_equal(z.state.max_context, 65536);
    assert_int_equal(z.state.n_tokens, 65536);
    assert_int_equal(z.shown_logits, 256);
    assert_int_equal(z.plan.limits.max_rows, 256 + 8);

    /* The prediction grows with what is asked for and is what the parts say. */
    assert_int_equal(fl_engine_predict_graph(graph, FAKE_CONTEXT, &ok, &m, NULL), FL_OK);
    assert_int_equal(m.total, m.workspace + m.state);
    ok.cache_tokens = 100000;
    fl_engine_memory more;
    assert_int_equal(fl_engine_predict_graph(graph, FAKE_CONTEXT, &ok, &more, NULL), FL_OK);
    assert_true(more.state - m.state >= (100000 - 8 * 1024) * FAKE_WIDTH * 4);
    assert_int_equal(more.workspace, m.workspace);
}

static void test_allocation_failures(void **state)
{
    (void)state;
    dice = (rng){15};
    int32_t text[100];
    some_ids(text, 100);
    fl_logit_bias bias = {3, 0.5f};
    fl_request_params p = params(text, 100, 3);
    p.sampling.bias = &bias;
    p.sampling.n_bias = 1;
    p.sampling.presence = 0.5f;
    p.stop_ids = text;
    p.n_stop = 1;
    fl_engine_options o = fl_engine_options_default();
    o.threads = 2;
    long n = 0;
    for (long i = 0; i <= n; i++) { /* 0: nothing fails, counts */
        fl_engine *e = NULL;
        fl_request *r;
        long before = fl_mem_count();
        fl_mem_fail_at(i);
        fl_status s = fl_engine_create_graph(graph, FAKE_CONTEXT, &o, &e, NULL);
        if (s == FL_OK)
            s = fl_engine_submit(e, &p, &r, NULL);
        bool busy = s == FL_OK;
        long submitted = fl_mem_count();
        while (busy)
            assert_int_equal(fl_engine_step(e, &busy, NULL), FL_OK);
        assert_int_equal(fl_mem_count(), submitted); /* steps allocate nothing */
        fl_mem_fail_at(0);
        fl_engine_destroy(e);
        if (i == 0)
            n = submitted - before;
        assert_int_equal(s, i ? FL_NOMEM : FL_OK);
    }
    assert_true(n > 20);
}

static int setup(void **state)
{
    (void)state;
    fl_error err;
    graph = fake_model_graph(&err);
    return graph ? 0 : -1;
}

static int teardown(void **state)
{
    (void)state;
    fl_graph_destroy(graph);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_one_request),
        cmocka_unit_test(test_stop_ids),
        cmocka_unit_test(test_prompt_only),
        cmocka_unit_test(test_random_schedules),
        cmocka_unit_test(test_fairness),
        cmocka_unit_test(test_room),
        cmocka_unit_test(test_keep),
        cmocka_unit_test(test_failed_step),
        cmocka_unit_test(test_nan_in_shown_rows),
        cmocka_unit_test(test_callbacks),
        cmocka_unit_test(test_cancel_in_every_phase),
        cmocka_unit_test(test_destroy_while_busy),
        cmocka_unit_test(test_taps),
        cmocka_unit_test(test_sampled_answers_do_not_depend_on_company),
        cmocka_unit_test(test_options),
        cmocka_unit_test(test_allocation_failures),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
