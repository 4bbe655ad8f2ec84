/* index_select with scores on matrix units (index.h).  Queries and keys become three BF16 parts
 * each, of which the six greatest products are summed, as exact as float32.
 *
 * A warp takes 16 keys at a time straight from the cache to its registers; the parts of the queries
 * of the row lie in shared memory.  A key that holds an infinity is scored in plain arithmetic,
 * because the parts of infinity are no numbers. */
#include "ops/gpu/index.h"
#include "ops/gpu/parts.h"

enum { WARPS = 4, THREADS = WARPS * GPU_LANES, KEYS = 16, STEP = 16, MAX_STEPS = 8 };
enum { MAX_TILES = 4 /* of 16 heads */ };

/* The parts of 16 heads and 16 elements as the lanes want them. */
typedef struct query_part {
    uint4 lane[GPU_LANES];
} query_part;

static __device__ inline bool finite4(float4 x)
{
    return fabsf(x.x) < INFINITY && fabsf(x.y) < INFINITY && fabsf(x.z) < INFINITY &&
           fabsf(x.w) < INFINITY;
}

static __device__ inline float4 query4(const select_args &a, int64_t row, int head, int d)
{
    const float *q = a.q.p + row * a.q.stride + (int64_t)head * a.d + d;
    return head < a.heads ? make_float4(q[0], q[1], q[2], q[3]) : make_float4(0, 0, 0, 0);
}

/* Writes the parts of all queries of a row; true when all of them are finite. */
static __device__ bool stage_queries(const select_args &a, int64_t row, int tiles, int steps,
                                     query_part *to)
{
    bool finite = true;
    for (int i = threadIdx.x; i < tiles * steps * GPU_LANES; i += THREADS) {
        int lane = i % GPU_LANES, step = i / GPU_LANES % steps, tile = i / GPU_LANES / steps;
        int head = tile * 16 + lane / 4, d = step * STEP + lane % 4 * 4;
        float4 x = query4(a, row, head, d), y = query4(a, row, head + 8, d);
        parts4 g = parts_of(x), h = parts_of(y);
        finite = finite && finite4(x) && finite4(y);
        for (int p = 0; p < 3; p++)
            to[(tile * steps + step) * 3 + p].lane[lane] =
                make_uint4(g.lo[p], h.lo[p], g.hi[p], h.hi[p]);
    }
    return __syncthreads_and(finite);
}

/* The score of one position by a whole warp, in plain arithmetic. */
static __device__ float plain_score(const select_args &a, int64_t row, const float *key)
{
    float score = 0;
    for (int h = 0; h < a.heads; h++) {
        const float *q = a.q.p + row * a.q.stride + (int64_t)h * a.d;
        float dot = 0;
        for (int d = threadIdx.x % GPU_LANES; d < a.d; d += GPU_LANES)
            dot = fmaf(q[d], key[d], dot);
        dot = lanes_sum(dot);
        score = fmaf(a.scale * a.w.p[row * a.w.stride + h], dot < 0 ? 0 : dot, score);
    }
    return score;
}

