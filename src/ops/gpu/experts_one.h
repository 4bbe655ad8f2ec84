/* Experts that have one pair, with weights of MXFP4 (experts_one_mma.cu): the usual sizes. */
#ifndef FL_OPS_GPU_EXPERTS_ONE_H
#define FL_OPS_GPU_EXPERTS_ONE_H

#include "ops/gpu/experts.h"

/* Whether these weights are of MXFP4 and of sizes that the kernels take. */
bool experts_one_fits(const experts_args &a, int parts);

/* The first product (up) or the second for the listed experts that have one pair, `experts` at
 * most. */
void experts_one(const experts_args &a, int parts, bool up, int64_t experts, const fl_expr &act,
                 gpu_queue *q);

/* The whole operator for a pass without lists: every pair for itself. */
void experts_each_pair(const experts_args &a, int parts, const fl_expr &act, gpu_queue *q);

#endif
