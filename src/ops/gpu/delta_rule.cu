/* delta_rule token by token (delta.h), on any GPU. */
#include "ops/gpu/delta.h"

static void run(const fl_call *call, const fl_step *step, int phase, const fl_worker *worker)
{
    (void)phase;
    gpu_queue *q = (gpu_queue *)worker->queue;
    delta_plain(delta_args_of(call, step, q), step, q);
}

static bool fits(const fl_node_view *n)
{
    return n->in[FL_DELTA_Q]->dim[1] <= 256;
}

static const fl_kernel kernels[] = {{.op = "delta_rule",
                                     .name = "recurrent-gpu",
                                     .preference = 1,
                                     .n_phases = 1,
                                     .run = run,
                                     .fits = fits}};
extern const fl_kernel_list gpu_kernels_delta_rule = FL_KERNEL_LIST(kernels);
