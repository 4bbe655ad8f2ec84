/* The seam to a device, without one: engines on support/fake_device.h, whose memory the host cannot
 * touch, give what engines on the host give, survive whatever the device refuses, and stay within
 * what they were predicted to take.  Then the ways to ask for a device. */
#define _GNU_SOURCE
#include "graph/graph_internal.h"
#include "ops/device.h"
#include "ops/ops.h"
#include "ops/plugin.h"
#include "support/cmocka_all.h"
#include "support/engine_support.h"
#include "support/fake_device.h"
#include "support/fake_model.h"
#include "support/open_model.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { ROOM = 64 << 20 };

static fl_engine_options small_options(fl_device *d)
{
    fl_engine_options o = fl_engine_options_default();
    o.threads = 2;
    o.max_seqs = 3;
    o.chunk = 64;
    o.cache_tokens = 2048;
    o.given_device = d;
    return o;
}

static fl_status make(fl_device *d, fl_engine **out, fl_error *err)
{
    fl_engine_options o = small_options(d);
    return fl_engine_create_graph(engine_graph, FAKE_CONTEXT, &o, out, err);
}

static fl_device *open_fake(const char *without)
{
    return fake_device_open(engine_graph->registry, ROOM, without);
}

/* Requests side by side on an engine; their answers are the network's. */
static void answer(fl_engine *e, int rounds)
{
    int32_t text[3][FAKE_CONTEXT];
    for (int round = 0; round < rounds; round++) {
        collector c[3];
        int64_t n[3];
        for (int i = 0; i < 3; i++) {
            n[i] = 1 + engine_rnd(150);
            engine_some_ids(text[i], n[i]);
            fl_request_params p = engine_params(text[i], n[i], 12);
            collect(&c[i], &p, 0);
            submit(e, &p);
        }
        run_all(e);
        for (int i = 0; i < 3; i++) {
            engine_expect_greedy(&c[i], text[i], n[i], 12);
            collector_free(&c[i]);
        }
    }
}

static void test_answers(void **state)
{
    (void)state;
    engine_dice = (rng){7};
    fl_engine *e;
    fl_error err;
    if (make(open_fake(NULL), &e, &err) != FL_OK)
        fail_msg("%s", err.message);
    assert_string_equal(fl_engine_device(e), "fake:0");
    fake_device_repeats = 0;
    fake_device_fetched = 0;
    answer(e, 3);
    assert_true(fake_device_repeats > 10);
    assert_int_equal(fake_device_fetched, 3 * 3 * 12 * sizeof(fl_pick)); /* no logits */
    fl_engine_destroy(e);
    assert_int_equal(fake_device_alive, 0);
}

/* The host runs what the device lacks, whatever that is; memory is what was predicted. */
static void test_lacking(void **state)
{
    (void)state;
    static const char *const ops[] = {"fake_embed", "fake_decay", "fake_recall", "fake_head",
                                      "pick"};
    engine_dice = (rng){17};
    for (unsigned set = 1; set < 1u << 5; set++) {
        char without[80] = "", says[80];
        int n = 0;
        for (int i = 0; i < 5; i++) {
            if (set >> i & 1)
                fl_text_append(strcat(without, ","), sizeof without, ops[i]);
            n += i < 4 && set >> i & 1;
        }
        fl_engine *e;
        fl_error err;
        fl_engine_memory memory;
        fl_device *d = open_fake(without + 1);
        fl_engine_options o = small_options(d);
        assert_int_equal(fl_engine_predict_graph(engine_graph, FAKE_CONTEXT, &o, &memory, &err),
                         FL_OK);
        if (make(d, &e, &err) != FL_OK)
            fail_msg("without %s: %s", without + 1, err.message);
        assert_int_equal(memory.device, fake_device_reserved);
        snprintf(says, sizeof says, "fake:0 (%d of 4 calls on the processor)", n);
        assert_string_equal(fl_engine_device(e), n ? says : "fake:0");
        assert_int_equal(fl_plan_host_calls(fl_engine_plan(e)), n);
        fake_device_repeats = 0;
        answer(e, 1);
        assert_int_equal(fake_device_repeats > 0, n == 0);
        fl_engine_destroy(e);
        assert_int_equal(fake_device_alive, 0);
    }
}

