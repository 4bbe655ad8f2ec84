/* Products on the matrix units of NVIDIA GPUs: weights stored as BF16 or MXFP4 times activations.
 *
 * A weight becomes a BF16 number exactly.  An activation becomes the sum of PARTS of them: three
 * hold every bit of a float32, so the product is exact but for the accumulation in float32; with
 * one part it is rounded (precision fast).  Matrix units take 16 rows of weights, 8 activation
 * vectors and 16 elements of both at a time.  Which elements these are is free, as long as both
 * sides agree: a lane takes what lies side by side in memory, and vectors are permuted to match
 * (`arrange`).
 *
 * The order of a sum: the length is cut into chunks of MMA_CHUNK elements, the chunks into MMA_SEGS
 * segments.  The matrix unit sums 16 elements, the least parts first; these sums are added, rounded
 * to nearest, in ascending order within a segment, and so are the segments.  With one part the
 * matrix unit itself adds up the sums of a segment, cutting off what a float32 does not hold: far
 * below the rounding of the activations.  The order does not depend on how many rows are computed
 * together, nor on whether the segments are the work of one warp or of several.
 *
 * Activations below 2^-126 lose bits: parts have the range of float32 but not of its denormals.
 *
 * This file holds PTX; its portable twin are the products of weights.h. */
#ifndef FL_OPS_GPU_MMA_H
#define FL_OPS_GPU_MMA_H

#include "ops/gpu/weights.h"

enum { MMA_CHUNK = 128, MMA_SEGS = 8, MMA_ROWS = 16, MMA_COLS = 8, MMA_UNITS = 4 };
enum { MMA_PITCH = MMA_CHUNK + 8 }; /* elements from one vector to the next in shared memory */
enum { MMA_THREADS = (int)MMA_SEGS * (int)GPU_LANES };

static inline __host__ __device__ int64_t mma_chunks(int64_t k)
{
    return (k + MMA_CHUNK - 1) / MMA_CHUNK;
}

static inline bool mma_fits(const fl_type *w)
{
    return (w->dtype == FL_BF16 && w->dim[w->ndim - 1] % 8 == 0) || w->dtype == FL_MXFP4;
}

/* The entries of an operator on matrix units: activations in three parts, and in one for precision
 * fast.  run and scratch are templates of the number of parts. */
#define MMA_KERNELS(OPERATOR)                                                                      \
    {                                                                                              \
        {.op = OPERATOR,                                                                           \
         .name = "mma-gpu",                                                                        \
         .preference = 2,                                                                          \
         .n_phases = 1,                                                                            \
         .run = run<3>,                                                                            \
         .fits = fits,                                                                             \
         .scratch = scratch<3>},                                                                   \
        {                                                                                          \
            .op = OPERATOR, .name = "bf16-gpu", .fast = true, .preference = 3, .n_phases = 1,      \
            .run = run<1>, .fits = fits, .scratch = scratch<1>                                     \
        }                                                                                          \
    }

#ifdef __CUDACC__

static __device__ inline void mma(float d[4], const uint32_t a[4], uint32_t b0, uint32_t b1)
{
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, "
        "{%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

/* acc += 16 elements of the weights times the PARTS of 8 vectors; half: which registers of b. */
template <int PARTS, int HALF>
static __device__ inline void mma_add(float acc[4], const uint32_t a[4], const uint4 b[PARTS])
{
    if constexpr (PARTS == 1) {
        mma(acc, a, HALF ? b[0].z : b[0].x, HALF ? b[0].w : b[0].y);
        return;
    }
    float sum[4] = {0, 0, 0, 0};
#pragma unroll
    for (int p = PARTS - 1; p >= 0; p--)
        mma(sum, a, HALF ? b[p].z : b[p].x, HALF ? b[p].w : b[p].y);
#pragma unroll
    for (int r = 0; r < 4; r++)
        acc[r] += sum[r];
}

/* Copies 16 bytes to shared memory; done when copies_wait says so. */
static __device__ inline void copy_async(void *to, const void *from)
{
    asm volatile(
        "cp.async.cg.shared.global [%0], [%1], 16;" ::"r"((uint32_t)__cvta_generic_to_shared(to)),
        "l"(from));
}

/* The same; the rest of the 128 bytes in which these lie will be wanted next. */
static __device__ inline void copy_async_line(void *to, const void *from)
{
    asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16;" ::"r"(
                     (uint32_t)__cvta_generic_to_shared(to)),
                 "l"(from));
}

