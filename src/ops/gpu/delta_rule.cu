/* delta_rule: steps in which every sequence has one row have a kernel of their own, which reads the
 * state in whole rows; all others walk through their tokens (delta.h).  Both sum in the same order.
 */
#include "ops/gpu/delta.h"

enum { STEP_COLUMNS = 4 * GPU_LANES, STEP_THREADS = DELTA_PARTS * GPU_LANES };

/* The sum of the parts' sums, as parts_sum takes it. */
static __device__ inline float4 tree(const float4 x[DELTA_PARTS][GPU_LANES], int lane)
{
    float4 y[DELTA_PARTS];
#pragma unroll
    for (int p = 0; p < DELTA_PARTS; p++)
        y[p] = x[p][lane];
#pragma unroll
    for (int i = 1; i < DELTA_PARTS; i *= 2) {
#pragma unroll
        for (int p = 0; p < DELTA_PARTS; p += 2 * i)
            y[p] = make_float4(y[p].x + y[p + i].x, y[p].y + y[p + i].y, y[p].z + y[p + i].z,
                               y[p].w + y[p + i].w);
    }
    return y[0];
}

static __device__ inline float4 fma4(float a, float4 b, float4 c)
{
    return make_float4(fmaf(a, b.x, c.x), fmaf(a, b.y, c.y), fmaf(a, b.z, c.z), fmaf(a, b.w, c.w));
}

/* The four chains of a part. */
static __device__ inline float4 chains(const float4 x[4])
{
    return make_float4((x[0].x + x[1].x) + (x[2].x + x[3].x), (x[0].y + x[1].y) + (x[2].y + x[3].y),
                       (x[0].z + x[1].z) + (x[2].z + x[3].z),
                       (x[0].w + x[1].w) + (x[2].w + x[3].w));
}

/* One token per sequence.  A warp has a part of the rows, a lane four columns side by side. */
template <int ROWS> static __global__ void __launch_bounds__(STEP_THREADS) step_kernel(delta_args a)
{
    enum { DK = ROWS * DELTA_PARTS };
    __shared__ float q[DK], k[DK], g[DK];
    __shared__ float4 sums[2][DELTA_PARTS][GPU_LANES];
    int lane = threadIdx.x % GPU_LANES, part = threadIdx.x / GPU_LANES, head = blockIdx.y;
    int j = blockIdx.x * STEP_COLUMNS + 4 * lane;
    if ((int)blockIdx.z >= a.step.counts[GPU_SEQS])
        return;
    const gpu_seq seq = a.step.seqs[blockIdx.z];
    int64_t row = seq.row0;
    float *state = (float *)(a.base + seq.slot * a.item_bytes) + (int64_t)head * a.dk * a.dv + j;
    float4 s[ROWS], zero = {0, 0, 0, 0};
#pragma unroll
    for (int m = 0; m < ROWS; m++) {
        int i = delta_row(part, m);
        s[m] = i < a.dk && j < a.dv ? *(const float4 *)(state + (int64_t)i * a.dv) : zero;
    }
    for (int d = threadIdx.x; d < DK; d += STEP_THREADS) {
        int64_t at = (int64_t)head * a.dk + d;
        q[d] = d < a.dk ? a.q.p[row * a.q.stride + at] : 0;
        k[d] = d < a.dk ? a.k.p[row * a.k.stride + at] : 0;
        g[d] = d < a.dk ? expf(a.g.p[row * a.g.stride + at]) : 1;
    }
    const float *vs = a.v.p + row * a.v.stride + (int64_t)head * a.dv + j;
    float4 v = j < a.dv ? make_float4(vs[0], vs[1], vs[2], vs[3]) : zero;
    float beta = a.beta.p[row * a.beta.stride + head];
    __syncthreads();
    float4 seen[4] = {zero, zero, zero, zero}, read[4] = {zero, zero, zero, zero};
#pragma unroll
    for (int m = 0; m < ROWS; m++) {
        int i = delta_row(part, m);
        s[m] = make_float4(s[m].x * g[i], s[m].y * g[i], s[m].z * g[i], s[m].w * g[i]);
        seen[m % 4] = fma4(k[i], s[m], seen[m % 4]);
    }
    sums[0][part][lane] = chains(seen);
    __syncthreads();
    float4 all = tree(sums[0], lane);
    float4 add = make_float4(beta * (v.x - all.x), beta * (v.y - all.y), beta * (v.z - all.z),
                             beta * (v.w - all.w));
#pragma unroll
    for (int m = 0; m < ROWS; m++) {
        int i = delta_row(part, m);
        s[m] = fma4(k[i], add, s[m]);
        read[m % 4] = fma4(q[i], s[m], read[m % 4]);
        if (i < a.dk && j < a.dv)
            *(float4 *)(state + (int64_t)i * a.dv) = s[m];
    }
    sums[1][part][lane] = chains(read);
    __syncthreads();
    if (part == 0 && j < a.dv) {
        float *o = a.o.p + row * a.o.stride + (int64_t)head * a.dv + j;
        all = tree(sums[1], lane);
        o[0] = all.x;
        o[1] = all.y;
        o[2] = all.z;
        o[3] = all.w;
    }
}

template <int ROWS> static void step_launch(const delta_args &a, int n_seqs, gpu_queue *q)
{
    dim3 grid(gpu_blocks(a.dv, STEP_COLUMNS), (unsigned)a.heads, (unsigned)n_seqs);
    step_kernel<ROWS><<<grid, STEP_THREADS, 0, q->stream>>>(a);
    gpu_launched(q);
}

/* The state in whole 16 bytes, and no more rows than registers hold. */
static bool steps(const delta_args &a)
{
    return a.dk <= 128 && a.dv % 4 == 0 && ((uintptr_t)a.base | (uintptr_t)a.item_bytes) % 16 == 0;
}

static void run(const fl_call *call, const fl_step *step, int phase, const fl_worker *worker)
{
    (void)phase;
    gpu_queue *q = (gpu_queue *)worker->queue;
    delta_args a = delta_args_of(call, step, q);
    if (step->n_rows != step->n_seqs || !steps(a))
        delta_recurrence(a, step->n_seqs, q);
    else if (a.dk <= 64)
        step_launch<8>(a, step->n_seqs, q);
    else
        step_launch<16>(a, step->n_seqs, q);
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
