/* simd.h on AVX-512 (F, BW, DQ, VL): a vector is one zmm register. */
#ifndef FL_OPS_CPU_SIMD_AVX512_H
#define FL_OPS_CPU_SIMD_AVX512_H

#include <immintrin.h>

typedef __m512 vf;
typedef __m512i vi;
typedef __mmask16 vm;
typedef __m512 vmx;

FL_INLINE vm vm_first(int n)
{
    return (vm)((1u << n) - 1u);
}
FL_INLINE vm vm_and(vm a, vm b)
{
    return a & b;
}
FL_INLINE vm vm_or(vm a, vm b)
{
    return a | b;
}
FL_INLINE vm vm_not(vm a)
{
    return (vm)~a;
}

FL_INLINE uint32_t vm_bits(vm a)
{
    return a;
}

FL_INLINE vf vf_zero(void)
{
    return _mm512_setzero_ps();
}
FL_INLINE vf vf_set1(float x)
{
    return _mm512_set1_ps(x);
}
FL_INLINE vf vf_load(const float *p)
{
    return _mm512_loadu_ps(p);
}
FL_INLINE vf vf_loadn(const float *p, int n)
{
    return _mm512_maskz_loadu_ps(vm_first(n), p);
}
FL_INLINE void vf_store(float *p, vf a)
{
    _mm512_storeu_ps(p, a);
}
FL_INLINE void vf_storen(float *p, vf a, int n)
{
    _mm512_mask_storeu_ps(p, vm_first(n), a);
}

FL_INLINE vf vf_from_bf16(__m256i x)
{
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(x), 16));
}
FL_INLINE vf vf_load_bf16(const uint16_t *p)
{
    return vf_from_bf16(_mm256_loadu_si256((const __m256i *)p));
}
/* The numbers from p on in *low, the sixteen after them in *high: one load, and a permutation each
 * that leaves the lower half of every lane 0. */
FL_INLINE void vf_load_bf16_2(const uint16_t *p, vf *low, vf *high)
{
    const __m512i order =
        _mm512_set_epi32(15 << 16, 14 << 16, 13 << 16, 12 << 16, 11 << 16, 10 << 16, 9 << 16,
                         8 << 16, 7 << 16, 6 << 16, 5 << 16, 4 << 16, 3 << 16, 2 << 16, 1 << 16, 0);
    const __m512i upper = _mm512_or_si512(order, _mm512_set1_epi32(16 << 16));
    __m512i both = _mm512_loadu_si512(p);
    *low = _mm512_castsi512_ps(_mm512_maskz_permutexvar_epi16(0xaaaaaaaa, order, both));
    *high = _mm512_castsi512_ps(_mm512_maskz_permutexvar_epi16(0xaaaaaaaa, upper, both));
}
FL_INLINE vf vf_loadn_bf16(const uint16_t *p, int n)
{
    return vf_from_bf16(_mm256_maskz_loadu_epi16(vm_first(n), p));
}
FL_INLINE vf vf_load_i8(const int8_t *p)
{
    return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128((const __m128i *)p)));
}
FL_INLINE vi vi_load_u8(const uint8_t *p)
{
    return _mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i *)p));
}
FL_INLINE vf vf_from_f16(__m256i x)
{
    return _mm512_cvtph_ps(x);
}
FL_INLINE vf vf_load_f16(const uint16_t *p)
{
    return vf_from_f16(_mm256_loadu_si256((const __m256i *)p));
}
FL_INLINE vf vf_loadn_f16(const uint16_t *p, int n)
{
    return vf_from_f16(_mm256_maskz_loadu_epi16(vm_first(n), p));
}

FL_INLINE vf vf_load_pairs(const int8_t *even, const int8_t *odd)
{
    __m128i e = _mm_loadl_epi64((const __m128i *)even), o = _mm_loadl_epi64((const __m128i *)odd);
    return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_unpacklo_epi8(e, o)));
}

FL_INLINE vmx vmx_table(float scale)
{
    return _mm512_mul_ps(_mm512_loadu_ps(fl_e2m1_table), _mm512_set1_ps(scale));
}
/* The lookup reads only the low four bits of a lane: what stands above a code may stay there. */
FL_INLINE vf vmx_load(vmx t, const uint8_t *codes)
{
    int64_t bits;
    memcpy(&bits, codes, sizeof bits);
    __m512i c = _mm512_set1_epi64(bits);
#if defined(__AVX512VBMI__)
    /* 64-bit part j: bits from 8j to its low half, bits from 8j + 4 to its high half */
    c = _mm512_multishift_epi64_epi8(_mm512_set_epi64(0x3c00000038, 0x3400000030, 0x2c00000028,
                                                      0x2400000020, 0x1c00000018, 0x1400000010,
                                                      0x0c00000008, 0x0400000000),
                                     c);
#else
    c = _mm512_shuffle_epi8(c, _mm512_set_epi32(7, 7, 6, 6, 5, 5, 4, 4, 3, 3, 2, 2, 1, 1, 0, 0));
    c = _mm512_srlv_epi32(c, _mm512_set1_epi64(0x400000000));
#endif
    return _mm512_permutexvar_ps(c, t);
}

