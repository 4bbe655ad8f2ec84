/* Examples small enough to be done by hand, for the reference kernels: what the checker of the
 * other kernels rests on. */
#include "support/call.h"
#include "support/cmocka_all.h"

#include <string.h>

#define DIM(...) ((const int64_t[]){__VA_ARGS__})

static rng random_numbers = {3};

static void begin(tc *c, const char *op, int n)
{
    tc_begin(c, op, &random_numbers);
    tc_step(c, 1, &n, (const int64_t[]){0});
}

/* Adds an F32 input: rows of `width` numbers, or with rows == 0 a constant. */
static int numbers(tc *c, int rows, int64_t width, const float *x)
{
    int i =
        rows ? tc_rows(c, FL_ROWS_TOKENS, FL_F32, 1, &width) : tc_const(c, FL_F32, 1, 1, &width);
    for (int r = 0; r < (rows ? rows : 1); r++)
        memcpy(tc_f32(c, i, r), x + r * width, (size_t)width * 4);
    return i;
}

static void run_ref(tc *c)
{
    tc_finish(c);
    tc_reset(c);
    tc_run(c, tc_kernel(c->op->name, "ref"), 1, 0, c->step.n_rows);
    assert_null(tc_damage(c));
}

static void near(float got, double want)
{
    if (!(fabs(got - want) <= 3e-7 * fabs(want)))
        fail_msg("%.9g, expected %.10g", got, want);
}

static void row_is(const tc *c, int out, int32_t row, int64_t n, const double *want)
{
    for (int64_t i = 0; i < n; i++)
        near(fl_row_f32(&c->out[out], row)[i], want[i]);
}

static void test_norms(void **state)
{
    (void)state;
    tc c;
    begin(&c, "rmsnorm", 1);
    numbers(&c, 1, 2, (float[]){3, 4});
    numbers(&c, 0, 2, (float[]){1, 10});
    tc_number(&c, "eps", 0);
    run_ref(&c); /* the root of the mean square is 3.5355339 */
    row_is(&c, 0, 0, 2, (double[]){0.848528137, 11.3137085});
    tc_end(&c);

    begin(&c, "l2norm", 2);
    numbers(&c, 2, 2, (float[]){3, 4, 0, 0});
    tc_number(&c, "eps", 1e-6);
    tc_number(&c, "scale", 2);
    run_ref(&c);
    row_is(&c, 0, 0, 2, (double[]){1.2, 1.6});
    row_is(&c, 0, 1, 2, (double[]){0, 0});
    tc_end(&c);

    begin(&c, "layernorm", 1);
    numbers(&c, 1, 4, (float[]){1, 2, 3, 4});
    numbers(&c, 0, 4, (float[]){1, 1, 1, 2});
    numbers(&c, 0, 4, (float[]){0, 0, 0, 1});
    tc_number(&c, "eps", 0);
    run_ref(&c); /* mean 2.5, variance 1.25 */
    row_is(&c, 0, 0, 4, (double[]){-1.341640786, -0.447213595, 0.447213595, 3.683281573});
    tc_end(&c);
}

static void test_linear(void **state)
{
    (void)state;
    tc c;
    begin(&c, "linear", 2);
    float x[64];
    for (int i = 0; i < 64; i++)
        x[i] = i < 32 ? (i < 2) : (i >= 62) * 2.0f; /* rows: 1 1 0 ..., and ... 0 2 2 */
    numbers(&c, 2, 32, x);
    int f16 = tc_const(&c, FL_F16, 1, 2, DIM(1, 32)),
        bf16 = tc_const(&c, FL_BF16, 1, 2, DIM(1, 32));
    int mx = tc_const(&c, FL_MXFP4, 1, 2, DIM(2, 32));
    memcpy((void *)c.in[f16].data, (uint16_t[]){0x3c00, 0xb800}, 4);  /* 1, -0.5 */
    memcpy((void *)c.in[bf16].data, (uint16_t[]){0x4040, 0x3f80}, 4); /* 3, 1 */
    uint8_t *codes = (uint8_t *)c.in[mx].tensors->data, *scale = (uint8_t *)c.in[mx].tensors->scale;
    memset(codes, 0, 32);
    codes[0] = 0xe7;  /* row 0: 6, -4, ... */
    scale[0] = 128;   /* times 2 */
    codes[31] = 0x31; /* row 1: ..., 0.5, 1.5 */
    scale[1] = 126;   /* times 1/2 */
    run_ref(&c);
    row_is(&c, 0, 0, 1, (double[]){0.5});
    row_is(&c, 1, 0, 1, (double[]){4});
    row_is(&c, 2, 0, 2, (double[]){4, 0});
    row_is(&c, 2, 1, 2, (double[]){0, 2});
    tc_end(&c);
}

