/* What kernels that work on rows compute, once as code and once as text: the single kernels
 * (conv.cu, mix.cu, norm.cu) are compiled from the code, and what is compiled at run time
 * (ops/fused_source.c) from the text, so that both give the same bits.  Products that a following
 * sum must not swallow are written as such (__fmul_rn). */
#ifndef FL_OPS_GPU_ROW_MATH_H
#define FL_OPS_GPU_ROW_MATH_H

#include <stdint.h>

/* Threads that share a vector of n elements, and with them the order of its sums. */
static inline int fl_row_threads(int64_t n)
{
    return n <= 128 ? 32 : n <= 1024 ? 128 : 512;
}

/* Structures are declared and text; functions of the device are code there, and text here. */
#define FL_CODE_AND_TEXT(name, ...)                                                                \
    __VA_ARGS__                                                                                    \
    static const char name[] __attribute__((unused)) = #__VA_ARGS__;
#ifdef __CUDACC__
#define FL_DEVICE_TEXT(name, ...) __VA_ARGS__
#else
#define FL_DEVICE_TEXT(name, ...) static const char name[] __attribute__((unused)) = #__VA_ARGS__;
#endif

// clang-format off

FL_CODE_AND_TEXT(fl_text_step,

typedef struct gpu_seq {
    int32_t row0, n_rows, slot, page0; /* pages[page0 + p / FL_PAGE_TOKENS] holds position p */
    int64_t pos0;
} gpu_seq;

/* The step in device memory, written anew for each step at the same addresses, so that a recorded
 * step finds the numbers of the one it repeats.  A kernel may be launched for more rows than there
 * are: those from counts[GPU_ROWS] on are not there. */
typedef struct gpu_step {
    const int32_t *counts;
    const gpu_seq *seqs;
    const int32_t *ids, *row_seq, *pos, *logit_rows, *pages;
} gpu_step;

/* An activation: rows of floats (or int32_t). */
typedef struct gpu_rows {
    float *p;
    int64_t stride;
} gpu_rows;

/* A state of one record per sequence. */
typedef struct gpu_slots {
    unsigned char *base;
    int64_t item_bytes;
} gpu_slots;

enum { GPU_FUSED_ARGS = 64, GPU_FUSED_STATES = 8 };

/* The argument of a kernel that makes several calls. */
typedef struct gpu_fused {
    gpu_rows at[GPU_FUSED_ARGS];
    gpu_slots state[GPU_FUSED_STATES];
    gpu_step step;
    const int32_t *count; /* of rows */
    int32_t move;         /* every sequence has one row, which moves its tails on */
} gpu_fused;
)

FL_DEVICE_TEXT(fl_text_sums,

/* The sum over a warp, in a fixed order; every thread gets the result. */
static __device__ inline float lanes_sum(float x)
{
    for (int i = 16; i > 0; i /= 2)
        x += __shfl_xor_sync(0xffffffffu, x, i, 32);
    return x;
}

/* N sums over each T threads of a block that stand side by side; room has N * 32 floats.  All
 * threads of the block call it, and those of a team get its results. */
template <int T, int N> static __device__ inline void teams_sum(float (&x)[N], float *room)
{
    enum { WARPS = T / 32 };
    for (int n = 0; n < N; n++)
        x[n] = lanes_sum(x[n]);
    if (T == 32)
        return;
    int lane = threadIdx.x % 32, team = threadIdx.x / T;
    __syncthreads();
    for (int n = 0; n < N && lane == 0; n++)
        room[n * 32 + threadIdx.x / 32] = x[n];
    __syncthreads();
    for (int n = 0; n < N; n++)
        x[n] = lanes_sum(lane < WARPS ? room[n * 32 + team * WARPS + lane] : 0);
}
)

FL_DEVICE_TEXT(fl_text_rows,

static __device__ inline float rms_factor(float squares, float n, float eps)
{
    return 1 / sqrtf(squares / n + eps);
}

static __device__ inline float l2_factor(float squares, float scale, float eps)
{
    return scale / sqrtf(squares + eps);
}

static __device__ inline float mix_score(float dot, float squares, float n, float eps)
{
    return dot / sqrtf(squares / n + eps);
}

/* Channel c of row `row`: it looks back over the rows of its sequence and, before the first of them,
 * into the tail. */
static __device__ inline float conv_at(const gpu_step &s, gpu_rows x, const float *w,
                                       gpu_slots state, int64_t channels, int taps, int64_t row,
                                       int64_t c)
{
    const gpu_seq &seq = s.seqs[s.row_seq[row]];
    const float *tail = (const float *)(state.base + seq.slot * state.item_bytes) + c;
    int64_t r = row - seq.row0;
    float sum = 0;
    for (int j = 0; j < taps; j++) {
        int64_t from = r - (taps - 1) + j; /* row of the sequence; negative: in the tail */
        float v = from < 0 ? tail[(from + taps - 1) * channels]
                           : x.p[(seq.row0 + from) * x.stride + c];
        sum = fmaf(w[c * taps + j], v, sum);
    }
    return sum;
}

/* Moves channel c of the tail of sequence q on by its rows of the step. */
static __device__ inline void conv_move(const gpu_seq &q, gpu_rows x, gpu_slots state,
                                        int64_t channels, int taps, int64_t c)
{
    float *tail = (float *)(state.base + q.slot * state.item_bytes) + c;
    for (int j = 0; j < taps - 1; j++) {
        int64_t from = q.n_rows - (taps - 1) + j;
        tail[j * channels] = from < 0 ? tail[(j + q.n_rows) * channels]
                                      : x.p[(q.row0 + from) * x.stride + c];
    }
}
)

// clang-format on

#endif
