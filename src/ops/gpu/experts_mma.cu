/* experts on matrix units (mma.h): experts with one pair as experts_one.h does, or in the narrow
 * form, a block per tile of W1 and W3 (or two of W2); the others in the wide form, 16 or 64 pairs
 * at a time, for which rows and hidden values are arranged beforehand. */
#include "ops/gpu/experts_one.h"
#include "ops/gpu/gate_mma.h"
#include "ops/gpu/mma.h"

enum { TILES = 2, FEW_COLS = 2, MANY_COLS = 8 /* times 8 pairs at once */ };

typedef struct wide_args {
    unsigned char *z, *hidden; /* arranged: per row of the pass, and per pair */
} wide_args;

/* ---- one pair ---- */

template <int T, int PARTS>
static __device__ inline void narrow_up(const experts_args &a, const fl_expr &act, int e,
                                        int32_t pair, bool aligned, unsigned char *room,
                                        float *gate)
{
    int64_t n0 = (int64_t)blockIdx.x * MMA_ROWS;
    mma_tiles<2> m = {{a.w1, a.w3}, {n0, n0}, e};
    const float *const x[1] = {a.z.p + (a.row0 + pair / a.k) * a.z.stride};
    float sum[1]; /* the first 128 threads have W1's, the others W3's; each eighth that of a row */
    mma_narrow<T, PARTS, 2, 1>(m, x, aligned, room, sum);
    int at = threadIdx.x % 128 / 8;
    if (threadIdx.x < 128 && threadIdx.x % 8 == 0)
        gate[at] = sum[0];
    __syncthreads();
    if (threadIdx.x >= 128 && threadIdx.x % 8 == 0 && n0 + at < a.w1.n) {
        a.hidden[pair * a.w1.n + n0 + at] =
            gate_run<PARTS>((expert_gate)a.gate, act, gate[at], sum[0]);
    }
    __syncthreads();
}

template <int T, int PARTS>
static __device__ inline void narrow_down(const experts_args &a, int e, int32_t pair, bool aligned,
                                          unsigned char *room)
{
    int64_t n0 = (int64_t)blockIdx.x * MMA_ROWS * TILES, n = n0 + threadIdx.x / 8;
    mma_tiles<2> m = {{a.w2, a.w2}, {n0, n0 + MMA_ROWS}, e};
    const float *const x[1] = {a.hidden + pair * a.w2.k};
    float sum[1];
    mma_narrow<T, PARTS, 2, 1>(m, x, aligned, room, sum);
    if (threadIdx.x % 8 == 0 && n < a.w2.n)
        a.down[pair * a.w2.n + n] = sum[0];
    __syncthreads();
}

template <int T, int PARTS>
static __global__ void __launch_bounds__(MMA_THREADS, T == FL_MXFP4 ? 3 : 1)
    narrow_up_kernel(experts_args a, fl_expr act, bool direct, bool aligned)
{
    extern __shared__ __align__(16) unsigned char room[];
    __shared__ float gate[MMA_ROWS];
    int e;
    int32_t pair = single_pair(a, direct, &e);
    if (pair >= 0)
        narrow_up<T, PARTS>(a, act, e, pair, aligned, room, gate);
}

template <int T, int PARTS>
static __global__ void __launch_bounds__(MMA_THREADS, T == FL_MXFP4 ? 3 : 1)
    narrow_down_kernel(experts_args a, bool direct, bool aligned)
{
    extern __shared__ __align__(16) unsigned char room[];
    int e;
    int32_t pair = single_pair(a, direct, &e);
    if (pair >= 0)
        narrow_down<T, PARTS>(a, e, pair, aligned, room);
}

/* ---- several pairs ---- */

/* COLS times 8 pairs of expert e from `first` on. */
template <int T, int PARTS, int COLS>
static __device__ void wide_up(const experts_args &a, const wide_args &w, const fl_expr &act, int e,
                               int first, int last, const unsigned char **from, unsigned char *room)
{
    int lane = threadIdx.x % GPU_LANES, g = lane / 4, t = lane % 4;
    int64_t n0 = ((int64_t)blockIdx.x * MMA_SEGS + threadIdx.x / GPU_LANES) * MMA_ROWS;
    for (int i = threadIdx.x; i < COLS * MMA_COLS; i += MMA_THREADS) {
        int p = first + i < last ? first + i : last - 1;
        from[i] = w.z + a.g.pairs[p] / a.k * arranged_bytes(a.w1.k, PARTS);
    }
    __syncthreads();
    mma_tiles<2> m = {{a.w1, a.w3}, {n0, n0}, e};
    float total[2][COLS][4];
    mma_wide<T, PARTS, 2, COLS>(m, from, room, total);
    float sums[COLS * 4][2]; /* in memory: unrolled, the activation takes longest to compile */
#pragma unroll
    for (int i = 0; i < COLS * 8; i++)
        sums[i / 2][i % 2] = total[i % 2][i / 8][i / 2 % 4];
#pragma unroll 1
    for (int i = 0; i < COLS * 4; i++) {
        int64_t n = n0 + g + i % 4 / 2 * 8;
        int p = first + i / 4 * 8 + 2 * t + i % 2;
        if (n < a.w1.n && p < last)
            a.hidden[a.g.pairs[p] * a.w1.n + n] =
                gate_run<PARTS>((expert_gate)a.gate, act, sums[i][0], sums[i][1]);
    }
}

