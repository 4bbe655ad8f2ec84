/* Models of other families against what the transformers package computes from the same files
 * (tools/make_oracles.py): logits, layers and every row of every selection, at 1, 100 and 700
 * tokens, in one step, in steps of 64 and 128 rows, and token by token. */
#define _GNU_SOURCE
#include "base/mem.h"
#include "ops/ops.h"
#include "support/cmocka_all.h"
#include "support/collect.h"
#include "support/golden.h"
#include "support/open_model.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const int LENGTHS[] = {1, 100, 700};
static const char *const MODELS[] = {
    "deepseek_v32/groups", "deepseek_v32/odd", "deepseek_v32/fp8",
    "glm_moe_dsa/groups",  "glm_moe_dsa/list", "glm_moe_dsa/fp8",
    "kimi_linear/plain",   "kimi_linear/odd",  "kimi_linear/groups"};
enum { N_MODELS = sizeof MODELS / sizeof *MODELS };

static const char *golden_file(const char *model, int length)
{
    static char path[512];
    snprintf(path, sizeof path, "%s/%s/golden/t%d.safetensors", FL_TEST_DATA, model, length);
    return path;
}

static void check(const char *model, int chunk, golden_way way)
{
    char dir[512];
    snprintf(dir, sizeof dir, "%s/%s", FL_TEST_DATA, model);
    fl_engine_options o = fl_engine_options_default();
    opened m;
    o.chunk = chunk;
    o.max_seqs = 1;
    open_model(&m, dir, &o);
    assert_int_equal(fl_model_unknown(m.model), 0);
    for (int i = 0; i < 3; i++)
        golden_check(m.engine, golden_file(model, LENGTHS[i]), way);
    close_model(&m);
}

static void test_model(void **state)
{
    const char *model = *state;
    check(model, 704, GOLDEN_WHOLE);
    check(model, 64, GOLDEN_WHOLE);
    check(model, 128, GOLDEN_WHOLE);
    check(model, 64, GOLDEN_BY_TOKEN);
}

/* ---- all is selected while it fits ---- */

typedef struct rows {
    float *data;
    int64_t vocab, n;
} rows;

static void keep_rows(void *ctx, int64_t pos, int32_t n, const float *logits)
{
    rows *r = ctx;
    memcpy(r->data + pos * r->vocab, logits, (size_t)(n * r->vocab) * sizeof *logits);
    r->n += n;
}

/* The logits of the first n tokens of the t100 text, with the indexers or without. */
static rows first_rows(const char *model, bool dense, int64_t n)
{
    char dir[512];
    snprintf(dir, sizeof dir, "%s/%s", FL_TEST_DATA, model);
    fl_engine_options o = fl_engine_options_default();
    fl_model_options mo = {.dense = dense};
    fl_checkpoint *ck = NULL;
    fl_model *m = NULL;
    fl_engine *e = NULL;
    fl_request *r;
    fl_safetensors *file = NULL;
    fl_error err;
    if (fl_checkpoint_open(dir, FL_OPEN_DATA, &ck, &err) != FL_OK ||
        fl_model_open(ck, fl_ops_registry(), &mo, &m, &err) != FL_OK ||
        fl_engine_create(m, &o, &e, &err) != FL_OK ||
        fl_safetensors_open(golden_file(model, 100), &file, &err) != FL_OK)
        fail_msg("%s", err.message);
    rows all = {.vocab = fl_graph_vocab(fl_model_graph(m))};
    all.data = fl_calloc((size_t)(n * all.vocab), sizeof *all.data);
    assert_non_null(all.data);
    fl_request_params p = fl_request_params_default();
    p.prompt = fl_safetensors_find(file, "ids")->data;
    p.n_prompt = n;
    p.on_rows = keep_rows;
    p.rows_ctx = &all;
    assert_int_equal(fl_engine_submit(e, &p, &r, &err), FL_OK);
    run_all(e);
    assert_int_equal(all.n, n);
    fl_safetensors_close(file);
    fl_engine_destroy(e);
    fl_model_close(m);
    fl_checkpoint_close(ck);
    return all;
}

/* Bit for bit the same as without a selection as long as it selects everything, and from the next
 * token on not. */
