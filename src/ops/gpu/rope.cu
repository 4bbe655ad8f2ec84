/* rope: a thread per pair of a row turns that pair in every vector; the others are copied.  Angles
 * are doubles: a position of a million times a frequency must keep its fraction. */
#include "ops/gpu/gpu.h"

typedef struct rope_args {
    gpu_rows x, y;
    gpu_step step;
    int width, d, first, every, gap, pairs;
} rope_args;

static __global__ void copy_kernel(rope_args a)
{
    int64_t row = blockIdx.x;
    if (row >= a.step.counts[GPU_ROWS])
        return;
    for (int i = threadIdx.x; i < a.width; i += blockDim.x)
        a.y.p[row * a.y.stride + i] = a.x.p[row * a.x.stride + i];
}

/* Frequencies of up to MAX_PAIRS pairs travel as an argument: no memory of the device is needed. */
enum { MAX_PAIRS = 256 };
typedef struct rope_freqs {
    double f[MAX_PAIRS];
} rope_freqs;

static __global__ void rope_kernel(rope_args a, rope_freqs freqs)
{
    int64_t row = blockIdx.x;
    if (row >= a.step.counts[GPU_ROWS])
        return;
    const float *x = a.x.p + row * a.x.stride;
    float *y = a.y.p + row * a.y.stride;
    double pos = a.step.pos[row];
    for (int j = threadIdx.x; j < a.pairs; j += blockDim.x) {
        double s, c;
        sincos(pos * freqs.f[j], &s, &c);
        for (int i = a.first + j * a.every; i < a.width; i += a.d) {
            double u = x[i], v = x[i + a.gap];
            y[i] = (float)(u * c - v * s);
            y[i + a.gap] = (float)(v * c + u * s);
        }
    }
}

static void run(const fl_call *call, const fl_step *step, int phase, const fl_worker *worker)
{
    (void)phase;
    gpu_queue *q = (gpu_queue *)worker->queue;
    const fl_rope *rope = (const fl_rope *)call->prep;
    const fl_type *t = &call->in[0].type;
    rope_args a = {};
    rope_freqs freqs;
    a.x = gpu_rows_of(&call->in[0]);
    a.y = gpu_rows_of(&call->out[0]);
    a.step = q->step;
    a.width = (int)fl_type_width(t);
    a.d = (int)t->dim[t->ndim - 1];
    a.every = (int)rope->step;
    a.gap = (int)rope->gap;
    copy_kernel<<<(unsigned)step->n_rows, 128, 0, q->stream>>>(a);
    for (int64_t done = 0; done < rope->pairs; done += MAX_PAIRS) {
        a.pairs = (int)gpu_min(rope->pairs - done, MAX_PAIRS);
        a.first = (int)(rope->first + done * rope->step);
        for (int j = 0; j < a.pairs; j++)
            freqs.f[j] = rope->freq[done + j];
        rope_kernel<<<(unsigned)step->n_rows, 64, 0, q->stream>>>(a, freqs);
    }
    gpu_launched(q);
}

static const fl_kernel kernels[] = {
    {.op = "rope", .name = "gpu", .preference = 1, .n_phases = 1, .run = run}};
extern const fl_kernel_list gpu_kernels_rope = FL_KERNEL_LIST(kernels);
