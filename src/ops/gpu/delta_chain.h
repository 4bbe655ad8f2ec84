/* delta_rule for prompts: what is made of prepared chunks (delta_chunk.h), on matrix units.
 *
 * chain walks through the chunks of a sequence, which is all that is serial: u = U - W S and
 * S' = E_64 S + sum_j (k_j E_64 / E_j) u_j.  A block has 16 columns of a head.  Its warps share the
 * rows, 16 each, which stay in the registers in which the matrix unit leaves and takes them; where
 * there are fewer rows than that, two warps keep the same and share the tokens.  It leaves u and
 * the states between chunks behind, of which output makes o = (q E) S + B u for all chunks at once.
 */
#ifndef FL_OPS_GPU_DELTA_CHAIN_H
#define FL_OPS_GPU_DELTA_CHAIN_H

#include "ops/gpu/delta_chunk.h"

enum { COLUMNS = 16, TILES = 2 /* of 8 rows of S */ };

#ifdef __CUDACC__

/* ---- chain ---- */

template <int DK> struct chain_room {
    enum { GROUPS = DK / 16, TOKENS = GROUPS /* tiles of 8 tokens that a warp takes */ };
    /* Of the next chunk, each thread's own. */
    float4 w[TOKENS][DELTA_BLOCK], kt[TILES * PARTS][DELTA_BLOCK];
    /* W S, by the rows that were summed; gaps keep lanes out of each other's banks. */
    float seen[GROUPS][COLUMNS][CHUNK + 8];
    float u[COLUMNS][CHUNK + 16];
};

template <int DK> static __device__ inline void bring_w(chain_room<DK> &m, const float *w)
{
    enum { TOKENS = chain_room<DK>::TOKENS, GROUPS = chain_room<DK>::GROUPS };
    int lane = threadIdx.x % GPU_LANES, warp = threadIdx.x / GPU_LANES;
    const float4 *from = (const float4 *)w + lane +
                         (warp % GROUPS * (CHUNK / 8) + warp / GROUPS * TOKENS) * GPU_LANES;
#pragma unroll
    for (int n = 0; n < TOKENS; n++)
        copy_async(&m.w[n][threadIdx.x], from + n * GPU_LANES);
    copies_commit();
}

template <int DK> static __device__ inline void bring_kt(chain_room<DK> &m, const float *kt)
{
    int lane = threadIdx.x % GPU_LANES, group = threadIdx.x / GPU_LANES % chain_room<DK>::GROUPS;
    const float4 *from = (const float4 *)kt + group * TILES * PARTS * GPU_LANES + lane;
#pragma unroll
    for (int i = 0; i < TILES * PARTS; i++)
        copy_async(&m.kt[i][threadIdx.x], from + i * GPU_LANES);
    copies_commit();
}