static void test_selecting_everything(void **state)
{
    (void)state;
    static const struct {
        const char *model;
        int64_t topk;
    } cases[] = {{"deepseek_v32/groups", 48}, {"glm_moe_dsa/list", 37}, {"deepseek_v32/fp8", 64}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        int64_t k = cases[i].topk;
        rows sparse = first_rows(cases[i].model, false, k + 1);
        rows dense = first_rows(cases[i].model, true, k + 1);
        size_t row = (size_t)sparse.vocab * sizeof(float);
        assert_memory_equal(sparse.data, dense.data, (size_t)k * row);
        assert_memory_not_equal(sparse.data + k * sparse.vocab, dense.data + k * sparse.vocab, row);
        fl_free(sparse.data);
        fl_free(dense.data);
    }
}

/* ---- what must not pass ----
 *
 * The weights of a model with another configuration.  Each change is one that still runs. */

static golden_result run_changed(const char *model, const char *from, const char *to)
{
    char dir[] = "/tmp/fl-oracle-XXXXXX", path[512], config[64], weights[64];
    assert_non_null(mkdtemp(dir));
    snprintf(config, sizeof config, "%s/config.json", dir);
    snprintf(weights, sizeof weights, "%s/model.safetensors", dir);
    snprintf(path, sizeof path, "%s/%s/model.safetensors", FL_TEST_DATA, model);
    assert_int_equal(symlink(path, weights), 0);

    char text[8192];
    snprintf(path, sizeof path, "%s/%s/config.json", FL_TEST_DATA, model);
    FILE *f = fopen(path, "r");
    assert_non_null(f);
    text[fread(text, 1, sizeof text - 1, f)] = 0;
    fclose(f);
    char *at = strstr(text, from);
    assert_non_null(at);
    f = fopen(config, "w");
    assert_non_null(f);
    fprintf(f, "%.*s%s%s", (int)(at - text), text, to, at + strlen(from));
    assert_int_equal(fclose(f), 0);

    fl_engine_options o = fl_engine_options_default();
    opened m;
    open_model(&m, dir, &o);
    golden_result v = golden_run(m.engine, golden_file(model, 100), GOLDEN_WHOLE);
    close_model(&m);
    unlink(config);
    unlink(weights);
    rmdir(dir);
    return v;
}

static void test_differences_are_seen(void **state)
{
    (void)state;
    static const struct {
        const char *model, *from, *to;
        bool selects; /* the selections differ too */
    } cases[] = {
        {"deepseek_v32/groups", "{", "{\"indexer_rope_interleave\": true,", true},
        {"glm_moe_dsa/groups", "{", "{\"indexer_rope_interleave\": false,", true},
        {"deepseek_v32/groups", "\"mscale_all_dim\": 1.0",
         "\"mscale_all_dim\": 0, \"attention_factor\": 1", false},
        {"deepseek_v32/groups", "\"factor\": 40", "\"factor\": 39", false},
        {"deepseek_v32/groups", "\"topk_group\": 2", "\"topk_group\": 3", false},
        {"glm_moe_dsa/groups", "\"rope_theta\": 1000000.0", "\"rope_theta\": 10000.0", true},
        {"kimi_linear/groups", "\"topk_group\": 2", "\"topk_group\": 3", false},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        golden_result v = run_changed(cases[i].model, cases[i].from, cases[i].to);
        print_message("%s with %s: logits %.1e, %lld selections differ\n", cases[i].model,
                      cases[i].to, v.logits, (long long)v.select_wrong);
        assert_true(v.logits > 1e-3);
        assert_true(!cases[i].selects || v.select_wrong > 0);
    }
}

int main(void)
{
    struct CMUnitTest tests[N_MODELS + 2];
    for (int i = 0; i < N_MODELS; i++)
        tests[i] = (struct CMUnitTest){MODELS[i], test_model, NULL, NULL, (void *)MODELS[i]};
    tests[N_MODELS] = (struct CMUnitTest)cmocka_unit_test(test_differences_are_seen);
    tests[N_MODELS + 1] = (struct CMUnitTest)cmocka_unit_test(test_selecting_everything);
    return _cmocka_run_group_tests("oracles", tests, N_MODELS + 2, NULL, NULL);
}
