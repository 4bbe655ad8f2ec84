/* index_select: what its kernels share.  The exact k best of all visible positions, ties to the
 * lower one.
 *
 *   score     every key of a row as an order-preserving integer, spread over the chip
 *   count     histograms of the digits, from the highest on, of those that share the digits found;
 *   pick      the digit that holds the k-th
 *   tally     per piece of the row: how many are above the k-th, and how many equal it
 *   place     where each piece writes: the positions come out in ascending order by themselves
 *   write
 *
 * Counting is done in integers, so neither the number of blocks nor their order shows.  Rows that
 * see at most k positions take them all. */
#ifndef FL_OPS_GPU_INDEX_H
#define FL_OPS_GPU_INDEX_H

#include "ops/gpu/gpu.h"

enum { PIECE = 1024, DIGITS = 2048, ROUNDS = 3 };
static const int64_t INDEX_SCRATCH = (int64_t)256 << 20;

typedef struct row_pick {
    uint32_t prefix; /* the digits of the k-th that are known */
    int32_t left;    /* how many of those that share them are wanted */
} row_pick;

typedef struct select_args {
    gpu_step step;
    gpu_rows q, w;
    int32_t *out;
    int64_t out_stride;
    const unsigned char *base;
    int64_t item_bytes;
    int heads, d, topk;
    float scale;
    int64_t row0, rows, context, pieces;
    uint32_t *score;   /* [rows][context] */
    uint32_t *count;   /* [ROUNDS][rows][DIGITS], zero at first */
    row_pick *pick;    /* [rows] */
    int32_t *tally[2]; /* [rows][pieces]: above the k-th, and equal to it */
} select_args;

/* Positions that row r of the pass sees, or 0 where there is nothing to choose. */
static __device__ inline int64_t contest(const select_args &a, int64_t r)
{
    if (a.row0 + r >= a.step.counts[GPU_ROWS])
        return 0;
    int64_t n = (int64_t)a.step.pos[a.row0 + r] + 1;
    return n > a.topk ? n : 0;
}

static __device__ inline uint32_t ordered(float x)
{
    uint32_t bits = __float_as_uint(isnan(x) ? -INFINITY : x + 0.0f); /* -0 + 0 is +0 */
    return bits ^ (bits >> 31 ? 0xffffffffu : 0x80000000u);
}

/* ---- the k-th ---- */

/* Digits: 11, 11 and 10 bits. */
static __device__ inline int digit_shift(int round)
{
    return round == 0 ? 21 : round == 1 ? 10 : 0;
}

static __device__ inline int digit_of(uint32_t x, int round)
{
    return (int)(x >> digit_shift(round) & (round == 2 ? 1023 : 2047));
}

static __device__ inline bool shares(uint32_t x, uint32_t prefix, int round)
{
    return round == 0 || (x ^ prefix) >> digit_shift(round - 1) == 0;
}

static __global__ void count_kernel(select_args a, int round)
{
    __shared__ uint32_t n_of[DIGITS];
    int64_t r = blockIdx.y, n = contest(a, r);
    if ((int64_t)blockIdx.x * PIECE >= n)
        return;
    uint32_t prefix = round ? a.pick[r].prefix : 0;
    for (int i = threadIdx.x; i < DIGITS; i += blockDim.x)
        n_of[i] = 0;
    __syncthreads();
    for (int64_t p0 = (int64_t)blockIdx.x * PIECE; p0 < n; p0 += (int64_t)gridDim.x * PIECE) {
        for (int64_t p = p0 + threadIdx.x; p < p0 + PIECE && p < n; p += blockDim.x) {
            uint32_t x = a.score[r * a.context + p];
            if (shares(x, prefix, round))
                atomicAdd(&n_of[digit_of(x, round)], 1u);
        }
    }
    __syncthreads();
    uint32_t *to = a.count + (round * a.rows + r) * DIGITS;
    for (int i = threadIdx.x; i < DIGITS; i += blockDim.x) {
        if (n_of[i])
            atomicAdd(&to[i], n_of[i]);
    }
}

enum { PICK_THREADS = 256, EACH = DIGITS / PICK_THREADS };

