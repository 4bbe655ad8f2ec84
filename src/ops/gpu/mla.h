/* mla: what its kernels share.  Attention runs in the space of the cached latents, spread over the
 * chip by (row, group of heads, span of keys).
 *
 *   absorb    q' = scale * (UK^T q_nope, q_pe) per row and head
 *   attend    a span of keys for 16 heads: running softmax over blocks of 16 keys
 *   merge     the spans of a row in ascending order, then UV times the latent result
 *
 * Spans have 64 keys, or so many more that a row has 64 of them; blocks and spans are counted from
 * the row's first key, so a row's sums depend on its number of keys alone.  With a selection the
 * keys are its entries; those that are no visible position are passed over. */
#ifndef FL_OPS_GPU_MLA_H
#define FL_OPS_GPU_MLA_H

#include "ops/gpu/weights.h"

enum { HEADS = 16, KEYS = 16, SPAN = 64, MAX_SPANS = 64, MAX_LATENT = 1024 };
static const int64_t MLA_SCRATCH = (int64_t)256 << 20;

typedef struct mla_args {
    gpu_step step;
    gpu_rows q, o;
    const int32_t *select; /* NULL: every visible position */
    int64_t select_stride;
    gpu_weight kv_b;
    const unsigned char *base;
    int64_t item_bytes;
    int heads, nope, pe, dv, latent, n_select;
    float scale;
    int64_t row0, rows; /* of the pass */
    int spans;          /* room for so many in `partial` */
    float *query;       /* [rows][heads][latent + pe] */
    float *partial;     /* [rows][heads][spans][latent + 2]: maximum, sum, values */
} mla_args;

/* Keys that a row goes through, visible or not. */
static __device__ inline int64_t keys_of(const mla_args &a, int64_t row)
{
    return a.select ? a.n_select : (int64_t)a.step.pos[row] + 1;
}

static __host__ __device__ inline int64_t span_length(int64_t keys)
{
    int64_t span = SPAN;
    while ((keys + span - 1) / span > MAX_SPANS)
        span *= 2;
    return span;
}

static __host__ __device__ inline int spans_of(int64_t keys)
{
    int64_t span = span_length(keys);
    return (int)((keys + span - 1) / span);
}

