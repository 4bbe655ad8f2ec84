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

/* ---- absorb ---- */

enum { ABSORB_ROWS = 4, ABSORB_THREADS = 128 };

/* A block does ABSORB_THREADS columns of one head for ABSORB_ROWS rows. */
template <int T> static __global__ void absorb_kernel(mla_args a)
{
    extern __shared__ float qs[]; /* [ABSORB_ROWS][nope] */
    int head = blockIdx.y, c = blockIdx.z * ABSORB_THREADS + threadIdx.x;
    int64_t first = (int64_t)blockIdx.x * ABSORB_ROWS, n_rows = a.step.counts[GPU_ROWS] - a.row0;
    n_rows = n_rows < a.rows ? n_rows : a.rows;
    if (first >= n_rows)
        return;
    int n = (int)(n_rows - first < ABSORB_ROWS ? n_rows - first : ABSORB_ROWS);
    int whole = a.latent + a.pe, width = a.nope + a.pe;
    for (int i = threadIdx.x; i < ABSORB_ROWS * a.nope; i += ABSORB_THREADS) {
        int r = i / a.nope, d = i % a.nope;
        qs[i] = r < n ? a.q.p[(a.row0 + first + r) * a.q.stride + head * width + d] : 0;
    }
    __syncthreads();
    if (c < a.latent) {
        float acc[ABSORB_ROWS] = {};
#pragma unroll 32
        for (int d = 0; d < a.nope; d++) {
            float w = weight_at<T>(a.kv_b, 0, (int64_t)head * (a.nope + a.dv) + d, c);
#pragma unroll
            for (int r = 0; r < ABSORB_ROWS; r++)
                acc[r] = fmaf(w, qs[r * a.nope + d], acc[r]);
        }
#pragma unroll
        for (int r = 0; r < ABSORB_ROWS; r++) {
            if (r < n)
                a.query[((first + r) * a.heads + head) * whole + c] = acc[r] * a.scale;
        }
    }
    for (int i = threadIdx.x; i < n * a.pe && blockIdx.z == 0; i += ABSORB_THREADS) {
        int r = i / a.pe, d = i % a.pe;
        a.query[((first + r) * a.heads + head) * whole + a.latent + d] =
            a.q.p[(a.row0 + first + r) * a.q.stride + head * width + a.nope + d] * a.scale;
    }
}

/* Elements of the latent result in shared memory: whole turns of the lanes. */
template <int T> static inline __host__ __device__ int merge_room(int latent)
{
    const int turn = (int)GPU_LANES * (int)gpu_group<T>::N;
    return (latent + turn - 1) / turn * turn;
}

/* ---- merge ---- */

enum { MERGE_THREADS = 512, MERGE_OUT = 4 };

template <int T, bool WHOLE>
static __global__ void __launch_bounds__(MERGE_THREADS) merge_kernel(mla_args a)
{
    extern __shared__ float value[]; /* [latent], spread over lanes */
    __shared__ float part[MAX_SPANS];
    int64_t r = blockIdx.x, row = a.row0 + r, stride = a.latent + 2;
    int head = blockIdx.y, lane = threadIdx.x % GPU_LANES;
    if (row >= a.step.counts[GPU_ROWS])
        return;
    int n = spans_of(keys_of(a, row), a.most_spans);
    const float *from = a.partial + (r * a.heads + head) * a.spans * stride;
    float high = -INFINITY, sum = 0;
    for (int s = lane; s < n; s += GPU_LANES)
        high = fmaxf(high, from[s * stride]);
    high = lanes_max(high);
    float zero = high == -INFINITY ? 0 : high;
    for (int s = lane; s < n; s += GPU_LANES) {
        float p = expf(from[s * stride] - zero);
        sum = fmaf(p, from[s * stride + 1], sum);
        if (threadIdx.x < GPU_LANES)
            part[s] = p;
    }
    sum = lanes_sum(sum);
    __syncthreads();
    for (int c = threadIdx.x; c < merge_room<T>(a.latent); c += MERGE_THREADS) {
        float v = 0;
#pragma unroll 16
        for (int s = 0; s < n && c < a.latent; s++)
            v = fmaf(part[s], from[s * stride + 2 + c], v);
        value[spread<T>(c)] = sum == 0 ? 0 : v / sum * lacking<T>();
    }
    __syncthreads();
    int64_t first = (int64_t)head * (a.nope + a.dv) + a.nope, end = first + a.dv;
    for (int d = threadIdx.x / GPU_LANES * MERGE_OUT; d < a.dv;
         d += MERGE_THREADS / GPU_LANES * MERGE_OUT) {
        float acc[MERGE_OUT][1] = {};
        dot_rows<T, WHOLE, MERGE_OUT, 1>(a.kv_b, 0, first + d, end, 0, a.latent, value, 0, acc);
        for (int i = 0; i < MERGE_OUT; i++) {
            float o = lanes_sum(acc[i][0]);
            if (lane == 0 && d + i < a.dv)
                a.o.p[row * a.o.stride + (int64_t)head * a.dv + d + i] = o;
        }
    }
}

/* ---- launching ---- */

template <int T> static void absorb(const mla_args &a, gpu_queue *q)
{
    dim3 grid(gpu_blocks(a.rows, ABSORB_ROWS), (unsigned)a.heads,
              gpu_blocks(a.latent, ABSORB_THREADS));
    size_t shared = (size_t)ABSORB_ROWS * a.nope * sizeof(float);
    absorb_kernel<T><<<grid, ABSORB_THREADS, shared, q->stream>>>(a);
}

template <int T> static void merge(const mla_args &a, gpu_queue *q)
{
    dim3 grid((unsigned)a.rows, (unsigned)a.heads);
    size_t shared = (size_t)merge_room<T>(a.latent) * sizeof(float);
    if (a.latent % gpu_group<T>::N == 0)
        merge_kernel<T, true><<<grid, MERGE_THREADS, shared, q->stream>>>(a);
    else
        merge_kernel<T, false><<<grid, MERGE_THREADS, shared, q->stream>>>(a);
}

void mla_absorb(const mla_args &a, fl_dtype kv_b, gpu_queue *q)
{
    GPU_FOR_DTYPE(kv_b, absorb<T>(a, q));
}

void mla_merge(const mla_args &a, fl_dtype kv_b, gpu_queue *q)
{
    GPU_FOR_DTYPE(kv_b, merge<T>(a, q));
}

template <int F, int WIDE> static void attend(const mla_args &a, gpu_queue *q)
{
    int whole = a.latent + a.pe;
    size_t shared = (size_t)(HEADS * whole + KEYS * (whole + 1)) * sizeof(float);
    gpu_allow_shared(q, attend_kernel<F, WIDE>, shared);
    dim3 grid(gpu_blocks(a.heads, HEADS), (unsigned)a.spans, (unsigned)a.rows);
    attend_kernel<F, WIDE><<<grid, THREADS, shared, q->stream>>>(a);
}

struct plain {
    static void absorb(const mla_args &a, fl_dtype kv_b, gpu_queue *q) { mla_absorb(a, kv_b, q); }

    static void merge(const mla_args &a, fl_dtype kv_b, gpu_queue *q) { mla_merge(a, kv_b, q); }

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
