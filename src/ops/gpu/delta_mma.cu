/* delta_rule for prompts: whole blocks of the chunk grid go through in chunks of 16 tokens, on
 * matrix units; other rows token by token (delta.h).
 *
 * Within a chunk, with E_i the decay from its beginning to token i and S the state before it:
 *
 *   u_i = beta_i (v_i - (k_i E_i) S - sum_{j<i} A_ij u_j)      A_ij = sum_d k_i k_j E_i / E_j
 *   o_i = (q_i E_i) S + sum_{j<=i} B_ij u_j                     B_ij = sum_d q_i k_j E_i / E_j
 *   S'  = E_16 S + sum_j (k_j E_16 / E_j) u_j
 *
 * prepare makes everything that does not need S, for all chunks at once: k E, q E, k E_16 / E, B,
 * and M, the inverse of what ties the u_i together, so that u = M (v - (k E) S).  Quotients of
 * decays are exponentials of differences and never above 1.  chain then walks through the chunks of
 * a sequence: a block has 16 columns of a head, and each of its four warps a quarter of the rows.
 */
#include "ops/gpu/delta.h"
#include "ops/gpu/parts.h"

enum { CHUNK = 16, COLUMNS = 16, WARPS = 4, THREADS = WARPS * GPU_LANES, PITCH = CHUNK + 1 };

/* What prepare makes of a chunk of one head, in floats. */
template <int DK> struct prepared {
    /* k E, q E, and k E_16 / E by rows of S; the gaps keep lanes out of each other's banks. */
    float ke[CHUNK][DK + 8], qe[CHUNK][DK + 8], kt[DK][CHUNK + 4];
    float m[CHUNK][CHUNK], b[CHUNK][CHUNK], decay[DK]; /* M, B, E_16 */
};

/* The chunk that begins in rows [16 slot, 16 slot + 16): its first row, or -1. */
static __device__ int64_t chunk_at(const gpu_step &s, int64_t slot)
{
    for (int64_t row = slot * CHUNK; row < (slot + 1) * CHUNK && row < s.counts[GPU_ROWS]; row++) {
        const gpu_seq &q = s.seqs[s.row_seq[row]];
        int begin, end, at = (int)(row - q.row0);
        delta_blocks(q.pos0, q.n_rows, &begin, &end);
        if (at >= begin && at < end && (at - begin) % CHUNK == 0)
            return row;
    }
    return -1;
}

/* ---- prepare ---- */

enum { PREPARE_THREADS = 128, TILE = 4, SPLIT = 8 /* threads that share a tile of pairs */ };

