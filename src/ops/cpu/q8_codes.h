/* 256 weights as bytes, and their products with 256 bytes of x: what q8.c is made of at each
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

/* The parts of a chunk of weights as unsigned bytes, doubled and 12 too large. */
static const uint8_t doubled[16] = {12, 13, 14, 15, 16, 18, 20, 24, 12, 11, 10, 9, 8, 6, 4, 0};

/* Which of eight groups lane l belongs to. */
#define GROUP_OF(l) ((l) / 4 + (l) / 2 % 2 * 4)
#define GROUPS_4(f, l)                                                                             \
    f(GROUP_OF(l)), f(GROUP_OF((l) + 1)), f(GROUP_OF((l) + 2)), f(GROUP_OF((l) + 3))
#define GROUPS_16(f) GROUPS_4(f, 0), GROUPS_4(f, 4), GROUPS_4(f, 8), GROUPS_4(f, 12)
#define ITSELF(g) (g)

#if defined(__AVX512F__)

/* The first and the second eight bytes of each group. */
FL_INLINE void halves(const uint8_t *packed, vi *first, vi *second)
{
    vi a = load64(packed), b = load64(packed + 64);
    *first = _mm512_unpacklo_epi64(a, b);
    *second = _mm512_unpackhi_epi64(a, b);
}

FL_INLINE vi look_up(vi c)
{
    vi table = _mm512_broadcast_i32x4(_mm_loadu_si128((const __m128i *)doubled));
    return _mm512_shuffle_epi8(table, _mm512_and_si512(c, _mm512_set1_epi8(15)));
}

FL_INLINE vi high_nibbles(vi c)
{
    return _mm512_srli_epi16(c, 4);
}

/* sum + the products of four bytes, lane by lane.  Without VNNI: in 16 bits a sum is at most
 * 2 * 24 * 127. */
FL_INLINE vi dot(vi sum, vi w, vi x)
{
#if defined(__AVX512VNNI__)
    /* Left to itself gcc moves accumulators through memory around the intrinsic. */
    __asm__("vpdpbusd %2, %1, %0" : "+v"(sum) : "v"(w), "v"(x));
    return sum;
#else
    return vi_add(sum, _mm512_madd_epi16(_mm512_maddubs_epi16(w, x), _mm512_set1_epi16(1)));
#endif
}

/* Eight bytes, those of the groups, to their lanes as numbers. */
FL_INLINE vi spread(const uint8_t *s)
{
    __m128i b = _mm_loadl_epi64((const __m128i *)s);
    return _mm512_cvtepu8_epi32(_mm_shuffle_epi8(b, _mm_setr_epi8(GROUPS_16(ITSELF))));
}

#elif defined(__AVX2__)

FL_INLINE void halves(const uint8_t *packed, vi *first, vi *second)
{
    vi a = load64(packed), b = load64(packed + 64);
    *first = (vi){_mm256_unpacklo_epi64(a.lo, b.lo), _mm256_unpacklo_epi64(a.hi, b.hi)};
    *second = (vi){_mm256_unpackhi_epi64(a.lo, b.lo), _mm256_unpackhi_epi64(a.hi, b.hi)};
}

FL_INLINE __m256i look_up_half(__m256i c)
{
    __m256i table = _mm256_broadcastsi128_si256(_mm_loadu_si128((const __m128i *)doubled));
    return _mm256_shuffle_epi8(table, _mm256_and_si256(c, _mm256_set1_epi8(15)));
}

FL_INLINE vi look_up(vi c)
{
    return (vi){look_up_half(c.lo), look_up_half(c.hi)};
}

FL_INLINE vi high_nibbles(vi c)
{
    return (vi){_mm256_srli_epi16(c.lo, 4), _mm256_srli_epi16(c.hi, 4)};
}

FL_INLINE __m256i dot_half(__m256i sum, __m256i w, __m256i x)
{
    __m256i pairs = _mm256_maddubs_epi16(w, x);
    return _mm256_add_epi32(sum, _mm256_madd_epi16(pairs, _mm256_set1_epi16(1)));
}

FL_INLINE vi dot(vi sum, vi w, vi x)
{
    return (vi){dot_half(sum.lo, w.lo, x.lo), dot_half(sum.hi, w.hi, x.hi)};
}

FL_INLINE vi spread(const uint8_t *s)
{
    __m128i b = _mm_loadl_epi64((const __m128i *)s);
    b = _mm_shuffle_epi8(b, _mm_setr_epi8(GROUPS_16(ITSELF)));
    return (vi){_mm256_cvtepu8_epi32(b), _mm256_cvtepu8_epi32(_mm_srli_si128(b, 8))};
}

#else

FL_INLINE void halves(const uint8_t *packed, vi *first, vi *second)
{
    for (int i = 0; i < 8; i++) {
        const uint8_t *group = packed + 16 * GROUP_OF(2 * i);
        memcpy((char *)first + 8 * i, group, 8);
        memcpy((char *)second + 8 * i, group + 8, 8);
    }
}

