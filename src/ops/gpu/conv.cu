/* conv1d: every output looks back over the rows of its sequence and, before the first of them, into
 * the tail; then a second kernel moves the tails on. */
#include "ops/gpu/gpu.h"

typedef struct conv_args {
    gpu_step step;
    gpu_rows x, y;
    const float *w; /* [channels][taps] */
    unsigned char *base;
    int64_t item_bytes, channels;
    int taps;
} conv_args;

static __global__ void conv_kernel(conv_args a)
{
    int64_t row = blockIdx.x, c = (int64_t)blockIdx.y * blockDim.x + threadIdx.x;
    if (row >= a.step.counts[GPU_ROWS] || c >= a.channels)
        return;
    const gpu_seq &seq = a.step.seqs[a.step.row_seq[row]];
    const float *tail = (const float *)(a.base + seq.slot * a.item_bytes) + c;
    int64_t r = row - seq.row0;
    float sum = 0;
    for (int j = 0; j < a.taps; j++) {
        int64_t from = r - (a.taps - 1) + j; /* row of the sequence; negative: in the tail */
        float v = from < 0 ? tail[(from + a.taps - 1) * a.channels]
                           : a.x.p[(seq.row0 + from) * a.x.stride + c];
        sum = fmaf(a.w[c * a.taps + j], v, sum);
    }
    a.y.p[row * a.y.stride + c] = sum;
}

static __global__ void tail_kernel(conv_args a)
{
    int64_t s = blockIdx.x, c = (int64_t)blockIdx.y * blockDim.x + threadIdx.x;
    if (s >= a.step.counts[GPU_SEQS] || c >= a.channels)
        return;
    const gpu_seq &seq = a.step.seqs[s];
    float *tail = (float *)(a.base + seq.slot * a.item_bytes) + c;
    for (int j = 0; j < a.taps - 1; j++) {
        int64_t from = seq.n_rows - (a.taps - 1) + j;
        tail[j * a.channels] = from < 0 ? tail[(j + seq.n_rows) * a.channels]
                                        : a.x.p[(seq.row0 + from) * a.x.stride + c];
    }
}

static void run(const fl_call *call, const fl_step *step, int phase, const fl_worker *worker)
{
    (void)phase;
    enum { THREADS = 256 };
    gpu_queue *q = (gpu_queue *)worker->queue;
    const fl_state_pool *pool = &step->states[call->in[2].type.state];
    conv_args a = {};
    a.step = q->step;
    a.x = gpu_rows_of(&call->in[0]);
    a.y = gpu_rows_of(&call->out[0]);
    a.w = (const float *)call->in[1].data;
    a.base = pool->base;
    a.item_bytes = pool->item_bytes;
    a.channels = fl_type_width(&call->in[0].type);
    a.taps = (int)call->in[1].type.dim[call->in[1].type.ndim - 1];
    unsigned blocks = gpu_blocks(a.channels, THREADS);
    conv_kernel<<<dim3((unsigned)step->n_rows, blocks), THREADS, 0, q->stream>>>(a);
    tail_kernel<<<dim3((unsigned)step->n_seqs, blocks), THREADS, 0, q->stream>>>(a);
    gpu_launched(q);
}

static const fl_kernel kernels[] = {
    {.op = "conv1d", .name = "gpu", .preference = 1, .n_phases = 1, .run = run}};
extern const fl_kernel_list gpu_kernels_conv = FL_KERNEL_LIST(kernels);
