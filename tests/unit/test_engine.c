/* The engine over a fake network (support/fake_model.h): scheduling, room, kept sequences,
 * sampling. test_engine_failure.c has what goes wrong, test_invariance.c a real model. */
#include "base/mem.h"
#include "support/cmocka_all.h"
#include "support/engine_support.h"
#include "support/fake_model.h"

#include <stdlib.h>
#include <string.h>

static void test_one_request(void **state)
{
    (void)state;
    engine_dice = (rng){1};
    fl_engine *e = engine_make(1, 2, 64, 2048);
    int32_t text[FAKE_CONTEXT];
    const int64_t lengths[] = {1, 2, 63, 64, 65, 128, 200, 700};
    for (size_t i = 0; i < sizeof lengths / sizeof lengths[0]; i++) {
        collector c;
        engine_some_ids(text, lengths[i]);
        fl_request_params p = engine_params(text, lengths[i], 9);
        collect(&c, &p, 0);
        submit(e, &p);
        run_all(e);
        assert_true(c.ended);
        assert_int_equal(c.finish, FL_FINISH_LENGTH);
        assert_int_equal(c.kept, FL_NONE);
        engine_expect_greedy(&c, text, lengths[i], 9);
        collector_free(&c);
    }
    engine_assert_idle(e, 2048);
    fl_engine_destroy(e);
}

