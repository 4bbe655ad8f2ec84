/* The state room: random operations against a naive model, exhaustion, damaged files, failures of
 * allocation. */
#define _GNU_SOURCE
#include "base/mem.h"
#include "state/state_internal.h"
#include "support/cmocka_all.h"
#include "support/rng.h"
#include "support/state_support.h"

#include <glob.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static char dir[64], file[96];

static int make_dir(void **state)
{
    (void)state;
    snprintf(dir, sizeof dir, "/tmp/fl-state-XXXXXX");
    assert_non_null(mkdtemp(dir));
    snprintf(file, sizeof file, "%s/seq", dir);
    return 0;
}

static int drop_dir(void **state)
{
    (void)state;
    unlink(file);
    return rmdir(dir);
}

static rng dice;

static uint32_t rnd(uint32_t n)
{
    return (uint32_t)rng_int(&dice, 0, (int64_t)n - 1);
}

/* ---- the naive model: a sequence is the array of values written, its record a hash of them ----
 */

enum { SEQS = 6, SNAPS = 5, CONTEXT = 700, TOKENS = 1500 };

typedef struct naive {
    bool live;
    int64_t pos;
    float value[CONTEXT];
    int64_t snap_pos[SNAPS]; /* by snapshot id; -1: not ours */
} naive;

static void check_seq(const fl_state *st, fl_seq seq, const naive *m)
{
    assert_int_equal(fl_state_pos(st, seq), m->live ? m->pos : -1);
    if (m->live)
        state_check(st, seq, m->value, m->pos);
}

/* Reference counts are exactly the table entries that name a page, the rest is free. */
static void check_pages(const fl_state *st)
{
    int32_t *count = calloc((size_t)st->n_pages, sizeof *count), used = 0;
    for (int s = 0; s < st->limits.n_seqs; s++) {
        for (int i = 0; st->seqs[s].live && i < st->seqs[s].n_pages; i++)
            used += count[st->seqs[s].pages[i]]++ == 0;
    }
    assert_memory_equal(count, st->refs, (size_t)st->n_pages * sizeof *count);
    assert_int_equal(st->n_free, st->n_pages - used);
    for (int i = 0; i < st->n_free; i++)
        assert_int_equal(count[st->free_pages[i]]++, 0); /* free, and once only */
    free(count);
}

static void do_write(fl_state *st, fl_seq s, naive *m)
{
    int64_t n = 1 + rnd(rnd(2) ? 3 : 150);
    int64_t free_before = fl_state_free_tokens(st);
    fl_error e;
    fl_status status = fl_state_extend(st, s, n, &e);
    if (n > CONTEXT - m->pos) {
        assert_int_equal(status, FL_ARGUMENT);
        return;
    }
    if (status != FL_OK) {
        assert_int_equal(status, FL_BUSY);
        assert_int_equal(fl_state_free_tokens(st), free_before);
        return;
    }
    int64_t now = 1 + rnd((uint32_t)n); /* reserved is not written */
    for (int64_t i = 0; i < now; i++)
        m->value[m->pos + i] = (float)rnd(10000);
    state_write(st, s, &m->value[m->pos], now);
    m->pos += now;
    if (rnd(2))
        fl_state_trim(st, s);
}

static void do_fork(fl_state *st, fl_seq s, naive *models)
{
    fl_seq copy;
    fl_status status = fl_state_fork(st, s, &copy, NULL);
    if (fl_state_free_seqs(st) == 0 && status == FL_BUSY)
        return;
    assert_int_equal(status, FL_OK);
    assert_false(models[copy].live);
    models[copy] = models[s];
    for (int k = 0; k < SNAPS; k++)
        models[copy].snap_pos[k] = -1;
}

