/* Products of 8-bit rows with MXFP4 rows: precision "fast".
 *
 * A float32 row is quantised in groups of 32, the groups of MXFP4: d = max|x| / 127, q = x / d
 * rounded to nearest even.  MXFP4 codes, doubled, are whole numbers, so the products of eight
 * elements are summed exactly in integers.  The sum of elements [8 l, 8 l + 8) of every 128 is then
 * converted and goes, times both scales, to lane l of a 16-lane accumulator by fused multiply-add,
 * in ascending order; at the end the lanes are added by vf_sum.  Integers are exact and the scale
 * of a weight is a power of two, so all processor levels give the same bits. */
#ifndef FL_OPS_CPU_Q8_H
#define FL_OPS_CPU_Q8_H

#include "ops/cpu/weights.h"

enum { FL_Q8_CHUNK = 128 };

/* 128 elements as the product wants them: packed weights have elements 2i and 2i + 1 in one byte,
 * and unsigned 8-bit weights are 12 too large, which `start` makes up for. */
typedef struct fl_q8_chunk {
    int8_t even[64], odd[64];
    int32_t start[16]; /* -12 times the sum of the eight q of a lane */
    float scale[16];   /* d / 2: the weights are doubled */
} fl_q8_chunk;

/* Quantised rows, side by side; a row is filled up with zeros to whole chunks. */
typedef struct fl_q8 {
    fl_q8_chunk *chunk;
    int64_t width; /* elements, a multiple of 32 */
} fl_q8;

static inline int64_t fl_q8_chunks(int64_t width)
{
    return (width + FL_Q8_CHUNK - 1) / FL_Q8_CHUNK;
}

#define fl_q8_quantise FL_CPU_NAME(fl_q8_quantise)
#define fl_q8_mul FL_CPU_NAME(fl_q8_mul)

/* Quantises x, rows->width elements, to row i.  A group with NaN or infinity gets the scale NaN. */
void fl_q8_quantise(const float *x, const fl_q8 *rows, int64_t i);

/* y[i][n - n0] = x[index ? index[i] : first + i] . w[n] for i < m and n0 <= n < n1; w is MXFP4. */
void fl_q8_mul(const fl_tensor *w, int64_t n0, int64_t n1, const fl_q8 *x, const int32_t *index,
               int64_t first, const fl_row_list *y, int64_t m);

#endif
