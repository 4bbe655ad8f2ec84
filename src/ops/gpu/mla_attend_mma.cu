/* Attention of mla's expanded form (mla_expand.h): a block takes 128 rows of a head through a
 * window of positions, each of its two warpgroups 64 of them.  Scores are sums in registers, where
 * the softmax runs and from where its weights, as BF16 parts, are multiplied with the values. */
#include "ops/gpu/mla_tiles.h"

enum { MORE = 240, FEWER = 24 /* registers of those who multiply, and of those who bring */ };

template <int PARTS> struct attend_room {
    enum {
        RING = KEY_PLANES * PARTS * GROUPS * (int)TILE, /* after the queries */
        FIT = (MOST_SHARED - RING) / SLOT_BYTES,
        SLOTS = FIT < MOST_SLOTS ? FIT : MOST_SLOTS,
        BYTES = RING + SLOTS * SLOT_BYTES
    };
};

/* How many blocks of the window rows see that are block `mine` of the rows. */
static __device__ inline int sees(const mla_expand &e, int64_t mine)
{
    int64_t n = e.first + mine + 1 - e.block0;
    return n < 0 ? 0 : n < e.blocks ? (int)n : e.blocks;
}

/* Writes the queries of this warp's 16 rows, times `by`, [plane][part][group] tiles. */
template <int PARTS>
static __device__ inline void stage_queries(const mla_expand &e, int head, float by,
                                            unsigned char *queries)
{
    int lane = threadIdx.x % GPU_LANES, warp = threadIdx.x / GPU_LANES, group = warp / 4;
    int64_t row0 = (int64_t)blockIdx.x * GROUPS * SIDE + group * SIDE;
    for (int i = 0; i < 16; i++) {
        int row = warp % 4 * 16 + i;
        const float *q =
            e.a.q.p + (e.a.row0 + row0 + row) * e.a.q.stride + (int64_t)head * (e.a.nope + e.a.pe);
#pragma unroll
        for (int plane = 0; plane < KEY_PLANES; plane++) {
            bool common = plane == KEY_PLANES - 1;
            int c = (common ? 0 : plane * SIDE) + 2 * lane, n = common ? e.a.pe : e.a.nope;
            const float *from = q + (common ? e.a.nope : 0) + c;
            bool is = row0 < e.a.rows;
            uint32_t both[PARTS];
            pair_parts<PARTS>(is && c < n ? from[0] * by : 0, is && c + 1 < n ? from[1] * by : 0,
                              both);
#pragma unroll
            for (int p = 0; p < PARTS; p++)
                *(uint32_t *)(queries + ((plane * PARTS + p) * GROUPS + group) * TILE +
                              tile_at(row, 2 * lane)) = both[p];
        }
    }
    shared_written();
}

/* Scores of 64 rows and 64 positions. */
template <int PARTS, int SLOTS>
static __device__ inline void score_block(const unsigned char *queries, ring<SLOTS> &r,
                                          float score[32])
{
    float less[PARTS > 1 ? 32 : 1];
#pragma unroll
    for (int plane = 0; plane < KEY_PLANES; plane++) {
#pragma unroll
        for (int p = PARTS - 1; p >= 0; p--) {
            r.wait();
            wgmma_begin();
            uint64_t key = wgmma_vectors(r.at());
#pragma unroll
            for (int i = PARTS - 1 - p; i >= 0; i--) {
                uint64_t query = wgmma_vectors(queries + (plane * PARTS + i) * GROUPS * TILE);
#pragma unroll
                for (int step = 0; step < 4; step++) {
                    if (i + p == 0)
                        wgmma_shared<SIDE>(score, query + 2 * step, key + 2 * step,
                                           plane + step > 0);
                    else
                        wgmma_shared<SIDE>(less, query + 2 * step, key + 2 * step,
                                           plane + step + PARTS - 1 - p > 0);
                }
            }
            r.start();
            if (plane + PARTS - 1 - p > 0)
                r.template settle<1, 1>();
        }
    }
    r.template settle<0, 1>();
#pragma unroll
    for (int i = 0; i < 32 && PARTS > 1; i++)
        score[i] += less[i];
}

/* What is known of this lane's two rows of a warp's 16. */
typedef struct softmax {
    float high[2], sum[2];
} softmax;

