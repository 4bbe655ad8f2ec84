/* index_select: what its kernels share.  The exact k best of all visible positions, ties to the
 * lower one.
 *
 *   score   every key of a row as an order-preserving integer, spread over the chip, and how many
 *           there are of each highest digit
 *   count   twice, or thrice where many rows were scored: of those that share the digits of the
 * k-th that are known, how many there are of each next digit tally   per piece of the row: how many
 * are above the k-th, and how many equal it write   each piece knows where: the positions come out
 * in ascending order by themselves
 *
 * The block of a row that is done last draws the conclusion: the digit of the k-th, or the sums of
 * tallies.  Counting is done in integers, so neither the number of blocks nor their order shows.
 * Rows that see at most k positions take them all. */
#ifndef FL_OPS_GPU_INDEX_H
#define FL_OPS_GPU_INDEX_H

#include "ops/gpu/cache.h"

enum { SELECT_THREADS = 256, LOADS = 4, QUAD = 4 * SELECT_THREADS, PIECE = LOADS * QUAD };
enum { DIGITS = 2048, EACH = DIGITS / SELECT_THREADS, ROUNDS = 3, STAGES = 4 };
enum { INDEX_ROOM = 12288 + 64, INDEX_MANY = 8 /* rows of a sequence that are many */ };
static const int64_t INDEX_SCRATCH = (int64_t)256 << 20;

/* The k-th of a row as far as it is known, and how many blocks are done with a stage. */
typedef struct row_pick {
    uint32_t prefix; /* the digits of the k-th that are known */
    int32_t left;    /* how many of those that share them are wanted */
    uint32_t done[STAGES];
} row_pick;

