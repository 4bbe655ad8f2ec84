/* Scores of index_select for many rows on wgmma (index_many.h).
 *
 * A block holds 192 keys as tiles of BF16 parts and goes through the rows, whose queries come as
 * tiles: 64 heads of one row, or 32 of each of two.  Sums are those of index_mma.cu, bit by bit:
 * the elements that are summed together stand in the places that its lanes have them in, and these
 * sums are added to a float32 in the same order. */
#include "ops/gpu/index_many.h"

#include "ops/gpu/tiles.h"

enum { PLANES = 2, PARTS = 3, SCORERS = 3 /* warpgroups, 64 keys each */ };
enum { HELD = (int)SCORERS * (int)SIDE, SCORING = (int)SCORERS * (int)WGMMA_THREADS };
enum { ALL_THREADS = (int)SCORING + (int)WGMMA_THREADS /* a warp of them brings */ };
enum { MORE = 160, FEWER = 24 /* registers of those who multiply, and of those who bring */ };

/* F: format of the keys; COLS: of 8 heads. */
template <int F, int COLS> struct many {
    enum {
        KEY_PARTS = F == FL_F32 ? 3 : 1,
        TOGETHER = 8 / COLS,                        /* rows of a tile of queries */
        SUMS = F == FL_F32 ? 4 : 2,                 /* of a plane */
        STEPS = 4 / (int)SUMS,                      /* of 16 elements in one */
        RING = PLANES * KEY_PARTS * SCORERS * TILE, /* after the keys */
        FIT = (MOST_SHARED - RING) / SLOT_BYTES,
        SLOTS = FIT < MOST_SLOTS ? FIT : MOST_SLOTS,
        BYTES = RING + SLOTS * SLOT_BYTES
    };
};

/* Elements 4 i to 4 i + 3 of a vector go to their places in row `row` of its tiles. */
template <int F, int N>
static __device__ inline void put_four(unsigned char *tiles, int plane_bytes, int part_bytes,
                                       int row, int i, const float x[4])
{
    uint32_t lo[N], hi[N];
    int in = 4 * i % SIDE;
    int at =
        F == FL_F32 ? in / 16 * 16 + in % 16 / 2 : in / 32 * 32 + in % 8 / 4 * 16 + in % 32 / 8 * 2;
    pair_parts<N>(x[0], x[1], lo);
    pair_parts<N>(x[2], x[3], hi);
#pragma unroll
    for (int p = 0; p < N; p++) {
        unsigned char *tile = tiles + 4 * i / SIDE * plane_bytes + p * part_bytes;
        *(uint32_t *)(tile + tile_at(row, at)) = lo[p];
        *(uint32_t *)(tile + tile_at(row, at + 8)) = hi[p];
    }
}

/* ---- queries ---- */

enum { QUERY_TILES = PLANES * PARTS };

static __host__ __device__ inline unsigned char *queries_of(const select_args &a, int64_t group)
{
    return (unsigned char *)a.room + group * QUERY_TILES * TILE;
}

/* The weights of a row's heads lie behind all queries. */
static __host__ __device__ inline float *weights_of(const select_args &a, int64_t r)
{
    return a.room + a.rows * ((int)INDEX_ROOM - (int)SIDE) + r * SIDE;
}

/* A block per row; the rows of a group share tiles. */
template <int F, int COLS>
static __global__ void __launch_bounds__(SELECT_THREADS) lay_kernel(select_args a)
{
    typedef many<F, COLS> how;
    int64_t r = blockIdx.x, row = a.row0 + r;
    int lane = threadIdx.x % GPU_LANES;
    for (int h = threadIdx.x / GPU_LANES; h < 8 * COLS; h += SELECT_THREADS / GPU_LANES) {
        const float *q = a.q.p + row * a.q.stride + (int64_t)h * a.d;
        float x[4];
#pragma unroll
        for (int j = 0; j < 4; j++)
            x[j] = h < a.heads && 4 * lane + j < a.d ? q[4 * lane + j] : 0;
        put_four<F, PARTS>(queries_of(a, r / how::TOGETHER), PARTS * TILE, TILE,
                           (int)(r % how::TOGETHER) * 8 * COLS + h, lane, x);
        if (lane == 0)
            weights_of(a, r)[h] = h < a.heads ? a.scale * a.w.p[row * a.w.stride + h] : 0;
    }
}

/* ---- scores ---- */

