/* What every file of the GPU backend includes: the runtime under its CUDA names (musa.h renames
 * them for Moore Threads), what a kernel finds of the step in device memory (row_math.h), and the
 * small helpers that launching and reducing need.
 *
 * Kernels work in warps of GPU_LANES threads, which opening a device makes sure of; nothing here is
 * PTX. */
#ifndef FL_OPS_GPU_H
#define FL_OPS_GPU_H

#ifdef FL_MUSA
#include "ops/gpu/musa.h"
#define GPU_KIND "musa"
#define GPU_ARCH "mp"
#else
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>
#define GPU_KIND "cuda"
#define GPU_ARCH "sm"
#endif

#include <stdint.h>

extern "C" {
#include "base/mem.h"
#include "graph/device.h"
#include "graph/expr.h"
#include "ops/def/def_internal.h"
#include "ops/plugin.h"
}
#include "ops/gpu/row_math.h"

enum { GPU_LANES = 32 }; /* threads that reduce together by shuffles */
enum { GPU_ROWS, GPU_SEQS, GPU_LOGITS, GPU_ONE, GPU_COUNTS }; /* indices into gpu_step.counts */

/* fl_worker.queue. */
typedef struct gpu_queue {
    cudaStream_t stream;
    gpu_step step;
    int processors; /* of the device */
    bool wgmma;     /* it has the asynchronous matrix instructions, and this plugin uses them */
    int64_t max_context; /* of the plan */
    cudaError_t error;   /* the first launch that was refused */
} gpu_queue;

/* conv.cu: moves the tails of a conv1d on. */
void gpu_conv_tail(gpu_queue *q, const fl_call *call, const fl_step *step);

/* fused.cu: compiles the calls of each joint for the architecture and gives it the kernel that
 * makes them; *out owns what that takes.  Where there is no compiler the joints stay as they are,
 * and note says so. */
typedef struct gpu_joined gpu_joined;
FL_MUST_CHECK fl_status gpu_join(fl_joint *joints, int n, const char *arch, gpu_joined **out,
                                 char note[160], fl_error *err);
void gpu_part(gpu_joined *joined); /* NULL is allowed */

static inline gpu_rows gpu_rows_of(const fl_arg *a)
{
    gpu_rows r = {(float *)a->data, a->type.rows == FL_ROWS_CONST ? 0 : a->stride};
    return r;
}

/* How many rows there are now, for a kernel to look at. */
static inline const int32_t *gpu_count(const gpu_queue *q, fl_rows rows)
{
    return q->step.counts + (rows == FL_ROWS_TOKENS   ? (int)GPU_ROWS
                             : rows == FL_ROWS_LOGITS ? (int)GPU_LOGITS
                                                      : (int)GPU_ONE);
}

static inline unsigned gpu_blocks(int64_t n, int64_t per_block)
{
    int64_t b = (n + per_block - 1) / per_block;
    return (unsigned)(b > 0 ? b : 1);
}

static inline int64_t gpu_min(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

/* Whether rows at this distance (of floats) all begin where 16 divides the address. */
static inline bool gpu_aligned16(const void *p, int64_t stride)
{
    return ((uintptr_t)p | (uintptr_t)stride * 4) % 16 == 0;
}

/* The rows [*begin, *end) of a sequence that lie in whole blocks of the chunk grid (step.h). */
static inline __host__ __device__ void gpu_whole_blocks(int64_t pos0, int n_rows, int *begin,
                                                        int *end)
{
    int before = (int)((FL_PAGE_TOKENS - pos0 % FL_PAGE_TOKENS) % FL_PAGE_TOKENS);
    int blocks = n_rows > before ? (n_rows - before) / FL_PAGE_TOKENS : 0;
    *begin = blocks ? before : n_rows;
    *end = *begin + blocks * FL_PAGE_TOKENS;
}

/* Remembers whether the launch before it was accepted. */
static inline void gpu_launched(gpu_queue *q)
{
    cudaError_t e = cudaGetLastError();
    if (q->error == cudaSuccess)
        q->error = e;
}

/* Lets a kernel have so many bytes of shared memory beside what it declares: unasked it gets 48 KiB
 * for both, and no kernel here declares more than 16. */
template <typename F> static inline void gpu_allow_shared(gpu_queue *q, F *kernel, size_t bytes)
{
    cudaError_t e =
        bytes > 32 << 10
            ? cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)bytes)
            : cudaSuccess;
    if (q->error == cudaSuccess)
        q->error = e;
}

/* ---- inside kernels ---- */

#ifdef __CUDACC__

/* The highest over GPU_LANES threads; every thread gets it. */
static __device__ inline float lanes_max(float x)
{
    for (int i = GPU_LANES / 2; i > 0; i /= 2)
        x = fmaxf(x, __shfl_xor_sync(0xffffffffu, x, i, GPU_LANES));
    return x;
}

/* The sum over a block of blockDim.x threads, at most 1024; `room` has GPU_LANES floats.  All
 * threads call it and get the result. */
static __device__ inline float block_sum(float x, float *room)
{
    int lane = threadIdx.x % GPU_LANES, warp = threadIdx.x / GPU_LANES;
    x = lanes_sum(x);
    __syncthreads();
    if (lane == 0)
        room[warp] = x;
    __syncthreads();
    x = lane < (int)blockDim.x / GPU_LANES ? room[lane] : 0;
    return lanes_sum(x);
}

/* The item of a paged pool that holds position pos of a sequence. */
static __device__ inline int64_t step_item(const gpu_step &s, const gpu_seq &q, int64_t pos)
{
    return (int64_t)s.pages[q.page0 + pos / FL_PAGE_TOKENS] * FL_PAGE_TOKENS + pos % FL_PAGE_TOKENS;
}

#endif

/* The kernel lists, one per file; those with PTX are left out of a portable build. */
#define GPU_PORTABLE_FILES(X)                                                                      \
    X(rows)                                                                                        \
    X(pick)                                                                                        \
    X(norm)                                                                                        \
    X(rope)                                                                                        \
    X(linear)                                                                                      \
    X(conv)                                                                                        \
    X(delta_rule)                                                                                  \
    X(mla)                                                                                         \
    X(index_select)                                                                                \
    X(route)                                                                                       \
    X(experts)                                                                                     \
    X(mix)                                                                                         \
    X(expr)
#ifdef FL_MUSA
#define GPU_FILES(X) GPU_PORTABLE_FILES(X)
#else
#define GPU_FILES(X)                                                                               \
    GPU_PORTABLE_FILES(X)                                                                          \
    X(linear_mma)                                                                                  \
    X(experts_mma)                                                                                 \
    X(mla_mma)                                                                                     \
    X(index_mma)                                                                                   \
    X(delta_mma)
#endif

#define GPU_DECLARE(file) extern const fl_kernel_list gpu_kernels_##file;
GPU_FILES(GPU_DECLARE)
#undef GPU_DECLARE

#endif
