/* simd.h on x86-64-v3 (AVX2, FMA, F16C): a vector is two ymm registers. */
#ifndef FL_OPS_CPU_SIMD_AVX2_H
#define FL_OPS_CPU_SIMD_AVX2_H

#include <immintrin.h>

typedef struct vf {
    __m256 lo, hi;
} vf;
typedef struct vi {
    __m256i lo, hi;
} vi;
typedef struct vm {
    __m256 lo, hi; /* a lane is all ones or zero */
} vm;
typedef __m256 vmx; /* the eight magnitudes; the sign of a code is a bit of its own */

/* The lower half of a and the upper half of a. */
FL_INLINE __m256 vf_low(vf a)
{
    return a.lo;
}
FL_INLINE __m256 vf_high(vf a)
{
    return a.hi;
}
FL_INLINE __m256i vi_low(vi a)
{
    return a.lo;
}
FL_INLINE __m256i vi_high(vi a)
{
    return a.hi;
}

/* The first n lanes (0..16). */
FL_INLINE vi vi_first(int n)
{
    __m256i c = _mm256_set1_epi32(n), i = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
    return (vi){_mm256_cmpgt_epi32(c, i),
                _mm256_cmpgt_epi32(c, _mm256_add_epi32(i, _mm256_set1_epi32(8)))};
}
FL_INLINE vm vm_and(vm a, vm b)
{
    return (vm){_mm256_and_ps(a.lo, b.lo), _mm256_and_ps(a.hi, b.hi)};
}
FL_INLINE vm vm_or(vm a, vm b)
{
    return (vm){_mm256_or_ps(a.lo, b.lo), _mm256_or_ps(a.hi, b.hi)};
}
FL_INLINE vm vm_not(vm a)
{
    const __m256 ones = _mm256_castsi256_ps(_mm256_set1_epi32(-1));
    return (vm){_mm256_xor_ps(a.lo, ones), _mm256_xor_ps(a.hi, ones)};
}

FL_INLINE uint32_t vm_bits(vm a)
{
    return (uint32_t)_mm256_movemask_ps(a.lo) | (uint32_t)_mm256_movemask_ps(a.hi) << 8;
}

FL_INLINE vf vf_set1(float x)
{
    return (vf){_mm256_set1_ps(x), _mm256_set1_ps(x)};
}
FL_INLINE vf vf_zero(void)
{
    return vf_set1(0.0f);
}
FL_INLINE vf vf_load(const float *p)
{
    return (vf){_mm256_loadu_ps(p), _mm256_loadu_ps(p + 8)};
}
FL_INLINE vf vf_loadn(const float *p, int n)
{
    vi m = vi_first(n);
    return (vf){_mm256_maskload_ps(p, m.lo), _mm256_maskload_ps(p + 8, m.hi)};
}
FL_INLINE void vf_store(float *p, vf a)
{
    _mm256_storeu_ps(p, a.lo);
    _mm256_storeu_ps(p + 8, a.hi);
}
FL_INLINE void vf_storen(float *p, vf a, int n)
{
    vi m = vi_first(n);
    _mm256_maskstore_ps(p, m.lo, a.lo);
    _mm256_maskstore_ps(p + 8, m.hi, a.hi);
}

FL_INLINE __m256 vf_bf16x8(const uint16_t *p)
{
    __m256i x = _mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i *)p));
    return _mm256_castsi256_ps(_mm256_slli_epi32(x, 16));
}
FL_INLINE vf vf_load_bf16(const uint16_t *p)
{
    return (vf){vf_bf16x8(p), vf_bf16x8(p + 8)};
}
FL_INLINE void vf_load_bf16_2(const uint16_t *p, vf *low, vf *high)
{
    *low = vf_load_bf16(p);
    *high = vf_load_bf16(p + 16);
}
FL_INLINE vf vf_loadn_bf16(const uint16_t *p, int n)
{
    uint16_t x[16] = {0};
    memcpy(x, p, (size_t)n * sizeof *x);
    return vf_load_bf16(x);
}
FL_INLINE vf vf_load_i8(const int8_t *p)
{
    __m128i x = _mm_loadu_si128((const __m128i *)p);
    return (vf){_mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(x)),
                _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_srli_si128(x, 8)))};
}
FL_INLINE vi vi_load_u8(const uint8_t *p)
{
    __m128i x = _mm_loadu_si128((const __m128i *)p);
    return (vi){_mm256_cvtepu8_epi32(x), _mm256_cvtepu8_epi32(_mm_srli_si128(x, 8))};
}
FL_INLINE vf vf_from_f16(__m256i x)
{
    return (vf){_mm256_cvtph_ps(_mm256_castsi256_si128(x)),
                _mm256_cvtph_ps(_mm256_extracti128_si256(x, 1))};
}
FL_INLINE vf vf_load_f16(const uint16_t *p)
{
    return vf_from_f16(_mm256_loadu_si256((const __m256i *)p));
}
FL_INLINE vf vf_loadn_f16(const uint16_t *p, int n)
{
    uint16_t x[16] = {0};
    memcpy(x, p, (size_t)n * sizeof *x);
    return vf_load_f16(x);
}

