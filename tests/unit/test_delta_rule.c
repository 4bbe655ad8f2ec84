/* delta_rule: two steps worked out by hand, through every kernel; the forms
 * and levels against the reference and against each other; cuttings, threads, extreme gates. */
#include "support/cmocka_all.h"
#include "support/kernels.h"

#include "ops/def/def_internal.h"

#include <string.h>

#define DIM(...) ((const int64_t[]){__VA_ARGS__})

static rng random_numbers;

static const char *const families[] = {"ref", "recurrent", "chunked"};

static const fl_kernel *any_kernel(int i)
{
    for (int f = 0; f < 3; f++) {
        const fl_kernel *k;
        for (int j = 0; (k = tk_kernel("delta_rule", families[f], j)) != NULL; j++) {
            if (i-- == 0)
                return k;
        }
    }
    return NULL;
}

static void make(tc *c, int heads, int dk, int dv, int n_seqs, const int *rows, const int64_t *pos0)
{
    tc_begin(c, "delta_rule", &random_numbers);
    tc_step(c, n_seqs, rows, pos0);
    tc_rows(c, FL_ROWS_TOKENS, FL_F32, 2, DIM(heads, dk));
    tc_rows(c, FL_ROWS_TOKENS, FL_F32, 2, DIM(heads, dk));
    tc_rows(c, FL_ROWS_TOKENS, FL_F32, 2, DIM(heads, dv));
    tc_rows(c, FL_ROWS_TOKENS, FL_F32, 2, DIM(heads, dk));
    tc_rows(c, FL_ROWS_TOKENS, FL_F32, 1, DIM(heads));
    tc_state_in(c, false, heads * dk * dv);
}

static void normalise(float *x, int n, float scale)
{
    double sum = 1e-6;
    for (int i = 0; i < n; i++)
        sum += (double)x[i] * x[i];
    for (int i = 0; i < n; i++)
        x[i] = (float)(x[i] / sqrt(sum) * scale);
}

static void near(float got, double want, double tolerance)
{
    if (!(fabs(got - want) <= tolerance))
        fail_msg("%.9g, expected %.11g", got, want);
}

static void test_vector(void **state)
{
    (void)state;
    static const float q[2][2] = {{1, 1}, {0.5f, -1}}, k[2][2] = {{2, -1}, {1, 1}},
                       v[2][2] = {{1, 0.5f}, {-1, 2}}, g[2][2] = {{-0.1f, -2}, {-0.5f, -0.25f}},
                       beta[2] = {0.75f, 0.5f};
    static const double o[2][2] = {{0.16770504, 0.08385252}, {0.4171914163, -0.0709126073}};
    static const double s[4] = {0.0169059617, 0.8923362363, -0.6511848310, 0.5582908400};
    tc c;
    make(&c, 1, 2, 2, 1, (int[]){2}, DIM(0));
    for (int r = 0; r < 2; r++) {
        for (int i = 0; i < 2; i++) {
            tc_f32(&c, FL_DELTA_Q, r)[i] = q[r][i];
            tc_f32(&c, FL_DELTA_K, r)[i] = k[r][i];
            tc_f32(&c, FL_DELTA_V, r)[i] = v[r][i];
            tc_f32(&c, FL_DELTA_G, r)[i] = g[r][i];
        }
        normalise(tc_f32(&c, FL_DELTA_Q, r), 2, 0.7071067812f);
        normalise(tc_f32(&c, FL_DELTA_K, r), 2, 1);
        *tc_f32(&c, FL_DELTA_BETA, r) = beta[r];
    }
    tc_finish(&c);
    const fl_kernel *kern;
    for (int i = 0; (kern = any_kernel(i)) != NULL; i++) {
        tk_result r = tk_run(&c, kern, 1);
        const float *left = fl_state_slot(&c.pools[0], &c.step.seqs[0]);
        for (int j = 0; j < 4; j++) {
            near(fl_row_f32(&c.out[0], j / 2)[j % 2], o[j / 2][j % 2], 2e-7);
            near(left[j], s[j], 2e-7);
        }
        tk_free(&r);
    }
    tc_end(&c);
}

/* ---- random calls ---- */

/* Fills the gates of a finished call: mostly `low` to 0, some at the edge. */
static void gates(tc *c, int heads, int dk, float low)
{
    for (int32_t r = 0; r < c->step.n_rows; r++) {
        for (int i = 0; i < heads * dk; i++) {
            float u = rng_float(c->random, 0, 1);
            tc_f32(c, FL_DELTA_G, r)[i] = rng_one_in(c->random, 8) ? low : low * u * u * u;
        }
        for (int h = 0; h < heads; h++) {
            normalise(tc_f32(c, FL_DELTA_Q, r) + h * dk, dk, 1 / sqrtf((float)dk));
            normalise(tc_f32(c, FL_DELTA_K, r) + h * dk, dk, 1);
            tc_f32(c, FL_DELTA_BETA, r)[h] = rng_float(c->random, 0, 1);
        }
    }
}

/* All levels of a family: close to the reference, equal to each other, equal under any number of
 * threads and any cutting (of the chunked form: on the grid). */
