/* Elementary functions of 16 lanes, on the vectors of simd.h: the same bits at every level.
 *
 * The error is relative, at most about two units in the last place over the whole range of float32
 * (tests/unit/test_vmath.c walks it), three for silu, six for gelu; subnormal results count too,
 * but silu and gelu lose bits below 2^-118.  Limits are those of the mathematical function:
 * sigmoid(-inf) is 0, silu(-inf) and gelu(-inf) are -0; NaN gives NaN.
 *
 * Polynomials are minimax fits on the interval named at each; all are evaluated by Horner's rule
 * with fused multiply-adds. */
#ifndef FL_OPS_CPU_VMATH_H
#define FL_OPS_CPU_VMATH_H

#include "ops/cpu/simd.h"

#include <float.h>

/* c[0] + c[1] x + ... + c[n - 1] x^(n - 1) */
FL_INLINE vf vf_poly(vf x, const float *c, int n)
{
    vf r = vf_set1(c[n - 1]);
    FL_UNROLL
    for (int i = n - 2; i >= 0; i--)
        r = vf_fma(r, x, vf_set1(c[i]));
    return r;
}

/* a with the sign of s added to it */
FL_INLINE vf vf_signed_as(vf a, vf s)
{
    return vi_float(vi_or(vf_bits(a), vi_and(vf_bits(s), vi_set1(INT32_MIN))));
}

/* a, but not below the lowest finite number, so that a times 0 stays a number */
FL_INLINE vf vf_finite_below(vf a)
{
    return vf_max(vf_set1(-FLT_MAX), a);
}

/* e^x = 2^n e^r with |r| <= ln(2)/2.  2^n is applied in two factors: n reaches from -150 to 128. */
FL_INLINE vf vf_exp(vf x)
{
    static const float q[] = {0x1.fffffcp-2f, 0x1.555490p-3f, 0x1.5558f4p-5f, 0x1.123a6cp-7f,
                              0x1.6a2352p-10f}; /* (e^r - 1 - r) / r^2 */
    x = vf_max(vf_set1(-104.0f), vf_min(vf_set1(89.0f), x));
    vi n = vf_to_vi(vf_mul(x, vf_set1(0x1.715476p+0f)));
    vf nf = vi_to_vf(n);
    vf r = vf_fma(nf, vf_set1(-0x1.62e400p-1f), x);
    r = vf_fma(nf, vf_set1(-0x1.7f7d1cp-20f), r);
    vf p = vf_add(vf_fma(vf_mul(r, r), vf_poly(r, q, 5), r), vf_set1(1.0f));
    vi half = vi_sar(n, 1), rest = vi_sub(n, half), bias = vi_set1(127);
    p = vf_mul(p, vi_float(vi_shl(vi_add(half, bias), 23)));
    return vf_mul(p, vi_float(vi_shl(vi_add(rest, bias), 23)));
}

/* The small part t of log(1 + f) = f + t, for f in [sqrt(1/2) - 1, 1]. */
FL_INLINE vf vf_log1p_rest(vf f)
{
    static const float q[] = {0x1.555500p-1f, 0x1.99d27cp-2f, 0x1.1eb612p-2f,
                              0x1.1ef870p-2f}; /* (2 atanh(s) / s - 2) / s^2, |s| <= 1/3 */
    vf s = vf_div(f, vf_add(f, vf_set1(2.0f)));
    vf z = vf_mul(s, s), half = vf_mul(vf_mul(f, f), vf_set1(0.5f));
    return vf_sub(vf_mul(s, vf_fma(z, vf_poly(z, q, 4), half)), half);
}

FL_INLINE vf vf_log(vf x)
{
    vm tiny = vf_lt(x, vf_set1(FLT_MIN));
    vf y = vf_select(tiny, vf_mul(x, vf_set1(0x1p23f)), x);
    vi i = vi_sub(vf_bits(y), vi_set1(0x3f3504f3)); /* sqrt(1/2) */
    vi e = vi_sar(i, 23);
    vf f = vf_sub(vi_float(vi_sub(vf_bits(y), vi_shl(e, 23))), vf_set1(1.0f));
    vf n = vf_sub(vi_to_vf(e), vf_select(tiny, vf_set1(23.0f), vf_zero()));
    vf t = vf_fma(n, vf_set1(0x1.7f7d1cp-20f), vf_log1p_rest(f));
    vf r = vf_fma(n, vf_set1(0x1.62e400p-1f), vf_add(f, t));
    vf edge = vf_select(vf_eq(x, vf_zero()), vf_set1(-INFINITY), vf_set1(NAN));
    r = vf_select(vf_lt(vf_zero(), x), r, edge);
    return vf_select(vf_eq(x, vf_set1(INFINITY)), x, r);
}