/* Taps 1, 10, 100 show in the digits which inputs were used. */
static void test_conv1d(void **state)
{
    (void)state;
    tc c;
    begin(&c, "conv1d", 4);
    numbers(&c, 4, 1, (float[]){1, 2, 3, 4});
    memcpy(tc_f32(&c, tc_const(&c, FL_F32, 1, 2, DIM(1, 3)), 0), (float[]){1, 10, 100}, 12);
    tc_state_in(&c, false, 2);
    run_ref(&c);
    static const double want[] = {100, 210, 321, 432};
    for (int r = 0; r < 4; r++)
        row_is(&c, 0, r, 1, &want[r]);
    const float *tail = fl_state_slot(&c.pools[0], &c.step.seqs[0]);
    assert_float_equal(tail[0], 3, 0);
    assert_float_equal(tail[1], 4, 0);
    tc_end(&c);
}

static void test_rows_moved(void **state)
{
    (void)state;
    tc c;
    begin(&c, "embed", 3);
    int table = tc_const(&c, FL_BF16, 1, 2, DIM(2, 2));
    memcpy((void *)c.in[table].data, (uint16_t[]){0x3f80, 0x4000, 0x4040, 0x4080}, 8);
    memcpy((int32_t *)c.step.ids, (int32_t[]){1, 0, 2}, 12);
    run_ref(&c);
    row_is(&c, 0, 0, 2, (double[]){3, 4});
    row_is(&c, 0, 1, 2, (double[]){1, 2});
    row_is(&c, 0, 2, 2, (double[]){0, 0});
    tc_end(&c);

    begin(&c, "gather_logits", 3);
    numbers(&c, 3, 2, (float[]){1, 2, 3, 4, 5, 6});
    memcpy((int32_t *)c.step.logit_rows, (int32_t[]){0, 2}, 8);
    c.step.n_logits = 2;
    run_ref(&c);
    row_is(&c, 0, 0, 2, (double[]){1, 2});
    row_is(&c, 0, 1, 2, (double[]){5, 6});
    tc_end(&c);

    begin(&c, "pick", 4);
    numbers(&c, 4, 3, (float[]){1, 5, 5, -3, -2, -1, 0, NAN, 9, -INFINITY, 0, 0});
    run_ref(&c);
    assert_memory_equal(c.out[0].data, ((int32_t[]){1, 1}), 8);
    assert_memory_equal((int32_t *)c.out[0].data + c.out[0].stride, ((int32_t[]){2, 1}), 8);
    for (int r = 2; r < 4; r++)
        assert_memory_equal((int32_t *)c.out[0].data + r * c.out[0].stride, ((int32_t[]){0, 0}), 8);
    tc_end(&c);

    /* Positions 63 and 64: the last item of a page, the first of the next. */
    tc_begin(&c, "cache_write", &random_numbers);
    tc_step(&c, 1, (const int[]){2}, DIM(63));
    tc_state_in(&c, true, 3);
    numbers(&c, 2, 2, (float[]){1, 2, 4, 5});
    numbers(&c, 2, 1, (float[]){3, 6});
    run_ref(&c);
    const int32_t *pages = c.step.seqs[0].pages;
    const unsigned char *base = c.pools[0].base;
    int64_t size = c.pools[0].item_bytes;
    assert_memory_equal(base + (pages[0] * 64 + 63) * size, ((float[]){1, 2, 3}), 12);
    assert_memory_equal(base + pages[1] * 64 * size, ((float[]){4, 5, 6}), 12);
    tc_end(&c);
}

