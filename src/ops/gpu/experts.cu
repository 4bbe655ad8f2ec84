/* experts: rows are gathered by expert, so that an expert's weights are read once for up to four
 * rows at a time, and each pair of a row and an expert is computed as if it were alone.
 *
 *   group     one block lists the experts that are wanted and, for each, its pairs
 *   up        hidden = act(W1 z, W3 z) per pair: a warp does a few rows of both matrices
 *   down      W2 hidden per pair
 *   combine   the sum over a row's experts, in the order of its ids
 *
 * An id outside the stack gets no pair and adds nothing.  Steps with more rows than the scratch has
 * room for go through in several passes. */
#include "ops/gpu/expr.h"
#include "ops/gpu/weights.h"

enum { Z, IDS, WEIGHTS, W1, W3, W2 };
enum { WARPS = 8, OUT = 2, PIECE = 4096, MAX_EXPERTS = 4096, GROUP_THREADS = 1024 };
static const int64_t SCRATCH = (int64_t)256 << 20;

/* The lists of one pass, in device memory. */
typedef struct groups {
    int32_t *n_active, *active; /* experts that have pairs */
    int32_t *start;             /* [experts + 1] into pairs */
    int32_t *pairs;             /* row * k + slot */
} groups;

typedef struct experts_args {
    gpu_rows z, ids, weights, y;
    gpu_weight w1, w3, w2;
    const int32_t *count;
    groups g;
    float *hidden, *down; /* per pair of the pass */
    int64_t row0, rows;   /* of the pass */
    int k, n_experts;
} experts_args;

/* ---- group ---- */

static __global__ void group_kernel(experts_args a)
{
    __shared__ int32_t n[MAX_EXPERTS], next[MAX_EXPERTS];
    int64_t rows = *a.count - a.row0 < a.rows ? *a.count - a.row0 : a.rows;
    int32_t n_pairs = rows > 0 ? (int32_t)rows * a.k : 0;
    for (int e = threadIdx.x; e < a.n_experts; e += GROUP_THREADS)
        n[e] = 0;
    __syncthreads();
    for (int p = threadIdx.x; p < n_pairs; p += GROUP_THREADS) {
        int32_t e = ((int32_t *)a.ids.p)[(a.row0 + p / a.k) * a.ids.stride + p % a.k];
        if (e >= 0 && e < a.n_experts)
            atomicAdd(&n[e], 1);
    }
    __syncthreads();
    if (threadIdx.x == 0) {
        int32_t at = 0, active = 0;
        for (int e = 0; e < a.n_experts; e++) {
            next[e] = a.g.start[e] = at;
            at += n[e];
            if (n[e])
                a.g.active[active++] = e;
        }
        a.g.start[a.n_experts] = at;
        *a.g.n_active = active;
    }
    __syncthreads();
    for (int p = threadIdx.x; p < n_pairs; p += GROUP_THREADS) {
        int32_t e = ((int32_t *)a.ids.p)[(a.row0 + p / a.k) * a.ids.stride + p % a.k];
        if (e >= 0 && e < a.n_experts) /* the order among an expert's pairs changes no result */
            a.g.pairs[atomicAdd(&next[e], 1)] = p;
    }
}

/* ---- products ---- */

/* Brings elements [k0, k0 + len) of R vectors to shared memory; NULL: zeros. */
template <int T, int R>
static __device__ inline void bring(const float *const from[R], int64_t k0, int len, float *xs)
{
    constexpr int TURN = (int)GPU_LANES * (int)gpu_group<T>::N;
    int padded = (len + TURN - 1) / TURN * TURN;
    __syncthreads();
    for (int r = 0; r < R; r++) {
        for (int k = threadIdx.x; k < padded; k += blockDim.x)
            xs[r * PIECE + spread<T>(k)] = from[r] && k < len ? from[r][k0 + k] : 0;
    }
    __syncthreads();
}