/* A block per row: the highest digit so that at least `left` entries have it or a higher one. */
static __global__ void pick_kernel(select_args a, int round)
{
    __shared__ uint32_t sums[PICK_THREADS];
    int64_t r = blockIdx.x;
    int t = threadIdx.x;
    if (!contest(a, r))
        return;
    const uint32_t *count = a.count + (round * a.rows + r) * DIGITS;
    row_pick was = {0, a.topk};
    if (round)
        was = a.pick[r];
    int high = DIGITS - 1 - t * EACH; /* this thread's digits: high down to high - EACH + 1 */
    uint32_t own = 0;
    for (int i = 0; i < EACH; i++)
        own += count[high - i];
    sums[t] = own;
    __syncthreads();
    for (int step = 1; step < PICK_THREADS; step *= 2) { /* inclusive sums */
        uint32_t add = t >= step ? sums[t - step] : 0;
        __syncthreads();
        sums[t] += add;
        __syncthreads();
    }
    uint32_t above = sums[t] - own, left = (uint32_t)was.left;
    if (above >= left || sums[t] < left)
        return; /* not in this thread's digits */
    int digit = high;
    while (above + count[digit] < left)
        above += count[digit--];
    row_pick now = {was.prefix | (uint32_t)digit << digit_shift(round), (int32_t)(left - above)};
    a.pick[r] = now;
}

/* ---- writing ---- */

static __global__ void tally_kernel(select_args a)
{
    __shared__ int32_t above, equal;
    int64_t r = blockIdx.y, n = contest(a, r);
    for (int64_t piece = blockIdx.x; piece * PIECE < n; piece += gridDim.x) {
        uint32_t kth = a.pick[r].prefix;
        if (threadIdx.x == 0)
            above = equal = 0;
        __syncthreads();
        for (int64_t p = piece * PIECE + threadIdx.x; p < (piece + 1) * PIECE && p < n;
             p += blockDim.x) {
            uint32_t x = a.score[r * a.context + p];
            if (x > kth)
                atomicAdd(&above, 1);
            else if (x == kth)
                atomicAdd(&equal, 1);
        }
        __syncthreads();
        if (threadIdx.x == 0) {
            a.tally[0][r * a.pieces + piece] = above;
            a.tally[1][r * a.pieces + piece] = equal;
        }
        __syncthreads();
    }
}

enum { PLACE_THREADS = 1024 };

/* Tallies become sums over the pieces before.  A block per row and kind. */
static __global__ void place_kernel(select_args a)
{
    __shared__ int32_t sums[PLACE_THREADS];
    int64_t r = blockIdx.x, n = (contest(a, r) + PIECE - 1) / PIECE;
    int32_t *tally = a.tally[blockIdx.y] + r * a.pieces, before = 0;
    int t = threadIdx.x;
    for (int64_t p0 = 0; p0 < n; p0 += PLACE_THREADS) {
        int32_t own = p0 + t < n ? tally[p0 + t] : 0;
        sums[t] = own;
        __syncthreads();
        for (int step = 1; step < PLACE_THREADS; step *= 2) {
            int32_t add = t >= step ? sums[t - step] : 0;
            __syncthreads();
            sums[t] += add;
            __syncthreads();
        }
        if (p0 + t < n)
            tally[p0 + t] = before + sums[t] - own;
        before += sums[PLACE_THREADS - 1];
        __syncthreads();
    }
}

/* One warp goes through a piece, so ranks come from ballots. */
static __global__ void write_kernel(select_args a)
{
    int64_t r = blockIdx.y, row = a.row0 + r, n = contest(a, r);
    int lane = threadIdx.x % GPU_LANES;
    if (row >= a.step.counts[GPU_ROWS])
        return;
    int32_t *out = a.out + row * a.out_stride;
    if (!n) { /* all that there are */
        n = (int64_t)a.step.pos[row] + 1;
        for (int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x; i < a.topk;
             i += (int64_t)gridDim.x * blockDim.x)
            out[i] = i < n ? (int32_t)i : -1;
        return;
    }
    row_pick pick = a.pick[r];
    int warps = blockDim.x / GPU_LANES;
    for (int64_t piece = (int64_t)blockIdx.x * warps + threadIdx.x / GPU_LANES; piece * PIECE < n;
         piece += (int64_t)gridDim.x * warps) {
        int32_t above = a.tally[0][r * a.pieces + piece];
        int32_t equal = a.tally[1][r * a.pieces + piece];
        for (int i = 0; i < PIECE; i += GPU_LANES) {
            int64_t p = piece * PIECE + i + lane;
            uint32_t x = p < n ? a.score[r * a.context + p] : 0;
            bool is_above = p < n && x > pick.prefix, is_equal = p < n && x == pick.prefix;
            uint32_t all_above = __ballot_sync(0xffffffffu, is_above);
            uint32_t all_equal = __ballot_sync(0xffffffffu, is_equal), below = (1u << lane) - 1;
            int32_t n_above = above + __popc(all_above & below);
            int32_t n_equal = equal + __popc(all_equal & below);
            int32_t taken = n_equal < pick.left ? n_equal : pick.left;
            if (is_above || (is_equal && n_equal < pick.left))
                out[n_above + taken] = (int32_t)p;
            above += __popc(all_above);
            equal += __popc(all_equal);
        }
    }
}

