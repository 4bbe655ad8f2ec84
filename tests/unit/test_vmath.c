/* Elementary functions against libm in double, walked through all of float32 and densely where the
 * formulas change.  The error is counted in units in the last place of the exact result. */
#include "cpu/probe.h"
#include "support/cmocka_all.h"

#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

enum { LANES = FL_PROBE_LANES };

static double exact_sigmoid(double x)
{
    return 1 / (1 + exp(-x));
}

static double exact_silu(double x)
{
    return x * exact_sigmoid(x);
}

static double exact_softplus(double x)
{
    return x > 0 ? x + log1p(exp(-x)) : log1p(exp(x));
}

static double exact_gelu(double x)
{
    return 0.5 * x * erfc(-x * 0.70710678118654752440);
}

static const struct function {
    const char *name;
    double (*exact)(double);
    double bound; /* units in the last place */
    float at_minus_inf, at_inf;
    int floor; /* results below 2^floor are counted in units of 2^floor */
} functions[] = {
    {"exp", exp, 1.0, 0, INFINITY, -126},
    {"log", log, 1.0, NAN, INFINITY, -126},
    {"tanh", tanh, 2.0, -1, 1, -126},
    {"sigmoid", exact_sigmoid, 2.1, 0, 1, -126},
    {"silu", exact_silu, 3.0, -0.0f, INFINITY, -118},
    {"softplus", exact_softplus, 2.0, 0, INFINITY, -126},
    {"erf", erf, 2.0, -1, 1, -126},
    {"gelu", exact_gelu, 6.0, -0.0f, INFINITY, -118},
};

/* Distance in units in the last place of a float32 near the exact value. */
static double ulps(float got, double exact, int floor)
{
    if (isnan(exact) || isnan(got))
        return isnan(exact) && isnan(got) ? 0 : INFINITY;
    if ((double)got == exact || (float)exact == got)
        return 0;
    if (isinf(got))
        return INFINITY;
    int e;
    frexp(exact, &e);
    return fabs(got - exact) / ldexp(1, (e > floor ? e - 1 : floor) - 23);
}

static float from_bits(uint32_t bits)
{
    float x;
    memcpy(&x, &bits, sizeof x);
    return x;
}

/* Checks 16 arguments; returns the largest error and its place. */
static double worst_of(const struct function *f, const fl_probe *p, const float *x, float *where)
{
    float y[LANES];
    double worst = -1;
    p->run(x, x, x, y);
    for (int i = 0; i < LANES; i++) {
        double u = ulps(y[i], f->exact(x[i]), f->floor);
        if (u > worst) {
            worst = u;
            *where = x[i];
        }
    }
    return worst;
}

static void walk(const struct function *f, fl_isa isa, uint64_t step, bool print)
{
    const fl_probe *p = fl_probe_find(isa, f->name);
    assert_non_null(p);
    double worst = 0;
    float where = 0;
    /* All exponents and signs. */
    for (uint64_t bits = 0; bits < (uint64_t)1 << 32; bits += LANES * step) {
        float x[LANES], at;
        for (uint64_t i = 0; i < LANES; i++) {
            x[i] = from_bits((uint32_t)(bits + i * step));
            x[i] = isinf(x[i]) ? 0 : x[i];
        }
        double u = worst_of(f, p, x, &at);
        if (u > worst) {
            worst = u;
            where = at;
        }
    }
    /* The part where something happens. */
    for (int i = -130000; i < 130000; i += LANES) {
        float x[LANES], at;
        for (int j = 0; j < LANES; j++)
            x[j] = (float)(i + j) * 0.0008123f;
        double u = worst_of(f, p, x, &at);
        if (u > worst) {
            worst = u;
            where = at;
        }
    }
    if (print)
        printf("%-9s %.2f ulp at %a\n", f->name, worst, where);
    if (worst > f->bound)
        fail_msg("%s at %s: %.2f ulp at %a, bound %.2f", f->name, fl_isa_name(isa), worst, where,
                 f->bound);
}

static void test_errors(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof functions / sizeof *functions; i++) {
        walk(&functions[i], fl_probe_top(), 3001, true);
        walk(&functions[i], FL_ISA_BASE, 300007, false);
    }
}

static void test_limits(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof functions / sizeof *functions; i++) {
        const struct function *f = &functions[i];
        for (int isa = FL_ISA_BASE; isa <= (int)fl_probe_top(); isa++) {
            float x[LANES] = {-INFINITY, INFINITY, NAN}, y[LANES];
            fl_probe_find((fl_isa)isa, f->name)->run(x, x, x, y);
            assert_true(isnan(y[2]));
            for (int j = 0; j < 2; j++) {
                float want = j ? f->at_inf : f->at_minus_inf;
                bool same =
                    isnan(want) ? isnan(y[j]) : y[j] == want && !signbit(y[j]) == !signbit(want);
                if (!same)
                    fail_msg("%s(%f) is %f, expected %f", f->name, x[j], y[j], want);
            }
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_limits),
                                       cmocka_unit_test(test_errors)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
