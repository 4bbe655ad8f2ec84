/* Experts that have one pair, with weights of MXFP4: the decode of a few sequences, where every
 * weight is read for one product.
 *
 * A warp has 16 rows of W1 and of W3 (or 32 of W2) and goes through them, or through a part of the
 * segments of mma.h, chunk by chunk: what it will multiply is copied to shared memory two chunks
 * ahead, each lane bringing what it reads itself, so warps of a block never wait for each other
 * in between.  The vector lies in shared memory too, arranged once for the whole block.  At the end
 * the segments are added in order, as everywhere.
 *
 * The second product starts asking for weights while the first one ends, and waits for hidden
 * values only then; so does the sum over the experts. */
#include "ops/gpu/experts_one.h"
#include "ops/gpu/gate_mma.h"
#include "ops/gpu/mma.h"

enum {
    WARPS = (int)MMA_THREADS / (int)GPU_LANES,
    TILES = 2,
    STAGES = 3,
    HALF = (int)GPU_LANES * 16,                              /* bytes of eight rows of a chunk */
    STAGE = (int)TILES * 2 * (int)HALF + (int)GPU_LANES * 4, /* tiles, then scales */
    MOST_SHARED = 200 << 10
};

typedef struct one_args {
    experts_args a;
    bool direct;  /* every pair for itself; else those of the list of experts that have one */
    bool aligned; /* vectors to 16 bytes */
    int split;    /* warps that share the segments of their tiles */
} one_args;

/* Bytes for an arranged vector, the sums of segments, and the stages. */
static size_t one_shared(int64_t k, int parts, int split)
{
    return (size_t)(arranged_bytes(k, parts) +
                    WARPS / split * (int64_t)TILES * MMA_SEGS * MMA_ROWS * 4 +
                    (int64_t)WARPS * STAGES * STAGE);
}

/* ---- what a block does ---- */

/* What a lane reads of a tile: rows g and g + 8 of it, 16 bytes of each chunk. */
typedef struct one_rows {
    const uint8_t *lo;
    uint32_t hi; /* bytes from row g to row g + 8 */
} one_rows;

static __device__ inline one_rows one_rows_of(const gpu_weight &w, int64_t tensor, int64_t n0)
{
    int g = threadIdx.x % GPU_LANES / 4, t = threadIdx.x % 4;
    int64_t lo = n0 + g < w.n ? n0 + g : w.n - 1, hi = n0 + g + 8 < w.n ? n0 + g + 8 : w.n - 1;
    return {w.data + tensor * w.data_step + lo * w.k / 2 + 16 * t, (uint32_t)((hi - lo) * w.k / 2)};
}

/* The scales that a lane brings: of row lane % 16 of tile lane / 16, four of each chunk. */
static __device__ inline const uint8_t *one_scales_of(const mma_tiles<TILES> &m)
{
    int i = threadIdx.x % GPU_LANES / MMA_ROWS;
    const gpu_weight &w = i ? m.w[1] : m.w[0];
    int64_t n = (i ? m.n0[1] : m.n0[0]) + threadIdx.x % MMA_ROWS;
    return w.scale + m.tensor * w.scale_step + (n < w.n ? n : w.n - 1) * (w.k / FL_MX_GROUP);
}

/* All warps bring a vector: per chunk and part, what the lanes of a group of four read of a unit
 * lies side by side. */
template <int PARTS>
static __device__ inline void one_vector(const float *x, int64_t k, bool aligned, uint16_t *xs)
{
    int lane = threadIdx.x % GPU_LANES, to = (lane % 8 / 2 * 4 + lane / 8) * 8 + lane % 2 * 4;
    for (int c = threadIdx.x / GPU_LANES; c < mma_chunks(k); c += WARPS) {
        uint2 parts[PARTS];
        arrange<FL_MXFP4, PARTS>(vector4(x, (int64_t)c * MMA_CHUNK + 4 * lane, k, aligned), parts);
#pragma unroll
        for (int p = 0; p < PARTS; p++)
            *(uint2 *)(xs + (c * PARTS + p) * MMA_CHUNK + to) = parts[p];
    }
}

/* ---- products ---- */

/* A chunk of the tiles times that of the vector; b keeps what no lane but the first four reads. */
template <int PARTS, bool SMALL>
static __device__ inline void one_chunk(const mma_raw<FL_MXFP4> raw[TILES], const uint16_t *xs,
                                        float acc[TILES][4], uint4 b[PARTS])
{
    int lane = threadIdx.x % GPU_LANES;
#pragma unroll
    for (int unit = 0; unit < MMA_UNITS; unit++) {
#pragma unroll
        for (int p = 0; p < PARTS; p++) {
            if (lane < 4) /* the only vector, of eight that there could be */
                b[p] = *(const uint4 *)(xs + p * MMA_CHUNK + (unit * 4 + lane) * 8);
        }
#pragma unroll
        for (int i = 0; i < TILES; i++) {
            uint32_t w[2][4];
            mma_weights<FL_MXFP4, SMALL>(raw[i], unit, w);
            mma_add<PARTS, 0>(acc[i], w[0], b);
            mma_add<PARTS, 1>(acc[i], w[1], b);
        }
    }
}

