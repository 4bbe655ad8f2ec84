/* A checkpoint that no definition is for: what the survey says of it, and the definition it begins.
 */
#include "support/cmocka_all.h"

#include "support/model_support.h"

#include "base/mem.h"
#include "model/survey.h"
#include "ops/ops.h"

#include <stdio.h>
#include <string.h>

#define YOUTU FL_TEST_DATA "/youtu"

static const fl_survey_group *group(const fl_survey *s, const char *pattern)
{
    for (size_t i = 0; i < s->groups.n; i++) {
        if (strcmp(s->groups.data[i].pattern, pattern) == 0)
            return &s->groups.data[i];
    }
    fail_msg("no group %s", pattern);
    return NULL;
}

static bool has(const fl_survey_words *w, const char *word)
{
    for (size_t i = 0; i < w->n; i++) {
        if (strcmp(w->data[i], word) == 0)
            return true;
    }
    return false;
}

/* 1: needed and here; 0: needed and missing; -1: not needed */
static int needs(const fl_survey *s, const char *op)
{
    for (size_t i = 0; i < s->needs.n; i++) {
        if (strcmp(s->needs.data[i].op, op) == 0)
            return s->needs.data[i].here;
    }
    return -1;
}

static void survey(const char *dir, fl_checkpoint **ck, fl_survey *s)
{
    fl_error e = {0};
    if (fl_checkpoint_open(dir, FL_OPEN_SURVEY, ck, &e) != FL_OK ||
        fl_survey_open(*ck, fl_ops_registry(), FL_MODELS, s, &e) != FL_OK)
        fail_msg("%s", e.message);
}

static void test_known(void **state)
{
    (void)state;
    fl_checkpoint *ck;
    fl_error e = {0};
    bool known;
    assert_int_equal(fl_checkpoint_open(YOUTU, FL_OPEN_SURVEY, &ck, &e), FL_OK);
    assert_int_equal(fl_survey_is_known(ck, FL_MODELS, &known, &e), FL_OK);
    assert_false(known);
    assert_int_equal(fl_survey_is_known(ck, "/nowhere", &known, &e), FL_NOTFOUND);
    fl_checkpoint_close(ck);
    assert_int_equal(fl_checkpoint_open(FL_TINY_MODEL, FL_OPEN_SURVEY, &ck, &e), FL_OK);
    assert_int_equal(fl_survey_is_known(ck, FL_MODELS, &known, &e), FL_OK);
    assert_true(known);
    fl_checkpoint_close(ck);
}

static void test_shards(void **state)
{
    (void)state;
    fl_checkpoint *ck;
    fl_survey s;
    survey(YOUTU, &ck, &s);
    assert_int_equal(s.groups.n, 14);
    const fl_survey_group *g = group(&s, "model.layers.*.self_attn.kv_b_proj.weight");
    assert_string_equal(g->part, "latent attention");
    assert_int_equal(g->n, 3);
    assert_true(g->low == 0 && g->high == 2 && !g->varies && g->first->shape_known);
    assert_string_equal(group(&s, "model.norm.weight")->part, "norms");
    assert_int_equal(needs(&s, "mla"), 1);
    assert_int_equal(needs(&s, "rope"), 1);
    assert_int_equal(needs(&s, "experts"), -1);
    assert_string_equal(s.family, "deepseek_v32");
    assert_int_equal(s.new_words.n, 0);
    assert_true(has(&s.new_keys, "rope_interleave"));
    assert_false(has(&s.new_keys, "hidden_size"));
    fl_survey_free(&s);
    fl_checkpoint_close(ck);
}

