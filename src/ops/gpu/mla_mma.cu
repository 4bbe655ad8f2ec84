/* mla on matrix units.  A number becomes BF16 numbers: queries and weights of the softmax three, of
 * which nothing is lost, or one with precision fast; a cached element one, or three where the cache
 * is float32 and precision is not fast.  Of the products of three with three the six greatest are
 * taken: what is left out is below the last bit of a float32.
 *
 * A block takes 16 or 32 heads and a span of keys, KEYS of them at a time: their rows come to
 * shared memory as they are while the ones before are worked on, and are made BF16 numbers there
 * once, which serve as keys and as values.  Four warps per 16 heads share the length of the scores'
 * sums, whose queries stay in registers, and the columns of the values. */
#include "ops/gpu/mla_expand.h"
#include "ops/gpu/mla_mma.h"
#include "ops/gpu/mla_project.h"

template <int F, int Q, int TILES, typename SIZE>
static __global__ void __launch_bounds__(TILES *TEAM *GPU_LANES) attend_kernel(mla_args a)
{
    typedef form<F, Q> how;
    typedef desk<F, Q, TILES> table;
    enum { WARPS = TILES * TEAM, P = how::PARTS, STEPS = SIZE::STEPS, COLS = SIZE::COLS };
    extern __shared__ __align__(128) unsigned char room[];
    table &s = *(table *)room;
    uint16_t *planes = (uint16_t *)(room + sizeof(table));
    const int whole = SIZE::whole(a), latent = SIZE::latent(a), pitch = pitch_of(whole);
    const int lane = threadIdx.x % GPU_LANES, bytes = SIZE::template bytes<F>(a);
    unsigned char *raw = (unsigned char *)(planes + how::ROOMS * KEYS * pitch);
    const int raw_pitch = how::RAW ? bytes : pitch * 2;
    int warp = threadIdx.x / GPU_LANES, part = warp % TEAM, tile = warp / TEAM;
    int g = lane / 4, t4 = lane % 4;
    int64_t r = blockIdx.z, row = a.row0 + r;
    int head0 = blockIdx.x * TILES * HEADS, span = blockIdx.y;
    if (row >= a.step.counts[GPU_ROWS])
        return;
    int64_t n_keys = keys_of(a, row), length = span_length(n_keys, a.most_spans);
    int64_t visible = (int64_t)a.step.pos[row] + 1;
    int64_t begin = span * length, end = begin + length < n_keys ? begin + length : n_keys;
    if (begin >= n_keys)
        return;
    const gpu_seq seq = a.step.seqs[a.step.row_seq[row]];
    const int32_t *select = a.select ? a.select + row * a.select_stride : NULL;
    unsigned char *landing = how::RAW ? raw : (unsigned char *)planes;
    bring_rows<WARPS>(a, look_up(a, seq, select, begin, end, visible), landing, bytes, raw_pitch,
                      s.there[0]);
    int ahead = look_up(a, seq, select, begin + KEYS, end, visible);

    /* This warp's share of its heads' queries. */
    const int steps = (whole / STEP + TEAM - 1) / TEAM, step0 = part * steps;
    const int cols = latent / 8 / TEAM, col0 = part * cols, mine = head0 + tile * HEADS + g;
    uint32_t query[STEPS][Q][4];
#pragma unroll
    for (int i = 0; i < STEPS; i++) {
#pragma unroll
        for (int j = 0; j < 4; j++) {
            int head = mine + j % 2 * 8, c = (step0 + i) * STEP + 2 * t4 + j / 2 * 8;
            float2 x = make_float2(0, 0);
            if (i < steps && (SIZE::EXACT || c < whole) && head < a.heads)
                x = *(const float2 *)(a.query + (r * a.heads + head) * whole + c);
            uint32_t both[Q];
            pair_parts<Q>(x.x, x.y, both);
#pragma unroll
            for (int p = 0; p < Q; p++)
                query[i][p][j] = both[p];
        }
    }
    float acc[COLS][4] = {}, high = -INFINITY, sum = 0;
    int h = threadIdx.x / 8, own = threadIdx.x % 8 * 4; /* this thread's head and four keys */
    /* Where this lane's row of the matrices lies: of keys, of values and of weights. */
    int key_at = (lane / 16 * 8 + lane % 8) * pitch + lane / 8 % 2 * 8;
    int value_at = (lane / 8 % 2 * 8 + lane % 8) * pitch + lane / 16 * 8;
    int weight_at = (tile * HEADS + lane % 16) * (KEYS + 8) + lane / 16 * 8;
    int turn = 0;
    for (int64_t k0 = begin; k0 < end; k0 += KEYS, turn = !turn) {
        const uint16_t *plane = planes + (how::RAW ? 0 : turn * KEYS * pitch);
        copies_wait<0>();
        __syncthreads(); /* the rows are there, and nobody is at the ones before */
        if (how::RAW) {
            convert_rows<F, Q, WARPS, SIZE>(a, raw, planes, s.factor);
            __syncwarp();
        }
        if (k0 + KEYS < end) {
            bring_rows<WARPS>(a, ahead,
                              how::RAW ? raw : (unsigned char *)(planes + !turn * KEYS * pitch),
                              bytes, raw_pitch, s.there[!turn]);
            ahead = look_up(a, seq, select, k0 + 2 * KEYS, end, visible);
        }
        if (how::RAW)
            __syncthreads();

        /* Scores: each warp over its share of the length. */
        float score[KEYS / 8][4] = {};
#pragma unroll
        for (int i = 0; i < STEPS; i++) {
            int c = (step0 + i) * STEP;
            if (i >= steps || (!SIZE::EXACT && c >= whole))
                continue;
#pragma unroll
            for (int n = 0; n < KEYS / 8; n += 2) {
                uint32_t key[P][4];
#pragma unroll
                for (int p = 0; p < P; p++)
                    load_matrices(key[p], plane + (p * KEYS + n * 8) * pitch + key_at + c);
                if (Q == 1 && !how::SCALED) {
                    multiply<Q, P>(&score[n], query[i], key);
                    continue;
                }
                float add[2][4] = {};
                multiply<Q, P>(add, query[i], key);
#pragma unroll
                for (int m = 0; m < 2; m++) {
                    float2 by = make_float2(1, 1);
                    if (how::SCALED)
                        by = *(const float2 *)&s.factor[c / FL_CACHE_GROUP][8 * (n + m) + 2 * t4];
#pragma unroll
                    for (int j = 0; j < 4; j++)
                        score[n + m][j] =
                            how::SCALED ? fmaf(add[m][j], j % 2 ? by.y : by.x, score[n + m][j])
                                        : score[n + m][j] + add[m][j];
                }
            }
        }
#pragma unroll
        for (int n = 0; n < KEYS / 8; n++) {
            float *to = &s.partial[part][tile * HEADS + g][8 * n + 2 * t4];
            *(float2 *)to = make_float2(score[n][0], score[n][1]);
            *(float2 *)(to + 8 * (KEYS + 8)) = make_float2(score[n][2], score[n][3]);
        }
        __syncthreads();

        /* The softmax goes on: a thread has four keys of a head. */
        float x[4] = {}, top = -INFINITY, all = 0;
        float4 is = *(const float4 *)&s.there[turn][own];
#pragma unroll
        for (int w = 0; w < TEAM; w++) {
            float4 from = *(const float4 *)&s.partial[w][h][own];
            x[0] += from.x;
            x[1] += from.y;
            x[2] += from.z;
            x[3] += from.w;
        }
        x[0] = is.x != 0 ? x[0] : -INFINITY;
        x[1] = is.y != 0 ? x[1] : -INFINITY;
        x[2] = is.z != 0 ? x[2] : -INFINITY;
        x[3] = is.w != 0 ? x[3] : -INFINITY;
        top = fmaxf(fmaxf(x[0], x[1]), fmaxf(x[2], x[3]));
        for (int i = 4; i > 0; i /= 2)
            top = fmaxf(top, __shfl_xor_sync(0xffffffffu, top, i, 8));
        float now = fmaxf(high, top), zero = now == -INFINITY ? 0 : now;
#pragma unroll
        for (int i = 0; i < 4; i++) {
            x[i] = expf(x[i] - zero);
            all += x[i];
        }
        float old = expf(high - zero);
        for (int i = 4; i > 0; i /= 2)
            all += __shfl_xor_sync(0xffffffffu, all, i, 8);
        sum = sum * old + all;
        high = now;
#pragma unroll
        for (int set = 0; set < how::SETS; set++) {
            float4 by = make_float4(1, 1, 1, 1);
            if (how::SCALED)
                by = *(const float4 *)&s.factor[set][own];
            uint32_t lo[Q], hi[Q];
            pair_parts<Q>(x[0] * by.x, x[1] * by.y, lo);
            pair_parts<Q>(x[2] * by.z, x[3] * by.w, hi);
#pragma unroll
            for (int p = 0; p < Q; p++)
                *(uint2 *)&s.weight[set][p][h][own] = make_uint2(lo[p], hi[p]);
        }
        if (own == 0)
            s.shrink[h] = old;
        __syncthreads();

        /* Values: each warp its columns. */
        uint32_t weight[KEYS / STEP][Q][4];
        int set = how::SCALED ? col0 * 8 / FL_CACHE_GROUP : 0;
#pragma unroll
        for (int k = 0; k < KEYS / STEP; k++) {
#pragma unroll
            for (int p = 0; p < Q; p++)
                load_matrices(weight[k][p], &s.weight[set][p][0][0] + weight_at + k * STEP);
        }
        float old_g = s.shrink[tile * HEADS + g], old_h = s.shrink[tile * HEADS + g + 8];
        if (__any_sync(0xffffffffu, old_g != 1 || old_h != 1)) {
#pragma unroll
            for (int n = 0; n < COLS; n++) {
                acc[n][0] *= old_g;
                acc[n][1] *= old_g;
                acc[n][2] *= old_h;
                acc[n][3] *= old_h;
            }
        }
#pragma unroll
        for (int n = 0; n < COLS; n += 2) {
            if (n >= cols) /* an odd last column is done in a pair of which one is not looked at */
                continue;
#pragma unroll
            for (int k = 0; k < KEYS / STEP; k++) {
                uint32_t value[P][4];
#pragma unroll
                for (int p = 0; p < P; p++)
                    load_transposed(value[p], plane + (p * KEYS + k * STEP) * pitch + value_at +
                                                  (col0 + n) * 8);
                if (Q == 1) {
                    multiply<Q, P>(&acc[n], weight[k], value);
                    continue;
                }
                float add[2][4] = {};
                multiply<Q, P>(add, weight[k], value);
#pragma unroll
                for (int m = 0; m < 2; m++) {
#pragma unroll
                    for (int j = 0; j < 4; j++)
                        acc[n + m][j] += add[m][j];
                }
            }
        }
    }
    int64_t item = latent + 2, next = a.spans * item; /* from head to head */
    float *out = a.partial + ((r * a.heads + head0) * a.spans + span) * item;
    if (own == 0 && head0 + h < a.heads)
        *(float2 *)(out + h * next) = make_float2(high, sum);
#pragma unroll
    for (int n = 0; n < COLS; n++) {
#pragma unroll
        for (int i = 0; i < 2; i++) {
            int head = tile * HEADS + g + 8 * i, c = (col0 + n) * 8 + 2 * t4;
            if (n < cols && head0 + head < a.heads)
                *(float2 *)(out + head * next + 2 + c) =
                    make_float2(acc[n][2 * i], acc[n][2 * i + 1]);
        }
    }
}

