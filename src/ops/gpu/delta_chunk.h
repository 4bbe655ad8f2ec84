/* delta_rule for prompts: what is known of a chunk of 64 tokens, a block of the grid, before its
 * state is.
 *
 * Within a chunk, with E_i the decay from its beginning to token i and S the state before it:
 *
 *   u_i = beta_i (v_i - (k_i E_i) S - sum_{j<i} A_ij u_j)      A_ij = sum_d k_i k_j E_i / E_j
 *   o_i = (q_i E_i) S + sum_{j<=i} B_ij u_j                     B_ij = sum_d q_i k_j E_i / E_j
 *   S'  = E_64 S + sum_j (k_j E_64 / E_j) u_j
 *
 * The first line is solved twice, with v and with k E on the right: u = U - W S.  prepare makes U,
 * W, B, q E, k E_64 / E and E_64 for all chunks at once.
 *
 * Logarithms of decays (to base 2) are summed anew every 16 tokens, so that differences of sums
 * keep their bits, and every quotient is the exponential of something that is at most 0: within a
 * tile of 4 x 4 pairs of the difference, elsewhere in two factors that meet at a token between the
 * two. */
#ifndef FL_OPS_GPU_DELTA_CHUNK_H
#define FL_OPS_GPU_DELTA_CHUNK_H

#include "ops/gpu/delta.h"
#include "ops/gpu/parts.h"

enum { CHUNK = FL_PAGE_TOKENS, PART = 16, PARTS = CHUNK / PART };
enum { DELTA_BLOCK = 256 /* threads of a block, whatever it does */ };

/* A chunk of one head, in floats.  Everything lies as the lanes of the matrix units take it, four
 * floats side by side each. */
typedef struct delta_layout {
    int w, qe, kt, b, decay, u, s, all;
} delta_layout;

static inline __host__ __device__ delta_layout delta_layout_of(int dk, int dv)
{
    delta_layout l = {};
    l.qe = l.w + CHUNK * dk;
    l.kt = l.qe + CHUNK * dk;
    l.b = l.kt + CHUNK * dk;
    l.decay = l.b + CHUNK * CHUNK;
    l.u = l.decay + dk;     /* [dv][64] */
    l.s = l.u + CHUNK * dv; /* the state before the chunk */
    l.all = l.s + dk * dv;
    return l;
}

/* Chunks that a launch takes: those that begin in rows [64 slot0, 64 (slot0 + slots)). */
typedef struct delta_slab {
    float *chunks;
    int slot0, slots;
} delta_slab;

#ifdef __CUDACC__

/* The chunk that begins in rows [64 slot, 64 slot + 64): its first row, or -1. */
static __device__ int64_t chunk_at(const gpu_step &s, int64_t slot)
{
    for (int64_t row = slot * CHUNK; row < (slot + 1) * CHUNK && row < s.counts[GPU_ROWS];) {
        const gpu_seq &q = s.seqs[s.row_seq[row]];
        int begin, end, at = (int)(row - q.row0);
        delta_blocks(q.pos0, q.n_rows, &begin, &end);
        if (at <= begin)
            at = begin;
        else
            at += (begin - at) % CHUNK ? CHUNK + (begin - at) % CHUNK : 0;
        if (at < end)
            return q.row0 + at < (slot + 1) * CHUNK ? q.row0 + at : -1;
        row = q.row0 + q.n_rows;
    }
    return -1;
}

/* Where the lanes want W and q E (rows: tokens) and k E_64 / E (rows: elements of a key). */
static __device__ inline int token_major(int token, int d)
{
    return ((d / 16 * (CHUNK / 8) + token / 8) * GPU_LANES + token % 8 * 4 + d % 8 / 2) * 4 +
           d % 16 / 8 * 2 + d % 2;
}

static __device__ inline int key_major(int token, int d)
{
    return ((d / 8 * PARTS + token / PART) * GPU_LANES + d % 8 * 4 + token % PART / 4) * 4 +
           token % 4;
}

/* ---- prepare ---- */

template <int DK> struct prepare_room {
    enum { PITCH = DK + 4 };
    float k[CHUNK][PITCH], q[CHUNK][PITCH], l[CHUNK][PITCH]; /* l: sums of logarithms, by parts */
    float a[PARTS * (PARTS + 1) / 2][PART][PART]; /* A, by its blocks below the diagonal */
    float total[PARTS][DK];
    float beta[CHUNK];
};

/* Of 32 numbers in each lane, the sum over all lanes of the lane's own. */
static __device__ inline float transposed_sum(float x[GPU_LANES])
{
    int lane = threadIdx.x % GPU_LANES;
#pragma unroll
    for (int n = GPU_LANES / 2; n > 0; n /= 2) {
        bool upper = lane & n;
#pragma unroll
        for (int i = 0; i < n; i++) {
            float give = upper ? x[i] : x[i + n], keep = upper ? x[i + n] : x[i];
            x[i] = keep + __shfl_xor_sync(0xffffffffu, give, n, GPU_LANES);
        }
    }
    return x[0];
}

