/* Vectors worked out by hand in double precision, through the reference kernels. */
#include "support/call.h"
#include "support/cmocka_all.h"

#include <string.h>

#define DIM(...) ((const int64_t[]){__VA_ARGS__})
#define COUNT(a) ((int)(sizeof(a) / sizeof *(a)))

static rng random_numbers;

/* A call on n rows of one new sequence. */
static void begin(tc *c, const char *op, int n)
{
    tc_begin(c, op, &random_numbers);
    tc_step(c, 1, &n, (const int64_t[]){0});
}

static void finish_and_run(tc *c)
{
    tc_finish(c);
    tc_reset(c);
    tc_run(c, tc_kernel(c->op->name, "ref"), 1, 0, c->step.n_rows);
    assert_null(tc_damage(c));
}

static void near(float got, double want, double tolerance)
{
    if (!(fabs(got - want) <= tolerance * fmax(1, fabs(want))))
        fail_msg("%.9g, expected %.11g", got, want);
}

static void test_situ(void **state)
{
    (void)state;
    static const double cases[][3] = {{1, 1, 0.7158178281},     {-1, 1, -0.2633346626},
                                      {3, -40, -55.7633861588}, {10, 10, 37.4846060744},
                                      {-8, 100, -0.0323069946}, {100, 1000, 100}};
    tc c;
    begin(&c, "expr", COUNT(cases));
    int g = tc_rows(&c, FL_ROWS_TOKENS, FL_F32, 1, DIM(1));
    int u = tc_rows(&c, FL_ROWS_TOKENS, FL_F32, 1, DIM(1));
    for (int i = 0; i < COUNT(cases); i++) {
        *tc_f32(&c, g, i) = (float)cases[i][0];
        *tc_f32(&c, u, i) = (float)cases[i][1];
    }
    tc_text(&c, "text", "b*tanh(g/b)*sigmoid(g) * l*tanh(u/l)");
    tc_text(&c, "inputs", "g,u");
    tc_text(&c, "consts", "b=4,l=25");
    finish_and_run(&c);
    for (int i = 0; i < COUNT(cases); i++)
        near(*fl_row_f32(&c.out[0], i), cases[i][2], 1e-6);
    tc_end(&c);
}

/* The decay gate: its inputs are A_log, and s = z + dt_bias. */
static void gate(const char *text, const double cases[][3], int n)
{
    tc c;
    begin(&c, "expr", n);
    int a = tc_rows(&c, FL_ROWS_TOKENS, FL_F32, 1, DIM(1));
    int s = tc_rows(&c, FL_ROWS_TOKENS, FL_F32, 1, DIM(1));
    for (int i = 0; i < n; i++) {
        *tc_f32(&c, a, i) = (float)cases[i][0];
        *tc_f32(&c, s, i) = (float)cases[i][1];
    }
    tc_text(&c, "text", text);
    tc_text(&c, "inputs", "a,s");
    finish_and_run(&c);
    for (int i = 0; i < n; i++)
        near(*fl_row_f32(&c.out[0], i), cases[i][2], 1e-6);
    tc_end(&c);
}

static void test_gate(void **state)
{
    (void)state;
    static const double bounded[][3] = {{0, 0, -2.5},
                                        {0, 2, -4.4039853899},
                                        {1.0066, 2, -4.9790856005},
                                        {-0.4684, -3, -0.6630885318},
                                        {0.2912, -10, -7.72626e-06}};
    static const double decay[][3] = {
        {0, 0, 0.0820849986}, {0, 2, 0.0122285073}, {-0.4684, -3, 0.5152574853}};
    static const double soft[][3] = {{0, 2, -2.1269280110}};
    gate("-5*sigmoid(exp(a)*s)", bounded, COUNT(bounded));
    gate("exp(-5*sigmoid(exp(a)*s))", decay, COUNT(decay));
    gate("-exp(a)*softplus(s)", soft, COUNT(soft));
}

static void test_residual_mix(void **state)
{
    (void)state;
    static const float weight[4] = {0.5f, -0.25f, 1, 0.125f};
    static const float sources[3][4] = {{1, 2, -1, 0.5f}, {0.1f, -0.2f, 0.3f, 0.4f}, {3, 0, 1, -2}};
    static const double mix[4] = {1.2233699715, -0.0099702498, 0.4912798464, -0.4852077357};
    tc c;
    begin(&c, "residual_mix", 1);
    memcpy(tc_f32(&c, tc_const(&c, FL_F32, 1, 1, DIM(4)), 0), weight, sizeof weight);
    for (int i = 0; i < 3; i++)
        memcpy(tc_f32(&c, tc_rows(&c, FL_ROWS_TOKENS, FL_F32, 1, DIM(4)), 0), sources[i],
               sizeof sources[i]);
    tc_number(&c, "eps", 1e-5);
    finish_and_run(&c);
    for (int i = 0; i < 4; i++)
        near(fl_row_f32(&c.out[0], 0)[i], mix[i], 1e-6);
    tc_end(&c);
}

