/* Kernels that move rows: embed, gather_logits, cache_write, cast. */
#include "ops/gpu/cache.h"

/* ---- embed ---- */

template <int T> static __global__ void embed_kernel(gpu_weight table, gpu_step s, gpu_rows y)
{
    int64_t row = blockIdx.x;
    if (row >= s.counts[GPU_ROWS])
        return;
    int32_t id = s.ids[row];
    bool known = id >= 0 && id < table.n;
    for (int64_t i = threadIdx.x; i < table.k; i += blockDim.x)
        y.p[row * y.stride + i] = known ? weight_at<T>(table, 0, id, i) : 0;
}

static void run_embed(const fl_call *call, const fl_step *step, int phase, const fl_worker *worker)
{
    (void)phase;
    gpu_queue *q = (gpu_queue *)worker->queue;
    gpu_weight w = gpu_weight_of(&call->in[0]);
    gpu_rows y = gpu_rows_of(&call->out[0]);
    GPU_FOR_DTYPE(call->in[0].type.dtype,
                  (embed_kernel<T><<<(unsigned)step->n_rows, 256, 0, q->stream>>>(w, q->step, y)));
    gpu_launched(q);
}

/* ---- gather_logits ---- */

static __global__ void gather_kernel(gpu_step s, gpu_rows x, gpu_rows y, int64_t width)
{
    int64_t i = blockIdx.x;
    if (i >= s.counts[GPU_LOGITS])
        return;
    const float *from = x.p + s.logit_rows[i] * x.stride;
    for (int64_t d = threadIdx.x; d < width; d += blockDim.x)
        y.p[i * y.stride + d] = from[d];
}

static void run_gather(const fl_call *call, const fl_step *step, int phase, const fl_worker *worker)
{
    (void)phase;
    gpu_queue *q = (gpu_queue *)worker->queue;
    if (step->n_logits)
        gather_kernel<<<(unsigned)step->n_logits, 256, 0, q->stream>>>(
            q->step, gpu_rows_of(&call->in[0]), gpu_rows_of(&call->out[0]),
            fl_type_width(&call->in[0].type));
    gpu_launched(q);
}

/* ---- cache_write ---- */

enum { MAX_PARTS = FL_MAX_OUT, WRITE_THREADS = 128 };
typedef struct write_args {
    gpu_step step;
    unsigned char *base;
    int64_t item_bytes, row_bytes, scales_at; /* of a cached row; before its factors */
    gpu_rows part[MAX_PARTS];
    int64_t width[MAX_PARTS];
    int n;
    int64_t elements; /* of all parts */
} write_args;

/* Element i of what is to be written of a row. */
static __device__ inline float element(const write_args &a, int64_t row, int64_t i)
{
    int p = 0;
    while (i >= a.width[p])
        i -= a.width[p++];
    return a.part[p].p[row * a.part[p].stride + i];
}

/* Codes and their factor for a group of elements from i0 on, by a warp. */
template <int F>
static __device__ inline void write_group(const write_args &a, int64_t row, int64_t i0,
                                          unsigned char *item)
{
    enum { EACH = FL_CACHE_GROUP / GPU_LANES };
    int lane = threadIdx.x % GPU_LANES;
    float x[EACH];
    uint32_t top = 0;
#pragma unroll
    for (int k = 0; k < EACH; k++) {
        int64_t i = i0 + lane + k * GPU_LANES;
        x[k] = i < a.elements ? element(a, row, i) : 0;
        top = max(top, magnitude_bits(x[k]));
    }
    cache_group g = cache_group_of<F>(lanes_top(top));
#pragma unroll
    for (int k = 0; k < EACH; k++) {
        int64_t i = i0 + lane + k * GPU_LANES;
        if (i < a.elements)
            item[i] = cache_encode<F>(g, x[k]);
    }
    if (lane == 0)
        ((float *)(item + a.scales_at))[i0 / FL_CACHE_GROUP] = g.scale;
}

