/* Caches of every form with a real model: the promises that test_invariance.c holds for float32
 * ones, bit for bit: company, threads, cutting, forks, snapshots, files, prefixes on disk.  And
 * what one form has saved another refuses, with the reason. */
#define _GNU_SOURCE
#include "base/mem.h"
#include "support/cmocka_all.h"
#include "support/collect.h"
#include "support/open_model.h"

#include <dirent.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* Beyond the 128 positions that the selector keeps, and a head on the grid. */
enum { VOCAB = 4096, PROMPT = 210, GRID = 128, ANSWER = 8 };

static const fl_kv FORMS[] = {FL_KV_BF16, FL_KV_FP8, FL_KV_INT8};
enum { N_FORMS = 3 };

static int32_t text[2][PROMPT];
static char dir[64], file[80];

static int setup(void **state)
{
    (void)state;
    draw_text(7, text[0], 2 * PROMPT);
    snprintf(dir, sizeof dir, "/tmp/fl-kv-XXXXXX");
    if (!mkdtemp(dir))
        return -1;
    snprintf(file, sizeof file, "%s/saved", dir);
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    DIR *d = opendir(dir);
    for (struct dirent *f; d && (f = readdir(d));) {
        char path[400];
        snprintf(path, sizeof path, "%s/%s", dir, f->d_name);
        unlink(path);
    }
    if (d)
        closedir(d);
    return rmdir(dir);
}

static fl_engine_options options(int threads, int chunk)
{
    fl_engine_options o = fl_engine_options_default();
    o.threads = threads;
    o.chunk = chunk;
    o.max_context = 512;
    o.max_snapshots = 2;
    return o;
}

/* Submits rows [from, to) of a text and then generates. */
static void give(fl_engine *e, int which, int64_t from, int64_t to, fl_seq seq, bool keep,
                 bool rows, collector *c)
{
    fl_request_params p = fl_request_params_default();
    p.prompt = text[which] + from;
    p.n_prompt = to - from;
    p.max_tokens = to == PROMPT ? ANSWER : 0;
    p.sampling.n_top = 0;
    p.keep_from = seq;
    p.keep = keep;
    collect(c, &p, rows ? VOCAB : 0);
    submit(e, &p);
}

static void same_and_free(collector *c, const collector *want)
{
    assert_same(c, want);
    collector_free(c);
}

/* Alone on one thread, and beside another text on two with larger chunks. */
static void test_company_threads_and_cutting(void **state)
{
    (void)state;
    for (int f = 0; f < N_FORMS; f++) {
        opened m;
        collector base, c, other;
        fl_engine_options one = options(1, 64), two = options(2, 256);
        open_model_kv(&m, FL_TINY_MODEL, FORMS[f], &one);
        give(m.engine, 0, 0, PROMPT, FL_NONE, false, true, &base);
        run_all(m.engine);
        assert_int_equal(base.n_rows, PROMPT);
        close_model(&m);
        open_model_kv(&m, FL_TINY_MODEL, FORMS[f], &two);
        give(m.engine, 1, 0, PROMPT, FL_NONE, false, false, &other);
        give(m.engine, 0, 0, PROMPT, FL_NONE, false, true, &c);
        run_all(m.engine);
        same_and_free(&c, &base);
        collector_free(&other);
        collector_free(&base);
        close_model(&m);
    }
}

/* The forms differ from each other, and none by much. */
static void test_forms_are_near(void **state)
{
    (void)state;
    collector exact, c[N_FORMS];
    fl_engine_options o = options(2, 256);
    for (int f = -1; f < N_FORMS; f++) {
        opened m;
        open_model_kv(&m, FL_TINY_MODEL, f < 0 ? FL_KV_F32 : FORMS[f], &o);
        give(m.engine, 0, 0, PROMPT, FL_NONE, false, true, f < 0 ? &exact : &c[f]);
        run_all(m.engine);
        close_model(&m);
    }
    for (int f = 0; f < N_FORMS; f++) {
        double off = 0, size = 0;
        assert_int_equal(c[f].rows.n, exact.rows.n);
        for (size_t i = 0; i < exact.rows.n; i++) {
            off += pow(c[f].rows.data[i] - exact.rows.data[i], 2);
            size += pow(exact.rows.data[i], 2);
        }
        print_message("form %d: logits off by %.2e of their size\n", FORMS[f], sqrt(off / size));
        assert_true(off > 0 && sqrt(off / size) < 0.2);
    }
    assert_true(memcmp(c[1].rows.data, c[2].rows.data, c[1].rows.n * sizeof(float)) != 0);
    for (int f = 0; f < N_FORMS; f++)
        collector_free(&c[f]);
    collector_free(&exact);
}