FL_INLINE vf vf_load_pairs(const int8_t *even, const int8_t *odd)
{
    __m128i e = _mm_loadl_epi64((const __m128i *)even), o = _mm_loadl_epi64((const __m128i *)odd);
    __m128i x = _mm_unpacklo_epi8(e, o);
    return (vf){_mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(x)),
                _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_srli_si128(x, 8)))};
}

FL_INLINE vmx vmx_table(float scale)
{
    return _mm256_mul_ps(_mm256_loadu_ps(fl_e2m1_table), _mm256_set1_ps(scale));
}
/* Eight codes from the four low bytes of c.  The lookup reads the low three bits of a lane. */
FL_INLINE __m256 vmx_eight(vmx t, __m128i c)
{
    __m256i x = _mm256_srlv_epi32(_mm256_broadcastd_epi32(c),
                                  _mm256_setr_epi32(0, 4, 8, 12, 16, 20, 24, 28));
    __m256i sign = _mm256_and_si256(_mm256_slli_epi32(x, 28), _mm256_set1_epi32(INT32_MIN));
    return _mm256_or_ps(_mm256_permutevar8x32_ps(t, x), _mm256_castsi256_ps(sign));
}
FL_INLINE vf vmx_load(vmx t, const uint8_t *codes)
{
    __m128i c = _mm_loadl_epi64((const __m128i *)codes);
    return (vf){vmx_eight(t, c), vmx_eight(t, _mm_srli_epi64(c, 32))};
}

FL_INLINE vf vf_add(vf a, vf b)
{
    return (vf){_mm256_add_ps(a.lo, b.lo), _mm256_add_ps(a.hi, b.hi)};
}
FL_INLINE vf vf_sub(vf a, vf b)
{
    return (vf){_mm256_sub_ps(a.lo, b.lo), _mm256_sub_ps(a.hi, b.hi)};
}
FL_INLINE vf vf_mul(vf a, vf b)
{
    return (vf){_mm256_mul_ps(a.lo, b.lo), _mm256_mul_ps(a.hi, b.hi)};
}
FL_INLINE vf vf_div(vf a, vf b)
{
    return (vf){_mm256_div_ps(a.lo, b.lo), _mm256_div_ps(a.hi, b.hi)};
}
FL_INLINE vf vf_min(vf a, vf b)
{
    return (vf){_mm256_min_ps(a.lo, b.lo), _mm256_min_ps(a.hi, b.hi)};
}
FL_INLINE vf vf_max(vf a, vf b)
{
    return (vf){_mm256_max_ps(a.lo, b.lo), _mm256_max_ps(a.hi, b.hi)};
}
FL_INLINE vf vf_sqrt(vf a)
{
    return (vf){_mm256_sqrt_ps(a.lo), _mm256_sqrt_ps(a.hi)};
}
FL_INLINE vf vf_fma(vf a, vf b, vf c)
{
    return (vf){_mm256_fmadd_ps(a.lo, b.lo, c.lo), _mm256_fmadd_ps(a.hi, b.hi, c.hi)};
}
FL_INLINE vf vf_neg(vf a)
{
    const __m256 sign = _mm256_set1_ps(-0.0f);
    return (vf){_mm256_xor_ps(a.lo, sign), _mm256_xor_ps(a.hi, sign)};
}
FL_INLINE vf vf_abs(vf a)
{
    const __m256 sign = _mm256_set1_ps(-0.0f);
    return (vf){_mm256_andnot_ps(sign, a.lo), _mm256_andnot_ps(sign, a.hi)};
}
FL_INLINE vm vf_lt(vf a, vf b)
{
    return (vm){_mm256_cmp_ps(a.lo, b.lo, _CMP_LT_OQ), _mm256_cmp_ps(a.hi, b.hi, _CMP_LT_OQ)};
}
FL_INLINE vm vf_le(vf a, vf b)
{
    return (vm){_mm256_cmp_ps(a.lo, b.lo, _CMP_LE_OQ), _mm256_cmp_ps(a.hi, b.hi, _CMP_LE_OQ)};
}
FL_INLINE vm vf_eq(vf a, vf b)
{
    return (vm){_mm256_cmp_ps(a.lo, b.lo, _CMP_EQ_OQ), _mm256_cmp_ps(a.hi, b.hi, _CMP_EQ_OQ)};
}
FL_INLINE vf vf_select(vm m, vf a, vf b)
{
    return (vf){_mm256_blendv_ps(b.lo, a.lo, m.lo), _mm256_blendv_ps(b.hi, a.hi, m.hi)};
}

