/* Measured choices of kernels: what is written is read again and used, what is damaged or foreign
 * is refused, and a choice that cannot be had is passed over. */
#define _GNU_SOURCE
#include "support/cmocka_all.h"
#include "support/folder.h"
#include "support/open_model.h"

#include "base/file.h"
#include "engine/tuning.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static fl_engine_options options(void)
{
    fl_engine_options o = fl_engine_options_default();
    o.max_seqs = 1;
    o.threads = 1;
    o.max_context = 256;
    return o;
}

static void check_used(const opened *m, const fl_tuning *t)
{
    const fl_graph *g = fl_model_graph(m->model);
    int seen = 0;
    for (int i = 0; i < fl_graph_nodes(g); i++) {
        char signature[FL_SIGNATURE];
        const fl_kernel *k = fl_plan_kernel(fl_engine_plan(m->engine), i);
        const char *name = fl_choices_get(fl_tuning_choices(t), fl_node_signature(g, i, signature));
        if (!name)
            continue;
        assert_string_equal(k->name, name);
        seen++;
    }
    assert_true(seen > 100);
}

static void damage(const char *path, const char *from, const char *to)
{
    fl_buf b = {0};
    fl_error err;
    assert_int_equal(fl_file_read(path, 1 << 24, &b, &err), FL_OK);
    assert_true(fl_vec_push(&b, 0));
    char *at = strstr(b.data, from);
    assert_non_null(at);
    FILE *f = fopen(path, "wb");
    assert_non_null(f);
    fwrite(b.data, 1, (size_t)(at - b.data), f);
    fputs(to, f);
    fputs(at + strlen(from), f);
    fclose(f);
    fl_vec_free(&b);
}

static void test_measure_keep_use(void **state)
{
    (void)state;
    folder dir;
    char path[512], a[100], sub[128];
    fl_error err = {0};
    fl_engine_options o = options();
    opened m;
    fl_tuning *t, *again, *other;
    folder_make(&dir);
    snprintf(a, sizeof a, "%s/a", dir.path);
    snprintf(sub, sizeof sub, "%s/b", a);
    open_model(&m, FL_TINY_MODEL, &o);
    assert_int_equal(fl_tuning_load(m.model, &o, sub, &again, &err), FL_NOTFOUND);
    assert_int_equal(fl_tune(m.model, &o, 64, 2, NULL, NULL, &t, &err), FL_OK);
    assert_true(fl_tuning_nodes(t) > 10);
    for (int i = 0; i < fl_tuning_nodes(t); i++) {
        const fl_tuned_node *n = fl_tuning_node(t, i);
        assert_true(n->n_kernels > 1 && n->chosen < n->n_kernels && n->nodes > 0);
        for (int k = 0; k < n->n_kernels; k++)
            assert_true(n->kernels[k].prompt_us > 0 && n->kernels[k].step_us > 0);
    }
    assert_int_equal(fl_tuning_save(t, sub, path, &err), FL_OK);
    assert_int_equal(fl_tuning_load(m.model, &o, sub, &again, &err), FL_OK);
    assert_string_equal(fl_tuning_key(again), fl_tuning_key(t));
    close_model(&m);
    o.choices = fl_tuning_choices(again);
    open_model(&m, FL_TINY_MODEL, &o);
    check_used(&m, t);

    /* Other options are another key; a file that says something else is refused. */
    o.fast = true;
    assert_int_equal(fl_tuning_load(m.model, &o, sub, &other, &err), FL_NOTFOUND);
    o.fast = false;
    damage(path, "1 threads", "2 threads");
    assert_int_equal(fl_tuning_load(m.model, &o, sub, &other, &err), FL_FORMAT);
    assert_non_null(strstr(err.message, "run tune again"));
    damage(path, "2 threads", "1 threads");
    damage(path, "\"chosen\": \"", "\"chosen\": \"no-");
    assert_int_equal(fl_tuning_load(m.model, &o, sub, &other, &err), FL_FORMAT);
    damage(path, "{\"format\"", "[");
    assert_int_equal(fl_tuning_load(m.model, &o, sub, &other, &err), FL_FORMAT);
    fl_tuning_destroy(again);
    fl_tuning_destroy(t);
    close_model(&m);
    assert_int_equal(unlink(path) | rmdir(sub) | rmdir(a), 0); /* and nothing else was left there */
    folder_remove(&dir);
}

static void test_passed_over(void **state)
{
    (void)state;
    fl_engine_options o = options();
    opened m, plain;
    fl_choices *c;
    fl_error err;
    open_model(&plain, FL_TINY_MODEL, &o);
    const fl_graph *g = fl_model_graph(plain.model);
    assert_int_equal(fl_choices_create(&c, &err), FL_OK);
    for (int i = 0; i < fl_graph_nodes(g); i++) {
        char signature[FL_SIGNATURE];
        fl_node_signature(g, i, signature);
        assert_int_equal(fl_choices_set(c, signature, "wide", &err), FL_OK);
        assert_int_equal(fl_choices_set(c, signature, "no-such-kernel", &err), FL_OK);
        assert_string_equal(fl_choices_get(c, signature), "no-such-kernel");
    }
    assert_null(fl_choices_get(c, "linear()"));
    o.choices = c;
    open_model(&m, FL_TINY_MODEL, &o);
    for (int i = 0; i < fl_graph_nodes(g); i++)
        assert_ptr_equal(fl_plan_kernel(fl_engine_plan(m.engine), i),
                         fl_plan_kernel(fl_engine_plan(plain.engine), i));
    close_model(&m);
    close_model(&plain);
    fl_choices_destroy(c);
}

static void test_no_memory(void **state)
{
    (void)state;
    fl_engine_options o = options();
    opened m;
    fl_error err;
    open_model(&m, FL_TINY_MODEL, &o);
    fl_status s = FL_NOMEM;
    for (long n = 1; s == FL_NOMEM && n < 60;
         n++) { /* the first allocations; engines test theirs */
        fl_tuning *t = NULL;
        fl_mem_fail_at(n);
        s = fl_tune(m.model, &o, 1, 1, NULL, NULL, &t, &err);
        fl_mem_fail_at(0);
        assert_true(s == FL_OK || (s == FL_NOMEM && !t));
        fl_tuning_destroy(t);
    }
    close_model(&m);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_measure_keep_use),
        cmocka_unit_test(test_passed_over),
        cmocka_unit_test(test_no_memory),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
