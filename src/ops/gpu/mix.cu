/* residual_mix: a block per row.  One pass over the sources gives the scores, a second the mix. */
#include "ops/gpu/gpu.h"

typedef struct mix_args {
    gpu_rows source[FL_MIX_SOURCES], y;
    const float *w;
    const int32_t *count;
    int64_t width;
    int n;
    float eps;
} mix_args;

static __global__ void mix_kernel(mix_args a)
{
    __shared__ float room[GPU_LANES];
    int64_t row = blockIdx.x;
    float p[FL_MIX_SOURCES], high = -INFINITY, sum = 0;
    if (row >= *a.count)
        return;
    for (int i = 0; i < a.n; i++) {
        const float *v = a.source[i].p + row * a.source[i].stride;
        float squares = 0, dot = 0;
        for (int64_t d = threadIdx.x; d < a.width; d += blockDim.x) {
            squares = fmaf(v[d], v[d], squares);
            dot = fmaf(v[d], a.w[d], dot);
        }
        squares = block_sum(squares, room);
        dot = block_sum(dot, room);
        p[i] = mix_score(dot, squares, (float)a.width, a.eps);
        high = p[i] > high ? p[i] : high;
    }
    for (int i = 0; i < a.n; i++) {
        p[i] = expf(p[i] - high);
        sum += p[i];
    }
    for (int i = 0; i < a.n; i++)
        p[i] /= sum;
    for (int64_t d = threadIdx.x; d < a.width; d += blockDim.x) {
        float mix = 0;
        for (int i = 0; i < a.n; i++)
            mix = fmaf(p[i], a.source[i].p[row * a.source[i].stride + d], mix);
        a.y.p[row * a.y.stride + d] = mix;
    }
}

static void run(const fl_call *call, const fl_step *step, int phase, const fl_worker *worker)
{
    (void)phase;
    gpu_queue *q = (gpu_queue *)worker->queue;
    fl_rows symbol = call->out[0].type.rows;
    int64_t rows = fl_rows_now(step, symbol);
    mix_args a = {};
    a.n = call->n_in - 1;
    for (int i = 0; i < a.n; i++)
        a.source[i] = gpu_rows_of(&call->in[i + 1]);
    a.y = gpu_rows_of(&call->out[0]);
    a.w = (const float *)call->in[0].data;
    a.count = gpu_count(q, symbol);
    a.width = call->in[0].type.dim[0];
    a.eps = (float)call->attr[FL_RESIDUAL_MIX_EPS].f;
    if (rows)
        mix_kernel<<<(unsigned)rows, fl_row_threads(a.width), 0, q->stream>>>(a);
    gpu_launched(q);
}

static const fl_kernel kernels[] = {
    {.op = "residual_mix", .name = "gpu", .preference = 1, .n_phases = 1, .run = run}};
extern const fl_kernel_list gpu_kernels_mix = FL_KERNEL_LIST(kernels);
