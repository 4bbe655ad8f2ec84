/* What the kernels of experts share: the lists of pairs (a row and one of its experts) by expert,
 * the sum at the end, and the division of a step into passes. */
#ifndef FL_OPS_GPU_EXPERTS_H
#define FL_OPS_GPU_EXPERTS_H

#include "ops/gpu/weights.h"

enum { Z, IDS, WEIGHTS, W1, W3, W2 };
enum { MAX_EXPERTS = 4096, GROUP_THREADS = 1024 };
static const int64_t EXPERTS_SCRATCH = (int64_t)256 << 20;

/* Experts by how many pairs they have. */
enum { ONE_PAIR, FEW_PAIRS, MANY_PAIRS, PAIR_CLASSES, FEW = 16 };

/* The lists of one pass, in device memory. */
typedef struct groups {
    int32_t *n_active; /* [PAIR_CLASSES] */
    int32_t *active;   /* [PAIR_CLASSES][experts] those that have pairs, ascending */
    int32_t *start;    /* [experts + 1] into pairs */
    int32_t *pairs;    /* row * k + slot */
} groups;

typedef struct experts_args {
    gpu_rows z, ids, weights, y;
    gpu_weight w1, w3, w2;
    const int32_t *count;
    groups g;
    float *hidden, *down; /* per pair of the pass */
    int64_t row0, rows;   /* of the pass */
    int k, n_experts;
    int gate; /* with matrix units: gate_mma.h */
} experts_args;

/* ---- group ---- */

enum { GROUP_EACH = MAX_EXPERTS / GROUP_THREADS };

/* The sum over the threads before this one; *all: over all of them.  room: GPU_LANES entries. */
static __device__ inline int4 block_before(int4 x, int4 *room, int4 *all)
{
    int lane = threadIdx.x % GPU_LANES, warp = threadIdx.x / GPU_LANES;
    int4 sum = x;
    for (int i = 1; i < GPU_LANES; i *= 2) {
        int4 y = {__shfl_up_sync(0xffffffffu, sum.x, i, GPU_LANES),
                  __shfl_up_sync(0xffffffffu, sum.y, i, GPU_LANES),
                  __shfl_up_sync(0xffffffffu, sum.z, i, GPU_LANES),
                  __shfl_up_sync(0xffffffffu, sum.w, i, GPU_LANES)};
        if (lane >= i)
            sum = make_int4(sum.x + y.x, sum.y + y.y, sum.z + y.z, sum.w + y.w);
    }
    if (lane == GPU_LANES - 1)
        room[warp] = sum;
    __syncthreads();
    int4 before = {0, 0, 0, 0};
    *all = before;
    for (int i = 0; i < GROUP_THREADS / GPU_LANES; i++) {
        int4 y = room[i];
        if (i == warp)
            before = *all;
        *all = make_int4(all->x + y.x, all->y + y.y, all->z + y.z, all->w + y.w);
    }
    return make_int4(before.x + sum.x - x.x, before.y + sum.y - x.y, before.z + sum.z - x.z,
                     before.w + sum.w - x.w);
}

/* How many pairs each expert has.  The threads of a block of GROUP_THREADS. */
static __device__ inline void count_pairs(const experts_args &a, int32_t n[MAX_EXPERTS])
{
    int64_t rows = *a.count - a.row0 < a.rows ? *a.count - a.row0 : a.rows;
    int32_t n_pairs = rows > 0 ? (int32_t)rows * a.k : 0;
    for (int e = threadIdx.x; e < MAX_EXPERTS; e += GROUP_THREADS)
        n[e] = 0;
    __syncthreads();
    for (int p = threadIdx.x; p < n_pairs; p += GROUP_THREADS) {
        int32_t e = ((int32_t *)a.ids.p)[(a.row0 + p / a.k) * a.ids.stride + p % a.k];
        if (e >= 0 && e < a.n_experts)
            atomicAdd(&n[e], 1);
    }
    __syncthreads();
}

/* Writes the pairs, those of expert e from next[e] on. */
static __device__ inline void place_pairs(const experts_args &a, int32_t next[MAX_EXPERTS])
{
    int64_t rows = *a.count - a.row0 < a.rows ? *a.count - a.row0 : a.rows;
    int32_t n_pairs = rows > 0 ? (int32_t)rows * a.k : 0;
    __syncthreads();
    for (int p = threadIdx.x; p < n_pairs; p += GROUP_THREADS) {
        int32_t e = ((int32_t *)a.ids.p)[(a.row0 + p / a.k) * a.ids.stride + p % a.k];
        if (e >= 0 && e < a.n_experts) /* the order among an expert's pairs changes no result */
            a.g.pairs[atomicAdd(&next[e], 1)] = p;
    }
}

static __global__ void group_kernel(experts_args a)
{
    __shared__ int32_t n[MAX_EXPERTS], next[MAX_EXPERTS];
    __shared__ int4 room[GPU_LANES];
    count_pairs(a, n);
    int first = threadIdx.x * GROUP_EACH; /* this thread's experts: pairs, and how many per class */
    int4 own = {0, 0, 0, 0}, all;
    for (int e = first; e < first + GROUP_EACH; e++) {
        own.x += n[e];
        own.y += n[e] == 1;
        own.z += n[e] > 1 && n[e] <= FEW;
        own.w += n[e] > FEW;
    }
    int4 at = block_before(own, room, &all);
    for (int e = first; e < first + GROUP_EACH && e < a.n_experts; e++) {
        next[e] = a.g.start[e] = at.x;
        at.x += n[e];
        if (n[e] == 1)
            a.g.active[ONE_PAIR * a.n_experts + at.y++] = e;
        else if (n[e] > FEW)
            a.g.active[MANY_PAIRS * a.n_experts + at.w++] = e;
        else if (n[e])
            a.g.active[FEW_PAIRS * a.n_experts + at.z++] = e;
    }
    if (threadIdx.x == 0) {
        a.g.start[a.n_experts] = all.x;
        a.g.n_active[ONE_PAIR] = all.y;
        a.g.n_active[FEW_PAIRS] = all.z;
        a.g.n_active[MANY_PAIRS] = all.w;
    }
    place_pairs(a, next);
}

