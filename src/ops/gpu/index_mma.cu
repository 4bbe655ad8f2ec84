/* index_select with scores on matrix units (index.h).  Float32 keys and all queries become BF16
 * parts, whose greatest products are summed (parts.h); BF16 keys are one part; 8-bit codes meet
 * queries rounded to such codes, in whole numbers.
 *
 * A warp takes 32 keys at a time, straight from memory to registers: each lane loads 16 bytes of
 * four keys in turn, and queries lie in shared memory in the order that this gives.  BF16 parts
 * have no room for infinities; a key with one, or with NaN, is scored again in plain arithmetic. */
#include "ops/gpu/index_many.h"
#include "ops/gpu/parts.h"

enum { WARPS = 8, ROWS = 4, KEYS = 8 * ROWS, FEW_COLS = 4, MAX_COLS = 8, MAX_D = 128 };

/* A lane's 16 bytes of a key of format F hold SPAN elements, which STEPS matrix products take. */
template <int F> struct form {
    enum {
        SPAN = F == FL_F32    ? 4
               : F == FL_BF16 ? 8
                              : 16,
        STEPS = F == FL_F32 ? 1 : 2,
        KEY_PARTS = F == FL_F32 ? 3 : 1,
        QUERY_PARTS = F == FL_I8 ? 1 : 3,
        LOADS = F == FL_BF16 ? 4 : 2, /* pieces of a key that are loaded at once, */
        TURNS = F == FL_F32 ? 4 : 1   /* so many times */
    };
};

/* What a product takes of 8 queries: two registers of each lane. */
typedef struct query_part {
    uint2 lane[GPU_LANES];
} query_part;

/* Queries of a row: [piece][step][column of 8 heads][part]. */
template <int F, int COLS>
static __device__ inline query_part &query_at(query_part *queries, int piece, int step, int col,
                                              int part)
{
    return queries[((piece * form<F>::STEPS + step) * COLS + col) * form<F>::QUERY_PARTS + part];
}

static __device__ inline void mma_codes(int32_t d[4], const uint32_t a[4], uint2 b)
{
    asm("mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
        "{%8, %9}, {%0, %1, %2, %3};"
        : "+r"(d[0]), "+r"(d[1]), "+r"(d[2]), "+r"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b.x), "r"(b.y));
}

/* Writes a row's queries and the weights of its heads.  A warp does 8 heads: a lane has those
 * elements of one that it is to multiply. */
template <int F, int COLS>
static __device__ void stage_queries(const select_args &a, int64_t row, query_part *queries,
                                     float *weight)
{
    enum { SPAN = form<F>::SPAN, STEPS = form<F>::STEPS, PIECES = form<F>::LOADS * form<F>::TURNS };
    int lane = threadIdx.x % GPU_LANES, g = lane / 4, t4 = lane % 4;
    for (int col = threadIdx.x / GPU_LANES; col < COLS; col += WARPS) {
        int head = 8 * col + g;
        const float *q = a.q.p + row * a.q.stride + (int64_t)head * a.d;
        float x[PIECES][SPAN], factor = 1;
        uint32_t top = 0;
#pragma unroll
        for (int i = 0; i < PIECES; i++) {
#pragma unroll
            for (int j = 0; j < SPAN; j++) {
                int d = (4 * i + t4) * SPAN + j;
                x[i][j] = head < a.heads && d < a.d ? q[d] : 0;
                top = max(top, magnitude_bits(x[i][j]));
            }
        }
        if (F == FL_I8) {
            for (int i = 1; i < 4; i *= 2)
                top = max(top, __shfl_xor_sync(0xffffffffu, top, i, GPU_LANES));
            cache_group group = cache_group_of<FL_I8>(top);
            factor = group.scale;
#pragma unroll
            for (int i = 0; i < PIECES; i++) {
                uint32_t word[SPAN / 4] = {};
#pragma unroll
                for (int j = 0; j < SPAN; j++)
                    word[j / 4] |= (uint32_t)cache_encode<FL_I8>(group, x[i][j]) << (j % 4 * 8);
#pragma unroll
                for (int s = 0; s < STEPS; s++)
                    query_at<F, COLS>(queries, i, s, col, 0).lane[lane] =
                        make_uint2(word[2 * s % (SPAN / 4)], word[(2 * s + 1) % (SPAN / 4)]);
            }
        } else {
#pragma unroll
            for (int i = 0; i < PIECES; i++) {
#pragma unroll
                for (int s = 0; s < STEPS; s++) {
                    const float *of = &x[i][4 * s % SPAN];
                    parts4 p = parts_of(make_float4(of[0], of[1], of[2], of[3]));
#pragma unroll
                    for (int k = 0; k < form<F>::QUERY_PARTS; k++)
                        query_at<F, COLS>(queries, i, s, col, k).lane[lane] =
                            make_uint2(p.lo[k], p.hi[k]);
                }
            }
        }
        if (t4 == 0)
            weight[head] = head < a.heads ? a.scale * a.w.p[row * a.w.stride + head] * factor : 0;
    }
}

