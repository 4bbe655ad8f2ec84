/* greatest: a row is cut into PARTS, one block each, so that one long row is read by many
 * processors at once; then a warp takes the best of the parts.  "Higher, else earlier" is an order
 * without equals, so what comes out does not depend on who compared what first. */
#include "ops/gpu/gpu.h"

enum { PARTS = GPU_LANES, THREADS = 256 };

typedef struct found {
    float x;
    int32_t at, finite;
} found;

static __device__ void take(found *a, float x, int32_t at, int32_t finite)
{
    if (x > a->x || (x == a->x && at < a->at)) {
        a->x = x;
        a->at = at;
    }
    a->finite &= finite;
}

static __device__ void take_lanes(found *a)
{
    for (int i = GPU_LANES / 2; i > 0; i /= 2) {
        float x = __shfl_xor_sync(0xffffffffu, a->x, i, GPU_LANES);
        int32_t at = __shfl_xor_sync(0xffffffffu, a->at, i, GPU_LANES);
        take(a, x, at, __shfl_xor_sync(0xffffffffu, a->finite, i, GPU_LANES));
    }
}

static __global__ void parts_kernel(gpu_rows x, int64_t width, const int32_t *count, found *out)
{
    __shared__ found room[THREADS / GPU_LANES];
    int64_t row = blockIdx.y, step = (width + PARTS - 1) / PARTS;
    int64_t begin = blockIdx.x * step, end = begin + step < width ? begin + step : width;
    int lane = threadIdx.x % GPU_LANES, warp = threadIdx.x / GPU_LANES;
    if (row >= *count)
        return;
    found best = {-INFINITY, INT32_MAX, 1};
    for (int64_t i = begin + threadIdx.x; i < end; i += THREADS) {
        float v = x.p[row * x.stride + i];
        take(&best, v, (int32_t)i, isfinite(v) ? 1 : 0);
    }
    take_lanes(&best);
    if (lane == 0)
        room[warp] = best;
    __syncthreads();
    if (threadIdx.x > 0)
        return;
    for (int w = 1; w < THREADS / GPU_LANES; w++)
        take(&best, room[w].x, room[w].at, room[w].finite);
    out[row * PARTS + blockIdx.x] = best;
}

static __global__ void best_kernel(const found *parts, const int32_t *count, gpu_rows y)
{
    int64_t row = blockIdx.x;
    if (row >= *count)
        return;
    found best = parts[row * PARTS + threadIdx.x];
    take_lanes(&best);
    if (threadIdx.x > 0)
        return;
    int32_t *to = (int32_t *)y.p + row * y.stride;
    to[0] = best.finite ? best.at : 0;
    to[1] = best.finite;
}

static void run(const fl_call *call, const fl_step *step, int phase, const fl_worker *worker)
{
    (void)phase;
    gpu_queue *q = (gpu_queue *)worker->queue;
    fl_rows symbol = call->in[0].type.rows;
    unsigned rows = (unsigned)fl_rows_now(step, symbol);
    found *parts = (found *)worker->shared;
    if (rows) {
        parts_kernel<<<dim3(PARTS, rows), THREADS, 0, q->stream>>>(
            gpu_rows_of(&call->in[0]), fl_type_width(&call->in[0].type), gpu_count(q, symbol),
            parts);
        best_kernel<<<rows, GPU_LANES, 0, q->stream>>>(parts, gpu_count(q, symbol),
                                                       gpu_rows_of(&call->out[0]));
    }
    gpu_launched(q);
}

static void scratch(const fl_node_view *node, const fl_limits *limits, size_t *own, size_t *shared)
{
    int32_t rows = node->in[0]->rows == FL_ROWS_LOGITS ? limits->max_logits : limits->max_rows;
    *own = 0;
    *shared = (size_t)rows * PARTS * sizeof(found);
}

static const fl_kernel kernels[] = {{.op = "greatest",
                                     .name = "gpu",
                                     .preference = 1,
                                     .n_phases = 1,
                                     .run = run,
                                     .scratch = scratch}};
extern const fl_kernel_list gpu_kernels_greatest = FL_KERNEL_LIST(kernels);
