/* delta_rule: the arguments of its kernels and the recurrence.
 *
 * Columns of a head's state never look at each other, so a warp keeps four of them in registers and
 * walks through the tokens of its sequence.  Eight lanes share a column, each with every eighth
 * group of four rows.  A sum over rows goes, in each lane, by four chains (rows that are equal
 * modulo four), ascending, then over the chains, then over the lanes as a tree: every kernel that
 * takes a token by itself sums in this order, so its bits do not depend on what else is computed.
 */
#ifndef FL_OPS_GPU_DELTA_H
#define FL_OPS_GPU_DELTA_H

#include "ops/gpu/gpu.h"

enum { DELTA_WARPS = 4, DELTA_COLUMNS = 4, DELTA_PARTS = GPU_LANES / DELTA_COLUMNS };
enum { DELTA_TOKENS = 8, DELTA_THREADS = DELTA_WARPS * GPU_LANES };

/* Rows of a sequence that a launch takes: all, or those before and after the whole blocks of the
 * chunk grid. */
typedef enum delta_range { DELTA_ALL, DELTA_BEFORE, DELTA_AFTER } delta_range;

typedef struct delta_args {
    gpu_step step;
    gpu_rows q, k, v, g, beta, o;
    unsigned char *base;
    int64_t item_bytes;
    int heads, dk, dv;
    delta_range range;
} delta_args;

static inline delta_args delta_args_of(const fl_call *call, const fl_step *step, const gpu_queue *q)
{
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
    return a;
}

#ifdef __CUDACC__

/* Row m of a part: groups of four rows, dealt out in turn. */
static __device__ inline int delta_row(int part, int m)
{
    return (m / 4 * DELTA_PARTS + part) * 4 + m % 4;
}

static __device__ inline float parts_sum(float x)
{
    for (int i = DELTA_COLUMNS; i < GPU_LANES; i *= 2)
        x += __shfl_xor_sync(0xffffffffu, x, i, GPU_LANES);
    return x;
}

/* What a thread brings for DELTA_TOKENS tokens: its share of queries, keys and decays, one value
 * and one beta. */
template <int DK> struct batch {
    enum { EACH = DELTA_TOKENS * DK / DELTA_THREADS };
    float q[EACH], k[EACH], g[EACH], v, beta;
};

template <int DK>
static __device__ inline void load_batch(const delta_args &a, const gpu_seq &seq, int head, int t0,
                                         int end, batch<DK> &b)
{
#pragma unroll
    for (int e = 0; e < batch<DK>::EACH; e++) {
        int i = threadIdx.x + e * DELTA_THREADS, t = t0 + i / DK, d = i % DK;
        int64_t row = seq.row0 + t, at = (int64_t)head * a.dk + d;
        bool there = d < a.dk && t < end;
        b.q[e] = there ? a.q.p[row * a.q.stride + at] : 0;
        b.k[e] = there ? a.k.p[row * a.k.stride + at] : 0;
        b.g[e] = there ? a.g.p[row * a.g.stride + at] : 0;
    }
    int t = t0 + threadIdx.x / (DELTA_WARPS * DELTA_COLUMNS),
        j = threadIdx.x % (DELTA_WARPS * DELTA_COLUMNS);
    int column = blockIdx.x * DELTA_WARPS * DELTA_COLUMNS + j;
    int64_t row = seq.row0 + t;
    b.v = t < end && column < a.dv ? a.v.p[row * a.v.stride + (int64_t)head * a.dv + column] : 0;
    t = t0 + threadIdx.x;
    row = seq.row0 + t;
    b.beta = threadIdx.x < DELTA_TOKENS && t < end ? a.beta.p[row * a.beta.stride + head] : 0;
}

