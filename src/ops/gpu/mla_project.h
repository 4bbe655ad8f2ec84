/* mla's products with kv_b for many rows, on matrix units: UK^T q before attention and UV times its
 * result.  A block does PROJECT_ROWS rows and PROJECT_COLS results of one head; tiles of the weights
 * come to shared memory while the ones before are multiplied, rows straight to registers, where they
 * become Q BF16 parts.  16 elements of the length are summed in the matrix unit, these sums in
 * ascending order. */
#ifndef FL_OPS_GPU_MLA_PROJECT_H
#define FL_OPS_GPU_MLA_PROJECT_H

#include "ops/gpu/mla.h"
#include "ops/gpu/parts.h"

enum { PROJECT_ROWS = 64, PROJECT_COLS = 128, PROJECT_LENGTH = 64 /* of a tile */ };
enum { PROJECT_WARPS = PROJECT_ROWS / 16, PROJECT_THREADS = PROJECT_WARPS * GPU_LANES };
enum { PROJECT_TILE = PROJECT_COLS * (PROJECT_LENGTH + 8) /* elements, with room between rows */ };

/* Four matrices of 8 x 8 from shared memory, each lane giving the address of a row. */
static __device__ inline void load_matrices(uint32_t out[4], const uint16_t *at)
{
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(out[0]), "=r"(out[1]), "=r"(out[2]), "=r"(out[3])
                 : "r"((uint32_t)__cvta_generic_to_shared(at)));
}

static __device__ inline void load_transposed(uint32_t out[4], const uint16_t *at)
{
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(out[0]), "=r"(out[1]), "=r"(out[2]), "=r"(out[3])
                 : "r"((uint32_t)__cvta_generic_to_shared(at)));
}

/* sum[n] += the products of a's parts with those of b's columns 8 n to 8 n + 7, least first; of
 * three parts with three the six greatest. */
template <int Q, int P>
static __device__ inline void multiply(float sum[2][4], const uint32_t a[Q][4],
                                       const uint32_t b[P][4])
{
    const int last = Q > P ? Q : P;
#pragma unroll
    for (int order = last - 1; order >= 0; order--) {
#pragma unroll
        for (int i = 0; i <= order; i++) {
            if (i >= Q || order - i >= P)
                continue;
            mma(sum[0], a[i], b[order - i][0], b[order - i][1]);
            mma(sum[1], a[i], b[order - i][2], b[order - i][3]);
        }
    }
}

/* DOWN: from nope to latent, by rows of kv_b; otherwise from latent to dv, by its columns. */
template <bool DOWN> struct project_shape {
    int k, n;                 /* the length and the number of results */
    const uint16_t *w;        /* the head's first weight */
    static __device__ inline project_shape of(const mla_args &a, int head)
    {
        const uint16_t *w = (const uint16_t *)a.kv_b.data;
        int64_t row = (int64_t)head * (a.nope + a.dv) + (DOWN ? 0 : a.nope);
        project_shape s = {DOWN ? a.nope : a.latent, DOWN ? a.latent : a.dv, w + row * a.latent};
        return s;
    }
};

/* Starts bringing the weights of elements k0 on and results n0 on; zero where there are none. */
template <bool DOWN>
static __device__ inline void bring_weights(const project_shape<DOWN> &s, int latent, int k0, int n0,
                                            uint16_t *tile)
{
    enum { ROWS = DOWN ? PROJECT_LENGTH : PROJECT_COLS, WIDTH = DOWN ? PROJECT_COLS : PROJECT_LENGTH };
    for (int i = threadIdx.x; i < ROWS * WIDTH / 8; i += PROJECT_THREADS) {
        int row = i / (WIDTH / 8), c = i % (WIDTH / 8) * 8;
        int k = k0 + (DOWN ? row : c), n = n0 + (DOWN ? c : row);
        uint16_t *to = tile + row * (WIDTH + 8) + c;
        if (k < s.k && n < s.n)
            copy_async(to, s.w + (int64_t)(DOWN ? k : n) * latent + (DOWN ? n : k));
        else
            *(uint4 *)to = make_uint4(0, 0, 0, 0);
    }
    copies_commit();
}

