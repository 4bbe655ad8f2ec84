/* The base room: failure text, arenas, maps, vectors, the pool. */
#define _GNU_SOURCE
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "base/arena.h"
#include "base/file.h"
#include "base/mem.h"
#include "base/nodes.h"
#include "base/pool.h"
#include "base/status.h"
#include "base/strmap.h"
#include "base/vec.h"

#include <glob.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static void test_error_prefix(void **state)
{
    (void)state;
    fl_error e;
    assert_int_equal(fl_fail(&e, FL_IO, "tail %d", 7), FL_IO);
    fl_error_prefix(&e, "head");
    assert_string_equal(e.message, "head: tail 7");
    char big[2000];
    memset(big, 'x', sizeof big - 1);
    big[sizeof big - 1] = 0;
    fl_error_prefix(&e, "%s", big);
    assert_int_equal(strlen(e.message), sizeof e.message - 1);
    assert_int_equal(fl_fail(NULL, FL_NOMEM, "no place"), FL_NOMEM);
    assert_string_equal(fl_status_text(FL_FORMAT), "malformed input");
    assert_string_equal(fl_status_text((fl_status)999), "unknown status");
}

static void test_error_is_printable(void **state)
{
    (void)state;
    fl_error e;
    fl_fail(&e, FL_IO, "a\x1b[2J\x7f\xc2\x9b\xff b\n\xc3\xa9 \xe2\x82\xac %.1s", "\xc3\xa9");
    assert_string_equal(e.message, "a?[2J???? b\n\xc3\xa9 \xe2\x82\xac ?");
    char big[2000];
    for (size_t i = 0; i + 1 < sizeof big; i += 2)
        memcpy(big + i, "\xc3\xa9", 2);
    big[1998] = 0;
    fl_fail(&e, FL_IO, "x%s", big); /* room for 495: the last character is cut in half */
    assert_int_equal(strlen(e.message), sizeof e.message - 1);
    assert_memory_equal(e.message + 491, "\xc3\xa9\xc3\xa9", 4);
    fl_fail(&e, FL_IO, "%s", big);
    assert_string_equal(e.message + 492, "\xc3\xa9?");
    fl_error_prefix(&e, "\x1b");
    assert_memory_equal(e.message, "?: \xc3\xa9", 5);
}

static void test_arena(void **state)
{
    (void)state;
    fl_arena a = {0};
    char *small = fl_arena_printf(&a, "%s-%d", "layer", 12);
    char *big = fl_arena_alloc(&a, 1 << 20);
    assert_non_null(big);
    memset(big, 1, 1 << 20);
    assert_string_equal(small, "layer-12");
    assert_null(fl_arena_array(&a, SIZE_MAX / 2, 4));
    fl_arena_free(&a);
}

static void test_strmap(void **state)
{
    (void)state;
    static char keys[5000][16];
    fl_strmap m = {0};
    for (uint32_t i = 0; i < 5000; i++) {
        int len = snprintf(keys[i], sizeof keys[i], "k%u", i * 7);
        assert_true(fl_strmap_put(&m, keys[i], (size_t)len, i, NULL));
    }
    bool existing;
    uint32_t v;
    assert_true(fl_strmap_put(&m, "k7", 2, 99, &existing));
    assert_true(existing);
    for (uint32_t i = 0; i < 5000; i++) {
        assert_true(fl_strmap_get(&m, keys[i], strlen(keys[i]), &v));
        assert_int_equal(v, i);
    }
    assert_false(fl_strmap_get(&m, "k1", 2, &v));
    fl_strmap_free(&m);
}

static void test_vec_survives_failure(void **state)
{
    (void)state;
    FL_VEC(int) v = {0};
    for (int i = 0; i < 8; i++)
        assert_true(fl_vec_push(&v, i));
    fl_mem_fail_at(1);
    assert_false(fl_vec_push(&v, 8));
    fl_mem_fail_at(0);
    assert_int_equal(v.n, 8);
    assert_int_equal(v.data[7], 7);
    fl_vec_free(&v);
}

typedef struct region {
    fl_pool *pool;
    atomic_int seen[8];
    atomic_int late;
} region;

static void region_task(void *ctx, int thread, int n_threads)
{
    region *r = ctx;
    for (int round = 0; round < 50; round++) {
        atomic_fetch_add(&r->seen[thread], 1);
        fl_pool_barrier(r->pool);
        for (int i = 0; i < n_threads; i++) {
            if (atomic_load(&r->seen[i]) < round + 1)
                atomic_fetch_add(&r->late, 1);
        }
        fl_pool_barrier(r->pool);
    }
}

