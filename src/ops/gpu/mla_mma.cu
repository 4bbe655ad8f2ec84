/* mla on matrix units.  Queries, cached rows and weights of the softmax are float32 numbers; each
 * becomes three BF16 parts, of which the six greatest products are summed: what is left out is
 * below the last bit of a float32.
 *
 * A block takes 16 heads and a span of keys, 16 keys at a time, which it brings to shared memory
 * while it works on the 16 before.  Its four warps share the length of the scores' sums and the
 * columns of the values'. */
#include "ops/gpu/mla.h"
#include "ops/gpu/parts.h"

enum { WARPS = 4, THREADS = WARPS * GPU_LANES, STEP = 16 /* elements that a product sums */ };

/* Sizes in shared memory, in floats. */
static inline __host__ __device__ int tile_stride(int whole)
{
    return whole + 4;
}

/* The item of the key that this lane looks up, of 16 from entry k0 on; -1: it is none. */
static __device__ inline int64_t look_up(const mla_args &a, const gpu_seq &seq,
                                         const int32_t *select, int64_t k0, int64_t end,
                                         int64_t visible)
{
    int64_t at = k0 + threadIdx.x % KEYS;
    int64_t pos = at >= end ? -1 : select ? select[at] : at;
    return pos >= 0 && pos < visible ? step_item(a.step, seq, pos) : -1;
}

/* Starts bringing the 16 keys that the lanes of each warp looked up; there[i]: whether key i is
 * one.
 */
static __device__ inline void bring_keys(const mla_args &a, int64_t looked, float *tile,
                                         float *there)
{
    int whole = a.latent + a.pe, lane = threadIdx.x % GPU_LANES;
    for (int i = threadIdx.x / GPU_LANES; i < KEYS; i += WARPS) {
        int64_t index = __shfl_sync(0xffffffffu, looked, i, GPU_LANES);
        float *to = tile + i * tile_stride(whole);
        const float *item = (const float *)(a.base + index * a.item_bytes);
        for (int c = 4 * lane; c < whole; c += 4 * GPU_LANES) {
            if (index >= 0)
                copy_async(to + c, item + c);
            else
                *(float4 *)(to + c) = make_float4(0, 0, 0, 0);
        }
        if (lane == 0)
            there[i] = index >= 0 ? 1 : 0;
    }
    copies_commit();
}