template <bool DOWN, int Q>
static __global__ void __launch_bounds__(PROJECT_THREADS) project_kernel(mla_args a)
{
    __shared__ __align__(16) uint16_t tiles[2][PROJECT_TILE];
    enum { PITCH = (DOWN ? PROJECT_COLS : PROJECT_LENGTH) + 8, COLS = PROJECT_COLS / 8 };
    int lane = threadIdx.x % GPU_LANES, g = lane / 4, t4 = lane % 4, head = blockIdx.z;
    int n0 = blockIdx.y * PROJECT_COLS, whole = a.latent + a.pe, width = a.nope + a.pe;
    int64_t rows = a.step.counts[GPU_ROWS] - a.row0, first = (int64_t)blockIdx.x * PROJECT_ROWS;
    rows = rows < a.rows ? rows : a.rows;
    if (first >= rows)
        return;
    const project_shape<DOWN> s = project_shape<DOWN>::of(a, head);
    /* This lane's rows, and what they are multiplied by: results are still to be divided. */
    const float *x[2];
    float by[2];
    int64_t r0 = first + threadIdx.x / GPU_LANES * 16 + g;
#pragma unroll
    for (int i = 0; i < 2; i++) {
        int64_t r = r0 + 8 * i < rows ? r0 + 8 * i : rows - 1;
        const float *done = a.partial + (r * a.heads + head) * a.spans * (a.latent + 2);
        x[i] = DOWN ? a.q.p + (a.row0 + r) * a.q.stride + (int64_t)head * width : done + 2;
        by[i] = DOWN ? a.scale : done[1] == 0 ? 0 : 1 / done[1];
    }
    float acc[COLS][4] = {};
    bring_weights(s, a.latent, 0, n0, tiles[0]);
    for (int k0 = 0, turn = 0; k0 < s.k; k0 += PROJECT_LENGTH, turn = !turn) {
        copies_wait<0>();
        __syncthreads();
        if (k0 + PROJECT_LENGTH < s.k)
            bring_weights(s, a.latent, k0 + PROJECT_LENGTH, n0, tiles[!turn]);
        const uint16_t *tile = tiles[turn];
#pragma unroll
        for (int step = 0; step < PROJECT_LENGTH / 16; step++) {
            uint32_t of[Q][4];
#pragma unroll
            for (int j = 0; j < 4; j++) {
                int k = k0 + step * 16 + 2 * t4 + j / 2 * 8;
                float u = k < s.k ? x[j % 2][k] * by[j % 2] : 0;
                float v = k + 1 < s.k ? x[j % 2][k + 1] * by[j % 2] : 0;
                uint32_t both[Q];
                pair_parts<Q>(u, v, both);
#pragma unroll
                for (int p = 0; p < Q; p++)
                    of[p][j] = both[p];
            }
#pragma unroll
            for (int n = 0; n < COLS; n += 2) {
                uint32_t w[1][4];
                if (DOWN)
                    load_transposed(w[0], tile + (step * 16 + lane / 8 % 2 * 8 + lane % 8) * PITCH +
                                              n * 8 + lane / 16 * 8);
                else
                    load_matrices(w[0], tile + (n * 8 + lane / 16 * 8 + lane % 8) * PITCH +
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
            int c = n0 + n / 2 * 8 + 2 * t4 + n % 2;
            if (r < rows && c < s.n)
                y[c] = acc[n / 2][2 * i + n % 2];
        }
        /* What is not projected goes along. */
        for (int c = t4; DOWN && blockIdx.y == 0 && r < rows && c < a.pe; c += 4)
            y[a.latent + c] = x[i][a.nope + c] * a.scale;
    }
}

template <bool DOWN, int Q> static void project(const mla_args &a, gpu_queue *q)
{
    dim3 grid(gpu_blocks(a.rows, PROJECT_ROWS), gpu_blocks(DOWN ? a.latent : a.dv, PROJECT_COLS),
              (unsigned)a.heads);
    project_kernel<DOWN, Q><<<grid, PROJECT_THREADS, 0, q->stream>>>(a);
}

#endif
