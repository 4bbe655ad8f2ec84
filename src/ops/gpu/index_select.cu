/* index_select with scores in plain float32 arithmetic (index.h), on any GPU. */
#include "ops/gpu/index.h"

enum { KEYS = SELECT_THREADS / 2, HEADS = 8, MAX_SHARED = 200 << 10 };

/* A query rounded as a row of a cache of 8-bit codes is: code times the factor that is returned.
 * All lanes of a warp call it together; every `step`th of `codes` gets one of d numbers. */
static __device__ inline float query_codes(const float *q, int d, float *codes, int step)
{
    int lane = threadIdx.x % GPU_LANES;
    uint32_t top = 0;
    for (int i = lane; i < d; i += GPU_LANES)
        top = max(top, magnitude_bits(q[i]));
    cache_group g = cache_group_of<FL_I8>(lanes_top(top));
    for (int i = lane; i < d; i += GPU_LANES)
        codes[i * step] = (float)(int8_t)cache_encode<FL_I8>(g, q[i]);
    return g.scale;
}

/* Shared memory: keys [KEYS][d + 1], queries [d][heads rounded up to HEADS], weights. */
template <int F>
static __global__ void __launch_bounds__(SELECT_THREADS) score_kernel(select_args a)
{
    extern __shared__ __align__(16) float shared[];
    __shared__ uint32_t n_of[DIGITS];
    int padded = (a.heads + HEADS - 1) / HEADS * HEADS, t = threadIdx.x, lane = t % GPU_LANES;
    float *qs = shared, *weight = qs + padded * a.d, *keys = weight + padded;
    int64_t r = blockIdx.y, row = a.row0 + r, n = contest(a, r);
    if ((int64_t)blockIdx.x * KEYS >= n)
        return;
    const gpu_seq seq = a.step.seqs[a.step.row_seq[row]];
    for (int h = t / GPU_LANES; h < padded; h += SELECT_THREADS / GPU_LANES) {
        const float *q = a.q.p + row * a.q.stride + (int64_t)h * a.d;
        float factor = 1;
        if (F == FL_I8 && h < a.heads)
            factor = query_codes(q, a.d, qs + h, padded);
        for (int d = lane; d < a.d && !(F == FL_I8 && h < a.heads); d += GPU_LANES)
            qs[d * padded + h] = h < a.heads ? q[d] : 0;
        if (lane == 0)
            weight[h] = h < a.heads ? a.scale * a.w.p[row * a.w.stride + h] * factor : 0;
    }
    clear_digits(n_of);
    for (int64_t k0 = (int64_t)blockIdx.x * KEYS; k0 < n; k0 += (int64_t)gridDim.x * KEYS) {
        __syncthreads();
        for (int i = t / GPU_LANES; i < KEYS && k0 + i < n; i += SELECT_THREADS / GPU_LANES) {
            const unsigned char *item = a.base + step_item(a.step, seq, k0 + i) * a.item_bytes;
            for (int d = lane; d < a.d; d += GPU_LANES)
                keys[i * (a.d + 1) + d] = cache_code<F>(item, d);
            if (lane == 0)
                keys[i * (a.d + 1) + a.d] = F == FL_I8 ? *(const float *)(item + a.scales_at) : 1;
        }
        __syncthreads();
        const float *key = keys + t * (a.d + 1);
        if (t >= KEYS || k0 + t >= n)
            continue;
        float score = 0;
        for (int h0 = 0; h0 < a.heads; h0 += HEADS) {
            float dot[HEADS] = {};
            for (int d = 0; d < a.d; d++) {
                float x = key[d];
                const float4 *q = (const float4 *)(qs + d * padded + h0);
#pragma unroll
                for (int i = 0; i < HEADS / 4; i++) {
                    float4 v = q[i];
                    dot[4 * i] = fmaf(x, v.x, dot[4 * i]);
                    dot[4 * i + 1] = fmaf(x, v.y, dot[4 * i + 1]);
                    dot[4 * i + 2] = fmaf(x, v.z, dot[4 * i + 2]);
                    dot[4 * i + 3] = fmaf(x, v.w, dot[4 * i + 3]);
                }
            }
#pragma unroll
            for (int i = 0; i < HEADS; i++) {
                if (h0 + i < a.heads)
                    score = fmaf(weight[h0 + i], dot[i] < 0 ? 0 : dot[i], score);
            }
        }
        uint32_t x = ordered(F == FL_I8 ? key[a.d] * score : score);
        a.score[r * a.pieces * PIECE + k0 + t] = x;
        atomicAdd(&n_of[digit_of(x, 0)], 1u);
    }
    add_digits(a, r, 0, n_of, blocks_of(n, KEYS));
}

static int64_t score_shared(int64_t heads, int64_t d)
{
    int64_t padded = (heads + HEADS - 1) / HEADS * HEADS;
    return (padded * (d + 1) + KEYS * (d + 1)) * (int64_t)sizeof(float);
}

struct plain {
    template <int F> static int score(const select_args &a, int64_t, gpu_queue *q)
    {
        if constexpr (F == FL_F8_E4M3)
            return 1; /* there are no such keys */
        size_t shared = (size_t)score_shared(a.heads, a.d);
        dim3 grid(index_blocks(q, (a.context + KEYS - 1) / KEYS, a.rows, 8), (unsigned)a.rows);
        gpu_allow_shared(q, score_kernel<F>, shared);
        score_kernel<F><<<grid, SELECT_THREADS, shared, q->stream>>>(a);
        return 1;
    }
};

static bool fits(const fl_node_view *n)
{
    return score_shared(n->in[FL_INDEX_Q]->dim[0], n->in[FL_INDEX_Q]->dim[1]) <= MAX_SHARED;
}

static const fl_kernel kernels[] = {{.op = "index_select",
                                     .name = "gpu",
                                     .preference = 1,
                                     .n_phases = 1,
                                     .run = index_run<plain>,
                                     .fits = fits,
                                     .scratch = index_scratch}};
extern const fl_kernel_list gpu_kernels_index_select = FL_KERNEL_LIST(kernels);