template <int DK>
static __global__ void __launch_bounds__(PREPARE_THREADS)
    prepare_kernel(delta_args a, prepared<DK> *to)
{
    __shared__ float k[CHUNK][DK + 1], q[CHUNK][DK + 1], g[CHUNK][DK + 1];
    __shared__ float pairs_a[CHUNK][CHUNK], beta[CHUNK];
    int head = blockIdx.y, t = threadIdx.x;
    int64_t row0 = chunk_at(a.step, blockIdx.x);
    if (row0 < 0)
        return;
    prepared<DK> *p = to + (int64_t)blockIdx.x * a.heads + head;
    for (int i = t; i < CHUNK * DK; i += PREPARE_THREADS) {
        int64_t row = row0 + i / DK, at = (int64_t)head * DK + i % DK;
        k[i / DK][i % DK] = a.k.p[row * a.k.stride + at];
        q[i / DK][i % DK] = a.q.p[row * a.q.stride + at];
        g[i / DK][i % DK] = a.g.p[row * a.g.stride + at];
    }
    if (t < CHUNK)
        beta[t] = a.beta.p[(row0 + t) * a.beta.stride + head];
    __syncthreads();
    for (int d = t; d < DK; d += PREPARE_THREADS) { /* g becomes its sums */
        float sum = 0;
        for (int i = 0; i < CHUNK; i++)
            g[i][d] = sum += g[i][d];
    }
    __syncthreads();
    for (int i = t; i < CHUNK * DK; i += PREPARE_THREADS) {
        int token = i / DK, d = i % DK;
        float e = expf(g[token][d]);
        p->ke[token][d] = k[token][d] * e;
        p->qe[token][d] = q[token][d] * e;
        if (token == CHUNK - 1)
            p->decay[d] = e;
    }
    for (int i = t; i < CHUNK * DK; i += PREPARE_THREADS) {
        int d = i / CHUNK, token = i % CHUNK;
        p->kt[d][token] = k[token][d] * expf(g[CHUNK - 1][d] - g[token][d]);
    }
    /* A and B by tiles of 4 x 4 pairs; the lanes that share a tile take every eighth element. */
    int i0 = t / SPLIT / TILE * TILE, j0 = t / SPLIT % TILE * TILE, part = t % SPLIT;
    float sum_a[TILE][TILE] = {}, sum_b[TILE][TILE] = {};
    for (int d = part; d < DK && j0 <= i0; d += SPLIT) {
#pragma unroll
        for (int j = 0; j < TILE; j++) {
            float kj = k[j0 + j][d], gj = g[j0 + j][d];
#pragma unroll
            for (int i = 0; i < TILE; i++) {
                float e = i0 + i >= j0 + j ? expf(g[i0 + i][d] - gj) * kj : 0;
                sum_a[i][j] = fmaf(k[i0 + i][d], e, sum_a[i][j]);
                sum_b[i][j] = fmaf(q[i0 + i][d], e, sum_b[i][j]);
            }
        }
    }
#pragma unroll
    for (int i = 0; i < TILE; i++) {
#pragma unroll
        for (int j = 0; j < TILE; j++) {
            for (int s = 1; s < SPLIT; s *= 2) {
                sum_a[i][j] += __shfl_xor_sync(0xffffffffu, sum_a[i][j], s, GPU_LANES);
                sum_b[i][j] += __shfl_xor_sync(0xffffffffu, sum_b[i][j], s, GPU_LANES);
            }
            if (part == 0) {
                pairs_a[i0 + i][j0 + j] = sum_a[i][j];
                p->b[i0 + i][j0 + j] = sum_b[i][j];
            }
        }
    }
    __syncthreads();
    if (t < CHUNK) { /* column t of M, from its diagonal down */
        float m[CHUNK];
#pragma unroll
        for (int i = 0; i < CHUNK; i++) {
            float sum = i == t ? 1 : 0;
#pragma unroll
            for (int j = 0; j < i; j++)
                sum = j >= t ? fmaf(-pairs_a[i][j], m[j], sum) : sum;
            m[i] = i >= t ? beta[i] * sum : 0;
            p->m[i][t] = m[i];
        }
    }
}

/* ---- chain ---- */

/* Starts bringing a prepared chunk to shared memory. */
template <int DK> static __device__ inline void bring(const prepared<DK> *from, prepared<DK> *to)
{
    for (int i = threadIdx.x; i < (int)(sizeof *to / 16); i += THREADS)
        copy_async((char *)to + 16 * i, (const char *)from + 16 * i);
    copies_commit();
}

/* Elements of a lane for a sum over 16 rows of S: 2 t, 2 t + 1, 8 + 2 t and 9 + 2 t, as the tiles
 * of S have them. */
static __device__ inline parts4 rows_of(const float *x)
{
    int t2 = threadIdx.x % 4 * 2;
    return parts_of(make_float4(x[t2], x[t2 + 1], x[t2 + 8], x[t2 + 9]));
}

