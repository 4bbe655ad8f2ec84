/* The kernels of panel.h, which a file per format of weights compiles (panel_bf16_mma.cu,
 * panel_mxfp4_mma.cu): side by side they take half as long.
 *
 * A block stays on its processor and goes through tiles of 128 rows of weights (64 rows of two
 * matrices for gate and up) and a run of vectors.  Two warpgroups hold 64 of the rows each: they
 * read weights from memory, expand them in registers and multiply them with the vectors of a stage.
 * A third one has a warp that asks for the stages; its other warps apply the activation to finished
 * sums while the next tile is multiplied. */
#ifndef FL_OPS_GPU_PANEL_MMA_H
#define FL_OPS_GPU_PANEL_MMA_H

#include "ops/gpu/panel.h"
#include "ops/gpu/wgmma.h"

enum {
    PANEL_THREADS = 3 * (int)WGMMA_THREADS,
    PANEL_SLABS = 8,   /* of 16 rows, one for each warp that multiplies */
    PANEL_HELPERS = 3, /* warps that apply the activation */
    PANEL_MORE = 224,
    PANEL_FEWER = 56, /* registers of a thread that multiplies, and of one that helps */
    PANEL_SHARED = 226 << 10
};

/* Shared memory for runs of up to N vectors in so many parts.  UP: gate and up become the
 * activation's result. */
template <bool UP, int N, int PARTS> struct panel_room {
    enum {
        PART = N * (int)WGMMA_ROW_BYTES, /* of a stage */
        STAGE = PARTS * PART,
        EIGHTS = (N / 8 + 3) / 4 * 4, /* of vectors, in fours */
        SUMS = UP ? PANEL_SLABS * EIGHTS * (int)GPU_LANES * 16 : 0,
        PLANE = UP ? EIGHTS * 8 * (int)WGMMA_ROW_BYTES : 0, /* of the hidden panel, a part */
        MOST = (PANEL_SHARED - SUMS - PARTS * PLANE - 512) / STAGE,
        STAGES = MOST < 12 ? MOST : 12,
        BARRIERS = STAGES * STAGE + SUMS + PARTS * PLANE,
        BYTES = BARRIERS + (2 * STAGES + 2) * 8
    };
};

/* ---- weights ---- */

/* Where a lane reads: rows lo and hi of its slab's fragments. */
typedef struct panel_rows {
    const uint8_t *lo, *hi, *s_lo, *s_hi;
    int64_t k;
} panel_rows;

template <int T> static __device__ inline int64_t panel_row_bytes(int64_t elements)
{
    return T == FL_MXFP4 ? elements / 2 : elements * 2;
}

template <int T>
static __device__ inline panel_rows panel_rows_of(const gpu_weight w[2], int64_t tensor, int64_t lo,
                                                  int64_t hi)
{
    int t = threadIdx.x % 4;
    panel_rows r = {};
    lo = lo < w[0].n ? lo : w[0].n - 1;
    hi = hi < w[1].n ? hi : w[1].n - 1;
    r.k = w[0].k;
    r.lo = w[0].data + tensor * w[0].data_step + panel_row_bytes<T>(lo * r.k) + 16 * t;
    r.hi = w[1].data + tensor * w[1].data_step + panel_row_bytes<T>(hi * r.k) + 16 * t;
    if (T == FL_MXFP4) {
        r.s_lo = w[0].scale + tensor * w[0].scale_step + lo * r.k / FL_MX_GROUP + t;
        r.s_hi = w[1].scale + tensor * w[1].scale_step + hi * r.k / FL_MX_GROUP + t;
    }
    return r;
}

static __device__ inline uint4 load_ahead(const uint8_t *p)
{
    uint4 v = {};
    WGMMA_ASM("ld.global.nc.L1::no_allocate.L2::256B.v4.u32 {%0, %1, %2, %3}, [%4];"
              : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
              : "l"(p));
    return v;
}

