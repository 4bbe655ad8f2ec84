/* Whole models opened: the bundled one, the random ones of the family, the real Kimi K3 by its
 * names alone. */
#include "support/cmocka_all.h"

#include "support/model_support.h"

#include "ops/ops.h"

#include <stdio.h>
#include <string.h>

static void test_tiny(void **state)
{
    (void)state;
    opened o;
    model_open(&o, FL_TINY_MODEL, NULL);
    assert_string_equal(fl_model_family(o.m), "kimi_k3");
    assert_int_equal(fl_model_layers(o.m), 8);
    assert_string_equal(fl_model_layer_kind(o.m, 0), "kda + dense");
    assert_string_equal(fl_model_layer_kind(o.m, 1), "kda + experts");
    assert_string_equal(fl_model_layer_kind(o.m, 7), "mla + experts");
    assert_string_equal(fl_model_layer_kind(o.m, 8), "");
    assert_string_equal(fl_model_layer_kind(o.m, -1), "");
    assert_int_equal(fl_model_max_context(o.m), 1048576);
    assert_int_equal(fl_model_missing(o.m), 0);
    assert_int_equal(fl_model_unknown(o.m), 0);
    assert_string_equal(fl_model_unknown_name(o.m, 0), "");
    assert_string_equal(fl_model_missing_name(o.m, 0), "");
    assert_int_equal(fl_graph_vocab(fl_model_graph(o.m)), 4096);
    /* six KDA layers with three tails and a state, two with latents and index keys */
    assert_int_equal(fl_graph_states(fl_model_graph(o.m)), 6 * 4 + 2 * 2);
    model_close(&o);
    fl_model_close(NULL);
}

static void test_stop_ids(void **state)
{
    (void)state;
    opened o;
    size_t n;
    model_open(&o, FL_TINY_MODEL, NULL);
    const int32_t *ids = fl_model_stop_ids(o.m, &n);
    assert_int_equal(n, 2);
    assert_int_equal(ids[0], 3842); /* the files */
    assert_int_equal(ids[1], 3841); /* the definition: [EOS] */
    model_close(&o);

    folder f; /* no tokenizer, more than one id, one of them only in generation_config.json */
    model_links(&f, FL_TINY_MODEL);
    folder_text(&f, "tiktoken.model", "");
    folder_text(&f, "generation_config.json", "{\"eos_token_id\": [7, 3842, 7]}");
    model_open(&o, f.path, NULL);
    ids = fl_model_stop_ids(o.m, &n);
    assert_int_equal(n, 2);
    assert_int_equal(ids[0], 7);
    assert_int_equal(ids[1], 3842);
    model_close(&o);
    folder_remove(&f);
}

static void test_fewer_layers_and_dense(void **state)
{
    (void)state;
    opened whole, part, dense;
    model_open(&whole, FL_TINY_MODEL, NULL);
    model_open(&part, FL_TINY_MODEL, &(fl_model_options){.layers = 3});
    model_open(&dense, FL_TINY_MODEL, &(fl_model_options){.dense = true});
    assert_int_equal(fl_model_layers(part.m), 3);
    assert_int_equal(fl_model_unknown(part.m), 0);
    assert_int_equal(fl_graph_states(fl_model_graph(part.m)), 3 * 4);
    assert_int_equal(fl_model_layers(dense.m), 8);
    assert_int_equal(fl_model_unknown(dense.m), 0);
    assert_int_equal(fl_graph_states(fl_model_graph(dense.m)), 6 * 4 + 2);
    uint64_t a = fl_model_fingerprint(whole.m), b = fl_model_fingerprint(part.m),
             c = fl_model_fingerprint(dense.m);
    assert_true(a != b && b != c && a != c);
    model_close(&part);
    model_open(&part, FL_TINY_MODEL, &(fl_model_options){.layers = 8});
    assert_true(fl_model_fingerprint(part.m) == a);
    model_close(&part);
    model_open(&part, FL_TINY_MODEL, &(fl_model_options){.layers = 99});
    assert_int_equal(fl_model_layers(part.m), 8);
    model_close(&part);
    model_close(&whole);
    model_close(&dense);
}

static int64_t part_of(const fl_model *m, const char *name)
{
    for (size_t i = 0; i < fl_model_parts(m); i++) {
        fl_part p = fl_model_part(m, i);
        if (strcmp(p.name, name) == 0)
            return p.bytes;
    }
    return 0;
}

static int64_t total(const fl_model *m)
{
    int64_t n = 0;
    for (size_t i = 0; i < fl_model_parts(m); i++)
        n += fl_model_part(m, i).bytes;
    assert_string_equal(fl_model_part(m, fl_model_parts(m)).name, "");
    return n;
}