static void test_stop_ids(void **state)
{
    (void)state;
    engine_dice = (rng){2};
    fl_engine *e = engine_make(1, 1, 64, 1024);
    int32_t text[200];
    engine_some_ids(text, 100);
    for (int i = 0; i < 20; i++)
        text[100 + i] = fake_next(text, 100 + i);
    int32_t stop[2] = {text[104], FAKE_NAN};
    int first = 0;
    while (text[100 + first] != stop[0])
        first++;
    collector c;
    fl_request_params p = engine_params(text, 100, 20);
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
    engine_dice = (rng){3};
    fl_engine *e = engine_make(2, 3, 128, 4096);
    int32_t text[300];
    engine_some_ids(text, 300);
    collector c;
    fl_request_params p = engine_params(text, 300, 0);
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
        engine_expect_greedy(c, j->text, j->n, j->max_tokens);
    } else if (j->poisoned) {
        assert_int_equal(c->finish, FL_FINISH_ERROR);
        assert_int_equal(c->error.status, FL_NUMERIC);
        assert_int_equal(c->ids.n, 0);
        assert_int_equal(c->kept, FL_NONE);
    } else {
        assert_int_equal(c->finish, FL_FINISH_LENGTH);
        engine_expect_greedy(c, j->text, j->n, j->max_tokens);
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
    int64_t more = 1 + engine_rnd(engine_rnd(3) ? 40 : 300);
    if (j->n + more > 800) { /* let it go and begin again */
        fl_state_release(e->state, from);
        from = FL_NONE;
        j->n = j->first_new = 0;
    }
    engine_some_ids(j->text + j->n, more);
    bool was = from != FL_NONE && j->poisoned; /* and kept, because it was cancelled in time */
    j->poisoned = was || engine_rnd(12) == 0;
    if (j->poisoned && !was)
        j->text[j->n + engine_rnd((uint32_t)more)] = FAKE_NAN;
    j->n += more;
    j->max_tokens = j->poisoned ? 1 : engine_rnd(12);
    j->cancelled = false;
    fl_request_params p = engine_params(j->text + j->first_new, j->n - j->first_new, j->max_tokens);
    p.keep_from = from;
    p.keep = engine_rnd(2);
    collect(&j->c, &p, j->poisoned || engine_rnd(2) ? 0 : FAKE_VOCAB);
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
        const fl_request *r = s->choice->request;
        int64_t end = e->seqs[i].pos0 + s->n_rows;
        assert_true(s->n_rows > 0 && s->row0 == row && s->logit0 == logit);
        assert_true(end <= e->sizes.state.max_context);
        if (!s->prompt)
            assert_true(s->n_rows == 1 && s->n_logits == 1 && i == row);
        else if (s->choice->run + s->n_rows < r->p.n_prompt)
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
    engine_dice = (rng){seed};
    int64_t cache = 64 * (16 + (int64_t)engine_rnd(60));
    fl_engine *e = engine_make(1 + (int)engine_rnd(2), JOBS, 64 * (1 + (int)engine_rnd(4)), cache);
    job *jobs = calloc(JOBS, sizeof *jobs);
    for (int i = 0; i < JOBS; i++)
        jobs[i].c.kept = FL_NONE;
    for (int i = 0; i < 120; i++) {
        job *j = &jobs[engine_rnd(JOBS)];
        if (!j->active && engine_rnd(2)) {
            start_job(e, j);
        } else if (j->active && engine_rnd(20) == 0) {
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
    engine_assert_idle(e, cache);
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
    engine_dice = (rng){5};
    fl_engine *e = engine_make(1, 4, 64, 8192);
    int32_t text[FAKE_CONTEXT];
    engine_some_ids(text, 900);
    collector decoding, longest, second, third;
    fl_request_params p = engine_params(text, 5, 30);
    collect(&decoding, &p, 0);
    submit(e, &p);
    bool busy;
    assert_int_equal(fl_engine_step(e, &busy, NULL), FL_OK);
    p = engine_params(text, 900, 1);
    collect(&longest, &p, 0);
    fl_request *long_one = submit(e, &p);
    p = engine_params(text, 70, 1);
    collect(&second, &p, 0);
    submit(e, &p);
    p = engine_params(text, 30, 1);
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
    engine_dice = (rng){6};
    fl_engine *e = engine_make(1, 2, 64, 512);
    int32_t text[FAKE_CONTEXT + 1];
    engine_some_ids(text, FAKE_CONTEXT + 1);
    fl_request_params p = engine_params(text, 0, 1);
    assert_int_equal(engine_try_submit(e, &p), FL_ARGUMENT);
    p = engine_params(text, 1, -1);
    assert_int_equal(engine_try_submit(e, &p), FL_ARGUMENT);
    p = engine_params(text, 1, INT64_MAX);
    assert_int_equal(engine_try_submit(e, &p), FL_ARGUMENT);
    p = engine_params(text, FAKE_CONTEXT + 1, 0);
    assert_int_equal(engine_try_submit(e, &p), FL_ARGUMENT);
    p = engine_params(text, 500, 14); /* 513 rows never fit 512 */
    assert_int_equal(engine_try_submit(e, &p), FL_ARGUMENT);
    p = engine_params(text, 500, 13);
    assert_int_equal(engine_try_submit(e, &p), FL_OK);
    p = engine_params(text, 1, 0);
    assert_int_equal(engine_try_submit(e, &p), FL_BUSY);
    run_all(e);
    p = engine_params(text, 10, 100);
    assert_int_equal(engine_try_submit(e, &p), FL_OK);
    assert_int_equal(engine_try_submit(e, &p), FL_OK);
    assert_int_equal(engine_try_submit(e, &p), FL_BUSY);
    run_all(e);
    p.sampling.temperature = -1;
    assert_int_equal(engine_try_submit(e, &p), FL_ARGUMENT);
    p = engine_params(text, 10, 1);
    const int32_t outside[] = {-1, FAKE_VOCAB, INT32_MAX, INT32_MIN};
    for (int i = 0; i < 4; i++) {
        text[7] = outside[i];
        assert_int_equal(engine_try_submit(e, &p), FL_ARGUMENT);
    }
    text[7] = 0;
    p.keep_from = 0; /* not alive */
    assert_int_equal(engine_try_submit(e, &p), FL_ARGUMENT);
    p.keep_from = FL_NONE;
    fl_request *r = submit(e, &p);
    p.keep_from = r->choices[0].seq; /* alive, but another request's */
    assert_int_equal(engine_try_submit(e, &p), FL_ARGUMENT);
    run_all(e);
    engine_assert_idle(e, 512);
    fl_engine_destroy(e);
}

/* A kept sequence occupies a place until it is continued or released, and only what it holds. */
static void test_keep(void **state)
{
    (void)state;
    engine_dice = (rng){7};
    fl_engine *e = engine_make(1, 1, 64, 512);
    int32_t text[500];
    engine_some_ids(text, 300);
    collector c;
    fl_request_params p = engine_params(text, 100, 60);
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

    p = engine_params(text, 10, 1);
    assert_int_equal(engine_try_submit(e, &p), FL_BUSY);
    p = engine_params(text + n - 1, 500, 1);
    p.keep_from = kept;
    assert_int_equal(engine_try_submit(e, &p), FL_ARGUMENT);
    p = engine_params(text + n - 1, 100, 5); /* the stop token and what the user says next */
    p.keep_from = kept;
    collect(&c, &p, 0);
    submit(e, &p);
    run_all(e);
    engine_expect_greedy(&c, text, n - 1 + 100, 5);
    collector_free(&c);
    engine_assert_idle(e, 512);
    fl_engine_destroy(e);
}

/* ---- sampling through the engine ---- */

static void test_sampled_answers_do_not_depend_on_company(void **state)
{
    (void)state;
    engine_dice = (rng){14};
    int32_t text[4][80];
    collector alone[4], together[4];
    fl_request_params p[4];
    fl_engine *e = engine_make(1, 4, 64, 4096);
    for (int i = 0; i < 4; i++) {
        engine_some_ids(text[i], 80);
        p[i] = engine_params(text[i], 20 * (i + 1), 25);
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
        assert_int_equal(fl_engine_create_graph(engine_graph, FAKE_CONTEXT, &bad[i], &e, &err),
                         FL_ARGUMENT);
        assert_null(e);
        assert_int_equal(err.status, FL_ARGUMENT);
        assert_int_equal(fl_engine_predict_graph(engine_graph, FAKE_CONTEXT, &bad[i], &m, &err),
                         FL_ARGUMENT);
    }

    /* A small model: its whole context for each of 8.  A model of a million tokens: one context of
     * 65536 shared by all. */
    fl_engine_sizes z;
    assert_int_equal(fl_engine_resolve(engine_graph, 1000, &ok, &z, NULL), FL_OK);
    assert_int_equal(z.state.max_context, 1000);
    assert_int_equal(z.state.n_tokens, 8 * 1024);
    assert_int_equal(fl_engine_resolve(engine_graph, 1 << 20, &ok, &z, NULL), FL_OK);
    assert_int_equal(z.state.max_context, 65536);
    assert_int_equal(z.state.n_tokens, 65536);
    assert_int_equal(z.shown_logits, 256);
    assert_int_equal(z.plan.limits.max_rows, 256 + 8);

    /* The prediction grows with what is asked for and is what the parts say. */
    assert_int_equal(fl_engine_predict_graph(engine_graph, FAKE_CONTEXT, &ok, &m, NULL), FL_OK);
    assert_int_equal(m.total, m.workspace + m.state);
    ok.cache_tokens = 100000;
    fl_engine_memory more;
    assert_int_equal(fl_engine_predict_graph(engine_graph, FAKE_CONTEXT, &ok, &more, NULL), FL_OK);
    assert_true(more.state - m.state >= (100000 - 8 * 1024) * FAKE_WIDTH * 4);
    assert_int_equal(more.workspace, m.workspace);
}

/* What is fitted is predicted to fit, and not a page more would. */
static void test_fit(void **state)
{
    (void)state;
    for (int64_t ram = 1 << 18; ram < 1 << 26; ram += ram / 3) {
        for (int i = 0; i < 4; i++) {
            fl_engine_options o = fl_engine_options_default();
            fl_engine_memory m;
            fl_error err = {0};
            o.max_prefixes = i % 2 ? 10 : 0;
            o.max_context = i / 2 ? 1000 : 0;
            fl_status s = fl_engine_fit_graph(engine_graph, FAKE_CONTEXT, 100000, ram, &o, &err);
            if (s != FL_OK) {
                assert_int_equal(s, FL_ARGUMENT);
                assert_int_equal(o.cache_tokens, 0);
                assert_true(ram < 1 << 20);
                continue;
            }
            assert_true(o.cache_tokens >= (i / 2 ? 1000 : FL_PAGE_TOKENS));
            assert_true(o.max_context > 0 && o.max_context <= o.cache_tokens);
            assert_int_equal(fl_engine_predict_graph(engine_graph, FAKE_CONTEXT, &o, &m, NULL), 0);
            assert_true(m.total + 100000 <= ram);
            o.cache_tokens += o.cache_tokens / 32 + 2 * FL_PAGE_TOKENS;
            assert_int_equal(fl_engine_predict_graph(engine_graph, FAKE_CONTEXT, &o, &m, NULL), 0);
            assert_true(m.total + 100000 > ram);
        }
    }
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
        cmocka_unit_test(test_sampled_answers_do_not_depend_on_company),
        cmocka_unit_test(test_options),
        cmocka_unit_test(test_fit),
    };
    return cmocka_run_group_tests(tests, engine_setup, engine_teardown);
}
