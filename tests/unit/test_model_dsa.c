/* Decoders with sparse attention: the published configurations give the published number of
 * weights, what says which layers share a selection, and what is refused. */
#include "support/cmocka_all.h"

#include "support/model_support.h"

#include "ops/ops.h"

#include <stdio.h>
#include <string.h>

#define V32 FL_TEST_DATA "/deepseek_v32/"
#define GLM FL_TEST_DATA "/glm_moe_dsa/"

/* The sizes of the two largest, from their published config.json. */
static const char COMMON[] =
    "{\"hidden_act\": \"silu\", \"kv_lora_rank\": 512, \"qk_rope_head_dim\": 64,"
    " \"first_k_dense_replace\": 3, \"moe_layer_freq\": 1, \"moe_intermediate_size\": 2048,"
    " \"n_routed_experts\": 256, \"num_experts_per_tok\": 8, \"n_shared_experts\": 1,"
    " \"norm_topk_prob\": true, \"routed_scaling_factor\": 2.5, \"scoring_func\": \"sigmoid\","
    " \"topk_method\": \"noaux_tc\", \"index_head_dim\": 128, \"index_topk\": 2048,"
    " \"num_nextn_predict_layers\": 1, \"tie_word_embeddings\": false,";
static const char V32_SIZES[] =
    " \"model_type\": \"deepseek_v32\", \"hidden_size\": 7168, \"num_hidden_layers\": 61,"
    " \"num_attention_heads\": 128, \"q_lora_rank\": 1536, \"qk_nope_head_dim\": 128,"
    " \"v_head_dim\": 128, \"index_n_heads\": 64, \"intermediate_size\": 18432, \"n_group\": 8,"
    " \"topk_group\": 4, \"rms_norm_eps\": 1e-6, \"vocab_size\": 129280, \"rope_theta\": 10000,"
    " \"rope_scaling\": {\"type\": \"yarn\", \"factor\": 40, \"beta_fast\": 32, \"beta_slow\": 1,"
    " \"mscale\": 1.0, \"mscale_all_dim\": 1.0, \"original_max_position_embeddings\": 4096},"
    " \"max_position_embeddings\": 163840, \"quantization_config\": {\"quant_method\": \"fp8\","
    " \"fmt\": \"e4m3\", \"weight_block_size\": [128, 128], \"scale_fmt\": \"ue8m0\"}}";
static const char GLM_SIZES[] =
    " \"model_type\": \"glm_moe_dsa\", \"hidden_size\": 6144, \"num_hidden_layers\": 78,"
    " \"num_attention_heads\": 64, \"q_lora_rank\": 2048, \"qk_nope_head_dim\": 192,"
    " \"v_head_dim\": 256, \"head_dim\": 192, \"index_n_heads\": 32, \"intermediate_size\": 12288,"
    " \"rms_norm_eps\": 1e-5, \"vocab_size\": 154880, \"indexer_rope_interleave\": true,"
    " \"rope_parameters\": {\"rope_theta\": 8000000, \"rope_type\": \"default\"},"
    " \"max_position_embeddings\": 1048576";

/* A configuration without any tensors; layers: build so many only, 0: all. */
static void open_config(opened *o, const char *sizes, const char *more, int layers)
{
    folder f;
    fl_error e;
    char text[4000];
    snprintf(text, sizeof text, "%s%s%s", COMMON, sizes, more);
    folder_make(&f);
    folder_text(&f, "config.json", text);
    fl_model_options options = {.layers = layers};
    if (fl_checkpoint_open(f.path, FL_OPEN_SURVEY, &o->ck, &e) != FL_OK ||
        fl_model_open(o->ck, fl_ops_registry(), &options, &o->m, &e) != FL_OK)
        fail_msg("%s", e.message);
    folder_remove(&f);
}

typedef struct sum {
    int64_t tensors, parameters, bytes;
} sum;

static sum sum_of(const char *sizes, const char *more, int layers)
{
    opened o;
    sum s = {0};
    open_config(&o, sizes, more, layers);
    for (size_t i = 0; i < fl_model_parts(o.m); i++) {
        fl_part p = fl_model_part(o.m, i);
        s.tensors += p.tensors;
        s.parameters += p.parameters;
        s.bytes += p.bytes;
    }
    model_close(&o);
    return s;
}

/* GLM-5.2 has 59,585 tensors with 753,329,940,480 weights.  That counts the drafting layer, which
 * is a full layer and four tensors more. */