FL_INLINE vf vf_tanh(vf x)
{
    static const float q[] = {-0x1.555534p-2f, 0x1.110768p-3f, -0x1.b84448p-5f, 0x1.5256d8p-6f,
                              -0x1.76ac1ap-8f}; /* (tanh(x) / x - 1) / x^2, |x| <= 0.625 */
    vf a = vf_abs(x), z = vf_mul(x, x), one = vf_set1(1.0f);
    vf near_zero = vf_fma(vf_mul(x, z), vf_poly(z, q, 5), x);
    vf e = vf_exp(vf_add(a, a));
    vf far = vf_sub(one, vf_div(vf_set1(2.0f), vf_add(e, one)));
    return vf_select(vf_lt(a, vf_set1(0.625f)), near_zero, vf_signed_as(far, x));
}

FL_INLINE vf vf_sigmoid(vf x)
{
    vf e = vf_exp(vf_neg(vf_abs(x))), one = vf_set1(1.0f);
    return vf_div(vf_select(vf_lt(x, vf_zero()), e, one), vf_add(one, e));
}

FL_INLINE vf vf_silu(vf x)
{
    return vf_mul(vf_finite_below(x), vf_sigmoid(x));
}

FL_INLINE vf vf_softplus(vf x)
{
    vf e = vf_exp(vf_neg(vf_abs(x)));
    return vf_add(vf_max(vf_zero(), x), vf_add(e, vf_log1p_rest(e)));
}

/* erf(x) / x - 1 as a polynomial in x^2, |x| <= 0.85 */
FL_INLINE vf vf_erf_rest(vf z)
{
    static const float q[] = {0x1.06eba8p-3f,  -0x1.81271ap-2f, 0x1.ce23dep-4f,
                              -0x1.b72208p-6f, 0x1.4b074ep-8f,  -0x1.4b183ap-11f};
    return vf_poly(z, q, 6);
}

/* erfc(z) e^(z^2) for z >= 0.49: t times a polynomial in t = 1 / (z + 2.5) */
FL_INLINE vf vf_erfcx(vf z)
{
    static const float q[] = {0x1.20de76p-1f, 0x1.68eaeep+0f,  0x1.a1fe88p+1f,
                              0x1.93ba9cp+2f, 0x1.030e2cp+4f,  -0x1.aeb734p+3f,
                              0x1.15e21ap+7f, -0x1.4fdc14p+8f, 0x1.ca5386p+7f};
    vf t = vf_div(vf_set1(1.0f), vf_add(z, vf_set1(2.5f)));
    return vf_mul(t, vf_poly(t, q, 9));
}

FL_INLINE vf vf_erf(vf x)
{
    vf a = vf_abs(x), z = vf_mul(x, x);
    vf near_zero = vf_fma(x, vf_erf_rest(z), x);
    vf far = vf_sub(vf_set1(1.0f), vf_mul(vf_exp(vf_neg(z)), vf_erfcx(a)));
    return vf_select(vf_lt(a, vf_set1(0.85f)), near_zero, vf_signed_as(far, x));
}

/* x (1 + erf(x / sqrt 2)) / 2 = x erfc(z) / 2 for negative x, z = |x| / sqrt 2, where erfc takes
 * its exponent x^2 / 2 in two parts: it is large and its error would show. */
FL_INLINE vf vf_gelu(vf x)
{
    vf a = vf_min(vf_set1(20.0f), vf_abs(x)), z = vf_mul(a, vf_set1(0x1.6a09e6p-1f));
    vf near_zero = vf_sub(vf_set1(1.0f), vf_fma(z, vf_erf_rest(vf_mul(z, z)), z));
    vf aa = vf_mul(a, a), lost = vf_mul(vf_fma(a, a, vf_neg(aa)), vf_set1(0.5f));
    vf e = vf_exp(vf_mul(aa, vf_set1(-0.5f)));
    vf far = vf_mul(vf_fma(e, vf_neg(lost), e), vf_erfcx(z));
    vf h = vf_mul(vf_select(vf_lt(z, vf_set1(0.5f)), near_zero, far), vf_set1(0.5f));
    vf minus = vf_neg(vf_min(vf_set1(FLT_MAX), x)); /* finite: h may be 0 */
    return vf_select(vf_lt(x, vf_zero()), vf_mul(vf_finite_below(x), h), vf_fma(minus, h, x));
}

#endif
