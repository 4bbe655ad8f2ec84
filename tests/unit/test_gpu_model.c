/* A whole model on a GPU: the CPU's answers, logits near the CPU's, and bits that do not depend on
 * company or on how a prompt was cut.  Skipped, with the reason, where there is no GPU. */
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

static void open_on(opened *m, const char *device, int chunk)
{
    fl_engine_options o = fl_engine_options_default();
    o.max_seqs = TEXTS;
    o.max_context = 1024;
    o.chunk = chunk;
    o.device = device;
    open_model(m, FL_TINY_MODEL, &o);
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

static void test_like_the_cpu(void **state)
{
    (void)state;
    opened m[2];
    static collector c[2][TEXTS];
    double worst = 0;
    if (!gpu)
        skip();
    for (int k = 0; k < 2; k++) {
        open_on(&m[k], k ? "cuda" : NULL, 256);
        run_texts(&m[k], 0, TEXTS, c[k], true);
    }
    for (int i = 0; i < TEXTS; i++) {
        double diff = 0, norm = 0;
        assert_int_equal(c[0][i].rows.n, c[1][i].rows.n);
        for (size_t j = 0; j < c[0][i].rows.n; j++) {
            double a = c[0][i].rows.data[j], b = c[1][i].rows.data[j];
            diff += (a - b) * (a - b);
            norm += a * a;
        }
        worst = fmax(worst, sqrt(diff / norm));
        assert_int_equal(c[0][i].ids.n, c[1][i].ids.n);
        assert_memory_equal(c[0][i].ids.data, c[1][i].ids.data, ANSWER * sizeof(int32_t));
    }
    print_message("logits of the GPU are within %.2e of the CPU's\n", worst);
    assert_true(worst < 1e-3);
    for (int k = 0; k < 2; k++) {
        free_all(c[k]);
        close_model(&m[k]);
    }
}

static void test_company_and_cuts(void **state)
{
    (void)state;
    opened m;
    static collector whole[TEXTS], alone[TEXTS];
    if (!gpu)
        skip();
    open_on(&m, "cuda", 512);
    run_texts(&m, 0, TEXTS, whole, true);
    close_model(&m);
    open_on(&m, "cuda", 64);
    for (int i = 0; i < TEXTS; i++)
        run_texts(&m, i, 1, alone, true);
    close_model(&m);
    for (int i = 0; i < TEXTS; i++) {
        assert_int_equal(whole[i].rows.n, alone[i].rows.n);
        assert_memory_equal(whole[i].rows.data, alone[i].rows.data,
                            whole[i].rows.n * sizeof(float));
        assert_memory_equal(whole[i].ids.data, alone[i].ids.data, ANSWER * sizeof(int32_t));
    }
    free_all(whole);
    free_all(alone);
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
        cmocka_unit_test(test_like_the_cpu),
        cmocka_unit_test(test_company_and_cuts),
        cmocka_unit_test(test_many_engines),
        cmocka_unit_test(test_memory_limit),
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
