/* Configurations and checkpoints that are not what the definition can compute: each refused with a
 * message that names the key, tensor or file. */
#include "support/cmocka_all.h"

#include "support/model_support.h"

#include "base/mem.h"
#include "ops/ops.h"

#include <string.h>

/* Opens the model of a folder; what comes out is closed again. */
static fl_status try_open(const char *dir, fl_open_mode mode, const fl_model_options *options,
                          fl_error *e)
{
    fl_checkpoint *ck;
    fl_model *m = NULL;
    *e = (fl_error){0};
    fl_status status = fl_checkpoint_open(dir, mode, &ck, e);
    if (status == FL_OK) {
        status = fl_model_open(ck, fl_ops_registry(), options, &m, e);
        fl_model_close(m);
        fl_checkpoint_close(ck);
    }
    return status;
}

typedef struct edit {
    const char *from, *to;
    fl_status status;
    const char *words;
} edit;

static void check(const char *dir, const edit *edits, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        folder f;
        fl_error e;
        model_links(&f, dir);
        model_edit(&f, dir, "config.json", edits[i].from, edits[i].to);
        fl_status status = try_open(f.path, FL_OPEN_DATA, NULL, &e);
        if (status != edits[i].status || !strstr(e.message, edits[i].words))
            fail_msg("%s: status %d: %s", edits[i].to, (int)status, e.message);
        assert_memory_equal(e.message, f.path, strlen(f.path));
        folder_remove(&f);
    }
}

#define CHECK(dir, edits) check(dir, edits, sizeof(edits) / sizeof *(edits))

static void test_what_cannot_be_computed(void **state)
{
    (void)state;
    static const edit edits[] = {
        {"\"situ\"", "\"gelu\"", FL_CONFIG, "hidden_act \"gelu\" is not supported"},
        {"\"sigmoid\"", "\"tanh\"", FL_CONFIG, "moe_router_activation_func \"tanh\""},
        {"\"mla_use_nope\": true", "\"mla_use_nope\": false", FL_CONFIG, "mla_use_nope"},
        {"\"mla_use_nope\"", "\"nothing\"", FL_CONFIG, "mla_use_nope"},
        {"\"index_kpool\": 1", "\"index_kpool\": 4", FL_CONFIG, "index_kpool"},
        {"\"indexer_rope_dim\": 0", "\"indexer_rope_dim\": 16", FL_CONFIG, "indexer_rope_dim"},
        {"\"index_topk\"", "\"index_topk_freq\": 2, \"index_skip_topk_offset\": 0, \"index_topk\"",
         FL_CONFIG, "first full-attention layer has no selection"},
        {"\"index_topk\"", "\"index_topk_freq\": 0, \"index_topk\"", FL_CONFIG, "index_topk_freq"},
        {"\"index_topk\"", "\"indexer_types\": [\"full\", \"half\"], \"index_topk\"", FL_CONFIG,
         "indexer_types has \"half\""},
        {"\"index_topk\"", "\"indexer_types\": [\"full\"], \"index_topk\"", FL_CONFIG,
         "indexer_types has 1 entries, expected 2"},
        {"\"index_topk\"", "\"indexer_types\": [1, 2], \"index_topk\"", FL_CONFIG,
         "text_config.indexer_types"},
    };
    CHECK(FL_TINY_MODEL, edits);
}

static void test_keys(void **state)
{
    (void)state;
    static const edit edits[] = {
        {"\"rms_norm_eps\"", "\"eps\"", FL_CONFIG, "text_config.rms_norm_eps is missing"},
        {"\"hidden_size\": 256", "\"hidden_size\": \"256\"", FL_CONFIG,
         "text_config.hidden_size is a string"},
        {"\"hidden_size\": 256", "\"hidden_size\": 0", FL_MODEL, "not a shape"},
        {"\"hidden_size\": 256", "\"hidden_size\": 9223372036854775807", FL_MODEL, "not a shape"},
        {"\"num_hidden_layers\": 8", "\"num_hidden_layers\": 1000000000", FL_CONFIG,
         "layer 9 is neither in"},
        {"\"short_conv_kernel_size\"", "\"taps\"", FL_CONFIG,
         "text_config.linear_attn_config.short_conv_kernel_size is missing"},
        {"\"linear_attn_config\"", "\"linear\"", FL_CONFIG,
         "text_config.linear_attn_config is missing"},
        {"\"text_config\": {", "\"text_config\": 3, \"other\": {", FL_CONFIG, "text_config is"},
        {"\"latent_moe_use_norm\": true", "\"latent_moe_use_norm\": 1", FL_CONFIG,
         "text_config.latent_moe_use_norm is an integer"},
        {"\"max_position_embeddings\"", "\"positions\"", FL_CONFIG, "model_max_length is missing"},
        {"\"eos_token_id\": 3842,\n    \"pad", "\"eos_token_id\": 4096,\n    \"pad", FL_CONFIG,
         "eos_token_id 4096"},
        {"\"eos_token_id\": 3842", "\"eos_token_id\": [\"x\"]", FL_CONFIG,
         "config.json: eos_token_id is a string"},
    };
    CHECK(FL_TINY_MODEL, edits);
}