/* dot[tile][col] += the products of 16 keys each with 8 heads, over one piece of their length;
 * key[2 tile]: keys g of the tile, key[2 tile + 1]: keys g + 8. */
template <int F, int COLS>
static __device__ inline void multiply(float dot[ROWS / 2][COLS][4], const uint4 key[ROWS],
                                       query_part *queries, int piece)
{
    int lane = threadIdx.x % GPU_LANES;
    parts4 part[ROWS];
#pragma unroll
    for (int i = 0; i < ROWS && F == FL_F32; i++)
        part[i] = parts_of(make_float4(__uint_as_float(key[i].x), __uint_as_float(key[i].y),
                                       __uint_as_float(key[i].z), __uint_as_float(key[i].w)));
#pragma unroll
    for (int n = 0; n < COLS; n++) {
        float sum[ROWS / 2][4] = {};
#pragma unroll
        for (int s = 0; s < form<F>::STEPS; s++) {
            uint2 q[3];
#pragma unroll
            for (int k = 0; k < 3; k++)
                q[k] = query_at<F, COLS>(queries, piece, s, n, k).lane[lane];
#pragma unroll
            for (int order = 2; order >= 0; order--) { /* the least products first */
#pragma unroll
                for (int k = 0; k <= order && k < form<F>::KEY_PARTS; k++) {
#pragma unroll
                    for (int i = 0; i < ROWS / 2; i++) {
                        const uint4 &g = key[2 * i], &h = key[2 * i + 1];
                        const parts4 &pg = part[2 * i], &ph = part[2 * i + 1];
                        const uint32_t of[4] = {
                            F == FL_F32 ? pg.lo[k]
                            : s         ? g.z
                                        : g.x,
                            F == FL_F32 ? ph.lo[k]
                            : s         ? h.z
                                        : h.x,
                            F == FL_F32 ? pg.hi[k]
                            : s         ? g.w
                                        : g.y,
                            F == FL_F32 ? ph.hi[k]
                            : s         ? h.w
                                        : h.y,
                        };
                        mma(sum[i], of, q[order - k].x, q[order - k].y);
                    }
                }
            }
        }
#pragma unroll
        for (int i = 0; i < ROWS / 2; i++) {
#pragma unroll
            for (int j = 0; j < 4; j++)
                dot[i][n][j] += sum[i][j];
        }
    }
}

/* The same for codes; whole numbers of up to 24 bits are floats too. */
template <int COLS>
static __device__ inline void multiply_codes(int32_t dot[ROWS / 2][COLS][4], const uint4 key[ROWS],
                                             query_part *queries, int piece)
{
    int lane = threadIdx.x % GPU_LANES;
#pragma unroll
    for (int n = 0; n < COLS; n++) {
#pragma unroll
        for (int s = 0; s < 2; s++) {
            uint2 q = query_at<FL_I8, COLS>(queries, piece, s, n, 0).lane[lane];
#pragma unroll
            for (int i = 0; i < ROWS / 2; i++) {
                const uint4 &g = key[2 * i], &h = key[2 * i + 1];
                const uint32_t of[4] = {s ? g.z : g.x, s ? h.z : h.x, s ? g.w : g.y, s ? h.w : h.y};
                mma_codes(dot[i][n], of, q);
            }
        }
    }
}

/* Loads this lane's part of KEYS keys from k0 on, the pieces of a turn; zero from n on. */
template <int F>
static __device__ inline void load_keys(const select_args &a, const unsigned char *keys, int64_t k0,
                                        int64_t n, int turn, uint4 x[form<F>::LOADS][ROWS])
{
    int g = threadIdx.x % GPU_LANES / 4, t4 = threadIdx.x % 4;
#pragma unroll
    for (int i = 0; i < form<F>::LOADS; i++) {
        int at = (turn * form<F>::LOADS + i) * 64 + 16 * t4;
#pragma unroll
        for (int j = 0; j < ROWS; j++)
            x[i][j] = k0 + 8 * j + g < n && at < a.d * (16 / form<F>::SPAN)
                          ? __ldg((const uint4 *)(keys + (8 * j + g) * a.item_bytes + at))
                          : make_uint4(0, 0, 0, 0);
    }
}

