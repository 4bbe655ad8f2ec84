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
#include "ops/gpu/experts.h"
#include "ops/gpu/expr.h"

enum { WARPS = 8, OUT = 2, PIECE = 4096 };

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
            xs[r * PIECE + spread<T>(k)] = from[r] && k < len ? from[r][k0 + k] * lacking<T>() : 0;
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

template <int T, bool WHOLE, int R> static __global__ void up_kernel(experts_args a, fl_expr act)
{
    extern __shared__ float xs[];
    for (int c = 0; c < PAIR_CLASSES; c++) {
        EACH_EXPERT(a, c, e, first, last)
        {
            for (int p = first; p < last; p += R)
                up_tile<T, WHOLE, R>(a, act, e, p, last, xs);
        }
    }
}

template <int T, bool WHOLE, int R> static __global__ void down_kernel(experts_args a)
{
    extern __shared__ float xs[];
    for (int c = 0; c < PAIR_CLASSES; c++) {
        EACH_EXPERT(a, c, e, first, last)
        {
            for (int p = first; p < last; p += R)
                down_tile<T, WHOLE, R>(a, e, p, last, xs);
        }
    }
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
    up_kernel<T, WHOLE, R>
        <<<dim3(gpu_blocks(a.w1.n, WARPS * OUT), many), WARPS * GPU_LANES, shared, q->stream>>>(
            a, *act);
    down_kernel<T, WHOLE, R>
        <<<dim3(gpu_blocks(a.w2.n, WARPS * 2 * OUT), many), WARPS * GPU_LANES, shared, q->stream>>>(
            a);
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

static void run(const fl_call *call, const fl_step *step, int phase, const fl_worker *worker)
{
    (void)phase;
    gpu_queue *q = (gpu_queue *)worker->queue;
    int64_t rows = fl_rows_now(step, call->in[Z].type.rows), most;
    experts_args a = experts_of(call, q, rows, worker->shared, &most);
    for (int64_t r = 0; r < rows; r += most) {
        a.row0 = r;
        a.rows = gpu_min(rows - r, most);
        GPU_FOR_DTYPE(call->in[W1].type.dtype, typed_pass<T>(a, (const fl_expr *)call->prep, q));
    }
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
                                     .scratch = experts_scratch}};
extern const fl_kernel_list gpu_kernels_experts = FL_KERNEL_LIST(kernels);
