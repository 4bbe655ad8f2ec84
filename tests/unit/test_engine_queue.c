/* Waiting, fairness, priorities, deadlines and lost places, over the fake network.  Whatever the
 * queue does, every answer is the one that the network gives alone. */
#include "support/cmocka_all.h"
#include "support/engine_support.h"
#include "support/fake_model.h"

#include <stdlib.h>
#include <string.h>

static int64_t fake_time;

static int64_t read_time(void *ctx)
{
    (void)ctx;
    return fake_time;
}

static fl_engine *make(int seqs, int waiting, int64_t cache)
{
    fl_engine_options o = fl_engine_options_default();
    o.threads = 1;
    o.max_seqs = seqs;
    o.max_waiting = waiting;
    o.chunk = 64;
    o.cache_tokens = cache;
    o.clock = read_time;
    fl_engine *e;
    fl_error err;
    if (fl_engine_create_graph(engine_graph, FAKE_CONTEXT, &o, &e, &err) != FL_OK)
        fail_msg("%s", err.message);
    return e;
}

static void step(fl_engine *e)
{
    bool busy;
    assert_int_equal(fl_engine_step(e, &busy, NULL), FL_OK);
}

static fl_engine_stats stats(const fl_engine *e)
{
    fl_engine_stats s;
    fl_engine_get_stats(e, &s);
    return s;
}

static void test_waiting_and_its_limit(void **state)
{
    (void)state;
    engine_dice = (rng){31};
    fl_engine *e = make(2, 3, 2048);
    int32_t text[6][100];
    collector c[6];
    for (int i = 0; i < 6; i++) {
        engine_some_ids(text[i], 100);
        fl_request_params p = engine_params(text[i], 80, 10);
        collect(&c[i], &p, 0);
        if (i < 5)
            submit(e, &p);
        else
            assert_int_equal(engine_try_submit(e, &p), FL_BUSY);
    }
    assert_int_equal(stats(e).running, 2);
    assert_int_equal(stats(e).waiting, 3);
    run_all(e);
    for (int i = 0; i < 5; i++) {
        engine_expect_greedy(&c[i], text[i], 80, 10);
        collector_free(&c[i]);
    }
    assert_int_equal(stats(e).finished[FL_FINISH_LENGTH], 5);
    assert_int_equal(stats(e).prompt_tokens, 5 * 80);
    assert_int_equal(stats(e).generated_tokens, 5 * 10);
    engine_assert_idle(e, 2048);
    fl_engine_destroy(e);
}

/* One client with many requests and one with a single one: the single one is let in next. */
static void test_clients_and_priorities(void **state)
{
    (void)state;
    engine_dice = (rng){32};
    fl_engine *e = make(1, 20, 2048);
    int32_t text[100];
    engine_some_ids(text, 100);
    collector c[8];
    const struct {
        uint64_t client;
        int priority;
    } who[8] = {{7, 0}, {7, 0}, {7, 0}, {7, 0}, {9, 0}, {7, -1}, {9, 0}, {9, 1}};
    /* The first runs at once.  Then the one with the lowest number; then client 9, which was served
     * less, until it is level; its last is of the highest number. */
    const int order[8] = {0, 5, 4, 6, 1, 2, 3, 7};
    for (int i = 0; i < 8; i++) {
        fl_request_params p = engine_params(text, 70, 2);
        p.client = who[i].client;
        p.priority = who[i].priority;
        collect(&c[i], &p, 0);
        submit(e, &p);
    }
    for (int i = 0; i < 8; i++) {
        int ended = 0;
        while (!c[order[i]].ended)
            step(e);
        for (int k = 0; k < 8; k++)
            ended += c[k].ended;
        assert_int_equal(ended, i + 1);
        collector_free(&c[order[i]]);
        c[order[i]].ended = true;
    }
    engine_assert_idle(e, 2048);
    assert_null(e->clients);
    fl_engine_destroy(e);
}

