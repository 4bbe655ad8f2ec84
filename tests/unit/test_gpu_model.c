/* A whole model on a GPU, with caches of all forms and in both precisions: logits near the CPU's,
 * with exact ones the CPU's answers; bits that do not depend on company, on how a prompt was cut,
 * or on calls being made in one go.  Skipped, with the reason, where there is no GPU. */
#include "ops/device.h"
#include "support/cmocka_all.h"
#include "support/collect.h"
#include "support/open_model.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

enum { TEXTS = 8, LONGEST = 300, ANSWER = 40 };

static bool gpu;
static char why[200];
static int32_t text[TEXTS][LONGEST];

static int64_t length_of(int i)
{
    static const int64_t lengths[TEXTS] = {1, 17, 63, 64, 65, 128, 200, LONGEST};
    return lengths[i];
}

static int setup(void **state)
{
    (void)state;
    uint32_t x = 5;
    for (int i = 0; i < TEXTS; i++) {
        for (int k = 0; k < LONGEST; k++) {
            x = x * 1664525u + 1013904223u;
            text[i][k] = (int32_t)((x >> 8) % 3800);
        }
    }
    return 0;
}

/* How numbers are kept. */
typedef struct form {
    const char *name;
    fl_kv kv;
    bool fast;
} form;

static const form FORMS[] = {{"exact", FL_KV_F32, false},  {"kv bf16", FL_KV_BF16, false},
                             {"kv fp8", FL_KV_FP8, false}, {"kv int8", FL_KV_INT8, false},
                             {"fast", FL_KV_F32, true},    {"fast, kv bf16", FL_KV_BF16, true}};
enum { N_FORMS = sizeof FORMS / sizeof *FORMS };

static void open_named(opened *m, const char *device, int chunk, const form *f, const char *kernels)
{
    fl_engine_options o = fl_engine_options_default();
    o.max_seqs = TEXTS;
    o.max_context = 1024;
    o.chunk = chunk;
    o.device = device;
    o.fast = f->fast;
    o.kernels = kernels;
    open_model_kv(m, FL_TINY_MODEL, f->kv, &o);
}

static void open_on(opened *m, const char *device, int chunk)
{
    open_named(m, device, chunk, &FORMS[0], NULL);
}

/* Texts [first, first + n) in one engine at once; rows: with the logits of the prompts. */
static void run_texts(opened *m, int first, int n, collector *c, bool rows)
{
    int64_t vocab = rows ? fl_graph_vocab(fl_model_graph(m->model)) : 0;
    for (int i = first; i < first + n; i++) {
        fl_request_params p = fl_request_params_default();
        fl_request *r;
        fl_error err;
        p.prompt = text[i];
        p.n_prompt = length_of(i);
        p.max_tokens = ANSWER;
        collect(&c[i], &p, vocab);
        p.sampling.n_top = 0;
        if (fl_engine_submit(m->engine, &p, &r, &err) != FL_OK)
            fail_msg("%s", err.message);
    }
    run_all(m->engine);
    for (int i = first; i < first + n; i++) {
        if (c[i].finish != FL_FINISH_LENGTH)
            fail_msg("text %d: %s", i, c[i].error.message);
    }
}

static void free_all(collector *c)
{
    for (int i = 0; i < TEXTS; i++)
        collector_free(&c[i]);
}

/* The distance of all rows of logits, relative to their size, in the text where it is greatest. */
static double distance(const collector *a, const collector *b)
{
    double worst = 0;
    for (int i = 0; i < TEXTS; i++) {
        double diff = 0, norm = 0;
        assert_int_equal(a[i].rows.n, b[i].rows.n);
        for (size_t j = 0; j < a[i].rows.n; j++) {
            double x = a[i].rows.data[j], y = b[i].rows.data[j];
            diff += (x - y) * (x - y);
            norm += x * x;
        }
        worst = fmax(worst, sqrt(diff / norm));
    }
    return worst;
}

/* In every form the GPU stays as near to the exact CPU as the CPU in that form, which may be far
 * where a router all but ties. */
static void test_like_the_cpu(void **state)
{
    (void)state;
    opened m;
    static collector exact[TEXTS], c[2][TEXTS];
    if (!gpu)
        skip();
    open_on(&m, NULL, 256);
    run_texts(&m, 0, TEXTS, exact, true);
    close_model(&m);
    for (int f = 0; f < N_FORMS; f++) {
        double off[2];
        for (int k = 0; k < 2; k++) {
            open_named(&m, k ? "cuda" : NULL, 256, &FORMS[f], NULL);
            run_texts(&m, 0, TEXTS, c[k], true);
            off[k] = distance(exact, c[k]);
            close_model(&m);
        }
        print_message("%s: logits of the GPU within %.2e of the exact CPU's, of the CPU %.2e\n",
                      FORMS[f].name, off[1], off[0]);
        assert_true(off[1] < 1.5 * off[0] + 1e-5);
        for (int i = 0; i < TEXTS && f == 0; i++)
            assert_memory_equal(c[0][i].ids.data, c[1][i].ids.data, ANSWER * sizeof(int32_t));
        free_all(c[0]);
        free_all(c[1]);
    }
    free_all(exact);
}

