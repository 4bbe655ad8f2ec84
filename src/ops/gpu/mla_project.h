/* mla's products with kv_b on matrix units: UK^T q before attention and UV times its result, once
 * the spans of a row are one.  A block does 16 rows and 64 results of one head, or 64 and 128;
 * tiles of the weights come to shared memory while those before are multiplied, rows straight to
 * registers, where they become Q BF16 parts.  16 elements of the length are summed in the matrix
 * unit, these sums in ascending order, whatever the rows beside. */
#ifndef FL_OPS_GPU_MLA_PROJECT_H
#define FL_OPS_GPU_MLA_PROJECT_H

#include "ops/gpu/mla.h"
#include "ops/gpu/parts.h"

enum { PROJECT_WARPS = 4, PROJECT_THREADS = 128, PROJECT_LENGTH = 64 /* of a tile */ };
enum { PROJECT_STEPS = 4 /* sums of 16 in it */, PROJECT_STAGES = 4 };

/* MANY: each warp has 16 rows of its own and all of a block's results; otherwise they share 16 rows
 * and divide the results. */
template <bool DOWN, bool MANY> struct project_form {
    enum {
        ROWS = MANY ? 16 * (int)PROJECT_WARPS : 16,
        COLS = MANY ? 128 : 64,
        OWN = MANY ? (int)COLS : (int)COLS / (int)PROJECT_WARPS, /* of a warp */
        HIGH = DOWN ? (int)PROJECT_LENGTH : (int)COLS,           /* rows of a tile */
        WIDE = DOWN ? (int)COLS : (int)PROJECT_LENGTH,
        PITCH = WIDE + 8,
        TILE = HIGH * PITCH /* elements */
    };
};

/* DOWN: from nope to latent, by rows of kv_b; otherwise from latent to dv, by its columns. */
template <bool DOWN> struct project_shape {
    int k, n;          /* the length and the number of results */
    const uint16_t *w; /* the head's first weight */
    static __device__ inline project_shape of(const mla_args &a, int head)
    {
        const uint16_t *w = (const uint16_t *)a.kv_b.data;
        int64_t row = (int64_t)head * (a.nope + a.dv) + (DOWN ? 0 : a.nope);
        project_shape s = {DOWN ? a.nope : a.latent, DOWN ? a.latent : a.dv, w + row * a.latent};
        return s;
    }
};

/* Starts bringing the weights of elements k0 on and results n0 on; zero where there are none. */
template <bool DOWN, bool MANY>
static __device__ inline void bring_weights(const project_shape<DOWN> &s, int latent, int k0,
                                            int n0, uint16_t *tile)
{
    typedef project_form<DOWN, MANY> form;
    for (int i = threadIdx.x; i < form::HIGH * form::WIDE / 8 && k0 < s.k; i += PROJECT_THREADS) {
        int row = i / (form::WIDE / 8), c = i % (form::WIDE / 8) * 8;
        int k = k0 + (DOWN ? row : c), n = n0 + (DOWN ? c : row);
        bool is = k < s.k && n < s.n;
        copy_or_zero(tile + row * form::PITCH + c,
                     s.w + (is ? (int64_t)(DOWN ? k : n) * latent + (DOWN ? n : k) : 0), is);
    }
    copies_commit();
}

/* Loads this lane's elements of both of its rows, those of a tile from k0 on. */
static __device__ inline void load_elements(const float *const x[2], int k0, int k_end,
                                            float to[PROJECT_STEPS][8])
{
#pragma unroll
    for (int i = 0; i < PROJECT_STEPS * 8; i++) {
        int k = k0 + i / 8 * 16 + 2 * (threadIdx.x % 4) + i / 4 % 2 * 8 + i % 2;
        to[i / 8][i % 8] = k < k_end ? x[i / 2 % 2][k] : 0;
    }
}