template <int F, int Q, int TILES, typename SIZE>
static void attend(const mla_args &a, gpu_queue *q)
{
    typedef form<F, Q> how;
    int pitch = pitch_of(a.latent + a.pe);
    size_t shared = sizeof(desk<F, Q, TILES>) + (size_t)how::ROOMS * KEYS * pitch * 2 +
                    (how::RAW ? (size_t)KEYS * a.row_bytes : 0);
    dim3 grid(gpu_blocks(a.heads, TILES * HEADS), (unsigned)a.spans, (unsigned)a.rows);
    gpu_allow_shared(q, attend_kernel<F, Q, TILES, SIZE>, shared);
    attend_kernel<F, Q, TILES, SIZE><<<grid, TILES * TEAM * GPU_LANES, shared, q->stream>>>(a);
}

/* The sizes that matter are known to the compiler; the others go without the second tile of heads.
 */
template <int F, int Q> static void attend_heads(const mla_args &a, gpu_queue *q)
{
    if (a.latent != 512 || a.pe != 64)
        attend<F, Q, 1, sizes<0, 0, 9, 16>>(a, q);
    else if (a.heads <= FEW_HEADS)
        attend<F, Q, 1, sizes<576, 512, 9, 16>>(a, q);
    else
        attend<F, Q, 2, sizes<576, 512, 9, 16>>(a, q);
}

