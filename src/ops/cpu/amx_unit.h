/* The eight tile registers that amx.c is written on, and vectors of 32 BF16 numbers.  A tile has 16
 * rows of 64 bytes.
 *
 *   unit_begin() unit_end()       around all use of tiles
 *   TILE_LOAD(u, i, p, stride)    16 rows, `stride` bytes apart; i, c, a, b: constants, c < 4
 *   TILE_STORE(u, i, p)           16 rows, side by side
 *   TILE_DOT(u, c, a, b)          c[m][n] += sum over k of a[m][2 k .. 2 k + 1] . b[k][2 n .. 2 n +
 * 1]
 *
 * Two forms: the instructions of the processor, and plain C at the base level, the twin that says
 * what they compute: the even products of a tile are summed in one chain of fused multiply-adds,
 * the odd ones in another, k ascending from 0; both are added, then c.  Numbers below the least
 * normal one are taken for zero, and become zero. */
#ifndef FL_OPS_CPU_AMX_UNIT_H
#define FL_OPS_CPU_AMX_UNIT_H

#include "ops/cpu/amx.h"
#include "ops/cpu/simd.h"

enum { SIDE = FL_AMX_SIDE, STEP = FL_ROUNDED_STEP, TILE = SIDE * STEP };

#if defined(FL_AMX_TILES)

typedef char unit; /* the registers are the processor's own */
typedef __m512i vb;

/* One shape for all tiles.  (gcc's _tile_loadconfig reads, for all that it tells the optimiser,
 * eight bytes only.) */
FL_INLINE void unit_begin(void)
{
    static const struct {
        uint8_t palette, start, zero[14];
        uint16_t bytes[16];
        uint8_t rows[16];
    } shape = {1, 0, {0}, {64, 64, 64, 64, 64, 64, 64, 64}, {16, 16, 16, 16, 16, 16, 16, 16}};
    __asm__ volatile("ldtilecfg %0" : : "m"(shape));
}
FL_INLINE void unit_end(void)
{
    _tile_release();
}
#define TILE_LOAD(u, i, p, stride)                                                                 \
    do {                                                                                           \
        (void)(u);                                                                                 \
        _tile_loadd(i, p, stride);                                                                 \
    } while (0)
#define TILE_STORE(u, i, p) _tile_stored(i, p, 64)
#define TILE_DOT(u, c, a, b) _tile_dpbf16ps(c, a, b)

FL_INLINE vb vb_join(vf low, vf high)
{
    return (vb)_mm512_cvtne2ps_pbh(high, low);
}
FL_INLINE vb vb_loadn(const uint16_t *p, int64_t n)
{
    return n >= STEP ? _mm512_loadu_si512(p)
                     : _mm512_maskz_loadu_epi16((1u << (unsigned)n) - 1u, p);
}
FL_INLINE void vb_store(uint16_t *p, vb a)
{
    _mm512_store_si512(p, a);
}
/* The sixteen pairs of a, `apart` pairs from one to the next. */
FL_INLINE void vb_scatter(uint16_t *p, int64_t apart, vb a)
{
    const __m512i lane = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
    _mm512_i32scatter_epi32(p, _mm512_mullo_epi32(lane, _mm512_set1_epi32((int)apart)), a, 4);
}

#elif !defined(__AVX2__)

typedef struct unit {
    float c[4][SIDE * SIDE];
    uint16_t in[4][TILE]; /* tiles 4 to 7 */
} unit;
typedef struct vb {
    uint16_t x[STEP];
} vb;

FL_INLINE void unit_begin(void) {}
FL_INLINE void unit_end(void) {}

/* Numbers too small for the instruction. */
FL_INLINE float flush(float x)
{
    return fabsf(x) < 0x1p-126f ? copysignf(0, x) : x;
}
FL_INLINE float widened(uint16_t x)
{
    uint32_t bits = (uint32_t)x << 16;
    float f;
    memcpy(&f, &bits, sizeof f);
    return flush(f);
}
static inline void tile_load(unit *u, int i, const void *p, int64_t stride)
{
    char *to = i < 4 ? (char *)u->c[i] : (char *)u->in[i - 4];
    for (int r = 0; r < SIDE; r++)
        memcpy(to + r * 64, (const char *)p + r * stride, 64);
}
/* The product of two BF16 numbers has 16 bits; added in double and rounded it is as if fused. */
static inline void tile_dot(unit *u, int c, int a, int b)
{
    float x[TILE];
    for (int i = 0; i < TILE; i++)
        x[i] = widened(u->in[b - 4][i]);
    for (int m = 0; m < SIDE; m++) {
        float sum[STEP] = {0};
        for (int k = 0; k < STEP / 2; k++) {
            double w[2] = {widened(u->in[a - 4][m * STEP + 2 * k]),
                           widened(u->in[a - 4][m * STEP + 2 * k + 1])};
            for (int n = 0; n < STEP; n++)
                sum[n] = flush((float)(sum[n] + w[n % 2] * x[k * STEP + n]));
        }
        for (int n = 0; n < SIDE; n++) {
            float *to = &u->c[c][m * SIDE + n];
            *to = flush(flush(*to) + flush(sum[2 * n] + sum[2 * n + 1]));
        }
    }
}
#define TILE_LOAD(u, i, p, stride) tile_load(u, i, p, stride)
#define TILE_STORE(u, i, p) memcpy(p, (u)->c[i], sizeof(u)->c[i])
#define TILE_DOT(u, c, a, b) tile_dot(u, c, a, b)

FL_INLINE vb vb_join(vf low, vf high)
{
    float x[STEP];
    vb r;
    vf_store(x, low);
    vf_store(x + FL_LANES, high);
    for (int i = 0; i < STEP; i++)
        r.x[i] = fl_f32_to_bf16(flush(x[i]));
    return r;
}
FL_INLINE vb vb_loadn(const uint16_t *p, int64_t n)
{
    vb r = {{0}};
    memcpy(r.x, p, (size_t)(n < STEP ? n : STEP) * sizeof *p);
    return r;
}
FL_INLINE void vb_store(uint16_t *p, vb a)
{
    memcpy(p, a.x, sizeof a.x);
}
FL_INLINE void vb_scatter(uint16_t *p, int64_t apart, vb a)
{
    for (int l = 0; l < FL_LANES; l++)
        memcpy(p + 2 * l * apart, a.x + 2 * l, 2 * sizeof *p);
}

#endif

#endif