static void test_pool(void **state)
{
    (void)state;
    for (int n = 1; n <= 4; n++) {
        region r = {0};
        assert_int_equal(fl_pool_create(n, &r.pool, NULL), FL_OK);
        for (int k = 0; k < 20; k++)
            fl_pool_run(r.pool, region_task, &r);
        for (int i = 0; i < n; i++)
            assert_int_equal(atomic_load(&r.seen[i]), 1000);
        assert_int_equal(atomic_load(&r.late), 0);
        fl_pool_destroy(r.pool);
    }
    fl_error e;
    fl_pool *none;
    assert_int_equal(fl_pool_create(0, &none, &e), FL_ARGUMENT);
}

static void test_split_covers(void **state)
{
    (void)state;
    for (int64_t n = 0; n < 70; n++) {
        for (int grain = 1; grain < 9; grain++) {
            int64_t at = 0, b, e;
            for (int t = 0; t < 3; t++) {
                fl_split(n, grain, t, 3, &b, &e);
                assert_int_equal(b, at);
                assert_true(e >= b && (e == n || e % grain == 0));
                at = e;
            }
            assert_int_equal(at, n);
        }
    }
}

static void test_file(void **state)
{
    (void)state;
    fl_buf b = {0};
    fl_error e;
    assert_true(fl_vec_append(&b, "head", 4));
    assert_int_equal(fl_file_read("/nonexistent/file", 10, &b, &e), FL_NOTFOUND);
    assert_int_equal(fl_file_read(FL_TEST_DATA, 10, &b, &e), FL_IO);
    const char *path = FL_TINY_MODEL "/generation_config.json";
    assert_int_equal(fl_file_read(path, 10, &b, &e), FL_FORMAT);
    assert_non_null(strstr(e.message, "generation_config.json: has 86 bytes"));
    fl_mem_fail_at(1);
    assert_int_equal(fl_file_read(path, 86, &b, &e), FL_NOMEM);
    fl_mem_fail_at(0);
    assert_int_equal(b.n, 4);
    assert_int_equal(fl_file_read(path, 86, &b, &e), FL_OK);
    assert_int_equal(b.n, 90);
    assert_memory_equal(b.data, "head{", 5);
    assert_int_equal(b.data[89], '}');
    /* A device has no size: read until the limit. */
    assert_int_equal(fl_file_read("/dev/zero", 200000, &b, &e), FL_FORMAT);
    assert_int_equal(b.n, 90);
    fl_vec_free(&b);
}

/* Whole or not at all: what a failure leaves is the old file, and nothing beside it. */
static void test_file_write(void **state)
{
    (void)state;
    char root[] = "/tmp/fl-file-XXXXXX", path[64], many[80];
    fl_buf b = {0};
    fl_error e;
    fl_new_file f;
    glob_t left;
    assert_non_null(mkdtemp(root));
    snprintf(path, sizeof path, "%s/file", root);
    snprintf(many, sizeof many, "%s/*", root);
    assert_int_equal(fl_file_write(path, 0600, "old", 3, &e), FL_OK);
    assert_int_equal(fl_new_file_begin(path, 0600, &f, &e), FL_OK);
    assert_int_equal(fl_new_file_write(&f, "new", 3, &e), FL_OK);
    assert_int_equal(fl_new_file_end(&f, FL_DEVICE, &e), FL_DEVICE);
    for (int k = 1; k <= 2; k++) {
        fl_mem_fail_at(k);
        assert_int_equal(fl_file_write(path, 0600, "new", 3, &e), FL_NOMEM);
    }
    fl_mem_fail_at(0);
    assert_int_equal(glob(many, 0, NULL, &left), 0);
    assert_int_equal(left.gl_pathc, 1);
    globfree(&left);
    assert_int_equal(fl_file_read(path, 9, &b, &e), FL_OK);
    assert_memory_equal(b.data, "old", 3);
    assert_int_equal(fl_file_write(path, 0600, "newer", 5, &e), FL_OK);
    b.n = 0;
    assert_int_equal(fl_file_read(path, 9, &b, &e), FL_OK);
    assert_int_equal(b.n, 5);
    fl_vec_free(&b);
    unlink(path);

    /* What cannot be written says which file, and leaves none: no folder to write to, a folder of
     * this name. */
    assert_int_equal(fl_file_write("/nonexistent/file", 0600, "x", 1, &e), FL_IO);
    assert_non_null(strstr(e.message, "/nonexistent/file"));
    assert_int_equal(mkdir(path, 0700), 0);
    assert_int_equal(fl_file_write(path, 0600, "x", 1, &e), FL_IO);
    assert_int_equal(rmdir(path), 0);
    assert_int_equal(rmdir(root), 0);
}

