/* The vector abstraction: every level gives the bits of the base level, and the base level is what
 * the C language and libm say. */
#include "cpu/probe.h"
#include "support/cmocka_all.h"

#include "checkpoint/tensor.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

enum { LANES = FL_PROBE_LANES, ROUNDS = 4000 };

static uint64_t seed = 20240717;

static uint32_t next32(void)
{
    seed = seed * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(seed >> 32);
}

static float from_bits(uint32_t bits)
{
    float x;
    memcpy(&x, &bits, sizeof x);
    return x;
}

static uint32_t to_bits(float x)
{
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    return bits;
}

/* Any bits, ordinary numbers and special ones, in turn. */
static float any_float(void)
{
    static const uint32_t special[] = {0x00000000, 0x80000000, 0x7f800000, 0xff800000, 0x7fc00000,
                                       0x00000001, 0x807fffff, 0x00800000, 0x7f7fffff, 0x3f800000,
                                       0xbf800000, 0x42b17218, 0xc2aeac50, 0x3f20c49c, 0x4b800000};
    switch (next32() % 4) {
    case 0:
        return from_bits(next32());
    case 1:
        return from_bits(special[next32() % (sizeof special / sizeof *special)]);
    default:
        return ldexpf((float)(int32_t)next32(), (int)(next32() % 12) - 34);
    }
}

static void fill(float *x)
{
    for (int i = 0; i < LANES; i++)
        x[i] = any_float();
}

static bool same(float x, float y)
{
    return (isnan(x) && isnan(y)) || to_bits(x) == to_bits(y);
}

static void test_levels_agree(void **state)
{
    (void)state;
    for (const fl_probe *base = fl_probes(FL_ISA_BASE); base->name; base++) {
        for (int isa = FL_ISA_BASE + 1; isa <= (int)fl_probe_top(); isa++) {
            const fl_probe *p = fl_probe_find((fl_isa)isa, base->name);
            for (int round = 0; round < ROUNDS; round++) {
                float a[LANES], b[LANES], c[LANES], want[LANES], got[LANES];
                fill(a), fill(b), fill(c);
                base->run(a, b, c, want);
                p->run(a, b, c, got);
                for (int i = 0; i < LANES; i++) {
                    if (!same(want[i], got[i]))
                        fail_msg("%s %s lane %d round %d: %a, base has %a (a %a b %a c %a)",
                                 fl_isa_name((fl_isa)isa), p->name, i, round, got[i], want[i], a[i],
                                 b[i], c[i]);
                }
            }
        }
    }
}

/* One lane of the base level against a formula in plain C. */
typedef float (*formula)(float a, float b, float c);

static void check_lanes(const char *name, formula f)
{
    const fl_probe *p = fl_probe_find(FL_ISA_BASE, name);
    assert_non_null(p);
    for (int round = 0; round < 20 * ROUNDS; round++) {
        float a[LANES], b[LANES], c[LANES], got[LANES];
        fill(a), fill(b), fill(c);
        p->run(a, b, c, got);
        for (int i = 0; i < LANES; i++) {
            float want = f(a[i], b[i], c[i]);
            if (!same(want, got[i]))
                fail_msg("%s: %a, expected %a (a %a b %a c %a)", name, got[i], want, a[i], b[i],
                         c[i]);
        }
    }
}

static float fma_formula(float a, float b, float c)
{
    return fmaf(a, b, c);
}

static float max_formula(float a, float b, float c)
{
    (void)c;
    return a > b ? a : b;
}

static float less_formula(float a, float b, float c)
{
    return a < b ? a : c;
}

static float abs_formula(float a, float b, float c)
{
    (void)b, (void)c;
    return fabsf(a);
}

static void test_base_is_plain_c(void **state)
{
    (void)state;
    check_lanes("fma", fma_formula);
    check_lanes("max", max_formula);
    check_lanes("lt", less_formula);
    check_lanes("abs", abs_formula);
}

static void test_loads(void **state)
{
    (void)state;
    float a[LANES], b[LANES] = {0}, got[LANES];
    uint16_t half[2 * LANES];
    uint8_t bytes[4 * LANES];
    for (int round = 0; round < ROUNDS; round++) {
        fill(a);
        memcpy(half, a, sizeof half);
        memcpy(bytes, a, sizeof bytes);
        fl_probe_find(FL_ISA_BASE, "load_bf16")->run(a, a, a, got);
        for (int i = 0; i < LANES; i++)
            assert_true(same(got[i], fl_bf16_to_f32(half[i])));
        fl_probe_find(FL_ISA_BASE, "load_f16")->run(a, a, a, got);
        for (int i = 0; i < LANES; i++)
            assert_true(same(got[i], fl_f16_to_f32(half[i])));
        fl_probe_find(FL_ISA_BASE, "load_e4m3")->run(a, a, a, got);
        for (int i = 0; i < LANES; i++)
            assert_true(same(got[i], fl_e4m3_to_f32(bytes[i])));
        fl_probe_find(FL_ISA_BASE, "load_i8")->run(a, a, a, got);
        for (int i = 0; i < LANES; i++)
            assert_true(same(got[i], (int8_t)bytes[i]));
        b[0] = ldexpf(1, (int)(next32() % 250) - 125);
        fl_probe_find(FL_ISA_BASE, "mxfp4")->run(a, b, a, got);
        for (int i = 0; i < LANES; i++) {
            int code = i % 2 ? bytes[i / 2] >> 4 : bytes[i / 2] & 15;
            assert_true(same(got[i], fl_e2m1_table[code] * b[0]));
        }
    }
}

static void test_sums_are_a_tree(void **state)
{
    (void)state;
    for (int round = 0; round < ROUNDS; round++) {
        float a[LANES], b[LANES], c[LANES], got[LANES], x[LANES];
        fill(a), fill(b), fill(c);
        fl_probe_find(FL_ISA_BASE, "sums")->run(a, b, c, got);
        memcpy(x, b, sizeof x);
        for (int half = LANES / 2; half; half /= 2) {
            for (int i = 0; i < half; i++)
                x[i] += x[i + half];
        }
        assert_true(same(got[1], x[0]));
        for (int i = 0; i < 4; i++)
            assert_true(same(got[i], got[i + 4])); /* vf_sum4 is vf_sum */
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_levels_agree),
        cmocka_unit_test(test_base_is_plain_c),
        cmocka_unit_test(test_loads),
        cmocka_unit_test(test_sums_are_a_tree),
    };
    printf("seed %llu, levels up to %s\n", (unsigned long long)seed, fl_isa_name(fl_probe_top()));
    return cmocka_run_group_tests(tests, NULL, NULL);
}