/* SCORE_STEPS and VALUE_COLS: at most so many sums of 16 elements and columns of 8 per warp. */
template <int SCORE_STEPS, int VALUE_COLS>
static __global__ void __launch_bounds__(THREADS) attend_kernel(mla_args a)
{
    extern __shared__ __align__(16) float tiles[]; /* two tiles */
    __shared__ float there[2][KEYS], partial[WARPS][HEADS][KEYS], shrink[HEADS];
    __shared__ uint32_t weight[3][HEADS][KEYS / 2 + 4];
    int whole = a.latent + a.pe, stride = tile_stride(whole), t4 = threadIdx.x % 4;
    int warp = threadIdx.x / GPU_LANES, g = threadIdx.x % GPU_LANES / 4;
    int64_t r = blockIdx.z, row = a.row0 + r;
    int head0 = blockIdx.y * HEADS, span = blockIdx.x;
    if (row >= a.step.counts[GPU_ROWS])
        return;
    int64_t n_keys = keys_of(a, row), length = span_length(n_keys), visible = a.step.pos[row] + 1;
    int64_t begin = span * length, end = begin + length < n_keys ? begin + length : n_keys;
    if (begin >= n_keys)
        return;
    const gpu_seq seq = a.step.seqs[a.step.row_seq[row]];
    const int32_t *select = a.select ? a.select + row * a.select_stride : NULL;
    bring_keys(a, look_up(a, seq, select, begin, end, visible), tiles, there[0]);
    int64_t ahead = look_up(a, seq, select, begin + KEYS, end, visible);

    /* This warp's share of the queries stays in registers. */
    int steps = (whole / STEP + WARPS - 1) / WARPS, step0 = warp * steps;
    int cols = a.latent / 8 / WARPS, col0 = warp * cols;
    parts4 qg[SCORE_STEPS], qh[SCORE_STEPS];
#pragma unroll
    for (int s = 0; s < SCORE_STEPS; s++) {
        float4 x = make_float4(0, 0, 0, 0), y = x;
        int c = (step0 + s) * STEP + 4 * t4;
        bool is = s < steps && c < whole;
        if (is && head0 + g < a.heads)
            x = *(const float4 *)(a.query + (r * a.heads + head0 + g) * whole + c);
        if (is && head0 + g + 8 < a.heads)
            y = *(const float4 *)(a.query + (r * a.heads + head0 + g + 8) * whole + c);
        qg[s] = parts_of(x);
        qh[s] = parts_of(y);
    }
    float acc[VALUE_COLS][4] = {}, high = -INFINITY, sum = 0;
    int h = threadIdx.x / 8, pair = threadIdx.x % 8; /* this thread's head and two keys */
    int turn = 0;
    for (int64_t k0 = begin; k0 < end; k0 += KEYS, turn = !turn) {
        const float *tile = tiles + turn * KEYS * stride;
        if (k0 + KEYS < end) {
            bring_keys(a, ahead, tiles + !turn * KEYS * stride, there[!turn]);
            ahead = look_up(a, seq, select, k0 + 2 * KEYS, end, visible);
            copies_wait<1>();
        } else {
            copies_wait<0>();
        }
        __syncthreads();
        /* Scores: each warp over its share of the length. */
        float score[2][4] = {};
#pragma unroll
        for (int s = 0; s < SCORE_STEPS; s++) {
            int c = (step0 + s) * STEP + 4 * t4;
            if (s < steps && (step0 + s) * STEP < whole) {
                const parts4 key[2] = {parts_of(*(const float4 *)(tile + g * stride + c)),
                                       parts_of(*(const float4 *)(tile + (8 + g) * stride + c))};
                add_products<2>(score, qg[s], qh[s], key);
            }
        }
#pragma unroll
        for (int n = 0; n < 2; n++) {
            partial[warp][g][8 * n + 2 * t4] = score[n][0];
            partial[warp][g][8 * n + 2 * t4 + 1] = score[n][1];
            partial[warp][g + 8][8 * n + 2 * t4] = score[n][2];
            partial[warp][g + 8][8 * n + 2 * t4 + 1] = score[n][3];
        }
        __syncthreads();
        float x[2], p[2];
        bool is[2];
#pragma unroll
        for (int i = 0; i < 2; i++) {
            int key = 2 * pair + i;
            x[i] = 0;
            for (int w = 0; w < WARPS; w++)
                x[i] += partial[w][h][key];
            is[i] = there[turn][key] != 0;
        }
        float top = fmaxf(is[0] ? x[0] : -INFINITY, is[1] ? x[1] : -INFINITY);
        for (int i = 4; i > 0; i /= 2)
            top = fmaxf(top, __shfl_xor_sync(0xffffffffu, top, i, 8));
        float now = fmaxf(high, top), zero = now == -INFINITY ? 0 : now;
#pragma unroll
        for (int i = 0; i < 2; i++)
            p[i] = is[i] ? expf(x[i] - zero) : 0;
        float all = p[0] + p[1], old = expf(high - zero);
        for (int i = 4; i > 0; i /= 2)
            all += __shfl_xor_sync(0xffffffffu, all, i, 8);
        sum = sum * old + all;
        high = now;
        uint32_t both[3];
        pair_parts<3>(p[0], p[1], both);
#pragma unroll
        for (int i = 0; i < 3; i++)
            weight[i][h][pair] = both[i];
        if (pair == 0)
            shrink[h] = old;
        __syncthreads();
        /* Values: each warp its columns. */
        parts4 wg, wh;
#pragma unroll
        for (int i = 0; i < 3; i++) {
            wg.lo[i] = weight[i][g][t4];
            wg.hi[i] = weight[i][g][t4 + 4];
            wh.lo[i] = weight[i][g + 8][t4];
            wh.hi[i] = weight[i][g + 8][t4 + 4];
        }
        float old_g = shrink[g], old_h = shrink[g + 8];
#pragma unroll
        for (int n = 0; n < VALUE_COLS; n += 2) {
            if (n >= cols)
                continue;
            parts4 value[2];
#pragma unroll
            for (int i = 0; i < 2; i++) {
                /* An odd last column is done twice; the second is never looked at. */
                const float *v = tile + (col0 + (n + i < cols ? n + i : n)) * 8 + g;
                value[i] =
                    parts_of(make_float4(v[2 * t4 * stride], v[(2 * t4 + 1) * stride],
                                         v[(2 * t4 + 8) * stride], v[(2 * t4 + 9) * stride]));
                acc[n + i][0] *= old_g;
                acc[n + i][1] *= old_g;
                acc[n + i][2] *= old_h;
                acc[n + i][3] *= old_h;
            }
            add_products<2>(&acc[n], wg, wh, value);
        }
        __syncthreads();
    }
    int64_t item = a.latent + 2;
    float *out = a.partial + ((r * a.heads + head0) * a.spans + span) * item;
    int64_t next = a.spans * item; /* from head to head */
    if (pair == 0 && head0 + h < a.heads) {
        out[h * next] = high;
        out[h * next + 1] = sum;
    }
#pragma unroll
    for (int n = 0; n < VALUE_COLS; n++) {
#pragma unroll
        for (int i = 0; i < 4; i++) {
            int head = g + i / 2 * 8, c = (col0 + n) * 8 + 2 * t4 + i % 2;
            if (n < cols && head0 + head < a.heads)
                out[head * next + 2 + c] = acc[n][i];
        }
    }
}

