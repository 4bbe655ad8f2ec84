/* Rows of the paged caches as kernels read them (graph/cache_row.h says how they lie): float32,
 * BF16, or codes of 8 bits with a factor for every FL_CACHE_GROUP elements. */
#ifndef FL_OPS_GPU_CACHE_H
#define FL_OPS_GPU_CACHE_H

#include "ops/gpu/weights.h"

extern "C" {
#include "graph/cache_row.h"
}

/* Runs CODE with F set to the format of a cache at compile time. */
#define GPU_FOR_CACHE(dtype, CODE)                                                                 \
    switch (dtype) {                                                                               \
    case FL_F32: {                                                                                 \
        enum { F = FL_F32 };                                                                       \
        CODE;                                                                                      \
        break;                                                                                     \
    }                                                                                              \
    case FL_BF16: {                                                                                \
        enum { F = FL_BF16 };                                                                      \
        CODE;                                                                                      \
        break;                                                                                     \
    }                                                                                              \
    case FL_F8_E4M3: {                                                                             \
        enum { F = FL_F8_E4M3 };                                                                   \
        CODE;                                                                                      \
        break;                                                                                     \
    }                                                                                              \
    default: {                                                                                     \
        enum { F = FL_I8 };                                                                        \
        CODE;                                                                                      \
    }                                                                                              \
    }

#ifdef __CUDACC__

/* The code of one element as a number; 1 where the factor is part of it already. */
template <int F> static __device__ inline float cache_code(const unsigned char *row, int j)
{
    if (F == FL_F32)
        return ((const float *)row)[j];
    if (F == FL_BF16)
        return __uint_as_float((uint32_t)((const uint16_t *)row)[j] << 16);
    if (F == FL_F8_E4M3)
        return e4m3_low(row[j]) * 256.0f;
    return (float)((const int8_t *)row)[j];
}

/* Element j of a row; scales: where its factors begin. */
template <int F>
static __device__ inline float cache_at(const unsigned char *row, int64_t scales, int j)
{
    float x = cache_code<F>(row, j);
    if (F == FL_F8_E4M3 || F == FL_I8)
        x *= ((const float *)(row + scales))[j / FL_CACHE_GROUP];
    return x;
}

/* ---- encoding, to the bit as graph/cache_row.h says ---- */

/* The factor of a group, and what its elements are multiplied by to be codes. */
typedef struct cache_group {
    float scale, by;
} cache_group;

/* The magnitude of x as bits, of which NaN has the largest; the largest over a warp's lanes. */
static __device__ inline uint32_t magnitude_bits(float x)
{
    return __float_as_uint(x) & 0x7fffffff;
}

static __device__ inline uint32_t lanes_top(uint32_t x)
{
    for (int i = GPU_LANES / 2; i > 0; i /= 2) {
        uint32_t y = __shfl_xor_sync(0xffffffffu, x, i, GPU_LANES);
        x = x > y ? x : y;
    }
    return x;
}

/* top: the largest magnitude_bits of the group. */
template <int F> static __device__ inline cache_group cache_group_of(uint32_t top)
{
    const uint32_t tiny = (127 - 100) << 23, infinite = 0x7f800000;
    cache_group g = {0, 0};
    if (top >= infinite) {
        g.scale = __uint_as_float(0x7fc00000);
    } else if (top >= tiny && F == FL_I8) {
        g.scale = __fdiv_rn(__uint_as_float(top), 127);
        g.by = __fdiv_rn(127, __uint_as_float(top));
    } else if (top >= tiny) { /* the least power of two with top <= 448 times it */
        g.scale = __uint_as_float(((top >> 23) - 8 + ((top & 0x7fffff) > 0x600000)) << 23);
        g.by = 1 / g.scale;
    }
    return g;
}

/* Nearest even; NaN stays NaN. */
static __device__ inline uint16_t bf16_bits(float x)
{
    uint32_t u = __float_as_uint(x);
    if ((u & 0x7fffffff) > 0x7f800000)
        return (uint16_t)(u >> 16 | 0x40);
    return (uint16_t)((u + 0x7fff + (u >> 16 & 1)) >> 16);
}

/* The code of x, as its byte. */
template <int F> static __device__ inline uint8_t cache_encode(const cache_group &g, float x)
{
    if (g.by == 0)
        return 0;
    x = __fmul_rn(x, g.by);
    if (F == FL_I8)
        return (uint8_t)(int8_t)__float2int_rn(x);
    uint32_t u = magnitude_bits(x), sign = __float_as_uint(x) >> 24 & 0x80;
    if (u < 121u << 23) /* below 2^-6: whole steps of 2^-9 */
        return (uint8_t)(sign | (uint32_t)__float2int_rn(__uint_as_float(u) * 512));
    return (uint8_t)(sign | (((u + 0x7ffff + (u >> 20 & 1)) >> 20) - (120 << 3)));
}

#endif
#endif