static void do_rollback(fl_state *st, fl_seq s, naive *m)
{
    int64_t n = rnd((uint32_t)m->pos + 1), pos, expect = 0;
    assert_int_equal(fl_state_rollback(st, s, m->pos + 1, &pos, NULL), FL_ARGUMENT);
    for (int k = 0; k < SNAPS; k++) {
        if (m->snap_pos[k] > m->pos - n)
            m->snap_pos[k] = -1;
        else if (m->snap_pos[k] > expect)
            expect = m->snap_pos[k];
    }
    assert_int_equal(fl_state_rollback(st, s, n, &pos, NULL), FL_OK);
    assert_int_equal(pos, expect);
    m->pos = pos;
}

static void do_snapshot(fl_state *st, fl_seq s, naive *models)
{
    bool used[SNAPS] = {false};
    int n_used = 0;
    for (int i = 0; i < SEQS; i++) {
        for (int k = 0; k < SNAPS; k++) {
            if (models[i].live && models[i].snap_pos[k] >= 0)
                used[k] = true, n_used++;
        }
    }
    fl_snap k;
    fl_status status = fl_state_snapshot(st, s, &k, NULL);
    assert_int_equal(status, n_used == SNAPS ? FL_BUSY : FL_OK);
    if (status == FL_OK) {
        assert_false(used[k]);
        models[s].snap_pos[k] = models[s].pos;
    } else {
        for (k = 0; models[s].snap_pos[k] < 0 && k < SNAPS - 1; k++)
            ;
        if (models[s].snap_pos[k] >= 0)
            fl_state_snapshot_free(st, k);
        models[s].snap_pos[k] = -1;
    }
}

static void do_file(fl_state *st, fl_seq s, naive *models)
{
    int32_t ids[CONTEXT], *back;
    int64_t n;
    fl_seq copy;
    for (int i = 0; i < CONTEXT; i++)
        ids[i] = (int32_t)models[s].value[i];
    if (models[s].pos == 0) {
        assert_int_equal(fl_state_save(st, s, 7, ids, file, NULL), FL_ARGUMENT);
        return;
    }
    int64_t free_before = fl_state_free_tokens(st);
    int32_t seqs_before = fl_state_free_seqs(st);
    assert_int_equal(fl_state_save(st, s, 7, ids, file, NULL), FL_OK);
    fl_status status = fl_state_load(st, file, 7, &copy, &back, &n, NULL);
    if (status == FL_BUSY) {
        assert_true(seqs_before == 0 || free_before < models[s].pos);
        assert_int_equal(fl_state_free_tokens(st), free_before);
        assert_int_equal(fl_state_free_seqs(st), seqs_before);
        return;
    }
    assert_int_equal(status, FL_OK);
    assert_int_equal(n, models[s].pos);
    assert_memory_equal(back, ids, (size_t)n * sizeof *ids);
    fl_free(back);
    models[copy] = models[s];
    for (int k = 0; k < SNAPS; k++)
        models[copy].snap_pos[k] = -1;
}

static void run_random(uint32_t seed)
{
    dice = (rng){seed};
    fl_state *st = state_make(SEQS, SNAPS, TOKENS, CONTEXT);
    naive *models = calloc(SEQS, sizeof *models);
    for (int i = 0; i < 300; i++) {
        fl_seq s = (fl_seq)rnd(SEQS);
        naive *m = &models[s];
        if (!m->live) {
            fl_seq got;
            assert_int_equal(fl_state_admit(st, &got, NULL), FL_OK);
            m = &models[got];
            assert_false(m->live);
            m->live = true;
            m->pos = 0;
            for (int k = 0; k < SNAPS; k++)
                m->snap_pos[k] = -1;
            check_seq(st, got, m); /* a recycled record must be zero */
            continue;
        }
        uint32_t what = rnd(20);
        if (what < 9) {
            do_write(st, s, m);
        } else if (what < 12) {
            do_fork(st, s, models);
        } else if (what < 14) {
            do_rollback(st, s, m);
        } else if (what < 17) {
            do_snapshot(st, s, models);
        } else if (what < 18) {
            do_file(st, s, models);
        } else {
            fl_state_release(st, s);
            m->live = false;
        }
        for (int k = 0; k < SEQS; k++)
            check_seq(st, k, &models[k]);
        check_pages(st);
    }
    for (int k = 0; k < SEQS; k++)
        fl_state_release(st, k);
    check_pages(st);
    assert_int_equal(st->n_free, st->n_pages);
    for (int p = 0; p < st->n_pages; p++)
        assert_int_equal(st->refs[p], 0);
    free(models);
    fl_state_destroy(st);
}

