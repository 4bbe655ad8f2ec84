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
#include "ops/gpu/tf32_mma.h"

enum { CHUNK = FL_PAGE_TOKENS, PART = 16, PARTS = CHUNK / PART };
enum { WARPS = 8, DELTA_BLOCK = WARPS * (int)GPU_LANES /* of a block, whatever it does */ };

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
        gpu_whole_blocks(q.pos0, q.n_rows, &begin, &end);
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

/* ---- NaN ---- */

/* A token must not see what comes after it, not even as zero times NaN: where a matrix product
 * would do that, what is not finite is replaced by 0, and the tokens from the first such on become
 * NaN. */
static __device__ inline bool finite4(float4 x)
{
    return isfinite(x.x) && isfinite(x.y) && isfinite(x.z) && isfinite(x.w);
}

/* The four lanes of a row of 16 tokens have of these STEP t, STEP t + 1, STEP t + GAP + 2 and the
 * next.  The first that is not finite, or 16; those become 0. */
template <int STEP, int GAP> static __device__ inline int first_bad(float4 &x)
{
    int t = threadIdx.x % 4 * STEP, bad = PART;
    float *v[4] = {&x.x, &x.y, &x.z, &x.w};
#pragma unroll
    for (int i = 3; i >= 0; i--) {
        if (!isfinite(*v[i])) {
            bad = t + i + i / 2 * GAP;
            *v[i] = 0;
        }
    }
    for (int i = 1; i < 4; i *= 2) {
        int other = __shfl_xor_sync(0xffffffffu, bad, i, GPU_LANES);
        bad = other < bad ? other : bad;
    }
    return bad;
}

/* ---- prepare ---- */

template <int DK> struct prepare_room {
    enum { PITCH = DK + 4 };
    float k[CHUNK][PITCH], q[CHUNK][PITCH], l[CHUNK][PITCH]; /* l: sums of logarithms, by parts */
    /* A of pairs within a part, then the part's inverse; A of pairs of two parts.  The last two as
     * lanes take them: two times 8 tokens i, then the lanes, then 4 tokens j. */
    union {
        float near[PARTS][PART][PART];
        float inverse[PARTS][2][GPU_LANES][4];
    };
    float4 far[PARTS * (PARTS - 1) / 2][2][GPU_LANES];
    float total[PARTS][DK];
    float beta[CHUNK];
};