/* mma_load from a place that is known. */
template <int T>
static __device__ inline mma_raw<T> panel_load(const panel_rows &r, int chunk, int unit)
{
    int t = threadIdx.x % 4;
    mma_raw<T> raw = {};
    if ((int64_t)chunk * MMA_CHUNK + (T == FL_MXFP4 ? 32 * t : 32 * unit + 8 * t) >= r.k)
        return raw;
    int64_t at = T == FL_MXFP4 ? chunk * 64 : chunk * 256 + unit * 64;
    raw.lo = load_ahead(r.lo + at);
    raw.hi = load_ahead(r.hi + at);
    if (T == FL_MXFP4) {
        raw.s_lo = __ldg(r.s_lo + chunk * 4);
        raw.s_hi = __ldg(r.s_hi + chunk * 4);
    }
    return raw;
}

/* The row of W1 and W3 whose result is element q of piece `slab` of plane `plane` of the hidden
 * panel. */
template <int T> static __device__ inline int64_t panel_element(int plane, int slab, int q)
{
    int c = plane % 2 * 8 + slab;
    int in = T == FL_MXFP4 ? 32 * (q / 2) + 8 * (c / 4) + c % 4 + 4 * (q % 2)
                           : 32 * (c / 4) + 8 * (q / 2) + 2 * (c % 4) + q % 2;
    return (int64_t)(plane / 2) * MMA_CHUNK + in;
}

/* ---- the division of work ---- */

typedef struct panel_work {
    gpu_run run;
    int row_tile;
} panel_work;

/* The i-th tile; false: there are fewer. */
template <bool UP>
static __device__ inline bool panel_work_at(const panel_args &a, int i, panel_work *w)
{
    int64_t count = *a.count - a.row0;
    int n = (int)(count < a.most ? count : a.most);
    int runs = a.runs ? *a.n_runs : (n + a.width - 1) / a.width;
    int tiles = UP ? (int)mma_chunks(a.w[0].n) * 2 /* planes of the hidden panel */
                   : (int)((a.w[0].n + 2 * WGMMA_ROWS - 1) / (2 * WGMMA_ROWS));
    if (i >= runs * tiles)
        return false;
    int per = a.group * tiles, group = i / per, in = i % per;
    int left = runs - group * a.group, here = left < a.group ? left : a.group;
    int run = group * a.group + in % here;
    w->row_tile = in / here;
    if (a.runs) {
        w->run = a.runs[run];
    } else {
        w->run.tensor = 0;
        w->run.first = run * a.width;
        w->run.n = n - run * a.width < a.width ? n - run * a.width : a.width;
    }
    return true;
}

/* ---- roles ---- */

/* Stages in shared memory and the barriers that say which are full and which are free. */
template <bool UP, int N, int PARTS> struct panel_pipe {
    typedef panel_room<UP, N, PARTS> in;
    enum { STAGES = in::STAGES };
    unsigned char *room;
    int stage;
    uint32_t parity;

    __device__ uint64_t *full(int s) const { return (uint64_t *)(room + in::BARRIERS) + s; }
    __device__ uint64_t *empty(int s) const { return full(STAGES + s); }
    __device__ uint64_t *summed(void) const { return full(2 * STAGES); }
    __device__ uint64_t *taken(void) const { return full(2 * STAGES + 1); }
    __device__ unsigned char *at(int s) const { return room + s * in::STAGE; }
    __device__ float4 *sums(void) const { return (float4 *)(room + STAGES * in::STAGE); }
    __device__ unsigned char *hidden(void) const { return room + STAGES * in::STAGE + in::SUMS; }
    __device__ void next(void)
    {
        if (++stage == STAGES) {
            stage = 0;
            parity ^= 1;
        }
    }
};