/* Scores KEYS keys from k0 on for row r, of which n are seen; x: the keys, if one turn is all. */
template <int F, int COLS>
static __device__ inline void score_block(const select_args &a, int64_t r, int64_t n, int64_t k0,
                                          const unsigned char *keys, uint4 x[form<F>::LOADS][ROWS],
                                          query_part *queries, const float *weight, uint32_t *n_of)
{
    typedef form<F> how;
    int lane = threadIdx.x % GPU_LANES, g = lane / 4, t4 = lane % 4;
    uint32_t *scores = a.score + r * a.pieces * PIECE;
    float dot[ROWS / 2][COLS][4] = {};
    int32_t whole[ROWS / 2][COLS][4] = {};
#pragma unroll
    for (int turn = 0; turn < how::TURNS; turn++) {
        if (how::TURNS > 1)
            load_keys<F>(a, keys, k0, n, turn, x);
#pragma unroll
        for (int i = 0; i < how::LOADS; i++) {
            if constexpr (F == FL_I8)
                multiply_codes<COLS>(whole, x[i], queries, turn * how::LOADS + i);
            else
                multiply<F, COLS>(dot, x[i], queries, turn * how::LOADS + i);
        }
    }
    /* This lane has, of each tile and column, keys g and g + 8 and heads 2 t and 2 t + 1. */
    uint32_t odd[ROWS]; /* of each key four bits */
#pragma unroll
    for (int j = 0; j < ROWS; j++) {
        float score = 0, trace = 0;
        int64_t at = k0 + 8 * j + g;
#pragma unroll
        for (int i = 0; i < COLS; i++) {
            float2 by = *(const float2 *)&weight[8 * i + 2 * t4];
#pragma unroll
            for (int c = 0; c < 2; c++) {
                float u = F == FL_I8 ? (float)whole[j / 2][i][j % 2 * 2 + c]
                                     : dot[j / 2][i][j % 2 * 2 + c];
                score = fmaf(c ? by.y : by.x, u < 0 ? 0 : u, score);
                trace = fmaf(u, 0, trace); /* NaN when one of them is not finite */
            }
        }
        for (int i = 1; i < 4; i *= 2)
            score += __shfl_xor_sync(0xffffffffu, score, i, GPU_LANES);
        odd[j] = F == FL_I8 ? 0 : __ballot_sync(0xffffffffu, trace != 0);
        if (t4 == 0 && at < n && !(odd[j] >> (4 * g) & 15)) {
            if (F == FL_I8)
                score *= *(const float *)(keys + (8 * j + g) * a.item_bytes + a.scales_at);
            uint32_t y = ordered(score);
            scores[at] = y;
            atomicAdd(&n_of[digit_of(y, 0)], 1u);
        }
    }
    if constexpr (F != FL_I8) {
        for (int i = 0; i < KEYS && (odd[0] | odd[1] | odd[2] | odd[3]); i++) {
            int64_t at = k0 + i;
            uint32_t of = i < 16 ? i < 8 ? odd[0] : odd[1] : i < 24 ? odd[2] : odd[3];
            if (at >= n || !(of >> (i % 8 * 4) & 15))
                continue;
            uint32_t y = ordered(plain_score<F>(a, a.row0 + r, keys + i * a.item_bytes));
            if (lane == 0) {
                scores[at] = y;
                atomicAdd(&n_of[digit_of(y, 0)], 1u);
            }
        }
    }
}

/* What a block has in shared memory for each of its rows. */
template <int F, int COLS, int TILE> struct table {
    typedef form<F> how;
    query_part queries[TILE][how::LOADS * how::TURNS * how::STEPS * COLS * how::QUERY_PARTS];
    float weight[TILE][8 * COLS];
    uint32_t n_of[TILE][DIGITS];
};

