/* Products of 8-bit rows with MXFP4 and Q8 rows: precision "fast".
 *
 * A float32 row is quantised in groups that share a scale d = max|x| / 127, q = x / d rounded to
 * nearest even: of 32 elements for MXFP4 weights, as their groups are, of 128 for Q8.  MXFP4 codes,
 * doubled, are whole numbers, and so are those of Q8, so the products of eight elements are summed
 * exactly in integers.  The sum of elements [8 l, 8 l + 8) of every 128 is then converted and goes,
 * times both scales, to lane l of a 16-lane accumulator by fused multiply-add, in ascending order;
 * at the end the lanes are added by vf_sum.  Integers are exact, so all processor levels, tiles and
 * numbers of rows give the same bits. */
#ifndef FL_OPS_CPU_Q8_H
#define FL_OPS_CPU_Q8_H

#include "ops/cpu/weights.h"

enum {
    FL_Q8_CHUNK = 128,
    FL_Q8_W = 16,     /* weight rows decoded at a time: the best grain to share out */
    FL_Q8_PIECE = 16, /* chunks of them */
    FL_Q8_X = 128,    /* rows multiplied with them */
    /* Bytes of scratch fl_q8_mul needs: decoded weights and accumulators. */
    FL_Q8_SCRATCH = FL_Q8_W * FL_Q8_PIECE * (FL_Q8_CHUNK + 64) + FL_Q8_X * FL_Q8_W * 64
};

/* 128 elements as the product wants them: even and odd ones apart, as packed weights have elements
 * 2i and 2i + 1 in one byte, and Q8 is stored so (tensor.h); unsigned 8-bit weights are 12 or 128
 * too large, which `start` makes up for. */
typedef struct fl_q8_chunk {
    int8_t even[64], odd[64];
    int32_t start[16]; /* -12 or -128 times the sum of the eight q of a lane */
    float scale[16];   /* d, or d / 2 for MXFP4: its weights are doubled */
} fl_q8_chunk;

/* Quantised rows, side by side; a row is filled up with zeros to whole chunks. */
typedef struct fl_q8 {
    fl_q8_chunk *chunk;
    int64_t width;    /* elements; for MXFP4 a multiple of 32 */
    fl_dtype weights; /* what they will meet: FL_MXFP4 or FL_Q8 */
} fl_q8;

static inline int64_t fl_q8_chunks(int64_t width)
{
    return (width + FL_Q8_CHUNK - 1) / FL_Q8_CHUNK;
}

#define fl_q8_quantise FL_CPU_NAME(fl_q8_quantise)
#define fl_q8_mul FL_CPU_NAME(fl_q8_mul)

/* Quantises x, rows->width elements, to row i.  A group with NaN or infinity gets the scale NaN. */
void fl_q8_quantise(const float *x, const fl_q8 *rows, int64_t i);

/* y[i][n - n0] = x[index ? index[i] : first + i] . w[n] for i < m and n0 <= n < n1; w has the type
 * x->weights.  scratch: 64-aligned. */
void fl_q8_mul(const fl_tensor *w, int64_t n0, int64_t n1, const fl_q8 *x, const int32_t *index,
               int64_t first, const fl_row_list *y, int64_t m, void *scratch);

#endif