/* Writes the tiles of this warp's 16 keys; those from n on are zero. */
template <int F, int COLS>
static __device__ inline void stage_keys(const select_args &a, const gpu_seq &seq, int64_t k0,
                                         int64_t n, unsigned char *tiles)
{
    typedef many<F, COLS> how;
    int lane = threadIdx.x % GPU_LANES, warp = threadIdx.x / GPU_LANES;
    for (int i = 0; i < 16; i++) {
        int64_t at = k0 + warp * 16 + i;
        float x[4] = {};
        if (at < n) {
            const unsigned char *key = a.base + step_item(a.step, seq, at) * a.item_bytes;
#pragma unroll
            for (int j = 0; j < 4; j++)
                x[j] = 4 * lane + j < a.d ? cache_code<F>(key, 4 * lane + j) : 0;
        }
        put_four<F, how::KEY_PARTS>(tiles + warp / 4 * TILE, how::KEY_PARTS * SCORERS * TILE,
                                    SCORERS * TILE, warp % 4 * 16 + i, lane, x);
    }
    shared_written();
}

/* Starts one of the sums of a plane. */
template <int F, int COLS>
static __device__ inline void start_sum(float sum[32], uint64_t key, const uint64_t query[PARTS],
                                        int which)
{
    typedef many<F, COLS> how;
    bool more = false;
    wgmma_begin();
#pragma unroll
    for (int s = 0; s < how::STEPS; s++) {
        int at = 2 * (which * how::STEPS + s);
#pragma unroll
        for (int order = PARTS - 1; order >= 0; order--) { /* the least products first */
#pragma unroll
            for (int k = 0; k <= order && k < how::KEY_PARTS; k++) {
                wgmma_shared<SIDE>(sum, key + k * (SCORERS * TILE >> 4) + at, query[order - k] + at,
                                   more);
                more = true;
            }
        }
    }
    wgmma_commit();
}

/* How many keys each row of a group sees; false: none of this block, which begins at k0. */
template <int TOGETHER>
static __device__ inline bool group_sees(const select_args &a, int64_t group, int64_t k0,
                                         int64_t n[TOGETHER])
{
    bool any = false;
#pragma unroll
    for (int i = 0; i < TOGETHER; i++) {
        int64_t r = group * TOGETHER + i;
        n[i] = r < a.rows ? contest(a, r) : 0;
        any = any || n[i] > k0;
    }
    return any;
}

/* The scores of row r, which sees n keys, and this warp's 16 keys from k0 on; dot: the columns of
 * the row; weight: of this lane's heads. */
template <int F, int COLS>
static __device__ inline void write_scores(const select_args &a, const gpu_seq &seq, int64_t r,
                                           int64_t n, int64_t k0, const float dot[4 * COLS],
                                           const float2 weight[COLS])
{
    int lane = threadIdx.x % GPU_LANES, g = lane / 4, t4 = lane % 4;
    if (k0 >= n)
        return;
    uint32_t *scores = a.score + r * a.pieces * PIECE;
    float score[2] = {}, trace[2] = {};
#pragma unroll
    for (int i = 0; i < COLS; i++) {
        float2 by = weight[i];
#pragma unroll
        for (int j = 0; j < 2; j++) {
#pragma unroll
            for (int c = 0; c < 2; c++) {
                float u = dot[4 * i + 2 * j + c];
                score[j] = fmaf(c ? by.y : by.x, u < 0 ? 0 : u, score[j]);
                trace[j] = fmaf(u, 0, trace[j]); /* NaN when one of them is not finite */
            }
        }
    }
#pragma unroll
    for (int j = 0; j < 2; j++) {
        int64_t at = k0 + 8 * j + g;
        for (int i = 1; i < 4; i *= 2)
            score[j] += __shfl_xor_sync(0xffffffffu, score[j], i, GPU_LANES);
        uint32_t odd = __ballot_sync(0xffffffffu, trace[j] != 0);
        if (t4 == 0 && at < n && !(odd >> (4 * g) & 15))
            scores[at] = ordered(score[j]);
        for (int i = 0; i < 8 && odd; i++) {
            at = k0 + 8 * j + i;
            if (at >= n || !(odd >> (4 * i) & 15))
                continue;
            const unsigned char *key = a.base + step_item(a.step, seq, at) * a.item_bytes;
            uint32_t y = ordered(plain_score<F>(a, a.row0 + r, key));
            if (lane == 0)
                scores[at] = y;
        }
    }
}

