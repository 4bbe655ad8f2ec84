/* mla in plain float32 arithmetic (mla.h): whatever the sizes, on any GPU. */
#include "ops/gpu/mla.h"

enum { THREADS = 256, HEADS = 16, KEYS = 16 };

/* F: format of the cache; WIDE: latent elements of a thread. */
template <int F, int WIDE> static __global__ void attend_kernel(mla_args a)
{
    extern __shared__ float shared[];
    __shared__ float weight[KEYS][HEADS], shrink[HEADS];
    int whole = a.latent + a.pe, stride = whole + 1, t = threadIdx.x;
    float *qs = shared, *keys = qs + HEADS * whole;
    int64_t r = blockIdx.z, row = a.row0 + r;
    int head0 = blockIdx.x * HEADS, span = blockIdx.y;
    if (row >= a.step.counts[GPU_ROWS])
        return;
    int64_t n_keys = keys_of(a, row), length = span_length(n_keys, a.most_spans);
    int64_t visible = (int64_t)a.step.pos[row] + 1;
    int64_t begin = span * length, end = begin + length < n_keys ? begin + length : n_keys;
    if (begin >= n_keys)
        return;
    const gpu_seq seq = a.step.seqs[a.step.row_seq[row]];
    const int32_t *select = a.select ? a.select + row * a.select_stride : NULL;
    for (int i = t; i < HEADS * whole; i += THREADS) {
        int h = head0 + i / whole;
        qs[i] = h < a.heads ? a.query[(r * a.heads + h) * whole + i % whole] : 0;
    }
    int h = t / KEYS, key = t % KEYS; /* whose score this thread computes */
    float high = -INFINITY, sum = 0, acc[HEADS][WIDE] = {};
    for (int64_t k0 = begin; k0 < end; k0 += KEYS) {
        __syncthreads();
        for (int i = t / GPU_LANES; i < KEYS; i += THREADS / GPU_LANES) {
            int64_t at = k0 + i;
            int64_t pos = at >= end ? -1 : select ? select[at] : at;
            bool there = pos >= 0 && pos < visible;
            const unsigned char *item =
                there ? a.base + step_item(a.step, seq, pos) * a.item_bytes : NULL;
            for (int c = t % GPU_LANES; c < whole; c += GPU_LANES)
                keys[i * stride + c] = there ? cache_at<F>(item, a.scales_at, c) : 0;
            if (t % GPU_LANES == 0)
                keys[i * stride + whole] = there ? 1 : 0;
        }
        __syncthreads();
        bool there = keys[key * stride + whole] != 0;
        float score = 0;
        for (int c = 0; c < whole; c++)
            score = fmaf(qs[h * whole + c], keys[key * stride + c], score);
        float top = there ? score : -INFINITY;
        for (int i = KEYS / 2; i > 0; i /= 2)
            top = fmaxf(top, __shfl_xor_sync(0xffffffffu, top, i, KEYS));
        float now = fmaxf(high, top), zero = now == -INFINITY ? 0 : now;
        float p = there ? expf(score - zero) : 0, all = p;
        for (int i = KEYS / 2; i > 0; i /= 2)
            all += __shfl_xor_sync(0xffffffffu, all, i, KEYS);
        float old = expf(high - zero);
        sum = sum * old + all;
        high = now;
        weight[key][h] = p;
        if (key == 0)
            shrink[h] = old;
        __syncthreads();
#pragma unroll
        for (int i = 0; i < HEADS; i++) {
#pragma unroll
            for (int w = 0; w < WIDE; w++)
                acc[i][w] *= shrink[i];
        }
        for (int k = 0; k < KEYS; k++) {
            float v[WIDE];
#pragma unroll
            for (int w = 0; w < WIDE; w++)
                v[w] = t + w * THREADS < a.latent ? keys[k * stride + t + w * THREADS] : 0;
#pragma unroll
            for (int i = 0; i < HEADS; i++) {
                float p_i = weight[k][i];
#pragma unroll
                for (int w = 0; w < WIDE; w++)
                    acc[i][w] = fmaf(p_i, v[w], acc[i][w]);
            }
        }
    }
    if (key == 0 && head0 + h < a.heads) {
        float *to = a.partial + ((r * a.heads + head0 + h) * a.spans + span) * (a.latent + 2);
        to[0] = high;
        to[1] = sum;
    }
#pragma unroll
    for (int i = 0; i < HEADS; i++) {
        float *to = a.partial + ((r * a.heads + head0 + i) * a.spans + span) * (a.latent + 2) + 2;
#pragma unroll
        for (int w = 0; w < WIDE; w++) {
            if (head0 + i < a.heads && t + w * THREADS < a.latent)
                to[t + w * THREADS] = acc[i][w];
        }
    }
}

/* ---- launching ---- */

template <int F, int WIDE> static void attend(const mla_args &a, gpu_queue *q)
{
    int whole = a.latent + a.pe;
    size_t shared = (size_t)(HEADS * whole + KEYS * (whole + 1)) * sizeof(float);
    gpu_allow_shared(q, attend_kernel<F, WIDE>, shared);
    dim3 grid(gpu_blocks(a.heads, HEADS), (unsigned)a.spans, (unsigned)a.rows);
    attend_kernel<F, WIDE><<<grid, THREADS, shared, q->stream>>>(a);
}

struct plain {
    template <int T> static void absorb(const mla_args &a, gpu_queue *q) { mla_absorb<T>(a, q); }

    template <int T> static void merge(const mla_args &a, gpu_queue *q) { mla_merge<T>(a, q); }

    static bool expand(const mla_args &, const fl_call *, int, int64_t, void *, gpu_queue *)
    {
        return false;
    }

    template <int F> static void attend(const mla_args &a, gpu_queue *q)
    {
        if (a.latent <= THREADS)
            ::attend<F, 1>(a, q);
        else if (a.latent <= 2 * THREADS)
            ::attend<F, 2>(a, q);
        else
            ::attend<F, 4>(a, q);
    }
};

static bool fits(const fl_node_view *n)
{
    return n->in[FL_MLA_KV_B]->dim[1] <= MAX_LATENT && n->in[FL_MLA_CACHE]->dim[0] <= 1280 &&
           n->in[FL_MLA_Q]->dim[1] <= 2048;
}

static const fl_kernel kernels[] = {{.op = "mla",
                                     .name = "absorbed-gpu",
                                     .preference = 1,
                                     .n_phases = 1,
                                     .run = mla_run<plain>,
                                     .fits = fits,
                                     .scratch = mla_scratch}};
extern const fl_kernel_list gpu_kernels_mla = FL_KERNEL_LIST(kernels);