/* Scores become weights; old: by what is left of the values before. */
static __device__ inline void soften(float score[32], softmax *s, float old[2])
{
#pragma unroll
    for (int i = 0; i < 2; i++) {
        float top = -INFINITY, all = 0;
#pragma unroll
        for (int j = 0; j < 16; j++)
            top = fmaxf(top, score[j / 2 * 4 + 2 * i + j % 2]);
        top = fmaxf(top, __shfl_xor_sync(0xffffffffu, top, 1, GPU_LANES));
        top = fmaxf(top, __shfl_xor_sync(0xffffffffu, top, 2, GPU_LANES));
        float now = fmaxf(s->high[i], top), zero = now == -INFINITY ? 0 : now;
#pragma unroll
        for (int j = 0; j < 16; j++) {
            float *x = &score[j / 2 * 4 + 2 * i + j % 2];
            *x = exp2_fast(*x - zero);
            all += *x;
        }
        all += __shfl_xor_sync(0xffffffffu, all, 1, GPU_LANES);
        all += __shfl_xor_sync(0xffffffffu, all, 2, GPU_LANES);
        old[i] = exp2_fast(s->high[i] - zero);
        s->sum[i] = fmaf(s->sum[i], old[i], all);
        s->high[i] = now;
    }
}

/* value = value * old + the weights times the values of a block. */
template <int PARTS, int SLOTS>
static __device__ inline void add_values(const float weight[32], const float old[2], ring<SLOTS> &r,
                                         float value[VALUE_HALVES][32])
{
    uint32_t w[PARTS][4][4];
    float part[VALUE_HALVES][32];
#pragma unroll
    for (int i = 0; i < 16; i++) {
        uint32_t both[PARTS];
        pair_parts<PARTS>(weight[2 * i], weight[2 * i + 1], both);
#pragma unroll
        for (int p = 0; p < PARTS; p++)
            w[p][i / 4][i % 4] = both[p];
    }
#pragma unroll
    for (int half = 0; half < VALUE_HALVES; half++) {
#pragma unroll
        for (int p = PARTS - 1; p >= 0; p--) {
            r.wait();
            wgmma_begin();
            uint64_t of = wgmma_vectors(r.at());
#pragma unroll
            for (int i = PARTS - 1 - p; i >= 0; i--) {
#pragma unroll
                for (int step = 0; step < 4; step++)
                    wgmma<SIDE>(part[half], w[i][step], of + 2 * step, step + PARTS - 1 - p > 0);
            }
            r.start();
            if (half + PARTS - 1 - p > 0)
                r.template settle<1, 1>();
        }
    }
    r.template settle<0, 1>();
#pragma unroll
    for (int half = 0; half < VALUE_HALVES; half++) {
#pragma unroll
        for (int i = 0; i < 32; i++)
            value[half][i] = fmaf(value[half][i], old[i / 2 % 2], part[half][i]);
    }
}

