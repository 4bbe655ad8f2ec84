/* What both x86 widths of simd.h share.  Horizontal functions: the first halving is done on 256-bit
 * halves, which vf_low and vf_high give, the rest on SSE registers.  E4M3 is read as F16. */
#ifndef FL_OPS_CPU_SIMD_X86_H
#define FL_OPS_CPU_SIMD_X86_H

/* The bits of an E4M3 number, moved to their places in an F16, are 2^-8 of its value: the
 * exponents' biases differ by 8, subnormal numbers included.  Only NaN is made by hand. */
FL_INLINE vf vf_load_e4m3(const uint8_t *p)
{
    const __m256i magnitude = _mm256_set1_epi16(0x7f00);
    __m256i x = _mm256_cvtepu8_epi16(_mm_loadu_si128((const __m128i *)p));
    x = _mm256_slli_epi16(x, 8);
    __m256i nan = _mm256_cmpeq_epi16(_mm256_and_si256(x, magnitude), magnitude);
    x = _mm256_and_si256(_mm256_srai_epi16(x, 1), _mm256_set1_epi16((short)0xbf80));
    return vf_mul(vf_from_f16(_mm256_or_si256(x, nan)), vf_set1(256.0f));
}
FL_INLINE vf vf_loadn_e4m3(const uint8_t *p, int n)
{
    uint8_t x[16] = {0};
    memcpy(x, p, (size_t)n);
    return vf_load_e4m3(x);
}

FL_INLINE vf vf_loadn_i8(const int8_t *p, int n)
{
    int8_t x[16] = {0};
    memcpy(x, p, (size_t)n);
    return vf_load_i8(x);
}

/* Lanes l + l+8 + l+4 + l+12 of a, for l = 0..3. */
FL_INLINE __m128 vf_fold(vf a)
{
    __m256 h = _mm256_add_ps(vf_low(a), vf_high(a));
    return _mm_add_ps(_mm256_castps256_ps128(h), _mm256_extractf128_ps(h, 1));
}

FL_INLINE float vf_sum(vf a)
{
    __m128 x = vf_fold(a);
    x = _mm_add_ps(x, _mm_movehl_ps(x, x));
    return _mm_cvtss_f32(_mm_add_ss(x, _mm_movehdup_ps(x)));
}

FL_INLINE void vf_sum4(vf a, vf b, vf c, vf d, float *out)
{
    __m128 x = vf_fold(a), y = vf_fold(b), z = vf_fold(c), w = vf_fold(d);
    __m128 xy = _mm_add_ps(_mm_movelh_ps(x, y), _mm_movehl_ps(y, x));
    __m128 zw = _mm_add_ps(_mm_movelh_ps(z, w), _mm_movehl_ps(w, z));
    _mm_storeu_ps(out, _mm_add_ps(_mm_shuffle_ps(xy, zw, _MM_SHUFFLE(2, 0, 2, 0)),
                                  _mm_shuffle_ps(xy, zw, _MM_SHUFFLE(3, 1, 3, 1))));
}

FL_INLINE float vf_hmax(vf a)
{
    __m256 h = _mm256_max_ps(vf_low(a), vf_high(a));
    __m128 x = _mm_max_ps(_mm256_castps256_ps128(h), _mm256_extractf128_ps(h, 1));
    x = _mm_max_ps(x, _mm_movehl_ps(x, x));
    return _mm_cvtss_f32(_mm_max_ss(x, _mm_movehdup_ps(x)));
}

FL_INLINE int32_t vi_hmax(vi a)
{
    __m256i h = _mm256_max_epi32(vi_low(a), vi_high(a));
    __m128i x = _mm_max_epi32(_mm256_castsi256_si128(h), _mm256_extracti128_si256(h, 1));
    x = _mm_max_epi32(x, _mm_shuffle_epi32(x, _MM_SHUFFLE(1, 0, 3, 2)));
    x = _mm_max_epi32(x, _mm_shuffle_epi32(x, _MM_SHUFFLE(2, 3, 0, 1)));
    return _mm_cvtsi128_si32(x);
}

#endif
