/* Rows of a paged cache (graph/cache_row.h) as float32, for kernels that compute in it. */
#ifndef FL_OPS_CPU_CACHE_H
#define FL_OPS_CPU_CACHE_H

#include "graph/cache_row.h"
#include "ops/cpu/cpu_internal.h"

#define fl_cache_load FL_CPU_NAME(fl_cache_load)

/* What fl_cache_decode gives, by vectors. */
void fl_cache_load(fl_dtype t, int64_t n, const void *row, float *out);

#endif
