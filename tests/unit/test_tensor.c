/* Element types: exhaustive decoding against the formats' definitions, rounding, MXFP4 pairs. */
#include "support/cmocka_all.h"

#include "checkpoint/tensor.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

static uint32_t bits_of(float f)
{
    uint32_t b;
    memcpy(&b, &f, sizeof b);
    return b;
}

static void assert_same(float got, float want, unsigned code)
{
    bool same = isnan(want) ? isnan(got) : bits_of(got) == bits_of(want);
    if (!same)
        fail_msg("code 0x%x decodes to %a, not %a", code, (double)got, (double)want);
}

/* The definition of a small float, by powers of two. */
static float define(unsigned x, int exp, int man, bool has_inf)
{
    int bias = (1 << (exp - 1)) - 1, e = (int)(x >> man) & ((1 << exp) - 1);
    double m = (double)(x & ((1u << man) - 1)) / (1 << man);
    double sign = x >> (exp + man) & 1 ? -1 : 1;
    if (has_inf && e == (1 << exp) - 1)
        return m > 0 ? NAN : (float)(sign * INFINITY);
    if (!has_inf && (x & ((1u << (exp + man)) - 1)) == (1u << (exp + man)) - 1)
        return NAN;
    return (float)(sign * (e ? ldexp(1 + m, e - bias) : ldexp(m, 1 - bias)));
}

static void test_sixteen_bits(void **state)
{
    (void)state;
    for (unsigned x = 0; x < 65536; x++) {
        assert_same(fl_f16_to_f32((uint16_t)x), define(x, 5, 10, true), x);
        float f = fl_bf16_to_f32((uint16_t)x);
        assert_same(f, define(x, 8, 7, true), x);
        uint16_t back = fl_f32_to_bf16(f);
        if (isnan(f))
            assert_true(isnan(fl_bf16_to_f32(back)) && back >> 15 == x >> 15);
        else
            assert_int_equal(back, x);
    }
}

static void test_bf16_rounds_to_even(void **state)
{
    (void)state;
    static const struct {
        uint32_t in;
        uint16_t out;
    } cases[] = {{0x3f808000, 0x3f80}, {0x3f808001, 0x3f81}, {0x3f818000, 0x3f82},
                 {0x3f807fff, 0x3f80}, {0x7f7fffff, 0x7f80}, {0xff7fffff, 0xff80},
                 {0x7f800001, 0x7fc0}, {0xffffffff, 0xffff}, {0x00008000, 0x0000},
                 {0x00018000, 0x0002}, {0x80000000, 0x8000}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        float f;
        memcpy(&f, &cases[i].in, sizeof f);
        assert_int_equal(fl_f32_to_bf16(f), cases[i].out);
    }
}

static void test_eight_bits(void **state)
{
    (void)state;
    uint8_t all[256];
    float out[256];
    for (int i = 0; i < 256; i++)
        all[i] = (uint8_t)i;
    fl_tensor t = {.dtype = FL_F8_E4M3, .ndim = 1, .shape = {256}, .data = all};
    assert_int_equal(fl_tensor_to_f32(&t, 0, 256, out), FL_OK);
    for (unsigned i = 0; i < 256; i++)
        assert_same(out[i], define(i, 4, 3, false), i);
    t.dtype = FL_F8_E5M2;
    assert_int_equal(fl_tensor_to_f32(&t, 100, 156, out), FL_OK);
    for (unsigned i = 100; i < 256; i++)
        assert_same(out[i - 100], define(i, 5, 2, true), i);
    for (int i = 0; i < 256; i++)
        assert_same(fl_e8m0_to_f32((uint8_t)i), i == 255 ? NAN : ldexpf(1, i - 127), (unsigned)i);
}

static void test_mxfp4(void **state)
{
    (void)state;
    enum { ROWS = 3, COLS = 64 };
    uint8_t codes[ROWS * COLS / 2], scales[ROWS * COLS / 32];
    for (size_t i = 0; i < sizeof codes; i++)
        codes[i] = (uint8_t)(i * 37 + 11);
    for (size_t i = 0; i < sizeof scales; i++)
        scales[i] = (uint8_t)(120 + i * 3);
    fl_tensor p = {.dtype = FL_U8, .ndim = 2, .shape = {ROWS, COLS / 2}, .data = codes};
    fl_tensor s = {.dtype = FL_U8, .ndim = 2, .shape = {ROWS, COLS / 32}, .data = scales};
    fl_tensor t;
    fl_error e;
    assert_int_equal(fl_tensor_mxfp4(&p, &s, &t, &e), FL_OK);
    assert_int_equal(t.dtype, FL_MXFP4);
    assert_int_equal(t.shape[0], ROWS);
    assert_int_equal(t.shape[1], COLS);
    assert_int_equal(fl_tensor_elements(&t), ROWS * COLS);
    assert_int_equal(fl_tensor_bytes(&t), sizeof codes + sizeof scales);
    static const float values[8] = {0, 0.5f, 1, 1.5f, 2, 3, 4, 6};
    float out[ROWS * COLS];
    assert_int_equal(fl_tensor_to_f32(&t, 2, ROWS * COLS - 2, out + 2), FL_OK);
    for (int r = 0; r < ROWS; r++) {
        for (int c = r ? 0 : 2; c < COLS; c++) {
            unsigned code = codes[r * (COLS / 2) + c / 2] >> (c % 2 * 4) & 15;
            float want = ldexpf(values[code & 7], scales[r * (COLS / 32) + c / 32] - 127);
            assert_same(out[r * COLS + c], code & 8 ? -want : want, code);
        }
    }
    assert_int_equal(fl_tensor_to_f32(&t, 1, 2, out), FL_ARGUMENT);
    assert_int_equal(fl_tensor_to_f32(&t, 0, 3, out), FL_ARGUMENT);
}

