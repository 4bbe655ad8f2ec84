/* index_select: every level against the reference, on small whole numbers, where all sums are exact
 * and ties are everywhere; around topk visible positions; NaN; threads, cuttings, batches. */
#include "support/cmocka_all.h"
#include "support/kernels.h"

#include "ops/def/def_internal.h"
#include "ops/ref/ref_internal.h"

#include <string.h>

#define DIM(...) ((const int64_t[]){__VA_ARGS__})

static rng random_numbers;

static void make_of(tc *c, fl_dtype keys, int heads, int d, int topk, int n_seqs, const int *rows,
                    const int64_t *pos0)
{
    tc_begin(c, "index_select", &random_numbers);
    tc_step(c, n_seqs, rows, pos0);
    tc_rows(c, FL_ROWS_TOKENS, FL_F32, 2, DIM(heads, d));
    tc_rows(c, FL_ROWS_TOKENS, FL_F32, 1, DIM(heads));
    tc_cache_in(c, keys, d);
    tc_number(c, "topk", topk);
    tc_number(c, "scale", 0.125);
    tc_finish(c);
}

static void make(tc *c, int heads, int d, int topk, int n_seqs, const int *rows,
                 const int64_t *pos0)
{
    make_of(c, FL_F32, heads, d, topk, n_seqs, rows, pos0);
}

static float *key(tc *c, int seq, int64_t pos)
{
    fl_state_pool initial = {c->states[0].initial, c->pools[0].item_bytes};
    return fl_state_row(&initial, &c->step.seqs[seq], pos);
}

/* Small whole numbers everywhere. */
static void round_all(tc *c, int heads, int d)
{
    for (int32_t r = 0; r < c->step.n_rows; r++) {
        for (int i = 0; i < heads * d; i++)
            tc_f32(c, FL_INDEX_Q, r)[i] = (float)rng_int(c->random, -2, 2);
        for (int h = 0; h < heads; h++)
            tc_f32(c, FL_INDEX_W, r)[h] = (float)rng_int(c->random, -3, 3);
    }
    for (int s = 0; s < c->step.n_seqs; s++) {
        for (int64_t p = 0; p < c->step.seqs[s].pos0 + c->step.seqs[s].n_rows; p++) {
            for (int i = 0; i < d; i++)
                key(c, s, p)[i] = (float)rng_int(c->random, -2, 2);
        }
    }
}

/* All levels give `want`, whole, cut anywhere, under any number of threads. */
static void check_levels(tc *c, const tk_result *want)
{
    const fl_kernel *k;
    for (int i = 0; (k = tk_kernel("index_select", "stream", i)) != NULL; i++) {
        for (int threads = 1; threads <= 8; threads += 1 + (int)rng_int(c->random, 0, 3)) {
            tk_result r = tk_run(c, k, threads % 2 ? threads : -threads);
            tk_same(c, want, &r, k->name);
            tk_free(&r);
        }
        tk_result cut = tk_run_cut(c, k, (int)rng_int(c->random, 1, 8), false);
        tk_same(c, want, &cut, "cutting");
        tk_free(&cut);
    }
}

static void check(uint64_t seed, int heads, int d, int topk, int n_seqs, const int *rows,
                  const int64_t *pos0)
{
    print_message("seed %llu: %d heads of %d, top %d\n", (unsigned long long)seed, heads, d, topk);
    tc c;
    random_numbers.state = seed;
    make(&c, heads, d, topk, n_seqs, rows, pos0);
    round_all(&c, heads, d);
    tk_result want = tk_run(&c, tk_kernel("index_select", "ref", 0), 1);
    check_levels(&c, &want);
    tk_free(&want);
    tc_end(&c);
}

static void test_sizes(void **state)
{
    (void)state;
    check(1, 4, 32, 128, 1, (int[]){150}, DIM(64));
    check(2, 3, 7, 5, 4, (int[]){1, 40, 1, 90}, DIM(700, 0, 3, 128));
    check(3, 1, 1, 1, 2, (int[]){70, 1}, DIM(0, 4));
    check(4, 6, 16, 33, 1, (int[]){1}, DIM(2000));
    check(5, 5, 130, 300, 3, (int[]){1, 1, 1}, DIM(299, 300, 1000));
    check(6, 2, 20, 1000, 1, (int[]){100}, DIM(1));
}

/* One less than topk, topk, one more; as a prompt and as single rows. */
static void test_boundary(void **state)
{
    (void)state;
    check(10, 2, 8, 2048, 3, (int[]){1, 1, 1}, DIM(2046, 2047, 2048));
    check(11, 2, 8, 128, 1, (int[]){4}, DIM(126));
    check(12, 2, 8, 100, 1, (int[]){110}, DIM(0));
}

