/* 128 weights as bytes, and their products with 128 bytes of x: what q8.c is made of at each
 * processor level.  All sums are whole numbers, so the levels agree. */
#ifndef FL_OPS_CPU_Q8_CODES_H
#define FL_OPS_CPU_Q8_CODES_H

#include "base/mem.h"
#include "ops/cpu/simd.h"

FL_INLINE vi load64(const void *bytes)
{
    vi v;
    memcpy(&v, bytes, sizeof v);
    return v;
}

/* A chunk of 128 weights: the even and the odd elements.  Of MXFP4, as decode() gives them,
 * unsigned bytes, doubled and 12 too large; of Q8 signed bytes. */
typedef struct codes {
    vi even, odd;
} codes;

static const uint8_t doubled[16] = {12, 13, 14, 15, 16, 18, 20, 24, 12, 11, 10, 9, 8, 6, 4, 0};

/* The index of a byte shuffle that makes a lane of byte g and three zeros. */
#define BYTE(g) ((int)0x80808000 + (g))

#if defined(__AVX512F__)

FL_INLINE vi look_up(vi c)
{
    vi table = _mm512_broadcast_i32x4(_mm_loadu_si128((const __m128i *)doubled));
    return _mm512_shuffle_epi8(table, _mm512_and_si512(c, _mm512_set1_epi8(15)));
}

FL_INLINE codes decode(vi c)
{
    return (codes){look_up(c), look_up(_mm512_srli_epi16(c, 4))};
}

/* start + the products of four even and four odd bytes, lane by lane.  In 16 bits a sum is at most
 * 4 * 24 * 127: nothing saturates. */
FL_INLINE vi dot(vi start, codes w, vi even, vi odd)
{
#if defined(__AVX512VNNI__)
    return _mm512_dpbusd_epi32(_mm512_dpbusd_epi32(start, w.even, even), w.odd, odd);
#else
    vi pairs =
        _mm512_add_epi16(_mm512_maddubs_epi16(w.even, even), _mm512_maddubs_epi16(w.odd, odd));
    return vi_add(start, _mm512_madd_epi16(pairs, _mm512_set1_epi16(1)));
#endif
}

/* The same of signed bytes from -127 to 127; `start` belongs to bytes that are 128 too large. */
FL_INLINE vi dot_signed(vi start, codes w, vi even, vi odd)
{
#if defined(__AVX512VNNI__)
    vi top = _mm512_set1_epi32((int)0x80808080);
    return dot(start, (codes){_mm512_xor_si512(w.even, top), _mm512_xor_si512(w.odd, top)}, even,
               odd);
#else
    (void)start; /* a pair is at most 2 * 127 * 127: signs go from w to x, and nothing saturates */
    vi zero = _mm512_setzero_si512(), one = _mm512_set1_epi16(1);
    even = _mm512_mask_sub_epi8(even, _mm512_movepi8_mask(w.even), zero, even);
    odd = _mm512_mask_sub_epi8(odd, _mm512_movepi8_mask(w.odd), zero, odd);
    return vi_add(_mm512_madd_epi16(_mm512_maddubs_epi16(_mm512_abs_epi8(w.even), even), one),
                  _mm512_madd_epi16(_mm512_maddubs_epi16(_mm512_abs_epi8(w.odd), odd), one));
#endif
}

/* Byte g to lanes 4 g .. 4 g + 3, as a number. */
FL_INLINE vi spread(int32_t bytes)
{
    return _mm512_shuffle_epi8(
        _mm512_set1_epi32(bytes),
        _mm512_set_epi32(BYTE(3), BYTE(3), BYTE(3), BYTE(3), BYTE(2), BYTE(2), BYTE(2), BYTE(2),
                         BYTE(1), BYTE(1), BYTE(1), BYTE(1), BYTE(0), BYTE(0), BYTE(0), BYTE(0)));
}

#elif defined(__AVX2__)

FL_INLINE __m256i look_up(__m256i c)
{
    __m256i table = _mm256_broadcastsi128_si256(_mm_loadu_si128((const __m128i *)doubled));
    return _mm256_shuffle_epi8(table, _mm256_and_si256(c, _mm256_set1_epi8(15)));
}

FL_INLINE codes decode(vi c)
{
    return (codes){{look_up(c.lo), look_up(c.hi)},
                   {look_up(_mm256_srli_epi16(c.lo, 4)), look_up(_mm256_srli_epi16(c.hi, 4))}};
}