static void test_random_models(void **state)
{
    (void)state;
    static const struct {
        const char *dir;
        int layers, states;
        const char *first, *last;
        int64_t unused; /* bytes: self_attention_res of layer 0 */
    } cases[] = {
        {FL_TEST_DATA "/second", 6, 3 * 4 + 3 * 2, "kda + dense", "mla + experts", 2 * 2 * 48},
        {FL_TEST_DATA "/sharing", 7, 2 * 4 + 5 + 3, "kda + dense", "mla + experts", 2 * 2 * 40},
        {FL_TEST_DATA "/linear", 5, 3 * 4 + 2, "kda + dense", "mla + experts", 0},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        opened o;
        model_open(&o, cases[i].dir, NULL);
        assert_int_equal(fl_model_layers(o.m), cases[i].layers);
        assert_int_equal(fl_graph_states(fl_model_graph(o.m)), cases[i].states);
        assert_string_equal(fl_model_layer_kind(o.m, 0), cases[i].first);
        assert_string_equal(fl_model_layer_kind(o.m, cases[i].layers - 1), cases[i].last);
        assert_int_equal(fl_model_unknown(o.m), 0);
        assert_int_equal(total(o.m) + cases[i].unused, fl_checkpoint_bytes(o.ck));
        model_close(&o);
    }
}

static void test_sharing_as_a_list(void **state)
{
    (void)state;
    folder f;
    opened a, b;
    char path[400];
    model_open(&a, FL_TEST_DATA "/sharing", NULL);
    model_links(&f, FL_TEST_DATA "/sharing");
    snprintf(path, sizeof path, "%s", folder_file(&f, "config_indexer_types.json"));
    assert_int_equal(rename(path, folder_file(&f, "config.json")), 0);
    model_open(&b, f.path, NULL);
    const fl_graph *x = fl_model_graph(a.m), *y = fl_model_graph(b.m);
    assert_int_equal(fl_graph_nodes(x), fl_graph_nodes(y));
    for (int i = 0; i < fl_graph_nodes(x); i++) {
        assert_string_equal(fl_graph_node_label(x, i), fl_graph_node_label(y, i));
        assert_ptr_equal(fl_graph_node_view(x, i).op, fl_graph_node_view(y, i).op);
        assert_int_equal(fl_graph_node_view(x, i).n_in, fl_graph_node_view(y, i).n_in);
    }
    assert_true(fl_model_fingerprint(a.m) != fl_model_fingerprint(b.m)); /* another config.json */
    model_close(&a);
    model_close(&b);
    folder_remove(&f);
}

static void survey(opened *o, const char *path)
{
    fl_error e = {0};
    if (fl_checkpoint_open(path, FL_OPEN_SURVEY, &o->ck, &e) != FL_OK ||
        fl_model_open(o->ck, fl_ops_registry(), NULL, &o->m, &e) != FL_OK)
        fail_msg("%s", e.message);
}

/* Sizes as the published tensor index gives them. */
static void check_k3(const fl_model *m)
{
    assert_int_equal(fl_model_layers(m), 93);
    assert_string_equal(fl_model_layer_kind(m, 91), "mla + experts");
    assert_string_equal(fl_model_layer_kind(m, 92), "mla + experts");
    assert_int_equal(fl_graph_vocab(fl_model_graph(m)), 163840);
    assert_int_equal(fl_graph_states(fl_model_graph(m)), 69 * 4 + 24);
    assert_int_equal(fl_model_missing(m), 0);
    assert_int_equal(fl_model_unknown(m), 0);
    assert_int_equal(part_of(m, "embedding"), 2348810240);
    assert_int_equal(part_of(m, "experts"), 1446456066048);
    assert_int_equal(part_of(m, "mla"), 11145412608);
    assert_int_equal(part_of(m, "dense mlp"), 1453326336);
    assert_int_equal(part_of(m, "router"), 1182074880);
    assert_int_equal(part_of(m, "shared experts"), 24310185984);
    assert_int_equal(part_of(m, "latent"), 9453961216 + 92 * 2 * 3584);
    /* Without shapes A_log counts one number per head, not its padding to 128. */
    int64_t padding = 69 * 32 * 4, unused = 2 * 2 * 7168, vision = 894717952;
    assert_int_equal(part_of(m, "kda") + padding, 61258257408);
    assert_int_equal(part_of(m, "norms") + unused, 7999488);
    assert_int_equal(total(m) + padding + unused + vision, 1560860324864);
}

static void test_real_k3_by_its_names(void **state)
{
    (void)state;
    folder f;
    opened o;
    folder_make(&f);
    folder_kimi_k3(&f);
    survey(&o, f.path);
    check_k3(o.m);
    model_close(&o);
    folder_remove(&f);
}

static void test_real_k3_by_its_configuration(void **state)
{
    (void)state;
    opened o;
    survey(&o, FL_TEST_DATA "/kimi-k3/config.json");
    check_k3(o.m);
    model_close(&o);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_tiny),
        cmocka_unit_test(test_stop_ids),
        cmocka_unit_test(test_fewer_layers_and_dense),
        cmocka_unit_test(test_random_models),
        cmocka_unit_test(test_sharing_as_a_list),
        cmocka_unit_test(test_real_k3_by_its_names),
        cmocka_unit_test(test_real_k3_by_its_configuration),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