/* R pairs of expert e, from pair `first` of the list on; some may lie beyond `last`. */
template <int T, bool WHOLE, int R>
static __device__ void up_tile(const experts_args &a, const fl_expr &act, int e, int first,
                               int last, float *xs)
{
    const float *from[R];
    int32_t pair[R];
    int lane = threadIdx.x % GPU_LANES;
    int64_t n0 = ((int64_t)blockIdx.x * WARPS + threadIdx.x / GPU_LANES) * OUT;
    float gate[OUT][R] = {}, up[OUT][R] = {};
    for (int r = 0; r < R; r++) {
        pair[r] = first + r < last ? a.g.pairs[first + r] : -1;
        from[r] = pair[r] < 0 ? NULL : a.z.p + (a.row0 + pair[r] / a.k) * a.z.stride;
    }
    for (int64_t k0 = 0; k0 < a.w1.k; k0 += PIECE) {
        int len = (int)(a.w1.k - k0 < PIECE ? a.w1.k - k0 : PIECE);
        bring<T, R>(from, k0, len, xs);
        if (n0 < a.w1.n) {
            dot_rows<T, WHOLE, OUT, R>(a.w1, e, n0, a.w1.n, k0, len, xs, PIECE, gate);
            dot_rows<T, WHOLE, OUT, R>(a.w3, e, n0, a.w1.n, k0, len, xs, PIECE, up);
        }
    }
    float in[2] = {0, 0};
    int64_t n = 0, to = -1; /* one lane per result applies the activation */
#pragma unroll
    for (int o = 0; o < OUT; o++) {
#pragma unroll
        for (int r = 0; r < R; r++) {
            float g = lanes_sum(gate[o][r]), u = lanes_sum(up[o][r]);
            if (lane == o * R + r) {
                in[0] = g;
                in[1] = u;
                n = n0 + o;
                to = pair[r];
            }
        }
    }
    if (to >= 0 && n < a.w1.n)
        a.hidden[to * a.w1.n + n] = expr_run(act, in);
}

template <int T, bool WHOLE, int R>
static __device__ void down_tile(const experts_args &a, int e, int first, int last, float *xs)
{
    const float *from[R];
    int32_t pair[R];
    int64_t n0 = ((int64_t)blockIdx.x * WARPS + threadIdx.x / GPU_LANES) * 2 * OUT;
    float acc[2 * OUT][R] = {};
    for (int r = 0; r < R; r++) {
        pair[r] = first + r < last ? a.g.pairs[first + r] : -1;
        from[r] = pair[r] < 0 ? NULL : a.hidden + pair[r] * a.w2.k;
    }
    for (int64_t k0 = 0; k0 < a.w2.k; k0 += PIECE) {
        int len = (int)(a.w2.k - k0 < PIECE ? a.w2.k - k0 : PIECE);
        bring<T, R>(from, k0, len, xs);
        if (n0 < a.w2.n)
            dot_rows<T, WHOLE, 2 * OUT, R>(a.w2, e, n0, a.w2.n, k0, len, xs, PIECE, acc);
    }
#pragma unroll
    for (int o = 0; o < 2 * OUT; o++) {
#pragma unroll
        for (int r = 0; r < R; r++) {
            float sum = lanes_sum(acc[o][r]);
            if (threadIdx.x % GPU_LANES == 0 && pair[r] >= 0 && n0 + o < a.w2.n)
                a.down[pair[r] * a.w2.n + n0 + o] = sum;
        }
    }
}

/* A block takes every gridDim.y-th of the active experts. */
template <int T, bool WHOLE, int R>
static __global__ void up_kernel(experts_args a, fl_expr act)
{
    extern __shared__ float xs[];
    for (int i = blockIdx.y; i < *a.g.n_active; i += gridDim.y) {
        int e = a.g.active[i], last = a.g.start[e + 1];
        for (int p = a.g.start[e]; p < last; p += R)
            up_tile<T, WHOLE, R>(a, act, e, p, last, xs);
    }
}

template <int T, bool WHOLE, int R> static __global__ void down_kernel(experts_args a)
{
    extern __shared__ float xs[];
    for (int i = blockIdx.y; i < *a.g.n_active; i += gridDim.y) {
        int e = a.g.active[i], last = a.g.start[e + 1];
        for (int p = a.g.start[e]; p < last; p += R)
            down_tile<T, WHOLE, R>(a, e, p, last, xs);
    }
}

/* ---- combine ---- */

static __global__ void combine_kernel(experts_args a)
{
    int64_t row = blockIdx.x, width = a.w2.n, at = a.row0 + row;
    int64_t d = (int64_t)blockIdx.y * blockDim.x + threadIdx.x;
    if (at >= *a.count || d >= width)
        return;
    const int32_t *ids = (const int32_t *)a.ids.p + at * a.ids.stride;
    const float *weights = a.weights.p + at * a.weights.stride;
    float y = 0;
    for (int j = 0; j < a.k; j++) {
        if (ids[j] >= 0 && ids[j] < a.n_experts)
            y += weights[j] * a.down[(row * a.k + j) * width + d];
    }
    a.y.p[at * a.y.stride + d] = y;
}

/* ---- launching ---- */