template <int DK>
static __global__ void __launch_bounds__(THREADS)
    chain_kernel(delta_args a, const prepared<DK> *chunks)
{
    enum { OWN = DK / WARPS, SUMS = OWN / 16, TILES = OWN / 8 };
    extern __shared__ __align__(16) unsigned char room[];
    __shared__ float seen[WARPS][COLUMNS][PITCH], read[WARPS][COLUMNS][PITCH];
    __shared__ float rest[COLUMNS][PITCH];
    __shared__ __align__(16) float u[COLUMNS][CHUNK + 4];
    prepared<DK> *stage = (prepared<DK> *)room;
    int lane = threadIdx.x % GPU_LANES, warp = threadIdx.x / GPU_LANES, g = lane / 4, t = lane % 4;
    int head = blockIdx.y, j0 = blockIdx.x * COLUMNS, row_own = warp * OWN, begin, end;
    if ((int)blockIdx.z >= a.step.counts[GPU_SEQS])
        return;
    const gpu_seq seq = a.step.seqs[blockIdx.z];
    delta_blocks(seq.pos0, seq.n_rows, &begin, &end);
    if (begin >= end)
        return;
    float *state = (float *)(a.base + seq.slot * a.item_bytes) + (int64_t)head * DK * a.dv + j0;
    /* s[n][0..3]: columns g, g, g + 8, g + 8 and rows 2 t, 2 t + 1, 2 t, 2 t + 1 of tile n. */
    float s[TILES][4];
#pragma unroll
    for (int n = 0; n < TILES; n++) {
#pragma unroll
        for (int i = 0; i < 4; i++)
            s[n][i] = state[(int64_t)(row_own + 8 * n + 2 * t + i % 2) * a.dv + g + i / 2 * 8];
    }
    int64_t first = seq.row0 + begin, n_chunks = (end - begin) / CHUNK;
    bring(chunks + first / CHUNK * a.heads + head, stage);
    int own_j = threadIdx.x / 8, own_t = threadIdx.x % 8 * 2; /* two tokens of one column */
    for (int64_t c = 0; c < n_chunks; c++) {
        int64_t row0 = first + c * CHUNK;
        float v[2];
#pragma unroll
        for (int i = 0; i < 2; i++)
            v[i] = a.v.p[(row0 + own_t + i) * a.v.stride + (int64_t)head * a.dv + j0 + own_j];
        if (c + 1 < n_chunks) {
            bring(chunks + (row0 + CHUNK) / CHUNK * a.heads + head, stage + (c + 1) % 2);
            copies_wait<1>();
        } else {
            copies_wait<0>();
        }
        __syncthreads();
        const prepared<DK> &p = stage[c % 2];
        float sum[4][4] = {}; /* k E of tokens 0 to 7 and 8 to 15, and q E of both */
#pragma unroll
        for (int m = 0; m < SUMS; m++) {
            int d = row_own + 16 * m;
            parts4 sg =
                parts_of(make_float4(s[2 * m][0], s[2 * m][1], s[2 * m + 1][0], s[2 * m + 1][1]));
            parts4 sh =
                parts_of(make_float4(s[2 * m][2], s[2 * m][3], s[2 * m + 1][2], s[2 * m + 1][3]));
            const parts4 x[4] = {rows_of(p.ke[g] + d), rows_of(p.ke[8 + g] + d),
                                 rows_of(p.qe[g] + d), rows_of(p.qe[8 + g] + d)};
            add_products<4>(sum, sg, sh, x);
        }
#pragma unroll
        for (int n = 0; n < 2; n++) {
#pragma unroll
            for (int i = 0; i < 4; i++) {
                seen[warp][g + i / 2 * 8][8 * n + 2 * t + i % 2] = sum[n][i];
                read[warp][g + i / 2 * 8][8 * n + 2 * t + i % 2] = sum[n + 2][i];
            }
        }
        __syncthreads();
        float o[2];
#pragma unroll
        for (int i = 0; i < 2; i++) {
            float all = 0;
            o[i] = 0;
            for (int w = 0; w < WARPS; w++) {
                all += seen[w][own_j][own_t + i];
                o[i] += read[w][own_j][own_t + i];
            }
            rest[own_j][own_t + i] = v[i] - all;
        }
        __syncthreads();
#pragma unroll
        for (int i = 0; i < 2; i++) {
            float sum = 0;
#pragma unroll
            for (int j = 0; j < CHUNK; j++) /* not beyond the token: NaN there is not its own */
                sum = j <= own_t + i ? fmaf(p.m[own_t + i][j], rest[own_j][j], sum) : sum;
            u[own_j][own_t + i] = sum;
        }
        __syncthreads();
#pragma unroll
        for (int i = 0; i < 2; i++) {
#pragma unroll
            for (int j = 0; j < CHUNK; j++)
                o[i] = j <= own_t + i ? fmaf(p.b[own_t + i][j], u[own_j][j], o[i]) : o[i];
            a.o.p[(row0 + own_t + i) * a.o.stride + (int64_t)head * a.dv + j0 + own_j] = o[i];
        }
        parts4 ug = parts_of(*(const float4 *)&u[g][4 * t]);
        parts4 uh = parts_of(*(const float4 *)&u[g + 8][4 * t]);
        float add[TILES][4] = {};
        parts4 kt[TILES];
#pragma unroll
        for (int n = 0; n < TILES; n++)
            kt[n] = parts_of(*(const float4 *)&p.kt[row_own + 8 * n + g][4 * t]);
        add_products<TILES>(add, ug, uh, kt);
#pragma unroll
        for (int n = 0; n < TILES; n++) {
#pragma unroll
            for (int i = 0; i < 4; i++)
                s[n][i] = fmaf(p.decay[row_own + 8 * n + 2 * t + i % 2], s[n][i], add[n][i]);
        }
        __syncthreads();
    }
#pragma unroll
    for (int n = 0; n < TILES; n++) {
#pragma unroll
        for (int i = 0; i < 4; i++)
            state[(int64_t)(row_own + 8 * n + 2 * t + i % 2) * a.dv + g + i / 2 * 8] = s[n][i];
    }
}

