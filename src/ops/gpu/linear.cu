/* linear: y = x W^T, weights in any stored format.  A warp computes a few outputs for a few rows
 * over the whole length (weights.h says in which order); vectors pass through shared memory in
 * pieces, so that eight warps read them once from afar. */
#include "ops/gpu/weights.h"

enum { WARPS = 8, OUT = 4, PIECE = 4096 /* elements of a vector in shared memory */ };

typedef struct linear_args {
    gpu_rows x, y;
    gpu_weight w;
    int64_t width; /* of x: rows of w may be longer, with zeros */
    const int32_t *count;
} linear_args;

template <int T, bool WHOLE, int R> static __global__ void linear_kernel(linear_args a)
{
    extern __shared__ float xs[];
    int64_t row0 = (int64_t)blockIdx.y * R, n_rows = *a.count;
    int warp = threadIdx.x / GPU_LANES;
    int64_t n0 = ((int64_t)blockIdx.x * WARPS + warp) * OUT;
    float acc[OUT][R] = {};
    if (row0 >= n_rows)
        return;
    for (int64_t k0 = 0; k0 < a.w.k; k0 += PIECE) {
        int len = (int)(a.w.k - k0 < PIECE ? a.w.k - k0 : PIECE);
        constexpr int TURN = (int)GPU_LANES * (int)gpu_group<T>::N;
        int padded = (len + TURN - 1) / TURN * TURN;
        __syncthreads();
        for (int r = 0; r < R; r++) {
            const float *x = a.x.p + (row0 + r) * a.x.stride + k0;
            bool there = row0 + r < n_rows;
            for (int k = threadIdx.x; k < padded; k += blockDim.x)
                xs[r * PIECE + spread<T>(k)] = there && k0 + k < a.width ? x[k] * lacking<T>() : 0;
        }
        __syncthreads();
        if (n0 < a.w.n)
            dot_rows<T, WHOLE, OUT, R>(a.w, 0, n0, a.w.n, k0, len, xs, PIECE, acc);
    }
#pragma unroll
    for (int o = 0; o < OUT; o++) {
#pragma unroll
        for (int r = 0; r < R; r++) {
            float sum = lanes_sum(acc[o][r]);
            if (threadIdx.x % GPU_LANES == 0 && n0 + o < a.w.n && row0 + r < n_rows)
                a.y.p[(row0 + r) * a.y.stride + n0 + o] = sum;
        }
    }
}

template <int T, bool WHOLE, int R>
static void launch(const linear_args &a, int64_t rows, gpu_queue *q)
{
    size_t shared = (size_t)R * PIECE * sizeof(float);
    dim3 grid(gpu_blocks(a.w.n, WARPS * OUT), gpu_blocks(rows, R));
    gpu_allow_shared(q, linear_kernel<T, WHOLE, R>, shared);
    linear_kernel<T, WHOLE, R><<<grid, WARPS * GPU_LANES, shared, q->stream>>>(a);
    gpu_launched(q);
}

template <int T> static void one_weight(const linear_args &a, int64_t rows, gpu_queue *q)
{
    bool whole = a.w.k % gpu_group<T>::N == 0;
    if (whole && rows > 2)
        launch<T, true, 4>(a, rows, q);
    else if (whole)
        launch<T, true, 1>(a, rows, q);
    else
        launch<T, false, 1>(a, rows, q);
}

static void run(const fl_call *call, const fl_step *step, int phase, const fl_worker *worker)
{
    (void)phase;
    gpu_queue *q = (gpu_queue *)worker->queue;
    fl_rows symbol = call->in[0].type.rows;
    int64_t rows = fl_rows_now(step, symbol);
    linear_args a = {};
    a.x = gpu_rows_of(&call->in[0]);
    a.width = fl_type_width(&call->in[0].type);
    a.count = gpu_count(q, symbol);
    for (int i = 1; i < call->n_in && rows > 0; i++) {
        a.w = gpu_weight_of(&call->in[i]);
        a.y = gpu_rows_of(&call->out[i - 1]);
        if (call->in[i].type.dtype == FL_Q8)
            one_weight<FL_Q8>(a, rows, q);
        else
            GPU_FOR_DTYPE(call->in[i].type.dtype, one_weight<T>(a, rows, q));
    }
}

static const fl_kernel kernels[] = {
    {.op = "linear", .name = "gpu", .preference = 1, .n_phases = 1, .run = run}};
extern const fl_kernel_list gpu_kernels_linear = FL_KERNEL_LIST(kernels);
