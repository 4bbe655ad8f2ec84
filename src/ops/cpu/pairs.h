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

/* Word l is a[l] and b[l], rounded. */
FL_INLINE vf vf_zip(vf a, vf b)
{
    const vi order = _mm512_set_epi32(0x1f000f, 0x1e000e, 0x1d000d, 0x1c000c, 0x1b000b, 0x1a000a,
                                      0x190009, 0x180008, 0x170007, 0x160006, 0x150005, 0x140004,
                                      0x130003, 0x120002, 0x110001, 0x100000);
    return _mm512_castsi512_ps(
        _mm512_permutexvar_epi16(order, _mm512_castps_si512(vf_round(a, b))));
}

/* Of two rows of 32 numbers: word l is element l of a and of b, of the lower 16 or the upper. */
FL_INLINE vf vf_zip_low(vf a, vf b)
{
    const vi order = _mm512_set_epi32(0x2f000f, 0x2e000e, 0x2d000d, 0x2c000c, 0x2b000b, 0x2a000a,
                                      0x290009, 0x280008, 0x270007, 0x260006, 0x250005, 0x240004,
                                      0x230003, 0x220002, 0x210001, 0x200000);
    return _mm512_castsi512_ps(
        _mm512_permutex2var_epi16(_mm512_castps_si512(a), order, _mm512_castps_si512(b)));
}
FL_INLINE vf vf_zip_high(vf a, vf b)
{
    const vi order = _mm512_set_epi32(0x3f001f, 0x3e001e, 0x3d001d, 0x3c001c, 0x3b001b, 0x3a001a,
                                      0x390019, 0x380018, 0x370017, 0x360016, 0x350015, 0x340014,
                                      0x330013, 0x320012, 0x310011, 0x300010);
    return _mm512_castsi512_ps(
        _mm512_permutex2var_epi16(_mm512_castps_si512(a), order, _mm512_castps_si512(b)));
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
