/* delta_rule for prompts: whole blocks of the chunk grid go through as chunks of 64 tokens, on
 * matrix units; other rows token by token (delta.h).
 *
 * prepare (delta_chunk.h) makes everything that does not need the state.  chain walks through the
 * chunks of a sequence, which is all that is serial: u = U - W S, S = E_64 S + K^T u.  A block has
 * 16 columns of a head and each of its four warps a quarter of the rows, which stay in the
 * registers in which the matrix unit leaves and takes them.  It leaves u and the states between
 * chunks behind, from which output makes o = (q E) S + B u for all chunks at once.
 *
 * The chunks of long steps go through in slabs, so that what is prepared stays near. */
#include "ops/gpu/delta_chunk.h"

enum { COLUMNS = 16, WARPS = 4, THREADS = WARPS * GPU_LANES };
enum { SLAB = 1536 }; /* chunks of heads that are prepared together */

/* ---- chain ---- */

template <int DK>
static __global__ void __launch_bounds__(THREADS) chain_kernel(delta_args a, delta_slab slab)
{
    enum { OWN = DK / WARPS, SUMS = OWN / 16, TILES = OWN / 8, TOKENS = CHUNK / 8 };
    __shared__ __align__(16) float seen[WARPS][COLUMNS][CHUNK + 8], u[COLUMNS][CHUNK + 16];
    int lane = threadIdx.x % GPU_LANES, warp = threadIdx.x / GPU_LANES, g = lane / 4, t = lane % 4;
    int head = blockIdx.y, j0 = blockIdx.x * COLUMNS, begin, end;
    if ((int)blockIdx.z >= a.step.counts[GPU_SEQS])
        return;
    const gpu_seq seq = a.step.seqs[blockIdx.z];
    delta_blocks(seq.pos0, seq.n_rows, &begin, &end);
    /* Slots of its chunks follow each other. */
    int slot = (seq.row0 + begin) / CHUNK - slab.slot0, last = slot + (end - begin) / CHUNK;
    slot = slot > 0 ? slot : 0;
    last = last < slab.slots ? last : slab.slots;
    if (slot >= last)
        return;
    const delta_layout at = delta_layout_of(DK, a.dv);
    float *chunk = slab.chunks + ((int64_t)slot * a.heads + head) * at.all;
    const int64_t next = (int64_t)a.heads * at.all;
    float *state = (float *)(a.base + seq.slot * a.item_bytes) + (int64_t)head * DK * a.dv + j0;
    /* s[n][0..3]: columns g, g, g + 8, g + 8 and rows 2 t, 2 t + 1, 2 t, 2 t + 1 of tile n. */
    float s[TILES][4], decay[TILES][2];
    float4 w[SUMS][TOKENS], kt[TILES][PARTS], rest[2];
    int own_j = threadIdx.x / 8, own_t = threadIdx.x % 8 * 4; /* tokens own_t.. and own_t + 32.. */
#pragma unroll
    for (int n = 0; n < TILES; n++) {
#pragma unroll
        for (int i = 0; i < 4; i++)
            s[n][i] = state[(int64_t)(warp * OWN + 8 * n + 2 * t + i % 2) * a.dv + g + i / 2 * 8];
    }
#define LOAD_W(from)                                                                               \
    do {                                                                                           \
        const float4 *p =                                                                          \
            (const float4 *)((from) + at.w) + warp * SUMS * TOKENS * GPU_LANES + lane;             \
        _Pragma("unroll") for (int i = 0; i < SUMS * TOKENS; i++) w[i / TOKENS][i % TOKENS] =      \
            p[i * GPU_LANES];                                                                      \
    } while (0)
#define LOAD_KT(from)                                                                              \
    do {                                                                                           \
        const float4 *p =                                                                          \
            (const float4 *)((from) + at.kt) + warp * TILES * PARTS * GPU_LANES + lane;            \
        _Pragma("unroll") for (int i = 0; i < TILES * PARTS; i++) kt[i / PARTS][i % PARTS] =       \
            p[i * GPU_LANES];                                                                      \
        _Pragma("unroll") for (int n = 0; n < TILES; n++)                                          \
        {                                                                                          \
            float2 e = *(const float2 *)((from) + at.decay + warp * OWN + 8 * n + 2 * t);          \
            decay[n][0] = e.x;                                                                     \
            decay[n][1] = e.y;                                                                     \
        }                                                                                          \
    } while (0)
#define LOAD_U(from)                                                                               \
    do {                                                                                           \
        const float *p = (from) + at.u + (j0 + own_j) * CHUNK + own_t;                             \
        rest[0] = *(const float4 *)p;                                                              \
        rest[1] = *(const float4 *)(p + CHUNK / 2);                                                \
    } while (0)
    LOAD_W(chunk);
    LOAD_KT(chunk);
    LOAD_U(chunk);
    for (; slot < last; slot++, chunk += next) {
        bool more = slot + 1 < last;
        float sum[TOKENS][4] =
            {}; /* columns g and g + 8 of S times rows of W: tokens 8 n + 2 t.. */
        float4 *keep = (float4 *)(chunk + at.s) +
                       (blockIdx.x * (DK / 16) + warp * SUMS) * 2 * GPU_LANES + lane;
#pragma unroll
        for (int m = 0; m < SUMS; m++) {
            float4 sg = make_float4(s[2 * m][0], s[2 * m][1], s[2 * m + 1][0], s[2 * m + 1][1]);
            float4 sh = make_float4(s[2 * m][2], s[2 * m][3], s[2 * m + 1][2], s[2 * m + 1][3]);
            parts4 pg = parts_of(sg), ph = parts_of(sh);
            keep[2 * m * GPU_LANES] = sg;
            keep[(2 * m + 1) * GPU_LANES] = sh;
#pragma unroll
            for (int n = 0; n < TOKENS; n += 4) {
                parts4 x[4];
#pragma unroll
                for (int i = 0; i < 4; i++)
                    x[i] = parts_of(w[m][n + i]);
                add_products<4>(sum + n, pg, ph, x);
            }
        }
        if (more)
            LOAD_W(chunk + next);
#pragma unroll
        for (int n = 0; n < TOKENS; n++) {
            *(float2 *)&seen[warp][g][8 * n + 2 * t] = make_float2(sum[n][0], sum[n][1]);
            *(float2 *)&seen[warp][g + 8][8 * n + 2 * t] = make_float2(sum[n][2], sum[n][3]);
        }
        __syncthreads();
#pragma unroll
        for (int i = 0; i < 2; i++) {
            int token = own_t + i * CHUNK / 2;
            float4 all = {0, 0, 0, 0};
#pragma unroll
            for (int k = 0; k < WARPS; k++) {
                float4 x = *(const float4 *)&seen[k][own_j][token];
                all = make_float4(all.x + x.x, all.y + x.y, all.z + x.z, all.w + x.w);
            }
            all = make_float4(rest[i].x - all.x, rest[i].y - all.y, rest[i].z - all.z,
                              rest[i].w - all.w);
            *(float4 *)&u[own_j][token] = all;
            *(float4 *)(chunk + at.u + (j0 + own_j) * CHUNK + token) = all;
        }
        if (more)
            LOAD_U(chunk + next);
        __syncthreads();
        float add[TILES][4] = {};
#pragma unroll
        for (int p = 0; p < PARTS; p++) {
            parts4 ug = parts_of(*(const float4 *)&u[g][p * PART + 4 * t]);
            parts4 uh = parts_of(*(const float4 *)&u[g + 8][p * PART + 4 * t]);
            parts4 x[TILES];
#pragma unroll
            for (int n = 0; n < TILES; n++)
                x[n] = parts_of(kt[n][p]);
            add_products<TILES>(add, ug, uh, x);
        }
#pragma unroll
        for (int n = 0; n < TILES; n++) {
#pragma unroll
            for (int i = 0; i < 4; i++)
                s[n][i] = fmaf(decay[n][i % 2], s[n][i], add[n][i]);
        }
        if (more)
            LOAD_KT(chunk + next);
    }
#undef LOAD_W
#undef LOAD_KT
#undef LOAD_U
#pragma unroll
    for (int n = 0; n < TILES; n++) {
#pragma unroll
        for (int i = 0; i < 4; i++)
            state[(int64_t)(warp * OWN + 8 * n + 2 * t + i % 2) * a.dv + g + i / 2 * 8] = s[n][i];
    }
}

