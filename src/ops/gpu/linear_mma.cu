/* linear on matrix units (mma.h).  Up to 8 rows, or few outputs: a block per tile of weights and 8
 * rows, each of its warps a segment of the length.  More: vectors are arranged once, and a block
 * does 256 outputs of up to 64 rows. */
#include "ops/gpu/linear.h"
#include "ops/gpu/mma.h"

enum { PASS = 4096, NARROW = 8 };

/* ---- few rows, or few outputs: blocks of a tile of weights and VECTORS rows ---- */

template <int T, int PARTS, int VECTORS>
static __global__ void __launch_bounds__(MMA_THREADS) narrow_kernel(linear_args a)
{
    extern __shared__ __align__(16) unsigned char room[];
    mma_tiles<1> m = {{a.w}, {(int64_t)blockIdx.x * MMA_ROWS}, 0};
    const float *x[VECTORS];
    int64_t v0 = (int64_t)blockIdx.y * VECTORS;
    if (v0 >= *a.count)
        return;
    for (int i = 0; i < VECTORS; i++)
        x[i] = v0 + i < *a.count ? a.x.p + (v0 + i) * a.x.stride : NULL;
    float sum[1];
    mma_narrow<T, PARTS, 1, VECTORS>(m, x, a.aligned, room, sum);
    int64_t n = m.n0[0] + threadIdx.x / 8 % 16;
    int64_t v = v0 + threadIdx.x % 8;
    if (threadIdx.x < 128 && threadIdx.x % 8 < VECTORS && v < *a.count && n < a.w.n)
        a.y.p[v * a.y.stride + n] = sum[0];
}

template <int T, int PARTS, int VECTORS>
static void narrow(const linear_args &a, int64_t rows, gpu_queue *q)
{
    dim3 grid(gpu_blocks(a.w.n, MMA_ROWS), gpu_blocks(rows, VECTORS));
    size_t shared = narrow_room<PARTS, VECTORS, 1>::BYTES;
    gpu_allow_shared(q, narrow_kernel<T, PARTS, VECTORS>, shared);
    narrow_kernel<T, PARTS, VECTORS><<<grid, MMA_THREADS, shared, q->stream>>>(a);
    gpu_launched(q);
}

/* ---- many rows ---- */

template <int T, int PARTS, int TILES, int COLS>
static __global__ void __launch_bounds__(MMA_THREADS, 1) wide_kernel(linear_args a)
{
    extern __shared__ __align__(16) unsigned char room[];
    __shared__ const unsigned char *from[COLS * MMA_COLS];
    int64_t v0 = (int64_t)blockIdx.y * COLS * MMA_COLS, rows = *a.count - a.row0;
    int lane = threadIdx.x % GPU_LANES, g = lane / 4, t = lane % 4;
    rows = rows < a.rows ? rows : a.rows;
    if (v0 >= rows)
        return;
    for (int i = threadIdx.x; i < COLS * MMA_COLS; i += MMA_THREADS) {
        int64_t v = v0 + i < rows ? v0 + i : rows - 1;
        from[i] = a.arranged + v * arranged_bytes(a.w.k, PARTS);
    }
    __syncthreads();
    int64_t n0 = ((int64_t)blockIdx.x * MMA_SEGS + threadIdx.x / GPU_LANES) * MMA_ROWS * TILES;
    mma_tiles<TILES> m = {};
#pragma unroll
    for (int i = 0; i < TILES; i++) {
        m.w[i] = a.w;
        m.n0[i] = n0 + i * MMA_ROWS;
    }
    float total[TILES][COLS][4];
    mma_wide<T, PARTS, TILES, COLS>(m, from, room, total);
#pragma unroll
    for (int i = 0; i < TILES; i++) {
#pragma unroll
        for (int j = 0; j < COLS; j++) {
#pragma unroll
            for (int r = 0; r < 4; r++) {
                int64_t n = m.n0[i] + g + r / 2 * 8, v = v0 + j * 8 + 2 * t + r % 2;
                if (n < a.w.n && v < rows)
                    a.y.p[(a.row0 + v) * a.y.stride + n] = total[i][j][r];
            }
        }
    }
}