/* A head that is kept, forked, rolled back, saved and loaded goes on as if run in one piece. */
static void test_kept_sequences(void **state)
{
    (void)state;
    for (int f = 0; f < N_FORMS; f++) {
        opened m, again;
        collector whole, head, c[4];
        fl_engine_options o = options(2, 64);
        fl_error err;
        open_model_kv(&m, FL_TINY_MODEL, FORMS[f], &o);
        fl_state *st = fl_engine_state(m.engine);
        uint64_t print = fl_model_fingerprint(m.model);
        give(m.engine, 0, 0, PROMPT, FL_NONE, false, false, &whole);
        give(m.engine, 0, 0, GRID, FL_NONE, true, false, &head);
        run_all(m.engine);
        fl_seq twin;
        fl_snap snap;
        if (fl_state_save(st, head.kept, print, text[0], file, &err) != FL_OK)
            fail_msg("%s", err.message);
        assert_int_equal(fl_state_snapshot(st, head.kept, &snap, NULL), FL_OK);
        assert_int_equal(fl_state_fork(st, head.kept, &twin, NULL), FL_OK);
        give(m.engine, 0, GRID, PROMPT, head.kept, true, false, &c[0]);
        give(m.engine, 0, GRID, PROMPT, twin, false, false, &c[1]);
        run_all(m.engine);
        int64_t pos;
        assert_int_equal(fl_state_rollback(st, c[0].kept, ANSWER, &pos, NULL), FL_OK);
        assert_int_equal(pos, GRID);
        give(m.engine, 0, GRID, PROMPT, c[0].kept, false, false, &c[2]);
        run_all(m.engine);
        close_model(&m);

        open_model_kv(&again, FL_TINY_MODEL, FORMS[f], &o);
        fl_seq seq;
        int32_t *ids;
        int64_t n;
        if (fl_state_load(fl_engine_state(again.engine), file, print, &seq, &ids, &n, &err) !=
            FL_OK)
            fail_msg("%s", err.message);
        fl_free(ids);
        give(again.engine, 0, GRID, PROMPT, seq, false, false, &c[3]);
        run_all(again.engine);
        close_model(&again);
        for (int i = 0; i < 4; i++)
            same_and_free(&c[i], &whole);
        collector_free(&head);
        collector_free(&whole);

        /* Every other form refuses the file. */
        for (int g = 0; g < N_FORMS; g++) {
            fl_kv other = g == f ? FL_KV_F32 : FORMS[g];
            open_model_kv(&again, FL_TINY_MODEL, other, &o);
            uint64_t theirs = fl_model_fingerprint(again.model);
            assert_true(theirs != print);
            assert_int_equal(
                fl_state_load(fl_engine_state(again.engine), file, theirs, &seq, &ids, &n, &err),
                FL_MISMATCH);
            assert_non_null(strstr(err.message, "the cache was kept as "));
            close_model(&again);
        }
    }
}

static char last_note[sizeof(((fl_error *)0)->message)];

static void on_note(void *ctx, const char *message)
{
    (void)ctx;
    snprintf(last_note, sizeof last_note, "%s", message);
}

static void test_prefixes_on_disk(void **state)
{
    (void)state;
    collector c[3];
    int64_t found[3];
    const fl_kv forms[3] = {FL_KV_INT8, FL_KV_INT8, FL_KV_BF16};
    unlink(file);
    for (int i = 0; i < 3; i++) {
        opened m;
        fl_request *r;
        fl_engine_options o = options(2, 128);
        o.max_prefixes = 4;
        o.prefix_dir = dir;
        o.note = on_note;
        open_model_kv(&m, FL_TINY_MODEL, forms[i], &o);
        fl_request_params p = fl_request_params_default();
        p.prompt = text[1];
        p.n_prompt = PROMPT;
        p.max_tokens = ANSWER;
        p.sampling.n_top = 0;
        p.salt = 5;
        collect(&c[i], &p, 0);
        assert_int_equal(fl_engine_submit(m.engine, &p, &r, NULL), FL_OK);
        found[i] = fl_request_cached(r);
        run_all(m.engine);
        close_model(&m);
        if (i == 1)
            assert_string_equal(last_note, "");
    }
    assert_int_equal(found[0], 0);
    assert_int_equal(found[1], 192);
    assert_int_equal(found[2], 0);
    assert_non_null(strstr(last_note, "the cache was kept as "));
    assert_same(&c[1], &c[0]);
    for (int i = 0; i < 3; i++)
        collector_free(&c[i]);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_company_threads_and_cutting),
        cmocka_unit_test(test_forms_are_near),
        cmocka_unit_test(test_kept_sequences),
        cmocka_unit_test(test_prefixes_on_disk),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
