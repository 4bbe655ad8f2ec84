/* delta_rule: the hand-checkable steps of kimi-k3.md, section 11, through every kernel. */
#include "support/call.h"
#include "support/cmocka_all.h"

#include "base/cpu.h"
#include "ops/def/def_internal.h"
#include "ops/ops.h"

#include <string.h>

#define DIM(...) ((const int64_t[]){__VA_ARGS__})

static rng random_numbers;

/* The kernels of the operator that this machine can run. */
static const fl_kernel *kernel(int i)
{
    const fl_kernel *k;
    for (int j = 0; (k = fl_registry_kernel(fl_ops_registry(), j)) != NULL; j++) {
        if (strcmp(k->op, "delta_rule") == 0 && k->isa <= fl_cpu_isa() && i-- == 0)
            return k;
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
    for (int i = 0; (kern = kernel(i)) != NULL; i++) {
        tc_reset(&c);
        tc_run(&c, kern, 1, 0, 2);
        assert_null(tc_damage(&c));
        const float *left = fl_state_slot(&c.pools[0], &c.step.seqs[0]);
        for (int j = 0; j < 4; j++) {
            near(fl_row_f32(&c.out[0], j / 2)[j % 2], o[j / 2][j % 2], 2e-7);
            near(left[j], s[j], 2e-7);
        }
    }
    tc_end(&c);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_vector)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