static void test_sizes_of_glm(void **state)
{
    (void)state;
    static const char sharing[] = ", \"index_topk_freq\": 4, \"index_skip_topk_offset\": 3}";
    sum all = sum_of(GLM_SIZES, sharing, 0), six = sum_of(GLM_SIZES, sharing, 6),
        seven = sum_of(GLM_SIZES, sharing, 7);
    int64_t D = 6144;
    assert_int_equal(all.tensors + (seven.tensors - six.tensors) + 4, 59585);
    assert_int_equal(all.parameters + (seven.parameters - six.parameters) + 3 * D + 2 * D * D,
                     753329940480);
}

/* DeepSeek-V3 has 671,026,419,200 weights without its drafting layer; 61 indexers come to them.
 * Planned without a checkpoint, all that is FP8 in the release counts a byte and its factors. */
static void test_sizes_of_v32(void **state)
{
    (void)state;
    sum all = sum_of(V32_SIZES, "", 0);
    int64_t indexer = 64 * 128 * 1536 + 128 * 7168 + 2 * 128 + 64 * 7168;
    assert_int_equal(all.parameters, 671026419200 + 61 * indexer);
    assert_in_range(all.bytes, all.parameters + 2000000000, all.parameters + 2300000000);
}

/* ---- which layers share ---- */

static const char EXPECTED_52[] = /* layers 0, 1, 2, 6, 10, ..., 74 */
    "FFFSSSFSSSFSSSFSSSFSSSFSSSFSSSFSSSFSSSFSSSFSSSFSSSFSSSFSSSFSSSFSSSFSSSFSSSFSSS";

static void check_kinds(const char *more, const char *expected)
{
    opened o;
    open_config(&o, GLM_SIZES, more, 0);
    assert_int_equal(fl_model_layers(o.m), strlen(expected));
    for (int i = 0; i < fl_model_layers(o.m); i++) {
        bool own = strstr(fl_model_layer_kind(o.m, i), "indexer") != NULL;
        if (own != (expected[i] == 'F'))
            fail_msg("%s: layer %d is %s", more, i, fl_model_layer_kind(o.m, i));
    }
    model_close(&o);
}

static void test_sharing_by_configuration(void **state)
{
    (void)state;
    char text[2000], *at = text, all[79] = {0};
    memset(all, 'F', 78);
    check_kinds("}", all);
    check_kinds(", \"index_topk_freq\": 4, \"index_skip_topk_offset\": 3}", EXPECTED_52);
    snprintf(text, sizeof text, ", \"index_topk_freq\": 2, \"index_topk_pattern\": \"%s\"}",
             EXPECTED_52);
    check_kinds(text, EXPECTED_52);
    at += snprintf(text, sizeof text, ", \"index_topk_pattern\": \"S\", \"indexer_types\": [");
    for (int i = 0; i < 78; i++)
        at +=
            snprintf(at, 20, "%s\"%s\"", i ? ", " : "", EXPECTED_52[i] == 'F' ? "full" : "shared");
    snprintf(at, 3, "]}");
    check_kinds(text, EXPECTED_52);
}

/* Opens a model with its configuration edited. */
static void open_edited(opened *o, folder *f, const char *dir, const char *from, const char *to)
{
    model_links(f, dir);
    model_edit(f, dir, "config.json", from, to);
    model_open(o, f->path, NULL);
}

/* Without a list the tensors decide, whatever the period says. */
static void test_sharing_by_tensors(void **state)
{
    (void)state;
    static const char *const kinds[] = {"mla + indexer + dense", "mla + indexer + experts",
                                        "mla + experts", "mla + indexer + experts"};
    folder f;
    opened o;
    open_edited(&o, &f, GLM "fp8", "\"index_topk_freq\": 2", "\"index_topk_freq\": 1");
    assert_int_equal(fl_model_layers(o.m), 4);
    for (int i = 0; i < 4; i++)
        assert_string_equal(fl_model_layer_kind(o.m, i), kinds[i]);
    model_close(&o);
    folder_remove(&f);
}

/* An indexer that a list makes superfluous is known and not used. */
static void test_superfluous_indexer(void **state)
{
    (void)state;
    folder f;
    opened o;
    open_edited(&o, &f, GLM "list", "\"full\",\n  \"shared\",\n  \"full\"",
                "\"full\", \"shared\", \"shared\"");
    assert_string_equal(fl_model_layer_kind(o.m, 2), "mla + experts");
    assert_int_equal(fl_model_unknown(o.m), 0);
    model_close(&o);
    folder_remove(&f);
}

/* A drafting layer that the configuration does not speak of is reported by name. */
static void test_unannounced_draft(void **state)
{
    (void)state;
    folder f;
    opened o;
    open_edited(&o, &f, V32 "odd", "\"num_nextn_predict_layers\": 1",
                "\"num_nextn_predict_layers\": 0");
    assert_int_equal(fl_model_unknown(o.m), 5);
    assert_string_equal(fl_model_unknown_name(o.m, 0), "model.layers.3.eh_proj.weight");
    model_close(&o);
    folder_remove(&f);
}

