/* End to end against the reference: every golden file of every model, and the greedy answers. */
#define _GNU_SOURCE
#include "support/cmocka_all.h"
#include "support/collect.h"
#include "support/open_model.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

static const double TOLERANCE = 2e-5;
enum { MAX_LAYERS = 16 };

/* What one run of a golden text gave, held against the file as it comes. */
typedef struct golden {
    fl_safetensors *file;
    int64_t n, vocab;
    int64_t argmax_wrong, rows_seen;
    double logprob_worst, logprob_sum;
    double logits_diff, logits_norm;
    double layer_diff[MAX_LAYERS], layer_norm[MAX_LAYERS];
    int64_t layer_pos[MAX_LAYERS], select_pos[MAX_LAYERS];
    int64_t select_rows, select_wrong;
} golden;

static const fl_tensor *part(const golden *g, const char *name)
{
    const fl_tensor *t = fl_safetensors_find(g->file, name);
    if (!t)
        fail_msg("%s is missing", name);
    return t;
}

static void add_difference(const float *got, const float *want, int64_t n, double *diff,
                           double *norm)
{
    for (int64_t i = 0; i < n; i++) {
        *diff += ((double)got[i] - want[i]) * ((double)got[i] - want[i]);
        *norm += (double)want[i] * want[i];
    }
}

static void see_rows(void *ctx, int64_t pos, int32_t n, const float *logits)
{
    golden *g = ctx;
    const int32_t *ids = part(g, "ids")->data, *argmax = part(g, "argmax")->data;
    const float *logprob = part(g, "logprob_next")->data;
    const fl_tensor *want = part(g, "logits");
    int64_t first = g->n - want->shape[0]; /* the file has the last rows */
    for (int64_t r = 0; r < n; r++, pos++) {
        const float *x = logits + r * g->vocab;
        int64_t best = 0;
        double sum = 0;
        for (int64_t i = 1; i < g->vocab; i++)
            best = x[i] > x[best] ? i : best;
        for (int64_t i = 0; i < g->vocab; i++)
            sum += exp((double)x[i] - x[best]);
        g->argmax_wrong += best != argmax[pos];
        if (pos + 1 < g->n) {
            double off = fabs(x[ids[pos + 1]] - x[best] - log(sum) - logprob[pos]);
            g->logprob_worst = fmax(g->logprob_worst, off);
            g->logprob_sum += off;
        }
        if (pos >= first)
            add_difference(x, (const float *)want->data + (pos - first) * g->vocab, g->vocab,
                           &g->logits_diff, &g->logits_norm);
        g->rows_seen++;
    }
}

static void see_layer(golden *g, int layer, const fl_arg *value, int32_t rows)
{
    const fl_tensor *want = part(g, "layers");
    assert_in_range(layer, 0, want->shape[0] - 1);
    int64_t kept = want->shape[1], width = want->shape[2], first = g->n - kept;
    assert_int_equal(fl_type_width(&value->type), width);
    for (int32_t r = 0; r < rows; r++) {
        int64_t at = g->layer_pos[layer]++ - first;
        if (at >= 0)
            add_difference(fl_row_f32(value, r),
                           (const float *)want->data + (layer * kept + at) * width, width,
                           &g->layer_diff[layer], &g->layer_norm[layer]);
    }
}

static void see_selection(golden *g, int indexer, const fl_arg *value, int32_t rows)
{
    char name[40];
    snprintf(name, sizeof name, "indexer%d_top_last4", indexer);
    const fl_tensor *want = fl_safetensors_find(g->file, name);
    assert_in_range(indexer, 0, MAX_LAYERS - 1);
    for (int32_t r = 0; r < rows; r++) {
        int64_t at = g->select_pos[indexer]++ - (g->n - 4);
        if (!want || at < 0) /* a text that fits the selection has none in the file */
            continue;
        const int32_t *got = (const int32_t *)value->data + r * value->stride;
        g->select_rows++;
        for (int64_t i = 0; i < want->shape[1]; i++)
            g->select_wrong += got[i] != ((const int32_t *)want->data)[at * want->shape[1] + i];
    }
}