template <bool DOWN, int Q, bool MANY>
static __global__ void __launch_bounds__(PROJECT_THREADS) project_kernel(mla_args a)
{
    typedef project_form<DOWN, MANY> form;
    enum { PITCH = form::PITCH, COLS = form::OWN / 8 };
    extern __shared__ __align__(16) uint16_t stages[];
    int lane = threadIdx.x % GPU_LANES, g = lane / 4, t4 = lane % 4, head = blockIdx.z;
    int col0 = MANY ? 0 : threadIdx.x / GPU_LANES * form::OWN; /* this warp's first */
    int n0 = blockIdx.y * form::COLS, whole = a.latent + a.pe, width = a.nope + a.pe;
    int64_t rows = a.step.counts[GPU_ROWS] - a.row0, first = (int64_t)blockIdx.x * form::ROWS;
    rows = rows < a.rows ? rows : a.rows;
    if (first >= rows)
        return;
    const project_shape<DOWN> s = project_shape<DOWN>::of(a, head);
    const float *x[2]; /* this lane's rows */
    const float by = DOWN ? a.scale : 1;
    int64_t r0 = first + (MANY ? threadIdx.x / GPU_LANES * 16 : 0) + g;
#pragma unroll
    for (int i = 0; i < 2; i++) {
        int64_t r = r0 + 8 * i < rows ? r0 + 8 * i : rows - 1;
        x[i] = DOWN ? a.q.p + (a.row0 + r) * a.q.stride + (int64_t)head * width
                    : a.united + (r * a.heads + head) * a.latent;
    }
    float acc[COLS][4] = {}, next[PROJECT_STEPS][8];
    for (int i = 0; i < PROJECT_STAGES - 1; i++)
        bring_weights<DOWN, MANY>(s, a.latent, i * PROJECT_LENGTH, n0, stages + i * form::TILE);
    load_elements(x, 0, s.k, next);
    for (int k0 = 0, turn = 0; k0 < s.k; k0 += PROJECT_LENGTH, turn++) {
        const int ahead = turn + PROJECT_STAGES - 1;
        const uint16_t *tile = stages + turn % PROJECT_STAGES * form::TILE;
        float own[PROJECT_STEPS][8];
#pragma unroll
        for (int i = 0; i < PROJECT_STEPS * 8; i++)
            own[i / 8][i % 8] = next[i / 8][i % 8] * by;
        copies_wait<PROJECT_STAGES - 2>();
        __syncthreads(); /* the tile is there, and nobody is at the one before */
        bring_weights<DOWN, MANY>(s, a.latent, ahead * PROJECT_LENGTH, n0,
                                  stages + ahead % PROJECT_STAGES * form::TILE);
        load_elements(x, k0 + PROJECT_LENGTH, s.k, next);
#pragma unroll
        for (int step = 0; step < PROJECT_STEPS; step++) {
            uint32_t of[Q][4];
#pragma unroll
            for (int j = 0; j < 4; j++) {
                uint32_t both[Q];
                pair_parts<Q>(own[step][2 * j], own[step][2 * j + 1], both);
#pragma unroll
                for (int p = 0; p < Q; p++)
                    of[p][j] = both[p];
            }
#pragma unroll
            for (int n = 0; n < COLS; n += 2) {
                uint32_t w[1][4];
                if (DOWN)
                    load_transposed(w[0], tile + (step * 16 + lane / 8 % 2 * 8 + lane % 8) * PITCH +
                                              col0 + n * 8 + lane / 16 * 8);
                else
                    load_matrices(w[0], tile + (col0 + n * 8 + lane / 16 * 8 + lane % 8) * PITCH +
                                            step * 16 + lane / 8 % 2 * 8);
                float add[2][4] = {};
                multiply<Q, 1>(add, of, w);
#pragma unroll
                for (int m = 0; m < 2; m++) {
#pragma unroll
                    for (int j = 0; j < 4; j++)
                        acc[n + m][j] += add[m][j];
                }
            }
        }
    }
#pragma unroll
    for (int i = 0; i < 2; i++) {
        int64_t r = r0 + 8 * i;
        float *y = DOWN ? a.query + (r * a.heads + head) * whole
                        : a.o.p + (a.row0 + r) * a.o.stride + (int64_t)head * a.dv;
#pragma unroll
        for (int n = 0; n < 2 * COLS; n++) {
            int c = n0 + col0 + n / 2 * 8 + 2 * t4 + n % 2;
            if (r < rows && c < s.n)
                y[c] = acc[n / 2][2 * i + n % 2];
        }
        /* What is not projected goes along. */
        for (int c = t4; DOWN && n0 + col0 == 0 && r < rows && c < a.pe; c += 4)
            y[a.latent + c] = x[i][a.nope + c] * a.scale;
    }
}

