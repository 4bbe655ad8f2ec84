/* The engine over a fake network when something goes wrong: failed steps, NaN, cancels in every
 * phase, callbacks that call back, allocations that fail; and what observers see. */
#include "base/mem.h"
#include "support/cmocka_all.h"
#include "support/engine_support.h"
#include "support/fake_model.h"

#include <stdlib.h>
#include <string.h>

/* ---- failure ---- */

static void test_nan_in_shown_rows(void **state)
{
    (void)state;
    engine_dice = (rng){9};
    fl_engine *e = engine_make(1, 2, 64, 1024);
    int32_t text[100];
    engine_some_ids(text, 100);
    text[80] = FAKE_NAN;
    collector bad, good;
    fl_request_params p = engine_params(text, 100, 0);
    collect(&bad, &p, FAKE_VOCAB);
    submit(e, &p);
    p = engine_params(text, 80, 3);
    collect(&good, &p, FAKE_VOCAB);
    submit(e, &p);
    run_all(e);
    assert_int_equal(bad.finish, FL_FINISH_ERROR);
    assert_int_equal(bad.error.status, FL_NUMERIC);
    assert_int_equal(bad.n_rows, 64);
    assert_int_equal(good.finish, FL_FINISH_LENGTH);
    engine_expect_greedy(&good, text, 80, 3);
    collector_free(&bad);
    collector_free(&good);
    engine_assert_idle(e, 1024);
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
    engine_dice = (rng){8};
    fl_engine *e = engine_make(1, 3, 64, 2048);
    int32_t text[200];
    engine_some_ids(text, 150);
    meddler m = {.e = e};
    collector b, later;
    fl_request_params p = engine_params(text, 10, 50);
    p.on_token = meddle;
    p.ctx = &m;
    p.keep = true;
    submit(e, &p);
    p = engine_params(text, 50, 5);
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
    engine_assert_idle(e, 2048);
    p = engine_params(text, 150, 5);
    collect(&later, &p, 0);
    submit(e, &p);
    run_all(e);
    engine_expect_greedy(&later, text, 150, 5);
    collector_free(&b);
    collector_free(&later);
    fl_engine_destroy(e);
}

static void test_callbacks(void **state)
{
    (void)state;
    engine_dice = (rng){10};
    fl_engine *e = engine_make(1, 3, 64, 4096);
    int32_t text[100];
    engine_some_ids(text, 60);
    collector victim, again;
    fl_request_params p_again = engine_params(text, 60, 4);
    collect(&again, &p_again, 0);
    meddler m = {.e = e, .again = &p_again};
    fl_request_params p = engine_params(text, 20, 10);
    p.on_token = meddle;
    p.ctx = &m;
    submit(e, &p);
    fl_request_params p_victim = engine_params(text, 40, 10);
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
    engine_expect_greedy(&again, text, 60, 4);
    fl_state_release(e->state, victim.kept);
    collector_free(&victim);
    collector_free(&again);
    engine_assert_idle(e, 4096);
    fl_engine_destroy(e);
}

static void test_cancel_in_every_phase(void **state)
{
    (void)state;
    engine_dice = (rng){11};
    fl_engine *e = engine_make(1, 2, 64, 2048);
    int32_t text[200];
    engine_some_ids(text, 150);
    for (int steps = 0; steps < 8; steps++) { /* queued, prompt, prompt, first token, ... */
        collector c;
        bool busy = true;
        fl_request_params p = engine_params(text, 150, 5);
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
        engine_assert_idle(e, 2048);
    }
    fl_engine_destroy(e);
}

/* Destroying ends everything without a word. */
static void test_destroy_while_busy(void **state)
{
    (void)state;
    engine_dice = (rng){12};
    fl_engine *e = engine_make(2, 2, 64, 1024);
    int32_t text[100];
    engine_some_ids(text, 100);
    collector c;
    fl_request_params p = engine_params(text, 100, 5);
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
    engine_dice = (rng){13};
    fl_engine *e = engine_make(2, 3, 64, 2048);
    int32_t text[3][100];
    tapped taps[3] = {{{0}, 0}};
    for (int i = 0; i < 3; i++) {
        engine_some_ids(text[i], 100);
        fl_request_params p = engine_params(text[i], 90 - 30 * i, 3);
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

static void test_allocation_failures(void **state)
{
    (void)state;
    engine_dice = (rng){15};
    int32_t text[100];
    engine_some_ids(text, 100);
    fl_logit_bias bias = {3, 0.5f};
    fl_request_params p = engine_params(text, 100, 3);
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
        fl_status s = fl_engine_create_graph(engine_graph, FAKE_CONTEXT, &o, &e, NULL);
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

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_failed_step),         cmocka_unit_test(test_nan_in_shown_rows),
        cmocka_unit_test(test_callbacks),           cmocka_unit_test(test_cancel_in_every_phase),
        cmocka_unit_test(test_destroy_while_busy),  cmocka_unit_test(test_taps),
        cmocka_unit_test(test_allocation_failures),
    };
    return cmocka_run_group_tests(tests, engine_setup, engine_teardown);
}
