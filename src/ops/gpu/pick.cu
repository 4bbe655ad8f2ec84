/* pick: the highest of a row, or a token drawn from it (ops/draw.h).
 *
 * For the highest a row is cut into PARTS, one block each, so that one long row is read by many
 * processors at once.  "Higher, else earlier" is an order without equals, so what comes out does
 * not depend on who compared what first.
 *
 * Then a block per row puts the parts together and, where a token is to be drawn, goes on.  A cut
 * (top-k, top-p) is looked for in two steps: weights are counted in bins of 1/16 in log2, which
 * shows the bin that it lies in; the candidates of this bin are gathered and ranked against each
 * other.  If they are more than MOST, the host is to do it.  The token is found by sums over ever
 * smaller runs of ids.  Weights are whole numbers, so none of these sums depends on its order. */
#include "ops/draw.h"
#include "ops/gpu/gpu.h"

enum { PARTS = GPU_LANES, PART_THREADS = 256 };
enum { THREADS = 1024, WARPS = THREADS / GPU_LANES, MOST = 3072 };
enum { PER_BIT = 16, BINS = FL_DRAW_DEPTH * PER_BIT + 1 };

typedef struct found {
    float x;
    int32_t at, finite;
} found;

static __device__ void take(found *a, float x, int32_t at, int32_t finite)
{
    if (x > a->x || (x == a->x && at < a->at)) {
        a->x = x;
        a->at = at;
    }
    a->finite &= finite;
}

static __device__ void take_lanes(found *a)
{
    for (int i = GPU_LANES / 2; i > 0; i /= 2) {
        float x = __shfl_xor_sync(0xffffffffu, a->x, i, GPU_LANES);
        int32_t at = __shfl_xor_sync(0xffffffffu, a->at, i, GPU_LANES);
        take(a, x, at, __shfl_xor_sync(0xffffffffu, a->finite, i, GPU_LANES));
    }
}

static __global__ void parts_kernel(gpu_rows x, int64_t width, const int32_t *count, found *out)
{
    __shared__ found room[PART_THREADS / GPU_LANES];
    int64_t row = blockIdx.y, step = (width + PARTS - 1) / PARTS;
    int64_t begin = blockIdx.x * step, end = begin + step < width ? begin + step : width;
    int lane = threadIdx.x % GPU_LANES, warp = threadIdx.x / GPU_LANES;
    if (row >= *count)
        return;
    found best = {-INFINITY, INT32_MAX, 1};
    for (int64_t i = begin + threadIdx.x; i < end; i += PART_THREADS) {
        float v = x.p[row * x.stride + i];
        take(&best, v, (int32_t)i, isfinite(v) ? 1 : 0);
    }
    take_lanes(&best);
    if (lane == 0)
        room[warp] = best;
    __syncthreads();
    if (threadIdx.x > 0)
        return;
    for (int w = 1; w < PART_THREADS / GPU_LANES; w++)
        take(&best, room[w].x, room[w].at, room[w].finite);
    out[row * PARTS + blockIdx.x] = best;
}

/* ---- drawing: everything below is done by a whole block, for one row ---- */

/* How many candidates there are, and what they weigh. */
typedef struct tally {
    uint64_t weight;
    uint32_t count;
} tally;

typedef struct row_room {
    tally bins[BINS];
    float x[MOST]; /* candidates of a bin */
    int32_t id[MOST];
    uint64_t sums[WARPS], target, before_weight;
    fl_draw_cut cut;
    tally kept; /* what the cut keeps */
    uint32_t n, before_count;
    int32_t bin, token, from;
    found best;
} row_room;

typedef struct logits {
    const float *x;
    int32_t n;
    float highest, scale;
} logits;

static __device__ inline float log2_of(const logits &l, float x)
{
    return fl_draw_log2(x, l.highest, l.scale);
}

static __device__ inline int bin_of(float y)
{
    return y > -(float)FL_DRAW_DEPTH ? (int)(-y * PER_BIT) : BINS - 1;
}

static __device__ inline uint64_t lanes_total(uint64_t x)
{
    for (int i = GPU_LANES / 2; i > 0; i /= 2)
        x += __shfl_xor_sync(0xffffffffu, x, i, GPU_LANES);
    return x;
}

/* The sum over this lane and those below it. */
static __device__ inline uint64_t lanes_up_to(uint64_t x)
{
    int lane = threadIdx.x % GPU_LANES;
    for (int i = 1; i < GPU_LANES; i *= 2) {
        uint64_t below = __shfl_up_sync(0xffffffffu, x, i, GPU_LANES);
        x += lane >= i ? below : 0;
    }
    return x;
}

