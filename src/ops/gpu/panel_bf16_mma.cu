/* Panels times weights of BF16. */
#include "ops/gpu/panel_mma.h"

void panel_multiply_bf16(int parts, int run_class, const panel_args &a, const fl_expr *act,
                         gpu_queue *q)
{
    parts == 1 ? panel_multiply_parts<FL_BF16, 1>(run_class, a, act, q)
               : panel_multiply_parts<FL_BF16, 3>(run_class, a, act, q);
}