FL_INLINE vf vf_add(vf a, vf b)
{
    return _mm512_add_ps(a, b);
}
FL_INLINE vf vf_sub(vf a, vf b)
{
    return _mm512_sub_ps(a, b);
}
FL_INLINE vf vf_mul(vf a, vf b)
{
    return _mm512_mul_ps(a, b);
}
FL_INLINE vf vf_div(vf a, vf b)
{
    return _mm512_div_ps(a, b);
}
FL_INLINE vf vf_sqrt(vf a)
{
    return _mm512_sqrt_ps(a);
}
FL_INLINE vf vf_fma(vf a, vf b, vf c)
{
    return _mm512_fmadd_ps(a, b, c);
}
FL_INLINE vf vf_neg(vf a)
{
    return _mm512_xor_ps(a, _mm512_set1_ps(-0.0f));
}
FL_INLINE vf vf_abs(vf a)
{
    return _mm512_andnot_ps(_mm512_set1_ps(-0.0f), a);
}
FL_INLINE vf vf_min(vf a, vf b)
{
    return _mm512_min_ps(a, b);
}
FL_INLINE vf vf_max(vf a, vf b)
{
    return _mm512_max_ps(a, b);
}
FL_INLINE vm vf_lt(vf a, vf b)
{
    return _mm512_cmp_ps_mask(a, b, _CMP_LT_OQ);
}
FL_INLINE vm vf_le(vf a, vf b)
{
    return _mm512_cmp_ps_mask(a, b, _CMP_LE_OQ);
}
FL_INLINE vm vf_eq(vf a, vf b)
{
    return _mm512_cmp_ps_mask(a, b, _CMP_EQ_OQ);
}
FL_INLINE vf vf_select(vm m, vf a, vf b)
{
    return _mm512_mask_blend_ps(m, b, a);
}

FL_INLINE vi vf_to_vi(vf a)
{
    return _mm512_cvtps_epi32(a);
}
FL_INLINE vf vi_to_vf(vi a)
{
    return _mm512_cvtepi32_ps(a);
}
FL_INLINE vi vf_bits(vf a)
{
    return _mm512_castps_si512(a);
}
FL_INLINE vf vi_float(vi a)
{
    return _mm512_castsi512_ps(a);
}
FL_INLINE vi vi_set1(int32_t x)
{
    return _mm512_set1_epi32(x);
}
FL_INLINE vi vi_load(const int32_t *p)
{
    return _mm512_loadu_si512(p);
}
FL_INLINE void vi_store(int32_t *p, vi a)
{
    _mm512_storeu_si512(p, a);
}
FL_INLINE vi vi_add(vi a, vi b)
{
    return _mm512_add_epi32(a, b);
}
FL_INLINE vi vi_sub(vi a, vi b)
{
    return _mm512_sub_epi32(a, b);
}
FL_INLINE vi vi_and(vi a, vi b)
{
    return _mm512_and_si512(a, b);
}
FL_INLINE vi vi_or(vi a, vi b)
{
    return _mm512_or_si512(a, b);
}
FL_INLINE vi vi_xor(vi a, vi b)
{
    return _mm512_xor_si512(a, b);
}
FL_INLINE vi vi_shl(vi a, int n)
{
    return _mm512_slli_epi32(a, (unsigned)n);
}
FL_INLINE vi vi_sar(vi a, int n)
{
    return _mm512_srai_epi32(a, (unsigned)n);
}
FL_INLINE vi vi_max(vi a, vi b)
{
    return _mm512_max_epi32(a, b);
}
FL_INLINE vm vi_lt(vi a, vi b)
{
    return _mm512_cmplt_epi32_mask(a, b);
}
FL_INLINE vm vi_eq(vi a, vi b)
{
    return _mm512_cmpeq_epi32_mask(a, b);
}

/* The lower half of a and the upper half of a. */
FL_INLINE __m256 vf_low(vf a)
{
    return _mm512_castps512_ps256(a);
}
FL_INLINE __m256 vf_high(vf a)
{
    return _mm512_extractf32x8_ps(a, 1);
}
FL_INLINE __m256i vi_low(vi a)
{
    return _mm512_castsi512_si256(a);
}
FL_INLINE __m256i vi_high(vi a)
{
    return _mm512_extracti64x4_epi64(a, 1);
}