static __device__ void fill_bins(const logits &l, row_room *r)
{
    for (int i = threadIdx.x; i < BINS; i += THREADS)
        r->bins[i] = {};
    __syncthreads();
    for (int i = threadIdx.x; i < l.n; i += THREADS) {
        float y = log2_of(l, l.x[i]);
        tally *t = &r->bins[bin_of(y)];
        atomicAdd(&t->count, 1u);
        atomicAdd((unsigned long long *)&t->weight, (unsigned long long)fl_draw_weight(y));
    }
    __syncthreads();
}

/* The first bin with which `need` is reached, and what lies before it; by a warp, each lane of
 * which looks at bins that stand side by side. */
static __device__ void find_bin(row_room *r, uint64_t need, bool by_count)
{
    enum { EACH = (BINS + GPU_LANES - 1) / GPU_LANES };
    int first = threadIdx.x * EACH;
    if (threadIdx.x < GPU_LANES) {
        uint64_t weight = 0, count = 0;
        for (int i = first; i < first + EACH && i < BINS; i++) {
            weight += r->bins[i].weight;
            count += r->bins[i].count;
        }
        uint64_t weights = lanes_up_to(weight), counts = lanes_up_to(count);
        uint64_t own = by_count ? count : weight, all = by_count ? counts : weights;
        if (all >= need && all - own < need) {
            weights -= weight;
            counts -= count;
            int i = first;
            while ((by_count ? counts + r->bins[i].count : weights + r->bins[i].weight) < need) {
                weights += r->bins[i].weight;
                counts += r->bins[i++].count;
            }
            r->bin = i;
            r->before_weight = weights;
            r->before_count = (uint32_t)counts;
        }
    }
    if (threadIdx.x == 0)
        r->n = 0;
    __syncthreads();
}

/* Sets the cut with which `need` >= 1 is reached; false: the host is to do it. */
static __device__ bool find_cut(const logits &l, row_room *r, uint64_t need, bool by_count)
{
    find_bin(r, need, by_count);
    int bin = r->bin;
    if (r->bins[bin].count > MOST)
        return false;
    for (int i = threadIdx.x; i < l.n; i += THREADS) {
        if (bin_of(log2_of(l, l.x[i])) != bin)
            continue;
        uint32_t at = atomicAdd(&r->n, 1u);
        r->x[at] = l.x[i];
        r->id[at] = i;
    }
    __syncthreads();
    for (uint32_t i = threadIdx.x; i < r->n; i += THREADS) {
        fl_draw_cut own = {r->x[i], r->id[i]};
        tally t = {r->before_weight, r->before_count}; /* up to and with this one */
        for (uint32_t k = 0; k < r->n; k++) {
            if (fl_draw_keeps(own, r->x[k], r->id[k])) {
                t.weight += fl_draw_weight(log2_of(l, r->x[k]));
                t.count++;
            }
        }
        uint64_t with = by_count ? t.count : t.weight;
        uint64_t last = by_count ? 1 : fl_draw_weight(log2_of(l, own.x));
        if (with >= need && with - last < need) {
            r->cut = own;
            r->kept = t;
        }
    }
    __syncthreads();
    return true;
}

/* The weight of what is kept among ids [from, to), by a warp. */
static __device__ uint64_t kept_weight(const logits &l, fl_draw_cut last, int from, int to)
{
    uint64_t sum = 0;
    for (int i = from + (int)(threadIdx.x % GPU_LANES); i < to; i += GPU_LANES)
        sum += fl_draw_keeps(last, l.x[i], i) ? fl_draw_weight(log2_of(l, l.x[i])) : 0;
    return lanes_total(sum);
}

/* The token: of runs of ids, one a warp, the one in which the sum exceeds the target, cut into runs
 * again until a warp can look at each id. */
static __device__ int32_t find_token(const logits &l, row_room *r, fl_draw_cut last,
                                     uint64_t random)
{
    int warp = threadIdx.x / GPU_LANES, lane = threadIdx.x % GPU_LANES;
    int from = 0, length = l.n;
    for (bool first = true; first || length > GPU_LANES; first = false) {
        int each = (length + WARPS - 1) / WARPS, end = from + length;
        int begin = from + warp * each, stop = begin + each < end ? begin + each : end;
        uint64_t sum = kept_weight(l, last, begin, stop);
        if (lane == 0)
            r->sums[warp] = sum;
        __syncthreads();
        if (warp == 0) {
            uint64_t own = r->sums[lane], up_to = lanes_up_to(own);
            uint64_t all = __shfl_sync(0xffffffffu, up_to, GPU_LANES - 1, GPU_LANES);
            uint64_t target = first ? __umul64hi(all, random) : r->target;
            if (up_to > target && up_to - own <= target) {
                r->target = target - (up_to - own);
                r->from = from + lane * each;
            }
        }
        __syncthreads();
        from = r->from;
        length = each < end - from ? each : end - from;
    }
    if (warp == 0) {
        int i = from + lane;
        bool there = lane < length && fl_draw_keeps(last, l.x[i], i);
        uint64_t own = there ? fl_draw_weight(log2_of(l, l.x[i])) : 0, up_to = lanes_up_to(own);
        if (up_to > r->target && up_to - own <= r->target)
            r->token = i;
    }
    __syncthreads();
    return r->token;
}