/* A block takes every gridDim.y-th of the active experts of a class: its pairs are those from
 * `first` to before `last` of the list. */
#define EACH_EXPERT(a, pair_class, e, first, last)                                                 \
    for (int i_ = blockIdx.y, e, first, last; i_ < (a).g.n_active[pair_class]; i_ += gridDim.y)    \
        if (e = (a).g.active[(pair_class) * (a).n_experts + i_], first = (a).g.start[e],           \
            last = (a).g.start[e + 1], true)

/* The pair that block y computes by itself, and its expert; -1: none.  direct: of all pairs,
 * without lists; else of the experts that have one. */
static __device__ inline int32_t single_pair(const experts_args &a, bool direct, int *e)
{
    int y = (int)blockIdx.y;
    if (!direct) {
        if (y >= a.g.n_active[ONE_PAIR])
            return -1;
        *e = a.g.active[ONE_PAIR * a.n_experts + y];
        return a.g.pairs[a.g.start[*e]];
    }
    int64_t row = a.row0 + y / a.k;
    int32_t count = *a.count; /* asked for together with the id */
    *e = ((const int32_t *)a.ids.p)[row * a.ids.stride + y % a.k];
    return row < count && *e >= 0 && *e < a.n_experts ? y : -1;
}

/* ---- combine ---- */

static __device__ inline void combine_element(const experts_args &a)
{
    int64_t row = blockIdx.x, width = a.w2.n, at = a.row0 + row;
    int64_t d = (int64_t)blockIdx.y * blockDim.x + threadIdx.x;
    if (at >= *a.count || d >= width)
        return;
    const int32_t *ids = (const int32_t *)a.ids.p + at * a.ids.stride;
    const float *weights = a.weights.p + at * a.weights.stride;
    float y = 0;
    for (int j = 0; j < a.k; j++) {
        if (ids[j] >= 0 && ids[j] < a.n_experts)
            y += weights[j] * a.down[(row * a.k + j) * width + d];
    }
    a.y.p[at * a.y.stride + d] = y;
}

static __global__ void combine_kernel(experts_args a)
{
    combine_element(a);
}

/* ---- passes ---- */

/* Rows of a pass. */
static inline int64_t experts_pass_rows(int64_t k, int64_t inner, int64_t width, int64_t max_rows)
{
    int64_t fit = EXPERTS_SCRATCH / (k * (inner + width) * (int64_t)sizeof(float));
    return fit < 1 ? 1 : fit < max_rows ? fit : max_rows;
}

/* The arguments of a call, but for the pass; *most: rows of a pass. */
static inline experts_args experts_of(const fl_call *call, const gpu_queue *q, int64_t rows,
                                      void *shared, int64_t *most)
{
    experts_args a = {};
    a.z = gpu_rows_of(&call->in[Z]);
    a.ids = gpu_rows_of(&call->in[IDS]);
    a.weights = gpu_rows_of(&call->in[WEIGHTS]);
    a.y = gpu_rows_of(&call->out[0]);
    a.w1 = gpu_weight_of(&call->in[W1]);
    a.w3 = gpu_weight_of(&call->in[W3]);
    a.w2 = gpu_weight_of(&call->in[W2]);
    a.count = gpu_count(q, call->in[Z].type.rows);
    a.k = (int)call->in[IDS].type.dim[0];
    a.n_experts = call->in[W1].type.n_tensors;
    *most = experts_pass_rows(a.k, a.w1.n, a.w2.n, rows);
    int32_t *ints = (int32_t *)shared;
    a.g.n_active = ints;
    a.g.active = ints + PAIR_CLASSES;
    a.g.start = a.g.active + PAIR_CLASSES * a.n_experts;
    a.g.pairs = a.g.start + a.n_experts + 1;
    a.hidden = (float *)(a.g.pairs + *most * a.k);
    a.down = a.hidden + *most * a.k * a.w1.n;
    return a;
}

static inline void experts_scratch(const fl_node_view *n, const fl_limits *limits,
                                   size_t *per_worker, size_t *shared)
{
    int64_t k = n->in[IDS]->dim[0], inner = n->in[W1]->dim[0], width = n->in[W1]->dim[1];
    int64_t most = experts_pass_rows(k, inner, width, limits->max_rows);
    *per_worker = 0;
    *shared = (size_t)(4 + 4 * n->in[W1]->n_tensors + most * k * (1 + inner + width)) * 4;
}

/* ---- steps with many pairs (experts_panel_mma.cu) ---- */

size_t experts_panel_scratch(const fl_node_view *n, const fl_limits *limits, int parts);

/* False, with nothing done, where the other kernels do as well or the processor cannot.  a: as
 * experts_of gives it; room: so much scratch, aligned to 256. */
bool experts_panels(const fl_call *call, int parts, experts_args a, int64_t rows,
                    unsigned char *room, gpu_queue *q);

#endif