template <bool UP, int N, int PARTS>
static __device__ inline void panel_bring(const panel_args &a, panel_pipe<UP, N, PARTS> pipe)
{
    panel_work w;
    int planes = (int)mma_chunks(a.w[0].k) * 2;
    for (int i = blockIdx.x; panel_work_at<UP>(a, i, &w); i += gridDim.x) {
        uint32_t bytes = (uint32_t)(w.run.n + 7) / 8 * 8 * WGMMA_ROW_BYTES;
        const unsigned char *from = a.x.p + (int64_t)w.run.first * WGMMA_ROW_BYTES;
        for (int plane = 0; plane < planes; plane++) {
            barrier_wait(pipe.empty(pipe.stage), pipe.parity ^ 1);
            barrier_expect(pipe.full(pipe.stage), PARTS * bytes);
            for (int p = 0; p < PARTS; p++, from += a.x.rows * WGMMA_ROW_BYTES)
                bulk_load(pipe.at(pipe.stage) + p * panel_room<UP, N, PARTS>::PART, from, bytes,
                          pipe.full(pipe.stage));
            pipe.next();
        }
    }
}

template <int N> static __device__ __forceinline__ void add_all(float *to, const float *from)
{
#pragma unroll
    for (int i = 0; i < N; i++)
        to[i] += from[i];
}

template <int N> static __device__ __forceinline__ void clear_all(float *to)
{
#pragma unroll
    for (int i = 0; i < N; i++)
        to[i] = 0;
}

/* Weights that a lane has asked for, of as many chunks as registers allow. */
template <int T, int N, int PARTS> struct panel_ahead {
    enum { SERVES = mma_serves<T>::N, RAWS = MMA_UNITS / SERVES };
    enum { CHUNKS = (T == FL_MXFP4 ? 2 : 1) * (N * PARTS <= 64 ? 2 : 1) };
    mma_raw<T> raw[CHUNKS][RAWS];

    /* Asks for the first chunks of a tile. */
    __device__ __forceinline__ void begin(const panel_rows &rows)
    {
        int chunks = (int)mma_chunks(rows.k);
#pragma unroll
        for (int b = 0; b < CHUNKS; b++) {
#pragma unroll
            for (int u = 0; u < RAWS; u++)
                raw[b][u] = b < chunks ? panel_load<T>(rows, b, u) : mma_raw<T>{};
        }
    }
};

/* Weights that need no expanding must not be moved to where the products take them before their
 * turn: that would wait for the memory.  So they are tied to the barrier waited for last. */
static __device__ inline void hold(uint4 &v, uint32_t nothing)
{
    v = make_uint4(v.x ^ nothing, v.y ^ nothing, v.z ^ nothing, v.w ^ nothing);
}

/* The sums of this warpgroup's 64 rows with N vectors.  With one part, the weights of the next 32
 * elements are expanded while products run.  With three, what the products of 16 elements make is
 * added up meanwhile the other warpgroup's run. */