/* Every value times the factor of its block, ragged at both edges, from the middle of a row on. */
static void test_f8_blocks(void **state)
{
    (void)state;
    enum { ROWS = 130, COLS = 300, BLOCKS = 2 * 3, FROM = 299 };
    static uint8_t values[ROWS * COLS];
    static float out[ROWS * COLS];
    float scale[BLOCKS];
    for (int i = 0; i < ROWS * COLS; i++)
        values[i] = (uint8_t)(i * 89 + i / 256);
    for (int i = 0; i < BLOCKS; i++)
        scale[i] = 0.3f * (float)(i + 1);
    fl_tensor t = {.dtype = FL_F8_BLOCK, .ndim = 2, .shape = {ROWS, COLS}, .data = values};
    assert_int_equal(fl_tensor_to_f32(&t, 0, 1, out), FL_ARGUMENT);
    t.block_scale = scale;
    assert_int_equal(fl_tensor_bytes(&t), sizeof values + sizeof scale);
    assert_int_equal(fl_tensor_to_f32(&t, FROM, ROWS * COLS - FROM, out), FL_OK);
    for (int i = FROM; i < ROWS * COLS; i++) {
        int block = i / COLS / 128 * 3 + i % COLS / 128;
        assert_same(out[i - FROM], define(values[i], 4, 3, false) * scale[block], (unsigned)i);
    }
}

static void test_mxfp4_pairs_refused(void **state)
{
    (void)state;
    const fl_tensor p = {.dtype = FL_U8, .ndim = 2, .shape = {4, 32}};
    const fl_tensor s = {.dtype = FL_U8, .ndim = 2, .shape = {4, 2}};
    fl_tensor t;
    fl_error e;
    assert_int_equal(fl_tensor_mxfp4(&p, &s, &t, &e), FL_OK); /* plan only: no data */
    assert_null(t.data);
    assert_null(t.scale);

    fl_tensor bad = s;
    bad.shape[1] = 3;
    assert_int_equal(fl_tensor_mxfp4(&p, &bad, &t, &e), FL_FORMAT);
    assert_non_null(strstr(e.message, "[4, 32]"));
    assert_non_null(strstr(e.message, "[4, 3]"));
    bad = s;
    bad.shape[0] = 5;
    assert_int_equal(fl_tensor_mxfp4(&p, &bad, &t, &e), FL_FORMAT);
    bad = s;
    bad.dtype = FL_BF16;
    assert_int_equal(fl_tensor_mxfp4(&p, &bad, &t, &e), FL_FORMAT);
    assert_non_null(strstr(e.message, "BF16"));
    bad = p;
    bad.shape[1] = 40; /* not whole groups */
    assert_int_equal(fl_tensor_mxfp4(&bad, &s, &t, &e), FL_FORMAT);
    bad = p;
    bad.ndim = 1;
    assert_int_equal(fl_tensor_mxfp4(&bad, &s, &t, &e), FL_FORMAT);
    bad = s;
    bad.data = &p;
    assert_int_equal(fl_tensor_mxfp4(&p, &bad, &t, &e), FL_NOTFOUND);
    fl_tensor huge = {.dtype = FL_U8, .ndim = 2, .shape = {INT64_MAX / 64, 32}}, hs = huge;
    hs.shape[1] = 2;
    assert_int_equal(fl_tensor_mxfp4(&huge, &hs, &t, &e), FL_FORMAT);
}