static void test_layer_lists(void **state)
{
    (void)state;
    static const char kda[] = "\"kda_layers\": [\n        1,", full[] = "[\n        4,\n";
    static const edit edits[] = {
        {kda, "\"kda_layers\": [", FL_CONFIG, "layer 1 is neither in"},
        {kda, "\"kda_layers\": [1, 1,", FL_CONFIG, "lists layer 1 twice"},
        {kda, "\"kda_layers\": [1, 4,", FL_CONFIG, "lists layer 4 twice"},
        {kda, "\"kda_layers\": [1, 0,", FL_CONFIG, "kda_layers has layer 0 of 8"},
        {kda, "\"kda_layers\": [1, 9,", FL_CONFIG, "kda_layers has layer 9 of 8"},
        {full, "[", FL_CONFIG, "layer 4 is neither in"},
        {kda, "\"kda_layers\": [1, \"2\",", FL_CONFIG, "kda_layers[1] is a string"},
    };
    CHECK(FL_TINY_MODEL, edits);
}

static void test_switches(void **state)
{
    (void)state;
    static const edit edits[] = {
        {"\"attn_res_block_size\"", "\"x\"", FL_CONFIG,
         "attn_res_block_size is not set, but the checkpoint has model.output_attn_res_norm"},
        {"\"routed_expert_hidden_size\"", "\"x\"", FL_CONFIG,
         "routed_expert_hidden_size is not set, but the checkpoint has model.layers.1.block"},
        {"\"latent_moe_use_norm\": true", "\"latent_moe_use_norm\": false", FL_CONFIG,
         "latent_moe_use_norm is not set"},
        {"\"mla_use_output_gate\"", "\"x\"", FL_CONFIG, "mla_use_output_gate is not set"},
        {"\"use_full_rank_gate\"", "\"x\"", FL_CONFIG, "use_full_rank_gate is not set"},
        {"\"index_topk\"", "\"x\"", FL_CONFIG,
         "index_topk is not set, but the checkpoint has model.layers.3.self_attn.indexer"},
        {"\"q_lora_rank\": 128", "\"q_lora_rank\": null", FL_CONFIG, "q_lora_rank"},
    };
    CHECK(FL_TINY_MODEL, edits);
}

static void test_other_dims(void **state)
{
    (void)state;
    static const edit edits[] = {
        {"\"intermediate_size\": 704", "\"intermediate_size\": 700", FL_FORMAT,
         "3 tensors of another type or shape than config.json says: model.layers.0.mlp.gate_proj"
         ".weight in model-00001-of-00003.safetensors is BF16 [704, 256], expected F32, BF16 or "
         "F16 [700, 256], model.layers.0.mlp."},
        {"\"num_experts\": 32", "\"num_experts\": 33", FL_FORMAT, "14 tensors of another type"},
        {"\"moe_intermediate_size\": 128", "\"moe_intermediate_size\": 96", FL_FORMAT,
         "model.layers.1.block_sparse_moe.experts.0.w1.weight_packed"},
        {"\"first_k_dense_replace\": 1", "\"first_k_dense_replace\": 0", FL_NOTFOUND, "missing: "},
        {"\"vocab_size\": 4096", "\"vocab_size\": 4095", FL_FORMAT, "2 tensors of another type"},
        {"\"qk_rope_head_dim\": 32", "\"qk_rope_head_dim\": 31", FL_FORMAT, "q_b_proj"},
    };
    CHECK(FL_TINY_MODEL, edits);
}

static void test_missing_and_unknown(void **state)
{
    (void)state;
    static const edit edits[] = {
        /* a dense layer 1 wants three tensors that are not there */
        {"\"first_k_dense_replace\": 1", "\"first_k_dense_replace\": 2", FL_NOTFOUND,
         "3 tensors missing: model.layers.1.mlp.gate_proj.weight, "
         "model.layers.1.mlp.up_proj.weight, model.layers.1.mlp.down_proj.weight"},
        /* two dense layers more than there are */
        {"\"first_k_dense_replace\": 1", "\"first_k_dense_replace\": 3", FL_NOTFOUND,
         "6 tensors missing: model.layers.1.mlp.gate_proj.weight, "},
    };
    CHECK(FL_TINY_MODEL, edits);
    folder f;
    opened o;
    model_links(&f, FL_TINY_MODEL);
    model_edit(&f, FL_TINY_MODEL, "config.json", "\"tie_word_embeddings\": false,\n    \"max",
               "\"tie_word_embeddings\": true,\n    \"max");
    model_open(&o, f.path, NULL);
    assert_int_equal(fl_model_unknown(o.m), 1);
    assert_string_equal(fl_model_unknown_name(o.m, 0), "lm_head.weight");
    model_close(&o);
    folder_remove(&f);
}