FL_INLINE vi look_up(vi c)
{
    uint8_t b[64];
    memcpy(b, &c, sizeof b);
    for (int i = 0; i < 64; i++)
        b[i] = doubled[b[i] & 15];
    return load64(b);
}

FL_INLINE vi high_nibbles(vi c)
{
    uint8_t b[64];
    memcpy(b, &c, sizeof b);
    for (int i = 0; i < 64; i++)
        b[i] >>= 4;
    return load64(b);
}

FL_INLINE vi dot(vi sum, vi w, vi x)
{
    uint8_t a[64];
    int8_t b[64];
    memcpy(a, &w, sizeof a);
    memcpy(b, &x, sizeof b);
    for (int i = 0; i < 64; i++)
        sum.x[i / 4] += a[i] * b[i];
    return sum;
}

FL_INLINE vi spread(const uint8_t *s)
{
    vi r;
    for (int l = 0; l < FL_LANES; l++)
        r.x[l] = s[GROUP_OF(l)];
    return r;
}

#endif

/* Sixteen whole numbers from -127 to 127: the even ones to even[0..7], the others to odd[0..7]. */
FL_INLINE void apart(vi q, int8_t *even, int8_t *odd)
{
#if defined(__AVX512F__)
    __m128i b = _mm_shuffle_epi8(_mm512_cvtepi32_epi8(q), _mm_setr_epi8(0, 2, 4, 6, 8, 10, 12, 14,
                                                                        1, 3, 5, 7, 9, 11, 13, 15));
    _mm_storel_epi64((__m128i *)even, b);
    _mm_storel_epi64((__m128i *)odd, _mm_srli_si128(b, 8));
#else
    int32_t n[FL_LANES];
    vi_store(n, q);
    for (int i = 0; i < 8; i++) {
        even[i] = (int8_t)n[2 * i];
        odd[i] = (int8_t)n[2 * i + 1];
    }
#endif
}

/* The four parts of 128 packed bytes, `stride` vectors apart. */
FL_INLINE void decode(const uint8_t *packed, vi *out, int stride)
{
    vi first, second;
    halves(packed, &first, &second);
    out[0] = look_up(first);
    out[stride] = look_up(high_nibbles(first));
    out[2 * stride] = look_up(second);
    out[3 * stride] = look_up(high_nibbles(second));
}

/* 2^(s - 127) of eight groups: the bits of s become the exponent; 0 is denormal, half the least
 * one. 255, which is NaN, becomes infinity: the sum is then no finite number either. */
FL_INLINE vf scales(const uint8_t *s)
{
    return vi_float(vi_max(vi_shl(spread(s), 23), vi_set1(0x00400000)));
}

/* Where the processor looks up 64 bytes at once, weights can take up the differences between the
 * scales of a row: doubled codes times 1, 2, 4 or 8, and 96 = 8 * 12 too large. */
#if defined(__AVX512VNNI__) && defined(__AVX512VBMI__)
#define FL_Q8_FOLDS 1
enum { FOLDS = 3 }; /* the greatest difference of exponents */

/* decode with groups times 2^(s - least). */
FL_INLINE void decode_folded(const uint8_t *packed, const uint8_t *s, uint8_t least, vi *out,
                             int stride)
{
    const __m128i top = _mm_set1_epi8(96);
    __m128i one = _mm_sub_epi8(_mm_loadu_si128((const __m128i *)doubled), _mm_set1_epi8(12));
    __m128i two = _mm_add_epi8(one, one), four = _mm_add_epi8(two, two);
    vi table = _mm512_castsi128_si512(_mm_add_epi8(one, top));
    table = _mm512_inserti32x4(table, _mm_add_epi8(two, top), 1);
    table = _mm512_inserti32x4(table, _mm_add_epi8(four, top), 2);
    table = _mm512_inserti32x4(table, _mm_add_epi8(_mm_add_epi8(four, four), top), 3);
    __m128i by = _mm_sub_epi8(_mm_loadl_epi64((const __m128i *)s), _mm_set1_epi8((char)least));
    /* To bits 4 and 5 of the bytes of every group. */
    vi row = _mm512_shuffle_epi8(_mm512_broadcast_i32x4(_mm_slli_epi16(by, 4)),
                                 _mm512_set_epi64(0x0707070707070707, 0x0303030303030303,
                                                  0x0606060606060606, 0x0202020202020202,
                                                  0x0505050505050505, 0x0101010101010101,
                                                  0x0404040404040404, 0));
    vi first, second, low = _mm512_set1_epi8(15);
    halves(packed, &first, &second);
    vi part[4] = {first, high_nibbles(first), second, high_nibbles(second)};
    FL_UNROLL
    for (int i = 0; i < 4; i++) /* part & low | row */
        out[i * stride] =
            _mm512_permutexvar_epi8(_mm512_ternarylogic_epi32(part[i], low, row, 0xea), table);
}
#endif

#endif
