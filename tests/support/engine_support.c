#include "support/engine_support.h"

#include "support/cmocka_all.h"
#include "support/fake_model.h"

fl_graph *engine_graph;
rng engine_dice;

uint32_t engine_rnd(uint32_t n)
{
    return (uint32_t)rng_int(&engine_dice, 0, (int64_t)n - 1);
}

fl_engine *engine_make(int threads, int seqs, int chunk, int64_t cache)
{
    fl_engine_options o = fl_engine_options_default();
    o.threads = threads;
    o.max_seqs = seqs;
    o.chunk = chunk;
    o.cache_tokens = cache;
    fl_engine *e;
    fl_error err;
    if (fl_engine_create_graph(engine_graph, FAKE_CONTEXT, &o, &e, &err) != FL_OK)
        fail_msg("%s", err.message);
    return e;
}

void engine_some_ids(int32_t *ids, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        ids[i] = (int32_t)engine_rnd(FAKE_NAN);
}

fl_request_params engine_params(const int32_t *ids, int64_t n, int64_t max_tokens)
{
    fl_request_params p = fl_request_params_default();
    p.prompt = ids;
    p.n_prompt = n;
    p.max_tokens = max_tokens;
    return p;
}

fl_status engine_try_submit(fl_engine *e, const fl_request_params *p)
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

void engine_assert_idle(fl_engine *e, int64_t cache)
{
    assert_int_equal(e->n_live, 0);
    assert_null(e->ended);
    assert_int_equal(fl_state_free_tokens(e->state), cache);
    assert_int_equal(fl_state_free_seqs(e->state), e->sizes.state.n_seqs);
}

/* What greedy decoding of the fake network gives: the text so far grows by n tokens. */
void engine_expect_greedy(const collector *c, int32_t *text, int64_t n, int64_t max_tokens)
{
    assert_int_equal(c->ids.n, max_tokens);
    for (int64_t i = 0; i < max_tokens; i++) {
        text[n + i] = fake_next(text, n + i);
        assert_int_equal(c->ids.data[i], text[n + i]);
    }
}

int engine_setup(void **state)
{
    (void)state;
    fl_error err;
    engine_graph = fake_model_graph(&err);
    return engine_graph ? 0 : -1;
}

int engine_teardown(void **state)
{
    (void)state;
    fl_graph_destroy(engine_graph);
    return 0;
}

int64_t engine_ask(fl_engine *e, uint64_t salt, int32_t *text, int64_t n)
{
    collector c;
    fl_request_params p = engine_params(text, n, 3);
    p.salt = salt;
    collect(&c, &p, 0);
    fl_request *r = submit(e, &p);
    int64_t cached = fl_request_cached(r);
    run_all(e);
    engine_expect_greedy(&c, text, n, 3);
    collector_free(&c);
    return cached;
}