/* Two experts of one hidden unit: the second doubles, the first negates; the third id is none. */
static void test_experts(void **state)
{
    (void)state;
    tc c;
    begin(&c, "experts", 1);
    numbers(&c, 1, 2, (float[]){2, 3});
    memcpy(tc_i32(&c, tc_rows(&c, FL_ROWS_TOKENS, FL_I32, 1, DIM(3)), 0), (int32_t[]){1, 0, 2}, 12);
    numbers(&c, 1, 3, (float[]){0.5f, 0.25f, 100});
    static const float w[3][2][2] = {{{1, 0}, {0, 1}}, {{0, 1}, {1, 1}}, {{1, -1}, {2, 4}}};
    for (int i = 0; i < 3; i++) {
        int in =
            i < 2 ? tc_const(&c, FL_F32, 2, 2, DIM(1, 2)) : tc_const(&c, FL_F32, 2, 2, DIM(2, 1));
        for (int e = 0; e < 2; e++)
            memcpy((void *)c.in[in].tensors[e].data, w[i][e], 8);
    }
    tc_text(&c, "act", "g*u+k");
    tc_text(&c, "consts", "k=1");
    run_ref(&c);
    /* expert 1: g = 3, u = 5, h = 16, y = (32, 64); expert 0: g = 2, u = 3, h = 7, y = (7, -7) */
    row_is(&c, 0, 0, 2, (double[]){16 + 1.75, 32 - 1.75});
    tc_end(&c);
}

static void test_expr_functions(void **state)
{
    (void)state;
    static const struct {
        const char *text;
        double at; /* x = 0.75 */
    } cases[] = {{"tanh(x)", 0.6351489524}, {"sigmoid(x)", 0.6791786992},
                 {"silu(x)", 0.5093840244}, {"exp(x)", 2.1170000166},
                 {"log(x)", -0.2876820724}, {"softplus(x)", 1.1368710061},
                 {"softplus(x*40)", 30},    {"softplus(-x*40)", 9.357622969e-14},
                 {"relu(x)", 0.75},         {"relu(-x)", 0},
                 {"sqrt(x)", 0.8660254038}, {"rsqrt(x)", 1.1547005384},
                 {"abs(-x)", 0.75},         {"min(x,2)", 0.75},
                 {"max(x,2)", 2},           {"erf(x)", 0.7111556337},
                 {"gelu(x)", 0.5800295675}, {"-x", -0.75},
                 {"1-x/2+3*x", 2.875}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        tc c;
        begin(&c, "expr", 1);
        numbers(&c, 1, 1, (float[]){0.75f});
        tc_text(&c, "text", cases[i].text);
        tc_text(&c, "inputs", "x");
        run_ref(&c);
        row_is(&c, 0, 0, 1, &cases[i].at);
        tc_end(&c);
    }
}

static void test_expr_broadcasts(void **state)
{
    (void)state;
    tc c;
    begin(&c, "expr", 2);
    int x = tc_rows(&c, FL_ROWS_TOKENS, FL_F32, 2, DIM(2, 1));
    for (int r = 0; r < 2; r++)
        memcpy(tc_f32(&c, x, r), (float[]){(float)(100 + 200 * r), (float)(200 + 200 * r)}, 8);
    numbers(&c, 0, 3, (float[]){1, 2, 3});
    tc_text(&c, "text", "a+b");
    tc_text(&c, "inputs", "a,b");
    run_ref(&c);
    row_is(&c, 0, 0, 6, (double[]){101, 102, 103, 201, 202, 203});
    row_is(&c, 0, 1, 6, (double[]){301, 302, 303, 401, 402, 403});
    tc_end(&c);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_norms),          cmocka_unit_test(test_linear),
        cmocka_unit_test(test_conv1d),         cmocka_unit_test(test_rows_moved),
        cmocka_unit_test(test_experts),        cmocka_unit_test(test_expr_functions),
        cmocka_unit_test(test_expr_broadcasts)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
