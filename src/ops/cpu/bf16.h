/* Products of rows rounded to BF16 with weights, by the dot instruction of processors that have one
 * (vdpbf16ps): precision "fast".  BF16 and MXFP4 weights are taken exactly, those of Q8 and
 * F8_BLOCK are rounded to BF16 too, which is little beside the rounding they have behind them.
 *
 * Order of a sum: K is cut into pieces of FL_BF16_PIECE.  In a piece lane l of a 16-lane
 * accumulator takes the pairs of elements 32 i + 2 l and 32 i + 2 l + 1, i ascending; then vf_sum;
 * the pieces are added in ascending order.  So a result depends neither on how many rows are
 * multiplied at once nor on how the weight rows are shared out.  The instruction takes denormal
 * numbers for zero. */
#ifndef FL_OPS_CPU_BF16_H
#define FL_OPS_CPU_BF16_H

#include "ops/cpu/weights.h"

enum {
    FL_BF16_X = 6,        /* rows of x that lie side by side */
    FL_BF16_STEP = 32,    /* elements of one instruction */
    FL_BF16_PIECE = 2048, /* elements of a piece */
    FL_BF16_PANEL = 32,   /* weight rows that are multiplied with all rows of x */
    /* Bytes of scratch fl_bf16_mul needs: two panels. */
    FL_BF16_SCRATCH = 2 * FL_BF16_PANEL * FL_BF16_PIECE * 2
};

/* Rounded rows, in groups of FL_BF16_X: group by group, step by step, row by row.  The last group
 * is filled up with zeros, and so is the last step. */
typedef struct fl_bf16 {
    uint16_t *data; /* 64-aligned, fl_bf16_bytes */
    int64_t width;  /* elements of a row */
} fl_bf16;

static inline int64_t fl_bf16_groups(int64_t rows)
{
    return (rows + FL_BF16_X - 1) / FL_BF16_X;
}

static inline int64_t fl_bf16_steps(int64_t width)
{
    return (width + FL_BF16_STEP - 1) / FL_BF16_STEP;
}

/* Bytes of a group. */
static inline int64_t fl_bf16_bytes(int64_t width)
{
    return fl_bf16_steps(width) * FL_BF16_STEP * FL_BF16_X * 2;
}

#define fl_bf16_round FL_CPU_NAME(fl_bf16_round)
#define fl_bf16_mul FL_CPU_NAME(fl_bf16_mul)

/* Rounds groups [begin, end) of the m rows of x. */
void fl_bf16_round(const fl_row_list *x, int64_t m, const fl_bf16 *to, int64_t begin, int64_t end);

/* y[i][n - n0] = x[first + i] . w[n] for i < m and n0 <= n < n1.  first is a multiple of FL_BF16_X;
 * w: fl_bf16_type.  scratch: 64-aligned. */
void fl_bf16_mul(const fl_tensor *w, int64_t n0, int64_t n1, const fl_bf16 *x, int64_t first,
                 const fl_row_list *y, int64_t m, void *scratch);

/* True for the types of weights above. */
static inline bool fl_bf16_type(fl_dtype t)
{
    return t == FL_BF16 || t == FL_MXFP4 || t == FL_F8_BLOCK || t == FL_Q8;
}

#endif