/* A warp takes the pairs of tokens [i0, i0 + 4) x [j0, j0 + 4) of one part; each lane sums every
 * 32nd element, and at the end has one of the 16 numbers of A or of B. */
template <int DK> static __device__ void near_pairs(prepare_room<DK> &m, int i0, int j0, float *b)
{
    int lane = threadIdx.x % GPU_LANES;
    float sum[2 * 16] = {};
    for (int d = lane; d < DK; d += GPU_LANES) {
        float ki[4], qi[4], li[4], kj[4], lj[4];
#pragma unroll
        for (int i = 0; i < 4; i++) {
            ki[i] = m.k[i0 + i][d];
            qi[i] = m.q[i0 + i][d];
            li[i] = m.l[i0 + i][d];
            kj[i] = m.k[j0 + i][d];
            lj[i] = m.l[j0 + i][d];
        }
        if (i0 != j0) {
            float between = m.l[i0 - 1][d];
#pragma unroll
            for (int i = 0; i < 4; i++) {
                float e = exp2_fast(li[i] - between);
                ki[i] *= e;
                qi[i] *= e;
                kj[i] *= exp2_fast(between - lj[i]);
            }
        }
#pragma unroll
        for (int i = 0; i < 4; i++) {
#pragma unroll
            for (int j = 0; j < 4; j++) {
                float x = kj[j];
                if (i0 == j0)
                    x = j < i ? x * exp2_fast(li[i] - lj[j]) : j == i ? x : 0;
                if (i0 == j0 && j > i)
                    continue;
                sum[4 * i + j] = fmaf(ki[i], x, sum[4 * i + j]);
                sum[16 + 4 * i + j] = fmaf(qi[i], x, sum[16 + 4 * i + j]);
            }
        }
    }
    float mine = transposed_sum(sum);
    int i = i0 + lane % 16 / 4, j = j0 + lane % 4;
    if (lane < 16)
        m.a[(i0 / PART) * (i0 / PART + 3) / 2][i % PART][j % PART] = mine;
    else
        b[i * CHUNK + j] = mine;
    if (lane >= 16 && i0 != j0)
        b[(j0 + lane % 16 / 4) * CHUNK + i0 + lane % 4] = 0; /* its image above the diagonal */
}

/* A thread takes tokens i, i + 8 of part pi and j, j + 4, j + 8, j + 12 of part pj < pi. */
template <int DK>
static __device__ void far_pairs(prepare_room<DK> &m, int pi, int pj, int i0, int j0, float *b)
{
    float sum[4][4] = {}; /* rows of k, then of q */
    for (int d = 0; d < DK; d += 4) {
        float4 x[4] = {
            *(const float4 *)&m.k[pi * PART + i0][d], *(const float4 *)&m.k[pi * PART + i0 + 8][d],
            *(const float4 *)&m.q[pi * PART + i0][d], *(const float4 *)&m.q[pi * PART + i0 + 8][d]};
        for (int between = pj + 1; between < pi; between++) {
            float4 e = *(const float4 *)&m.total[between][d];
#pragma unroll
            for (int r = 0; r < 4; r++)
                x[r] = make_float4(x[r].x * e.x, x[r].y * e.y, x[r].z * e.z, x[r].w * e.w);
        }
#pragma unroll
        for (int j = 0; j < 4; j++) {
            float4 y = *(const float4 *)&m.l[pj * PART + j0 + 4 * j][d];
#pragma unroll
            for (int r = 0; r < 4; r++) {
                sum[r][j] = fmaf(x[r].x, y.x, sum[r][j]);
                sum[r][j] = fmaf(x[r].y, y.y, sum[r][j]);
                sum[r][j] = fmaf(x[r].z, y.z, sum[r][j]);
                sum[r][j] = fmaf(x[r].w, y.w, sum[r][j]);
            }
        }
    }
#pragma unroll
    for (int r = 0; r < 2; r++) {
#pragma unroll
        for (int j = 0; j < 4; j++) {
            int i = i0 + 8 * r;
            m.a[pi * (pi + 1) / 2 + pj][i][j0 + 4 * j] = sum[r][j];
            b[(pi * PART + i) * CHUNK + pj * PART + j0 + 4 * j] = sum[2 + r][j];
        }
    }
}

/* x_i = beta_i (x_i - sum_{j<i} A_ij x_j), down a column. */
template <int DK> static __device__ inline void solve(const prepare_room<DK> &m, float x[CHUNK])
{
#pragma unroll
    for (int i = 0; i < CHUNK; i++) {
        float4 sum = {0, 0, 0, 0};
#pragma unroll
        for (int j = 0; j < i; j += 4) {
            const int p = i / PART;
            float4 a = *(const float4 *)&m.a[p * (p + 1) / 2 + j / PART][i % PART][j % PART];
            sum.x = fmaf(a.x, x[j], sum.x);
            if (j + 1 < i)
                sum.y = fmaf(a.y, x[j + 1], sum.y);
            if (j + 2 < i)
                sum.z = fmaf(a.z, x[j + 2], sum.z);
            if (j + 3 < i)
                sum.w = fmaf(a.w, x[j + 3], sum.w);
        }
        x[i] = m.beta[i] * (x[i] - ((sum.x + sum.y) + (sum.z + sum.w)));
    }
}