/* Of 32 numbers in each lane, the sum over all lanes of the lane's own. */
static __device__ inline float transposed_sum(float x[GPU_LANES])
{
    int lane = threadIdx.x % GPU_LANES;
#pragma unroll
    for (int step = 1; step <= 5; step++) { /* written so that x stays in registers */
        const int n = GPU_LANES >> step;
        bool upper = lane & n;
#pragma unroll
        for (int i = 0; i < n; i++) {
            float low = x[i], high = x[i + n], give = upper ? low : high;
            x[i] = (upper ? high : low) + __shfl_xor_sync(0xffffffffu, give, n, GPU_LANES);
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
        m.near[i0 / PART][i % PART][j % PART] = mine;
    else
        b[i * CHUNK + j] = mine;
    if (lane >= 16 && i0 != j0)
        b[(j0 + lane % 16 / 4) * CHUNK + i0 + lane % 4] = 0; /* its image above the diagonal */
}

/* A warp takes all pairs of part pi and part pj < pi: B, or A. */
template <int DK>
static __device__ void far_pairs(prepare_room<DK> &m, int pi, int pj, bool is_b, float *b)
{
    int lane = threadIdx.x % GPU_LANES, g = lane / 4, t = lane % 4;
    const float(*x)[prepare_room<DK>::PITCH] = (is_b ? m.q : m.k) + pi * PART;
    const float(*y)[prepare_room<DK>::PITCH] = m.l + pj * PART;
    float sum[2][4] = {};
#pragma unroll 2
    for (int d = 0; d < DK; d += 32) {
#pragma unroll
        for (int at = d + 8 * t; at < d + 8 * t + 8; at += 4) { /* no two lanes at one bank */
            float4 f = {1, 1, 1, 1}, y0 = *(const float4 *)&y[g][at],
                   y1 = *(const float4 *)&y[g + 8][at];
            for (int between = pj + 1; between < pi; between++) {
                float4 e = *(const float4 *)&m.total[between][at];
                f = make_float4(f.x * e.x, f.y * e.y, f.z * e.z, f.w * e.w);
            }
            const halves4 z[2] = {
                halves_of(make_float4(y0.x * f.x, y0.y * f.y, y0.z * f.z, y0.w * f.w)),
                halves_of(make_float4(y1.x * f.x, y1.y * f.y, y1.z * f.z, y1.w * f.w))};
            add_tf32<2>(sum, halves_of(*(const float4 *)&x[g][at]),
                        halves_of(*(const float4 *)&x[g + 8][at]), z);
        }
    }
#pragma unroll
    for (int r = 0; r < 2; r++) {
        float4 all = {sum[0][2 * r], sum[0][2 * r + 1], sum[1][2 * r], sum[1][2 * r + 1]};
        float *to = b + (pi * PART + g + 8 * r) * CHUNK + pj * PART + 2 * t;
        if (!is_b) {
            m.far[pi * (pi - 1) / 2 + pj][r][lane] = all;
        } else {
            *(float2 *)to = make_float2(all.x, all.y);
            *(float2 *)(to + 8) = make_float2(all.z, all.w);
        }
    }
}

/* Column c of part p's inverse N, of what ties its u together: n_i = beta_i (1 or 0 - sum A_ij
 * n_j). The threads of a warp that share a part call it together. */
template <int DK> static __device__ inline void invert(prepare_room<DK> &m, int p, int c)
{
    float n[PART];
#pragma unroll
    for (int i = 0; i < PART; i++) {
        float sum = i == c ? 1 : 0;
#pragma unroll
        for (int j = 0; j < i; j++)
            sum = j >= c ? fmaf(-m.near[p][i][j], n[j], sum) : sum;
        n[i] = i >= c ? m.beta[p * PART + i] * sum : 0;
    }
    __syncwarp();
#pragma unroll
    for (int i = 0; i < PART; i++)
        m.inverse[p][i / 8][i % 8 * 4 + c % 8 / 2][c / 8 * 2 + c % 2] = n[i];
}

/* Solves for 16 columns of keys or values: x_I = N_I (r_I - sum_{J<I} A_IJ x_J), by parts.  r and x
 * have columns g and g + 8 and tokens 8 n + 2 t and the next. */
template <int DK>
static __device__ inline void solve(const prepare_room<DK> &m, float r[CHUNK / 8][4])
{
    int lane = threadIdx.x % GPU_LANES;
    halves4 xg[PARTS], xh[PARTS];
#pragma unroll
    for (int p = 0; p < PARTS; p++) {
        float sum[2][4] = {};
        halves4 b[2];
#pragma unroll
        for (int j = 0; j < p; j++) {
            b[0] = halves_of(m.far[p * (p - 1) / 2 + j][0][lane]);
            b[1] = halves_of(m.far[p * (p - 1) / 2 + j][1][lane]);
            add_tf32<2>(sum, xg[j], xh[j], b);
        }
        float(*x)[4] = r + 2 * p;
#pragma unroll
        for (int i = 0; i < 8; i++)
            sum[i / 4][i % 4] = x[i / 4][i % 4] - sum[i / 4][i % 4];
        float4 yg = {sum[0][0], sum[0][1], sum[1][0], sum[1][1]};
        float4 yh = {sum[0][2], sum[0][3], sum[1][2], sum[1][3]};
        int bad_g = PART, bad_h = PART;
        if (!__all_sync(0xffffffffu, finite4(yg) && finite4(yh))) {
            bad_g = first_bad<2, 6>(yg);
            bad_h = first_bad<2, 6>(yh);
        }
        b[0] = halves_of(*(const float4 *)m.inverse[p][0][lane]);
        b[1] = halves_of(*(const float4 *)m.inverse[p][1][lane]);
#pragma unroll
        for (int i = 0; i < 8; i++)
            x[i / 4][i % 4] = 0;
        add_tf32<2>(x, halves_of(yg), halves_of(yh), b);
#pragma unroll
        for (int i = 0; i < 8; i++) {
            if (i / 4 * 8 + lane % 4 * 2 + i % 2 >= (i / 2 % 2 ? bad_h : bad_g))
                x[i / 4][i % 4] = NAN;
        }
        xg[p] = halves_of(make_float4(x[0][0], x[0][1], x[1][0], x[1][1]));
        xh[p] = halves_of(make_float4(x[0][2], x[0][3], x[1][2], x[1][3]));
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
        float k[PART], q[PART], g[PART], sum = 0;
#pragma unroll
        for (int i = 0; i < PART; i++) { /* all on their way before the first is needed */
            g[i] = a.g.p[(row + i) * a.g.stride + from];
            k[i] = a.k.p[(row + i) * a.k.stride + from];
            q[i] = a.q.p[(row + i) * a.q.stride + from];
        }
#pragma unroll
        for (int i = 0; i < PART; i++) {
            m.k[p * PART + i][d] = k[i];
            m.q[p * PART + i][d] = q[i];
            m.l[p * PART + i][d] = sum += g[i] * 1.44269504f;
        }
        m.total[p][d] = sum;
    }
    if (t < CHUNK)
        m.beta[t] = a.beta.p[(row0 + t) * a.beta.stride + head];
    __syncthreads();
    for (int tile = warp; tile < PARTS * 10; tile += WARPS) {
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
        for (int i = 0; i < PART; i += 4) {
            float kt[4];
#pragma unroll
            for (int j = 0; j < 4; j++) {
                int token = p * PART + i + j;
                float k = m.k[token][d], l = m.l[token][d], e = exp2_fast(l);
                float q = m.q[token][d] * e;
                m.k[token][d] = k * e;
                m.q[token][d] = q;
                to[at.qe + token_major(token, d)] = q * before;
                m.l[token][d] = kt[j] = k * exp2_fast(end - l);
            }
            *(float4 *)&to[at.kt + key_major(p * PART + i, d)] =
                make_float4(kt[0] * after, kt[1] * after, kt[2] * after, kt[3] * after);
        }
    }
    __syncthreads();
    for (int i = t; i < PARTS * DK; i += DELTA_BLOCK)
        m.total[i / DK][i % DK] = exp2_fast(m.total[i / DK][i % DK]);
    __syncthreads();
    enum { INVERTING = CHUNK / GPU_LANES, PAIRS = PARTS * (PARTS - 1) / 2 };
    if (warp < INVERTING)
        invert(m, t / PART, t % PART);
    for (int task = warp - INVERTING; task >= 0 && task < 2 * PAIRS; task += WARPS - INVERTING) {
        int pair = task / 2, pi = pair < 1 ? 1 : pair < 3 ? 2 : 3, pj = pair - pi * (pi - 1) / 2;
        far_pairs<DK>(m, pi, pj, task % 2, to + at.b);
    }
    __syncthreads();
    for (int tile = warp; tile < (DK + a.dv) / 16; tile += WARPS) {
        float x[CHUNK / 8][4];
        int c = tile * 16 + lane / 4, token = lane % 4 * 2;
        if (c < DK) {
            float before[2] = {1, 1};
#pragma unroll
            for (int n = 0; n < CHUNK / 8; n++) {
#pragma unroll
                for (int i = 0; i < 4; i++) {
                    if (n > 0 && n % 2 == 0 && i % 2 == 0)
                        before[i / 2] *= m.total[n / 2 - 1][c + i / 2 * 8];
                    x[n][i] = m.k[8 * n + token + i % 2][c + i / 2 * 8] * before[i / 2];
                }
            }
            solve<DK>(m, x);
#pragma unroll
            for (int n = 0; n < CHUNK / 8; n++) {
#pragma unroll
                for (int i = 0; i < 4; i++)
                    to[at.w + token_major(8 * n + token + i % 2, c + i / 2 * 8)] = x[n][i];
            }
            continue;
        }
        const float *v = a.v.p + (row0 + token) * a.v.stride + (int64_t)head * a.dv + c - DK;
        float *u = to + at.u + (c - DK) * CHUNK + token;
#pragma unroll
        for (int n = 0; n < CHUNK / 8; n++) {
#pragma unroll
            for (int i = 0; i < 4; i++)
                x[n][i] = v[(8 * n + i % 2) * a.v.stride + i / 2 * 8];
        }
        solve<DK>(m, x);
#pragma unroll
        for (int n = 0; n < CHUNK / 8; n++) {
            *(float2 *)(u + 8 * n) = make_float2(x[n][0], x[n][1]);
            *(float2 *)(u + 8 * CHUNK + 8 * n) = make_float2(x[n][2], x[n][3]);
        }
    }
}

#endif
#endif