template <int T, int PARTS, int COLS>
static __device__ void wide_down(const experts_args &a, const wide_args &w, int e, int first,
                                 int last, const unsigned char **from, unsigned char *room)
{
    int lane = threadIdx.x % GPU_LANES, g = lane / 4, t = lane % 4;
    int64_t n0 = ((int64_t)blockIdx.x * MMA_SEGS + threadIdx.x / GPU_LANES) * MMA_ROWS * TILES;
    for (int i = threadIdx.x; i < COLS * MMA_COLS; i += MMA_THREADS) {
        int p = first + i < last ? first + i : last - 1;
        from[i] = w.hidden + a.g.pairs[p] * arranged_bytes(a.w2.k, PARTS);
    }
    __syncthreads();
    mma_tiles<TILES> m = {{a.w2, a.w2}, {n0, n0 + MMA_ROWS}, e};
    float total[TILES][COLS][4];
    mma_wide<T, PARTS, TILES, COLS>(m, from, room, total);
#pragma unroll
    for (int i = 0; i < TILES; i++) {
#pragma unroll
        for (int j = 0; j < COLS; j++) {
#pragma unroll
            for (int r = 0; r < 4; r++) {
                int64_t n = m.n0[i] + g + r / 2 * 8;
                int p = first + j * 8 + 2 * t + r % 2;
                if (n < a.w2.n && p < last)
                    a.down[a.g.pairs[p] * a.w2.n + n] = total[i][j][r];
            }
        }
    }
}

/* The experts of one class: few columns leave room for two blocks on a processor. */
template <int T, int PARTS, int COLS>
static __global__ void __launch_bounds__(MMA_THREADS, COLS == FEW_COLS ? 2 : 1)
    wide_up_kernel(experts_args a, wide_args w, fl_expr act)
{
    extern __shared__ __align__(16) unsigned char room[];
    __shared__ const unsigned char *from[COLS * MMA_COLS];
    EACH_EXPERT(a, COLS == FEW_COLS ? FEW_PAIRS : MANY_PAIRS, e, first, last)
    {
        for (int p = first; p < last; p += COLS * MMA_COLS) {
            wide_up<T, PARTS, COLS>(a, w, act, e, p, last, from, room);
            __syncthreads();
        }
    }
}

template <int T, int PARTS, int COLS>
static __global__ void __launch_bounds__(MMA_THREADS, COLS == FEW_COLS ? 2 : 1)
    wide_down_kernel(experts_args a, wide_args w)
{
    extern __shared__ __align__(16) unsigned char room[];
    __shared__ const unsigned char *from[COLS * MMA_COLS];
    EACH_EXPERT(a, COLS == FEW_COLS ? FEW_PAIRS : MANY_PAIRS, e, first, last)
    {
        for (int p = first; p < last; p += COLS * MMA_COLS) {
            wide_down<T, PARTS, COLS>(a, w, e, p, last, from, room);
            __syncthreads();
        }
    }
}

/* ---- launching ---- */

typedef struct launch {
    const fl_expr *act;
    gpu_queue *q;
    unsigned many; /* experts or pairs at most */
    bool z_aligned, hidden_aligned;
    bool streams; /* single pairs by experts_one.h */
} launch;

template <int T, int PARTS>
static void narrow(const experts_args &a, const launch &l, bool direct, bool up)
{
    size_t shared = narrow_room<PARTS, 1, 2>::BYTES;
    dim3 by_up(gpu_blocks(a.w1.n, MMA_ROWS), l.many);
    dim3 by_down(gpu_blocks(a.w2.n, MMA_ROWS * TILES), l.many);
    if (up)
        narrow_up_kernel<T, PARTS>
            <<<by_up, MMA_THREADS, shared, l.q->stream>>>(a, *l.act, direct, l.z_aligned);
    else
        narrow_down_kernel<T, PARTS>
            <<<by_down, MMA_THREADS, shared, l.q->stream>>>(a, direct, l.hidden_aligned);
}

template <int T, int PARTS, int COLS>
static void wide(const experts_args &a, const wide_args &w, const launch &l, bool up)
{
    size_t shared = wide_room<PARTS, COLS>::BYTES;
    dim3 by_up(gpu_blocks(a.w1.n, MMA_SEGS * MMA_ROWS), l.many);
    dim3 by_down(gpu_blocks(a.w2.n, MMA_SEGS * MMA_ROWS * TILES), l.many);
    gpu_allow_shared(l.q, wide_up_kernel<T, PARTS, COLS>, shared);
    gpu_allow_shared(l.q, wide_down_kernel<T, PARTS, COLS>, shared);
    if (up)
        wide_up_kernel<T, PARTS, COLS><<<by_up, MMA_THREADS, shared, l.q->stream>>>(a, w, *l.act);
    else
        wide_down_kernel<T, PARTS, COLS><<<by_down, MMA_THREADS, shared, l.q->stream>>>(a, w);
}