template <int T, int PARTS, int TILES, int COLS>
static void wide(const linear_args &a, gpu_queue *q)
{
    size_t shared = wide_room<PARTS, COLS>::BYTES;
    dim3 grid(gpu_blocks(a.w.n, MMA_SEGS * MMA_ROWS * TILES), gpu_blocks(a.rows, COLS * MMA_COLS));
    gpu_allow_shared(q, wide_kernel<T, PARTS, TILES, COLS>, shared);
    wide_kernel<T, PARTS, TILES, COLS><<<grid, MMA_THREADS, shared, q->stream>>>(a);
    gpu_launched(q);
}

/* ---- a call ---- */

/* fresh: the vectors do not lie arranged for this format yet.  Returns whether they do now. */
template <int T, int PARTS>
static bool one_weight(linear_args a, int64_t rows, unsigned char *scratch, bool fresh,
                       gpu_queue *q)
{
    if (rows == 1) {
        narrow<T, PARTS, 1>(a, rows, q);
        return !fresh;
    }
    /* Few outputs of a long sum: the other kernels would keep a handful of processors busy. */
    int64_t tiles = gpu_blocks(a.w.n, MMA_ROWS);
    if (rows <= NARROW || tiles * gpu_blocks(rows, NARROW) <= 2 * q->processors) {
        narrow<T, PARTS, NARROW>(a, rows, q);
        return !fresh;
    }
    a.arranged = scratch;
    for (int64_t r = 0; r < rows; r += PASS) {
        a.row0 = r;
        a.rows = gpu_min(rows - r, PASS);
        gpu_rows x = {a.x.p + r * a.x.stride, a.x.stride};
        if (linear_panels(a, (fl_dtype)T, PARTS, fresh || rows > PASS, q))
            continue;
        if (fresh || rows > PASS)
            arrange_rows<T, PARTS>(x, a.rows, a.w.k, scratch, q);
        /* Wide blocks read least; but every processor should have one. */
        int64_t blocks = (int64_t)gpu_blocks(a.w.n, 256) * gpu_blocks(a.rows, 64);
        if (a.rows <= 32)
            wide<T, PARTS, 1, 4>(a, q);
        else if (blocks < q->processors)
            wide<T, PARTS, 1, 8>(a, q);
        else
            wide<T, PARTS, 2, 8>(a, q);
    }
    return true;
}

template <int PARTS>
static void run(const fl_call *call, const fl_step *step, int phase, const fl_worker *worker)
{
    (void)phase;
    gpu_queue *q = (gpu_queue *)worker->queue;
    fl_rows symbol = call->in[0].type.rows;
    int64_t rows = fl_rows_now(step, symbol);
    linear_args a = {};
    a.x = gpu_rows_of(&call->in[0]);
    a.aligned = ((uintptr_t)a.x.p | (uintptr_t)a.x.stride * 4) % 16 == 0;
    a.count = gpu_count(q, symbol);
    int arranged = -1; /* for what format the vectors lie arranged */
    for (int i = 1; i < call->n_in && rows > 0; i++) {
        fl_dtype dtype = call->in[i].type.dtype;
        a.w = gpu_weight_of(&call->in[i]);
        a.y = gpu_rows_of(&call->out[i - 1]);
        unsigned char *room = (unsigned char *)worker->shared;
        bool fresh = arranged != (int)dtype;
        if (dtype == FL_BF16 ? one_weight<FL_BF16, PARTS>(a, rows, room, fresh, q)
                             : one_weight<FL_MXFP4, PARTS>(a, rows, room, fresh, q))
            arranged = (int)dtype;
    }
}

template <int PARTS>
static void scratch(const fl_node_view *n, const fl_limits *limits, size_t *per_worker,
                    size_t *shared)
{
    int64_t rows = gpu_min(limits->max_rows, PASS);
    *per_worker = 0;
    *shared = (size_t)(rows * arranged_bytes(fl_type_width(n->in[0]), PARTS));
    size_t panel = linear_panel_bytes(rows, fl_type_width(n->in[0]), PARTS);
    *shared = *shared > panel ? *shared : panel;
}

static bool fits(const fl_node_view *n)
{
    bool all = true;
    for (int i = 1; i < n->n_in; i++)
        all = all && mma_fits(n->in[i]);
    return all;
}

static const fl_kernel kernels[] = MMA_KERNELS("linear");
extern const fl_kernel_list gpu_kernels_linear_mma = FL_KERNEL_LIST(kernels);