/* ---- output ---- */

enum { OUTPUT_WARPS = 8, OUTPUT_THREADS = OUTPUT_WARPS * GPU_LANES };

static __device__ inline bool finite4(float4 x)
{
    return isfinite(x.x) && isfinite(x.y) && isfinite(x.z) && isfinite(x.w);
}

/* A warp has 16 columns of all 64 tokens. */
template <int DK>
static __global__ void __launch_bounds__(OUTPUT_THREADS)
    output_kernel(delta_args a, delta_slab slab)
{
    enum { TOKENS = CHUNK / 8 };
    int lane = threadIdx.x % GPU_LANES, g = lane / 4, t = lane % 4, head = blockIdx.y;
    int64_t row0 = chunk_at(a.step, slab.slot0 + (int)blockIdx.x);
    if (row0 < 0)
        return;
    const delta_layout at = delta_layout_of(DK, a.dv);
    const float *chunk = slab.chunks + ((int64_t)blockIdx.x * a.heads + head) * at.all;
    for (int j = threadIdx.x / GPU_LANES; j < a.dv / COLUMNS; j += OUTPUT_WARPS) {
        float sum[TOKENS][4] = {};
        const float4 *s = (const float4 *)(chunk + at.s) + j * (DK / 16) * 2 * GPU_LANES + lane;
        const float4 *qe = (const float4 *)(chunk + at.qe) + lane;
#pragma unroll 2
        for (int m = 0; m < DK / 16; m++) {
            parts4 sg = parts_of(s[2 * m * GPU_LANES]), sh = parts_of(s[(2 * m + 1) * GPU_LANES]);
#pragma unroll
            for (int n = 0; n < TOKENS; n += 4) {
                parts4 x[4];
#pragma unroll
                for (int i = 0; i < 4; i++)
                    x[i] = parts_of(qe[(m * TOKENS + n + i) * GPU_LANES]);
                add_products<4>(sum + n, sg, sh, x);
            }
        }
        const float *u = chunk + at.u + j * COLUMNS * CHUNK, *b = chunk + at.b;
#pragma unroll
        for (int p = 0; p < PARTS; p++) {
            float4 ug = *(const float4 *)(u + g * CHUNK + p * PART + 4 * t);
            float4 uh = *(const float4 *)(u + (g + 8) * CHUNK + p * PART + 4 * t);
            parts4 pg = parts_of(ug), ph = parts_of(uh), x[2];
            /* Of tokens after its own, an output may not even see a zero times NaN. */
            bool guarded = !__all_sync(0xffffffffu, finite4(ug) && finite4(uh));
#pragma unroll
            for (int n = 2 * p; n < TOKENS; n += 2) {
                if (n == 2 * p && guarded) {
                    for (int i = 0; i < 8; i++) {
                        int token = 8 * (n + i / 4) + 2 * t + i % 2, c = g + i / 2 % 2 * 8;
                        float x = 0;
                        for (int k = p * PART; k <= token; k++)
                            x = fmaf(b[token * CHUNK + k], u[c * CHUNK + k], x);
                        sum[n + i / 4][i % 4] += x;
                    }
                    continue;
                }
#pragma unroll
                for (int i = 0; i < 2; i++)
                    x[i] = parts_of(
                        *(const float4 *)(b + (8 * (n + i) + g) * CHUNK + p * PART + 4 * t));
                add_products<2>(sum + n, pg, ph, x);
            }
        }
        float *o = a.o.p + row0 * a.o.stride + (int64_t)head * a.dv + j * COLUMNS + g;
#pragma unroll
        for (int n = 0; n < TOKENS; n++) {
#pragma unroll
            for (int i = 0; i < 4; i++)
                o[(8 * n + 2 * t + i % 2) * a.o.stride + i / 2 * 8] = sum[n][i];
        }
    }
}

