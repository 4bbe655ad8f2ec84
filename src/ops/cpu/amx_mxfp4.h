/* MXFP4 to BF16 by looking up bytes: the 16 numbers of each scale stand ready in a table, as 16 low
 * bytes and 16 high ones. */
#ifndef FL_OPS_CPU_AMX_MXFP4_H
#define FL_OPS_CPU_AMX_MXFP4_H

#include "ops/cpu/simd.h"

/* Code p from 0 to 7 (0, 0.5, 1, 1.5, 2, 3, 4, 6) with scale s: exponent, and the whole number. */
#define MX_EXPONENT(p, s) (126 + (p) / 2 + (s)-127)
#define MX_WORD(p, s)                                                                              \
    ((s) == 255                           ? 0x7fc0                                                 \
     : (p) == 0 || MX_EXPONENT(p, s) <= 0 ? 0                                                      \
     : MX_EXPONENT(p, s) >= 255           ? 0x7f80                                                 \
                                          : MX_EXPONENT(p, s) * 128 | ((p) > 1 && (p) % 2) << 6)
#define MX_LOW(p, s) (uint8_t)(MX_WORD(p, s) & 255)
#define MX_HIGH(p, s) (uint8_t)(MX_WORD(p, s) >> 8)
#define MX_MINUS(p, s) (uint8_t)(MX_WORD(p, s) >> 8 | 128)
#define MX_CODES(f, s) f(0, s), f(1, s), f(2, s), f(3, s), f(4, s), f(5, s), f(6, s), f(7, s)
#define MX_SCALE(s)                                                                                \
    {                                                                                              \
        MX_CODES(MX_LOW, s), MX_CODES(MX_LOW, s), MX_CODES(MX_HIGH, s), MX_CODES(MX_MINUS, s)      \
    }
#define MX_SCALE_4(s) MX_SCALE(s), MX_SCALE((s) + 1), MX_SCALE((s) + 2), MX_SCALE((s) + 3)
#define MX_SCALE_16(s) MX_SCALE_4(s), MX_SCALE_4((s) + 4), MX_SCALE_4((s) + 8), MX_SCALE_4((s) + 12)
#define MX_SCALE_64(s)                                                                             \
    MX_SCALE_16(s), MX_SCALE_16((s) + 16), MX_SCALE_16((s) + 32), MX_SCALE_16((s) + 48)
static const uint8_t mx_bytes[256][32] = {MX_SCALE_64(0), MX_SCALE_64(64), MX_SCALE_64(128),
                                          MX_SCALE_64(192)};

/* The 32 numbers of a group: 16 bytes of codes and their scale. */
FL_INLINE __m512i mx_group(const uint8_t *codes, uint8_t scale)
{
    __m512i table = _mm512_broadcast_i64x4(_mm256_loadu_si256((const __m256i *)mx_bytes[scale]));
    /* Four codes to 64 bits, each to the two bytes of its number; the high byte looks further up.
     */
    __m512i c = _mm512_cvtepu16_epi64(_mm_loadu_si128((const __m128i *)codes));
    c = _mm512_multishift_epi64_epi8(_mm512_set1_epi64(0x0c0c080804040000), c);
    c = _mm512_ternarylogic_epi32(c, _mm512_set1_epi8(15), _mm512_set1_epi16(0x1000), 0xea);
    return _mm512_permutexvar_epi8(c, table);
}

#endif
