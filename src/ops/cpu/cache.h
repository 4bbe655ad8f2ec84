/* Rows of a paged cache (graph/cache_row.h) as what kernels compute in: float32, or BF16 pairs. */
#ifndef FL_OPS_CPU_CACHE_H
#define FL_OPS_CPU_CACHE_H

#include "graph/cache_row.h"
#include "ops/cpu/cpu_internal.h"

#define fl_cache_load FL_CPU_NAME(fl_cache_load)
#define fl_cache_pairs FL_CPU_NAME(fl_cache_pairs)

/* What fl_cache_decode gives, by vectors. */
void fl_cache_load(fl_dtype t, int64_t n, const void *row, float *out);

#if defined(__AVX512BF16__)
/* The same rounded to BF16, as words (pairs.h): whole vectors of them, filled up with zeros.  BF16
 * and F8_E4M3 lose nothing. */
void fl_cache_pairs(fl_dtype t, int64_t n, const void *row, float *out);
#endif

#endif
