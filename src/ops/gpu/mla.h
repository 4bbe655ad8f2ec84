/* mla: what its kernels share.  Attention runs in the space of the cached latents, spread over the
 * chip by (row, group of heads, span of keys).
 *
 *   absorb    q' = scale * (UK^T q_nope, q_pe) per row and head
 *   attend    a span of keys for a group of heads: running softmax over blocks of keys
 *   merge     the spans of a row, then UV times the latent result
 *
 * How a row's keys are cut into spans depends on the shapes and on its number of keys alone, so its
 * sums do too.  Rows in whole blocks of the chunk grid (step.h) fill the chip by themselves: they
 * have one span.  With a selection the keys are its entries; those that are no visible position are
 * passed over. */
#ifndef FL_OPS_GPU_MLA_H
#define FL_OPS_GPU_MLA_H

#include "ops/gpu/cache.h"

enum { SPAN = 64, MAX_SPANS = 256, MAX_LATENT = 1024, FEW_HEADS = 16 };
enum { MLA_BLOCKS = 132 /* that a row with many keys is spread over, at least */ };
static const int64_t MLA_SCRATCH = (int64_t)128 << 20;

typedef struct mla_args {
    gpu_step step;
    gpu_rows q, o;
    const int32_t *select; /* NULL: every visible position */
    int64_t select_stride;
    gpu_weight kv_b;
    const unsigned char *base;
    int64_t item_bytes, row_bytes, scales_at; /* of a cached row; before its factors */
    int heads, nope, pe, dv, latent, n_select;
    float scale;
    int64_t row0, rows; /* of the pass */
    int most_spans;     /* that a row of this shape may have; 1: rows of whole blocks */
    int spans;          /* room for so many in `partial` */
    float *query;       /* [rows][heads][latent + pe] */
    float *partial;     /* [rows][heads][spans][latent + 2]: maximum, sum, values */
    float *united;      /* [rows][heads][latent]: the values of all spans, where `query` was */
} mla_args;

/* Keys that a row goes through, visible or not. */
static __device__ inline int64_t keys_of(const mla_args &a, int64_t row)
{
    return a.select ? a.n_select : (int64_t)a.step.pos[row] + 1;
}

static inline int most_spans(int64_t heads)
{
    int64_t groups = (heads + 2 * FEW_HEADS - 1) / (2 * FEW_HEADS);
    if (heads <= FEW_HEADS)
        return MAX_SPANS;
    return groups < MLA_BLOCKS / 2 ? (int)(MLA_BLOCKS / groups) : 2;
}

/* Keys of a span: whole turns of SPAN / 2. */
static __host__ __device__ inline int64_t span_length(int64_t keys, int most)
{
    const int64_t turn = SPAN / 2, least = SPAN;
    if (most == 1)
        return keys;
    int64_t span = ((keys + most - 1) / most + turn - 1) / turn * turn;
    return span < least ? least : span;
}

static __host__ __device__ inline int spans_of(int64_t keys, int most)
{
    int64_t span = span_length(keys, most);
    return (int)((keys + span - 1) / span);
}

/* The most spans that a row of up to so many keys can have. */
static inline int span_room(int64_t keys, int most)
{
    return keys > (int64_t)SPAN * most ? most : (int)((keys + SPAN - 1) / SPAN);
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
    return fit < 1 ? 1 : gpu_min(fit, max_rows);
}

/* The arguments of a call, but for the pass. */
static inline mla_args mla_args_of(const fl_call *call, const fl_step *step, const gpu_queue *q)
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
    a.row_bytes = fl_cache_row_bytes(in[FL_MLA_CACHE].type.dtype, a.latent + a.pe);
    a.scales_at = fl_cache_scales_at(a.latent + a.pe);
    a.scale = (float)call->attr[FL_MLA_SCALE].f;
    return a;
}

/* Rows [row0, end) of the step, all of whole blocks of the grid or none, in as many passes as they
 * need. */
template <typename HOW>
static void mla_rows(mla_args a, const fl_call *call, int64_t row0, int64_t end, bool whole,
                     void *shared, gpu_queue *q)
{
    a.most_spans = whole ? 1 : most_spans(a.heads);
    a.spans = span_room(a.select ? a.n_select : q->max_context, a.most_spans);
    int64_t most = mla_pass_rows(mla_row_bytes(a.heads, a.latent, a.pe, a.spans), end - row0);
    a.query = a.united = (float *)shared;
    a.partial = a.query + most * a.heads * (a.latent + a.pe);
    for (a.row0 = row0; a.row0 < end; a.row0 += a.rows) {
        a.rows = gpu_min(end - a.row0, most);
        GPU_FOR_DTYPE(call->in[FL_MLA_KV_B].type.dtype, HOW::template absorb<T>(a, q));
        GPU_FOR_CACHE(call->in[FL_MLA_CACHE].type.dtype, HOW::template attend<F>(a, q));
        GPU_FOR_DTYPE(call->in[FL_MLA_KV_B].type.dtype, HOW::template merge<T>(a, q));
        gpu_launched(q);
    }
}

/* A kernel's run; HOW launches what it consists of: absorb and merge for weights of format T,
 * attend for caches of format F; or takes whole blocks in another way (`expand`). */
template <typename HOW>
static void mla_run(const fl_call *call, const fl_step *step, int phase, const fl_worker *worker)
{
    (void)phase;
    gpu_queue *q = (gpu_queue *)worker->queue;
    mla_args a = mla_args_of(call, step, q);
    int64_t done = 0; /* rows before it are queued, or wait for company */
    for (int32_t i = 0; i < step->n_seqs && step->n_rows != step->n_seqs; i++) {
        const fl_seq_rows *s = &step->seqs[i];
        int begin, end;
        gpu_whole_blocks(s->pos0, s->n_rows, &begin, &end);
        if (begin == end)
            continue;
        mla_rows<HOW>(a, call, done, s->row0 + begin, false, worker->shared, q);
        done = s->row0 + end;
        a.row0 = s->row0 + begin;
        a.rows = end - begin;
        if (!HOW::expand(a, call, i, (s->pos0 + begin) / FL_PAGE_TOKENS, worker->shared, q))
            mla_rows<HOW>(a, call, a.row0, done, true, worker->shared, q);
    }
    mla_rows<HOW>(a, call, done, step->n_rows, false, worker->shared, q);
}

static inline void mla_scratch(const fl_node_view *n, const fl_limits *limits, size_t *per_worker,
                               size_t *shared)
{
    int64_t heads = n->in[FL_MLA_Q]->dim[0], latent = n->in[FL_MLA_KV_B]->dim[1];
    int64_t pe = n->in[FL_MLA_CACHE]->dim[0] - latent;
    bool selects = n->n_in > FL_MLA_SELECT && n->in[FL_MLA_SELECT];
    int most = most_spans(heads);
    int spans = span_room(selects ? n->in[FL_MLA_SELECT]->dim[0] : limits->max_context, most);
    int64_t bytes = mla_row_bytes(heads, latent, pe, spans);
    int64_t whole = mla_row_bytes(heads, latent, pe, 1);
    bytes *= mla_pass_rows(bytes, limits->max_rows);
    whole *= mla_pass_rows(whole, limits->max_rows);
    *per_worker = 0;
    *shared = (size_t)(bytes > whole ? bytes : whole);
}

#endif
