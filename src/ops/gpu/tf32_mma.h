/* Products of float32 numbers on matrix units as three products of TF32 numbers: a number is the
 * sum of its leading 11 bits and the rest, of which the unit takes 11 more; rest times rest is left
 * out. What is lost is about the last two bits of a float32.  The range is that of float32.
 * Splitting costs a third of what three BF16 parts cost (parts.h), and the units take as long. */
#ifndef FL_OPS_GPU_TF32_MMA_H
#define FL_OPS_GPU_TF32_MMA_H

#include "ops/gpu/mma.h"

#ifdef __CUDACC__

static __device__ inline void mma_tf32(float d[4], const uint32_t a[4], uint32_t b0, uint32_t b1)
{
    asm("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0, %1, %2, %3}, "
        "{%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

/* Four elements that a lane holds, split.  (The halves of infinity sum to NaN.) */
typedef struct halves4 {
    uint32_t hi[4], lo[4];
} halves4;

static __device__ inline halves4 halves_of(float4 x)
{
    const float v[4] = {x.x, x.y, x.z, x.w};
    halves4 out;
#pragma unroll
    for (int i = 0; i < 4; i++) {
        out.hi[i] = (__float_as_uint(v[i]) + 0x1000) & 0xffffe000;
        out.lo[i] = __float_as_uint(v[i] - __uint_as_float(out.hi[i]));
    }
    return out;
}

/* acc[n] += the products of 16 rows (g: rows g, h: rows g + 8) with the 8 columns of b[n], over 16
 * elements, any that g, h and b agree on.  The N chains of a sum are independent. */
template <int N>
static __device__ inline void add_tf32(float acc[N][4], const halves4 &g, const halves4 &h,
                                       const halves4 b[N])
{
    float sum[N][4] = {};
#pragma unroll
    for (int step = 0; step < 6; step++) { /* the least products first */
        const int i = step % 2 * 2;
        const uint32_t *x = step < 2 ? g.lo : g.hi, *y = step < 2 ? h.lo : h.hi;
        const uint32_t a[4] = {x[i], y[i], x[i + 1], y[i + 1]};
#pragma unroll
        for (int n = 0; n < N; n++) {
            const uint32_t *z = step / 2 == 1 ? b[n].lo : b[n].hi;
            mma_tf32(sum[n], a, z[i], z[i + 1]);
        }
    }
#pragma unroll
    for (int n = 0; n < N; n++) {
#pragma unroll
        for (int r = 0; r < 4; r++)
            acc[n][r] += sum[n][r];
    }
}

#endif
#endif
