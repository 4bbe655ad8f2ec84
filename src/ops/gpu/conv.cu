/* conv1d: every output looks back over the rows of its sequence and, before the first of them, into
 * the tail.  Where every sequence has one row, the thread of a channel then moves its tail on;
 * otherwise a second kernel does, since others still look into it. */
#include "ops/gpu/gpu.h"

enum { THREADS = 256 };

typedef struct conv_args {
    gpu_step step;
    gpu_rows x, y;
    const float *w; /* [channels][taps] */
    gpu_slots tails;
    int64_t channels;
    int taps;
    bool move;
} conv_args;

static __global__ void conv_kernel(conv_args a)
{
    int64_t row = blockIdx.x, c = (int64_t)blockIdx.y * blockDim.x + threadIdx.x;
    if (row >= a.step.counts[GPU_ROWS] || c >= a.channels)
        return;
    a.y.p[row * a.y.stride + c] = conv_at(a.step, a.x, a.w, a.tails, a.channels, a.taps, row, c);
    if (a.move)
        conv_move(a.step.seqs[a.step.row_seq[row]], a.x, a.tails, a.channels, a.taps, c);
}

static __global__ void tail_kernel(conv_args a)
{
    int64_t s = blockIdx.x, c = (int64_t)blockIdx.y * blockDim.x + threadIdx.x;
    if (s < a.step.counts[GPU_SEQS] && c < a.channels)
        conv_move(a.step.seqs[s], a.x, a.tails, a.channels, a.taps, c);
}

static conv_args args_of(const gpu_queue *q, const fl_call *call, const fl_step *step)
{
    const fl_state_pool *pool = &step->states[call->in[2].type.state];
    conv_args a = {};
    a.step = q->step;
    a.x = gpu_rows_of(&call->in[0]);
    a.y = gpu_rows_of(&call->out[0]);
    a.w = (const float *)call->in[1].data;
    a.tails.base = pool->base;
    a.tails.item_bytes = pool->item_bytes;
    a.channels = fl_type_width(&call->in[0].type);
    a.taps = (int)call->in[1].type.dim[call->in[1].type.ndim - 1];
    a.move = step->n_rows == step->n_seqs;
    return a;
}

void gpu_conv_tail(gpu_queue *q, const fl_call *call, const fl_step *step)
{
    conv_args a = args_of(q, call, step);
    dim3 grid((unsigned)step->n_seqs, gpu_blocks(a.channels, THREADS));
    tail_kernel<<<grid, THREADS, 0, q->stream>>>(a);
    gpu_launched(q);
}

static void run(const fl_call *call, const fl_step *step, int phase, const fl_worker *worker)
{
    (void)phase;
    gpu_queue *q = (gpu_queue *)worker->queue;
    conv_args a = args_of(q, call, step);
    dim3 grid((unsigned)step->n_rows, gpu_blocks(a.channels, THREADS));
    conv_kernel<<<grid, THREADS, 0, q->stream>>>(a);
    gpu_launched(q);
    if (!a.move)
        gpu_conv_tail(q, call, step);
}

static const fl_kernel kernels[] = {
    {.op = "conv1d", .name = "gpu", .preference = 1, .n_phases = 1, .run = run}};
extern const fl_kernel_list gpu_kernels_conv = FL_KERNEL_LIST(kernels);
