/* Scores of index_select for many rows of one sequence (index_many_mma.cu): what was loaded and
 * made of a key serves all of them.  A row's scores have the bits that index_mma.cu gives it. */
#ifndef FL_OPS_GPU_INDEX_MANY_H
#define FL_OPS_GPU_INDEX_MANY_H

#include "ops/gpu/index.h"

static inline bool index_many_fits(fl_dtype keys, int64_t heads, int64_t d)
{
    return (keys == FL_F32 || keys == FL_BF16) && heads > 16 && heads <= 64 && d <= 128;
}

/* The rows of a pass, all of one sequence, of which the last sees n_keys. */
void index_many_score(const select_args &a, fl_dtype keys, int64_t n_keys, gpu_queue *q);

#endif