static void check_family(tc *c, const char *family, const tk_result *ref)
{
    bool grid = strcmp(family, "chunked") == 0;
    const fl_kernel *k;
    tk_result first = {0};
    for (int i = 0; (k = tk_kernel("delta_rule", family, i)) != NULL; i++) {
        tk_result r = tk_run(c, k, 1);
        tk_close(c, &r, ref, 1e-5, k->name);
        if (i)
            tk_same(c, &first, &r, k->name);
        else
            first = r;
        tk_result threads = tk_run(c, k, -(int)rng_int(c->random, 2, 7));
        tk_same(c, &r, &threads, "threads");
        tk_result cut = tk_run_cut(c, k, (int)rng_int(c->random, 1, 3), grid);
        tk_same(c, &r, &cut, "cutting");
        tk_free(&threads);
        tk_free(&cut);
        if (i)
            tk_free(&r);
    }
    tk_free(&first);
}

static void check(uint64_t seed, int heads, int dk, int dv, float low, int n_seqs, const int *rows,
                  const int64_t *pos0)
{
    print_message("seed %llu: %d heads of %d x %d, gates from %g\n", (unsigned long long)seed,
                  heads, dk, dv, low);
    tc c;
    random_numbers.state = seed;
    make(&c, heads, dk, dv, n_seqs, rows, pos0);
    gates(&c, heads, dk, low);
    tc_finish(&c);
    tk_result ref = tk_run(&c, tk_kernel("delta_rule", "ref", 0), 1);
    check_family(&c, "recurrent", &ref);
    check_family(&c, "chunked", &ref);
    tk_free(&ref);
    tc_end(&c);
}

static void test_sizes(void **state)
{
    (void)state;
    check(1, 4, 64, 64, -5, 1, (int[]){200}, DIM(0));
    check(2, 2, 128, 128, -5, 2, (int[]){130, 1}, DIM(64, 77));
    check(3, 3, 7, 5, -5, 3, (int[]){70, 100, 1}, DIM(60, 0, 0));
    check(4, 1, 33, 83, -1, 1, (int[]){129}, DIM(128));
    check(5, 5, 16, 1, -0.01f, 2, (int[]){64, 63}, DIM(64, 64));
    check(6, 1, 1, 130, -5, 1, (int[]){64}, DIM(0));
}

/* Without the bound of the gate: sums of log decays far beyond what exp can hold. */
static void test_extreme_gates(void **state)
{
    (void)state;
    check(10, 2, 32, 32, -50, 1, (int[]){192}, DIM(0));
    check(11, 2, 32, 32, -5.5f, 1, (int[]){128}, DIM(64));
    check(12, 2, 16, 48, -1000, 1, (int[]){64}, DIM(64));
    check(13, 2, 16, 16, 0, 1, (int[]){128}, DIM(0));
}

/* With every gate at the bound, a sub-block just fits the chunked form. */
static void test_bound(void **state)
{
    (void)state;
    tc c;
    random_numbers.state = 20;
    make(&c, 1, 16, 16, 1, (int[]){128}, DIM(0));
    gates(&c, 1, 16, -5);
    for (int r = 0; r < 128; r++) {
        for (int i = 0; i < 16; i++)
            tc_f32(&c, FL_DELTA_G, r)[i] = r < 64 ? -5 : -5.3f;
    }
    tc_finish(&c);
    tk_result ref = tk_run(&c, tk_kernel("delta_rule", "ref", 0), 1);
    check_family(&c, "recurrent", &ref);
    check_family(&c, "chunked", &ref);
    tk_free(&ref);
    tc_end(&c);
}

/* A NaN of one sequence or head stays there. */
static void test_nan(void **state)
{
    (void)state;
    for (int f = 1; f < 3; f++) {
        tc c;
        random_numbers.state = 30;
        make(&c, 2, 16, 16, 2, (int[]){64, 64}, DIM(0, 0));
        gates(&c, 2, 16, -5);
        tc_finish(&c);
        const fl_kernel *k = tk_kernel("delta_rule", families[f], 0);
        tk_result clean = tk_run(&c, k, 1);
        tc_f32(&c, FL_DELTA_G, 20)[16 + 3] = NAN; /* the second head of the first sequence */
        tk_result got = tk_run(&c, k, 1);
        const float *a = (const float *)clean.data, *b = (const float *)got.data;
        for (int r = 0; r < 128; r++) {
            for (int j = 0; j < 32; j++) {
                if (r >= 20 && r < 64 && j >= 16)
                    assert_true(isnan(b[r * 32 + j]));
                else if (r >= 16 && r < 20 && j >= 16) /* its sub-block may change its form */
                    near(b[r * 32 + j], a[r * 32 + j], 1e-5);
                else
                    assert_memory_equal(&a[r * 32 + j], &b[r * 32 + j], 4);
            }
        }
        tk_free(&clean);
        tk_free(&got);
        tc_end(&c);
    }
}

static void test_refusals(void **state)
{
    (void)state;
    tc c;
    fl_error err;
    make(&c, 2, 4, 4, 1, (int[]){1}, DIM(0));
    c.in_type[FL_DELTA_STATE].dim[0]++;
    assert_int_equal(tc_try_infer(&c, &err), FL_MODEL);
    assert_non_null(strstr(err.message, "state"));
    c.in_type[FL_DELTA_STATE].dim[0]--;
    c.in_type[FL_DELTA_K].dim[1] = 5;
    assert_int_equal(tc_try_infer(&c, &err), FL_MODEL);
    tc_end(&c);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_vector),        cmocka_unit_test(test_sizes),
        cmocka_unit_test(test_extreme_gates), cmocka_unit_test(test_bound),
        cmocka_unit_test(test_nan),           cmocka_unit_test(test_refusals),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