/* ---- refusals ---- */

typedef struct edit {
    const char *dir, *from, *to;
    fl_status status;
    const char *words;
} edit;

static void test_refusals(void **state)
{
    (void)state;
    static const edit edits[] = {
        {V32 "groups", "\"silu\"", "\"gelu\"", FL_CONFIG, "hidden_act gelu is not supported"},
        {V32 "groups", "\"sigmoid\"", "\"softmax\"", FL_CONFIG, "scoring_func softmax"},
        {V32 "groups", "\"noaux_tc\"", "\"greedy\"", FL_CONFIG, "topk_method greedy"},
        {V32 "groups", "\"attention_bias\": false", "\"attention_bias\": true", FL_CONFIG,
         "attention_bias true is not supported"},
        {V32 "groups", "{", "{\"index_kpool\": 4,", FL_CONFIG, "index_kpool 4"},
        {V32 "groups", "\"yarn\"", "\"llama3\"", FL_CONFIG, "rope type \"llama3\""},
        {V32 "groups", "\"mscale\": 1.0", "\"mscale\": 0.7", FL_CONFIG,
         "scale rotated elements by"},
        {V32 "groups", "\"factor\": 40", "\"factor\": 40, \"truncate\": false", FL_CONFIG,
         "truncate"},
        {V32 "groups", "\"q_lora_rank\": 48", "\"q_lora_rank\": null", FL_CONFIG,
         "q_lora_rank is null"},
        {V32 "groups", "\"dense\"", "\"thick\"", FL_CONFIG, "mlp_layer_types has \"thick\""},
        {V32 "groups", "\"dense\",", "", FL_CONFIG, "mlp_layer_types has 3 entries, expected 4"},
        {V32 "groups", "\"topk_group\": 2", "\"topk_group\": 5", FL_MODEL, "topk_groups"},
        {V32 "groups", "\"index_head_dim\": 32", "\"index_head_dim\": 4", FL_MODEL, "rope"},
        {V32 "fp8", "128,\n   128", "64, 128", FL_CONFIG, "weight_block_size"},
        {V32 "fp8", "\"quant_method\": \"fp8\"", "\"quant_method\": \"awq\"", FL_CONFIG,
         "quant_method \"awq\""},
        {V32 "fp8", "\"kv_lora_rank\": 40", "\"kv_lora_rank\": 48", FL_FORMAT,
         "kv_a_proj_with_mqa.weight in model.safetensors is F8_E4M3 [48, 160], expected F8_E4M3"},
        {V32 "fp8", "\"first_k_dense_replace\": 1", "\"first_k_dense_replace\": 2", FL_NOTFOUND,
         "model.layers.1.mlp.gate_proj.weight"},
        {GLM "list", "\"shared\"", "\"half\"", FL_CONFIG, "indexer_types has \"half\""},
        {GLM "list", "\"full\",", "", FL_CONFIG, "indexer_types has 4 entries, expected 5"},
        {GLM "list", "\"full\"", "\"shared\"", FL_CONFIG, "no selection to share"},
        {GLM "list", "\"shared\"", "\"full\"", FL_NOTFOUND, "layers.1.self_attn.indexer.wq_b"},
        {GLM "fp8", "\"index_topk_freq\": 2", "\"index_topk_freq\": 0", FL_CONFIG,
         "index_topk_freq is 0"},
    };
    for (size_t i = 0; i < sizeof edits / sizeof *edits; i++) {
        folder f;
        fl_error e = {0};
        fl_checkpoint *ck;
        fl_model *m;
        model_links(&f, edits[i].dir);
        model_edit(&f, edits[i].dir, "config.json", edits[i].from, edits[i].to);
        assert_int_equal(fl_checkpoint_open(f.path, FL_OPEN_DATA, &ck, &e), FL_OK);
        fl_status status = fl_model_open(ck, fl_ops_registry(), NULL, &m, &e);
        if (status != edits[i].status || !strstr(e.message, edits[i].words))
            fail_msg("%s: status %d: %s", edits[i].to, (int)status, e.message);
        fl_model_close(m);
        fl_checkpoint_close(ck);
        folder_remove(&f);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_sizes_of_glm),
        cmocka_unit_test(test_sizes_of_v32),
        cmocka_unit_test(test_sharing_by_configuration),
        cmocka_unit_test(test_sharing_by_tensors),
        cmocka_unit_test(test_superfluous_indexer),
        cmocka_unit_test(test_unannounced_draft),
        cmocka_unit_test(test_refusals),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