static void test_random_operations(void **state)
{
    (void)state;
    for (uint32_t seed = 1; seed <= 60; seed++) {
        print_message("seed %u\n", seed);
        run_random(seed);
    }
}

static void test_exhaustion(void **state)
{
    (void)state;
    fl_state *st = state_make(3, 1, 130, 1000); /* three pages */
    fl_seq a, b, c, d;
    fl_error e;
    assert_int_equal(fl_state_free_tokens(st), 192);
    assert_int_equal(fl_state_admit(st, &a, &e), FL_OK);
    assert_int_equal(fl_state_admit(st, &b, &e), FL_OK);
    assert_int_equal(fl_state_extend(st, a, 100, &e), FL_OK);
    assert_int_equal(fl_state_extend(st, b, 65, &e), FL_BUSY);
    assert_int_equal(fl_state_free_tokens(st), 64);
    assert_int_equal(fl_state_extend(st, b, 64, &e), FL_OK);
    assert_int_equal(fl_state_extend(st, a, 128, &e), FL_OK);
    assert_int_equal(fl_state_extend(st, a, 1001, &e), FL_ARGUMENT);
    assert_int_equal(fl_state_extend(st, a, -1, &e), FL_ARGUMENT);
    fl_state_advance(st, a, 100);

    /* A fork costs nothing until one of the two writes; then it needs the page it shares. */
    assert_int_equal(fl_state_fork(st, a, &c, &e), FL_OK);
    assert_int_equal(fl_state_admit(st, &d, &e), FL_BUSY);
    assert_int_equal(d, FL_NONE);
    assert_int_equal(fl_state_extend(st, c, 1, &e), FL_BUSY);
    fl_state_release(st, b);
    assert_int_equal(fl_state_extend(st, c, 1, &e), FL_OK);
    assert_int_equal(fl_state_free_tokens(st), 0);
    assert_int_equal(fl_state_extend(st, a, 28, &e), FL_OK); /* alone again: nothing to copy */

    fl_snap s;
    assert_int_equal(fl_state_snapshot(st, a, &s, &e), FL_OK);
    assert_int_equal(fl_state_snapshot(st, c, &s, &e), FL_BUSY);
    fl_state_release(st, a);
    assert_int_equal(fl_state_snapshot(st, c, &s, &e), FL_OK);
    fl_state_destroy(st);
}

static void test_dead_sequences(void **state)
{
    (void)state;
    fl_state *st = state_make(2, 1, 64, 64);
    fl_seq other, bad[] = {FL_NONE, 0, 1, 2, INT32_MAX, INT32_MIN};
    fl_snap snap;
    int64_t pos;
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        fl_error e;
        assert_int_equal(fl_state_extend(st, bad[i], 1, &e), FL_ARGUMENT);
        assert_int_equal(fl_state_fork(st, bad[i], &other, &e), FL_ARGUMENT);
        assert_int_equal(fl_state_snapshot(st, bad[i], &snap, &e), FL_ARGUMENT);
        assert_int_equal(fl_state_rollback(st, bad[i], 0, &pos, &e), FL_ARGUMENT);
        assert_int_equal(fl_state_save(st, bad[i], 0, NULL, file, &e), FL_ARGUMENT);
        assert_int_equal(fl_state_pos(st, bad[i]), -1);
        fl_state_release(st, bad[i]);
        fl_state_trim(st, bad[i]);
        fl_state_snapshot_free(st, bad[i]);
    }
    check_pages(st);
    fl_state_destroy(st);
}