/* ---- launching ---- */

/* Enough blocks to fill the chip some times over, no more than there is work. */
static inline unsigned index_blocks(const gpu_queue *q, int64_t pieces, int64_t rows)
{
    int64_t most = 16 * q->processors / rows;
    return (unsigned)gpu_min(pieces > 0 ? pieces : 1, most > 1 ? most : 1);
}

/* What follows the scores, in two parts: before them, and after. */
static inline void index_begin(const select_args &a, gpu_queue *q)
{
    if (a.context > a.topk)
        cudaMemsetAsync(a.count, 0, (size_t)(ROUNDS * a.rows * DIGITS) * sizeof *a.count,
                        q->stream);
}

static inline void index_end(const select_args &a, gpu_queue *q)
{
    unsigned rows = (unsigned)a.rows;
    dim3 by_piece(index_blocks(q, a.pieces, a.rows), rows);
    if (a.context > a.topk) {
        for (int round = 0; round < ROUNDS; round++) {
            count_kernel<<<by_piece, 256, 0, q->stream>>>(a, round);
            pick_kernel<<<rows, PICK_THREADS, 0, q->stream>>>(a, round);
        }
        tally_kernel<<<by_piece, 256, 0, q->stream>>>(a);
        place_kernel<<<dim3(rows, 2), PLACE_THREADS, 0, q->stream>>>(a);
    }
    write_kernel<<<by_piece, 128, 0, q->stream>>>(a);
    gpu_launched(q);
}

static inline int64_t index_row_ints(int64_t context)
{
    return context + ROUNDS * DIGITS + 2 + 2 * (context + PIECE - 1) / PIECE + 2;
}

static inline int64_t index_pass_rows(int64_t context, int64_t max_rows)
{
    int64_t fit = INDEX_SCRATCH / (index_row_ints(context) * (int64_t)sizeof(int32_t));
    return fit < 1 ? 1 : fit < max_rows ? fit : max_rows;
}

/* The arguments of a call, but for the pass; *most: rows of a pass. */
static inline select_args index_args_of(const fl_call *call, const fl_step *step,
                                        const gpu_queue *q, void *shared, int64_t *most)
{
    const fl_arg *in = call->in;
    const fl_state_pool *pool = &step->states[in[FL_INDEX_KEYS].type.state];
    select_args a = {};
    a.step = q->step;
    a.q = gpu_rows_of(&in[FL_INDEX_Q]);
    a.w = gpu_rows_of(&in[FL_INDEX_W]);
    a.out = (int32_t *)call->out[0].data;
    a.out_stride = call->out[0].stride;
    a.base = pool->base;
    a.item_bytes = pool->item_bytes;
    a.heads = (int)in[FL_INDEX_Q].type.dim[0];
    a.d = (int)in[FL_INDEX_Q].type.dim[1];
    a.topk = (int)call->attr[FL_INDEX_SELECT_TOPK].i;
    a.scale = (float)call->attr[FL_INDEX_SELECT_SCALE].f;
    a.context = q->max_context;
    a.pieces = (a.context + PIECE - 1) / PIECE;
    *most = index_pass_rows(a.context, step->n_rows);
    a.score = (uint32_t *)shared;
    a.count = a.score + *most * a.context;
    a.pick = (row_pick *)(a.count + *most * ROUNDS * DIGITS);
    a.tally[0] = (int32_t *)(a.pick + *most);
    a.tally[1] = a.tally[0] + *most * a.pieces;
    return a;
}

static inline void index_scratch(const fl_node_view *n, const fl_limits *limits, size_t *per_worker,
                                 size_t *shared)
{
    (void)n;
    *per_worker = 0;
    *shared = (size_t)(index_row_ints(limits->max_context) *
                       index_pass_rows(limits->max_context, limits->max_rows)) *
              sizeof(int32_t);
}

#endif
