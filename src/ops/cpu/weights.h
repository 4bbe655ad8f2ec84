/* The product of float32 rows with the rows of a weight: what "linear" and "experts" are made of.
 *
 * Every output is one dot product, summed in one order whatever stands around it: lane l of a
 * 16-lane accumulator takes the products of k = l mod 16 in ascending order by fused multiply-add,
 * then vf_sum.  So a result depends neither on how many rows are multiplied at once nor on how the
 * weight rows are shared out, nor on the processor level. */
#ifndef FL_OPS_CPU_WEIGHTS_H
#define FL_OPS_CPU_WEIGHTS_H

#include "ops/cpu/cpu_internal.h"

/* Rows in memory: row i begins at base + (index ? index[i] : i) * stride. */
typedef struct fl_row_list {
    float *base;
    int64_t stride;
    const int32_t *index;
} fl_row_list;

static inline float *fl_list_row(const fl_row_list *r, int64_t i)
{
    return r->base + (r->index ? r->index[i] : i) * r->stride;
}

enum {
    FL_WEIGHTS_W = 16,     /* weight rows: the best grain to share out */
    FL_WEIGHTS_PANEL = 32, /* weight rows decoded at a time */
#if defined(__AVX512F__)
    FL_WEIGHTS_K = 2048, /* elements of them; the second-level cache is of 1 MB and more */
#else
    FL_WEIGHTS_K = 1024,
#endif
    FL_WEIGHTS_X = 252, /* rows multiplied with them, where weight rows have more elements */
    /* Bytes of scratch fl_weights_mul needs: decoded weights and accumulators. */
    FL_WEIGHTS_SCRATCH =
        (FL_WEIGHTS_PANEL * FL_WEIGHTS_K + FL_WEIGHTS_X * FL_WEIGHTS_PANEL * 16) * 4
};

/* y[i][n - n0] = x[i] . w[n] for i < m and n0 <= n < n1.  w: fl_weights_type.  scratch: 64-aligned,
 * used where rows are not few (few.h).  m may be 0. */
#define fl_weights_mul FL_CPU_NAME(fl_weights_mul)
void fl_weights_mul(const fl_tensor *w, int64_t n0, int64_t n1, const fl_row_list *x,
                    const fl_row_list *y, int64_t m, void *scratch);

/* Row n of w as float32, in whole vectors: out has room for its length rounded up to 16. */
#define fl_weights_row FL_CPU_NAME(fl_weights_row)
void fl_weights_row(const fl_tensor *w, int64_t n, float *out);

/* True for the types of weights above. */
static inline bool fl_weights_type(fl_dtype t)
{
    return t == FL_BF16 || t == FL_F16 || t == FL_F32 || t == FL_MXFP4 || t == FL_F8_BLOCK ||
           t == FL_Q8;
}

#endif
