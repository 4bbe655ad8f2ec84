/* Products of many vectors with wgmma (panel_mma.h): one order of sums with the kernels of mma.h,
 * an activation rounded to one BF16 number.
 *
 * Vectors are gathered into a panel: planes of 64 elements, in each a row of 128 bytes per vector,
 * in the order in which the lanes of a warp read weights (mma.h).  So what a block needs next, 64
 * elements of a run of vectors, is one piece of memory that the copy engine brings. */
#ifndef FL_OPS_GPU_PANEL_H
#define FL_OPS_GPU_PANEL_H

#include "ops/gpu/gate_mma.h"
#include "ops/gpu/mma.h"

/* [plane][part][rows][128 bytes]; 8 divides rows. */
typedef struct panel {
    unsigned char *p;
    int64_t rows;
} panel;

/* What is multiplied, and where it goes. */
typedef struct panel_args {
    gpu_weight w[2]; /* gate and up; a product has the same twice */
    panel x;
    const gpu_run *runs; /* NULL: all vectors, `width` each */
    const int32_t *n_runs, *count;
    int64_t row0, most; /* without runs: vectors are *count less row0, `most` at most */
    int width;
    int group;            /* runs that go side by side through all weights */
    expert_gate gate;     /* set by panel_multiply */
    panel hidden;         /* of gate and up: what the activation makes of them */
    const int32_t *place; /* of a product: vector i goes to row place[i] (NULL: i) of out */
    float *out;
    int64_t stride;
} panel_args;

/* Runs are of one of these widths at most; there is a kernel for each, because registers are dealt
 * out when it is compiled. */
#define PANEL_WIDTHS(X) X(16) X(32) X(48) X(64) X(80) X(104) X(128) X(152)
#define PANEL_COUNT(WIDTH) +1
enum { PANEL_CLASSES = PANEL_WIDTHS(PANEL_COUNT) };

/* The class of runs of n vectors: the first width that holds them. */
static inline __host__ __device__ int panel_class(int n)
{
    int c = 0;
#define PANEL_BEYOND(WIDTH) c += n > WIDTH;
    PANEL_WIDTHS(PANEL_BEYOND)
#undef PANEL_BEYOND
    return c;
}

/* What multiplies what: weights of MXFP4 or BF16, activations in one or three parts. */
typedef struct panel_kind {
    fl_dtype weights;
    int parts;
} panel_kind;

/* The most vectors of a run: registers hold no more. */
#define PANEL_MOST(weights, parts) ((parts) == 1 ? (weights) == FL_MXFP4 ? 152 : 128 : 80)

/* Bytes of a panel of so many vectors of length k. */
static inline int64_t panel_bytes(int64_t rows, int64_t k, int parts)
{
    return rows * arranged_bytes(k, parts);
}

/* Vector i of a panel is row row0 + i of x, or row from[i] / per where `from` is given (negative:
 * none); there are *count less row0, `most` at most, of length k. */
typedef struct panel_gathering {
    gpu_rows x;
    const int32_t *from, *count;
    int per;
    int64_t row0, most, k;
} panel_gathering;

void panel_gather(panel_kind kind, const panel_gathering &g, const panel &to, gpu_queue *q);

/* Multiplies the runs, which are of one class.  act: what becomes of gate and up; NULL: a
 * product. */
void panel_multiply(panel_kind kind, int run_class, const panel_args &a, const fl_expr *act,
                    gpu_queue *q);

/* The same for one format of weights. */
void panel_multiply_bf16(int parts, int run_class, const panel_args &a, const fl_expr *act,
                         gpu_queue *q);
void panel_multiply_mxfp4(int parts, int run_class, const panel_args &a, const fl_expr *act,
                          gpu_queue *q);

#endif