/* Q: parts of a query. */
template <int Q> struct matrix_units {
    static void absorb(const mla_args &a, fl_dtype kv_b, gpu_queue *q)
    {
        if (kv_b == FL_BF16)
            project<true, Q>(a, q);
        else
            mla_absorb(a, kv_b, q);
    }

    static void merge(const mla_args &a, fl_dtype kv_b, gpu_queue *q)
    {
        if (kv_b == FL_BF16)
            project<false, Q>(a, q);
        else
            mla_merge(a, kv_b, q);
    }

    template <int F> static void attend(const mla_args &a, gpu_queue *q)
    {
        attend_heads<F, Q>(a, q);
    }

    /* Whole blocks that see everything, where the sizes and the processor allow. */
    static bool expand(const mla_args &a, const fl_call *call, int seq, int64_t first,
                       void *scratch, gpu_queue *q)
    {
        if (!q->wgmma || a.select ||
            !mla_expand_fits(call->in[FL_MLA_KV_B].type.dtype, a.latent, a.nope, a.pe, a.dv))
            return false;
        mla_expand_rows(a, call->in[FL_MLA_CACHE].type.dtype, Q, seq, first, scratch, q);
        return true;
    }
};

template <int Q>
static void scratch(const fl_node_view *n, const fl_limits *limits, size_t *per_worker,
                    size_t *shared)
{
    const fl_type *kv_b = n->in[FL_MLA_KV_B], *cache = n->in[FL_MLA_CACHE];
    int64_t heads = n->in[FL_MLA_Q]->dim[0], latent = kv_b->dim[1];
    int64_t dv = n->attr[FL_MLA_V_DIM].i, nope = kv_b->dim[0] / heads - dv;
    mla_scratch(n, limits, per_worker, shared);
    if ((n->n_in > FL_MLA_SELECT && n->in[FL_MLA_SELECT]) ||
        !mla_expand_fits(kv_b->dtype, latent, nope, cache->dim[0] - latent, dv))
        return;
    size_t own = (size_t)mla_expand_scratch(heads, latent, cache->dtype, Q, limits);
    *shared = own > *shared ? own : *shared;
}

