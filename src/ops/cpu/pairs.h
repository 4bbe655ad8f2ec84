/* Pairs of BF16 numbers in words of 32 bits, the first one in the lower half: what the dot
 * instruction of precision fast works on (vdpbf16ps).  A vector of 16 words is a vi, or a vf where
 * it is moved, turned and broadcast like one; words in memory are carried as floats.  The
 * instruction takes denormal numbers for zero. */
#ifndef FL_OPS_CPU_PAIRS_H
#define FL_OPS_CPU_PAIRS_H

#include "ops/cpu/simd.h"

#if defined(__AVX512BF16__)

/* acc plus the products of both halves.  Left to itself gcc moves accumulators through memory
 * around the intrinsic. */
FL_INLINE vf vf_dot(vf acc, vi a, vi b)
{
    __asm__("vdpbf16ps %2, %1, %0" : "+v"(acc) : "v"(a), "v"(b));
    return acc;
}

/* 32 numbers, rounded, in their order: word l is elements 2 l and 2 l + 1. */
FL_INLINE vf vf_round(vf low, vf high)
{
    return _mm512_castsi512_ps((vi)_mm512_cvtne2ps_pbh(high, low));
}

/* For a choice of 16-bit numbers: word l takes numbers low + l and high + l. */
FL_INLINE vi zip_order(int low, int high)
{
    const vi lane =
        _mm512_mullo_epi32(_mm512_set_epi32(15, 14, 13, 12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0),
                           _mm512_set1_epi32(0x10001));
    return _mm512_add_epi32(lane, _mm512_set1_epi32(high << 16 | low));
}

/* Word l is a[l] and b[l], rounded. */
FL_INLINE vf vf_zip(vf a, vf b)
{
    return _mm512_castsi512_ps(
        _mm512_permutexvar_epi16(zip_order(0, 16), _mm512_castps_si512(vf_round(a, b))));
}

/* Of two rows of 32 numbers: word l is element first + l of a and of b; first: 0 or 16. */
FL_INLINE vf vf_zip_rows(vf a, vf b, int first)
{
    return _mm512_castsi512_ps(_mm512_permutex2var_epi16(
        _mm512_castps_si512(a), zip_order(first, 32 + first), _mm512_castps_si512(b)));
}

/* n floats at x become words at out, whole vectors of them, filled up with zeros.  out may be x. */
FL_INLINE void fl_pairs_round(const float *x, int64_t n, float *out)
{
    for (int64_t i = 0; i < n; i += 2 * FL_LANES) {
        int64_t left = n - i;
        vf low = vf_loadn(x + i, left < FL_LANES ? (int)left : FL_LANES), high = vf_zero();
        if (left > FL_LANES)
            high =
                vf_loadn(x + i + FL_LANES, left < 2 * FL_LANES ? (int)left - FL_LANES : FL_LANES);
        vf_store(out + i / 2, vf_round(low, high));
    }
}

#endif

/* Words of n numbers, and the same in whole vectors. */
static inline int64_t fl_pairs_words(int64_t n)
{
    return (n + 1) / 2;
}

#endif
