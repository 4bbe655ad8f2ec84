/* Products of float32 numbers on matrix units: both sides become three BF16 parts, and of the nine
 * products of parts the six greatest are summed.  What is left out is below the last bit of a
 * float32. */
#ifndef FL_OPS_GPU_PARTS_H
#define FL_OPS_GPU_PARTS_H

#include "ops/gpu/mma.h"

#ifdef __CUDACC__

/* For four elements that a lane holds: the registers of both operands, part by part. */
typedef struct parts4 {
    uint32_t lo[3], hi[3]; /* elements 0 and 1, 2 and 3 */
} parts4;

static __device__ inline parts4 parts_of(float4 x)
{
    parts4 out;
    pair_parts<3>(x.x, x.y, out.lo);
    pair_parts<3>(x.z, x.w, out.hi);
    return out;
}

/* acc[n] += the products of 16 rows (g: rows g, h: rows g + 8) with the 8 columns of b[n], over 16
 * elements.  The N chains of a sum are independent: together they hide each other's latency. */
template <int N>
static __device__ inline void add_products(float acc[N][4], const parts4 &g, const parts4 &h,
                                           const parts4 b[N])
{
    float sum[N][4] = {};
#pragma unroll
    for (int order = 2; order >= 0; order--) { /* the least products first */
#pragma unroll
        for (int i = 0; i <= order; i++) {
            const uint32_t a[4] = {g.lo[i], h.lo[i], g.hi[i], h.hi[i]};
#pragma unroll
            for (int n = 0; n < N; n++)
                mma(sum[n], a, b[n].lo[order - i], b[n].hi[order - i]);
        }
    }
#pragma unroll
    for (int n = 0; n < N; n++) {
#pragma unroll
        for (int r = 0; r < 4; r++)
            acc[n][r] += sum[n][r];
    }
}

/* sum[n] += the products of a's parts with those of b's columns 8 n to 8 n + 7, least first; of
 * three parts with three the six greatest. */
template <int Q, int P>
static __device__ inline void multiply(float sum[2][4], const uint32_t a[Q][4],
                                       const uint32_t b[P][4])
{
    const int last = Q > P ? Q : P;
#pragma unroll
    for (int order = last - 1; order >= 0; order--) {
#pragma unroll
        for (int i = 0; i <= order; i++) {
            if (i >= Q || order - i >= P)
                continue;
            mma(sum[0], a[i], b[order - i][0], b[order - i][1]);
            mma(sum[1], a[i], b[order - i][2], b[order - i][3]);
        }
    }
}

#endif
#endif
