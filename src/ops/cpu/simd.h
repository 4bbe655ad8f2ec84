/* The one abstraction that all CPU kernels are written on: a vector of 16 float32 lanes.
 *
 *   vf   16 floats: one zmm (AVX-512), two ymm (AVX2), an array of 16 (any processor)
 *   vi   16 int32
 *   vm   16 truth values
 *   vmx  an MXFP4 code table, multiplied by the scale of a group
 *   vp   a part of a vf that fits one register, FL_PART lanes: for tiles of many accumulators
 *
 * A function means the same for every lane at every level, bit for bit (the bits of a NaN
 * excepted), so a kernel written on vf gives the same result at all levels; tests/unit/test_simd.c
 * holds the levels against each other.  Contraction is off (-ffp-contract=off): a fused
 * multiply-add happens where vf_fma stands and nowhere else.
 *
 *   vf_zero() vf_set1(x)
 *   vf_load(p) vf_store(p, a)          16 elements, no alignment asked
 *   vf_loadn(p, n) vf_storen(p, a, n)  the first n (0..16); the rest reads as 0, memory untouched
 *   vf_load_bf16(p) vf_loadn_bf16(p, n) vf_load_f16(p) vf_loadn_f16(p, n)   widened, exact
 *   vf_load_i8(p) vf_loadn_i8(p, n)    signed bytes
 *   vi_load_u8(p)                      bytes
 *   vmx_table(scale) vmx_load(t, codes)  16 codes from 8 bytes, low nibble first
 *   vf_add vf_sub vf_mul vf_div vf_sqrt vf_neg vf_abs
 *   vf_fma(a, b, c)                    a * b + c, rounded once
 *   vf_min(a, b)                       a < b ? a : b   (b when one is NaN)
 *   vf_max(a, b)                       a > b ? a : b   (b when one is NaN)
 *   vf_lt vf_le vf_eq                  false when one is NaN
 *   vf_select(m, a, b)                 m ? a : b
 *   vm_and vm_or vm_not
 *   vm_bits(m)                         bit l is lane l
 *   vf_to_vi(a)                        nearest even; |a| < 2^31
 *   vi_to_vf vf_bits vi_float          value conversion; the bits as they are, both ways
 *   vi_set1 vi_load vi_store vi_add vi_sub vi_and vi_or vi_xor vi_shl vi_sar (by a constant) vi_max
 *   vi_lt vi_eq
 *   vi_pairs(high, low, bits, out)     of the lanes whose bit is set, in order, high above low as
 *                                      64 bits; returns how many; may write 16 in any case
 *   vf_sum(a)                          see below
 *   vf_sum4(a, b, c, d, out)           the four sums, each as vf_sum
 *   vp_zero() vp_set1(x) vp_load(p) vp_store(p, a) vp_fma(a, b, c) vp_max(a, b)
 *   vp_columns(in, ldi, out, ldo)      FL_PART rows of 4 elements become 4 rows of FL_PART
 *   vf_hmax(a)                         the largest lane, by vf_max in the order of vf_sum
 *   vi_hmax(a)
 *
 * vf_sum adds in one fixed tree: lane l to l + 8, then l + 4, l + 2, l + 1.  The dot product of the
 * kernels (lane l of the accumulator takes k = l mod 16 in ascending order, then vf_sum) is thereby
 * one fixed order of summation. */
#ifndef FL_OPS_CPU_SIMD_H
#define FL_OPS_CPU_SIMD_H

#include "checkpoint/tensor.h"

#include <math.h>
#include <stdint.h>
#include <string.h>

/* A sanitizer instruments every lane access of the plain form; inlined everywhere that takes the
 * compiler minutes and a gigabyte, so there the functions stay functions. */
#if defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
#define FL_SANITIZED
#endif
#endif
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__) || defined(FL_SANITIZED)
#define FL_INLINE static inline __attribute__((unused))
#else
#define FL_INLINE static inline __attribute__((always_inline))
#endif

/* Before a loop of constant length over vectors that must live in registers. */
#if defined(__clang__)
#define FL_UNROLL _Pragma("unroll")
#else
#define FL_UNROLL _Pragma("GCC unroll 16")
#endif

enum { FL_LANES = 16 };

#if defined(__AVX512F__) && defined(__AVX512BW__) && defined(__AVX512DQ__) && defined(__AVX512VL__)
#include "ops/cpu/simd_avx512.h"
#elif defined(__AVX2__) && defined(__FMA__) && defined(__F16C__)
#include "ops/cpu/simd_avx2.h"
#else
#include "ops/cpu/simd_base.h"
#endif

#ifndef FL_VI_PAIRS
FL_INLINE int vi_pairs(vi high, vi low, uint32_t bits, uint64_t *out)
{
    int32_t h[16], l[16];
    int n = 0;
    vi_store(h, high);
    vi_store(l, low);
    for (int i = 0; i < 16; i++) {
        out[n] = (uint64_t)(uint32_t)h[i] << 32 | (uint32_t)l[i];
        n += (int)(bits >> i & 1);
    }
    return n;
}
#endif

#endif