/* Requests that look at more than the highest logit are answered as on the host. */
static void test_sampling(void **state)
{
    (void)state;
    enum { N = 6 };
    int32_t text[N][70];
    collector c[2][N];
    fl_error err;
    fl_logit_bias bias = {5, 1.5f};
    engine_dice = (rng){18};
    for (int i = 0; i < N; i++)
        engine_some_ids(text[i], 70);
    for (int k = 0; k < 2; k++) {
        fl_engine *e;
        assert_int_equal(make(k ? open_fake(NULL) : NULL, &e, &err), FL_OK);
        for (int i = 0; i < N; i++) {
            fl_request_params p = engine_params(text[i], 20 + 10 * i, 15);
            p.sampling.temperature = i == 1 ? 0.8f : 0;
            p.sampling.seed = 3;
            p.sampling.n_top = i == 2 ? 4 : -1;
            p.sampling.repetition = i == 3 ? 1.7f : 1;
            p.sampling.bias = &bias;
            p.sampling.n_bias = i == 4;
            collect(&c[k][i], &p, i == 5 ? FAKE_VOCAB : 0);
            submit(e, &p);
            if (i % 3 == 2)
                run_all(e);
        }
        fl_engine_destroy(e);
    }
    for (int i = 0; i < N; i++) {
        assert_same(&c[0][i], &c[1][i]);
        collector_free(&c[0][i]);
        collector_free(&c[1][i]);
    }
}

/* A device draws by itself what the host would draw; choices that begin on one row fetch it once.
 */
static void test_drawing(void **state)
{
    (void)state;
    enum { N = 5, TOKENS = 25 };
    int32_t text[N][40];
    collector c[2][N];
    fl_error err;
    engine_dice = (rng){21};
    for (int i = 0; i < N; i++)
        engine_some_ids(text[i], 40);
    for (int k = 0; k < 2; k++) {
        fl_engine *e;
        assert_int_equal(make(k ? open_fake(NULL) : NULL, &e, &err), FL_OK);
        fake_device_fetched = 0;
        for (int i = 0; i < N; i++) {
            fl_request_params p = engine_params(text[i], 10 + 6 * i, TOKENS);
            p.sampling.temperature = 0.5f + 0.5f * (float)i;
            p.sampling.top_k = i == 1 ? 7 : 0;
            p.sampling.top_p = i == 2 ? 0.8f : 1;
            p.sampling.min_p = i == 3 ? 0.05f : 0;
            p.sampling.seed = 30 + (uint64_t)i;
            collect(&c[k][i], &p, 0);
            submit(e, &p);
            if (i == 2)
                run_all(e);
        }
        run_all(e);
        if (k)
            assert_int_equal(fake_device_fetched, N * TOKENS * sizeof(fl_pick)); /* no logits */
        fake_device_fetched = 0;
        fl_request_params p = engine_params(text[0], 40, TOKENS);
        p.sampling.temperature = 1;
        p.n = 2;
        submit(e, &p);
        run_all(e);
        size_t row = FAKE_VOCAB * sizeof(float), picks = (1 + 2 * (TOKENS - 1)) * sizeof(fl_pick);
        if (k)
            assert_int_equal(fake_device_fetched, row + picks);
        fl_engine_destroy(e);
    }
    for (int i = 0; i < N; i++) {
        assert_same(&c[0][i], &c[1][i]);
        collector_free(&c[0][i]);
        collector_free(&c[1][i]);
    }
}

/* Logits that are no numbers end a greedy request with the reason, on a device too. */
static void test_not_finite(void **state)
{
    (void)state;
    fl_engine *e;
    fl_error err;
    const int32_t text[] = {3, FAKE_NAN, 4};
    collector c;
    assert_int_equal(make(open_fake(NULL), &e, &err), FL_OK);
    fl_request_params p = engine_params(text, 3, 5);
    collect(&c, &p, 0);
    submit(e, &p);
    run_all(e);
    assert_int_equal(c.finish, FL_FINISH_ERROR);
    assert_non_null(strstr(c.error.message, "NaN or infinity"));
    collector_free(&c);
    fl_engine_destroy(e);
}

