/* delta_rule, the recurrence: columns of a head's state never look at each other, so a warp keeps
 * four of them in registers and walks through the tokens of its sequence.  Eight lanes share a
 * column, each with every eighth group of four rows; a sum over rows goes through a lane's own in
 * ascending order and then over the lanes, so it does not depend on what else is computed.
 *
 * Queries, keys and decays of TOKENS tokens at a time pass through shared memory. */
#include "ops/gpu/gpu.h"

enum {
    WARPS = 4,
    COLUMNS = 4,
    PARTS = GPU_LANES / COLUMNS,
    TOKENS = 8,
    THREADS = WARPS * GPU_LANES
};

typedef struct delta_args {
    gpu_step step;
    gpu_rows q, k, v, g, beta, o;
    unsigned char *base;
    int64_t item_bytes;
    int heads, dk, dv;
} delta_args;

static __device__ inline float parts_sum(float x)
{
    for (int i = COLUMNS; i < GPU_LANES; i *= 2)
        x += __shfl_xor_sync(0xffffffffu, x, i, GPU_LANES);
    return x;
}

/* Row m of a lane's part: groups of four rows, dealt out in turn. */
static __device__ inline int row_of(int part, int m)
{
    return (m / 4 * PARTS + part) * 4 + m % 4;
}

template <int ROWS> static __global__ void delta_kernel(delta_args a)
{
    enum { DK = ROWS * PARTS };
    __shared__ __align__(16) float qs[TOKENS][DK], ks[TOKENS][DK], gs[TOKENS][DK];
    int lane = threadIdx.x % GPU_LANES, column = lane % COLUMNS, part = lane / COLUMNS;
    int head = blockIdx.y;
    int j = (blockIdx.x * WARPS + threadIdx.x / GPU_LANES) * COLUMNS + column;
    if ((int)blockIdx.z >= a.step.counts[GPU_SEQS])
        return;
    const gpu_seq seq = a.step.seqs[blockIdx.z];
    float *state = (float *)(a.base + seq.slot * a.item_bytes) + (int64_t)head * a.dk * a.dv;
    float s[ROWS];
#pragma unroll
    for (int m = 0; m < ROWS; m++) {
        int i = row_of(part, m);
        s[m] = i < a.dk && j < a.dv ? state[(int64_t)i * a.dv + j] : 0;
    }
    for (int t0 = 0; t0 < seq.n_rows; t0 += TOKENS) {
        int n = seq.n_rows - t0 < TOKENS ? seq.n_rows - t0 : TOKENS;
        __syncthreads();
        for (int i = threadIdx.x; i < n * DK; i += THREADS) {
            int t = i / DK, d = i % DK;
            int64_t row = seq.row0 + t0 + t, at = (int64_t)head * a.dk + d;
            bool there = d < a.dk;
            qs[t][d] = there ? a.q.p[row * a.q.stride + at] : 0;
            ks[t][d] = there ? a.k.p[row * a.k.stride + at] : 0;
            gs[t][d] = there ? expf(a.g.p[row * a.g.stride + at]) : 0;
        }
        __syncthreads();
        for (int t = 0; t < n; t++) {
            int64_t row = seq.row0 + t0 + t;
            float v = j < a.dv ? a.v.p[row * a.v.stride + (int64_t)head * a.dv + j] : 0;
            float beta = a.beta.p[row * a.beta.stride + head];
            float seen = 0, read = 0;
#pragma unroll
            for (int m = 0; m < ROWS; m += 4) {
                int i = row_of(part, m);
                float4 k = *(const float4 *)&ks[t][i], g = *(const float4 *)&gs[t][i];
                s[m] *= g.x;
                s[m + 1] *= g.y;
                s[m + 2] *= g.z;
                s[m + 3] *= g.w;
                seen = fmaf(k.x, s[m], seen);
                seen = fmaf(k.y, s[m + 1], seen);
                seen = fmaf(k.z, s[m + 2], seen);
                seen = fmaf(k.w, s[m + 3], seen);
            }
            float add = beta * (v - parts_sum(seen));
#pragma unroll
            for (int m = 0; m < ROWS; m += 4) {
                int i = row_of(part, m);
                float4 k = *(const float4 *)&ks[t][i], q = *(const float4 *)&qs[t][i];
                s[m] = fmaf(k.x, add, s[m]);
                s[m + 1] = fmaf(k.y, add, s[m + 1]);
                s[m + 2] = fmaf(k.z, add, s[m + 2]);
                s[m + 3] = fmaf(k.w, add, s[m + 3]);
                read = fmaf(q.x, s[m], read);
                read = fmaf(q.y, s[m + 1], read);
                read = fmaf(q.z, s[m + 2], read);
                read = fmaf(q.w, s[m + 3], read);
            }
            read = parts_sum(read);
            if (part == 0 && j < a.dv)
                a.o.p[row * a.o.stride + (int64_t)head * a.dv + j] = read;
        }
    }
#pragma unroll
    for (int m = 0; m < ROWS; m++) {
        int i = row_of(part, m);
        if (i < a.dk && j < a.dv)
            state[(int64_t)i * a.dv + j] = s[m];
    }
}

template <int ROWS> static void launch(const delta_args &a, int n_seqs, gpu_queue *q)
{
    dim3 grid(gpu_blocks(a.dv, WARPS * COLUMNS), (unsigned)a.heads, (unsigned)n_seqs);
    delta_kernel<ROWS><<<grid, THREADS, 0, q->stream>>>(a);
    gpu_launched(q);
}

static void run(const fl_call *call, const fl_step *step, int phase, const fl_worker *worker)
{
    (void)phase;
    gpu_queue *q = (gpu_queue *)worker->queue;
    const fl_arg *in = call->in;
    const fl_state_pool *pool = &step->states[in[FL_DELTA_STATE].type.state];
    delta_args a = {};
    a.step = q->step;
    a.q = gpu_rows_of(&in[FL_DELTA_Q]);
    a.k = gpu_rows_of(&in[FL_DELTA_K]);
    a.v = gpu_rows_of(&in[FL_DELTA_V]);
    a.g = gpu_rows_of(&in[FL_DELTA_G]);
    a.beta = gpu_rows_of(&in[FL_DELTA_BETA]);
    a.o = gpu_rows_of(&call->out[0]);
    a.base = pool->base;
    a.item_bytes = pool->item_bytes;
    a.heads = (int)in[FL_DELTA_Q].type.dim[0];
    a.dk = (int)in[FL_DELTA_Q].type.dim[1];
    a.dv = (int)in[FL_DELTA_V].type.dim[1];
    if (a.dk <= 32)
        launch<4>(a, step->n_seqs, q);
    else if (a.dk <= 64)
        launch<8>(a, step->n_seqs, q);
    else if (a.dk <= 128)
        launch<16>(a, step->n_seqs, q);
    else
        launch<32>(a, step->n_seqs, q);
}

static bool fits(const fl_node_view *n)
{
    return n->in[FL_DELTA_Q]->dim[1] <= 256;
}

static const fl_kernel kernels[] = {{.op = "delta_rule",
                                     .name = "recurrent-gpu",
                                     .preference = 1,
                                     .n_phases = 1,
                                     .run = run,
                                     .fits = fits}};
extern const fl_kernel_list gpu_kernels_delta_rule = FL_KERNEL_LIST(kernels);