/* Sums of the segments [seg, last) go to sums[tile][segment][row]. */
template <int PARTS>
static __device__ inline void one_sums(const mma_tiles<TILES> &m, const float *x, bool aligned,
                                       int seg, int last, uint16_t *xs, unsigned char *stages,
                                       float *sums)
{
    int lane = threadIdx.x % GPU_LANES, g = lane / 4, t = lane % 4;
    int chunks = (int)mma_chunks(m.w[0].k);
    int begin = chunks * seg / MMA_SEGS, end = chunks * last / MMA_SEGS;
    const uint8_t *scales = one_scales_of(m);
    one_rows rows[TILES];
#pragma unroll
    for (int i = 0; i < TILES; i++)
        rows[i] = one_rows_of(m.w[i], m.tensor, m.n0[i]);

    auto ask = [&](int c, int stage) {
        unsigned char *to = stages + stage * STAGE;
#pragma unroll
        for (int i = 0; i < TILES; i++) {
            copy_async_line(to + 2 * i * HALF + lane * 16, rows[i].lo + c * 64);
            copy_async_line(to + (2 * i + 1) * HALF + lane * 16, rows[i].lo + c * 64 + rows[i].hi);
        }
        copy_async4(to + 2 * TILES * HALF + lane * 4, scales + c * 4);
    };
#pragma unroll
    for (int s = 0; s < STAGES - 1; s++) {
        if (begin + s < end)
            ask(begin + s, s);
        copies_commit();
    }
    kernel_before_ended();
    one_vector<PARTS>(x, m.w[0].k, aligned, xs);
    __syncthreads();

    float acc[TILES][4] = {};
    uint4 b[PARTS] = {};
    auto flush = [&](int c) { /* of segments that end before chunk c */
                              for (; seg < last && chunks * (seg + 1) / MMA_SEGS <= c; seg++) {
#pragma unroll
                                  for (int i = 0; i < TILES; i++) {
                                      float *to = sums + (i * MMA_SEGS + seg) * MMA_ROWS + g;
                                      if (t == 0) {
                                          to[0] = acc[i][0];
                                          to[8] = acc[i][2];
                                      }
#pragma unroll
                                      for (int r = 0; r < 4; r++)
                                          acc[i][r] = 0;
                                  }
                              }
    };
    flush(begin);
    for (int c = begin, stage = 0, spare = STAGES - 1; c < end; c++) {
        copies_wait<STAGES - 2>();
        __syncwarp();
        if (c + STAGES - 1 < end)
            ask(c + STAGES - 1, spare);
        copies_commit();
        const unsigned char *from = stages + stage * STAGE;
        mma_raw<FL_MXFP4> raw[TILES];
        uint32_t most = 0;
#pragma unroll
        for (int i = 0; i < TILES; i++) {
            const unsigned char *s = from + 2 * TILES * HALF + i * MMA_ROWS * 4 + lane;
            raw[i].lo = *(const uint4 *)(from + 2 * i * HALF + lane * 16);
            raw[i].hi = *(const uint4 *)(from + (2 * i + 1) * HALF + lane * 16);
            raw[i].s_lo = s[0];
            raw[i].s_hi = s[8 * 4];
            most = max(most, max(raw[i].s_lo, raw[i].s_hi));
        }
        const uint16_t *at = xs + c * PARTS * MMA_CHUNK;
        if (__any_sync(0xffffffffu, most > MMA_SMALL_SCALE))
            one_chunk<PARTS, false>(raw, at, acc, b);
        else
            one_chunk<PARTS, true>(raw, at, acc, b);
        flush(c + 1);
        spare = stage;
        stage = stage + 1 == STAGES ? 0 : stage + 1;
    }
}

/* ---- kernels ---- */

template <int PARTS, bool UP>
static __global__ void __launch_bounds__(MMA_THREADS, PARTS == 1 ? 3 : 2)
    one_kernel(one_args o, fl_expr act)
{
    extern __shared__ __align__(16) unsigned char room[];
    const experts_args &a = o.a;
    kernel_after_may_start();
    int e;
    int32_t pair = single_pair(a, o.direct, &e);
    if (pair < 0)
        return;
    int tasks = WARPS / o.split, warp = threadIdx.x / GPU_LANES, task = warp / o.split;
    int part = warp % o.split, first = (int)blockIdx.x * tasks;
    int64_t n0 = (int64_t)(first + task) * MMA_ROWS * (UP ? 1 : TILES);
    mma_tiles<TILES> m = {{UP ? a.w1 : a.w2, UP ? a.w3 : a.w2}, {n0, UP ? n0 : n0 + MMA_ROWS}, e};
    int64_t k = m.w[0].k, n_rows = m.w[0].n;
    const float *x = UP ? a.z.p + (a.row0 + pair / a.k) * a.z.stride : a.hidden + pair * k;
    float *sums = (float *)(room + arranged_bytes(k, PARTS));
    enum { TASK_SUMS = TILES * MMA_SEGS * MMA_ROWS };
    unsigned char *stages = (unsigned char *)(sums + tasks * TASK_SUMS) + warp * STAGES * STAGE;
    one_sums<PARTS>(m, x, o.aligned, MMA_SEGS * part / o.split, MMA_SEGS * (part + 1) / o.split,
                    (uint16_t *)room, stages, sums + task * TASK_SUMS);
    __syncthreads();

    /* A thread per row of a tile, or of two matrices. */
    int i = threadIdx.x, tile = i / MMA_ROWS;
    if (tile >= tasks * (UP ? 1 : TILES))
        return;
    int64_t n = (int64_t)first * MMA_ROWS * (UP ? 1 : TILES) + i;
    float sum[2] = {0, 0};
    for (int j = 0; j < (UP ? 2 : 1); j++) {
        const float *from = sums + (UP ? 2 * tile + j : tile) * MMA_SEGS * MMA_ROWS + i % MMA_ROWS;
        for (int s = 0; s < MMA_SEGS; s++)
            sum[j] += from[s * MMA_ROWS];
    }
    if (UP && n < n_rows)
        a.hidden[pair * n_rows + n] = gate_run<PARTS>((expert_gate)a.gate, act, sum[0], sum[1]);
    else if (n < n_rows)
        a.down[pair * n_rows + n] = sum[0];
}