template <int T, int PARTS>
static void grouped(const experts_args &a, const wide_args &w, const launch &l)
{
    bool many = a.rows * a.k > FEW; /* an expert may have more than the few */
    gpu_rows z = {a.z.p + a.row0 * a.z.stride, a.z.stride}, hidden = {a.hidden, a.w2.k};
    group_kernel<<<1, GROUP_THREADS, 0, l.q->stream>>>(a);
    arrange_rows<T, PARTS>(z, a.rows, a.w1.k, w.z, l.q);
    for (int up = 1; up >= 0; up--) {
        if (l.streams)
            experts_one(a, PARTS, up, l.many, *l.act, l.q);
        else
            narrow<T, PARTS>(a, l, false, up);
        if (!up)
            arrange_rows<T, PARTS>(hidden, a.rows * a.k, a.w2.k, w.hidden, l.q);
        wide<T, PARTS, FEW_COLS>(a, w, l, up);
        if (many)
            wide<T, PARTS, MANY_COLS>(a, w, l, up);
    }
}

template <int T, int PARTS>
static void one_pass(const experts_args &a, const wide_args &w, const fl_expr *act, gpu_queue *q)
{
    /* With few pairs among many experts hardly two meet: lists would cost more than they save. */
    int64_t pairs = a.rows * a.k;
    bool alone = a.rows == 1 || pairs * 8 <= a.n_experts;
    launch l = {act,
                q,
                (unsigned)gpu_min(alone ? pairs : gpu_min(pairs, a.n_experts), 65535),
                gpu_aligned16(a.z.p, a.z.stride),
                gpu_aligned16(a.hidden, a.w2.k),
                T == FL_MXFP4 && experts_one_fits(a, PARTS)};
    if (alone && l.streams) {
        experts_each_pair(a, PARTS, *act, q);
        return;
    }
    if (alone) {
        narrow<T, PARTS>(a, l, true, true);
        narrow<T, PARTS>(a, l, true, false);
    } else {
        grouped<T, PARTS>(a, w, l);
    }
    combine_kernel<<<dim3((unsigned)a.rows, gpu_blocks(a.w2.n, 256)), 256, 0, q->stream>>>(a);
    gpu_launched(q);
}

static size_t lined(size_t n)
{
    return (n + 255) / 256 * 256;
}

template <int PARTS>
static void run(const fl_call *call, const fl_step *step, int phase, const fl_worker *worker)
{
    (void)phase;
    gpu_queue *q = (gpu_queue *)worker->queue;
    int64_t rows = fl_rows_now(step, call->in[Z].type.rows), most;
    experts_args a = experts_of(call, q, rows, worker->shared, &most);
    a.gate = gate_of((const fl_expr *)call->prep);
    if (experts_panels(call, PARTS, a, rows, (unsigned char *)worker->shared, q))
        return;
    wide_args w;
    unsigned char *after = (unsigned char *)(a.down + most * a.k * a.w2.n);
    w.z =
        (unsigned char *)worker->shared + lined((size_t)(after - (unsigned char *)worker->shared));
    w.hidden = w.z + most * arranged_bytes(a.w1.k, PARTS);
    for (int64_t r = 0; r < rows; r += most) {
        a.row0 = r;
        a.rows = gpu_min(rows - r, most);
        if (call->in[W1].type.dtype == FL_BF16)
            one_pass<FL_BF16, PARTS>(a, w, (const fl_expr *)call->prep, q);
        else
            one_pass<FL_MXFP4, PARTS>(a, w, (const fl_expr *)call->prep, q);
    }
}

template <int PARTS>
static void scratch(const fl_node_view *n, const fl_limits *limits, size_t *per_worker,
                    size_t *shared)
{
    int64_t k = n->in[IDS]->dim[0], inner = n->in[W1]->dim[0], width = n->in[W1]->dim[1];
    int64_t most = experts_pass_rows(k, inner, width, limits->max_rows);
    experts_scratch(n, limits, per_worker, shared);
    *shared = lined(*shared) +
              (size_t)(most * (arranged_bytes(width, PARTS) + k * arranged_bytes(inner, PARTS)));
    size_t panels = experts_panel_scratch(n, limits, PARTS);
    *shared = *shared > panels ? *shared : panels;
}

static bool fits(const fl_node_view *n)
{
    return n->in[W1]->n_tensors <= MAX_EXPERTS && mma_fits(n->in[W1]) && mma_fits(n->in[W2]);
}

static const fl_kernel kernels[] = MMA_KERNELS("experts");
extern const fl_kernel_list gpu_kernels_experts_mma = FL_KERNEL_LIST(kernels);