template <int T, bool UP, int N, int PARTS>
static __device__ __forceinline__ void
panel_sums(const panel_rows &rows, panel_ahead<T, N, PARTS> &ahead, panel_pipe<UP, N, PARTS> &pipe,
           float total[N / 2])
{
    enum { SERVES = mma_serves<T>::N, AHEAD = panel_ahead<T, N, PARTS>::CHUNKS };
    int chunks = (int)mma_chunks(rows.k), seg = 0, flush = 0, more = 0, before = 0;
    bool leader = threadIdx.x % GPU_LANES == 0;
    float acc[N / 2], part[PARTS == 1 ? 1 : N / 2];
    uint32_t w[2][2][4], nothing = 0;
    clear_all<N / 2>(total);
    clear_all<N / 2>(acc);
    for (; flush == 0; seg++)
        flush = chunks * (seg + 1) / MMA_SEGS;
    for (int c0 = 0; c0 < chunks; c0 += AHEAD) {
#pragma unroll
        for (int b = 0; b < AHEAD; b++) {
            int c = c0 + b;
            if (c >= chunks)
                break;
#pragma unroll
            for (int u = 0; u < MMA_UNITS; u++) {
                mma_raw<T> &raw = ahead.raw[b][u / SERVES];
                if (T != FL_MXFP4) {
                    if (u % 2 == 0)
                        nothing = barrier_wait(pipe.full(pipe.stage), pipe.parity) ^ 1;
                    hold(raw.lo, nothing);
                    hold(raw.hi, nothing);
                }
                mma_weights<T>(raw, u, w[u % 2]);
                if (u % SERVES == SERVES - 1 && c + AHEAD < chunks)
                    raw = panel_load<T>(rows, c + AHEAD, u + 1 - SERVES);
                if (T == FL_MXFP4 && u % 2 == 0)
                    barrier_wait(pipe.full(pipe.stage), pipe.parity);
                uint64_t x = wgmma_vectors(pipe.at(pipe.stage)) + u % 2 * 4;
                wgmma_begin();
                if constexpr (PARTS == 1) {
                    wgmma<N>(acc, w[u % 2][0], x, more);
                    wgmma<N>(acc, w[u % 2][1], x + 2, 1);
                    more = 1;
                    wgmma_commit();
                    wgmma_wait<1>();
                } else {
#pragma unroll
                    for (int half = 0; half < 2; half++) {
                        if (half)
                            wgmma_begin();
#pragma unroll
                        for (int p = PARTS - 1; p >= 0; p--)
                            wgmma<N>(part, w[u % 2][half],
                                     x + 2 * half + p * (panel_room<UP, N, PARTS>::PART >> 4),
                                     p < PARTS - 1);
                        wgmma_commit();
                        wgmma_wait<0>();
                        add_all<N / 2>(acc, part);
                    }
                }
                if (u % 2 == 0) {
                    if (c + u > 0 && leader)
                        barrier_arrive(pipe.empty(before));
                } else {
                    before = pipe.stage;
                    pipe.next();
                }
            }
            if (c + 1 == flush) {
                wgmma_wait<0>();
                add_all<N / 2>(total, acc);
                if constexpr (PARTS > 1)
                    clear_all<N / 2>(acc);
                more = 0;
                for (; flush <= c + 1 && seg < MMA_SEGS; seg++)
                    flush = chunks * (seg + 1) / MMA_SEGS;
            }
        }
    }
    wgmma_wait<0>();
    if (leader)
        barrier_arrive(pipe.empty(before));
}

/* The rows of this lane in a tile: `n` of both matrices, or n and n + 8. */
template <int T, bool UP>
static __device__ inline panel_rows panel_tile(const panel_args &a, const panel_work &w, int64_t *n)
{
    int slab = threadIdx.x / GPU_LANES, g = threadIdx.x % GPU_LANES / 4;
    *n = UP ? panel_element<T>(w.row_tile, slab, g)
            : ((int64_t)w.row_tile * PANEL_SLABS + slab) * MMA_ROWS + g;
    return panel_rows_of<T>(a.w, w.run.tensor, *n, UP ? *n : *n + 8);
}

/* Sums go to the helpers, or to where results go. */
template <bool UP, int N, int PARTS>
static __device__ __forceinline__ void panel_give(const panel_args &a, const gpu_run &run,
                                                  int64_t n, panel_pipe<UP, N, PARTS> &pipe,
                                                  uint32_t round, const float total[N / 2])
{
    int lane = threadIdx.x % GPU_LANES, slab = threadIdx.x / GPU_LANES, t = lane % 4;
    if constexpr (UP) {
        float4 *to = pipe.sums() + slab * panel_room<UP, N, PARTS>::EIGHTS * GPU_LANES + lane;
        barrier_wait(pipe.taken(), (round & 1) ^ 1);
#pragma unroll
        for (int j = 0; j < N / 8; j++)
            to[j * GPU_LANES] =
                make_float4(total[4 * j], total[4 * j + 1], total[4 * j + 2], total[4 * j + 3]);
        barrier_arrive(pipe.summed());
    } else {
        int row[N / 4];
#pragma unroll
        for (int i = 0; i < N / 4; i++) {
            int v = 8 * (i / 2) + 2 * t + i % 2;
            row[i] = v >= run.n ? -1 : a.place ? __ldg(a.place + run.first + v) : run.first + v;
        }
#pragma unroll
        for (int i = 0; i < N / 4; i++) {
            float *out = a.out + row[i] * a.stride + n;
            if (row[i] >= 0 && n < a.w[0].n)
                out[0] = total[i / 2 * 4 + i % 2];
            if (row[i] >= 0 && n + 8 < a.w[0].n)
                out[8] = total[i / 2 * 4 + 2 + i % 2];
        }
    }
}