template <int DK>
static __device__ inline void prepare(const delta_args &a, const delta_slab &slab, int slot,
                                      int head, unsigned char *room)
{
    prepare_room<DK> &m = *(prepare_room<DK> *)room;
    int t = threadIdx.x, warp = t / GPU_LANES, lane = t % GPU_LANES;
    int64_t row0 = chunk_at(a.step, slab.slot0 + slot);
    if (row0 < 0)
        return;
    delta_layout at = delta_layout_of(DK, a.dv);
    float *to = slab.chunks + ((int64_t)slot * a.heads + head) * at.all;
    for (int task = t; task < PARTS * DK; task += DELTA_BLOCK) {
        int p = task / DK, d = task % DK;
        int64_t row = row0 + p * PART, from = (int64_t)head * DK + d;
        float g[PART], sum = 0;
#pragma unroll
        for (int i = 0; i < PART; i++) {
            g[i] = a.g.p[(row + i) * a.g.stride + from];
            m.k[p * PART + i][d] = a.k.p[(row + i) * a.k.stride + from];
            m.q[p * PART + i][d] = a.q.p[(row + i) * a.q.stride + from];
        }
#pragma unroll
        for (int i = 0; i < PART; i++)
            m.l[p * PART + i][d] = sum += g[i] * 1.44269504f;
        m.total[p][d] = sum;
    }
    if (t < CHUNK)
        m.beta[t] = a.beta.p[(row0 + t) * a.beta.stride + head];
    __syncthreads();
    for (int tile = warp; tile < PARTS * 10; tile += DELTA_BLOCK / GPU_LANES) {
        int p = tile / 10, n = tile % 10, i = n < 1 ? 0 : n < 3 ? 1 : n < 6 ? 2 : 3;
        near_pairs(m, p * PART + 4 * i, p * PART + 4 * (n - i * (i + 1) / 2), to + at.b);
    }
    __syncthreads();
    /* k becomes k e^l, q likewise, l becomes k e^(total - l). */
    for (int task = t; task < PARTS * DK; task += DELTA_BLOCK) {
        int p = task / DK, d = task % DK;
        float before = 0, after = 0, end = m.total[p][d];
        for (int i = 0; i < p; i++)
            before += m.total[i][d];
        for (int i = p + 1; i < PARTS; i++)
            after += m.total[i][d];
        if (p == PARTS - 1)
            to[at.decay + d] = exp2_fast(before + end);
        before = exp2_fast(before);
        after = exp2_fast(after);
#pragma unroll
        for (int i = 0; i < PART; i++) {
            int token = p * PART + i;
            float k = m.k[token][d], l = m.l[token][d], e = exp2_fast(l), q = m.q[token][d] * e;
            m.k[token][d] = k * e;
            m.q[token][d] = q;
            to[at.qe + token_major(token, d)] = q * before;
            m.l[token][d] = k *= exp2_fast(end - l);
            to[at.kt + key_major(token, d)] = k * after;
        }
    }
    __syncthreads();
    for (int i = t; i < PARTS * DK; i += DELTA_BLOCK)
        m.total[i / DK][i % DK] = exp2_fast(m.total[i / DK][i % DK]);
    __syncthreads();
    for (int pair = warp; pair < PARTS * (PARTS - 1) / 2; pair += DELTA_BLOCK / GPU_LANES) {
        int pi = pair < 1 ? 1 : pair < 3 ? 2 : 3, pj = pair - pi * (pi - 1) / 2;
        far_pairs(m, pi, pj, lane / 4, lane % 4, to + at.b);
    }
    __syncthreads();
    for (int c = t; c < DK + a.dv; c += DELTA_BLOCK) {
        float x[CHUNK];
        if (c < DK) {
            float before = 1;
#pragma unroll
            for (int i = 0; i < CHUNK; i++) {
                if (i > 0 && i % PART == 0)
                    before *= m.total[i / PART - 1][c];
                x[i] = m.k[i][c] * before;
            }
        } else {
#pragma unroll
            for (int i = 0; i < CHUNK; i++)
                x[i] = a.v.p[(row0 + i) * a.v.stride + (int64_t)head * a.dv + c - DK];
        }
        solve(m, x);
        if (c < DK) {
#pragma unroll
            for (int i = 0; i < CHUNK; i++)
                to[at.w + token_major(i, c)] = x[i];
        } else {
#pragma unroll
            for (int i = 0; i < CHUNK; i += 4)
                *(float4 *)&to[at.u + (c - DK) * CHUNK + i] =
                    make_float4(x[i], x[i + 1], x[i + 2], x[i + 3]);
        }
    }
}

#endif
#endif
