/* Prefix reuse over the fake network: what is found, what is not, and that no answer ever changes.
 * test_engine_exact.c has a real model. */
#include "support/cmocka_all.h"
#include "support/engine_support.h"
#include "support/fake_model.h"

#include <stdlib.h>
#include <string.h>

enum { PAGE = FL_PAGE_TOKENS };

static fl_engine *make(int seqs, int64_t cache, int prefixes, bool settle)
{
    fl_engine_options o = fl_engine_options_default();
    o.threads = 1;
    o.max_seqs = seqs;
    o.max_waiting = 50;
    o.chunk = 128;
    o.cache_tokens = cache;
    o.max_prefixes = prefixes;
    o.settle = settle;
    fl_engine *e;
    fl_error err;
    if (fl_engine_create_graph(engine_graph, FAKE_CONTEXT, &o, &e, &err) != FL_OK)
        fail_msg("%s", err.message);
    return e;
}

static fl_engine_stats stats(const fl_engine *e)
{
    fl_engine_stats s;
    fl_engine_get_stats(e, &s);
    return s;
}

static void finish(fl_engine *e, int64_t cache)
{
    fl_engine_stats s = stats(e);
    if (e->prefix)
        assert_true(fl_prefix_make_room(e->prefix, s.free_tokens + s.prefix.idle));
    engine_assert_idle(e, cache);
    assert_int_equal(stats(e).prefix.tokens, 0);
    fl_engine_destroy(e);
}

static int64_t ask(fl_engine *e, int32_t *text, int64_t n)
{
    return engine_ask(e, 5, text, n);
}

static void test_what_is_found(void **state)
{
    (void)state;
    engine_dice = (rng){41};
    fl_engine *e = make(2, 8192, 8, false);
    int32_t a[FAKE_CONTEXT], b[FAKE_CONTEXT];
    engine_some_ids(a, 600);
    engine_some_ids(b, 600);
    assert_int_equal(ask(e, a, 300), 0);
    assert_int_equal(ask(e, b, 300), 0);
    assert_int_equal(ask(e, a, 300), 256);
    assert_int_equal(ask(e, a, 257), 256);
    assert_int_equal(ask(e, a, 500), 256); /* overwritten by answers from 257 on: parts there */
    assert_int_equal(ask(e, b, 256), 0);   /* no record before 256, and the last token has to run */
    assert_int_equal(ask(e, b, 256), 192); /* the index knew 192, so a record was kept there */
    assert_int_equal(engine_ask(e, 6, b, 300), 0); /* somebody else */
    assert_int_equal(engine_ask(e, 6, b, 300), 256);
    fl_engine_stats s = stats(e);
    assert_int_equal(s.prefix_hits, 256 * 3 + 192 + 256);
    assert_int_equal(s.prompt_tokens, s.prefix_queries - s.prefix_hits);

    /* A fork in the middle of a block: the first to differ shows where a record is worth it. */
    memcpy(b, a, sizeof a);
    engine_some_ids(b + 150, 300);
    assert_int_equal(ask(e, b, 300), 0);
    engine_some_ids(b + 150, 300);
    assert_int_equal(ask(e, b, 300), 128);
    finish(e, 8192);
}

static void test_turns(void **state)
{
    (void)state;
    for (int settle = 0; settle < 2; settle++) {
        engine_dice = (rng){42};
        fl_engine *e = make(1, 2048, 4, settle);
        int32_t text[FAKE_CONTEXT];
        int64_t n = 0, before = 0, expect = 0;
        for (int turn = 0; turn < 6; turn++) {
            engine_some_ids(text + n, 50);
            n += 50;
            collector c;
            fl_request_params p = engine_params(text, n, 70);
            collect(&c, &p, 0);
            fl_request *r = submit(e, &p);
            assert_int_equal(fl_request_cached(r), expect);
            run_all(e);
            engine_expect_greedy(&c, text, n, 70);
            collector_free(&c);
            before = n;
            n += 70;
            expect = (settle ? n : before) / PAGE * PAGE;
        }
        assert_int_equal(stats(e).settled_tokens > 0, settle);
        assert_int_equal(stats(e).finished[FL_FINISH_LENGTH], 6);
        finish(e, 2048);
    }
}