/* Names alone, of a family whose attention has no operator here. */
static void test_index_only(void **state)
{
    (void)state;
    folder f;
    fl_checkpoint *ck;
    fl_survey s;
    folder_make(&f);
    folder_text(
        &f, "config.json",
        "{\"model_type\": \"odd\\\"one\", \"num_hidden_layers\": 2, \"sliding_window\": 64, "
        "\"vocab_size\": 8, \"hidden_size\": 4, \"alibi\": false}");
    folder_text(
        &f, "model.safetensors.index.json",
        "{\"metadata\": {}, \"weight_map\": {\"model.embed_tokens.weight\": \"a\", "
        "\"model.layers.0.attn.k_proj.weight\": \"a\", "
        "\"model.layers.1.attn.k_proj.weight\": \"a\", "
        "\"model.layers.1.attn.q_norm.bias\": \"a\", "
        "\"model.layers.0.mlp.experts.0.w.weight_packed\": \"a\", "
        "\"model.layers.0.mlp.experts.0.w.weight_scale\": \"a\", "
        "\"model.layers.0.mlp.experts.1.w.weight_packed\": \"a\", "
        "\"model.layers.0.mlp.experts.1.w.weight_scale\": \"a\", "
        "\"model.layers.1.puzzle\": \"a\", \"visual.x\": \"a\", \"lm_head.weight\": \"a\"}}");
    survey(f.path, &ck, &s);
    assert_string_equal(group(&s, "model.layers.*.puzzle")->part, "?");
    assert_string_equal(group(&s, "visual.x")->part, "another tower");
    assert_int_equal(group(&s, "model.layers.*.mlp.experts.*.w.weight_packed")->n, 2);
    assert_int_equal(needs(&s, "attention over keys and values of several heads"), 0);
    assert_int_equal(needs(&s, "attention within a window"), 0);
    assert_int_equal(needs(&s, "attention with a bias by distance"), -1);
    assert_int_equal(needs(&s, "layernorm"), 1);
    assert_int_equal(needs(&s, "experts"), 1);
    assert_true(has(&s.new_words, "puzzle"));

    /* What it begins is a definition for just this model, and takes every tensor. */
    fl_buf text = {0};
    fl_error e = {0};
    assert_int_equal(fl_survey_skeleton(&s, &text, &e), FL_OK);
    folder_write(&f, "new.lua", text.data, text.n);
    char path[400];
    snprintf(path, sizeof path, "%s", folder_file(&f, "new.lua"));
    fl_model_options options = {.definition = path, .models_dir = f.path};
    fl_model *m;
    if (fl_model_open(ck, fl_ops_registry(), &options, &m, &e) != FL_OK)
        fail_msg("%s", e.message);
    assert_string_equal(fl_model_family(m), "odd\"one");
    for (size_t i = 0; i < fl_model_unknown(m); i++)
        print_message("unknown: %s\n", fl_model_unknown_name(m, i));
    assert_int_equal(fl_model_unknown(m), 0);
    assert_int_equal(fl_model_layers(m), 2);
    fl_model_close(m);
    fl_vec_free(&text);
    fl_survey_free(&s);
    fl_checkpoint_close(ck);
    folder_text(&f, "config.json", "{\"model_type\": \"x\"}");
    survey(f.path, &ck, &s);
    assert_failed(fl_survey_skeleton(&s, &text, &e), FL_CONFIG, &e, "num_hidden_layers");
    fl_survey_free(&s);
    fl_checkpoint_close(ck);
    folder_remove(&f);
}

/* The beginning of a definition runs: all tensors, nothing missing, an embedding and a head. */
static void test_beginning(void **state)
{
    (void)state;
    folder f;
    fl_checkpoint *ck;
    fl_survey s;
    opened o;
    fl_buf text = {0};
    fl_error e = {0};
    char path[400];
    folder_make(&f);
    survey(YOUTU, &ck, &s);
    assert_int_equal(fl_survey_skeleton(&s, &text, &e), FL_OK);
    folder_write(&f, "new.lua", text.data, text.n);
    snprintf(path, sizeof path, "%s", folder_file(&f, "new.lua"));
    fl_model_options options = {.definition = path, .models_dir = f.path};
    model_open(&o, YOUTU, &options);
    assert_int_equal(fl_model_unknown(o.m), 0);
    assert_int_equal(fl_model_missing(o.m), 0);
    assert_string_equal(fl_model_layer_kind(o.m, 2), "not written");
    model_close(&o);
    options.layers = 1;
    model_open(&o, YOUTU, &options);
    assert_int_equal(fl_model_unknown(o.m), 0);
    model_close(&o);
    fl_vec_free(&text);
    fl_survey_free(&s);
    fl_checkpoint_close(ck);
    folder_remove(&f);
}

static void test_no_memory(void **state)
{
    (void)state;
    fl_checkpoint *ck;
    fl_error e = {0};
    assert_int_equal(fl_checkpoint_open(YOUTU, FL_OPEN_SURVEY, &ck, &e), FL_OK);
    int failures = 0;
    for (long i = 1; i < 400; i += 1 + i / 40) {
        fl_survey s;
        fl_buf text = {0};
        fl_mem_fail_at(i);
        fl_status status = fl_survey_open(ck, fl_ops_registry(), FL_MODELS, &s, &e);
        if (status == FL_OK)
            status = fl_survey_skeleton(&s, &text, &e);
        fl_mem_fail_at(0);
        if (status != FL_OK) {
            assert_int_equal(status, FL_NOMEM);
            failures++;
        }
        fl_vec_free(&text);
        fl_survey_free(&s);
    }
    assert_true(failures > 20);
    fl_checkpoint_close(ck);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_known),      cmocka_unit_test(test_shards),
        cmocka_unit_test(test_index_only), cmocka_unit_test(test_beginning),
        cmocka_unit_test(test_no_memory),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
