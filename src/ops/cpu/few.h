/* The product of weights.h for fewer than FL_FEW rows of x: weight rows are streamed, decoded in
 * registers and never written anywhere.  What bounds one row is memory, so it is about how memory
 * is read: few.c. */
#ifndef FL_OPS_CPU_FEW_H
#define FL_OPS_CPU_FEW_H

#include "ops/cpu/weights.h"

/* Rows of x from which decoding to scratch pays. */
#if defined(__AVX512F__)
enum { FL_FEW = 17 };
#else
enum { FL_FEW = 12 };
#endif

/* Bytes that are fetched ahead at least: what memory delivers while one line is on its way. */
enum { FL_FEW_AHEAD = 8192 };

/* What fl_weights_mul is asked for. */
typedef struct fl_product {
    const fl_tensor *w;
    int64_t n0, n1; /* weight rows */
    const fl_row_list *x, *y;
    int64_t m; /* rows of x */
} fl_product;

#define fl_few_mul FL_CPU_NAME(fl_few_mul)
void fl_few_mul(const fl_product *b);

#endif