/* ---- launching ---- */

static int slab_slots(int64_t rows, int64_t heads)
{
    int64_t most = SLAB / heads > 1 ? SLAB / heads : 1;
    return (int)gpu_min(rows / CHUNK + 1, most);
}

template <int DK>
static void blocks(const delta_args &a, const fl_step *step, void *scratch, gpu_queue *q)
{
    size_t room = sizeof(prepare_room<DK>);
    int slots = step->n_rows / CHUNK + 1;
    delta_slab slab = {(float *)scratch, 0, slab_slots(step->n_rows, a.heads)};
    dim3 chunks((unsigned)slab.slots, (unsigned)a.heads);
    dim3 chains((unsigned)(a.dv / COLUMNS), (unsigned)a.heads, (unsigned)step->n_seqs);
    gpu_allow_shared(q, prepare_kernel<DK>, room);
    for (; slab.slot0 < slots; slab.slot0 += slab.slots) {
        prepare_kernel<DK><<<chunks, PREPARE_THREADS, room, q->stream>>>(a, slab);
        chain_kernel<DK><<<chains, THREADS, 0, q->stream>>>(a, slab);
        output_kernel<DK><<<chunks, OUTPUT_THREADS, 0, q->stream>>>(a, slab);
    }
    gpu_launched(q);
}

