/* The expanded form of mla on wgmma (mla_expand.h), in three steps for each window of positions:
 *
 *   lay      cached rows become tiles of BF16 parts
 *   expand   these times the rows of kv_b: keys and, transposed, values of every head
 *   attend   128 rows of a head against the window, 64 positions at a time (mla_attend_mma.cu)
 *
 * In `expand` a block keeps the rows of kv_b that make the keys or the values of a head, and goes
 * through its share of the window.  Its two warpgroups take 64 positions each in turn, with a ring
 * of their own: while one writes what it made, the other multiplies. */
#include "ops/gpu/mla_tiles.h"

/* ---- lay ---- */

enum { LAY_THREADS = 256 };

/* F: format of the cache, whose numbers become CACHED parts; a block does one plane. */
template <int F, int CACHED, int PARTS>
static __global__ void __launch_bounds__(LAY_THREADS) lay_kernel(mla_expand e)
{
    int plane = blockIdx.y, c = 2 * (int)(threadIdx.x % GPU_LANES);
    const gpu_seq seq = e.a.step.seqs[e.seq];
    int64_t item = step_item(e.a.step, seq, (e.block0 + blockIdx.x) * SIDE);
    bool latent = plane < e.planes;
    int from = latent ? plane * SIDE : e.a.latent, end = e.a.latent + (latent ? 0 : e.a.pe);
    unsigned char *tile = latent
                              ? e.latents + ((int64_t)blockIdx.x * e.planes + plane) * CACHED * TILE
                              : e.pe + (int64_t)blockIdx.x * PARTS * TILE;
    for (int i = threadIdx.x / GPU_LANES; i < SIDE; i += LAY_THREADS / GPU_LANES) {
        const unsigned char *row = e.a.base + (item + i) * e.a.item_bytes;
        float x = from + c < end ? cache_at<F>(row, e.a.scales_at, from + c) : 0;
        float y = from + c + 1 < end ? cache_at<F>(row, e.a.scales_at, from + c + 1) : 0;
        if (latent)
            put_pair<CACHED>(tile, tile_at(i, c), x, y);
        else
            put_pair<PARTS>(tile, tile_at(i, c), x, y);
    }
}

/* ---- expand ---- */

template <int PARTS> struct expand_room {
    enum {
        PLANE = 2 * (int)TILE, /* of weights */
        OUT = (int)EXPAND_LATENT / (int)SIDE * (int)PLANE,
        OUTS = PARTS > 1 ? 2 : 1, /* tiles of a warpgroup on their way to memory */
        OUT_BYTES = OUTS * (int)TILE,
        RINGS = OUT + GROUPS * OUT_BYTES,
        FIT = (MOST_SHARED - RINGS) / (GROUPS * SLOT_BYTES),
        SLOTS = FIT < MOST_SLOTS ? FIT : MOST_SLOTS,
        RING_BYTES = (SLOTS * SLOT_BYTES + 1023) / 1024 * 1024,
        BYTES = RINGS + GROUPS * RING_BYTES
    };
};

/* Brings the weights of keys or values of a head; zero where there are none. */
static __device__ inline void bring_weights(const mla_expand &e, int head, int kind,
                                            unsigned char *to)
{
    enum { ROWS = GROUPS * SIDE };
    int n = kind ? e.a.dv : e.a.nope;
    const uint16_t *from =
        (const uint16_t *)e.a.kv_b.data +
        ((int64_t)head * (e.a.nope + e.a.dv) + (kind ? e.a.nope : 0)) * e.a.latent;
    for (int i = threadIdx.x; i < e.planes * ROWS * 8; i += THREADS) {
        int piece = i % 8, row = i / 8 % ROWS, plane = i / (8 * ROWS), k = plane * SIDE + piece * 8;
        bool is = row < n && k < e.a.latent;
        copy_or_zero(to + plane * ROWS * WGMMA_ROW_BYTES + tile_at(row, piece * 8),
                     from + (is ? (int64_t)row * e.a.latent + k : 0), is);
    }
    copies_commit();
    copies_wait<0>();
    shared_written();
}