template <int DK>
static __device__ inline void chain(const delta_args &a, const delta_slab &slab, int seq_at,
                                    int head, int tile, unsigned char *room)
{
    enum { GROUPS = chain_room<DK>::GROUPS, TOKENS = chain_room<DK>::TOKENS };
    enum { QUADS = COLUMNS * CHUNK / 4 / DELTA_BLOCK };
    chain_room<DK> &m = *(chain_room<DK> *)room;
    int lane = threadIdx.x % GPU_LANES, warp = threadIdx.x / GPU_LANES, g = lane / 4, t = lane % 4;
    int group = warp % GROUPS, token0 = warp / GROUPS * TOKENS * 8, begin, end;
    const gpu_seq seq = a.step.seqs[seq_at];
    gpu_whole_blocks(seq.pos0, seq.n_rows, &begin, &end);
    /* The slots of its chunks follow each other. */
    int slot = (seq.row0 + begin) / CHUNK - slab.slot0, last = slot + (end - begin) / CHUNK;
    slot = slot > 0 ? slot : 0;
    last = last < slab.slots ? last : slab.slots;
    if (slot >= last)
        return;
    const delta_layout at = delta_layout_of(DK, a.dv);
    const int64_t next = (int64_t)a.heads * at.all;
    float *chunk = slab.chunks + ((int64_t)slot * a.heads + head) * at.all;
    float *state = (float *)(a.base + seq.slot * a.item_bytes) +
                   ((int64_t)head * DK + group * 16 + 2 * t) * a.dv + tile * COLUMNS + g;
    /* s[n][0..3]: columns g, g, g + 8, g + 8 and rows 2 t, 2 t + 1, 2 t, 2 t + 1 of tile n. */
    float s[TILES][4];
    /* Four tokens of a column each, of which the thread makes u. */
    int own_j = threadIdx.x / (CHUNK / 4), own_t = threadIdx.x % (CHUNK / 4) * 4;
    static_assert(QUADS == 1, "one quad for every thread");
#pragma unroll
    for (int n = 0; n < TILES; n++) {
#pragma unroll
        for (int i = 0; i < 4; i++)
            s[n][i] = state[(int64_t)(8 * n + i % 2) * a.dv + i / 2 * 8];
    }
    const int u_at = at.u + (tile * COLUMNS + own_j) * CHUNK + own_t;
    const int decay_at = at.decay + group * 16 + 2 * t;
    float4 rest = *(const float4 *)(chunk + u_at);
    bring_w<DK>(m, chunk + at.w);
    bring_kt<DK>(m, chunk + at.kt);
    for (; slot < last; slot++, chunk += next) {
        bool more = slot + 1 < last;
        float2 decay[TILES];
#pragma unroll
        for (int n = 0; n < TILES; n++)
            decay[n] = *(const float2 *)(chunk + decay_at + 8 * n);
        float4 sg = make_float4(s[0][0], s[0][1], s[1][0], s[1][1]);
        float4 sh = make_float4(s[0][2], s[0][3], s[1][2], s[1][3]);
        if (warp < GROUPS) {
            float4 *keep =
                (float4 *)(chunk + at.s) + (tile * GROUPS + group) * 2 * GPU_LANES + lane;
            keep[0] = sg;
            keep[GPU_LANES] = sh;
        }
        halves4 pg = halves_of(sg), ph = halves_of(sh);
        copies_wait<1>(); /* W is here */
#pragma unroll
        for (int n = 0; n < TOKENS; n += 4) {
            float sum[4][4] = {}; /* columns g and g + 8 times rows 2 t and 2 t + 1 of W */
            halves4 x[4];
#pragma unroll
            for (int i = 0; i < 4; i++)
                x[i] = halves_of(m.w[n + i][threadIdx.x]);
            add_tf32<4>(sum, pg, ph, x);
#pragma unroll
            for (int i = 0; i < 4; i++) {
                int token = token0 + 8 * (n + i) + 2 * t;
                *(float2 *)&m.seen[group][g][token] = make_float2(sum[i][0], sum[i][1]);
                *(float2 *)&m.seen[group][g + 8][token] = make_float2(sum[i][2], sum[i][3]);
            }
        }
        if (more)
            bring_w<DK>(m, chunk + next + at.w);
        __syncthreads();
        float4 all = {0, 0, 0, 0};
#pragma unroll
        for (int k = 0; k < GROUPS; k++) {
            float4 x = *(const float4 *)&m.seen[k][own_j][own_t];
            all = make_float4(all.x + x.x, all.y + x.y, all.z + x.z, all.w + x.w);
        }
        all = make_float4(rest.x - all.x, rest.y - all.y, rest.z - all.z, rest.w - all.w);
        *(float4 *)&m.u[own_j][own_t] = all;
        *(float4 *)(chunk + u_at) = all;
        if (more) {
            rest = *(const float4 *)(chunk + next + u_at);
            copies_wait<1>(); /* K is here */
        } else {
            copies_wait<0>();
        }
        __syncthreads();
        float add[TILES][4] = {};
#pragma unroll
        for (int p = 0; p < PARTS; p++) {
            halves4 ug = halves_of(*(const float4 *)&m.u[g][p * PART + 4 * t]);
            halves4 uh = halves_of(*(const float4 *)&m.u[g + 8][p * PART + 4 * t]);
            halves4 x[TILES];
#pragma unroll
            for (int n = 0; n < TILES; n++)
                x[n] = halves_of(m.kt[n * PARTS + p][threadIdx.x]);
            add_tf32<TILES>(add, ug, uh, x);
        }
        if (more)
            bring_kt<DK>(m, chunk + next + at.kt);
#pragma unroll
        for (int n = 0; n < TILES; n++) {
            s[n][0] = fmaf(decay[n].x, s[n][0], add[n][0]);
            s[n][1] = fmaf(decay[n].y, s[n][1], add[n][1]);
            s[n][2] = fmaf(decay[n].x, s[n][2], add[n][2]);
            s[n][3] = fmaf(decay[n].y, s[n][3], add[n][3]);
        }
    }
#pragma unroll
    for (int n = 0; n < TILES && warp < GROUPS; n++) {
#pragma unroll
        for (int i = 0; i < 4; i++)
            state[(int64_t)(8 * n + i % 2) * a.dv + i / 2 * 8] = s[n][i];
    }
}

