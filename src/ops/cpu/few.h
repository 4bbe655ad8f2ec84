/* The product of weights.h for fewer than FL_FEW rows of x: weight rows are streamed, decoded in
 * registers and never written anywhere.  What bounds one row is memory, so it is about how memory
 * is read: few.c. */
#ifndef FL_OPS_CPU_FEW_H
#define FL_OPS_CPU_FEW_H

#include "base/cpu.h"
#include "base/mem.h"
#include "ops/cpu/simd.h"
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

/* Asks for lines that will be read after others; second: to the second-level cache
 * (fl_cpu_fetch_second). */
FL_INLINE void fl_few_fetch(const unsigned char *lines, int64_t bytes, bool second)
{
    if (second) {
        FL_UNROLL
        for (int64_t i = 0; i < bytes; i += FL_CACHE_LINE)
            __builtin_prefetch(lines + i, 0, 2);
    } else {
        FL_UNROLL
        for (int64_t i = 0; i < bytes; i += FL_CACHE_LINE)
            __builtin_prefetch(lines + i);
    }
}

#define fl_few_mul FL_CPU_NAME(fl_few_mul)
void fl_few_mul(const fl_product *b);

#endif