template <int T, bool WHOLE, int R>
static void one_pass(const experts_args &a, const fl_expr *act, gpu_queue *q)
{
    size_t shared = (size_t)R * PIECE * sizeof(float);
    unsigned many = (unsigned)gpu_min(gpu_min(a.rows * a.k, a.n_experts), 65535);
    group_kernel<<<1, GROUP_THREADS, 0, q->stream>>>(a);
    gpu_allow_shared(q, up_kernel<T, WHOLE, R>, shared);
    gpu_allow_shared(q, down_kernel<T, WHOLE, R>, shared);
    up_kernel<T, WHOLE, R><<<dim3(gpu_blocks(a.w1.n, WARPS * OUT), many), WARPS * GPU_LANES, shared,
                             q->stream>>>(a, *act);
    down_kernel<T, WHOLE, R><<<dim3(gpu_blocks(a.w2.n, WARPS * 2 * OUT), many), WARPS * GPU_LANES,
                               shared, q->stream>>>(a);
    combine_kernel<<<dim3((unsigned)a.rows, gpu_blocks(a.w2.n, 256)), 256, 0, q->stream>>>(a);
    gpu_launched(q);
}

template <int T> static void typed_pass(const experts_args &a, const fl_expr *act, gpu_queue *q)
{
    bool whole = a.w1.k % gpu_group<T>::N == 0 && a.w2.k % gpu_group<T>::N == 0;
    if (whole && a.rows > 2)
        one_pass<T, true, 4>(a, act, q);
    else if (whole)
        one_pass<T, true, 1>(a, act, q);
    else
        one_pass<T, false, 1>(a, act, q);
}

/* Rows of a pass. */
static int64_t pass_rows(int64_t k, int64_t inner, int64_t width, int64_t max_rows)
{
    int64_t fit = SCRATCH / (k * (inner + width) * (int64_t)sizeof(float));
    return fit < 1 ? 1 : fit < max_rows ? fit : max_rows;
}

static void run(const fl_call *call, const fl_step *step, int phase, const fl_worker *worker)
{
    (void)phase;
    gpu_queue *q = (gpu_queue *)worker->queue;
    fl_rows symbol = call->in[Z].type.rows;
    int64_t rows = fl_rows_now(step, symbol);
    experts_args a = {};
    a.z = gpu_rows_of(&call->in[Z]);
    a.ids = gpu_rows_of(&call->in[IDS]);
    a.weights = gpu_rows_of(&call->in[WEIGHTS]);
    a.y = gpu_rows_of(&call->out[0]);
    a.w1 = gpu_weight_of(&call->in[W1]);
    a.w3 = gpu_weight_of(&call->in[W3]);
    a.w2 = gpu_weight_of(&call->in[W2]);
    a.count = gpu_count(q, symbol);
    a.k = (int)call->in[IDS].type.dim[0];
    a.n_experts = call->in[W1].type.n_tensors;
    int64_t most = pass_rows(a.k, a.w1.n, a.w2.n, rows);
    int32_t *ints = (int32_t *)worker->shared;
    a.g.n_active = ints;
    a.g.active = ints + 1;
    a.g.start = a.g.active + a.n_experts;
    a.g.pairs = a.g.start + a.n_experts + 1;
    a.hidden = (float *)(a.g.pairs + most * a.k);
    a.down = a.hidden + most * a.k * a.w1.n;
    for (int64_t r = 0; r < rows; r += most) {
        a.row0 = r;
        a.rows = gpu_min(rows - r, most);
        GPU_FOR_DTYPE(call->in[W1].type.dtype,
                      typed_pass<T>(a, (const fl_expr *)call->prep, q));
    }
}

static void scratch(const fl_node_view *n, const fl_limits *limits, size_t *per_worker,
                    size_t *shared)
{
    int64_t k = n->in[IDS]->dim[0], inner = n->in[W1]->dim[0], width = n->in[W1]->dim[1];
    int64_t most = pass_rows(k, inner, width, limits->max_rows);
    *per_worker = 0;
    *shared = (size_t)(2 + 2 * n->in[W1]->n_tensors + most * k * (1 + inner + width)) * 4;
}

static bool fits(const fl_node_view *n)
{
    return n->in[W1]->n_tensors <= MAX_EXPERTS;
}

static const fl_kernel kernels[] = {{.op = "experts",
                                     .name = "gpu",
                                     .preference = 1,
                                     .n_phases = 1,
                                     .run = run,
                                     .fits = fits,
                                     .scratch = scratch}};
extern const fl_kernel_list gpu_kernels_experts = FL_KERNEL_LIST(kernels);