/* COLS: of 8 heads.  TILE: rows of a block; those of one sequence share the keys that it loads. */
template <int F, int COLS, int TILE>
static __global__ void __launch_bounds__(SELECT_THREADS, COLS > 4 ? 1 : 2)
    score_kernel(select_args a)
{
    typedef form<F> how;
    extern __shared__ __align__(16) unsigned char room[];
    table<F, COLS, TILE> &s = *(table<F, COLS, TILE> *)room;
    int64_t r0 = (int64_t)blockIdx.y * TILE, begin = (int64_t)blockIdx.x * WARPS * KEYS;
    int warp = threadIdx.x / GPU_LANES;
    int64_t seen[TILE], most = 0; /* keys of each row, where it has some for this block */
    bool one = true;
#pragma unroll
    for (int t = 0; t < TILE; t++) {
        seen[t] = r0 + t < a.rows ? contest(a, r0 + t) : 0;
        seen[t] = begin < seen[t] ? seen[t] : 0;
        most = max(most, seen[t]);
        if (seen[t])
            stage_queries<F, COLS>(a, a.row0 + r0 + t, s.queries[t], s.weight[t]);
        one = one && (!seen[t] || a.step.row_seq[a.row0 + r0 + t] == a.step.row_seq[a.row0 + r0]);
    }
    if (!most)
        return;
    for (int i = threadIdx.x; i < TILE * DIGITS; i += SELECT_THREADS)
        s.n_of[0][i] = 0;
    __syncthreads();
    for (int pass = 0; pass < (one ? 1 : TILE); pass++) {
        int64_t n = one ? most : 0;
#pragma unroll
        for (int t = 0; t < TILE; t++)
            n = !one && t == pass ? seen[t] : n;
        if (!n)
            continue;
        const gpu_seq seq = a.step.seqs[a.step.row_seq[a.row0 + r0 + pass]];
        for (int64_t k0 = begin + warp * KEYS; k0 < n; k0 += (int64_t)gridDim.x * WARPS * KEYS) {
            /* All keys are of one page. */
            const unsigned char *keys = a.base + step_item(a.step, seq, k0) * a.item_bytes;
            uint4 x[how::LOADS][ROWS];
            if (how::TURNS == 1)
                load_keys<F>(a, keys, k0, n, 0, x);
#pragma unroll
            for (int t = 0; t < TILE; t++) {
                if (k0 < seen[t] && (one || t == pass))
                    score_block<F, COLS>(a, r0 + t, seen[t], k0, keys, x, s.queries[t], s.weight[t],
                                         s.n_of[t]);
            }
        }
    }
#pragma unroll
    for (int t = 0; t < TILE; t++) {
        if (seen[t])
            add_digits(a, r0 + t, 0, s.n_of[t], blocks_of(seen[t], WARPS * KEYS));
    }
}

template <int F, int COLS, int TILE> static void score_tiles(const select_args &a, gpu_queue *q)
{
    size_t shared = sizeof(table<F, COLS, TILE>);
    int64_t work = (a.context + WARPS * KEYS - 1) / (WARPS * KEYS);
    unsigned tiles = gpu_blocks(a.rows, TILE);
    dim3 grid(index_blocks(q, work, tiles, 2), tiles);
    gpu_allow_shared(q, score_kernel<F, COLS, TILE>, shared);
    score_kernel<F, COLS, TILE><<<grid, SELECT_THREADS, shared, q->stream>>>(a);
}

/* Keys that fit the registers at once are shared by a tile of a prompt's rows. */
template <int F, int COLS> static void score_keys(const select_args &a, gpu_queue *q)
{
    if constexpr (form<F>::TURNS == 1 && COLS <= FEW_COLS) {
        if (a.prompt) {
            score_tiles<F, COLS, F == FL_I8 ? 4 : 2>(a, q);
            return;
        }
    }
    score_tiles<F, COLS, 1>(a, q);
}

struct matrix_units {
    template <int F> static int score(const select_args &a, int64_t n_keys, gpu_queue *q)
    {
        if (n_keys > 0 && q->wgmma && index_many_fits((fl_dtype)F, a.heads, a.d)) {
            index_many_score(a, (fl_dtype)F, n_keys, q);
            return 0;
        }
        if constexpr (F != FL_F8_E4M3) {
            if (a.heads <= 8 * FEW_COLS)
                score_keys<F, FEW_COLS>(a, q);
            else
                score_keys<F, MAX_COLS>(a, q);
        }
        return 1;
    }
};

static bool fits(const fl_node_view *n)
{
    int64_t heads = n->in[FL_INDEX_Q]->dim[0], d = n->in[FL_INDEX_Q]->dim[1];
    return heads <= 8 * MAX_COLS && d <= MAX_D &&
           (n->in[FL_INDEX_KEYS]->dtype != FL_F32 || d % 4 == 0);
}

static const fl_kernel kernels[] = {{.op = "index_select",
                                     .name = "mma-gpu",
                                     .preference = 2,
                                     .n_phases = 1,
                                     .run = index_run<matrix_units>,
                                     .fits = fits,
                                     .scratch = index_scratch}};
extern const fl_kernel_list gpu_kernels_index_mma = FL_KERNEL_LIST(kernels);
