/* Gathering vectors into panels, and which file multiplies them. */
#include "ops/gpu/panel.h"
#include "ops/gpu/wgmma.h"

/* A warp per chunk of a vector: vector i is row from[i] / per of x (negative: none), or row i. */
template <int T, int PARTS>
static __global__ void gather_kernel(gpu_rows x, const int32_t *from, int per, const int32_t *count,
                                     int64_t row0, int64_t most, int64_t k, bool aligned, panel to)
{
    int64_t chunk = (int64_t)blockIdx.y * (blockDim.x / GPU_LANES) + threadIdx.x / GPU_LANES;
    int64_t i = blockIdx.x, row = i;
    int lane = threadIdx.x % GPU_LANES;
    if (i >= *count - row0 || i >= most || chunk >= mma_chunks(k))
        return;
    if (from) {
        if (from[i] < 0)
            return;
        row = from[i] / per;
    }
    uint2 part[PARTS];
    arrange<T, PARTS>(vector4(x.p + row * x.stride, chunk * MMA_CHUNK + 4 * lane, k, aligned),
                      part);
    /* Lane t of a group of four reads, of unit u, piece by piece two elements: here four are at
     * hand, for pieces c and c + 1 of the chunk's sixteen. */
    int u = T == FL_MXFP4 ? lane % 8 / 2 : lane / 8, t = T == FL_MXFP4 ? lane / 8 : lane % 8 / 2;
    int c = 4 * u + lane % 2 * 2, r = (int)(i % 8);
    unsigned char *at =
        to.p + ((2 * chunk + c / 8) * PARTS * to.rows + i) * WGMMA_ROW_BYTES + 4 * t;
#pragma unroll
    for (int p = 0; p < PARTS; p++, at += to.rows * WGMMA_ROW_BYTES) {
        *(uint32_t *)(at + ((c % 8) ^ r) * 16) = part[p].x;
        *(uint32_t *)(at + ((c % 8 + 1) ^ r) * 16) = part[p].y;
    }
}

template <int T, int PARTS>
static void gather(const panel_gathering &g, const panel &to, gpu_queue *q)
{
    gpu_rows x = {g.x.p + (g.from ? 0 : g.row0 * g.x.stride), g.x.stride};
    bool aligned = ((uintptr_t)x.p | (uintptr_t)x.stride * 4) % 16 == 0 && g.k % 4 == 0;
    dim3 grid((unsigned)g.most, gpu_blocks(mma_chunks(g.k), 8));
    gather_kernel<T, PARTS>
        <<<grid, 256, 0, q->stream>>>(x, g.from, g.per, g.count, g.row0, g.most, g.k, aligned, to);
    gpu_launched(q);
}

void panel_gather(panel_kind kind, const panel_gathering &g, const panel &to, gpu_queue *q)
{
    if (kind.weights == FL_BF16)
        kind.parts == 1 ? gather<FL_BF16, 1>(g, to, q) : gather<FL_BF16, 3>(g, to, q);
    else
        kind.parts == 1 ? gather<FL_MXFP4, 1>(g, to, q) : gather<FL_MXFP4, 3>(g, to, q);
}

void panel_multiply(panel_kind kind, int run_class, const panel_args &a, const fl_expr *act,
                    gpu_queue *q)
{
    kind.weights == FL_BF16 ? panel_multiply_bf16(kind.parts, run_class, a, act, q)
                            : panel_multiply_mxfp4(kind.parts, run_class, a, act, q);
}