/* Blocks of the window that a block of the grid expands. */
static __device__ inline void expand_share(const mla_expand &e, int *begin, int *end)
{
    *begin = (int)(e.blocks * blockIdx.x / gridDim.x);
    *end = (int)(e.blocks * (blockIdx.x + 1) / gridDim.x);
}

/* 64 positions by the 128 elements of a head's keys or values. */
template <int CACHED, int PARTS, int SLOTS>
static __device__ inline void expand_block(const mla_expand &e, const unsigned char *weights,
                                           ring<SLOTS> &r, float acc[64])
{
    enum { EXACT = PARTS > 1 };
    float part[EXACT ? 64 : 1];
#pragma unroll
    for (int i = 0; i < 64; i++)
        acc[i] = 0;
    for (int plane = 0; plane < e.planes; plane++) {
        uint64_t w = wgmma_vectors(weights + plane * expand_room<PARTS>::PLANE);
#pragma unroll
        for (int p = CACHED - 1; p >= 0; p--) {
            r.wait();
            wgmma_begin();
            uint64_t x = wgmma_vectors(r.at());
#pragma unroll
            for (int step = 0; step < 4; step++) {
                if constexpr (EXACT)
                    wgmma_shared<2 * SIDE>(part, x + 2 * step, w + 2 * step,
                                           p < CACHED - 1 || step > 0);
                else
                    wgmma_shared<2 * SIDE>(acc, x + 2 * step, w + 2 * step, 1);
            }
            r.start();
            if (!EXACT && plane > 0)
                r.template settle<1, 1>();
        }
        if constexpr (EXACT) {
            r.template settle<0, CACHED>();
#pragma unroll
            for (int i = 0; i < 64; i++)
                acc[i] += part[i];
        }
    }
    if (!EXACT)
        r.template settle<0, 1>();
}

/* Of what a warpgroup made, half of the elements, as they are left: the next part becomes a tile,
 * of keys as it is, of values transposed. */
template <bool MORE_PARTS>
static __device__ inline void put_part(float left[32], bool transposed, unsigned char *tile)
{
    int lane = threadIdx.x % GPU_LANES, warp = threadIdx.x / GPU_LANES % 4;
    uint32_t pair[16];
#pragma unroll
    for (int i = 0; i < 16; i++) {
        float &x = left[2 * i], &y = left[2 * i + 1];
        if constexpr (MORE_PARTS) {
            uint32_t a = __float_as_uint(x), b = __float_as_uint(y);
            pair[i] = __byte_perm(a, b, 0x7632);
            x -= __uint_as_float(a & 0xffff0000);
            y -= __uint_as_float(b & 0xffff0000);
        } else {
            pair_parts<1>(x, y, &pair[i]);
        }
    }
    if (transposed) { /* matrices of 8 by 8: two of elements, for each two of positions */
#pragma unroll
        for (int j = 0; j < 4; j++)
            store_transposed(
                tile + tile_at(16 * j + lane / 16 * 8 + lane % 8, warp * 16 + lane / 8 % 2 * 8),
                &pair[4 * j]);
        return;
    }
#pragma unroll
    for (int i = 0; i < 16; i++)
        *(uint32_t *)(tile + tile_at(warp * 16 + lane / 4 + i % 2 * 8,
                                     i / 2 * 8 + 2 * (lane % 4))) = pair[i];
}

