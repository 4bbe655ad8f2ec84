/* mla: attention in the space of the cached latents, spread over the chip by (row, group of heads,
 * span of keys).
 *
 *   absorb    q' = scale * (UK^T q_nope, q_pe) per row and head
 *   attend    a span of keys for 16 heads: running softmax over blocks of 16 keys
 *   merge     the spans of a row in ascending order, then UV times the latent result
 *
 * Spans have 256 keys, or so many more that a row has 64 of them; blocks and spans are counted from
 * the row's first key, so a row's sums depend on its number of keys alone.  With a selection the
 * keys are its entries; those that are no visible position are passed over. */
#include "ops/gpu/weights.h"

enum { HEADS = 16, KEYS = 16, THREADS = 256, SPAN = 256, MAX_SPANS = 64, MAX_LATENT = 1024 };
static const int64_t SCRATCH = (int64_t)256 << 20;

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
static int span_room(int64_t keys)
{
    return keys > (int64_t)SPAN * MAX_SPANS ? MAX_SPANS : (int)((keys + SPAN - 1) / SPAN);
}

/* ---- absorb ---- */

enum { ABSORB_ROWS = 4, ABSORB_THREADS = 128 };

template <int T> static __global__ void absorb_kernel(mla_args a)
{
    extern __shared__ float qs[]; /* [ABSORB_ROWS][nope] */
    int head = blockIdx.y;
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
    for (int c = threadIdx.x; c < a.latent; c += ABSORB_THREADS) {
        float acc[ABSORB_ROWS] = {};
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
    for (int i = threadIdx.x; i < n * a.pe; i += ABSORB_THREADS) {
        int r = i / a.pe, d = i % a.pe;
        a.query[((first + r) * a.heads + head) * whole + a.latent + d] =
            a.q.p[(a.row0 + first + r) * a.q.stride + head * width + a.nope + d] * a.scale;
    }
}

/* ---- attend ---- */

/* WIDE: latent elements of a thread. */
template <int WIDE> static __global__ void attend_kernel(mla_args a)
{
    extern __shared__ float shared[];
    __shared__ float weight[KEYS][HEADS], shrink[HEADS];
    int whole = a.latent + a.pe, stride = whole + 1, t = threadIdx.x;
    float *qs = shared, *keys = qs + HEADS * whole;
    int64_t r = blockIdx.z, row = a.row0 + r;
    int head0 = blockIdx.y * HEADS, span = blockIdx.x;
    if (row >= a.step.counts[GPU_ROWS])
        return;
    int64_t n_keys = keys_of(a, row), length = span_length(n_keys), visible = a.step.pos[row] + 1;
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
            const float *item =
                there ? (const float *)(a.base + step_item(a.step, seq, pos) * a.item_bytes) : NULL;
            for (int c = t % GPU_LANES; c < whole; c += GPU_LANES)
                keys[i * stride + c] = there ? item[c] : 0;
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

/* ---- merge ---- */

enum { MERGE_THREADS = 128 };

template <int T> static __global__ void merge_kernel(mla_args a)
{
    extern __shared__ float value[]; /* [latent] */
    __shared__ float part[MAX_SPANS];
    int64_t r = blockIdx.x, row = a.row0 + r;
    int head = blockIdx.y, lane = threadIdx.x % GPU_LANES;
    if (row >= a.step.counts[GPU_ROWS])
        return;
    int n = spans_of(keys_of(a, row));
    const float *from = a.partial + (r * a.heads + head) * a.spans * (a.latent + 2);
    float high = -INFINITY, sum = 0;
    for (int s = 0; s < n; s++)
        high = fmaxf(high, from[s * (int64_t)(a.latent + 2)]);
    float zero = high == -INFINITY ? 0 : high;
    for (int s = 0; s < n; s++) {
        float p = expf(from[s * (int64_t)(a.latent + 2)] - zero);
        sum += p * from[s * (int64_t)(a.latent + 2) + 1];
        if (threadIdx.x == 0)
            part[s] = p;
    }
    __syncthreads();
    for (int c = threadIdx.x; c < a.latent; c += MERGE_THREADS) {
        float v = 0;
        for (int s = 0; s < n; s++)
            v = fmaf(part[s], from[s * (int64_t)(a.latent + 2) + 2 + c], v);
        value[c] = sum == 0 ? 0 : v / sum;
    }
    __syncthreads();
    for (int d = threadIdx.x / GPU_LANES; d < a.dv; d += MERGE_THREADS / GPU_LANES) {
        float o = 0;
        for (int c = lane; c < a.latent; c += GPU_LANES)
            o = fmaf(weight_at<T>(a.kv_b, 0, (int64_t)head * (a.nope + a.dv) + a.nope + d, c),
                     value[c], o);
        o = lanes_sum(o);
        if (lane == 0)
            a.o.p[row * a.o.stride + (int64_t)head * a.dv + d] = o;
    }
}

/* ---- launching ---- */

template <int WIDE> static void attend(const mla_args &a, int spans, gpu_queue *q)
{
    int whole = a.latent + a.pe;
    size_t shared = (size_t)(HEADS * whole + KEYS * (whole + 1)) * sizeof(float);
    gpu_allow_shared(q, attend_kernel<WIDE>, shared);
    dim3 grid((unsigned)spans, gpu_blocks(a.heads, HEADS), (unsigned)a.rows);
    attend_kernel<WIDE><<<grid, THREADS, shared, q->stream>>>(a);
}

template <int T> static void one_pass(const mla_args &a, gpu_queue *q)
{
    dim3 by_head(gpu_blocks(a.rows, ABSORB_ROWS), (unsigned)a.heads);
    absorb_kernel<T>
        <<<by_head, ABSORB_THREADS, (size_t)ABSORB_ROWS * a.nope * sizeof(float), q->stream>>>(a);
    if (a.latent <= THREADS)
        attend<1>(a, a.spans, q);
    else if (a.latent <= 2 * THREADS)
        attend<2>(a, a.spans, q);
    else
        attend<4>(a, a.spans, q);
    merge_kernel<T><<<dim3((unsigned)a.rows, (unsigned)a.heads), MERGE_THREADS,
                      (size_t)a.latent * sizeof(float), q->stream>>>(a);
    gpu_launched(q);
}

static int64_t row_bytes(int64_t heads, int64_t latent, int64_t pe, int spans)
{
    return heads * (latent + pe + spans * (latent + 2)) * (int64_t)sizeof(float);
}

static int64_t pass_rows(int64_t bytes, int64_t max_rows)
{
    int64_t fit = SCRATCH / bytes;
    return fit < 1 ? 1 : fit < max_rows ? fit : max_rows;
}

static void run(const fl_call *call, const fl_step *step, int phase, const fl_worker *worker)
{
    (void)phase;
    gpu_queue *q = (gpu_queue *)worker->queue;
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
    int64_t most = pass_rows(row_bytes(a.heads, a.latent, a.pe, a.spans), step->n_rows);
    a.query = (float *)worker->shared;
    a.partial = a.query + most * a.heads * (a.latent + a.pe);
    for (int64_t r = 0; r < step->n_rows; r += most) {
        a.row0 = r;
        a.rows = gpu_min(step->n_rows - r, most);
        GPU_FOR_DTYPE(in[FL_MLA_KV_B].type.dtype, one_pass<T>(a, q));
    }
}

static void scratch(const fl_node_view *n, const fl_limits *limits, size_t *per_worker,
                    size_t *shared)
{
    int64_t heads = n->in[FL_MLA_Q]->dim[0], latent = n->in[FL_MLA_KV_B]->dim[1];
    int64_t pe = n->in[FL_MLA_CACHE]->dim[0] - latent;
    bool selects = n->n_in > FL_MLA_SELECT && n->in[FL_MLA_SELECT];
    int spans = span_room(selects ? n->in[FL_MLA_SELECT]->dim[0] : limits->max_context);
    int64_t bytes = row_bytes(heads, latent, pe, spans);
    *per_worker = 0;
    *shared = (size_t)(bytes * pass_rows(bytes, limits->max_rows));
}

static bool fits(const fl_node_view *n)
{
    return n->in[FL_MLA_KV_B]->dim[1] <= MAX_LATENT && n->in[FL_MLA_CACHE]->dim[0] <= 1280 &&
           n->in[FL_MLA_Q]->dim[1] <= 2048;
}

static const fl_kernel kernels[] = {{.op = "mla",
                                     .name = "absorbed-gpu",
                                     .preference = 1,
                                     .n_phases = 1,
                                     .run = run,
                                     .fits = fits,
                                     .scratch = scratch}};
extern const fl_kernel_list gpu_kernels_mla = FL_KERNEL_LIST(kernels);