/* Settling makes way for whoever comes, and keeps what it has done. */
static void test_settling_makes_way(void **state)
{
    (void)state;
    engine_dice = (rng){43};
    fl_engine *e = make(1, 2048, 4, true);
    int32_t text[FAKE_CONTEXT], other[FAKE_CONTEXT];
    engine_some_ids(text, 30);
    engine_some_ids(other, 40);
    collector c;
    fl_request_params p = engine_params(text, 30, 400);
    collect(&c, &p, 0);
    submit(e, &p);
    bool busy = true;
    while (!c.ended)
        assert_int_equal(fl_engine_step(e, &busy, NULL), FL_OK);
    engine_expect_greedy(&c, text, 30, 400);
    collector_free(&c);
    assert_true(busy);
    assert_int_equal(stats(e).waiting, 0);
    assert_int_equal(fl_engine_step(e, &busy, NULL), FL_OK);
    assert_int_equal(stats(e).settled_tokens, 128);
    assert_int_equal(stats(e).running, 0);
    p = engine_params(other, 40, 5);
    collect(&c, &p, 0);
    fl_request *r = submit(e, &p);
    assert_true(fl_request_started(r));
    while (!c.ended)
        assert_int_equal(fl_engine_step(e, &busy, NULL), FL_OK);
    engine_expect_greedy(&c, other, 40, 5);
    collector_free(&c);
    assert_int_equal(stats(e).settled_tokens, 128);
    run_all(e);
    assert_int_equal(stats(e).settled_tokens, 384); /* 430 tokens, and nothing twice */
    assert_int_equal(engine_ask(e, 0, text, 430), 384);
    finish(e, 2048);
}

/* Many prompts with one beginning at the same time: it is run once. */
static void test_together(void **state)
{
    (void)state;
    engine_dice = (rng){44};
    fl_engine *e = make(8, 8192, 8, false);
    int32_t text[8][FAKE_CONTEXT];
    collector c[8];
    engine_some_ids(text[0], 400);
    for (int i = 0; i < 8; i++) {
        memcpy(text[i], text[0], sizeof text[0]);
        if (i > 1) /* the second is the same as the first */
            engine_some_ids(text[i] + 330, 70);
        fl_request_params p = engine_params(text[i], 400, 4);
        collect(&c[i], &p, 0);
        submit(e, &p);
    }
    run_all(e);
    for (int i = 0; i < 8; i++) {
        engine_expect_greedy(&c[i], text[i], 400, 4);
        collector_free(&c[i]);
    }
    assert_int_equal(stats(e).prompt_tokens, 400 + (400 - 384) + 6 * (400 - 320));
    finish(e, 8192);
}

/* The one that others wait for is cancelled, in every step of its prompt. */
static void test_cancel_during_prompt(void **state)
{
    (void)state;
    engine_dice = (rng){45};
    for (int steps = 0; steps < 7; steps++) {
        fl_engine *e = make(4, 4096, 4, false);
        int32_t text[FAKE_CONTEXT], twin[FAKE_CONTEXT];
        engine_some_ids(text, 500);
        memcpy(twin, text, sizeof text);
        collector c, d;
        bool busy;
        fl_request_params p = engine_params(text, 500, 4);
        collect(&c, &p, 0);
        fl_request *r = submit(e, &p);
        collect(&d, &p, 0);
        submit(e, &p);
        assert_int_equal(stats(e).waiting, 1);
        for (int i = 0; i < steps; i++)
            assert_int_equal(fl_engine_step(e, &busy, NULL), FL_OK);
        fl_engine_cancel(e, r);
        run_all(e);
        assert_int_equal(c.finish, FL_FINISH_CANCEL);
        engine_expect_greedy(&d, twin, 500, 4);
        collector_free(&c);
        collector_free(&d);
        assert_int_equal(engine_ask(e, 0, twin, 500), 448);
        finish(e, 4096);
    }
}

