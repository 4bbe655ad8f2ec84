/* index_select with scores in plain float32 arithmetic (index.h), on any GPU. */
#include "ops/gpu/index.h"

enum { KEYS = 128, HEADS = 8, THREADS = 128, MAX_SHARED = 200 << 10 };

/* Shared memory: keys [KEYS][d + 1], queries [d][heads rounded up to HEADS]. */
static __global__ void score_kernel(select_args a)
{
    extern __shared__ __align__(16) float shared[];
    int padded = (a.heads + HEADS - 1) / HEADS * HEADS;
    float *qs = shared, *keys = qs + padded * a.d;
    int64_t r = blockIdx.y, row = a.row0 + r, n = contest(a, r);
    if ((int64_t)blockIdx.x * KEYS >= n)
        return;
    const gpu_seq seq = a.step.seqs[a.step.row_seq[row]];
    const float *w = a.w.p + row * a.w.stride;
    for (int i = threadIdx.x; i < padded * a.d; i += THREADS) {
        int h = i / a.d, d = i % a.d;
        qs[d * padded + h] = h < a.heads ? a.q.p[row * a.q.stride + (int64_t)h * a.d + d] : 0;
    }
    for (int64_t k0 = (int64_t)blockIdx.x * KEYS; k0 < n; k0 += (int64_t)gridDim.x * KEYS) {
        __syncthreads();
        for (int i = threadIdx.x / GPU_LANES; i < KEYS; i += THREADS / GPU_LANES) {
            if (k0 + i >= n)
                break;
            const float *item =
                (const float *)(a.base + step_item(a.step, seq, k0 + i) * a.item_bytes);
            for (int d = threadIdx.x % GPU_LANES; d < a.d; d += GPU_LANES)
                keys[i * (a.d + 1) + d] = item[d];
        }
        __syncthreads();
        const float *key = keys + threadIdx.x * (a.d + 1);
        if (k0 + threadIdx.x >= n)
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
                    score = fmaf(a.scale * w[h0 + i], dot[i] < 0 ? 0 : dot[i], score);
            }
        }
        a.score[r * a.context + k0 + threadIdx.x] = ordered(score);
    }
}

static int64_t score_shared(int64_t heads, int64_t d)
{
    int64_t padded = (heads + HEADS - 1) / HEADS * HEADS;
    return (padded * d + KEYS * (d + 1)) * (int64_t)sizeof(float);
}

static void run(const fl_call *call, const fl_step *step, int phase, const fl_worker *worker)
{
    (void)phase;
    gpu_queue *q = (gpu_queue *)worker->queue;
    int64_t most;
    select_args a = index_args_of(call, step, q, worker->shared, &most);
    size_t shared = (size_t)score_shared(a.heads, a.d);
    for (int64_t r = 0; r < step->n_rows; r += most) {
        a.row0 = r;
        a.rows = gpu_min(step->n_rows - r, most);
        index_begin(a, q);
        if (a.context > a.topk) {
            dim3 grid(index_blocks(q, (a.context + KEYS - 1) / KEYS, a.rows), (unsigned)a.rows);
            gpu_allow_shared(q, score_kernel, shared);
            score_kernel<<<grid, THREADS, shared, q->stream>>>(a);
        }
        index_end(a, q);
    }
}

static bool fits(const fl_node_view *n)
{
    return n->in[FL_INDEX_KEYS]->dtype == FL_F32 &&
           score_shared(n->in[FL_INDEX_Q]->dim[0], n->in[FL_INDEX_Q]->dim[1]) <= MAX_SHARED;
}

static const fl_kernel kernels[] = {{.op = "index_select",
                                     .name = "gpu",
                                     .preference = 1,
                                     .n_phases = 1,
                                     .run = run,
                                     .fits = fits,
                                     .scratch = index_scratch}};
extern const fl_kernel_list gpu_kernels_index_select = FL_KERNEL_LIST(kernels);