static void see_tap(void *ctx, const char *kind, int index, const fl_arg *value, int32_t rows)
{
    if (strcmp(kind, "layer") == 0)
        see_layer(ctx, index, value, rows);
    else if (strcmp(kind, "select") == 0)
        see_selection(ctx, index, value, rows);
}

static int64_t count_selections(const golden *g)
{
    int64_t n = 0;
    for (size_t i = 0; i < fl_safetensors_count(g->file); i++)
        n += strstr(fl_safetensors_name(g->file, i), "_top_last4") != NULL;
    return n;
}

static void check_golden(fl_engine *e, const char *path)
{
    golden g = {0};
    fl_error err;
    if (fl_safetensors_open(path, &g.file, &err) != FL_OK)
        fail_msg("%s", err.message);
    g.n = part(&g, "ids")->shape[0];
    g.vocab = part(&g, "logits")->shape[1];
    collector c;
    fl_request_params p = fl_request_params_default();
    p.prompt = part(&g, "ids")->data;
    p.n_prompt = g.n;
    collect(&c, &p, 0);
    p.on_rows = see_rows;
    p.rows_ctx = &g;
    p.tap = see_tap;
    p.tap_ctx = &g;
    fl_request *r;
    if (fl_engine_submit(e, &p, &r, &err) != FL_OK)
        fail_msg("%s: %s", path, err.message);
    run_all(e);
    if (c.finish != FL_FINISH_LENGTH)
        fail_msg("%s: %s", path, c.error.message);

    double logits = sqrt(g.logits_diff / g.logits_norm), layers = 0;
    int64_t n_layers = part(&g, "layers")->shape[0];
    for (int64_t i = 0; i < n_layers; i++) {
        assert_int_equal(g.layer_pos[i], g.n);
        assert_true(g.layer_norm[i] > 0);
        layers = fmax(layers, sqrt(g.layer_diff[i] / g.layer_norm[i]));
    }
    print_message("%s: %lld rows, logits %.2e, layers %.2e, log-probability %.2e, %lld of %lld "
                  "arg-max differ, %lld selected positions of %lld rows differ\n",
                  strrchr(path, '/') + 1, (long long)g.n, logits, layers, g.logprob_worst,
                  (long long)g.argmax_wrong, (long long)g.n, (long long)g.select_wrong,
                  (long long)g.select_rows);
    assert_int_equal(g.rows_seen, g.n);
    assert_int_equal(g.argmax_wrong, 0);
    assert_true(logits < TOLERANCE);
    assert_true(layers < TOLERANCE);
    /* Single rows may be further off: where two scores of a selection all but tie, the file itself
     * is 3.4e-3 from the same computation in double. */
    assert_true(g.logprob_worst < 1e-2);
    assert_true(g.logprob_sum / (double)(g.n - 1) < 1e-4);
    assert_int_equal(g.select_wrong, 0);
    assert_int_equal(g.select_rows, 4 * count_selections(&g));
    collector_free(&c);
    fl_safetensors_close(g.file);
}

static void check_model(const char *dir, const char *golden_dir, const char *const *names, int n)
{
    fl_engine_options o = fl_engine_options_default();
    opened m;
    o.max_seqs = 1;
    open_model(&m, dir, &o);
    for (int i = 0; i < n; i++) {
        char path[512];
        snprintf(path, sizeof path, "%s/%s.safetensors", golden_dir, names[i]);
        check_golden(m.engine, path);
    }
    close_model(&m);
}

static void test_tiny(void **state)
{
    (void)state;
    const char *const names[] = {"text_short", "docs_2k", "chat_needle_1k", "chat_needle_6k"};
    check_model(FL_TINY_MODEL, FL_TEST_DATA "/golden", names, 4);
}

static const char *const RANDOM_NAMES[] = {"short", "long"};

static void test_second(void **state)
{
    (void)state;
    check_model(FL_TEST_DATA "/second", FL_TEST_DATA "/second/golden", RANDOM_NAMES, 2);
}