/* ---- conversations at random ---- */

enum { TALKS = 10 };

typedef struct talk {
    bool active;
    collector c;
    fl_request *request;
    int32_t text[FAKE_CONTEXT];
    int64_t n, max_tokens;
    uint64_t salt;
    bool cancelled;
} talk;

static void take(talk *t)
{
    if (t->cancelled)
        t->max_tokens = (int64_t)t->c.ids.n;
    assert_int_equal(t->c.finish, t->cancelled ? FL_FINISH_CANCEL : FL_FINISH_LENGTH);
    engine_expect_greedy(&t->c, t->text, t->n, t->max_tokens);
    t->n += t->max_tokens;
    collector_free(&t->c);
    t->active = false;
}

/* The next turn; or another text, that begins like some other talk. */
static void say(fl_engine *e, talk *talks, talk *t)
{
    int64_t more = 1 + engine_rnd(engine_rnd(2) ? 20 : 150);
    t->max_tokens = 1 + engine_rnd(100);
    if (t->n + more + t->max_tokens > 600 || engine_rnd(4) == 0) {
        const talk *like = &talks[engine_rnd(TALKS)];
        int64_t keep = like->n ? (int64_t)engine_rnd((uint32_t)like->n) : 0;
        keep = keep < 400 ? keep : 400;
        memmove(t->text, like->text, (size_t)keep * sizeof t->text[0]);
        t->n = keep;
        t->salt = engine_rnd(4) ? like->salt : engine_rnd(2);
    }
    engine_some_ids(t->text + t->n, more);
    t->n += more;
    fl_request_params p = engine_params(t->text, t->n, t->max_tokens);
    p.salt = t->salt;
    p.client = engine_rnd(2);
    p.priority = (int)engine_rnd(2);
    collect(&t->c, &p, 0);
    t->request = submit(e, &p);
    t->active = true;
    t->cancelled = false;
}

static void run_random(uint32_t seed, int64_t *hits, int64_t *evicted)
{
    engine_dice = (rng){seed};
    int64_t cache = PAGE * (10 + (int64_t)engine_rnd(60));
    fl_engine *e = make(1 + (int)engine_rnd(6), cache, 1 + (int)engine_rnd(8), engine_rnd(2));
    talk *talks = calloc(TALKS, sizeof *talks);
    for (int i = 0; i < 300; i++) {
        talk *t = &talks[engine_rnd(TALKS)];
        if (!t->active && engine_rnd(2)) {
            say(e, talks, t);
        } else if (t->active && engine_rnd(30) == 0) {
            t->cancelled = true;
            fl_engine_cancel(e, t->request);
        }
        bool busy;
        assert_int_equal(fl_engine_step(e, &busy, NULL), FL_OK);
        for (int k = 0; k < TALKS; k++) {
            if (talks[k].active && talks[k].c.ended)
                take(&talks[k]);
        }
    }
    run_all(e);
    for (int k = 0; k < TALKS; k++) {
        if (talks[k].active)
            take(&talks[k]);
    }
    *hits += stats(e).prefix_hits;
    *evicted += stats(e).prefix.evicted_tokens;
    free(talks);
    finish(e, cache);
}

static void test_random_conversations(void **state)
{
    (void)state;
    int64_t hits = 0, evicted = 0;
    for (uint32_t seed = 1; seed <= 30; seed++) {
        print_message("seed %u\n", seed);
        run_random(seed, &hits, &evicted);
    }
    assert_true(hits > 5000 && evicted > 5000);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_what_is_found),        cmocka_unit_test(test_turns),
        cmocka_unit_test(test_settling_makes_way),   cmocka_unit_test(test_together),
        cmocka_unit_test(test_cancel_during_prompt), cmocka_unit_test(test_random_conversations),
    };
    return cmocka_run_group_tests(tests, engine_setup, engine_teardown);
}