/* The most spans that a row of up to so many keys can have. */
static inline int span_room(int64_t keys)
{
    return keys > (int64_t)SPAN * MAX_SPANS ? MAX_SPANS : (int)((keys + SPAN - 1) / SPAN);
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
#pragma unroll 8
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

enum { MERGE_THREADS = 256, MERGE_OUT = 4 };

template <int T, bool WHOLE> static __global__ void merge_kernel(mla_args a)
{
    extern __shared__ float value[]; /* [latent], spread over lanes */
    __shared__ float part[MAX_SPANS];
    int64_t r = blockIdx.x, row = a.row0 + r, stride = a.latent + 2;
    int head = blockIdx.y, lane = threadIdx.x % GPU_LANES;
    if (row >= a.step.counts[GPU_ROWS])
        return;
    int n = spans_of(keys_of(a, row));
    const float *from = a.partial + (r * a.heads + head) * a.spans * stride;
    float high = -INFINITY, sum = 0;
    for (int s = 0; s < n; s++)
        high = fmaxf(high, from[s * stride]);
    float zero = high == -INFINITY ? 0 : high;
    for (int s = 0; s < n; s++) {
        float p = expf(from[s * stride] - zero);
        sum += p * from[s * stride + 1];
        if (threadIdx.x == 0)
            part[s] = p;
    }
    __syncthreads();
    for (int c = threadIdx.x; c < merge_room<T>(a.latent); c += MERGE_THREADS) {
        float v = 0;
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

template <int T> static void mla_absorb(const mla_args &a, gpu_queue *q)
{
    dim3 grid(gpu_blocks(a.rows, ABSORB_ROWS), (unsigned)a.heads,
              gpu_blocks(a.latent, ABSORB_THREADS));
    size_t shared = (size_t)ABSORB_ROWS * a.nope * sizeof(float);
    absorb_kernel<T><<<grid, ABSORB_THREADS, shared, q->stream>>>(a);
}

template <int T> static void mla_merge(const mla_args &a, gpu_queue *q)
{
    dim3 grid((unsigned)a.rows, (unsigned)a.heads);
    size_t shared = (size_t)merge_room<T>(a.latent) * sizeof(float);
    if (a.latent % gpu_group<T>::N == 0)
        merge_kernel<T, true><<<grid, MERGE_THREADS, shared, q->stream>>>(a);
    else
        merge_kernel<T, false><<<grid, MERGE_THREADS, shared, q->stream>>>(a);
}

static inline int64_t mla_row_bytes(int64_t heads, int64_t latent, int64_t pe, int spans)
{
    return heads * (latent + pe + spans * (latent + 2)) * (int64_t)sizeof(float);
}

static inline int64_t mla_pass_rows(int64_t bytes, int64_t max_rows)
{
    int64_t fit = MLA_SCRATCH / bytes;
    return fit < 1 ? 1 : fit < max_rows ? fit : max_rows;
}

/* The arguments of a call, but for the pass; *most: rows of a pass. */
static inline mla_args mla_args_of(const fl_call *call, const fl_step *step, const gpu_queue *q,
                                   void *shared, int64_t *most)
{
    const fl_arg *in = call->in;
    const fl_state_pool *pool = &step->states[in[FL_MLA_CACHE].type.state];
    mla_args a = {};
    a.step = q->step;
    a.q = gpu_rows_of(&in[FL_MLA_Q]);
    a.o = gpu_rows_of(&call->out[0]);
    if (call->n_in > FL_MLA_SELECT && in[FL_MLA_SELECT].data) {
        a.select = (const int32_t *)in[FL_MLA_SELECT].data;
        a.select_stride = in[FL_MLA_SELECT].stride;
        a.n_select = (int)in[FL_MLA_SELECT].type.dim[0];
    }
    a.kv_b = gpu_weight_of(&in[FL_MLA_KV_B]);
    a.base = pool->base;
    a.item_bytes = pool->item_bytes;
    a.heads = (int)in[FL_MLA_Q].type.dim[0];
    a.dv = (int)call->attr[FL_MLA_V_DIM].i;
    a.nope = (int)(a.kv_b.n / a.heads - a.dv);
    a.pe = (int)in[FL_MLA_Q].type.dim[1] - a.nope;
    a.latent = (int)a.kv_b.k;
    a.scale = (float)call->attr[FL_MLA_SCALE].f;
    /* The most keys that a row can have: what every row is given room for. */
    a.spans = span_room(a.select ? a.n_select : q->max_context);
    *most = mla_pass_rows(mla_row_bytes(a.heads, a.latent, a.pe, a.spans), step->n_rows);
    a.query = (float *)shared;
    a.partial = a.query + *most * a.heads * (a.latent + a.pe);
    return a;
}

static inline void mla_scratch(const fl_node_view *n, const fl_limits *limits, size_t *per_worker,
                               size_t *shared)
{
    int64_t heads = n->in[FL_MLA_Q]->dim[0], latent = n->in[FL_MLA_KV_B]->dim[1];
    int64_t pe = n->in[FL_MLA_CACHE]->dim[0] - latent;
    bool selects = n->n_in > FL_MLA_SELECT && n->in[FL_MLA_SELECT];
    int spans = span_room(selects ? n->in[FL_MLA_SELECT]->dim[0] : limits->max_context);
    int64_t bytes = mla_row_bytes(heads, latent, pe, spans);
    *per_worker = 0;
    *shared = (size_t)(bytes * mla_pass_rows(bytes, limits->max_rows));
}

#endif