/* Without recurrent state every position can be gone back to. */
static void test_rollback_of_pages_only(void **state)
{
    (void)state;
    fl_state_limits l = {1, 0, 256, 256, NULL, NULL};
    fl_state *st;
    fl_seq a;
    int64_t pos;
    assert_int_equal(fl_state_create(STATE_SPECS, 1, &l, &st, NULL), FL_OK);
    assert_int_equal(fl_state_admit(st, &a, NULL), FL_OK);
    assert_int_equal(fl_state_extend(st, a, 200, NULL), FL_OK);
    fl_state_advance(st, a, 200);
    assert_int_equal(fl_state_rollback(st, a, 77, &pos, NULL), FL_OK);
    assert_int_equal(pos, 123);
    assert_int_equal(fl_state_free_tokens(st), 0); /* what was reserved stays */
    fl_state_trim(st, a);
    assert_int_equal(fl_state_free_tokens(st), 128);
    fl_state_destroy(st);
}

static void test_limits(void **state)
{
    (void)state;
    const fl_state_limits bad[] = {
        {0, 0, 64, 64, NULL, NULL},         {-1, 0, 64, 64, NULL, NULL},
        {1, -1, 64, 64, NULL, NULL},        {1, 0, 0, 64, NULL, NULL},
        {1, 0, INT64_MAX, 64, NULL, NULL},  {1, 0, 64, 0, NULL, NULL},
        {1, 0, 64, -64, NULL, NULL},        {1, 0, 64, INT64_MAX, NULL, NULL},
        {INT32_MAX, 0, 64, 64, NULL, NULL}, {1, INT32_MAX, 64, 64, NULL, NULL}};
    fl_state *st;
    fl_error e;
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        assert_int_equal(fl_state_bytes(STATE_SPECS, N_STATE_SPECS, &bad[i]), -1);
        assert_int_equal(fl_state_create(STATE_SPECS, N_STATE_SPECS, &bad[i], &st, &e),
                         FL_ARGUMENT);
        assert_null(st);
    }
    const fl_state_limits ok = {2, 1, 100, 100, NULL, NULL};
    fl_state_spec huge = {"huge", true, FL_F32, INT64_MAX / 8};
    assert_int_equal(fl_state_bytes(&huge, 1, &ok), -1);
    assert_int_equal(fl_state_create(&huge, 1, &ok, &st, &e), FL_ARGUMENT);

    /* Pools: 128 rows of 6 floats, 3 records of 9. */
    int64_t bytes = fl_state_bytes(STATE_SPECS, N_STATE_SPECS, &ok);
    assert_in_range(bytes, 128 * 24 + 3 * 36, 128 * 24 + 3 * 36 + 2000);
}

/* ---- files ---- */

static unsigned char *slurp(long *n)
{
    FILE *f = fopen(file, "rb");
    assert_non_null(f);
    fseek(f, 0, SEEK_END);
    *n = ftell(f);
    rewind(f);
    unsigned char *data = malloc((size_t)*n);
    assert_int_equal(fread(data, 1, (size_t)*n, f), *n);
    fclose(f);
    return data;
}

static void spit(const unsigned char *data, size_t n)
{
    FILE *f = fopen(file, "wb");
    assert_non_null(f);
    assert_int_equal(fwrite(data, 1, n, f), n);
    fclose(f);
}

static fl_seq some_seq(fl_state *st, int64_t n)
{
    fl_seq a;
    float v[CONTEXT];
    for (int64_t i = 0; i < n; i++)
        v[i] = (float)i;
    assert_int_equal(fl_state_admit(st, &a, NULL), FL_OK);
    assert_int_equal(fl_state_extend(st, a, n, NULL), FL_OK);
    state_write(st, a, v, n);
    return a;
}