typedef struct sums {
    float h[FAKE_WIDTH];
    int rows;
} sums;

static void keep_last(void *ctx, const char *kind, int index, const fl_arg *value, int32_t rows)
{
    sums *s = ctx;
    assert_string_equal(kind, "sum");
    assert_int_equal(index, 0);
    memcpy(s->h, fl_row_f32(value, rows - 1), sizeof s->h);
    s->rows += rows;
}

/* Taps, and a kept sequence that goes through a file, a fork and back. */
static void travel(const char *without)
{
    engine_dice = (rng){8};
    fl_engine *e, *other;
    fl_error err;
    assert_int_equal(make(open_fake(without), &e, &err), FL_OK);
    assert_int_equal(make(NULL, &other, &err), FL_OK);
    int32_t text[FAKE_CONTEXT];
    engine_some_ids(text, 100);
    collector c;
    sums seen = {0};
    float logits[FAKE_VOCAB], h[FAKE_WIDTH];
    fl_request_params p = engine_params(text, 100, 0);
    collect(&c, &p, 0);
    p.keep = true;
    p.tap = keep_last;
    p.tap_ctx = &seen;
    submit(e, &p);
    run_all(e);
    fake_logits(text, 100, logits, h);
    assert_int_equal(seen.rows, 100);
    assert_memory_equal(seen.h, h, sizeof h);

    fl_state *st = fl_engine_state(e);
    fl_seq fork;
    assert_int_equal(fl_state_fork(st, c.kept, &fork, &err), FL_OK);
    fl_state_release(st, c.kept);
    char path[] = "/tmp/fl-device-XXXXXX";
    close(mkstemp(path));
    if (fl_state_save(st, fork, 1, text, path, &err) != FL_OK)
        fail_msg("%s", err.message);
    fl_engine *const engines[] = {e, other}; /* a file of a device is one of the host */
    for (int i = 0; i < 2; i++) {
        int32_t *ids;
        int64_t n;
        fl_seq seq;
        if (fl_state_load(fl_engine_state(engines[i]), path, 1, &seq, &ids, &n, &err) != FL_OK)
            fail_msg("%s", err.message);
        assert_int_equal(n, 100);
        fl_free(ids);
        collector more;
        engine_some_ids(text + 100, 3);
        p = engine_params(text + 100, 3, 5);
        collect(&more, &p, 0);
        p.keep_from = seq;
        submit(engines[i], &p);
        run_all(engines[i]);
        for (int64_t k = 0; k < 5; k++) {
            assert_int_equal(more.ids.data[k], fake_next(text, 103 + k));
            text[103 + k] = more.ids.data[k];
        }
        collector_free(&more);
    }
    unlink(path);
    collector_free(&c);
    fl_engine_destroy(other);
    fl_engine_destroy(e);
}

static void test_state_travels(void **state)
{
    (void)state;
    travel(NULL);
    travel("fake_decay"); /* one pool here, one there */
    travel("fake_recall,fake_embed");
}

/* Times of calls: steps are walked while they are asked for, every call is timed in each (here it
 * takes a microsecond), and answers stay the same. */
static void test_profile(void **state)
{
    (void)state;
    fl_engine *e;
    fl_error err;
    int64_t us[8] = {0};
    engine_dice = (rng){19};
    assert_int_equal(make(open_fake(NULL), &e, &err), FL_OK);
    assert_true(fl_graph_nodes(engine_graph) <= 8);
    fl_engine_profile(e, us);
    fake_device_repeats = 0;
    answer(e, 1);
    assert_int_equal(fake_device_repeats, 0);
    fl_engine_profile(e, NULL);
    fl_engine_stats stats;
    fl_engine_get_stats(e, &stats);
    for (int i = 0; i < fl_graph_nodes(engine_graph); i++)
        assert_int_equal(us[i], stats.steps);
    answer(e, 1);
    assert_true(fake_device_repeats > 0);
    fl_engine_destroy(e);
}