template <int F> static __global__ void __launch_bounds__(WRITE_THREADS) write_kernel(write_args a)
{
    int64_t row = blockIdx.x;
    if (row >= a.step.counts[GPU_ROWS])
        return;
    const gpu_seq &seq = a.step.seqs[a.step.row_seq[row]];
    unsigned char *item = a.base + step_item(a.step, seq, a.step.pos[row]) * a.item_bytes;
    if constexpr (F == FL_F32 || F == FL_BF16) {
        for (int64_t i = threadIdx.x; i < a.row_bytes / (F == FL_F32 ? 4 : 2); i += WRITE_THREADS) {
            float x = i < a.elements ? element(a, row, i) : 0;
            if (F == FL_F32)
                ((float *)item)[i] = x;
            else
                ((uint16_t *)item)[i] = bf16_bits(x);
        }
    } else {
        for (int64_t i = a.elements + threadIdx.x; i < a.row_bytes; i += WRITE_THREADS) {
            int64_t factor = (i - a.scales_at) / 4 * FL_CACHE_GROUP; /* zero, but for factors */
            if (i < a.scales_at || factor >= a.elements)
                item[i] = 0;
        }
        for (int64_t i0 = threadIdx.x / GPU_LANES * FL_CACHE_GROUP; i0 < a.elements;
             i0 += WRITE_THREADS / GPU_LANES * FL_CACHE_GROUP)
            write_group<F>(a, row, i0, item);
    }
}

static void run_cache_write(const fl_call *call, const fl_step *step, int phase,
                            const fl_worker *worker)
{
    (void)phase;
    gpu_queue *q = (gpu_queue *)worker->queue;
    const fl_state_pool *pool = &step->states[call->in[0].type.state];
    write_args a = {};
    a.step = q->step;
    a.base = pool->base;
    a.item_bytes = pool->item_bytes;
    a.n = call->n_in - 1;
    for (int i = 0; i < a.n; i++) {
        a.part[i] = gpu_rows_of(&call->in[i + 1]);
        a.width[i] = fl_type_width(&call->in[i + 1].type);
        a.elements += a.width[i];
    }
    a.row_bytes = fl_cache_row_bytes(call->in[0].type.dtype, a.elements);
    a.scales_at = fl_cache_scales_at(a.elements);
    GPU_FOR_CACHE(call->in[0].type.dtype,
                  (write_kernel<F><<<(unsigned)step->n_rows, WRITE_THREADS, 0, q->stream>>>(a)));
    gpu_launched(q);
}

/* ---- cast ---- */

template <int T> static __global__ void cast_kernel(gpu_weight w, float *y)
{
    int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x;
    if (i < w.n * w.k)
        y[i] = weight_at<T>(w, 0, i / w.k, i % w.k);
}

static void run_cast(const fl_call *call, const fl_step *step, int phase, const fl_worker *worker)
{
    (void)step;
    (void)phase;
    gpu_queue *q = (gpu_queue *)worker->queue;
    gpu_weight w = gpu_weight_of(&call->in[0]);
    float *y = (float *)call->out[0].data;
    GPU_FOR_DTYPE(call->in[0].type.dtype,
                  (cast_kernel<T><<<gpu_blocks(w.n * w.k, 256), 256, 0, q->stream>>>(w, y)));
    gpu_launched(q);
}

static const fl_kernel kernels[] = {
    {.op = "embed", .name = "gpu", .preference = 1, .n_phases = 1, .run = run_embed},
    {.op = "gather_logits", .name = "gpu", .preference = 1, .n_phases = 1, .run = run_gather},
    {.op = "cache_write", .name = "gpu", .preference = 1, .n_phases = 1, .run = run_cache_write},
    {.op = "cast", .name = "gpu", .preference = 1, .n_phases = 1, .run = run_cast},
};
extern const fl_kernel_list gpu_kernels_rows = FL_KERNEL_LIST(kernels);