static void test_linear(void **state)
{
    (void)state;
    check_model(FL_TEST_DATA "/linear", FL_TEST_DATA "/linear/golden", RANDOM_NAMES, 2);
}

/* Layers that reuse a selection, said by a period and said by a list. */
static void test_sharing(void **state)
{
    (void)state;
    check_model(FL_TEST_DATA "/sharing", FL_TEST_DATA "/sharing/golden", RANDOM_NAMES, 2);

    char dir[] = "/tmp/fl-golden-XXXXXX", config[64], weights[64];
    assert_non_null(mkdtemp(dir));
    snprintf(config, sizeof config, "%s/config.json", dir);
    snprintf(weights, sizeof weights, "%s/model.safetensors", dir);
    assert_int_equal(symlink(FL_TEST_DATA "/sharing/config_indexer_types.json", config), 0);
    assert_int_equal(symlink(FL_TEST_DATA "/sharing/model.safetensors", weights), 0);
    check_model(dir, FL_TEST_DATA "/sharing/golden", RANDOM_NAMES, 2);
    unlink(config);
    unlink(weights);
    rmdir(dir);
}

/* ---- greedy.json ---- */

static void read_ids(const fl_json *entry, const char *key, fl_ids *out)
{
    const fl_json *a = fl_json_get(entry, key);
    assert_non_null(a);
    out->n = 0;
    for (size_t i = 0; i < fl_json_size(a); i++)
        assert_true(fl_vec_push(out, (int32_t)fl_json_int(fl_json_at(a, i))));
}

/* All answers, seven prompts at a time; those that end with a stop id must end there by
 * themselves. */
static void test_greedy_answers(void **state)
{
    (void)state;
    enum { WAVE = 7 };
    opened m;
    fl_engine_options o = fl_engine_options_default();
    o.max_seqs = WAVE;
    o.max_context = 1024;
    open_model(&m, FL_TINY_MODEL, &o);
    size_t n_stop;
    const int32_t *stop = fl_model_stop_ids(m.model, &n_stop);
    fl_json *all;
    fl_error err;
    if (fl_json_read(FL_TEST_DATA "/golden/greedy.json", 1 << 20, &all, &err) != FL_OK)
        fail_msg("%s", err.message);
    assert_int_equal(fl_json_size(all), 21);
    fl_ids ids = {0};
    for (size_t wave = 0; wave < fl_json_size(all); wave += WAVE) {
        collector c[WAVE];
        for (size_t i = 0; i < WAVE; i++) {
            const fl_json *entry = fl_json_at(all, wave + i);
            fl_request *r;
            read_ids(entry, "prompt_ids", &ids);
            fl_request_params p = fl_request_params_default();
            p.prompt = ids.data;
            p.n_prompt = (int64_t)ids.n;
            p.max_tokens = 64;
            p.stop_ids = stop;
            p.n_stop = n_stop;
            if (fl_json_size(fl_json_get(entry, "output_ids")) > 64)
                p.max_tokens = 256;
            collect(&c[i], &p, 0);
            if (fl_engine_submit(m.engine, &p, &r, &err) != FL_OK)
                fail_msg("%s", err.message);
        }
        run_all(m.engine);
        for (size_t i = 0; i < WAVE; i++) {
            read_ids(fl_json_at(all, wave + i), "output_ids", &ids);
            assert_int_equal(c[i].ids.n, ids.n);
            assert_memory_equal(c[i].ids.data, ids.data, ids.n * sizeof *ids.data);
            assert_int_equal(c[i].finish,
                             ids.data[ids.n - 1] == 3842 ? FL_FINISH_STOP : FL_FINISH_LENGTH);
            collector_free(&c[i]);
        }
    }
    fl_vec_free(&ids);
    fl_json_free(all);
    close_model(&m);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_tiny),           cmocka_unit_test(test_second),
        cmocka_unit_test(test_linear),         cmocka_unit_test(test_sharing),
        cmocka_unit_test(test_greedy_answers),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