template <int T, bool UP, int N, int PARTS>
static __device__ inline void panel_products(const panel_args &a, panel_pipe<UP, N, PARTS> pipe)
{
    panel_work w;
    panel_ahead<T, N, PARTS> ahead;
    panel_rows rows;
    int64_t n;
    int i = blockIdx.x;
    uint32_t round = 0;
    bool more = panel_work_at<UP>(a, i, &w);
    if (more) {
        rows = panel_tile<T, UP>(a, w, &n);
        ahead.begin(rows);
    }
    while (more) {
        float total[N / 2];
        gpu_run run = w.run;
        int64_t n0 = n;
        panel_sums<T, UP, N, PARTS>(rows, ahead, pipe, total);
        i += gridDim.x;
        more = panel_work_at<UP>(a, i, &w);
        if (more) {
            rows = panel_tile<T, UP>(a, w, &n);
            ahead.begin(rows); /* while these sums are given away */
        }
        panel_give<UP, N, PARTS>(a, run, n0, pipe, round++, total);
    }
}

/* What the activation makes of eight elements. */
template <int PARTS>
static __device__ inline void panel_gate(expert_gate gate, const fl_expr &act, const float in[2][8],
                                         float out[8])
{
    float regs[2][8];
    if (gate == GATE_ANY) {
        expr_run_many<8>(act, in, out);
    } else if constexpr (PARTS == 1) {
#pragma unroll
        for (int i = 0; i < 8; i++)
            out[i] = fast_gate(gate, act, in[0][i], in[1][i]);
    } else if (gate == GATE_SILU) {
        expr_run_known<expr_silu_gate, 8>(act, in, regs, out);
    } else {
        expr_run_known<expr_tanh_gate, 8>(act, in, regs, out);
    }
}

/* Gate and up of a finished tile become a plane of the hidden panel. */
template <int T, int N, int PARTS>
static __device__ inline void panel_activate(const panel_args &a, const fl_expr &act,
                                             panel_pipe<true, N, PARTS> pipe)
{
    typedef panel_room<true, N, PARTS> in;
    panel_work w;
    int lane = threadIdx.x % GPU_LANES, helper = threadIdx.x / GPU_LANES - PANEL_SLABS - 1;
    bool first = helper == 0 && lane == 0;
    uint32_t round = 0;
    for (int i = blockIdx.x; panel_work_at<true>(a, i, &w); i += gridDim.x, round++) {
        int fours = (w.run.n + 31) / 32;
        if (first)
            bulk_stores_read();
        warps_meet(1, PANEL_HELPERS * (int)GPU_LANES);
        barrier_wait(pipe.summed(), round & 1);
        for (int task = helper; task < PANEL_SLABS * fours; task += PANEL_HELPERS) {
            int slab = task / fours, four = task % fours;
            float in[2][8], out[8];
#pragma unroll
            for (int j = 0; j < 4; j++) {
                float4 s = pipe.sums()[(slab * in::EIGHTS + four * 4 + j) * GPU_LANES + lane];
                in[0][2 * j] = s.x;
                in[0][2 * j + 1] = s.y;
                in[1][2 * j] = s.z;
                in[1][2 * j + 1] = s.w;
            }
            panel_gate<PARTS>(a.gate, act, in, out);
            bool there = panel_element<T>(w.row_tile, slab, lane / 4) < a.w[0].n;
            uint32_t m[4][PARTS];
#pragma unroll
            for (int j = 0; j < 4; j++)
                pair_parts<PARTS>(there ? out[2 * j] : 0, there ? out[2 * j + 1] : 0, m[j]);
            int v = four * 32 + lane;
            unsigned char *to = pipe.hidden() + v * WGMMA_ROW_BYTES + (slab ^ v % 8) * 16;
#pragma unroll
            for (int p = 0; p < PARTS; p++) {
                const uint32_t one[4] = {m[0][p], m[1][p], m[2][p], m[3][p]};
                store_transposed(to + p * in::PLANE, one);
            }
        }
        shared_written();
        barrier_arrive(pipe.taken());
        warps_meet(1, PANEL_HELPERS * (int)GPU_LANES);
        if (!first)
            continue;
        for (int p = 0; p < PARTS; p++)
            bulk_store(a.hidden.p +
                           (((int64_t)w.row_tile * PARTS + p) * a.hidden.rows + w.run.first) *
                               WGMMA_ROW_BYTES,
                       pipe.hidden() + p * in::PLANE, (uint32_t)w.run.n * WGMMA_ROW_BYTES);
    }
    if (first)
        bulk_stores_done();
}