/* Grid: shares of the window, keys or values, heads. */
template <int CACHED, int PARTS>
static __global__ void __launch_bounds__(THREADS, 1) expand_kernel(mla_expand e)
{
    typedef expand_room<PARTS> in;
    extern __shared__ __align__(1024) unsigned char room[];
    int kind = blockIdx.y, head = blockIdx.z, begin, end;
    expand_share(e, &begin, &end);
    /* The third warpgroup has a warp for each ring. */
    bool brings = threadIdx.x >= MEMBERS;
    int group = brings ? (threadIdx.x - MEMBERS) / GPU_LANES : threadIdx.x / WGMMA_THREADS;
    ring<in::SLOTS> r = {room + in::RINGS + group % GROUPS * in::RING_BYTES, 0, 0, 0};
    if (threadIdx.x % WGMMA_THREADS == 0 && !brings)
        r.make(WGMMA_THREADS / GPU_LANES);
    bring_weights(e, head, kind, room);
    __syncthreads();
    if (brings) {
        bool asks = group < GROUPS && threadIdx.x % GPU_LANES == 0;
        for (int b = begin + group; b < end && asks; b += GROUPS) {
            for (int i = 0; i < e.planes * CACHED; i++)
                r.bring(e.latents +
                        (((int64_t)b * e.planes + i / CACHED) * CACHED + CACHED - 1 - i % CACHED) *
                            TILE);
        }
        return;
    }
    bool leader = threadIdx.x % WGMMA_THREADS == 0;
    unsigned char *out = room + in::OUT + group * in::OUT_BYTES;
    for (int b = begin + group; b < end; b += GROUPS) {
        float acc[64];
        expand_block<CACHED, PARTS>(e, room, r, acc);
        unsigned char *to = e.own + (((int64_t)head * e.blocks + b) * 4 + kind * 2) * PARTS * TILE;
#pragma unroll
        for (int i = 0; i < 2 * PARTS; i++) { /* the parts of the first half, then of the second */
            unsigned char *tile = out + i % in::OUTS * TILE;
            if (leader)
                bulk_stores_read<in::OUTS - 1>();
            warps_meet(1 + group, WGMMA_THREADS);
            put_part<(PARTS > 1)>(acc + i / PARTS * 32, kind, tile);
            shared_written();
            warps_meet(1 + group, WGMMA_THREADS);
            if (leader)
                bulk_store(to + i * TILE, tile, TILE);
        }
    }
    if (leader)
        bulk_stores_done();
}

/* ---- launching ---- */

enum { EXPAND_SHARES = 2 /* of a window: fewer wait for the last when it is divided */ };

template <int F, int CACHED, int PARTS> static void window(const mla_expand &e, gpu_queue *q)
{
    unsigned blocks = (unsigned)e.blocks, heads = (unsigned)e.a.heads;
    lay_kernel<F, CACHED, PARTS>
        <<<dim3(blocks, (unsigned)e.planes + 1), LAY_THREADS, 0, q->stream>>>(e);
    const int expand = expand_room<PARTS>::BYTES;
    gpu_allow_shared(q, expand_kernel<CACHED, PARTS>, expand);
    expand_kernel<CACHED, PARTS>
        <<<dim3((unsigned)gpu_min(blocks, EXPAND_SHARES), 2, heads), THREADS, expand, q->stream>>>(
            e);
    mla_expand_attend(e, PARTS, q);
    gpu_launched(q);
}

template <int F> static void window_of(const mla_expand &e, int parts, gpu_queue *q)
{
    enum { CACHED = F == FL_BF16 || F == FL_F8_E4M3 ? 1 : 3 };
    if (parts == 1)
        window<F, 1, 1>(e, q);
    else
        window<F, CACHED, 3>(e, q);
}

void mla_expand_rows(const mla_args &a, fl_dtype cache, int parts, int seq, int64_t first,
                     void *scratch, gpu_queue *q)
{
    int cached = mla_expand_cached_parts(cache, parts);
    int64_t all = first + a.rows / SIDE;
    int64_t most =
        mla_expand_window(a.heads, a.latent, cached, parts, (q->max_context + SIDE - 1) / SIDE);
    int64_t windows = (all + most - 1) / most, each = (all + windows - 1) / windows;
    mla_expand e = {};
    e.a = a;
    e.seq = seq;
    e.first = first;
    e.planes = (int)mla_expand_planes(a.latent);
    e.run = (float2 *)scratch;
    e.latents = (unsigned char *)scratch + mla_expand_run_bytes(a.heads, a.rows);
    e.pe = e.latents + each * e.planes * cached * TILE;
    e.own = e.pe + each * parts * TILE;
    for (e.block0 = 0; e.block0 < all; e.block0 += each) {
        e.blocks = (int)gpu_min(each, all - e.block0);
        GPU_FOR_CACHE(cache, window_of<F>(e, parts, q));
    }
}