/* Whole sums of 16, columns that divide among the warps (codes with factors: each warp's within a
 * group), and queries that fit their registers. */
static bool fits(const fl_node_view *n)
{
    int64_t latent = n->in[FL_MLA_KV_B]->dim[1], whole = n->in[FL_MLA_CACHE]->dim[0];
    return whole % STEP == 0 && latent % (8 * TEAM) == 0 && whole <= 9 * TEAM * STEP &&
           latent <= 16 * TEAM * 8 &&
           (n->in[FL_MLA_CACHE]->dtype != FL_I8 || FL_CACHE_GROUP % (latent / TEAM) == 0);
}

static const fl_kernel kernels[] = {{.op = "mla",
                                     .name = "mma-gpu",
                                     .preference = 2,
                                     .n_phases = 1,
                                     .run = mla_run<matrix_units<3>>,
                                     .fits = fits,
                                     .scratch = scratch<3>},
                                    {.op = "mla",
                                     .name = "bf16-gpu",
                                     .fast = true,
                                     .preference = 3,
                                     .n_phases = 1,
                                     .run = mla_run<matrix_units<1>>,
                                     .fits = fits,
                                     .scratch = scratch<1>}};
extern const fl_kernel_list gpu_kernels_mla_mma = FL_KERNEL_LIST(kernels);
