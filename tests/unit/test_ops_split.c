/* How linear shares its weight rows out among workers.  A wrong split still computes every row once
 * and shows in time alone, so the rows that each worker writes are counted. */
#include "support/cmocka_all.h"
#include "support/kernels.h"

#include "base/mem.h"

/* Weight rows of a node of several weights; together and alone far more than a worker's grain. */
static const int64_t heights[] = {320, 160, 640, 96};
enum { WEIGHTS = sizeof heights / sizeof *heights, WIDTH = 256, THREADS = 3, SLACK = 64 };

/* Outputs of row `row` that are no longer poison. */
static int64_t written(const tc *c, int32_t row)
{
    int64_t n = 0;
    for (int o = 0; o < c->n_out; o++) {
        const uint32_t *y = (const uint32_t *)c->out[o].data + row * c->out[o].stride;
        for (int64_t i = 0; i < heights[o]; i++)
            n += y[i] != TC_POISON;
    }
    return n;
}

/* The rows that one worker computes in the last phase, the others having done what is before. */
static int64_t share(tc *c, const fl_kernel *k, int thread, int n_threads)
{
    fl_node_view view = tc_view(c);
    fl_limits limits = c->limits;
    limits.n_threads = n_threads;
    size_t per_worker = 0, common = 0;
    k->scratch(&view, &limits, &per_worker, &common);
    fl_call call = {.kernel = k,
                    .n_in = c->n_in,
                    .n_out = c->n_out,
                    .in = c->in,
                    .out = c->out,
                    .attr = c->attr};
    fl_worker w = {.n_threads = n_threads,
                   .scratch = fl_alloc_aligned(per_worker + 1, FL_CACHE_LINE),
                   .shared = fl_alloc_aligned(common + 1, FL_CACHE_LINE)};
    assert_true(w.scratch && w.shared);
    tc_reset(c);
    for (int phase = 0; phase + 1 < k->n_phases; phase++) {
        for (w.thread = 0; w.thread < n_threads; w.thread++)
            k->run(&call, &c->step, phase, &w);
    }
    w.thread = thread;
    k->run(&call, &c->step, k->n_phases - 1, &w);
    fl_free_aligned(w.scratch);
    fl_free_aligned(w.shared);
    return written(c, 0);
}

static void count_rows(const char *family, int rows)
{
    rng random = {7};
    int64_t total = 0;
    const fl_kernel *k;
    tc c;
    tc_begin(&c, "linear", &random);
    tc_step(&c, 1, &rows, (int64_t[]){0});
    tc_rows(&c, FL_ROWS_TOKENS, FL_F32, 1, (int64_t[]){WIDTH});
    for (int i = 0; i < WEIGHTS; i++) {
        tc_const(&c, FL_BF16, 1, 2, (int64_t[]){heights[i], WIDTH});
        total += heights[i];
    }
    tc_finish(&c);
    for (int i = 0; (k = tk_kernel("linear", family, i)) != NULL; i++) {
        for (int n = 1; n <= THREADS; n++) {
            int64_t sum = 0;
            for (int t = 0; t < n; t++) {
                int64_t mine = share(&c, k, t, n);
                if (mine < total / n - SLACK || mine > total / n + SLACK)
                    fail_msg("%s, %d rows: worker %d of %d computes %lld of %lld weight rows",
                             k->name, rows, t, n, (long long)mine, (long long)total);
                sum += mine;
            }
            assert_int_equal(sum, total);
        }
    }
    tc_end(&c);
}

static void test_shares_are_even(void **state)
{
    (void)state;
    static const int rows[] = {1, 5, 40};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        count_rows("simd", rows[i]);
        count_rows("bf16", rows[i]); /* where the processor has it */
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_shares_are_even)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