FL_INLINE __m256i dot_half(__m256i start, __m256i even_w, __m256i even, __m256i odd_w, __m256i odd)
{
    __m256i pairs =
        _mm256_add_epi16(_mm256_maddubs_epi16(even_w, even), _mm256_maddubs_epi16(odd_w, odd));
    return _mm256_add_epi32(start, _mm256_madd_epi16(pairs, _mm256_set1_epi16(1)));
}

/* start + the products of four even and four odd bytes, lane by lane.  In 16 bits a sum is at most
 * 4 * 24 * 127: nothing saturates. */
FL_INLINE vi dot(vi start, codes w, vi even, vi odd)
{
    return (vi){dot_half(start.lo, w.even.lo, even.lo, w.odd.lo, odd.lo),
                dot_half(start.hi, w.even.hi, even.hi, w.odd.hi, odd.hi)};
}

FL_INLINE __m256i signed_half(__m256i w, __m256i x)
{
    __m256i pairs = _mm256_maddubs_epi16(_mm256_abs_epi8(w), _mm256_sign_epi8(x, w));
    return _mm256_madd_epi16(pairs, _mm256_set1_epi16(1));
}

/* The same of signed bytes from -127 to 127.  A pair is at most 2 * 127 * 127: signs go from w to
 * x, and nothing saturates.  `start` belongs to bytes that are 128 too large. */
FL_INLINE vi dot_signed(vi start, codes w, vi even, vi odd)
{
    (void)start;
    return vi_add((vi){signed_half(w.even.lo, even.lo), signed_half(w.even.hi, even.hi)},
                  (vi){signed_half(w.odd.lo, odd.lo), signed_half(w.odd.hi, odd.hi)});
}

/* Byte g to lanes 4 g .. 4 g + 3, as a number. */
FL_INLINE vi spread(int32_t bytes)
{
    __m256i b = _mm256_set1_epi32(bytes);
    return (vi){_mm256_shuffle_epi8(b, _mm256_set_epi32(BYTE(1), BYTE(1), BYTE(1), BYTE(1), BYTE(0),
                                                        BYTE(0), BYTE(0), BYTE(0))),
                _mm256_shuffle_epi8(b, _mm256_set_epi32(BYTE(3), BYTE(3), BYTE(3), BYTE(3), BYTE(2),
                                                        BYTE(2), BYTE(2), BYTE(2)))};
}

#else

FL_INLINE codes decode(vi c)
{
    uint8_t packed[64], even[64], odd[64];
    codes w;
    memcpy(packed, &c, sizeof c);
    for (int i = 0; i < 64; i++) {
        even[i] = doubled[packed[i] & 15];
        odd[i] = doubled[packed[i] >> 4];
    }
    memcpy(&w.even, even, sizeof even);
    memcpy(&w.odd, odd, sizeof odd);
    return w;
}

/* start + the products of four even and four odd bytes, lane by lane. */
FL_INLINE vi dot(vi start, codes w, vi even, vi odd)
{
    uint8_t we[64], wo[64];
    int8_t e[64], o[64];
    memcpy(we, &w.even, sizeof we);
    memcpy(wo, &w.odd, sizeof wo);
    memcpy(e, &even, sizeof e);
    memcpy(o, &odd, sizeof o);
    for (int i = 0; i < 64; i++)
        start.x[i / 4] += we[i] * e[i] + wo[i] * o[i];
    return start;
}

/* The same of signed bytes; `start` belongs to bytes that are 128 too large. */
FL_INLINE vi dot_signed(vi start, codes w, vi even, vi odd)
{
    int8_t we[64], wo[64], e[64], o[64];
    memcpy(we, &w.even, sizeof we);
    memcpy(wo, &w.odd, sizeof wo);
    memcpy(e, &even, sizeof e);
    memcpy(o, &odd, sizeof o);
    start = vi_set1(0);
    for (int i = 0; i < 64; i++)
        start.x[i / 4] += we[i] * e[i] + wo[i] * o[i];
    return start;
}

/* Byte g to lanes 4 g .. 4 g + 3, as a number. */
FL_INLINE vi spread(int32_t bytes)
{
    uint8_t b[4];
    vi r;
    memcpy(b, &bytes, sizeof b);
    for (int l = 0; l < FL_LANES; l++)
        r.x[l] = b[l / 4];
    return r;
}

#endif

#endif