/* Makes one of the spans of a row and head, the first. */
enum { UNITE_COLS = 128, UNITE_PARTS = 4, UNITE_THREADS = UNITE_COLS * UNITE_PARTS };

static __global__ void __launch_bounds__(UNITE_THREADS) unite_kernel(mla_args a)
{
    __shared__ float part[MAX_SPANS], sums[UNITE_PARTS][UNITE_COLS];
    int64_t r = blockIdx.x, row = a.row0 + r, stride = a.latent + 2;
    int head = blockIdx.y, lane = threadIdx.x % GPU_LANES, own = threadIdx.x / UNITE_COLS;
    int c = blockIdx.z * UNITE_COLS + threadIdx.x % UNITE_COLS;
    if (row >= a.step.counts[GPU_ROWS])
        return;
    int n = spans_of(keys_of(a, row), a.most_spans);
    float *from = a.partial + (r * a.heads + head) * a.spans * stride;
    if (threadIdx.x < GPU_LANES) {
        float high = -INFINITY, sum = 0;
        for (int s = lane; s < n; s += GPU_LANES)
            high = fmaxf(high, from[s * stride]);
        high = lanes_max(high);
        float zero = high == -INFINITY ? 0 : high;
        for (int s = lane; s < n; s += GPU_LANES) {
            part[s] = expf(from[s * stride] - zero);
            sum = fmaf(part[s], from[s * stride + 1], sum);
        }
        sum = lanes_sum(sum);
        for (int s = lane; s < n; s += GPU_LANES)
            part[s] = sum == 0 ? 0 : part[s] / sum;
    }
    __syncthreads();
    float v = 0;
#pragma unroll 16
    for (int s = own; s < n && c < a.latent; s += UNITE_PARTS)
        v = fmaf(part[s], from[s * stride + 2 + c], v);
    sums[own][threadIdx.x % UNITE_COLS] = v;
    __syncthreads();
    if (own == 0 && c < a.latent) {
        for (int i = 1; i < UNITE_PARTS; i++)
            v += sums[i][threadIdx.x];
        a.united[(r * a.heads + head) * a.latent + c] = v;
    }
}

template <bool DOWN, int Q, bool MANY> static void project_rows(const mla_args &a, gpu_queue *q)
{
    typedef project_form<DOWN, MANY> form;
    size_t shared = (size_t)PROJECT_STAGES * form::TILE * sizeof(uint16_t);
    dim3 grid(gpu_blocks(a.rows, form::ROWS), gpu_blocks(DOWN ? a.latent : a.dv, form::COLS),
              (unsigned)a.heads);
    gpu_allow_shared(q, project_kernel<DOWN, Q, MANY>, shared);
    project_kernel<DOWN, Q, MANY><<<grid, PROJECT_THREADS, shared, q->stream>>>(a);
}

template <bool DOWN, int Q> static void project(const mla_args &a, gpu_queue *q)
{
    dim3 heads((unsigned)a.rows, (unsigned)a.heads, gpu_blocks(a.latent, UNITE_COLS));
    if (!DOWN)
        unite_kernel<<<heads, UNITE_THREADS, 0, q->stream>>>(a);
    if (a.rows <= 16)
        project_rows<DOWN, Q, false>(a, q);
    else
        project_rows<DOWN, Q, true>(a, q);
}

#endif