static __global__ void one_combine_kernel(experts_args a)
{
    kernel_before_ended();
    combine_element(a);
}

/* ---- launching ---- */

/* early: the kernel may start while the one before it ends. */
template <typename... P>
static void launch(gpu_queue *q, bool early, void (*kernel)(P...), dim3 grid, size_t shared,
                   P... args)
{
    cudaLaunchAttribute start = {};
    start.id = cudaLaunchAttributeProgrammaticStreamSerialization;
    start.val.programmaticStreamSerializationAllowed = 1;
    cudaLaunchConfig_t c = {};
    c.gridDim = grid;
    c.blockDim = dim3(MMA_THREADS);
    c.dynamicSmemBytes = shared;
    c.stream = q->stream;
    c.attrs = &start;
    c.numAttrs = early && q->wgmma; /* where there is Hopper */
    gpu_allow_shared(q, kernel, shared);
    cudaError_t e = cudaLaunchKernelEx(&c, kernel, args...);
    if (q->error == cudaSuccess)
        q->error = e;
}

/* As few warps for a tile as give every processor several blocks: where the second product starts
 * early, these go where there is room, and large ones would end at different times. */
static int split_of(int64_t tasks, int64_t pairs, const gpu_queue *q)
{
    enum { SEVERAL = 4 };
    int split = 1;
    while (split < MMA_SEGS &&
           gpu_blocks(tasks * split, WARPS) * pairs < (int64_t)SEVERAL * q->processors)
        split *= 2;
    return split;
}

template <int PARTS, bool UP>
static void product(one_args o, int64_t pairs, bool early, const fl_expr &act, gpu_queue *q)
{
    const gpu_weight &w = UP ? o.a.w1 : o.a.w2;
    int64_t tasks = gpu_blocks(w.n, MMA_ROWS * (UP ? 1 : TILES));
    o.split = split_of(tasks, pairs, q);
    o.aligned = UP ? gpu_aligned16(o.a.z.p, o.a.z.stride) : gpu_aligned16(o.a.hidden, w.k);
    launch(q, early, one_kernel<PARTS, UP>,
           dim3(gpu_blocks(tasks * o.split, WARPS), (unsigned)pairs),
           one_shared(w.k, PARTS, o.split), o, act);
}

static bool one_weight_fits(const gpu_weight &w, int parts)
{
    return w.k % MMA_CHUNK == 0 && ((uintptr_t)w.data | (uintptr_t)w.data_step) % 16 == 0 &&
           ((uintptr_t)w.scale | (uintptr_t)w.scale_step) % 4 == 0 &&
           one_shared(w.k, parts, 1) <= MOST_SHARED;
}

bool experts_one_fits(const experts_args &a, int parts)
{
    return one_weight_fits(a.w1, parts) && one_weight_fits(a.w3, parts) &&
           one_weight_fits(a.w2, parts);
}

void experts_one(const experts_args &a, int parts, bool up, int64_t experts, const fl_expr &act,
                 gpu_queue *q)
{
    one_args o = {a};
    if (up)
        parts == 1 ? product<1, true>(o, experts, false, act, q)
                   : product<3, true>(o, experts, false, act, q);
    else
        parts == 1 ? product<1, false>(o, experts, false, act, q)
                   : product<3, false>(o, experts, false, act, q);
}

void experts_each_pair(const experts_args &a, int parts, const fl_expr &act, gpu_queue *q)
{
    one_args o = {a, true};
    int64_t pairs = a.rows * a.k;
    if (parts == 1) {
        product<1, true>(o, pairs, false, act, q);
        product<1, false>(o, pairs, true, act, q);
    } else {
        product<3, true>(o, pairs, false, act, q);
        product<3, false>(o, pairs, true, act, q);
    }
    launch(q, true, one_combine_kernel, dim3((unsigned)a.rows, gpu_blocks(a.w2.n, MMA_THREADS)), 0,
           a);
}