/* Both truncations in turn: top-p goes over what top-k keeps. */
static __device__ bool truncate(const logits &l, row_room *r, const fl_draw &d)
{
    bool count = d.top_k > 0 && d.top_k < l.n, weight = d.top_p != FL_DRAW_ALL;
    if (!count && !weight)
        return true;
    fill_bins(l, r);
    if (count && !find_cut(l, r, (uint64_t)d.top_k, true))
        return false;
    if (!weight)
        return true;
    uint64_t sum = r->kept.weight;
    if (!count) {
        if (threadIdx.x < GPU_LANES) {
            sum = 0;
            for (int i = threadIdx.x; i < BINS; i += GPU_LANES)
                sum += r->bins[i].weight;
            sum = lanes_total(sum);
            if (threadIdx.x == 0)
                r->kept.weight = sum;
        }
        __syncthreads();
        sum = r->kept.weight;
    }
    __syncthreads();
    uint64_t need = __umul64hi(sum, (uint64_t)d.top_p << 32);
    return find_cut(l, r, need > 0 ? need : 1, false);
}

static __global__ void __launch_bounds__(THREADS)
    pick_kernel(const found *parts, const int32_t *count, gpu_rows x, int64_t width, gpu_rows draws,
                gpu_rows y)
{
    __shared__ row_room r;
    int64_t row = blockIdx.x;
    if (row >= *count)
        return;
    if (threadIdx.x < GPU_LANES) {
        found best = parts[row * PARTS + threadIdx.x];
        take_lanes(&best);
        if (threadIdx.x == 0) {
            r.best = best;
            r.cut = {-INFINITY, INT32_MAX};
            r.token = best.at;
        }
    }
    __syncthreads();
    fl_draw d = {};
    for (int i = 0; draws.p && i < FL_DRAW_WORDS; i++)
        ((float *)&d)[i] = draws.p[row * draws.stride + i];
    int32_t state = r.best.finite ? FL_PICK_FOUND : FL_PICK_NOT_FINITE;
    if (r.best.finite && d.scale > 0) {
        logits l = {x.p + row * x.stride, (int32_t)width, r.best.x, d.scale};
        if (truncate(l, &r, d))
            find_token(l, &r, fl_draw_floor(r.cut, l.highest, d.floor), d.random);
        else
            state = FL_PICK_ASK;
    }
    if (threadIdx.x > 0)
        return;
    int32_t *to = (int32_t *)y.p + row * y.stride;
    to[0] = state == FL_PICK_FOUND ? r.token : 0;
    to[1] = state;
}

static void run(const fl_call *call, const fl_step *step, int phase, const fl_worker *worker)
{
    (void)phase;
    gpu_queue *q = (gpu_queue *)worker->queue;
    fl_rows symbol = call->in[0].type.rows;
    unsigned rows = (unsigned)fl_rows_now(step, symbol);
    int64_t width = fl_type_width(&call->in[0].type);
    gpu_rows x = gpu_rows_of(&call->in[0]), draws = {};
    found *parts = (found *)worker->shared;
    if (call->n_in > 1)
        draws = gpu_rows_of(&call->in[1]);
    if (rows) {
        parts_kernel<<<dim3(PARTS, rows), PART_THREADS, 0, q->stream>>>(
            x, width, gpu_count(q, symbol), parts);
        pick_kernel<<<rows, THREADS, 0, q->stream>>>(parts, gpu_count(q, symbol), x, width, draws,
                                                     gpu_rows_of(&call->out[0]));
    }
    gpu_launched(q);
}

static void scratch(const fl_node_view *node, const fl_limits *limits, size_t *own, size_t *shared)
{
    int32_t rows = node->in[0]->rows == FL_ROWS_LOGITS ? limits->max_logits : limits->max_rows;
    *own = 0;
    *shared = (size_t)rows * PARTS * sizeof(found);
}

static const fl_kernel kernels[] = {
    {.op = "pick", .name = "gpu", .preference = 1, .n_phases = 1, .run = run, .scratch = scratch}};
extern const fl_kernel_list gpu_kernels_pick = FL_KERNEL_LIST(kernels);
