/* End to end against the reference: every golden file of every model, and the greedy answers. */
#define _GNU_SOURCE
#include "support/cmocka_all.h"
#include "support/collect.h"
#include "support/golden.h"
#include "support/open_model.h"

#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

static void check_model(const char *dir, const char *golden_dir, const char *const *names, int n)
{
    fl_engine_options o = fl_engine_options_default();
    opened m;
    o.max_seqs = 1;
    open_model(&m, dir, &o);
    for (int i = 0; i < n; i++) {
        char path[512];
        snprintf(path, sizeof path, "%s/%s.safetensors", golden_dir, names[i]);
        golden_check(m.engine, path, GOLDEN_WHOLE);
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