/* ---- output ---- */

/* A warp has 16 columns of all 64 tokens. */
template <int DK>
static __device__ inline void output(const delta_args &a, const delta_slab &slab, int slot,
                                     int head)
{
    enum { TOKENS = CHUNK / 8 };
    int lane = threadIdx.x % GPU_LANES, g = lane / 4, t = lane % 4;
    int64_t row0 = chunk_at(a.step, slab.slot0 + slot);
    if (row0 < 0)
        return;
    const delta_layout at = delta_layout_of(DK, a.dv);
    const float *chunk = slab.chunks + ((int64_t)slot * a.heads + head) * at.all;
    for (int j = threadIdx.x / GPU_LANES; j < a.dv / COLUMNS; j += WARPS) {
        float sum[TOKENS][4] = {};
        const float4 *s = (const float4 *)(chunk + at.s) + j * (DK / 16) * 2 * GPU_LANES + lane;
        const float4 *qe = (const float4 *)(chunk + at.qe) + lane;
#pragma unroll 2
        for (int m = 0; m < DK / 16; m++) {
            halves4 sg = halves_of(s[2 * m * GPU_LANES]),
                    sh = halves_of(s[(2 * m + 1) * GPU_LANES]);
#pragma unroll
            for (int n = 0; n < TOKENS; n += 4) {
                halves4 x[4];
#pragma unroll
                for (int i = 0; i < 4; i++)
                    x[i] = halves_of(qe[(m * TOKENS + n + i) * GPU_LANES]);
                add_tf32<4>(sum + n, sg, sh, x);
            }
        }
        const float *u = chunk + at.u + j * COLUMNS * CHUNK, *b = chunk + at.b;
#pragma unroll
        for (int p = 0; p < PARTS; p++) {
            float4 ug = *(const float4 *)(u + g * CHUNK + p * PART + 4 * t);
            float4 uh = *(const float4 *)(u + (g + 8) * CHUNK + p * PART + 4 * t);
            halves4 pg = halves_of(ug), ph = halves_of(uh), x[2];
#pragma unroll
            for (int n = TOKENS - 2; n >= 2 * p; n -= 2) {
                int bad_g = PART, bad_h = PART;
                if (n == 2 * p && !__all_sync(0xffffffffu, finite4(ug) && finite4(uh))) {
                    bad_g = first_bad<4, 0>(ug);
                    bad_h = first_bad<4, 0>(uh);
                    pg = halves_of(ug);
                    ph = halves_of(uh);
                }
#pragma unroll
                for (int i = 0; i < 2; i++)
                    x[i] = halves_of(
                        *(const float4 *)(b + (8 * (n + i) + g) * CHUNK + p * PART + 4 * t));
                add_tf32<2>(sum + n, pg, ph, x);
                if (n == 2 * p) {
#pragma unroll
                    for (int i = 0; i < 8; i++) {
                        if (i / 4 * 8 + 2 * t + i % 2 >= (i / 2 % 2 ? bad_h : bad_g))
                            sum[n + i / 4][i % 4] = NAN;
                    }
                }
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

#endif
#endif
