/* Rows of caches: sizes and places, what is stored to the bit, errors within half a step, corners.
 * And E4M3, the way back: every code, every midpoint. */
#include "support/cmocka_all.h"
#include "support/rng.h"

#include "graph/cache_row.h"

#include <math.h>
#include <string.h>

enum { MOST = 700 };

static const fl_dtype types[] = {FL_F32, FL_BF16, FL_F8_E4M3, FL_I8};

static void test_sizes(void **state)
{
    (void)state;
    assert_int_equal(fl_cache_row_bytes(FL_F32, 576), 2304);
    assert_int_equal(fl_cache_row_bytes(FL_F32, 3), 12);
    assert_int_equal(fl_cache_row_bytes(FL_BF16, 576), 1152);
    assert_int_equal(fl_cache_row_bytes(FL_BF16, 3), 16);
    assert_int_equal(fl_cache_row_bytes(FL_F8_E4M3, 576), 608);
    assert_int_equal(fl_cache_row_bytes(FL_I8, 128), 144);
    assert_int_equal(fl_cache_row_bytes(FL_I8, 1), 32);
    assert_int_equal(fl_cache_scales_at(129), 144);
    assert_int_equal(fl_cache_groups(129), 2);
}

/* Random rows: the decoded element is as near as the type allows, the padding is zero, nothing is
 * written behind the row, and encoding what was decoded changes nothing. */
static void test_random_rows(void **state)
{
    (void)state;
    const uint64_t seed = 20261;
    rng r = {seed};
    print_message("seed %llu\n", (unsigned long long)seed);
    for (int round = 0; round < 400; round++) {
        float x[MOST], y[MOST], z[MOST];
        _Alignas(16) unsigned char row[4 * MOST + 64], again[4 * MOST + 64];
        int64_t n = rng_int(&r, 1, MOST);
        float size = ldexpf(1, (int)rng_int(&r, -90, 90));
        for (int64_t i = 0; i < n; i++)
            x[i] = rng_normal(&r) * size;
        for (size_t t = 0; t < sizeof types / sizeof *types; t++) {
            int64_t bytes = fl_cache_row_bytes(types[t], n);
            memset(row, 0xa5, sizeof row);
            fl_cache_encode(types[t], n, x, row);
            assert_int_equal(row[bytes], 0xa5);
            fl_cache_decode(types[t], n, row, y);
            for (int64_t i = 0; i < n; i++) {
                float top = 0, off = fabsf(y[i] - x[i]);
                for (int64_t j = i / 128 * 128; j < n && j < i / 128 * 128 + 128; j++)
                    top = fmaxf(top, fabsf(x[j]));
                float most = types[t] == FL_F32    ? 0
                             : types[t] == FL_BF16 ? fabsf(x[i]) / 256
                             : types[t] == FL_I8   ? top / 127 * 0.50001f
                                                   : fmaxf(fabsf(x[i]) / 16, top / 224 / 1024);
                if (off > most)
                    fail_msg("type %s, %lld of %lld: %.9g became %.9g", fl_dtype_name(types[t]),
                             (long long)i, (long long)n, x[i], y[i]);
            }
            if (fl_cache_scaled(types[t])) {
                for (int64_t i = n; i < fl_cache_scales_at(n); i++)
                    assert_int_equal(row[i], 0);
                for (int64_t i = fl_cache_scales_at(n) + 4 * fl_cache_groups(n); i < bytes; i++)
                    assert_int_equal(row[i], 0);
            }
            fl_cache_encode(types[t], n, y, again);
            fl_cache_decode(types[t], n, again, z);
            if (types[t] != FL_I8) /* there the scale is rounded anew */
                assert_memory_equal(z, y, (size_t)n * sizeof *z);
        }
    }
}

/* What a reader elsewhere relies on. */
static void test_stored_bits(void **state)
{
    (void)state;
    _Alignas(16) unsigned char row[32];
    const float x[4] = {127, -63.5f, 1.5f, -0.4f};
    fl_cache_encode(FL_I8, 4, x, row);
    const int8_t codes[4] = {127, -64, 2, 0}; /* halves go to even */
    assert_memory_equal(row, codes, 4);
    assert_true(fl_cache_scales(row, 4)[0] == 1);

    const float y[3] = {448, -1, 0x1p-9f};
    fl_cache_encode(FL_F8_E4M3, 3, y, row);
    const uint8_t bytes[3] = {0x7e, 0xb8, 0x01};
    assert_memory_equal(row, bytes, 3);
    assert_true(fl_cache_scales(row, 3)[0] == 1);
    const float above = nextafterf(448, 1000), tall[2] = {0x1p127f, 0};
    fl_cache_encode(FL_F8_E4M3, 1, &above, row);
    assert_true(fl_cache_scales(row, 1)[0] == 2);
    fl_cache_encode(FL_F8_E4M3, 2, tall, row);
    assert_true(fl_cache_scales(row, 2)[0] == 0x1p119f && row[0] == 0x78);
}

static void test_corners(void **state)
{
    (void)state;
    _Alignas(16) unsigned char row[640];
    float x[300], y[300];
    for (size_t t = 2; t < 4; t++) {
        static const float bad[] = {NAN, INFINITY, -INFINITY};
        for (int b = 0; b < 3; b++) { /* one bad number takes its group, and no other */
            for (int i = 0; i < 300; i++)
                x[i] = 1;
            x[130] = bad[b];
            fl_cache_encode(types[t], 300, x, row);
            fl_cache_decode(types[t], 300, row, y);
            for (int i = 0; i < 300; i++)
                assert_true(i / 128 == 1 ? isnan(y[i]) : y[i] == 1);
        }
        for (int i = 0; i < 300; i++)
            x[i] = i / 128 == 0 ? 0 : i / 128 == 1 ? 0x1p-101f : 0x1p-100f;
        fl_cache_encode(types[t], 300, x, row);
        fl_cache_decode(types[t], 300, row, y);
        for (int i = 0; i < 300; i++)
            assert_true(y[i] == (i / 128 == 2 ? 0x1p-100f : 0));
    }
    const float nan = NAN;
    fl_cache_encode(FL_BF16, 1, &nan, row);
    fl_cache_decode(FL_BF16, 1, row, y);
    assert_true(isnan(y[0]));
}

/* Every code comes back; what lies between two codes goes to the nearer, halves to the even one. */
static void test_e4m3(void **state)
{
    (void)state;
    for (int c = 0; c < 256; c++) {
        float x = fl_e4m3_to_f32((uint8_t)c);
        assert_int_equal(fl_f32_to_e4m3(x), c);
        if ((c & 0x7f) >= 0x7e)
            continue;
        float next = fl_e4m3_to_f32((uint8_t)(c + 1)), half = (x + next) / 2;
        assert_int_equal(fl_f32_to_e4m3(half), c % 2 ? c + 1 : c);
        assert_int_equal(fl_f32_to_e4m3(nextafterf(half, x)), c);
        assert_int_equal(fl_f32_to_e4m3(nextafterf(half, next)), c + 1);
    }
    assert_int_equal(fl_f32_to_e4m3(INFINITY), 0x7e);
    assert_int_equal(fl_f32_to_e4m3(-1e9f), 0xfe);
    assert_int_equal(fl_f32_to_e4m3(449), 0x7e);
    assert_int_equal(fl_f32_to_e4m3(0x1p-140f), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_sizes),       cmocka_unit_test(test_random_rows),
        cmocka_unit_test(test_stored_bits), cmocka_unit_test(test_corners),
        cmocka_unit_test(test_e4m3),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