/* Those who multiply: warpgroup `group` has 64 of the keys. */
template <int F, int COLS, int SLOTS>
static __device__ inline void score_groups(const select_args &a, const gpu_seq &seq, int64_t k0,
                                           int64_t begin, int64_t end, const unsigned char *keys,
                                           ring<SLOTS> &r)
{
    typedef many<F, COLS> how;
    int group = threadIdx.x / WGMMA_THREADS, warp = threadIdx.x / GPU_LANES, t4 = threadIdx.x % 4;
    for (int64_t i = begin; i < end; i++) {
        float dot[32] = {}, sum[2][32];
        float2 weight[how::TOGETHER][COLS];
        int64_t n[how::TOGETHER];
        if (!group_sees<how::TOGETHER>(a, i, k0, n))
            continue;
#pragma unroll
        for (int t = 0; t < how::TOGETHER; t++) {
            int64_t row = min(i * how::TOGETHER + t, a.rows - 1);
#pragma unroll
            for (int j = 0; j < COLS; j++)
                weight[t][j] = *(const float2 *)&weights_of(a, row)[8 * j + 2 * t4];
        }
        for (int plane = 0; plane < PLANES; plane++) {
            uint64_t query[PARTS];
            uint64_t key = wgmma_vectors(keys + (plane * how::KEY_PARTS * SCORERS + group) * TILE);
#pragma unroll
            for (int p = 0; p < PARTS; p++) {
                r.wait();
                query[p] = wgmma_vectors(r.at());
                r.next();
            }
            start_sum<F, COLS>(sum[0], key, query, 0);
#pragma unroll
            for (int s = 0; s < how::SUMS; s++) {
                if (s + 1 < how::SUMS) {
                    start_sum<F, COLS>(sum[(s + 1) % 2], key, query, s + 1);
                    wgmma_wait<1>();
                } else {
                    r.template settle<0, PARTS>();
                }
#pragma unroll
                for (int j = 0; j < 32; j++)
                    dot[j] += sum[s % 2][j];
            }
        }
#pragma unroll
        for (int t = 0; t < how::TOGETHER; t++)
            write_scores<F, COLS>(a, seq, i * how::TOGETHER + t, n[t], k0 + warp * 16,
                                  dot + 4 * COLS * t, weight[t]);
    }
}

/* Grid: HELD keys, shares of the rows. */
template <int F, int COLS>
static __global__ void __launch_bounds__(ALL_THREADS, 1) score_kernel(select_args a, int64_t n_keys)
{
    typedef many<F, COLS> how;
    extern __shared__ __align__(1024) unsigned char room[];
    ring<how::SLOTS> r = {room + how::RING, 0, 0, 0};
    const gpu_seq seq = a.step.seqs[a.step.row_seq[a.row0]];
    int64_t k0 = (int64_t)blockIdx.x * HELD, groups = (a.rows + how::TOGETHER - 1) / how::TOGETHER;
    int64_t begin = groups * blockIdx.y / gridDim.y, end = groups * (blockIdx.y + 1) / gridDim.y;
    if (threadIdx.x == 0)
        r.make(SCORING / (int)GPU_LANES);
    if (threadIdx.x < SCORING)
        stage_keys<F, COLS>(a, seq, k0, n_keys, room);
    __syncthreads();
    if (threadIdx.x < SCORING) {
        more_registers<MORE>();
        score_groups<F, COLS>(a, seq, k0, begin, end, room, r);
    } else {
        fewer_registers<FEWER>();
        int64_t n[how::TOGETHER];
        for (int64_t i = begin; i < end && threadIdx.x == SCORING; i++) {
            if (!group_sees<how::TOGETHER>(a, i, k0, n))
                continue;
            for (int tile = 0; tile < QUERY_TILES; tile++)
                r.bring(queries_of(a, i) + tile * TILE);
        }
    }
}

/* ---- launching ---- */

template <int F, int COLS> static void score(const select_args &a, int64_t n_keys, gpu_queue *q)
{
    typedef many<F, COLS> how;
    unsigned blocks = gpu_blocks(n_keys, HELD), groups = gpu_blocks(a.rows, how::TOGETHER);
    unsigned shares = gpu_blocks(3 * q->processors, blocks); /* of the rows: to fill the chip */
    lay_kernel<F, COLS><<<(unsigned)a.rows, SELECT_THREADS, 0, q->stream>>>(a);
    gpu_allow_shared(q, score_kernel<F, COLS>, how::BYTES);
    score_kernel<F, COLS>
        <<<dim3(blocks, (unsigned)gpu_min(shares, groups)), ALL_THREADS, how::BYTES, q->stream>>>(
            a, n_keys);
}

void index_many_score(const select_args &a, fl_dtype keys, int64_t n_keys, gpu_queue *q)
{
    if (keys == FL_F32)
        a.heads <= 32 ? score<FL_F32, 4>(a, n_keys, q) : score<FL_F32, 8>(a, n_keys, q);
    else
        a.heads <= 32 ? score<FL_BF16, 4>(a, n_keys, q) : score<FL_BF16, 8>(a, n_keys, q);
    gpu_launched(q);
}