static void refused(fl_state *st, uint64_t fingerprint, fl_status expect)
{
    fl_seq b;
    int32_t *ids;
    int64_t n, free_before = fl_state_free_tokens(st);
    int32_t seqs_before = fl_state_free_seqs(st);
    fl_error e = {0};
    fl_status s = fl_state_load(st, file, fingerprint, &b, &ids, &n, &e);
    assert_int_not_equal(s, FL_OK);
    if (expect != FL_OK)
        assert_int_equal(s, expect);
    assert_int_equal(e.status, s);
    assert_non_null(strstr(e.message, file)); /* the message names the file */
    assert_int_equal(b, FL_NONE);
    assert_null(ids);
    assert_int_equal(fl_state_free_tokens(st), free_before);
    assert_int_equal(fl_state_free_seqs(st), seqs_before);
}

static void test_damaged_files(void **state)
{
    (void)state;
    fl_state *st = state_make(3, 0, 256, 128);
    int32_t ids[70] = {1, 2, 3};
    fl_seq a = some_seq(st, 70);
    assert_int_equal(fl_state_save(st, a, 99, ids, file, NULL), FL_OK);
    long n;
    unsigned char *data = slurp(&n);
    assert_int_equal(n, 40 + 4 * 32 + 70 * 4 + 70 * 24 + 36 + 8);
    struct stat info;
    assert_int_equal(stat(file, &info), 0);
    assert_int_equal(info.st_mode & 0777, 0600);
    for (long i = 0; i < n; i++) {
        data[i] ^= (unsigned char)(1u << (i % 8));
        spit(data, (size_t)n);
        refused(st, 99, FL_OK);
        data[i] ^= (unsigned char)(1u << (i % 8));
    }
    for (long cut = 0; cut < n; cut += 1 + cut / 40) {
        spit(data, (size_t)cut);
        refused(st, 99, FL_FORMAT);
    }
    unsigned char *longer = calloc(1, (size_t)n + 1);
    memcpy(longer, data, (size_t)n);
    spit(longer, (size_t)n + 1);
    refused(st, 99, FL_FORMAT);
    free(longer);

    /* Lengths that lie: far too many tokens, none, less than none. */
    const int64_t lies[] = {INT64_MAX, (int64_t)1 << 40, 129, 128, 71, 69, 0, -1, INT64_MIN};
    for (size_t i = 0; i < sizeof lies / sizeof lies[0]; i++) {
        memcpy(data + 24, &lies[i], 8);
        spit(data, (size_t)n);
        refused(st, 99, lies[i] > 128 ? FL_ARGUMENT : FL_FORMAT);
    }
    free(data);
    fl_state_destroy(st);
}