/* 4 bytes. */
static __device__ inline void copy_async4(void *to, const void *from)
{
    asm volatile(
        "cp.async.ca.shared.global [%0], [%1], 4;" ::"r"((uint32_t)__cvta_generic_to_shared(to)),
        "l"(from));
}

/* The same as copy_async, or 16 bytes of zeros. */
static __device__ inline void copy_or_zero(void *to, const void *from, bool is)
{
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(
                     (uint32_t)__cvta_generic_to_shared(to)),
                 "l"(from), "r"(is ? 16 : 0));
}

static __device__ inline void copies_commit(void)
{
    asm volatile("cp.async.commit_group;");
}

/* All but the last N groups of copies are done. */
template <int N> static __device__ inline void copies_wait(void)
{
    asm volatile("cp.async.wait_group %0;" ::"n"(N));
}

/* The kernel after this one may start when all blocks are here, if it was launched so. */
static __device__ inline void kernel_after_may_start(void)
{
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.launch_dependents;");
#endif
}

/* Waits for the end of the kernel before and all that it writes, if this one was launched early. */
static __device__ inline void kernel_before_ended(void)
{
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

/* Four matrices of 8 x 8 from shared memory, each lane giving the address of a row. */
static __device__ inline void load_matrices(uint32_t out[4], const uint16_t *at)
{
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(out[0]), "=r"(out[1]), "=r"(out[2]), "=r"(out[3])
                 : "r"((uint32_t)__cvta_generic_to_shared(at)));
}

static __device__ inline void load_transposed(uint32_t out[4], const uint16_t *at)
{
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(out[0]), "=r"(out[1]), "=r"(out[2]), "=r"(out[3])
                 : "r"((uint32_t)__cvta_generic_to_shared(at)));
}

