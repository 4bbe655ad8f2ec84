/* What the kernels of linear on matrix units share. */
#ifndef FL_OPS_GPU_LINEAR_H
#define FL_OPS_GPU_LINEAR_H

#include "ops/gpu/weights.h"

typedef struct linear_args {
    gpu_rows x, y;
    gpu_weight w;
    const int32_t *count;
    int64_t row0, rows; /* of a pass */
    bool aligned;
    unsigned char *arranged; /* scratch: the vectors of the pass */
} linear_args;

/* Vectors of a pass take linear_panel_bytes of scratch. */
size_t linear_panel_bytes(int64_t rows, int64_t k, int parts);

/* One pass of a weight of this type (BF16, MXFP4) for many rows (linear_panel_mma.cu).  fresh: the
 * vectors are not there yet.  False, with nothing done, where the other kernels do as well or the
 * processor cannot. */
bool linear_panels(const linear_args &a, fl_dtype type, int parts, bool fresh, gpu_queue *q);

#endif