/* STEPS: sums of 16 elements in a key; TILES: of 16 heads. */
template <int STEPS, int TILES>
static __global__ void __launch_bounds__(THREADS) score_kernel(select_args a)
{
    extern __shared__ __align__(16) query_part queries[];
    __shared__ float weight[TILES * 16];
    int lane = threadIdx.x % GPU_LANES, warp = threadIdx.x / GPU_LANES, g = lane / 4, t4 = lane % 4;
    int64_t r = blockIdx.y, row = a.row0 + r, n = contest(a, r);
    int64_t first = ((int64_t)blockIdx.x * WARPS + warp) * KEYS;
    if ((int64_t)blockIdx.x * WARPS * KEYS >= n)
        return;
    const gpu_seq seq = a.step.seqs[a.step.row_seq[row]];
    for (int h = threadIdx.x; h < TILES * 16; h += THREADS)
        weight[h] = h < a.heads ? a.scale * a.w.p[row * a.w.stride + h] : 0;
    bool plain = !stage_queries(a, row, TILES, STEPS, queries);
    for (int64_t k0 = first; k0 < n; k0 += (int64_t)gridDim.x * WARPS * KEYS) {
        /* All 16 keys are of one page. */
        const unsigned char *keys = a.base + step_item(a.step, seq, k0) * a.item_bytes;
        float4 x[STEPS][2];
        uint32_t odd[2]; /* lanes that hold something else than finite numbers */
#pragma unroll
        for (int i = 0; i < 2; i++) {
            bool finite = true;
            int key = 8 * i + g;
            const float *from = (const float *)(keys + key * a.item_bytes) + 4 * t4;
            bool is = k0 + key < n;
#pragma unroll
            for (int s = 0; s < STEPS; s++) {
                x[s][i] = is ? *(const float4 *)(from + s * STEP) : make_float4(0, 0, 0, 0);
                finite = finite && finite4(x[s][i]);
            }
            odd[i] = __ballot_sync(0xffffffffu, plain || !finite);
        }
        float dot[TILES][2][4] = {};
#pragma unroll
        for (int s = 0; s < STEPS; s++) {
            parts4 key[2] = {parts_of(x[s][0]), parts_of(x[s][1])};
#pragma unroll
            for (int i = 0; i < TILES; i++) {
                parts4 qg, qh;
#pragma unroll
                for (int p = 0; p < 3; p++) {
                    uint4 q = queries[(i * STEPS + s) * 3 + p].lane[lane];
                    qg.lo[p] = q.x;
                    qh.lo[p] = q.y;
                    qg.hi[p] = q.z;
                    qh.hi[p] = q.w;
                }
                add_products<2>(dot[i], qg, qh, key);
            }
        }
        /* This lane has, of each tile, heads g and g + 8 and keys 2 t and 2 t + 1 of each half. */
#pragma unroll
        for (int half = 0; half < 2; half++) {
#pragma unroll
            for (int c = 0; c < 2; c++) {
                float score = 0;
#pragma unroll
                for (int i = 0; i < TILES; i++) {
                    float u = dot[i][half][c], v = dot[i][half][c + 2];
                    score = fmaf(weight[16 * i + g], u < 0 ? 0 : u, score);
                    score = fmaf(weight[16 * i + g + 8], v < 0 ? 0 : v, score);
                }
                for (int i = 4; i < GPU_LANES; i *= 2)
                    score += __shfl_xor_sync(0xffffffffu, score, i, GPU_LANES);
                int64_t at = k0 + 8 * half + 2 * t4 + c;
                if (g == 0 && at < n)
                    a.score[r * a.context + at] = ordered(score);
            }
        }
        if (odd[0] | odd[1]) {
            __syncwarp();
            for (int i = 0; i < KEYS && k0 + i < n; i++) {
                if (!(odd[i / 8] >> (i % 8 * 4) & 15))
                    continue;
                float s = plain_score(a, row, (const float *)(keys + i * a.item_bytes));
                if (lane == 0)
                    a.score[r * a.context + k0 + i] = ordered(s);
            }
        }
    }
}

template <int STEPS, int TILES> static void score(const select_args &a, gpu_queue *q)
{
    size_t shared = sizeof(query_part) * 3 * STEPS * TILES;
    int64_t pieces = (a.context + WARPS * KEYS - 1) / (WARPS * KEYS);
    dim3 grid(index_blocks(q, pieces, a.rows), (unsigned)a.rows);
    gpu_allow_shared(q, score_kernel<STEPS, TILES>, shared);
    score_kernel<STEPS, TILES><<<grid, THREADS, shared, q->stream>>>(a);
}

template <int STEPS> static void score_heads(const select_args &a, gpu_queue *q)
{
    if (a.heads <= 16)
        score<STEPS, 1>(a, q);
    else if (a.heads <= 32)
        score<STEPS, 2>(a, q);
    else
        score<STEPS, MAX_TILES>(a, q);
}

static void run(const fl_call *call, const fl_step *step, int phase, const fl_worker *worker)
{
    (void)phase;
    gpu_queue *q = (gpu_queue *)worker->queue;
    int64_t most;
    select_args a = index_args_of(call, step, q, worker->shared, &most);
    for (int64_t r = 0; r < step->n_rows; r += most) {
        a.row0 = r;
        a.rows = gpu_min(step->n_rows - r, most);
        index_begin(a, q);
        if (a.context > a.topk) {
            if (a.d == 16)
                score_heads<1>(a, q);
            else if (a.d == 32)
                score_heads<2>(a, q);
            else if (a.d == 64)
                score_heads<4>(a, q);
            else
                score_heads<MAX_STEPS>(a, q);
        }
        index_end(a, q);
    }
}

static bool fits(const fl_node_view *n)
{
    int64_t d = n->in[FL_INDEX_Q]->dim[1];
    return n->in[FL_INDEX_KEYS]->dtype == FL_F32 && n->in[FL_INDEX_Q]->dim[0] <= 16 * MAX_TILES &&
           (d == 16 || d == 32 || d == 64 || d == MAX_STEPS * STEP);
}

static const fl_kernel kernels[] = {{.op = "index_select",
                                     .name = "mma-gpu",
                                     .preference = 2,
                                     .n_phases = 1,
                                     .run = run,
                                     .fits = fits,
                                     .scratch = index_scratch}};
extern const fl_kernel_list gpu_kernels_index_mma = FL_KERNEL_LIST(kernels);