static void test_survey_reports(void **state)
{
    (void)state;
    folder f;
    fl_error e;
    fl_checkpoint *ck;
    fl_model *m;
    folder_make(&f);
    model_edit(&f, FL_TINY_MODEL, "config.json", "\"first_k_dense_replace\": 1",
               "\"first_k_dense_replace\": 2");
    model_edit(&f, FL_TINY_MODEL, "model.safetensors.index.json", "{", "{"); /* no shards */
    assert_int_equal(fl_checkpoint_open(f.path, FL_OPEN_SURVEY, &ck, &e), FL_OK);
    if (fl_model_open(ck, fl_ops_registry(), NULL, &m, &e) != FL_OK)
        fail_msg("%s", e.message);
    assert_int_equal(fl_model_missing(m), 3);
    assert_string_equal(fl_model_missing_name(m, 1), "model.layers.1.mlp.up_proj.weight");
    assert_int_equal(fl_model_unknown(m), 32 * 6 + 5 + 3);
    fl_model_close(m);
    fl_checkpoint_close(ck);
    folder_remove(&f);
}

static void test_generation_config(void **state)
{
    (void)state;
    static const struct {
        const char *text, *words;
    } cases[] = {
        {"{", "generation_config.json"},
        {"{\"eos_token_id\": 1.5}", "generation_config.json: eos_token_id is"},
        {"{\"eos_token_id\": [1, {}]}", "generation_config.json: eos_token_id is an object"},
        {"{\"eos_token_id\": -1}", "generation_config.json: eos_token_id -1 is outside"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        folder f;
        fl_error e;
        model_links(&f, FL_TINY_MODEL);
        folder_text(&f, "generation_config.json", cases[i].text);
        assert_int_not_equal(try_open(f.path, FL_OPEN_DATA, NULL, &e), FL_OK);
        if (!strstr(e.message, cases[i].words))
            fail_msg("%s: %s", cases[i].text, e.message);
        folder_remove(&f);
    }
}

static void test_no_definition(void **state)
{
    (void)state;
    folder f, models;
    fl_error e;
    model_links(&f, FL_TINY_MODEL);
    folder_make(&models);
    fl_model_options options = {.models_dir = models.path};
    assert_failed(try_open(f.path, FL_OPEN_DATA, &options, &e), FL_UNSUPPORTED, &e,
                  "is for model_type \"kimi_k3\"");
    folder_text(&models, "b.lua", "return {name = 'b', match = function(c) return c:has('x') end}");
    folder_text(&models, "a.lua", "return 7");
    folder_text(&models, ".hidden.lua", "error('read')");
    folder_text(&models, "text.txt", "error('read')");
    assert_failed(try_open(f.path, FL_OPEN_DATA, &options, &e), FL_UNSUPPORTED, &e, "model_type");
    folder_text(&models, "c.lua", "return {name = 'c',\nmatch = function(c) return c.x.y end}");
    assert_failed(try_open(f.path, FL_OPEN_DATA, &options, &e), FL_MODEL, &e, "c.lua:2:");
    folder_text(&models, "c.lua", "return {match = function() return true end}");
    assert_failed(try_open(f.path, FL_OPEN_DATA, &options, &e), FL_MODEL, &e, "name");
    options.models_dir = "/nonexistent";
    assert_failed(try_open(f.path, FL_OPEN_DATA, &options, &e), FL_NOTFOUND, &e, "/nonexistent");
    options.definition = "/nonexistent/x.lua";
    assert_failed(try_open(f.path, FL_OPEN_DATA, &options, &e), FL_NOTFOUND, &e, "x.lua");
    folder_remove(&f);
    folder_remove(&models);
    char dir[4];
    assert_failed(fl_models_dir(dir, sizeof dir, &e), FL_ARGUMENT, &e, "too long");
}

static void test_failed_allocations(void **state)
{
    (void)state;
    fl_error e;
    long before = fl_mem_count();
    assert_int_equal(try_open(FL_TEST_DATA "/linear", FL_OPEN_DATA, NULL, &e), FL_OK);
    long n = fl_mem_count() - before;
    /* Every allocation would take a minute; step over them so that each run meets others. */
    for (long i = 1; i <= n; i += 1 + n / 150) {
        fl_mem_fail_at(i);
        fl_status status = try_open(FL_TEST_DATA "/linear", FL_OPEN_DATA, NULL, &e);
        fl_mem_fail_at(0);
        if (status != FL_OK && status != FL_NOMEM)
            fail_msg("allocation %ld: status %d: %s", i, (int)status, e.message);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_what_cannot_be_computed),
        cmocka_unit_test(test_keys),
        cmocka_unit_test(test_layer_lists),
        cmocka_unit_test(test_switches),
        cmocka_unit_test(test_other_dims),
        cmocka_unit_test(test_missing_and_unknown),
        cmocka_unit_test(test_survey_reports),
        cmocka_unit_test(test_generation_config),
        cmocka_unit_test(test_no_definition),
        cmocka_unit_test(test_failed_allocations),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