static void write_file(const char *root, const char *name, const char *text)
{
    char path[256];
    snprintf(path, sizeof path, "%s/%s", root, name);
    assert_int_equal(fl_file_write(path, 0600, text, strlen(text), NULL), FL_OK);
}

static void test_nodes(void **state)
{
    (void)state;
    static const char *const names[] = {"online", "node0/cpulist", "node1/cpulist",
                                        "node2/cpulist"};
    char root[] = "/tmp/fl-nodes-XXXXXX", path[256];
    unsigned char allowed[FL_MAX_CPUS] = {0};
    int cpus[8];
    assert_non_null(mkdtemp(root));
    assert_int_equal(fl_nodes_spread(root, allowed, 1, cpus), 0); /* not described */
    for (int i = 0; i < 3; i++) {
        snprintf(path, sizeof path, "%s/node%d", root, i);
        assert_int_equal(mkdir(path, 0700), 0);
    }
    write_file(root, names[0], "0-2\n");
    write_file(root, names[1], "0-3\n");
    write_file(root, names[2], "\n"); /* memory without processors */
    write_file(root, names[3], "4-6,9\n");
    memset(allowed, 1, 10);
    assert_int_equal(fl_nodes_spread(root, allowed, 4, cpus), 2);
    assert_memory_equal(cpus, ((int[]){0, 1, 4, 5}), 4 * sizeof *cpus);
    assert_int_equal(fl_nodes_spread(root, allowed, 8, cpus), 2);
    assert_memory_equal(cpus, ((int[]){0, 1, 2, 3, 4, 5, 6, 9}), 8 * sizeof *cpus);
    allowed[1] = allowed[2] = allowed[3] = 0; /* an equal share does not fit node 0 */
    assert_int_equal(fl_nodes_spread(root, allowed, 5, cpus), 2);
    assert_memory_equal(cpus, ((int[]){0, 4, 5, 6, 9}), 5 * sizeof *cpus);
    assert_int_equal(fl_nodes_spread(root, allowed, 6, cpus), 0); /* more than there are */
    allowed[0] = 0;
    assert_int_equal(fl_nodes_spread(root, allowed, 2, cpus), 1);
    write_file(root, names[1], "0-x\n");
    assert_int_equal(fl_nodes_spread(root, allowed, 2, cpus), 0);
    for (int i = 3; i >= 0; i--) {
        snprintf(path, sizeof path, "%s/%s", root, names[i]);
        assert_int_equal(unlink(path), 0);
        snprintf(path, sizeof path, "%s/node%d", root, i);
        rmdir(path); /* there is one less than there are files */
    }
    assert_int_equal(rmdir(root), 0);
}

static void test_large(void **state)
{
    (void)state;
    for (size_t bytes = 1; bytes < (64u << 20); bytes = bytes * 5 + 3) {
        void *raw;
        unsigned char *p = fl_alloc_large(bytes, &raw);
        assert_non_null(p);
        assert_int_equal((uintptr_t)p % FL_CACHE_LINE, 0);
        assert_true(p[0] == 0 && p[bytes / 2] == 0 && p[bytes - 1] == 0);
        memset(p, 1, bytes);
        fl_free(raw);
    }
    void *raw;
    assert_null(fl_alloc_large(SIZE_MAX, &raw));
    assert_null(raw);
    fl_mem_fail_at(1);
    assert_null(fl_alloc_large(100, &raw));
    fl_mem_fail_at(0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_error_prefix),
        cmocka_unit_test(test_error_is_printable),
        cmocka_unit_test(test_arena),
        cmocka_unit_test(test_strmap),
        cmocka_unit_test(test_vec_survives_failure),
        cmocka_unit_test(test_nodes),
        cmocka_unit_test(test_large),
        cmocka_unit_test(test_pool),
        cmocka_unit_test(test_split_covers),
        cmocka_unit_test(test_file),
        cmocka_unit_test(test_file_write),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