/* Two clients, five long prompts against one: rows go half and half. */
static void test_rows_are_shared_by_client(void **state)
{
    (void)state;
    engine_dice = (rng){33};
    fl_engine *e = make(6, 0, 8192);
    int32_t text[900];
    engine_some_ids(text, 900);
    fl_request *r[6];
    for (int i = 0; i < 6; i++) {
        fl_request_params p = engine_params(text, 900, 1);
        p.client = i == 5;
        r[i] = submit(e, &p);
    }
    for (int i = 0; i < 20; i++)
        step(e);
    assert_int_equal(fl_request_done(r[5]), 640);
    for (int i = 0; i < 5; i++)
        assert_int_equal(fl_request_done(r[i]), 128);
    fl_engine_destroy(e);
}

static void test_deadlines(void **state)
{
    (void)state;
    engine_dice = (rng){34};
    fl_engine *e = make(1, 4, 2048);
    int32_t text[100];
    engine_some_ids(text, 100);
    collector c[3];
    fake_time = 1000;
    for (int i = 0; i < 3; i++) {
        fl_request_params p = engine_params(text, 70, 50);
        p.max_wait_us = i == 2 ? 0 : 500;
        p.max_us = i == 2 ? 800 : 0;
        p.n = i == 2 ? 1 : 0;
        collect(&c[i], &p, 0);
        submit(e, &p);
    }
    fake_time = 1499;
    step(e);
    assert_false(c[1].ended);
    fake_time = 1500;
    step(e); /* the first has begun */
    assert_false(c[0].ended);
    assert_int_equal(c[1].finish, FL_FINISH_TIMEOUT);
    run_all(e);
    assert_int_equal(c[0].finish, FL_FINISH_LENGTH);
    assert_int_equal(c[2].finish, FL_FINISH_LENGTH);
    for (int i = 0; i < 3; i++)
        collector_free(&c[i]);
    for (int i = 0; i < 2; i++) { /* running, and waiting with n choices */
        fl_request_params p = engine_params(text, 70, 50);
        p.max_us = 100;
        collect(&c[i], &p, 0);
        submit(e, &p);
    }
    step(e);
    step(e);
    assert_int_equal(c[0].ids.n, 1);
    fake_time += 100;
    step(e);
    for (int i = 0; i < 2; i++) {
        assert_int_equal(c[i].finish, FL_FINISH_TIMEOUT);
        collector_free(&c[i]);
    }
    assert_int_equal(stats(e).finished[FL_FINISH_TIMEOUT], 3);
    engine_assert_idle(e, 2048);
    fl_engine_destroy(e);
}

static void test_cancel_while_waiting(void **state)
{
    (void)state;
    engine_dice = (rng){35};
    fl_engine *e = make(1, 4, 2048);
    int32_t text[100];
    engine_some_ids(text, 100);
    collector c[4];
    fl_request *r[4];
    for (int i = 0; i < 4; i++) {
        fl_request_params p = engine_params(text, 70, 5);
        p.keep = i == 1;
        collect(&c[i], &p, 0);
        r[i] = submit(e, &p);
    }
    assert_false(fl_request_started(r[2]));
    fl_engine_cancel(e, r[1]);
    assert_int_equal(c[1].kept, FL_NONE); /* it never had one */
    fl_engine_cancel(e, r[3]);
    run_all(e);
    for (int i = 0; i < 4; i++) {
        assert_int_equal(c[i].finish, i % 2 ? FL_FINISH_CANCEL : FL_FINISH_LENGTH);
        collector_free(&c[i]);
    }
    engine_assert_idle(e, 2048);
    fl_engine_destroy(e);
}

/* A kept sequence that waits to be continued is taken, and comes back when the wait ends. */
static void test_continue_after_waiting(void **state)
{
    (void)state;
    engine_dice = (rng){36};
    fl_engine *e = make(2, 4, 512);
    int32_t text[400], other[400];
    engine_some_ids(text, 400);
    engine_some_ids(other, 400);
    collector c, d;
    fl_request_params p = engine_params(text, 64, 0);
    p.keep = true;
    collect(&c, &p, 0);
    submit(e, &p);
    run_all(e);
    fl_seq kept = c.kept;
    collector_free(&c);
    p = engine_params(other, 300, 20);
    p.keep = true;
    collect(&d, &p, 0);
    submit(e, &p);
    p = engine_params(text + 64, 200, 20);
    p.keep_from = kept;
    collect(&c, &p, 0);
    submit(e, &p);
    assert_int_equal(stats(e).waiting, 1);
    assert_int_equal(engine_try_submit(e, &p), FL_ARGUMENT); /* taken */
    while (!d.ended)
        step(e);
    fl_state_release(e->state, d.kept);
    run_all(e);
    engine_expect_greedy(&c, text, 264, 20);
    engine_expect_greedy(&d, other, 300, 20);
    collector_free(&c);
    collector_free(&d);
    engine_assert_idle(e, 512);
    fl_engine_destroy(e);
}

