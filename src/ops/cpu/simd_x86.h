/* The horizontal functions of simd.h for both x86 widths: the first halving is done on 256-bit
 * halves, which vf_low and vf_high give, the rest on SSE registers. */
#ifndef FL_OPS_CPU_SIMD_X86_H
#define FL_OPS_CPU_SIMD_X86_H

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
