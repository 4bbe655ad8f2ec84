/* Products of 8-bit rows with MXFP4 rows: precision "fast".
 *
 * A float32 row is quantised in groups of 32, the groups of MXFP4: d = max|x| / 127, q = x / d
 * rounded to the nearest even integer.  The product of a group is a sum of integers (the MXFP4
 * codes doubled, so they are whole numbers), exact in eight parts of four elements each; part p is
 * converted and added to lane p of a float32 accumulator, groups ascending, times the scales; then
 * the lanes are added in a tree.  The scales of MXFP4 are powers of two, so all processor levels
 * agree bit for bit. */
#ifndef FL_OPS_CPU_Q8_H
#define FL_OPS_CPU_Q8_H

#include "ops/cpu/cpu_internal.h"
#include "ops/cpu/weights.h"

/* Quantised rows, side by side: row i has its codes at q + i * width, a multiple of 32, and a scale
 * for every group at d + i * width / 32. */
typedef struct fl_q8 {
    int8_t *q;
    float *d;
    int64_t width;
} fl_q8;

#define fl_q8_quantise FL_CPU_NAME(fl_q8_quantise)
#define fl_q8_mul FL_CPU_NAME(fl_q8_mul)

/* Quantises x, rows->width elements, to row i.  A group with NaN or infinity gets the scale NaN. */
void fl_q8_quantise(const float *x, const fl_q8 *rows, int64_t i);

/* y[i][n - n0] = x[index ? index[i] : first + i] . w[n] for i < m and n0 <= n < n1; w is MXFP4. */
void fl_q8_mul(const fl_tensor *w, int64_t n0, int64_t n1, const fl_q8 *x, const int32_t *index,
               int64_t first, const fl_row_list *y, int64_t m);

#endif