typedef struct select_args {
    gpu_step step;
    gpu_rows q, w;
    int32_t *out;
    int64_t out_stride;
    const unsigned char *base;
    int64_t item_bytes, scales_at; /* of a cached row; before its factor */
    int heads, d, topk;
    float scale;
    int64_t row0, rows, context, pieces;
    bool prompt;       /* neighbouring rows are of one sequence, most of them */
    uint32_t *score;   /* [rows][pieces * PIECE] */
    uint32_t *count;   /* [ROUNDS][rows][DIGITS], zero at first, as is what follows */
    row_pick *pick;    /* [rows] */
    int32_t *tally[2]; /* [rows][pieces]: above the k-th, and equal to it */
    float *room;       /* [rows][INDEX_ROOM]: for kernels of many rows (index_many.h) */
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

/* The score of one position by a whole warp, in plain arithmetic. */
template <int F>
static __device__ inline float plain_score(const select_args &a, int64_t row,
                                           const unsigned char *key)
{
    float score = 0;
    for (int h = 0; h < a.heads; h++) {
        const float *q = a.q.p + row * a.q.stride + (int64_t)h * a.d;
        float dot = 0;
        for (int d = threadIdx.x % GPU_LANES; d < a.d; d += GPU_LANES)
            dot = fmaf(q[d], cache_code<F>(key, d), dot);
        dot = lanes_sum(dot);
        score = fmaf(a.scale * a.w.p[row * a.w.stride + h], dot < 0 ? 0 : dot, score);
    }
    return score;
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

/* True in the last of `blocks` blocks of a row to come here; what the others wrote is to be seen
 * then, by reads that are volatile.  All threads call it. */
static __device__ inline bool last_block(select_args &a, int64_t r, int stage, unsigned blocks)
{
    __shared__ bool last;
    __threadfence();
    __syncthreads();
    if (threadIdx.x == 0)
        last = atomicAdd(&a.pick[r].done[stage], 1u) == blocks - 1;
    __syncthreads();
    return last;
}

/* The sum of x over the threads before this one; *all: over all of the SELECT_THREADS. */
static __device__ inline uint32_t sum_before(uint32_t x, uint32_t *all)
{
    __shared__ uint32_t of_warp[SELECT_THREADS / GPU_LANES];
    int lane = threadIdx.x % GPU_LANES, warp = threadIdx.x / GPU_LANES;
    uint32_t sum = x, before = 0, total = 0;
    for (int i = 1; i < GPU_LANES; i *= 2) {
        uint32_t y = __shfl_up_sync(0xffffffffu, sum, i, GPU_LANES);
        sum += lane >= i ? y : 0;
    }
    __syncthreads();
    if (lane == GPU_LANES - 1)
        of_warp[warp] = sum;
    __syncthreads();
    for (int i = 0; i < SELECT_THREADS / GPU_LANES; i++) {
        before += i < warp ? of_warp[i] : 0;
        total += of_warp[i];
    }
    *all = total;
    return before + sum - x;
}

static __device__ inline void clear_digits(uint32_t *n_of)
{
    for (int i = threadIdx.x; i < DIGITS; i += SELECT_THREADS)
        n_of[i] = 0;
    __syncthreads();
}

/* Adds a block's counts of digits to those of row r; the last of the blocks finds the digit of the
 * k-th: the highest of which, with the higher ones, there are enough. */
static __device__ inline void add_digits(select_args &a, int64_t r, int round, const uint32_t *n_of,
                                         unsigned blocks)
{
    uint32_t *count = a.count + (round * a.rows + r) * DIGITS;
    __syncthreads();
    for (int i = threadIdx.x; i < DIGITS; i += SELECT_THREADS) {
        if (n_of[i])
            atomicAdd(&count[i], n_of[i]);
    }
    if (!last_block(a, r, round, blocks))
        return;
    row_pick *pick = &a.pick[r];
    uint32_t left = round ? (uint32_t)pick->left : (uint32_t)a.topk, prefix = pick->prefix;
    int high = DIGITS - 1 - (int)threadIdx.x * EACH; /* this thread's: high to high - EACH + 1 */
    uint32_t of[EACH], own = 0, all;
    for (int i = 0; i < EACH; i++) {
        of[i] = ((const volatile uint32_t *)count)[high - i];
        own += of[i];
    }
    uint32_t above = sum_before(own, &all); /* all have read the pick by now */
    if (above >= left || above + own < left)
        return;
    int i = 0;
    while (above + of[i] < left)
        above += of[i++];
    pick->prefix = prefix | (uint32_t)(high - i) << digit_shift(round);
    pick->left = (int32_t)(left - above);
}

/* The scores of a piece that this thread looks at: four side by side in each of LOADS quarters.
 * Beyond the row's end there is 0, which no score is. */
static __device__ inline void load_scores(const select_args &a, int64_t r, int64_t piece, int64_t n,
                                          uint32_t x[LOADS][4])
{
    const uint32_t *from = a.score + (r * a.pieces + piece) * PIECE;
#pragma unroll
    for (int i = 0; i < LOADS; i++) {
        int at = i * QUAD + (int)threadIdx.x * 4;
        int64_t left = n - piece * PIECE - at;
        uint4 v = left > 0 ? *(const uint4 *)(from + at) : make_uint4(0, 0, 0, 0);
        x[i][0] = v.x;
        x[i][1] = left > 1 ? v.y : 0;
        x[i][2] = left > 2 ? v.z : 0;
        x[i][3] = left > 3 ? v.w : 0;
    }
}

static __device__ inline unsigned blocks_of(int64_t n, int64_t per_block)
{
    int64_t blocks = (n + per_block - 1) / per_block;
    return (unsigned)(blocks < gridDim.x ? blocks : gridDim.x);
}

static __global__ void __launch_bounds__(SELECT_THREADS) count_kernel(select_args a, int round)
{
    __shared__ uint32_t n_of[DIGITS];
    int64_t r = blockIdx.y, n = contest(a, r);
    if ((int64_t)blockIdx.x * PIECE >= n)
        return;
    uint32_t prefix = a.pick[r].prefix;
    clear_digits(n_of);
    for (int64_t piece = blockIdx.x; piece * PIECE < n; piece += gridDim.x) {
        uint32_t x[LOADS][4];
        load_scores(a, r, piece, n, x);
#pragma unroll
        for (int i = 0; i < 4 * LOADS; i++) {
            if (x[i / 4][i % 4] && shares(x[i / 4][i % 4], prefix, round))
                atomicAdd(&n_of[digit_of(x[i / 4][i % 4], round)], 1u);
        }
    }
    add_digits(a, r, round, n_of, blocks_of(n, PIECE));
}

/* ---- writing ---- */

/* How many of four are above the k-th (lower half), and equal to it. */
static __device__ inline uint32_t tally_of(const uint32_t x[4], uint32_t kth)
{
    uint32_t n = 0;
#pragma unroll
    for (int j = 0; j < 4; j++)
        n += x[j] > kth ? 1u : x[j] == kth ? 1u << 16 : 0;
    return n;
}

static __global__ void __launch_bounds__(SELECT_THREADS) tally_kernel(select_args a)
{
    int64_t r = blockIdx.y, n = contest(a, r);
    if ((int64_t)blockIdx.x * PIECE >= n)
        return;
    uint32_t kth = a.pick[r].prefix;
    for (int64_t piece = blockIdx.x; piece * PIECE < n; piece += gridDim.x) {
        uint32_t x[LOADS][4], own = 0, all;
        load_scores(a, r, piece, n, x);
#pragma unroll
        for (int i = 0; i < LOADS; i++)
            own += tally_of(x[i], kth);
        (void)sum_before(own, &all);
        if (threadIdx.x == 0) {
            a.tally[0][r * a.pieces + piece] = (int32_t)(all & 0xffff);
            a.tally[1][r * a.pieces + piece] = (int32_t)(all >> 16);
        }
    }
    if (!last_block(a, r, ROUNDS, blocks_of(n, PIECE)))
        return;
    /* Tallies become sums over the pieces before. */
    int64_t pieces = (n + PIECE - 1) / PIECE;
    for (int kind = 0; kind < 2; kind++) {
        volatile int32_t *tally = a.tally[kind] + r * a.pieces;
        uint32_t before = 0, all;
        for (int64_t p0 = 0; p0 < pieces; p0 += SELECT_THREADS) {
            int64_t p = p0 + threadIdx.x;
            uint32_t sum = before + sum_before(p < pieces ? (uint32_t)tally[p] : 0, &all);
            if (p < pieces)
                tally[p] = (int32_t)sum;
            before += all;
        }
    }
}

static __global__ void __launch_bounds__(SELECT_THREADS) write_kernel(select_args a)
{
    int64_t r = blockIdx.y, row = a.row0 + r, n = contest(a, r);
    if (row >= a.step.counts[GPU_ROWS])
        return;
    int32_t *out = a.out + row * a.out_stride;
    if (!n) { /* all that there are */
        n = (int64_t)a.step.pos[row] + 1;
        for (int64_t i = (int64_t)blockIdx.x * SELECT_THREADS + threadIdx.x; i < a.topk;
             i += (int64_t)gridDim.x * SELECT_THREADS)
            out[i] = i < n ? (int32_t)i : -1;
        return;
    }
    uint32_t kth = a.pick[r].prefix;
    int32_t left = a.pick[r].left;
    for (int64_t piece = blockIdx.x; piece * PIECE < n; piece += gridDim.x) {
        uint32_t x[LOADS][4], all;
        load_scores(a, r, piece, n, x);
        int32_t above = a.tally[0][r * a.pieces + piece];
        int32_t equal = a.tally[1][r * a.pieces + piece];
#pragma unroll
        for (int i = 0; i < LOADS; i++) {
            uint32_t before = sum_before(tally_of(x[i], kth), &all);
            int32_t n_above = above + (int32_t)(before & 0xffff);
            int32_t n_equal = equal + (int32_t)(before >> 16);
#pragma unroll
            for (int j = 0; j < 4; j++) {
                bool is_above = x[i][j] > kth, is_equal = x[i][j] == kth;
                if (is_above || (is_equal && n_equal < left))
                    out[n_above + (n_equal < left ? n_equal : left)] =
                        (int32_t)(piece * PIECE + i * QUAD) + (int32_t)threadIdx.x * 4 + j;
                n_above += is_above;
                n_equal += is_equal;
            }
            above += (int32_t)(all & 0xffff);
            equal += (int32_t)(all >> 16);
        }
    }
}

/* ---- launching ---- */

/* Enough blocks of a row to fill the chip `times` over, no more than there is work. */
static inline unsigned index_blocks(const gpu_queue *q, int64_t work, int64_t rows, int times)
{
    int64_t most = (int64_t)times * q->processors / rows;
    return (unsigned)gpu_min(work > 0 ? work : 1, most > 1 ? most : 1);
}

/* Ints of a row's scratch: scores, counts, the pick, tallies. */
static inline int64_t index_row_ints(int64_t context)
{
    int64_t pieces = (context + PIECE - 1) / PIECE;
    return pieces * (PIECE + 2) + ROUNDS * DIGITS + (int64_t)(sizeof(row_pick) / sizeof(int32_t)) +
           INDEX_ROOM;
}

static inline int64_t index_pass_rows(int64_t context, int64_t max_rows)
{
    int64_t fit = INDEX_SCRATCH / (index_row_ints(context) * (int64_t)sizeof(int32_t));
    return fit < 1 ? 1 : gpu_min(fit, max_rows);
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
    a.scales_at = fl_cache_scales_at(a.d);
    a.topk = (int)call->attr[FL_INDEX_SELECT_TOPK].i;
    a.scale = (float)call->attr[FL_INDEX_SELECT_SCALE].f;
    a.context = q->max_context;
    a.prompt = step->n_rows != step->n_seqs;
    a.pieces = (a.context + PIECE - 1) / PIECE;
    *most = index_pass_rows(a.context, step->n_rows);
    a.room = (float *)shared;
    a.score = (uint32_t *)(a.room + *most * INDEX_ROOM);
    a.count = a.score + *most * a.pieces * PIECE;
    a.tally[0] = (int32_t *)((row_pick *)(a.count + *most * ROUNDS * DIGITS) + *most);
    a.tally[1] = a.tally[0] + *most * a.pieces;
    return a;
}

/* The end of a pass that begins at row row0: where many rows are of one sequence they have passes
 * of their own.  *n_keys: how many keys the last of these sees, or 0. */
static inline int64_t index_pass_end(const fl_step *step, int64_t row0, int64_t most,
                                     int64_t *n_keys)
{
    int64_t end = gpu_min(row0 + most, step->n_rows);
    *n_keys = 0;
    for (int32_t i = 0; i < step->n_seqs && step->n_rows != step->n_seqs; i++) {
        const fl_seq_rows *s = &step->seqs[i];
        int64_t next = s->row0 + s->n_rows;
        if (s->n_rows < INDEX_MANY || next <= row0 || s->row0 >= end)
            continue;
        if (s->row0 > row0)
            return s->row0;
        end = gpu_min(end, next);
        *n_keys = s->pos0 + end - s->row0;
        return end;
    }
    return end;
}

/* A kernel's run; HOW::score<F>(a, n_keys, q) launches what scores keys of format F, n_keys being 0
 * or what the last of many rows of a sequence sees, and says from which round on digits are to be
 * counted. */
template <typename HOW>
static void index_run(const fl_call *call, const fl_step *step, int phase, const fl_worker *worker)
{
    (void)phase;
    gpu_queue *q = (gpu_queue *)worker->queue;
    int64_t most, n_keys;
    select_args a = index_args_of(call, step, q, worker->shared, &most);
    for (; a.row0 < step->n_rows; a.row0 += a.rows) {
        a.rows = index_pass_end(step, a.row0, most, &n_keys) - a.row0;
        dim3 grid(index_blocks(q, a.pieces, a.rows, 8), (unsigned)a.rows);
        if (a.context > a.topk) {
            int round = 1;
            a.pick = (row_pick *)(a.count + a.rows * ROUNDS * DIGITS);
            cudaMemsetAsync(a.count, 0,
                            (size_t)a.rows * (ROUNDS * DIGITS * sizeof *a.count + sizeof *a.pick),
                            q->stream);
            GPU_FOR_CACHE(call->in[FL_INDEX_KEYS].type.dtype,
                          round = HOW::template score<F>(a, n_keys, q));
            for (; round < ROUNDS; round++)
                count_kernel<<<grid, SELECT_THREADS, 0, q->stream>>>(a, round);
            tally_kernel<<<grid, SELECT_THREADS, 0, q->stream>>>(a);
        }
        write_kernel<<<grid, SELECT_THREADS, 0, q->stream>>>(a);
        gpu_launched(q);
    }
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