/* ---- launching ---- */

template <int DK> static void blocks(delta_args a, const fl_step *step, void *scratch, gpu_queue *q)
{
    prepared<DK> *chunks = (prepared<DK> *)scratch;
    size_t shared = 2 * sizeof(prepared<DK>);
    dim3 slots((unsigned)(step->n_rows / CHUNK + 1), (unsigned)a.heads);
    dim3 chains((unsigned)(a.dv / COLUMNS), (unsigned)a.heads, (unsigned)step->n_seqs);
    gpu_allow_shared(q, chain_kernel<DK>, shared);
    a.range = DELTA_BEFORE;
    delta_recurrence(a, step->n_seqs, q);
    prepare_kernel<DK><<<slots, PREPARE_THREADS, 0, q->stream>>>(a, chunks);
    chain_kernel<DK><<<chains, THREADS, shared, q->stream>>>(a, chunks);
    a.range = DELTA_AFTER;
    delta_recurrence(a, step->n_seqs, q);
}

static void run(const fl_call *call, const fl_step *step, int phase, const fl_worker *worker)
{
    (void)phase;
    gpu_queue *q = (gpu_queue *)worker->queue;
    delta_args a = delta_args_of(call, step, q);
    bool any = false;
    for (int32_t i = 0; i < step->n_seqs && step->n_rows != step->n_seqs; i++) {
        int begin, end;
        delta_blocks(step->seqs[i].pos0, step->seqs[i].n_rows, &begin, &end);
        any = any || begin < end;
    }
    if (!any)
        delta_plain(a, step, q);
    else if (a.dk == 64)
        blocks<64>(a, step, worker->shared, q);
    else
        blocks<128>(a, step, worker->shared, q);
}

static void scratch(const fl_node_view *n, const fl_limits *limits, size_t *per_worker,
                    size_t *shared)
{
    size_t each = n->in[FL_DELTA_Q]->dim[1] == 64 ? sizeof(prepared<64>) : sizeof(prepared<128>);
    *per_worker = 0;
    *shared = (size_t)(limits->max_rows / CHUNK + 1) * (size_t)n->in[FL_DELTA_Q]->dim[0] * each;
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
