/* A real model under a busy engine: what is run again, shared or found in the cache gives the bits
 * that the request has when it is computed alone by an engine that does none of this. */
#include "support/cmocka_all.h"
#include "support/collect.h"
#include "support/open_model.h"
#include "support/rng.h"

#include <string.h>

static fl_engine_options options(int seqs, int64_t cache)
{
    fl_engine_options o = fl_engine_options_default();
    o.threads = 2;
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

static fl_request *submit(fl_engine *e, const fl_request_params *p)
{
    fl_request *r;
    fl_error err;
    if (fl_engine_submit(e, p, &r, &err) != FL_OK)
        fail_msg("%s", err.message);
    return r;
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

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_lost_places),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
