/* Products of rows rounded to BF16 with weights, by the dot instruction of processors that have one
 * (vdpbf16ps): precision "fast".
 *
 * Order of a sum: K is cut into pieces of FL_BF16_PIECE.  In a piece lane l of a 16-lane
 * accumulator takes the pairs of elements 32 i + 2 l and 32 i + 2 l + 1, i ascending; then vf_sum;
 * the pieces are added in ascending order.  So a result depends neither on how many rows are
 * multiplied at once nor on how the weight rows are shared out.  The instruction takes denormal
 * numbers for zero. */
#ifndef FL_OPS_CPU_BF16_H
#define FL_OPS_CPU_BF16_H

#include "ops/cpu/rounded.h"

enum {
    FL_BF16_X = 6,        /* rows of x of a group; in a step one row follows the other */
    FL_BF16_PIECE = 2048, /* elements of a piece */
    FL_BF16_PANEL = 32,   /* weight rows that are multiplied with all rows of x */
    /* Bytes of scratch fl_bf16_mul needs: two panels. */
    FL_BF16_SCRATCH = 2 * FL_BF16_PANEL * FL_BF16_PIECE * 2
};

#define fl_bf16_round FL_CPU_NAME(fl_bf16_round)
#define fl_bf16_mul FL_CPU_NAME(fl_bf16_mul)

/* Rounds group g of the m rows of x, filled up with rows of zeros; the rows of x begin at row
 * `first`, a multiple of FL_BF16_X. */
void fl_bf16_round(const fl_row_list *x, int64_t m, int64_t g, const fl_rounded *to, int64_t first);

/* y[i][n - n0] = x[first + i] . w[n] for i < m and n0 <= n < n1.  first is a multiple of FL_BF16_X;
 * w: fl_rounded_type.  scratch: 64-aligned. */
void fl_bf16_mul(const fl_tensor *w, int64_t n0, int64_t n1, const fl_rounded *x, int64_t first,
                 const fl_row_list *y, int64_t m, void *scratch);

#endif