FL_INLINE vi vf_to_vi(vf a)
{
    return (vi){_mm256_cvtps_epi32(a.lo), _mm256_cvtps_epi32(a.hi)};
}
FL_INLINE vf vi_to_vf(vi a)
{
    return (vf){_mm256_cvtepi32_ps(a.lo), _mm256_cvtepi32_ps(a.hi)};
}
FL_INLINE vi vf_bits(vf a)
{
    return (vi){_mm256_castps_si256(a.lo), _mm256_castps_si256(a.hi)};
}
FL_INLINE vf vi_float(vi a)
{
    return (vf){_mm256_castsi256_ps(a.lo), _mm256_castsi256_ps(a.hi)};
}
FL_INLINE vi vi_set1(int32_t x)
{
    return (vi){_mm256_set1_epi32(x), _mm256_set1_epi32(x)};
}
FL_INLINE vi vi_load(const int32_t *p)
{
    const __m256i *v = (const __m256i *)p;
    return (vi){_mm256_loadu_si256(v), _mm256_loadu_si256(v + 1)};
}
FL_INLINE void vi_store(int32_t *p, vi a)
{
    _mm256_storeu_si256((__m256i *)p, a.lo);
    _mm256_storeu_si256((__m256i *)p + 1, a.hi);
}
FL_INLINE vi vi_add(vi a, vi b)
{
    return (vi){_mm256_add_epi32(a.lo, b.lo), _mm256_add_epi32(a.hi, b.hi)};
}
FL_INLINE vi vi_sub(vi a, vi b)
{
    return (vi){_mm256_sub_epi32(a.lo, b.lo), _mm256_sub_epi32(a.hi, b.hi)};
}
FL_INLINE vi vi_and(vi a, vi b)
{
    return (vi){_mm256_and_si256(a.lo, b.lo), _mm256_and_si256(a.hi, b.hi)};
}
FL_INLINE vi vi_or(vi a, vi b)
{
    return (vi){_mm256_or_si256(a.lo, b.lo), _mm256_or_si256(a.hi, b.hi)};
}
FL_INLINE vi vi_xor(vi a, vi b)
{
    return (vi){_mm256_xor_si256(a.lo, b.lo), _mm256_xor_si256(a.hi, b.hi)};
}
FL_INLINE vi vi_max(vi a, vi b)
{
    return (vi){_mm256_max_epi32(a.lo, b.lo), _mm256_max_epi32(a.hi, b.hi)};
}
FL_INLINE vi vi_shl(vi a, int n)
{
    return (vi){_mm256_slli_epi32(a.lo, n), _mm256_slli_epi32(a.hi, n)};
}
FL_INLINE vi vi_sar(vi a, int n)
{
    return (vi){_mm256_srai_epi32(a.lo, n), _mm256_srai_epi32(a.hi, n)};
}
FL_INLINE vm vi_lt(vi a, vi b)
{
    return (vm){_mm256_castsi256_ps(_mm256_cmpgt_epi32(b.lo, a.lo)),
                _mm256_castsi256_ps(_mm256_cmpgt_epi32(b.hi, a.hi))};
}
FL_INLINE vm vi_eq(vi a, vi b)
{
    return (vm){_mm256_castsi256_ps(_mm256_cmpeq_epi32(a.lo, b.lo)),
                _mm256_castsi256_ps(_mm256_cmpeq_epi32(a.hi, b.hi))};
}

typedef __m256 vp;
enum { FL_PART = 8 };
#define vp_zero _mm256_setzero_ps
#define vp_set1 _mm256_set1_ps
#define vp_load _mm256_loadu_ps
#define vp_store _mm256_storeu_ps
#define vp_fma _mm256_fmadd_ps
#define vp_max _mm256_max_ps

/* Four elements of the rows at p and p + ld. */
FL_INLINE __m256 vp_quads(const float *p, int64_t ld)
{
    return _mm256_insertf128_ps(_mm256_castps128_ps256(_mm_loadu_ps(p)), _mm_loadu_ps(p + ld), 1);
}
FL_INLINE void vp_columns(const float *in, int64_t ldi, float *out, int64_t ldo)
{
    __m256 a = vp_quads(in, 4 * ldi), b = vp_quads(in + ldi, 4 * ldi);
    __m256 c = vp_quads(in + 2 * ldi, 4 * ldi), d = vp_quads(in + 3 * ldi, 4 * ldi);
    __m256d ab = _mm256_castps_pd(_mm256_unpacklo_ps(a, b));
    __m256d cd = _mm256_castps_pd(_mm256_unpacklo_ps(c, d));
    vp_store(out, _mm256_castpd_ps(_mm256_unpacklo_pd(ab, cd)));
    vp_store(out + ldo, _mm256_castpd_ps(_mm256_unpackhi_pd(ab, cd)));
    ab = _mm256_castps_pd(_mm256_unpackhi_ps(a, b));
    cd = _mm256_castps_pd(_mm256_unpackhi_ps(c, d));
    vp_store(out + 2 * ldo, _mm256_castpd_ps(_mm256_unpacklo_pd(ab, cd)));
    vp_store(out + 3 * ldo, _mm256_castpd_ps(_mm256_unpackhi_pd(ab, cd)));
}

#include "ops/cpu/simd_x86.h"

#endif