template <int ROWS> static __global__ void delta_kernel(delta_args a)
{
    enum { DK = ROWS * DELTA_PARTS };
    __shared__ __align__(16) float qs[DELTA_TOKENS][DK], ks[DELTA_TOKENS][DK], gs[DELTA_TOKENS][DK];
    __shared__ float vs[DELTA_TOKENS][DELTA_WARPS * DELTA_COLUMNS], betas[DELTA_TOKENS];
    int lane = threadIdx.x % GPU_LANES, column = lane % DELTA_COLUMNS, part = lane / DELTA_COLUMNS;
    int head = blockIdx.y, own = threadIdx.x / GPU_LANES * DELTA_COLUMNS + column;
    int j = blockIdx.x * DELTA_WARPS * DELTA_COLUMNS + own, begin, end;
    if ((int)blockIdx.z >= a.step.counts[GPU_SEQS])
        return;
    const gpu_seq seq = a.step.seqs[blockIdx.z];
    begin = 0;
    end = seq.n_rows;
    int whole_begin, whole_end;
    gpu_whole_blocks(seq.pos0, seq.n_rows, &whole_begin, &whole_end);
    if (a.range == DELTA_BEFORE)
        end = whole_begin;
    else if (a.range == DELTA_AFTER)
        begin = whole_end;
    if (begin == end)
        return;
    float *state = (float *)(a.base + seq.slot * a.item_bytes) + (int64_t)head * a.dk * a.dv;
    float s[ROWS];
    batch<DK> b;
    load_batch<DK>(a, seq, head, begin, end, b);
#pragma unroll
    for (int m = 0; m < ROWS; m++) {
        int i = delta_row(part, m);
        s[m] = i < a.dk && j < a.dv ? state[(int64_t)i * a.dv + j] : 0;
    }
    for (int t0 = begin; t0 < end; t0 += DELTA_TOKENS) {
        int n = end - t0 < DELTA_TOKENS ? end - t0 : DELTA_TOKENS;
        __syncthreads();
#pragma unroll
        for (int e = 0; e < batch<DK>::EACH; e++) {
            int i = threadIdx.x + e * DELTA_THREADS;
            qs[i / DK][i % DK] = b.q[e];
            ks[i / DK][i % DK] = b.k[e];
            gs[i / DK][i % DK] = expf(b.g[e]);
        }
        vs[threadIdx.x / (DELTA_WARPS * DELTA_COLUMNS)]
          [threadIdx.x % (DELTA_WARPS * DELTA_COLUMNS)] = b.v;
        if (threadIdx.x < DELTA_TOKENS)
            betas[threadIdx.x] = b.beta;
        __syncthreads();
        if (t0 + DELTA_TOKENS < end)
            load_batch<DK>(a, seq, head, t0 + DELTA_TOKENS, end, b);
        for (int t = 0; t < n; t++) {
            float4 k[ROWS / 4], seen = {0, 0, 0, 0}, read = {0, 0, 0, 0};
#pragma unroll
            for (int m = 0; m < ROWS; m += 4) {
                int i = delta_row(part, m);
                float4 g = *(const float4 *)&gs[t][i];
                k[m / 4] = *(const float4 *)&ks[t][i];
                s[m] *= g.x;
                s[m + 1] *= g.y;
                s[m + 2] *= g.z;
                s[m + 3] *= g.w;
                seen.x = fmaf(k[m / 4].x, s[m], seen.x);
                seen.y = fmaf(k[m / 4].y, s[m + 1], seen.y);
                seen.z = fmaf(k[m / 4].z, s[m + 2], seen.z);
                seen.w = fmaf(k[m / 4].w, s[m + 3], seen.w);
            }
            float all = parts_sum((seen.x + seen.y) + (seen.z + seen.w));
            float add = betas[t] * (vs[t][own] - all);
#pragma unroll
            for (int m = 0; m < ROWS; m += 4) {
                float4 q = *(const float4 *)&qs[t][delta_row(part, m)];
                s[m] = fmaf(k[m / 4].x, add, s[m]);
                s[m + 1] = fmaf(k[m / 4].y, add, s[m + 1]);
                s[m + 2] = fmaf(k[m / 4].z, add, s[m + 2]);
                s[m + 3] = fmaf(k[m / 4].w, add, s[m + 3]);
                read.x = fmaf(q.x, s[m], read.x);
                read.y = fmaf(q.y, s[m + 1], read.y);
                read.z = fmaf(q.z, s[m + 2], read.z);
                read.w = fmaf(q.w, s[m + 3], read.w);
            }
            all = parts_sum((read.x + read.y) + (read.z + read.w));
            if (part == 0 && j < a.dv)
                a.o.p[(seq.row0 + t0 + t) * a.o.stride + (int64_t)head * a.dv + j] = all;
        }
    }
#pragma unroll
    for (int m = 0; m < ROWS; m++) {
        int i = delta_row(part, m);
        if (i < a.dk && j < a.dv)
            state[(int64_t)i * a.dv + j] = s[m];
    }
}

