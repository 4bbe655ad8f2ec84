/* A real model under a busy engine: what is run again, shared or found in the cache gives the bits
 * that the request has when it is computed alone by an engine that does none of this. */
#include "support/cmocka_all.h"
#include "support/collect.h"
#include "support/open_model.h"
#include "support/rng.h"

#include <stdlib.h>
#include <string.h>

static fl_engine_options options(int seqs, int64_t cache)
{
    fl_engine_options o = fl_engine_options_default();
    o.threads = 1;
    o.chunk = 128;
    o.max_context = 4096;
    o.max_seqs = seqs;
    o.max_waiting = 100;
    o.cache_tokens = cache;
    return o;
}

/* Sampled, with log-probabilities, which show the last bit of the logits. */
static fl_request_params params(const int32_t *ids, int64_t n, int64_t max_tokens)
{
    fl_request_params p = fl_request_params_default();
    p.prompt = ids;
    p.n_prompt = n;
    p.max_tokens = max_tokens;
    p.sampling.temperature = 0.8f;
    p.sampling.n_top = 0;
    return p;
}

static void some_ids(rng *dice, int32_t *ids, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        ids[i] = (int32_t)rng_int(dice, 0, 3800);
}

/* Four answers that cross blocks, in a cache that has room for two of them. */
static void test_lost_places(void **state)
{
    (void)state;
    enum { N = 4, PROMPT = 130, ANSWER = 200 };
    rng dice = {5};
    int32_t text[N][PROMPT];
    collector alone[N], c[N];
    opened m;
    fl_engine_options o = options(1, 0);
    open_model(&m, FL_TINY_MODEL, &o);
    for (int i = 0; i < N; i++) {
        some_ids(&dice, text[i], PROMPT);
        fl_request_params p = params(text[i], PROMPT - 20 * i, ANSWER);
        collect(&alone[i], &p, 0);
        submit(m.engine, &p);
        run_all(m.engine);
    }
    close_model(&m);

    o = options(N, 64 * 9);
    open_model(&m, FL_TINY_MODEL, &o);
    for (int i = 0; i < N; i++) {
        fl_request_params p = params(text[i], PROMPT - 20 * i, ANSWER);
        collect(&c[i], &p, 0);
        submit(m.engine, &p);
    }
    run_all(m.engine);
    fl_engine_stats s;
    fl_engine_get_stats(m.engine, &s);
    assert_true(s.preemptions > 0);
    assert_true(s.replayed_tokens > PROMPT);
    for (int i = 0; i < N; i++) {
        assert_same(&c[i], &alone[i]);
        collector_free(&c[i]);
        collector_free(&alone[i]);
    }
    close_model(&m);
}

/* ---- prefixes ---- */

enum { TALKS = 3, TURNS = 2, LONGEST = 500, SAID = 60 };

typedef struct turn {
    int32_t text[LONGEST];
    int64_t n;
    collector alone, c;
    fl_request *request;
} turn;

/* Conversations that share their first 150 tokens, each turn with the answers before it; and what
 * an engine without a cache says to each of them. */
static void make_talks(turn (*talks)[TURNS])
{
    rng dice = {7};
    opened m;
    fl_engine_options o = options(1, 0);
    open_model(&m, FL_TINY_MODEL, &o);
    for (int i = 0; i < TALKS; i++) {
        int64_t n = 0;
        for (int k = 0; k < TURNS; k++) {
            turn *t = &talks[i][k];
            if (k)
                memcpy(t->text, talks[i][k - 1].text, sizeof t->text);
            else if (i)
                memcpy(t->text, talks[0][0].text, sizeof t->text);
            some_ids(&dice, t->text + (i && !k ? 150 : n), (k || !i ? 40 : 0) + (k ? 0 : 160));
            n += k ? 40 : 200;
            if (k == 1)
                n += FL_PAGE_TOKENS - n % FL_PAGE_TOKENS; /* ends on the grid */
            t->n = n;
            fl_request_params p = params(t->text, n, SAID);
            collect(&t->alone, &p, 0);
            submit(m.engine, &p);
            run_all(m.engine);
            memcpy(t->text + n, t->alone.ids.data, SAID * sizeof(int32_t));
            n += SAID;
        }
    }
    close_model(&m);
}

/* All talks at once, turn by turn, with others in between, in engines of all sorts. */
static void talk_all(turn (*talks)[TURNS], const fl_engine_options *o, int rounds,
                     fl_engine_stats *stats)
{
    opened m;
    open_model(&m, FL_TINY_MODEL, o);
    for (int round = 0; round < rounds; round++) {
        for (int k = 0; k < TURNS; k++) {
            for (int i = 0; i < TALKS; i++) {
                turn *t = &talks[i][k];
                fl_request_params p = params(t->text, t->n, SAID);
                collect(&t->c, &p, 0);
                t->request = submit(m.engine, &p);
                for (int s = 0; s < i; s++) {
                    bool busy;
                    assert_int_equal(fl_engine_step(m.engine, &busy, NULL), FL_OK);
                }
            }
            if (k == 1) { /* and one that gives up on the way */
                fl_request_params p = params(talks[1][1].text, talks[1][1].n, 5);
                fl_request *r = submit(m.engine, &p);
                bool busy;
                assert_int_equal(fl_engine_step(m.engine, &busy, NULL), FL_OK);
                fl_engine_cancel(m.engine, r);
            }
            run_all(m.engine);
            for (int i = 0; i < TALKS; i++) {
                assert_same(&talks[i][k].c, &talks[i][k].alone);
                collector_free(&talks[i][k].c);
            }
        }
    }
    fl_engine_get_stats(m.engine, stats);
    close_model(&m);
}

static void test_hit_is_miss(void **state)
{
    (void)state;
    turn(*talks)[TURNS] = calloc(TALKS, sizeof *talks);
    make_talks(talks);
    fl_engine_stats s;
    fl_engine_options o = options(TALKS, 0);
    o.max_prefixes = 32;
    talk_all(talks, &o, 2, &s);
    assert_true(s.prefix_hits > s.prefix_queries / 2);
    assert_int_equal(s.prefix.evicted_tokens, 0);

    o.settle = true;
    o.chunk = 256;
    talk_all(talks, &o, 1, &s);
    assert_true(s.settled_tokens > 0);

    o = options(2, 64 * 10); /* not even one talk and its company fit for long */
    o.chunk = 64;
    o.max_prefixes = 3;
    talk_all(talks, &o, 1, &s);
    assert_true(s.prefix_hits > 0 && s.prefix.evicted_tokens > 0);
    for (int i = 0; i < TALKS; i++) {
        for (int k = 0; k < TURNS; k++)
            collector_free(&talks[i][k].alone);
    }
    free(talks);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_lost_places),
        cmocka_unit_test(test_hit_is_miss),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
