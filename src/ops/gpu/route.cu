/* route: a block per row; scores and choices are doubles in shared memory, as the reference has
 * them.  Seen as whole numbers in the same order, a search by halves finds the lowest that is among
 * the best; those are gathered and ranked against each other. */
#include "ops/gpu/gpu.h"

#include <string.h>

enum { THREADS = 256, MAX_EXPERTS = 2048 };

typedef struct route_args {
    gpu_rows logits, ids, weights;
    const float *bias; /* NULL: none */
    const int32_t *count;
    int n, topk, groups, keep;
    bool softmax, renormalize;
    double scale;
} route_args;

typedef struct candidate {
    double value;
    int index; /* n: none */
} candidate;

/* The greater value, and the lower index of equal ones. */
static __device__ inline candidate better(candidate a, candidate b)
{
    bool second = b.value > a.value || (b.value == a.value && b.index < a.index);
    return second ? b : a;
}

/* The best of n entries that are not out; all threads get it.  NaN must not be among them. */
static __device__ candidate block_best(const double *value, const bool *out, int n, candidate *room)
{
    candidate best = {-INFINITY, n};
    for (int i = threadIdx.x; i < n; i += THREADS) {
        candidate c = {value[i], i};
        if (!out[i])
            best = better(best, c);
    }
    for (int i = GPU_LANES / 2; i > 0; i /= 2) {
        candidate c = {__shfl_xor_sync(0xffffffffu, best.value, i, GPU_LANES),
                       __shfl_xor_sync(0xffffffffu, best.index, i, GPU_LANES)};
        best = better(best, c);
    }
    __syncthreads();
    if (threadIdx.x % GPU_LANES == 0)
        room[threadIdx.x / GPU_LANES] = best;
    __syncthreads();
    for (int i = 0; i < THREADS / GPU_LANES; i++)
        best = better(best, room[i]);
    return best;
}

/* The sum of the two best of a group. */
static __device__ double group_value(const double *choice, int n)
{
    double first = -INFINITY, second = -INFINITY;
    for (int i = 0; i < n; i++) {
        if (choice[i] > first) {
            second = first;
            first = choice[i];
        } else if (choice[i] > second) {
            second = choice[i];
        }
    }
    return n > 1 ? first + second : first;
}

/* Takes all experts out but those of the best groups. */
static __device__ void keep_groups(const route_args &a, const double *choice, double *group,
                                   bool *group_out, bool *out, candidate *room)
{
    int size = a.n / a.groups;
    for (int g = threadIdx.x; g < a.groups; g += THREADS) {
        group[g] = group_value(choice + g * size, size);
        group_out[g] = false;
    }
    for (int e = threadIdx.x; e < a.n; e += THREADS)
        out[e] = true;
    __syncthreads();
    for (int i = 0; i < a.keep; i++) {
        int g = block_best(group, group_out, a.groups, room).index;
        if (threadIdx.x == 0)
            group_out[g] = true;
        for (int e = threadIdx.x; e < size; e += THREADS)
            out[g * size + e] = false;
        __syncthreads();
    }
}

/* A whole number that orders as the value does; both zeros are one. */
static __device__ inline uint64_t key_of(double value)
{
    uint64_t bits = (uint64_t)__double_as_longlong(value + 0.0);
    return bits >> 63 ? ~bits : bits | (uint64_t)1 << 63;
}

/* How many of the block's keys, EACH of a thread, are at least `least`. */
template <int EACH>
static __device__ inline int count_from(const uint64_t (&key)[EACH], uint64_t least)
{
    int n = 0;
#pragma unroll
    for (int i = 0; i < EACH; i++)
        n += __syncthreads_count(key[i] >= least);
    return n;
}

/* Writes the topk best of n entries that are not out to best, the best first, lower indices before
 * higher ones of equals; list has room for n.  There are so many. */
template <int EACH>
static __device__ void take_best(const double *choice, const bool *out, int n, int topk, int *list,
                                 int *best)
{
    __shared__ int n_list;
    uint64_t key[EACH], low = 1, high = ~(uint64_t)0; /* the answer lies in [low, high] */
#pragma unroll
    for (int i = 0; i < EACH; i++) {
        int e = threadIdx.x + i * THREADS;
        key[i] = e < n && !out[e] ? key_of(choice[e]) : 0;
    }
    while (low < high) {
        uint64_t middle = low + (high - low) / 2 + 1;
        int found = count_from(key, middle);
        if (found >= topk)
            low = middle;
        else
            high = middle - 1;
        if (found == topk)
            break;
    }
    if (threadIdx.x == 0)
        n_list = 0;
    __syncthreads();
#pragma unroll
    for (int i = 0; i < EACH; i++) {
        if (key[i] >= low)
            list[atomicAdd(&n_list, 1)] = threadIdx.x + i * THREADS;
    }
    __syncthreads();
    for (int i = threadIdx.x; i < n_list; i += THREADS) {
        int e = list[i], rank = 0;
        for (int k = 0; k < n_list; k++) {
            int o = list[k];
            rank += choice[o] > choice[e] || (choice[o] == choice[e] && o < e);
        }
        if (rank < topk)
            best[rank] = e;
    }
    __syncthreads();
}