template <int T, bool UP, int N, int PARTS>
static __global__ void __launch_bounds__(PANEL_THREADS, 1) panel_kernel(panel_args a, fl_expr act)
{
    extern __shared__ __align__(1024) unsigned char room[];
    panel_pipe<UP, N, PARTS> pipe = {room, 0, 0};
    if (threadIdx.x == 0) {
        for (int s = 0; s < panel_room<UP, N, PARTS>::STAGES; s++) {
            barrier_init(pipe.full(s), 1);
            barrier_init(pipe.empty(s), PANEL_SLABS);
        }
        barrier_init(pipe.summed(), PANEL_SLABS * (int)GPU_LANES);
        barrier_init(pipe.taken(), PANEL_HELPERS * (int)GPU_LANES);
        barriers_made();
    }
    __syncthreads();
    if (threadIdx.x < 2 * WGMMA_THREADS) {
        more_registers<PANEL_MORE>();
        panel_products<T, UP, N, PARTS>(a, pipe);
    } else {
        fewer_registers<PANEL_FEWER>();
        if (threadIdx.x == 2 * WGMMA_THREADS)
            panel_bring<UP, N, PARTS>(a, pipe);
        if constexpr (UP) {
            if (threadIdx.x >= 2 * WGMMA_THREADS + GPU_LANES)
                panel_activate<T, N, PARTS>(a, act, pipe);
        }
    }
}

/* ---- launching ---- */

template <int T, int PARTS, bool UP, int N>
static void panel_launch(const panel_args &a, const fl_expr &act, gpu_queue *q)
{
    if constexpr (N <= PANEL_MOST(T, PARTS)) {
        size_t shared = panel_room<UP, N, PARTS>::BYTES;
        gpu_allow_shared(q, panel_kernel<T, UP, N, PARTS>, shared);
        panel_kernel<T, UP, N, PARTS>
            <<<(unsigned)q->processors, PANEL_THREADS, shared, q->stream>>>(a, act);
        gpu_launched(q);
    }
}

template <int T, int PARTS>
static void panel_multiply_parts(int run_class, panel_args a, const fl_expr *act, gpu_queue *q)
{
    static const fl_expr none = {};
    a.gate = gate_of(act);
    int c = 0;
#define PANEL_LAUNCH(WIDTH)                                                                        \
    if (c++ == run_class) {                                                                        \
        if (act)                                                                                   \
            panel_launch<T, PARTS, true, WIDTH>(a, *act, q);                                       \
        else                                                                                       \
            panel_launch<T, PARTS, false, WIDTH>(a, none, q);                                      \
    }
    PANEL_WIDTHS(PANEL_LAUNCH)
#undef PANEL_LAUNCH
}

#endif
