/* greatest: the index of the highest element, and whether all are finite. */
#include "ops/ref/ref_internal.h"

#include "base/pool.h"

#include <math.h>

static void run(const fl_call *call, const fl_step *step, int phase, const fl_worker *worker)
{
    (void)phase;
    int64_t n = fl_type_width(&call->in[0].type), begin, end;
    fl_split(fl_rows_now(step, call->in[0].type.rows), 1, worker->thread, worker->n_threads, &begin,
             &end);
    for (int64_t r = begin; r < end; r++) {
        const float *x = fl_row_f32(&call->in[0], r);
        int32_t *y = (int32_t *)call->out[0].data + r * call->out[0].stride, best = 0, finite = 1;
        for (int32_t i = 0; i < n; i++) {
            finite &= isfinite(x[i]) != 0;
            best = x[i] > x[best] ? i : best;
        }
        y[0] = finite ? best : 0;
        y[1] = finite;
    }
}

static const fl_kernel kernels[] = {{.op = "greatest", .name = "ref", .n_phases = 1, .run = run}};
const fl_kernel_list fl_ref_kernels_greatest = FL_KERNEL_LIST(kernels);