static void test_foreign_files(void **state)
{
    (void)state;
    fl_state *st = state_make(2, 0, 256, 128);
    int32_t ids[70] = {0};
    fl_seq a = some_seq(st, 70);
    assert_int_equal(fl_state_save(st, a, 99, ids, file, NULL), FL_OK);
    refused(st, 98, FL_MISMATCH);

    /* The same model otherwise shaped, with less room, without room. */
    fl_state_spec specs[N_STATE_SPECS];
    memcpy(specs, STATE_SPECS, sizeof STATE_SPECS);
    specs[1].elements++;
    fl_state_limits l = {2, 0, 256, 128, NULL, NULL};
    fl_state *other;
    assert_int_equal(fl_state_create(specs, N_STATE_SPECS, &l, &other, NULL), FL_OK);
    refused(other, 99, FL_MISMATCH);
    fl_state_destroy(other);
    specs[1] = (fl_state_spec){"delta2", false, FL_F32, 7};
    assert_int_equal(fl_state_create(specs, N_STATE_SPECS, &l, &other, NULL), FL_OK);
    refused(other, 99, FL_MISMATCH);
    fl_state_destroy(other);
    assert_int_equal(fl_state_create(STATE_SPECS, 2, &l, &other, NULL), FL_OK);
    refused(other, 99, FL_MISMATCH);
    fl_state_destroy(other);
    /* Another form of caches is told apart from another model, whose fingerprint differs too. */
    memcpy(specs, STATE_SPECS, sizeof STATE_SPECS);
    specs[2].dtype = FL_I8;
    assert_int_equal(fl_state_create(specs, N_STATE_SPECS, &l, &other, NULL), FL_OK);
    fl_seq seq;
    int32_t *none;
    int64_t n_none;
    fl_error why;
    assert_int_equal(fl_state_load(other, file, 98, &seq, &none, &n_none, &why), FL_MISMATCH);
    assert_non_null(strstr(why.message, "the cache was kept as F32, here it is I8"));
    fl_state_destroy(other);
    other = state_make(2, 0, 64, 128);
    refused(other, 99, FL_BUSY);
    fl_state_destroy(other);
    other = state_make(2, 0, 128, 64);
    refused(other, 99, FL_ARGUMENT);
    fl_state_destroy(other);

    ids[69] = -5;
    assert_int_equal(fl_state_save(st, a, 99, ids, file, NULL), FL_OK);
    refused(st, 99, FL_FORMAT);
    unlink(file);
    refused(st, 99, FL_NOTFOUND);
    assert_int_equal(mkdir(file, 0700), 0);
    refused(st, 99, FL_FORMAT);
    fl_error e;
    assert_int_equal(fl_state_save(st, a, 99, ids, file, &e), FL_IO); /* rename onto a folder */
    rmdir(file);
    char parts[128];
    glob_t left;
    snprintf(parts, sizeof parts, "%s.*", file);
    assert_int_equal(glob(parts, 0, NULL, &left), GLOB_NOMATCH);
    assert_int_equal(fl_state_save(st, a, 99, ids, "/nonexistent/x/seq", &e), FL_IO);
    fl_state_destroy(st);
}

static fl_status life(void)
{
    fl_state_limits l = {3, 2, 256, 128, NULL, NULL};
    fl_state *st;
    fl_seq a, b;
    fl_snap k;
    int32_t ids[70] = {0}, *back = NULL;
    int64_t n;
    FL_TRY(fl_state_create(STATE_SPECS, N_STATE_SPECS, &l, &st, NULL));
    fl_status s;
    FL_GOTO(s, done, fl_state_admit(st, &a, NULL));
    FL_GOTO(s, done, fl_state_extend(st, a, 70, NULL));
    fl_state_advance(st, a, 70);
    FL_GOTO(s, done, fl_state_snapshot(st, a, &k, NULL));
    FL_GOTO(s, done, fl_state_fork(st, a, &b, NULL));
    FL_GOTO(s, done, fl_state_save(st, a, 1, ids, file, NULL));
    FL_GOTO(s, done, fl_state_load(st, file, 1, &b, &back, &n, NULL));
done:
    fl_free(back);
    check_pages(st);
    fl_state_destroy(st);
    return s;
}

static void test_allocation_failures(void **state)
{
    (void)state;
    long before = fl_mem_count();
    assert_int_equal(life(), FL_OK);
    long n = fl_mem_count() - before;
    assert_true(n > 10);
    int failed = 0;
    for (long i = 1; i <= n; i++) {
        fl_mem_fail_at(i);
        fl_status s = life();
        fl_mem_fail_at(0);
        failed += s == FL_NOMEM;
        assert_true(s == FL_NOMEM || s == FL_OK); /* OK: the folder was not synced */
    }
    assert_true(failed >= n - 1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_random_operations),
        cmocka_unit_test(test_exhaustion),
        cmocka_unit_test(test_dead_sequences),
        cmocka_unit_test(test_rollback_of_pages_only),
        cmocka_unit_test(test_limits),
        cmocka_unit_test(test_damaged_files),
        cmocka_unit_test(test_foreign_files),
        cmocka_unit_test(test_allocation_failures),
    };
    return cmocka_run_group_tests(tests, make_dir, drop_dir);
}