/* Whatever the device refuses ends in a status; the program makes another engine and goes on. */
static void fail_each(const char *without)
{
    engine_dice = (rng){9};
    int32_t text[FAKE_CONTEXT];
    engine_some_ids(text, 80);
    long n = 1;
    bool through = false;
    for (; !through && n < 400; n++) {
        fl_engine *e;
        fl_error err = {0};
        fl_device *d = open_fake(without);
        fake_device_fail_at(n);
        fl_status s = make(d, &e, &err);
        if (s == FL_OK) {
            collector c;
            fl_request_params p = engine_params(text, 80, 6);
            collect(&c, &p, 0);
            submit(e, &p);
            bool busy = true;
            while (busy && s == FL_OK)
                s = fl_engine_step(e, &busy, &err);
            assert_true(c.ended);
            assert_int_equal(c.finish, s == FL_OK ? FL_FINISH_LENGTH : FL_FINISH_ERROR);
            if (s == FL_OK)
                engine_expect_greedy(&c, text, 80, 6);
            collector_free(&c);
            fl_engine_destroy(e);
        }
        through = s == FL_OK;
        if (!through)
            assert_non_null(strstr(err.message, "out of luck"));
        assert_int_equal(fake_device_alive, 0);
        fake_device_fail_at(0);
    }
    assert_true(through && n > 20);
}

static void test_failures(void **state)
{
    (void)state;
    fail_each(NULL);
    fail_each("fake_decay,fake_head,pick");
}

/* With the i-th allocation failing, for all i, an engine with host calls leaves nothing behind. */
static void test_no_memory(void **state)
{
    (void)state;
    fl_status s = FL_NOMEM;
    for (long n = 1; s != FL_OK && n < 1000; n++) {
        fl_engine *e = NULL;
        fl_error err;
        fl_device *d = open_fake("fake_decay");
        fl_mem_fail_at(n);
        s = make(d, &e, &err);
        fl_mem_fail_at(0);
        fl_engine_destroy(e);
        assert_int_equal(fake_device_alive, 0);
    }
    assert_int_equal(s, FL_OK);
}

static void test_memory_limit(void **state)
{
    (void)state;
    fl_engine *e;
    fl_error err;
    fl_engine_options o = small_options(open_fake(NULL));
    o.device_memory = 1000;
    assert_int_equal(fl_engine_create_graph(engine_graph, FAKE_CONTEXT, &o, &e, &err), FL_NOMEM);
    assert_non_null(strstr(err.message, "0.000 GB may be used"));
    assert_int_equal(fake_device_alive, 0);
    o = small_options(open_fake(NULL));
    o.chunk = 17; /* refused before the device is looked at */
    assert_int_equal(fl_engine_create_graph(engine_graph, FAKE_CONTEXT, &o, &e, &err), FL_ARGUMENT);
    assert_int_equal(fake_device_alive, 0);
}

/* A real model: the same bits as on the host, prompt and answer, also when the host runs what the
 * device lacks or what was named, and all that shares a state with it. */
static void test_tiny(void **state)
{
    (void)state;
    static const struct {
        const char *without, *kernels;
        int least; /* calls of the host: the layers that have the operator */
    } ways[] = {{NULL, NULL, 0},
                {"experts", NULL, 4},
                {"mla,delta_rule", NULL, 8},
                {"rmsnorm", "index_select=cpu,experts=cpu:simd", 8}};
    enum { WAYS = sizeof ways / sizeof *ways };
    int32_t ids[70];
    collector host;
    for (int i = 0; i < 70; i++)
        ids[i] = 37 * i % 3000;
    for (int i = -1; i < WAYS; i++) {
        opened m;
        collector c;
        fl_engine_options o = fl_engine_options_default();
        o.max_seqs = 1;
        o.max_context = 512;
        if (i >= 0) {
            o.given_device = fake_device_open(fl_ops_registry(), (size_t)1 << 30, ways[i].without);
            o.kernels = ways[i].kernels;
        }
        open_model(&m, FL_TINY_MODEL, &o);
        fl_request_params p = engine_params(ids, 70, 4);
        collect(&c, &p, fl_graph_vocab(fl_model_graph(m.model)));
        submit(m.engine, &p);
        run_all(m.engine);
        assert_int_equal(c.finish, FL_FINISH_LENGTH);
        if (i < 0) {
            host = c;
        } else {
            assert_true(fl_plan_host_calls(fl_engine_plan(m.engine)) >= ways[i].least);
            assert_int_equal(host.rows.n, c.rows.n);
            assert_memory_equal(host.rows.data, c.rows.data, c.rows.n * sizeof(float));
            assert_memory_equal(host.ids.data, c.ids.data, 4 * sizeof(int32_t));
            collector_free(&c);
        }
        close_model(&m);
    }
    collector_free(&host);
}

