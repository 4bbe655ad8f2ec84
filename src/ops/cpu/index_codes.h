/* Products of signed bytes, four to a 32-bit lane: what scoring of 8-bit keys is made of at each
 * processor level.  A lane of `vn` is a key; its word holds elements 4 i .. 4 i + 3.  All sums are
 * whole numbers, so the levels agree.
 *
 *   vn_load vn_store vn_set1 vn_add  of FL_PART lanes of int32
 *   vn_float(a)                      as float32, a vp
 *   fl_code_keys(keys, n)            makes n words of keys what the products want, once per block
 *   fl_code_words(code, out)         FL_CODE_WORDS numbers from four codes of a query
 *   fl_code_start(sum)               where a dot product begins; sum: of all codes of the query
 *   vn_codes(k)                      the word at k taken apart
 *   vn_dot(start, codes, words)      start + the products of the four elements */
#ifndef FL_OPS_CPU_INDEX_CODES_H
#define FL_OPS_CPU_INDEX_CODES_H

#include "ops/cpu/simd.h"

#if defined(__AVX512F__)
typedef vi vn;
#define vn_load vi_load
#define vn_store vi_store
#define vn_set1 vi_set1
#define vn_float vi_to_vf
#elif defined(__AVX2__)
typedef __m256i vn;
FL_INLINE vn vn_load(const int32_t *p)
{
    return _mm256_loadu_si256((const __m256i *)p);
}
FL_INLINE void vn_store(int32_t *p, vn a)
{
    _mm256_storeu_si256((__m256i *)p, a);
}
#define vn_set1 _mm256_set1_epi32
#define vn_float _mm256_cvtepi32_ps
#else
typedef vi vn;
#define vn_load vi_load
#define vn_store vi_store
#define vn_set1 vi_set1
#define vn_float vi_to_vf
#endif

#if defined(__AVX512VNNI__)

/* One instruction multiplies unsigned with signed bytes: keys become 128 too large, and a dot
 * product begins with what that adds. */
enum { FL_CODE_WORDS = 1 };
typedef vn vn_pairs;

FL_INLINE void fl_code_keys(int32_t *keys, int64_t n)
{
    for (int64_t i = 0; i < n; i += FL_PART)
        vn_store(keys + i, _mm512_xor_si512(vn_load(keys + i), vn_set1((int)0x80808080)));
}
FL_INLINE int32_t fl_code_start(int32_t sum)
{
    return -128 * sum;
}
FL_INLINE void fl_code_words(const int8_t *code, int32_t *out)
{
    memcpy(out, code, 4);
}
FL_INLINE vn_pairs vn_codes(vn k)
{
    return k;
}
FL_INLINE vn vn_dot(vn start, vn_pairs k, const int32_t *words)
{
    return _mm512_dpbusd_epi32(start, k, vn_set1(words[0]));
}

#else

/* Even and odd elements as pairs of 16 bits, whose products nothing saturates. */
enum { FL_CODE_WORDS = 2 };
typedef struct vn_pairs {
    vn even, odd;
} vn_pairs;

FL_INLINE void fl_code_keys(int32_t *keys, int64_t n)
{
    (void)keys, (void)n;
}
FL_INLINE int32_t fl_code_start(int32_t sum)
{
    (void)sum;
    return 0;
}
FL_INLINE void fl_code_words(const int8_t *code, int32_t *out)
{
    out[0] = (int32_t)((uint32_t)(uint16_t)code[2] << 16 | (uint16_t)code[0]);
    out[1] = (int32_t)((uint32_t)(uint16_t)code[3] << 16 | (uint16_t)code[1]);
}

#if defined(__AVX512F__)
FL_INLINE vn_pairs vn_codes(vn k)
{
    return (vn_pairs){_mm512_srai_epi16(_mm512_slli_epi16(k, 8), 8), _mm512_srai_epi16(k, 8)};
}
FL_INLINE vn vn_dot(vn start, vn_pairs k, const int32_t *words)
{
    return vi_add(vi_add(start, _mm512_madd_epi16(k.even, vn_set1(words[0]))),
                  _mm512_madd_epi16(k.odd, vn_set1(words[1])));
}
#elif defined(__AVX2__)
FL_INLINE vn_pairs vn_codes(vn k)
{
    return (vn_pairs){_mm256_srai_epi16(_mm256_slli_epi16(k, 8), 8), _mm256_srai_epi16(k, 8)};
}
FL_INLINE vn vn_dot(vn start, vn_pairs k, const int32_t *words)
{
    start = _mm256_add_epi32(start, _mm256_madd_epi16(k.even, vn_set1(words[0])));
    return _mm256_add_epi32(start, _mm256_madd_epi16(k.odd, vn_set1(words[1])));
}
#else
/* Here `even` is the word as it is. */
FL_INLINE vn_pairs vn_codes(vn k)
{
    return (vn_pairs){k, k};
}
FL_INLINE vn vn_dot(vn start, vn_pairs k, const int32_t *words)
{
    int8_t code[64];
    memcpy(code, &k.even, sizeof code);
    for (int l = 0; l < FL_LANES; l++) {
        for (int e = 0; e < 4; e++)
            start.x[l] += code[4 * l + e] * (int16_t)(words[e % 2] >> (e < 2 ? 0 : 16));
    }
    return start;
}
#endif

#endif

#endif
