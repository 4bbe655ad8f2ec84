/* rmsnorm, l2norm and layernorm: a block of threads per vector (the last dim of a row), of a size
 * that depends on the vector's length alone, and with it the order of the sums. */
#include "ops/gpu/gpu.h"

enum norm_kind { RMS, L2, LAYER };

typedef struct norm_args {
    gpu_rows x, y;
    const float *w, *b; /* NULL: none */
    const int32_t *count;
    int per_row, d; /* vectors in a row, and their length */
    float eps, scale;
} norm_args;

template <int KIND> static __global__ void norm_kernel(norm_args a)
{
    __shared__ float room[GPU_LANES];
    int64_t row = blockIdx.x / a.per_row, at = (int64_t)(blockIdx.x % a.per_row) * a.d;
    if (row >= *a.count)
        return;
    const float *x = a.x.p + row * a.x.stride + at;
    float *y = a.y.p + row * a.y.stride + at;
    float mean = 0, sum = 0;
    if (KIND == LAYER) {
        for (int i = threadIdx.x; i < a.d; i += blockDim.x)
            mean += x[i];
        mean = block_sum(mean, room) / a.d;
    }
    for (int i = threadIdx.x; i < a.d; i += blockDim.x)
        sum = fmaf(x[i] - mean, x[i] - mean, sum);
    sum = block_sum(sum, room);
    float r = KIND == L2 ? l2_factor(sum, a.scale, a.eps) : rms_factor(sum, a.d, a.eps);
    for (int i = threadIdx.x; i < a.d; i += blockDim.x) {
        float v = (x[i] - mean) * r * (a.w ? a.w[i] : 1);
        y[i] = a.b ? v + a.b[i] : v;
    }
}

static const float *vector(const fl_call *call, int i)
{
    return i < call->n_in ? (const float *)call->in[i].data : NULL;
}

template <int KIND>
static void run(const fl_call *call, const fl_step *step, int phase, const fl_worker *worker)
{
    (void)phase;
    gpu_queue *q = (gpu_queue *)worker->queue;
    const fl_type *t = &call->in[0].type;
    int64_t rows = fl_rows_now(step, t->rows);
    norm_args a = {};
    a.x = gpu_rows_of(&call->in[0]);
    a.y = gpu_rows_of(&call->out[0]);
    a.w = vector(call, 1);
    a.b = vector(call, 2);
    a.count = gpu_count(q, t->rows);
    a.d = (int)t->dim[t->ndim - 1];
    a.per_row = (int)(fl_type_width(t) / a.d);
    a.eps = (float)call->attr[0].f;
    a.scale = KIND == L2 ? (float)call->attr[FL_L2NORM_SCALE].f : 1;
    if (rows)
        norm_kernel<KIND><<<(unsigned)(rows * a.per_row), fl_row_threads(a.d), 0, q->stream>>>(a);
    gpu_launched(q);
}

static const fl_kernel kernels[] = {
    {.op = "rmsnorm", .name = "gpu", .preference = 1, .n_phases = 1, .run = run<RMS>},
    {.op = "l2norm", .name = "gpu", .preference = 1, .n_phases = 1, .run = run<L2>},
    {.op = "layernorm", .name = "gpu", .preference = 1, .n_phases = 1, .run = run<LAYER>},
};
extern const fl_kernel_list gpu_kernels_norm = FL_KERNEL_LIST(kernels);