template <int SCORE_STEPS, int VALUE_COLS> static void attend(const mla_args &a, gpu_queue *q)
{
    size_t shared = (size_t)2 * KEYS * tile_stride(a.latent + a.pe) * sizeof(float);
    dim3 grid((unsigned)a.spans, gpu_blocks(a.heads, HEADS), (unsigned)a.rows);
    gpu_allow_shared(q, attend_kernel<SCORE_STEPS, VALUE_COLS>, shared);
    attend_kernel<SCORE_STEPS, VALUE_COLS><<<grid, THREADS, shared, q->stream>>>(a);
}

template <int T> static void one_pass(const mla_args &a, gpu_queue *q)
{
    mla_absorb<T>(a, q);
    if (a.latent + a.pe <= 3 * WARPS * STEP && a.latent <= 4 * WARPS * 8)
        attend<3, 4>(a, q);
    else
        attend<9, 16>(a, q);
    mla_merge<T>(a, q);
    gpu_launched(q);
}

static void run(const fl_call *call, const fl_step *step, int phase, const fl_worker *worker)
{
    (void)phase;
    gpu_queue *q = (gpu_queue *)worker->queue;
    int64_t most;
    mla_args a = mla_args_of(call, step, q, worker->shared, &most);
    for (int64_t r = 0; r < step->n_rows; r += most) {
        a.row0 = r;
        a.rows = gpu_min(step->n_rows - r, most);
        GPU_FOR_DTYPE(call->in[FL_MLA_KV_B].type.dtype, one_pass<T>(a, q));
    }
}

/* Whole sums of 16, columns that divide among the warps, and queries that fit their registers. */
static bool fits(const fl_node_view *n)
{
    int64_t latent = n->in[FL_MLA_KV_B]->dim[1], whole = n->in[FL_MLA_CACHE]->dim[0];
    return n->in[FL_MLA_CACHE]->dtype == FL_F32 && whole % STEP == 0 && latent % (8 * WARPS) == 0 && whole <= 9 * WARPS * STEP &&
           latent <= 16 * WARPS * 8;
}

static const fl_kernel kernels[] = {{.op = "mla",
                                     .name = "mma-gpu",
                                     .preference = 2,
                                     .n_phases = 1,
                                     .run = run,
                                     .fits = fits,
                                     .scratch = mla_scratch}};
extern const fl_kernel_list gpu_kernels_mla_mma = FL_KERNEL_LIST(kernels);