/* The self-test passes where all is well and finds every operator whose kernel does nothing. */
static void test_self_test(void **state)
{
    (void)state;
    const fl_registry *r = fl_ops_registry();
    for (int i = -1; i < r->n_ops; i++) {
        fl_error err;
        const char *op = i < 0 ? NULL : r->ops[i]->name;
        if (op && (r->ops[i]->view || strcmp(op, "cast") == 0))
            continue; /* never run on a device */
        fl_device *d = fake_device_open(r, ROOM, NULL);
        fake_device_broken = op;
        fl_status s = fl_device_self_test(d, &err);
        fake_device_broken = NULL;
        d->fn->close(d);
        if (!op && s != FL_OK)
            fail_msg("%s", err.message);
        if (op && s != FL_DEVICE)
            fail_msg("a %s that does nothing was not found", op);
        assert_true(!op || strstr(err.message, op));
    }
}

/* ---- asking for a device ---- */

static void test_names(void **state)
{
    (void)state;
    char why[200];
    fl_device *d;
    fl_error err;
    assert_int_equal(fl_device_open(NULL, &d, why, &err), FL_OK);
    assert_null(d);
    assert_int_equal(fl_device_open("cpu", &d, why, &err), FL_OK);
    assert_null(d);
    const char *const bad[] = {"", "gpu", "cuda:", "cuda:x", "cuda:-1", "cuda:1x", "cudaa"};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        assert_int_equal(fl_device_open(bad[i], &d, why, &err), FL_ARGUMENT);
        assert_null(d);
    }
    assert_int_equal(fl_device_open("auto", &d, why, &err), FL_OK);
    print_message("auto: %s\n", why);
    if (d) {
        d->fn->close(d);
    } else {
        assert_int_equal(strncmp(why, "no GPU: ", 8), 0);
        assert_int_not_equal(fl_device_open("cuda", &d, why, &err), FL_OK);
        assert_non_null(strstr(err.message, "device cuda: "));
    }
    assert_int_not_equal(fl_device_open("cuda:1000", &d, why, &err), FL_OK);
    assert_null(d);
}

static void test_foreign_plugins(void **state)
{
    (void)state;
    const fl_plugin *p;
    fl_error err;
    char path[] = "/tmp/fl-plugin-XXXXXX";
    int fd = mkstemp(path);
    assert_int_equal(write(fd, "no library", 10), 10);
    close(fd);
    assert_int_equal(fl_plugin_load(path, &p, &err), FL_DEVICE);
    unlink(path);
    assert_int_equal(fl_plugin_load(path, &p, &err), FL_DEVICE);
    assert_int_equal(fl_plugin_load("libm.so.6", &p, &err), FL_MISMATCH);
    assert_non_null(strstr(err.message, "not a firstlight plugin"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_answers),    cmocka_unit_test(test_lacking),
        cmocka_unit_test(test_sampling),   cmocka_unit_test(test_drawing),
        cmocka_unit_test(test_not_finite), cmocka_unit_test(test_state_travels),
        cmocka_unit_test(test_profile),    cmocka_unit_test(test_failures),
        cmocka_unit_test(test_no_memory),  cmocka_unit_test(test_memory_limit),
        cmocka_unit_test(test_tiny),       cmocka_unit_test(test_self_test),
        cmocka_unit_test(test_names),      cmocka_unit_test(test_foreign_plugins),
    };
    return cmocka_run_group_tests(tests, engine_setup, engine_teardown);
}