static void run(const fl_call *call, const fl_step *step, int phase, const fl_worker *worker)
{
    (void)phase;
    gpu_queue *q = (gpu_queue *)worker->queue;
    delta_args a = delta_args_of(call, step, q);
    bool before = false, after = false, whole = false;
    for (int32_t i = 0; i < step->n_seqs && step->n_rows != step->n_seqs; i++) {
        int begin, end;
        delta_blocks(step->seqs[i].pos0, step->seqs[i].n_rows, &begin, &end);
        before |= begin > 0;
        whole |= begin < end;
        after |= end < step->seqs[i].n_rows;
    }
    if (!whole) {
        delta_plain(a, step, q);
        return;
    }
    a.range = DELTA_BEFORE;
    if (before)
        delta_recurrence(a, step->n_seqs, q);
    if (a.dk == 64)
        blocks<64>(a, step, worker->shared, q);
    else
        blocks<128>(a, step, worker->shared, q);
    a.range = DELTA_AFTER;
    if (after)
        delta_recurrence(a, step->n_seqs, q);
}

static void scratch(const fl_node_view *n, const fl_limits *limits, size_t *per_worker,
                    size_t *shared)
{
    int64_t heads = n->in[FL_DELTA_Q]->dim[0];
    delta_layout at =
        delta_layout_of((int)n->in[FL_DELTA_Q]->dim[1], (int)n->in[FL_DELTA_V]->dim[1]);
    *per_worker = 0;
    *shared = (size_t)slab_slots(limits->max_rows, heads) * (size_t)heads * (size_t)at.all *
              sizeof(float);
}

static bool fits(const fl_node_view *n)
{
    int64_t dk = n->in[FL_DELTA_Q]->dim[1], dv = n->in[FL_DELTA_V]->dim[1];
    return (dk == 64 || dk == 128) && dv % COLUMNS == 0;
}

static const fl_kernel kernels[] = {{.op = "delta_rule",
                                     .name = "chunked-gpu",
                                     .preference = 2,
                                     .n_phases = 1,
                                     .run = run,
                                     .fits = fits,
                                     .scratch = scratch}};
extern const fl_kernel_list gpu_kernels_delta_mma = FL_KERNEL_LIST(kernels);
