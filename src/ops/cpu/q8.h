/* Products of 8-bit rows with MXFP4 rows: the routed experts of precision "fast".
 *
 * A float32 row is quantised in groups of 32, as those of the weights: a group shares a scale
 * d = max|x| / 127, q = x / d rounded to nearest even.  MXFP4 codes, doubled, are whole numbers, so
 * the products of sixteen elements of a group are summed exactly in integers.
 *
 * Order of a sum: K is cut into pieces of FL_Q8_PIECE chunks of 256 elements.  In a chunk lane l of
 * a 16-lane accumulator takes, chunks ascending, the sixteen elements that fl_q8_chunk gives it:
 * their sum, converted, times the product of both scales, by fused multiply-add.  Then vf_sum; the
 * pieces are added in ascending order.  Integers are exact, so all processor levels, tiles and
 * numbers of rows give the same bits. */
#ifndef FL_OPS_CPU_Q8_H
#define FL_OPS_CPU_Q8_H

#include "ops/cpu/weights.h"

enum {
    FL_Q8_CHUNK = 256,
    FL_Q8_W = 16,     /* weight rows decoded at a time: the best grain to share out */
    FL_Q8_PIECE = 32, /* chunks of them */
    /* Bytes of scratch fl_q8_mul needs, twice decoded weights, their scales, and a little more. */
    FL_Q8_SCRATCH = 2 * (FL_Q8_W * FL_Q8_PIECE * (FL_Q8_CHUNK + 64) + 512)
};

/* 256 elements as the product wants them: four for a lane in each of four parts.  A chunk has eight
 * groups of 32; lanes 2 i and 2 i + 1 have group i / 2, and for odd i the one four further.  Of a
 * group, parts 0 and 1 have the even and the odd ones of the first sixteen elements, parts 2 and 3
 * those of the others, since packed weights have elements 2 i and 2 i + 1 in one byte. */
typedef struct fl_q8_chunk {
    int8_t part[4][64];
    int32_t start[16]; /* -12 times the sum of the sixteen q of a lane: codes are 12 too large */
    float scale[16];   /* d / 2: weights are doubled */
} fl_q8_chunk;

/* Quantised rows, side by side; a row is filled up with zeros to whole chunks. */
typedef struct fl_q8 {
    fl_q8_chunk *chunk;
    bool *tame;    /* per row: its scales are 0 or so far from the ends of float32 that factors of
                      2^100 do no harm */
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

/* y[i][n - n0] = x[index ? index[i] : first + i] . w[n] for i < m and n0 <= n < n1; w is MXFP4.
 * scratch: 64-aligned. */
void fl_q8_mul(const fl_tensor *w, int64_t n0, int64_t n1, const fl_q8 *x, const int32_t *index,
               int64_t first, const fl_row_list *y, int64_t m, void *scratch);

#endif