static void test_sizes_and_names(void **state)
{
    (void)state;
    static const int64_t shape[3] = {2, 3, 4}, empty[2] = {0, 5};
    static const int64_t wide[2] = {(int64_t)1 << 40, (int64_t)1 << 40};
    static const int64_t hidden[3] = {0, (int64_t)1 << 40, (int64_t)1 << 40};
    static const int64_t negative[2] = {3, -1};
    int64_t n;
    assert_true(fl_shape_elements(shape, 3, &n) && n == 24);
    assert_true(fl_shape_elements(shape, 0, &n) && n == 1);
    assert_true(fl_shape_elements(empty, 2, &n) && n == 0);
    assert_false(fl_shape_elements(wide, 2, &n));
    assert_false(fl_shape_elements(hidden, 3, &n));
    assert_false(fl_shape_elements(negative, 2, &n));

    char text[32];
    assert_string_equal(fl_shape_text(shape, 3, text, sizeof text), "[2, 3, 4]");
    assert_string_equal(fl_shape_text(shape, 0, text, sizeof text), "[]");
    assert_string_equal(fl_shape_text(shape, 3, text, 5), "[2, ");

    fl_dtype d;
    for (int i = 0; i < FL_MXFP4; i++) {
        assert_true(
            fl_dtype_parse(fl_dtype_name((fl_dtype)i), strlen(fl_dtype_name((fl_dtype)i)), &d));
        assert_int_equal(d, i);
    }
    assert_false(fl_dtype_parse("MXFP4", 5, &d));
    assert_false(fl_dtype_parse("F8_BLOCK", 8, &d));
    assert_false(fl_dtype_parse("F3", 2, &d));
    assert_false(fl_dtype_parse("F322", 4, &d));
}

/* Q8: within half a step of the largest of each block; what is no number spoils its block only. */
static void test_q8(void **state)
{
    (void)state;
    enum { ROWS = 5, COLS = 300, BLOCKS = 3, NAN_AT = 1 * COLS + 290, ZERO_ROW = 2, TINY_ROW = 4 };
    static float x[ROWS * COLS], y[ROWS * COLS], scale[ROWS * BLOCKS];
    static int8_t q[ROWS * BLOCKS * FL_Q8_BLOCK];
    uint32_t random = 1;
    for (int i = 0; i < ROWS * COLS; i++) {
        random = random * 1664525u + 1013904223u;
        float unit = (float)((int32_t)random >> 8) * 0x1p-23f;
        x[i] = i / COLS == ZERO_ROW ? 0 : i / COLS == TINY_ROW ? unit * 1e-44f : unit;
    }
    x[NAN_AT] = NAN;
    fl_tensor from = {.dtype = FL_F32, .ndim = 2, .shape = {ROWS, COLS}, .data = x};
    fl_tensor to = {
        .dtype = FL_Q8, .ndim = 2, .shape = {ROWS, COLS}, .data = q, .block_scale = scale};
    assert_int_equal(fl_tensor_bytes(&to), sizeof q + sizeof scale);
    fl_tensor_to_q8(&from, &to, 0, 2); /* in two parts, as workers do */
    fl_tensor_to_q8(&from, &to, 2, ROWS);
    assert_int_equal(fl_tensor_to_f32(&to, 0, ROWS * COLS, y), FL_OK);
    for (int i = 0; i < ROWS * COLS; i++) {
        int block = i / COLS * BLOCKS + i % COLS / FL_Q8_BLOCK;
        if (block == NAN_AT / COLS * BLOCKS + NAN_AT % COLS / FL_Q8_BLOCK)
            assert_true(isnan(y[i]));
        else
            assert_true(fabsf(y[i] - x[i]) <= scale[block] * 0.501f + 1e-43f);
    }
    assert_true(scale[0] > 0.007f && scale[0] <= 1.0f / 127);
    float one;
    assert_int_equal(fl_tensor_to_f32(&to, COLS + 7, 1, &one), FL_OK); /* any element alone */
    assert_true(one == y[COLS + 7]);
}

static void test_decoding_refused(void **state)
{
    (void)state;
    float data[4] = {1, -2, 3, 4}, out[4];
    fl_tensor t = {.dtype = FL_F32, .ndim = 1, .shape = {4}, .data = data};
    assert_int_equal(fl_tensor_to_f32(&t, 1, 3, out), FL_OK);
    assert_memory_equal(out, data + 1, 3 * sizeof *out);
    assert_int_equal(fl_tensor_to_f32(&t, 2, 3, out), FL_ARGUMENT);
    assert_int_equal(fl_tensor_to_f32(&t, -1, 1, out), FL_ARGUMENT);
    assert_int_equal(fl_tensor_to_f32(&t, 5, 0, out), FL_ARGUMENT);
    t.dtype = FL_I32;
    assert_int_equal(fl_tensor_to_f32(&t, 0, 4, out), FL_UNSUPPORTED);
    t.data = NULL;
    assert_int_equal(fl_tensor_to_f32(&t, 0, 4, out), FL_ARGUMENT);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_sixteen_bits),
        cmocka_unit_test(test_bf16_rounds_to_even),
        cmocka_unit_test(test_eight_bits),
        cmocka_unit_test(test_mxfp4),
        cmocka_unit_test(test_f8_blocks),
        cmocka_unit_test(test_mxfp4_pairs_refused),
        cmocka_unit_test(test_sizes_and_names),
        cmocka_unit_test(test_decoding_refused),
        cmocka_unit_test(test_q8),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