/* 2 to the power of x, within two units of the last place; 0 where that is no normal number. */
static __device__ inline float exp2_fast(float x)
{
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

/* ---- activations ---- */

/* The BF16 parts of two floats, x's in the lower half: the leading bits, then those of what is
 * left, which is exact.  (The parts of infinity are no numbers; they sum to NaN.) */
template <int PARTS> static __device__ inline void pair_parts(float x, float y, uint32_t out[PARTS])
{
    if constexpr (PARTS == 1) {
        __nv_bfloat162 both = __floats2bfloat162_rn(x, y);
        memcpy(&out[0], &both, 4);
    } else {
#pragma unroll
        for (int i = 0; i < PARTS; i++) {
            uint32_t a = __float_as_uint(x), b = __float_as_uint(y);
            out[i] = __byte_perm(a, b, 0x7632);
            x -= __uint_as_float(a & 0xffff0000);
            y -= __uint_as_float(b & 0xffff0000);
        }
    }
}

/* Elements 4 lane to 4 lane + 3 of a chunk become the parts that lie at the same places of the
 * arranged chunk.  All lanes of a warp call it together. */
template <int T, int PARTS> static __device__ inline void arrange(float4 x, uint2 out[PARTS])
{
    if (T == FL_MXFP4) { /* eight elements in the order 0 4 1 5 2 6 3 7 */
        bool odd = threadIdx.x % 2;
        float u = __shfl_xor_sync(0xffffffffu, odd ? x.x : x.z, 1, GPU_LANES);
        float v = __shfl_xor_sync(0xffffffffu, odd ? x.y : x.w, 1, GPU_LANES);
        x = odd ? make_float4(u, x.z, v, x.w) : make_float4(x.x, u, x.y, v);
    }
    uint32_t lo[PARTS], hi[PARTS];
    pair_parts<PARTS>(x.x, x.y, lo);
    pair_parts<PARTS>(x.z, x.w, hi);
#pragma unroll
    for (int i = 0; i < PARTS; i++)
        out[i] = make_uint2(lo[i], hi[i]);
}

/* Elements k to k + 3 of a vector of `len`; zero beyond it and for no vector. */
static __device__ inline float4 vector4(const float *x, int64_t k, int64_t len, bool aligned)
{
    if (!x || k >= len)
        return make_float4(0, 0, 0, 0);
    if (aligned)
        return *(const float4 *)(x + k);
    return make_float4(x[k], k + 1 < len ? x[k + 1] : 0, k + 2 < len ? x[k + 2] : 0,
                       k + 3 < len ? x[k + 3] : 0);
}

/* ---- weights ---- */

/* 16 bytes of rows g and g + 8 of a tile (g = lane / 4), and the scales of MXFP4. */
template <int T> struct mma_raw {
    uint4 lo, hi;
    uint32_t s_lo, s_hi;
};

/* Units of a chunk that 16 bytes serve. */
template <int T> struct mma_serves {
    enum { N = T == FL_MXFP4 ? MMA_UNITS : 1 };
};

/* Unit `unit` (of one mma_raw: the first that it serves) of a chunk, rows n0 to n0 + 15. */
template <int T>
static __device__ inline mma_raw<T> mma_load(const gpu_weight &w, int64_t tensor, int64_t n0,
                                             int64_t chunk, int unit)
{
    int g = threadIdx.x % GPU_LANES / 4, t = threadIdx.x % 4;
    int64_t k = chunk * MMA_CHUNK + (T == FL_MXFP4 ? 32 * t : 32 * unit + 8 * t);
    int64_t lo = n0 + g < w.n ? n0 + g : w.n - 1, hi = n0 + g + 8 < w.n ? n0 + g + 8 : w.n - 1;
    const uint8_t *d = w.data + tensor * w.data_step;
    mma_raw<T> r = {};
    if (k >= w.k)
        return r;
    if (T == FL_MXFP4) {
        const uint8_t *s = w.scale + tensor * w.scale_step;
        r.lo = __ldg((const uint4 *)(d + (lo * w.k + k) / 2));
        r.hi = __ldg((const uint4 *)(d + (hi * w.k + k) / 2));
        r.s_lo = s[(lo * w.k + k) / FL_MX_GROUP];
        r.s_hi = s[(hi * w.k + k) / FL_MX_GROUP];
    } else {
        r.lo = __ldg((const uint4 *)(d + (lo * w.k + k) * 2));
        r.hi = __ldg((const uint4 *)(d + (hi * w.k + k) * 2));
    }
    return r;
}

static __device__ inline uint32_t times_two(uint32_t pair, uint32_t factor)
{
    __nv_bfloat162 a, b;
    memcpy(&a, &pair, 4);
    memcpy(&b, &factor, 4);
    a = __hmul2(a, b);
    memcpy(&pair, &a, 4);
    return pair;
}

enum { MMA_SMALL_SCALE = 128 }; /* of MXFP4, as stored: 2 */

/* Four pairs (i, i + 4) of a word of MXFP4 codes, times 2^(s - 127).  A code's bits moved into a
 * BF16 number, by a product that puts them to two places at once, are 2^-126 times what it means.
 * One factor for both powers is a number only for SMALL scales. */
template <bool SMALL>
static __device__ inline void expand(uint32_t word, uint32_t s, uint32_t out[4])
{
    uint32_t f = s == 255 ? 0x7fc0 : s == 0 ? 0x0040 : s << 7;
    f |= f << 16;
    if (SMALL)
        f = (s + 126) * 0x00800080; /* 2^(s - 1) twice */
    out[0] = (word & 0x000f000f) * 0x1040;
    out[1] = (word & 0x00f000f0) * 0x0104;
    word >>= 8;
    out[2] = (word & 0x000f000f) * 0x1040;
    out[3] = (word & 0x00f000f0) * 0x0104;
#pragma unroll
    for (int i = 0; i < 4; i++) {
        out[i] &= 0x81c081c0;
        out[i] = times_two(SMALL ? out[i] : times_two(out[i], 0x7e807e80), f);
    }
}

/* The weights of a unit: two times 16 elements of 16 rows.  SMALL: so are all their scales. */
template <int T, bool SMALL = false>
static __device__ inline void mma_weights(const mma_raw<T> &r, int unit, uint32_t a[2][4])
{
    if (T == FL_MXFP4) {
        const uint32_t lo[4] = {r.lo.x, r.lo.y, r.lo.z, r.lo.w};
        const uint32_t hi[4] = {r.hi.x, r.hi.y, r.hi.z, r.hi.w};
        uint32_t l[4], h[4];
        expand<SMALL>(lo[unit], r.s_lo, l);
        expand<SMALL>(hi[unit], r.s_hi, h);
#pragma unroll
        for (int i = 0; i < 2; i++) {
            a[i][0] = l[2 * i];
            a[i][1] = h[2 * i];
            a[i][2] = l[2 * i + 1];
            a[i][3] = h[2 * i + 1];
        }
    } else {
        a[0][0] = r.lo.x;
        a[0][1] = r.hi.x;
        a[0][2] = r.lo.y;
        a[0][3] = r.hi.y;
        a[1][0] = r.lo.z;
        a[1][1] = r.hi.z;
        a[1][2] = r.lo.w;
        a[1][3] = r.hi.w;
    }
}

/* Where a lane finds, in an arranged chunk, its 8 elements of a unit. */
template <int T> static __device__ inline int mma_place(int unit)
{
    int t = threadIdx.x % 4;
    return T == FL_MXFP4 ? 32 * t + 8 * unit : 32 * unit + 8 * t;
}

/* ---- few vectors: the segments are the work of MMA_SEGS warps ---- */

/* Shared memory of a block, in bytes, for VECTORS vectors and TILES tiles. */
template <int PARTS, int VECTORS, int TILES> struct narrow_room {
    enum {
        VECTOR_BYTES = PARTS * VECTORS * MMA_PITCH * 2, /* of a warp */
        SUM_BYTES = TILES * MMA_THREADS * 4 * 4,
        BYTES = VECTOR_BYTES * MMA_SEGS > SUM_BYTES ? VECTOR_BYTES *MMA_SEGS : SUM_BYTES
    };
};

/* What a block multiplies: tile i is rows [n0[i], n0[i] + 16) of w[i]; tensor of a stack. */
template <int TILES> struct mma_tiles {
    gpu_weight w[TILES];
    int64_t n0[TILES], tensor;
};

/* The sums of all tiles with up to VECTORS vectors x (NULL: none): thread i of the block gets
 * row i / 8 % 16, vector i % 8, of tile i / 128 + 2 j in out[j]. */
template <int T, int PARTS, int TILES, int VECTORS>
static __device__ inline void mma_narrow(const mma_tiles<TILES> &m, const float *const x[VECTORS],
                                         bool aligned, unsigned char *room,
                                         float out[(TILES + 1) / 2])
{
    enum { RAWS = MMA_UNITS / mma_serves<T>::N };
    int lane = threadIdx.x % GPU_LANES, warp = threadIdx.x / GPU_LANES, g = lane / 4;
    int64_t k = m.w[0].k, chunks = mma_chunks(k);
    int64_t begin = chunks * warp / MMA_SEGS, end = chunks * (warp + 1) / MMA_SEGS;
    uint16_t *xs = (uint16_t *)(room + warp * narrow_room<PARTS, VECTORS, TILES>::VECTOR_BYTES);
    float acc[TILES][4] = {};
    mma_raw<T> next[TILES][RAWS];
    float4 ahead[VECTORS];
    for (int64_t c = begin - 1; c < end; c++) {
        mma_raw<T> raw[TILES][RAWS];
        float4 now[VECTORS];
#pragma unroll
        for (int i = 0; i < TILES; i++) {
#pragma unroll
            for (int u = 0; u < RAWS; u++) {
                raw[i][u] = next[i][u];
                if (c + 1 < end)
                    next[i][u] = mma_load<T>(m.w[i], m.tensor, m.n0[i], c + 1, u);
            }
        }
#pragma unroll
        for (int v = 0; v < VECTORS; v++) {
            now[v] = ahead[v];
            if (c + 1 < end)
                ahead[v] = vector4(x[v], (c + 1) * MMA_CHUNK + 4 * lane, k, aligned);
        }
        if (c < begin)
            continue;
        __syncwarp();
#pragma unroll
        for (int v = 0; v < VECTORS; v++) {
            uint2 parts[PARTS];
            arrange<T, PARTS>(now[v], parts);
#pragma unroll
            for (int p = 0; p < PARTS; p++)
                *(uint2 *)(xs + (p * VECTORS + v) * MMA_PITCH + 4 * lane) = parts[p];
        }
        __syncwarp();
#pragma unroll
        for (int unit = 0; unit < MMA_UNITS; unit++) {
            uint4 b[PARTS];
#pragma unroll
            for (int p = 0; p < PARTS; p++) {
                b[p] = make_uint4(0, 0, 0, 0);
                if (g < VECTORS)
                    b[p] =
                        *(const uint4 *)(xs + (p * VECTORS + g) * MMA_PITCH + mma_place<T>(unit));
            }
#pragma unroll
            for (int i = 0; i < TILES; i++) {
                uint32_t a[2][4];
                mma_weights<T>(raw[i][unit / mma_serves<T>::N], unit, a);
                mma_add<PARTS, 0>(acc[i], a[0], b);
                mma_add<PARTS, 1>(acc[i], a[1], b);
            }
        }
    }
    /* The segments of each result, in order. */
    float *sums = (float *)room;
    __syncthreads();
#pragma unroll
    for (int i = 0; i < TILES; i++) {
#pragma unroll
        for (int r = 0; r < 4; r++)
            sums[(i * MMA_SEGS + warp) * 128 + lane * 4 + r] = acc[i][r];
    }
    __syncthreads();
    int row = threadIdx.x / 8 % 16, col = threadIdx.x % 8;
    int at = (row % 8 * 4 + col / 2) * 4 + row / 8 * 2 + col % 2;
#pragma unroll
    for (int j = 0; j < (TILES + 1) / 2; j++) {
        int tile = (int)threadIdx.x / 128 + 2 * j;
        out[j] = 0;
        for (int s = 0; s < MMA_SEGS && tile < TILES; s++)
            out[j] += sums[(tile * MMA_SEGS + s) * 128 + at];
    }
}

/* ---- many vectors: a warp goes through all segments ---- */

/* Arranged vectors in device memory: [vector][chunk][PARTS][MMA_CHUNK]. */
static inline __host__ __device__ int64_t arranged_bytes(int64_t k, int parts)
{
    return mma_chunks(k) * parts * MMA_CHUNK * 2;
}

/* A warp per chunk of a row. */
template <int T, int PARTS>
static __global__ void arrange_kernel(gpu_rows x, int64_t rows, int64_t k, bool aligned,
                                      unsigned char *to)
{
    int64_t chunk = (int64_t)blockIdx.y * (blockDim.x / GPU_LANES) + threadIdx.x / GPU_LANES;
    int64_t row = blockIdx.x;
    int lane = threadIdx.x % GPU_LANES;
    if (row >= rows || chunk >= mma_chunks(k))
        return;
    uint2 parts[PARTS];
    arrange<T, PARTS>(vector4(x.p + row * x.stride, chunk * MMA_CHUNK + 4 * lane, k, aligned),
                      parts);
    uint16_t *at = (uint16_t *)(to + row * arranged_bytes(k, PARTS)) + chunk * PARTS * MMA_CHUNK;
#pragma unroll
    for (int p = 0; p < PARTS; p++)
        *(uint2 *)(at + p * MMA_CHUNK + 4 * lane) = parts[p];
}

template <int T, int PARTS>
static void arrange_rows(const gpu_rows &x, int64_t rows, int64_t k, unsigned char *to,
                         gpu_queue *q)
{
    bool aligned = ((uintptr_t)x.p | (uintptr_t)x.stride * 4) % 16 == 0 && k % 4 == 0;
    dim3 grid((unsigned)rows, gpu_blocks(mma_chunks(k), 8));
    arrange_kernel<T, PARTS><<<grid, 256, 0, q->stream>>>(x, rows, k, aligned, to);
}

template <int PARTS, int COLS> struct wide_room {
    enum { STAGE = PARTS * COLS * MMA_COLS * MMA_PITCH * 2, BYTES = 2 * STAGE };
};

/* Starts bringing chunk c of the block's vectors (COLS times 8 of them) to a stage. */
template <int PARTS, int COLS>
static __device__ inline void bring_chunk(const unsigned char *const *from, int64_t c,
                                          unsigned char *stage)
{
    enum { PIECES = PARTS * MMA_CHUNK / 8 }; /* of 16 bytes, per vector */
    for (int i = threadIdx.x; i < COLS * MMA_COLS * PIECES; i += MMA_THREADS) {
        int v = i / PIECES, piece = i % PIECES, p = piece / (MMA_CHUNK / 8);
        int at = ((p * COLS * MMA_COLS + v) * MMA_PITCH + piece % (MMA_CHUNK / 8) * 8) * 2;
        copy_async(stage + at, from[v] + c * PIECES * 16 + piece * 16);
    }
    copies_commit();
}

/* The sums of this warp's tiles with COLS times 8 vectors: total[tile][col] holds, as the matrix
 * unit lays them, rows g and g + 8 and vectors 2 t and 2 t + 1.  from: where each vector's arranged
 * chunks begin, in shared memory.  room: wide_room.  All warps of the block call it together. */
template <int T, int PARTS, int TILES, int COLS>
static __device__ inline void mma_wide(const mma_tiles<TILES> &m, const unsigned char *const *from,
                                       unsigned char *room, float total[TILES][COLS][4])
{
    enum { SERVES = mma_serves<T>::N };
    int g = threadIdx.x % GPU_LANES / 4;
    int64_t chunks = mma_chunks(m.w[0].k), flush = 0;
    int seg = 0;
    float acc[TILES][COLS][4];
    mma_raw<T> next[TILES];
#pragma unroll
    for (int i = 0; i < TILES; i++) {
        next[i] = mma_load<T>(m.w[i], m.tensor, m.n0[i], 0, 0);
#pragma unroll
        for (int j = 0; j < COLS; j++) {
#pragma unroll
            for (int r = 0; r < 4; r++)
                total[i][j][r] = acc[i][j][r] = 0;
        }
    }
    for (; flush == 0; seg++)
        flush = chunks * (seg + 1) / MMA_SEGS;
    seg--;
    bring_chunk<PARTS, COLS>(from, 0, room);
    for (int64_t c = 0; c < chunks; c++) {
        unsigned char *stage = room + c % 2 * wide_room<PARTS, COLS>::STAGE;
        if (c + 1 < chunks) {
            bring_chunk<PARTS, COLS>(from, c + 1,
                                     room + (c + 1) % 2 * wide_room<PARTS, COLS>::STAGE);
            copies_wait<1>();
        } else {
            copies_wait<0>();
        }
        __syncthreads();
        const uint16_t *xs = (const uint16_t *)stage;
        mma_raw<T> raw[TILES];
#pragma unroll
        for (int unit = 0; unit < MMA_UNITS; unit++) {
            uint32_t a[TILES][2][4];
#pragma unroll
            for (int i = 0; i < TILES; i++) {
                if (unit % SERVES == 0) {
                    int64_t c1 = unit + SERVES < MMA_UNITS ? c : c + 1;
                    raw[i] = next[i];
                    if (c1 < chunks)
                        next[i] =
                            mma_load<T>(m.w[i], m.tensor, m.n0[i], c1, (unit + SERVES) % MMA_UNITS);
                }
                mma_weights<T>(raw[i], unit, a[i]);
            }
#pragma unroll
            for (int j = 0; j < COLS; j++) {
                uint4 b[PARTS];
#pragma unroll
                for (int p = 0; p < PARTS; p++)
                    b[p] = *(const uint4 *)(xs + (p * COLS * MMA_COLS + j * 8 + g) * MMA_PITCH +
                                            mma_place<T>(unit));
#pragma unroll
                for (int i = 0; i < TILES; i++) {
                    mma_add<PARTS, 0>(acc[i][j], a[i][0], b);
                    mma_add<PARTS, 1>(acc[i][j], a[i][1], b);
                }
            }
        }
        __syncthreads();
        if (c + 1 != flush)
            continue;
#pragma unroll
        for (int i = 0; i < TILES; i++) {
#pragma unroll
            for (int j = 0; j < COLS; j++) {
#pragma unroll
                for (int r = 0; r < 4; r++) {
                    total[i][j][r] += acc[i][j][r];
                    acc[i][j][r] = 0;
                }
            }
        }
        for (; flush <= c + 1 && seg + 1 < MMA_SEGS; seg++)
            flush = chunks * (seg + 2) / MMA_SEGS;
    }
}

#endif
#endif