static __global__ void __launch_bounds__(THREADS) route_kernel(route_args a)
{
    extern __shared__ double shared[];
    __shared__ candidate room[THREADS / GPU_LANES];
    double *score = shared, *choice = score + a.n, *group = choice + a.n;
    int *list = (int *)(group + a.groups), *best = list + a.n;
    bool *out = (bool *)(best + a.topk), *group_out = out + a.n;
    int64_t row = blockIdx.x;
    if (row >= *a.count)
        return;
    const float *logits = a.logits.p + row * a.logits.stride;
    double high = -INFINITY, total = 1;
    if (a.softmax) {
        for (int e = 0; e < a.n; e++)
            high = logits[e] > high ? logits[e] : high;
        total = 0;
        for (int e = threadIdx.x; e < a.n; e += THREADS)
            score[e] = exp((double)logits[e] - high);
        __syncthreads();
        for (int e = 0; e < a.n; e++)
            total += score[e];
        __syncthreads();
    }
    for (int e = threadIdx.x; e < a.n; e += THREADS) {
        score[e] = a.softmax ? score[e] / total : 1 / (1 + exp(-(double)logits[e]));
        double c = score[e] + (a.bias ? a.bias[e] : 0);
        choice[e] = isnan(c) ? -INFINITY : c;
        out[e] = false;
    }
    __syncthreads();
    if (a.keep < a.groups)
        keep_groups(a, choice, group, group_out, out, room);
    int32_t *ids = (int32_t *)a.ids.p + row * a.ids.stride;
    float *weights = a.weights.p + row * a.weights.stride;
    double sum = 0;
    if (a.n <= THREADS)
        take_best<1>(choice, out, a.n, a.topk, list, best);
    else if (a.n <= 4 * THREADS)
        take_best<4>(choice, out, a.n, a.topk, list, best);
    else
        take_best<MAX_EXPERTS / THREADS>(choice, out, a.n, a.topk, list, best);
    for (int j = 0; j < a.topk; j++)
        sum += score[best[j]];
    double divide = a.renormalize ? sum + 1e-20 : 1;
    for (int j = threadIdx.x; j < a.topk; j += THREADS) {
        ids[j] = best[j];
        weights[j] = (float)(score[best[j]] / divide * a.scale);
    }
}

static void run(const fl_call *call, const fl_step *step, int phase, const fl_worker *worker)
{
    (void)phase;
    gpu_queue *q = (gpu_queue *)worker->queue;
    fl_rows symbol = call->in[0].type.rows;
    int64_t rows = fl_rows_now(step, symbol);
    route_args a = {};
    a.logits = gpu_rows_of(&call->in[0]);
    a.ids = gpu_rows_of(&call->out[0]);
    a.weights = gpu_rows_of(&call->out[1]);
    a.bias = call->n_in > 1 ? (const float *)call->in[1].data : NULL;
    a.count = gpu_count(q, symbol);
    a.n = (int)call->in[0].type.dim[0];
    a.topk = (int)call->attr[FL_ROUTE_TOPK].i;
    a.groups = (int)call->attr[FL_ROUTE_GROUPS].i;
    a.keep = (int)call->attr[FL_ROUTE_TOPK_GROUPS].i;
    a.softmax = strcmp(call->attr[FL_ROUTE_FUNC].text, "softmax") == 0;
    a.renormalize = call->attr[FL_ROUTE_RENORMALIZE].i != 0;
    a.scale = call->attr[FL_ROUTE_SCALE].f;
    size_t shared = (size_t)(2 * a.n + a.groups) * sizeof(double) +
                    (size_t)(a.n + a.topk) * sizeof(int) + (size_t)(a.n + a.groups);
    gpu_allow_shared(q, route_kernel, shared);
    if (rows)
        route_kernel<<<(unsigned)rows, THREADS, shared, q->stream>>>(a);
    gpu_launched(q);
}

static bool fits(const fl_node_view *n)
{
    return n->in[0]->dim[0] <= MAX_EXPERTS;
}

static const fl_kernel kernels[] = {
    {.op = "route", .name = "gpu", .preference = 1, .n_phases = 1, .run = run, .fits = fits}};
extern const fl_kernel_list gpu_kernels_route = FL_KERNEL_LIST(kernels);
