/* Panels times weights of MXFP4. */
#include "ops/gpu/panel_mma.h"

void panel_multiply_mxfp4(int parts, int run_class, const panel_args &a, const fl_expr *act,
                          gpu_queue *q)
{
    parts == 1 ? panel_multiply_parts<FL_MXFP4, 1>(run_class, a, act, q)
               : panel_multiply_parts<FL_MXFP4, 3>(run_class, a, act, q);
}