#define FL_VI_PAIRS
FL_INLINE int vi_pairs(vi high, vi low, uint32_t bits, uint64_t *out)
{
    vi a = vi_or(_mm512_slli_epi64(_mm512_cvtepu32_epi64(vi_low(high)), 32),
                 _mm512_cvtepu32_epi64(vi_low(low)));
    vi b = vi_or(_mm512_slli_epi64(_mm512_cvtepu32_epi64(vi_high(high)), 32),
                 _mm512_cvtepu32_epi64(vi_high(low)));
    int n = __builtin_popcount(bits & 255);
    _mm512_storeu_si512(out, _mm512_maskz_compress_epi64((__mmask8)bits, a));
    _mm512_storeu_si512(out + n, _mm512_maskz_compress_epi64((__mmask8)(bits >> 8), b));
    return n + __builtin_popcount(bits >> 8);
}

typedef vf vp;
enum { FL_PART = 16 };
#define vp_zero vf_zero
#define vp_set1 vf_set1
#define vp_load vf_load
#define vp_store vf_store
#define vp_fma vf_fma
#define vp_max vf_max

/* Four elements of the rows at p, p + ld, p + 2 ld and p + 3 ld. */
FL_INLINE vf vf_quads(const float *p, int64_t ld)
{
    vf a = _mm512_castps128_ps512(_mm_loadu_ps(p));
    a = _mm512_mask_broadcast_f32x4(a, 0x00f0, _mm_loadu_ps(p + ld));
    a = _mm512_mask_broadcast_f32x4(a, 0x0f00, _mm_loadu_ps(p + 2 * ld));
    return _mm512_mask_broadcast_f32x4(a, 0xf000, _mm_loadu_ps(p + 3 * ld));
}
FL_INLINE void vp_columns(const float *in, int64_t ldi, float *out, int64_t ldo)
{
    vf a = vf_quads(in, 4 * ldi), b = vf_quads(in + ldi, 4 * ldi);
    vf c = vf_quads(in + 2 * ldi, 4 * ldi), d = vf_quads(in + 3 * ldi, 4 * ldi);
    __m512d ab = _mm512_castps_pd(_mm512_unpacklo_ps(a, b));
    __m512d cd = _mm512_castps_pd(_mm512_unpacklo_ps(c, d));
    vf_store(out, _mm512_castpd_ps(_mm512_unpacklo_pd(ab, cd)));
    vf_store(out + ldo, _mm512_castpd_ps(_mm512_unpackhi_pd(ab, cd)));
    ab = _mm512_castps_pd(_mm512_unpackhi_ps(a, b));
    cd = _mm512_castps_pd(_mm512_unpackhi_ps(c, d));
    vf_store(out + 2 * ldo, _mm512_castpd_ps(_mm512_unpacklo_pd(ab, cd)));
    vf_store(out + 3 * ldo, _mm512_castpd_ps(_mm512_unpackhi_pd(ab, cd)));
}

#include "ops/cpu/simd_x86.h"

/* The sums of eight vectors, each as vf_sum. */
FL_INLINE __m256 vf_sum8(const vf *a)
{
    vf b[4], c[2];
    FL_UNROLL
    for (int i = 0; i < 4; i++)
        b[i] = vf_add(_mm512_shuffle_f32x4(a[2 * i], a[2 * i + 1], 0x44),
                      _mm512_shuffle_f32x4(a[2 * i], a[2 * i + 1], 0xee));
    FL_UNROLL
    for (int i = 0; i < 2; i++)
        c[i] = vf_add(_mm512_shuffle_f32x4(b[2 * i], b[2 * i + 1], 0x88),
                      _mm512_shuffle_f32x4(b[2 * i], b[2 * i + 1], 0xdd));
    vf d = vf_add(
        _mm512_castpd_ps(_mm512_unpacklo_pd(_mm512_castps_pd(c[0]), _mm512_castps_pd(c[1]))),
        _mm512_castpd_ps(_mm512_unpackhi_pd(_mm512_castps_pd(c[0]), _mm512_castps_pd(c[1]))));
    d = vf_add(d, _mm512_permute_ps(d, 0xb1));
    vi order = _mm512_set_epi32(0, 0, 0, 0, 0, 0, 0, 0, 14, 10, 6, 2, 12, 8, 4, 0);
    return _mm512_castps512_ps256(_mm512_permutexvar_ps(order, d));
}

#endif