/* ---- launching ---- */

template <int ROWS> static void delta_launch(const delta_args &a, int n_seqs, gpu_queue *q)
{
    dim3 grid(gpu_blocks(a.dv, DELTA_WARPS * DELTA_COLUMNS), (unsigned)a.heads, (unsigned)n_seqs);
    delta_kernel<ROWS><<<grid, DELTA_THREADS, 0, q->stream>>>(a);
    gpu_launched(q);
}

static inline void delta_recurrence(const delta_args &a, int n_seqs, gpu_queue *q)
{
    if (a.dk <= 32)
        delta_launch<4>(a, n_seqs, q);
    else if (a.dk <= 64)
        delta_launch<8>(a, n_seqs, q);
    else if (a.dk <= 128)
        delta_launch<16>(a, n_seqs, q);
    else
        delta_launch<32>(a, n_seqs, q);
}

/* ---- one token per sequence ---- */

/* Lanes of a block that share a row of the state, four columns each: few make many small blocks. */
enum { STEP_LANES = 16, STEP_THREADS = DELTA_PARTS * STEP_LANES };

/* The sum of the parts' sums, as parts_sum takes it. */
static __device__ inline float4 tree(const float4 x[DELTA_PARTS][STEP_LANES], int lane)
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

/* One token per sequence: STEP_LANES threads have a part of the rows. */
template <int ROWS> static __global__ void __launch_bounds__(STEP_THREADS) step_kernel(delta_args a)
{
    enum { DK = ROWS * DELTA_PARTS };
    __shared__ float q[DK], k[DK], g[DK];
    __shared__ float4 sums[2][DELTA_PARTS][STEP_LANES];
    int lane = threadIdx.x % STEP_LANES, part = threadIdx.x / STEP_LANES, head = blockIdx.y;
    int j = (blockIdx.x * STEP_LANES + lane) * 4;
    if ((int)blockIdx.z >= a.step.counts[GPU_SEQS])
        return;
    const gpu_seq seq = a.step.seqs[blockIdx.z];
    int64_t row = seq.row0;
    float *state = (float *)(a.base + seq.slot * a.item_bytes) + (int64_t)head * a.dk * a.dv + j;
    float4 s[ROWS], zero = {0, 0, 0, 0};
#pragma unroll
    for (int m = 0; m < ROWS; m++) {
        int i = delta_row(part, m);
        s[m] = i < a.dk && j < a.dv ? __ldcs((const float4 *)(state + (int64_t)i * a.dv)) : zero;
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
            __stcs((float4 *)(state + (int64_t)i * a.dv), s[m]);
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
    dim3 grid(gpu_blocks(a.dv, 4 * STEP_LANES), (unsigned)a.heads, (unsigned)n_seqs);
    step_kernel<ROWS><<<grid, STEP_THREADS, 0, q->stream>>>(a);
    gpu_launched(q);
}

/* The state in whole 16 bytes, and no more rows than registers hold. */
static inline bool delta_steps(const delta_args &a)
{
    return a.dk <= 128 && a.dv % 4 == 0 && ((uintptr_t)a.base | (uintptr_t)a.item_bytes) % 16 == 0;
}

/* A step without whole blocks: rows of their own, or walks. */
static inline void delta_plain(const delta_args &a, const fl_step *step, gpu_queue *q)
{
    if (step->n_rows != step->n_seqs || !delta_steps(a))
        delta_recurrence(a, step->n_seqs, q);
    else if (a.dk <= 64)
        step_launch<8>(a, step->n_seqs, q);
    else
        step_launch<16>(a, step->n_seqs, q);
}

#endif
#endif