/* 64 rows of a head against the window. */
template <int PARTS, int SLOTS>
static __device__ inline void attend_rows(const mla_expand &e, int head, int all,
                                          const unsigned char *queries, ring<SLOTS> &r)
{
    enum { TILES = (KEY_PLANES + VALUE_HALVES) * PARTS };
    int group = threadIdx.x / WGMMA_THREADS, lane = threadIdx.x % GPU_LANES;
    int row = threadIdx.x / GPU_LANES % 4 * 16 + lane / 4, c0 = 2 * (lane % 4);
    int64_t mine = (int64_t)blockIdx.x * GROUPS + group, r0 = mine * SIDE + row;
    int n = mine * SIDE < e.a.rows ? sees(e, mine) : 0;
    bool last = e.block0 + n == e.first + mine + 1;
    float *o = e.a.o.p + (e.a.row0 + r0) * e.a.o.stride + (int64_t)head * e.a.dv;
    float2 *run = e.run + r0 * e.a.heads + head;
    const int64_t next_o = 8 * e.a.o.stride, next_run = 8 * (int64_t)e.a.heads;
    float value[VALUE_HALVES][32] = {};
    softmax s = {{-INFINITY, -INFINITY}, {0, 0}};
    if (n > 0 && e.block0 > 0) {
#pragma unroll
        for (int i = 0; i < 2; i++) {
            s.high[i] = run[i * next_run].x;
            s.sum[i] = run[i * next_run].y;
#pragma unroll
            for (int j = 0; j < 32; j++) {
                int c = j / 2 * 8 + c0 + j % 2;
                if (c < e.a.dv)
                    value[j / 16][j % 16 / 2 * 4 + 2 * i + j % 2] = o[i * next_o + c];
            }
        }
    }
    for (int b = 0; b < n; b++) {
        float score[32], old[2];
        score_block<PARTS>(queries + group * TILE, r, score);
        if (last && b == n - 1) { /* each row sees one position more */
#pragma unroll
            for (int j = 0; j < 32; j++)
                score[j] = j / 4 * 8 + c0 + j % 2 > row + j / 2 % 2 * 8 ? -INFINITY : score[j];
        }
        soften(score, &s, old);
        add_values<PARTS>(score, old, r, value);
    }
    r.pass((all - n) * TILES);
#pragma unroll
    for (int i = 0; i < 2 && n > 0; i++) {
        float by = !last ? 1 : s.sum[i] == 0 ? 0 : 1 / s.sum[i];
        if (!last && lane % 4 == 0)
            run[i * next_run] = make_float2(s.high[i], s.sum[i]);
#pragma unroll
        for (int j = 0; j < 32; j++) {
            int c = j / 2 * 8 + c0 + j % 2;
            if (c < e.a.dv)
                o[i * next_o + c] = value[j / 16][j % 16 / 2 * 4 + 2 * i + j % 2] * by;
        }
    }
}

/* Asks for the keys and values of a head, the least parts first. */
template <int PARTS, int SLOTS>
static __device__ inline void bring_keys(const mla_expand &e, int head, int all, ring<SLOTS> &r)
{
    const unsigned char *own = e.own + (int64_t)head * e.blocks * 4 * PARTS * TILE;
    for (int b = 0; b < all && threadIdx.x == MEMBERS; b++, own += 4 * PARTS * TILE) {
        for (int plane = 0; plane < KEY_PLANES + VALUE_HALVES; plane++) {
            const unsigned char *from = plane == KEY_PLANES - 1
                                            ? e.pe + (int64_t)b * PARTS * TILE
                                            : own + (plane - (plane >= KEY_PLANES)) * PARTS * TILE;
            for (int p = PARTS - 1; p >= 0; p--)
                r.bring(from + p * TILE);
        }
    }
}

/* Grid: 128 rows, heads. */
template <int PARTS>
static __global__ void __launch_bounds__(THREADS, 1) attend_kernel(mla_expand e)
{
    typedef attend_room<PARTS> in;
    extern __shared__ __align__(1024) unsigned char room[];
    ring<in::SLOTS> r = {room + in::RING, 0, 0, 0};
    int head = blockIdx.y;
    int64_t last = (int64_t)blockIdx.x * GROUPS + GROUPS - 1, blocks = e.a.rows / SIDE;
    int all = sees(e, last < blocks ? last : blocks - 1);
    if (all == 0)
        return;
    if (threadIdx.x == 0)
        r.make();
    if (threadIdx.x < MEMBERS) /* of the exponential, whose base is 2 */
        stage_queries<PARTS>(e, head, e.a.scale * 1.44269504f, room);
    __syncthreads();
    if (threadIdx.x < MEMBERS) {
        more_registers<MORE>();
        attend_rows<PARTS>(e, head, all, room, r);
    } else {
        fewer_registers<FEWER>();
        bring_keys<PARTS>(e, head, all, r);
    }
}

/* ---- launching ---- */

template <int PARTS> static void attend(const mla_expand &e, gpu_queue *q)
{
    const int shared = attend_room<PARTS>::BYTES;
    dim3 grid(gpu_blocks(e.a.rows, GROUPS * SIDE), (unsigned)e.a.heads);
    gpu_allow_shared(q, attend_kernel<PARTS>, shared);
    attend_kernel<PARTS><<<grid, THREADS, shared, q->stream>>>(e);
}

void mla_expand_attend(const mla_expand &e, int parts, gpu_queue *q)
{
    parts == 1 ? attend<1>(e, q) : attend<3>(e, q);
}