/* Equal scores everywhere: the lowest positions. */
static void test_plateau(void **state)
{
    (void)state;
    tc c;
    random_numbers.state = 20;
    make(&c, 2, 8, 50, 1, (int[]){3}, DIM(500));
    round_all(&c, 2, 8);
    for (int r = 0; r < 3; r++)
        memset(tc_f32(&c, FL_INDEX_W, r), 0, 8); /* times -0 and 0: both are zero */
    tc_f32(&c, FL_INDEX_W, 1)[0] = -0.0f;
    tk_result want = tk_run(&c, tk_kernel("index_select", "ref", 0), 1);
    for (int i = 0; i < 150; i++)
        assert_int_equal(((int32_t *)want.data)[i], i % 50);
    check_levels(&c, &want);
    tk_free(&want);
    tc_end(&c);
}

/* A NaN key comes last, a NaN query makes all keys equal, and neither disturbs another row. */
static void test_nan(void **state)
{
    (void)state;
    tc c;
    random_numbers.state = 30;
    make(&c, 3, 16, 40, 2, (int[]){70, 1}, DIM(100, 300));
    round_all(&c, 3, 16);
    for (int i = 0; i < 60; i++)
        key(&c, 0, rng_int(&random_numbers, 0, 100))[5] = NAN;
    key(&c, 1, 17)[0] = INFINITY;
    tc_f32(&c, FL_INDEX_Q, 9)[20] = NAN;
    tc_f32(&c, FL_INDEX_W, 11)[0] = NAN;
    tk_result want = tk_run(&c, tk_kernel("index_select", "ref", 0), 1);
    for (int i = 0; i < 40; i++)
        assert_int_equal(((int32_t *)want.data)[11 * 40 + i], i);
    check_levels(&c, &want);
    tk_free(&want);
    tc_end(&c);
}

/* On arbitrary numbers: equal bits everywhere, and no position left out that is better, by more
 * than rounding, than one that was taken. */
static void check_real(uint64_t seed, fl_dtype keys, int heads, int d)
{
    enum { TOPK = 64, ROWS = 80 };
    tc c;
    random_numbers.state = seed;
    make_of(&c, keys, heads, d, TOPK, 1, (int[]){ROWS}, DIM(400));
    tk_result want = tk_run(&c, tk_kernel("index_select", "stream", 0), 1);
    check_levels(&c, &want);
    fl_call call = {.n_in = c.n_in, .in = c.in, .out = c.out, .attr = c.attr};
    for (int32_t r = 0; r < ROWS; r++) {
        const int32_t *taken = (const int32_t *)want.data + r * TOPK;
        double least = INFINITY, best = -INFINITY;
        for (int64_t p = 0, i = 0; p < 400 + r + 1; p++) {
            float score = fl_ref_index_score(&call, &c.step, r, p);
            if (i < TOPK && taken[i] == p) {
                least = fmin(least, score);
                i++;
            } else {
                best = fmax(best, score);
            }
        }
        assert_true(least > best - 1e-5);
    }
    tk_free(&want);
    tc_end(&c);
}

static void test_real_numbers(void **state)
{
    (void)state;
    check_real(40, FL_F32, 4, 32);
    check_real(41, FL_F32, 7, 21);
    check_real(42, FL_BF16, 4, 32);
    check_real(43, FL_BF16, 3, 37);
    check_real(44, FL_I8, 4, 32);
    check_real(45, FL_I8, 9, 128);
    check_real(46, FL_I8, 5, 3);
}

static void test_refusals(void **state)
{
    (void)state;
    tc c;
    fl_error err;
    make(&c, 2, 4, 3, 1, (int[]){1}, DIM(0));
    c.in_type[FL_INDEX_KEYS].dim[0] = 5;
    assert_int_equal(tc_try_infer(&c, &err), FL_MODEL);
    assert_non_null(strstr(err.message, "keys"));
    c.in_type[FL_INDEX_KEYS].dim[0] = 4;
    tc_number(&c, "topk", 0);
    assert_int_equal(tc_try_infer(&c, &err), FL_MODEL);
    tc_end(&c);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_sizes),        cmocka_unit_test(test_boundary),
        cmocka_unit_test(test_plateau),      cmocka_unit_test(test_nan),
        cmocka_unit_test(test_real_numbers), cmocka_unit_test(test_refusals),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