/* ---- lost places ---- */

static void test_places_are_lost_and_answers_are_not(void **state)
{
    (void)state;
    int64_t lost = 0, again = 0;
    for (uint32_t seed = 1; seed <= 20; seed++) {
        engine_dice = (rng){seed};
        int64_t cache = 64 * (6 + (int64_t)engine_rnd(10));
        fl_engine *e = make(6, 20, cache);
        enum { MANY = 12 };
        int32_t(*text)[400] = malloc(sizeof(int32_t[MANY][400]));
        collector c[MANY];
        int64_t n[MANY];
        for (int i = 0; i < MANY; i++) {
            n[i] = 1 + engine_rnd(150);
            engine_some_ids(text[i], n[i]);
            fl_request_params p = engine_params(text[i], n[i], 200);
            p.priority = (int)engine_rnd(2);
            p.client = engine_rnd(3);
            collect(&c[i], &p, 0);
            submit(e, &p);
            if (engine_rnd(2))
                step(e);
        }
        run_all(e);
        for (int i = 0; i < MANY; i++) {
            engine_expect_greedy(&c[i], text[i], n[i], 200);
            collector_free(&c[i]);
        }
        lost += stats(e).preemptions;
        again += stats(e).replayed_tokens;
        assert_int_equal(stats(e).generated_tokens, MANY * 200);
        engine_assert_idle(e, cache);
        fl_engine_destroy(e);
        free(text);
    }
    assert_true(lost > 20 && again > lost);
}

/* More answers than places: the others find their way later.  Some are cancelled on it. */
static void test_choices_without_places(void **state)
{
    (void)state;
    engine_dice = (rng){38};
    for (int round = 0; round < 40; round++) {
        int64_t cache = 64 * (4 + (int64_t)engine_rnd(6));
        fl_engine *e = make(4, 4, cache);
        int32_t text[300], other[300];
        int64_t n = 1 + engine_rnd(130);
        engine_some_ids(text, n);
        engine_some_ids(other, 40);
        collector c, d;
        fl_request_params p = engine_params(other, 40, 60);
        collect(&d, &p, 0);
        submit(e, &p);
        p = engine_params(text, n, 60);
        collect(&c, &p, 0);
        p.on_token = NULL;
        p.n = 4;
        fl_request *r = submit(e, &p);
        for (uint32_t steps = engine_rnd(20); steps > 0; steps--)
            step(e);
        if (engine_rnd(3) == 0)
            fl_engine_cancel(e, r);
        else
            fl_engine_cancel_choice(e, r, (int)engine_rnd(4));
        run_all(e);
        engine_expect_greedy(&d, other, 40, 60);
        collector_free(&d);
        engine_assert_idle(e, cache);
        fl_engine_destroy(e);
    }
}

static void test_destroy_with_waiting(void **state)
{
    (void)state;
    engine_dice = (rng){39};
    fl_engine *e = make(2, 4, 1024);
    int32_t text[100];
    engine_some_ids(text, 100);
    for (int i = 0; i < 4; i++) {
        fl_request_params p = engine_params(text, 70, 5);
        p.client = (uint64_t)i;
        p.n = i == 1 ? 2 : 1;
        submit(e, &p);
    }
    step(e);
    fl_engine_destroy(e);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_waiting_and_its_limit),
        cmocka_unit_test(test_clients_and_priorities),
        cmocka_unit_test(test_rows_are_shared_by_client),
        cmocka_unit_test(test_deadlines),
        cmocka_unit_test(test_cancel_while_waiting),
        cmocka_unit_test(test_continue_after_waiting),
        cmocka_unit_test(test_places_are_lost_and_answers_are_not),
        cmocka_unit_test(test_choices_without_places),
        cmocka_unit_test(test_destroy_with_waiting),
    };
    return cmocka_run_group_tests(tests, engine_setup, engine_teardown);
}