static void expect_same(const collector *a, const collector *b)
{
    for (int i = 0; i < TEXTS; i++) {
        assert_int_equal(a[i].rows.n, b[i].rows.n);
        assert_memory_equal(a[i].rows.data, b[i].rows.data, a[i].rows.n * sizeof(float));
        assert_memory_equal(a[i].ids.data, b[i].ids.data, ANSWER * sizeof(int32_t));
    }
}

static void test_company_and_cuts(void **state)
{
    (void)state;
    opened m;
    static collector whole[TEXTS], alone[TEXTS];
    if (!gpu)
        skip();
    for (int f = 0; f < N_FORMS; f++) {
        open_named(&m, "cuda", 512, &FORMS[f], NULL);
        run_texts(&m, 0, TEXTS, whole, true);
        close_model(&m);
        open_named(&m, "cuda", 64, &FORMS[f], NULL);
        for (int i = 0; i < TEXTS; i++)
            run_texts(&m, i, 1, alone, true);
        close_model(&m);
        expect_same(whole, alone);
        free_all(whole);
        free_all(alone);
    }
}

/* Tokens that are drawn where the logits are, are those that the host draws of the same logits,
 * which it fetches for who wants log-probabilities. */
static void test_drawn_there(void **state)
{
    (void)state;
    enum { KINDS = 8 };
    opened m;
    static collector c[2][KINDS];
    if (!gpu)
        skip();
    open_on(&m, "cuda", 128);
    for (int k = 0; k < 2; k++) {
        for (int i = 0; i < KINDS; i++) {
            fl_request_params p = fl_request_params_default();
            fl_request *r;
            fl_error err;
            p.prompt = text[i];
            p.n_prompt = 17 + i;
            p.max_tokens = 4 * ANSWER;
            collect(&c[k][i], &p, 0);
            p.sampling.n_top = k - 1;
            p.sampling.temperature = i == 7 ? 0 : 0.3f + 0.4f * (float)i;
            p.sampling.top_k = i % 2 ? 5 * i : 0;
            p.sampling.top_p = i % 3 == 1 ? 0.9f : 1;
            p.sampling.min_p = i % 4 == 2 ? 0.02f : 0;
            p.sampling.seed = 100 + (uint64_t)i;
            if (fl_engine_submit(m.engine, &p, &r, &err) != FL_OK)
                fail_msg("%s", err.message);
        }
        run_all(m.engine);
    }
    for (int i = 0; i < KINDS; i++) {
        assert_int_equal(c[0][i].ids.n, 4 * ANSWER);
        assert_memory_equal(c[0][i].ids.data, c[1][i].ids.data, 4 * ANSWER * sizeof(int32_t));
        collector_free(&c[0][i]);
        collector_free(&c[1][i]);
    }
    close_model(&m);
}

/* Kernels that are named are used one by one. */
static void test_in_one_go(void **state)
{
    (void)state;
    opened m;
    static collector joined[TEXTS], single[TEXTS];
    if (!gpu)
        skip();
    open_on(&m, "cuda", 128);
    print_message("%s\n", fl_engine_device(m.engine));
    run_texts(&m, 0, TEXTS, joined, true);
    close_model(&m);
    open_named(&m, "cuda", 128, &FORMS[0],
               "expr=gpu,rmsnorm=gpu,l2norm=gpu,conv1d=gpu,residual_mix=gpu");
    run_texts(&m, 0, TEXTS, single, true);
    close_model(&m);
    expect_same(joined, single);
    free_all(joined);
    free_all(single);
}

/* Two engines side by side, and one after the other: a device is given back whole. */
static void test_many_engines(void **state)
{
    (void)state;
    opened m[2];
    static collector c[2][TEXTS];
    if (!gpu)
        skip();
    for (int round = 0; round < 5; round++) {
        for (int k = 0; k < 2; k++) {
            open_on(&m[k], "cuda", 64);
            run_texts(&m[k], 2, 1, c[k], false);
        }
        assert_memory_equal(c[0][2].ids.data, c[1][2].ids.data, ANSWER * sizeof(int32_t));
        for (int k = 0; k < 2; k++) {
            free_all(c[k]);
            close_model(&m[k]);
        }
    }
}

static void test_memory_limit(void **state)
{
    (void)state;
    opened m;
    fl_error err;
    fl_engine_options o = fl_engine_options_default();
    if (!gpu)
        skip();
    o.device = "cuda";
    o.device_memory = 1 << 20;
    assert_int_equal(try_open_model(&m, FL_TINY_MODEL, &o, &err), FL_NOMEM);
    print_message("%s\n", err.message);
    close_model(&m);
    o.device = "auto"; /* the CPU, and says why */
    open_model(&m, FL_TINY_MODEL, &o);
    assert_non_null(strstr(fl_engine_device(m.engine), "cpu ("));
    assert_non_null(strstr(fl_engine_device(m.engine), "may be used"));
    close_model(&m);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_like_the_cpu), cmocka_unit_test(test_company_and_cuts),
        cmocka_unit_test(test_in_one_go),    cmocka_unit_test(test_drawn_there),
        cmocka_unit_test(test_many_engines), cmocka_unit_test(test_memory_limit),
    };
    fl_device *d;
    fl_error err;
    if (fl_device_open("auto", &d, why, &err) != FL_OK)
        return 1;
    gpu = d != NULL;
    if (d)
        d->fn->close(d);
    print_message("%s%s\n", gpu ? "" : "skipped: ", why);
    return cmocka_run_group_tests(tests, setup, NULL);
}