static void test_mxfp4(void **state)
{
    (void)state;
    static const struct {
        uint8_t byte, scale;
        float even, odd;
    } cases[] = {{0x21, 127, 0.5f, 1.0f},
                 {0xF7, 120, 0.046875f, -0.046875f},
                 {0x8A, 125, -0.25f, -0.0f},
                 {0x5C, 118, -0.00390625f, 0.005859375f}};
    tc c;
    begin(&c, "cast", 1);
    int x = tc_const(&c, FL_MXFP4, 1, 2, DIM(COUNT(cases), 64));
    const fl_tensor *t = c.in[x].tensors;
    for (int i = 0; i < COUNT(cases); i++) { /* the last pair of the second group of row i */
        ((uint8_t *)t->data)[i * 32 + 31] = cases[i].byte;
        ((uint8_t *)t->scale)[i * 2 + 1] = cases[i].scale;
    }
    finish_and_run(&c);
    const float *y = c.out[0].data;
    for (int i = 0; i < COUNT(cases); i++) {
        assert_memory_equal(&y[i * 64 + 62], &cases[i].even, 4);
        assert_memory_equal(&y[i * 64 + 63], &cases[i].odd, 4);
    }
    tc_end(&c);
}

static void test_route(void **state)
{
    (void)state;
    static const float logits[4] = {0.2f, -0.1f, 1.5f, -2}, bias[4] = {0, 0.5f, -0.3f, 0.1f};
    tc c;
    begin(&c, "route", 1);
    memcpy(tc_f32(&c, tc_rows(&c, FL_ROWS_TOKENS, FL_F32, 1, DIM(4)), 0), logits, sizeof logits);
    memcpy(tc_f32(&c, tc_const(&c, FL_F32, 1, 1, DIM(4)), 0), bias, sizeof bias);
    tc_number(&c, "topk", 2);
    tc_text(&c, "func", "sigmoid");
    tc_number(&c, "renormalize", 1);
    finish_and_run(&c);
    const int32_t *ids = c.out[0].data;
    assert_int_equal(ids[0], 1);
    assert_int_equal(ids[1], 0);
    near(fl_row_f32(&c.out[1], 0)[0], 0.4635005934, 1e-7);
    near(fl_row_f32(&c.out[1], 0)[1], 0.5364994066, 1e-7);
    tc_end(&c);
}

/* Two groups of three: the second has the two best together, the first the best single one. */
static void test_route_groups(void **state)
{
    (void)state;
    static const float logits[6] = {9, -9, -9, 2, 1, 2};
    tc c;
    begin(&c, "route", 1);
    memcpy(tc_f32(&c, tc_rows(&c, FL_ROWS_TOKENS, FL_F32, 1, DIM(6)), 0), logits, sizeof logits);
    tc_number(&c, "topk", 3);
    tc_text(&c, "func", "sigmoid");
    tc_number(&c, "renormalize", 0);
    tc_number(&c, "scale", 2);
    tc_number(&c, "groups", 2);
    tc_number(&c, "topk_groups", 1);
    finish_and_run(&c);
    static const int32_t want[3] = {3, 5, 4}; /* equal scores: lower index first */
    assert_memory_equal(c.out[0].data, want, sizeof want);
    near(fl_row_f32(&c.out[1], 0)[0], 2 * 0.8807970780, 1e-6);
    near(fl_row_f32(&c.out[1], 0)[2], 2 * 0.7310585786, 1e-6);
    tc_end(&c);
}

/* Position 3, pairs (1, 0) at width 4: by 3 and by 0.03 radians.  YaRN with width 8: the ramp is
 * from dim 0 to dim 2 of [10000^(-j/4)], so the frequencies are 1, 0.0625, 0.0025 and 0.00025. */
static void test_rope(void **state)
{
    (void)state;
    for (int half = 0; half < 2; half++) {
        tc c;
        tc_begin(&c, "rope", &random_numbers);
        tc_step(&c, 1, (const int[]){1}, (const int64_t[]){3});
        int x = tc_rows(&c, FL_ROWS_TOKENS, FL_F32, 1, DIM(6));
        const float in[2][6] = {{7, 1, 0, 1, 0, 9}, {7, 1, 1, 0, 0, 9}};
        memcpy(tc_f32(&c, x, 0), in[half], sizeof in[half]);
        tc_number(&c, "offset", 1);
        tc_number(&c, "width", 4);
        tc_number(&c, "theta", 10000);
        tc_text(&c, "pairing", half ? "half" : "interleaved");
        finish_and_run(&c);
        const float *y = fl_row_f32(&c.out[0], 0);
        near(y[0], 7, 0);
        near(y[1], -0.9899924966, 1e-7);
        near(y[half ? 3 : 2], 0.1411200081, 1e-7);
        near(y[half ? 2 : 3], 0.9995500337, 1e-7);
        near(y[4], 0.0299955002, 1e-7);
        near(y[5], 9, 0);
        tc_end(&c);
    }
    static const double freq[4] = {1, 0.0625, 0.0025, 0.00025};
    tc c;
    tc_begin(&c, "rope", &random_numbers);
    tc_step(&c, 1, (const int[]){1}, (const int64_t[]){5});
    int x = tc_rows(&c, FL_ROWS_TOKENS, FL_F32, 1, DIM(8));
    for (int i = 0; i < 8; i++)
        tc_f32(&c, x, 0)[i] = i % 2 == 0;
    tc_number(&c, "width", 8);
    tc_number(&c, "theta", 10000);
    tc_number(&c, "factor", 4);
    tc_number(&c, "context", 64);
    finish_and_run(&c);
    for (int j = 0; j < 4; j++) {
        near(fl_row_f32(&c.out[0], 0)[2 * j], cos(5 * freq[j]), 1e-6);
        near(fl_row_f32(&c.out[0], 0)[2 * j + 1], sin(5 * freq[j]), 1e-6);
    }
    tc_end(&c);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_situ),  cmocka_unit_test(test_gate),
        cmocka_unit_test(test_mxfp4), cmocka_unit_test(test_residual_mix),
        cmocka_unit_test(test_route), cmocka_unit_test(test_route_groups),
        cmocka_unit_test(test_rope),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
