/* pick: the index of the highest element or of one that is drawn, if all are finite. */
#include "ops/ref/ref_internal.h"

#include "base/pool.h"
#include "ops/draw.h"

#include <math.h>
#include <string.h>

static void run(const fl_call *call, const fl_step *step, int phase, const fl_worker *worker)
{
    (void)phase;
    int64_t n = fl_type_width(&call->in[0].type), begin, end;
    fl_split(fl_rows_now(step, call->in[0].type.rows), 1, worker->thread, worker->n_threads, &begin,
             &end);
    for (int64_t r = begin; r < end; r++) {
        const float *x = fl_row_f32(&call->in[0], r);
        int32_t *y = (int32_t *)call->out[0].data + r * call->out[0].stride, best = 0, finite = 1;
        fl_draw d = {0};
        if (call->n_in > 1)
            memcpy(&d, (int32_t *)call->in[1].data + r * call->in[1].stride, sizeof d);
        for (int32_t i = 0; i < n; i++) {
            finite &= isfinite(x[i]) != 0;
            best = x[i] > x[best] ? i : best;
        }
        if (finite && d.scale > 0)
            best = fl_draw_token(&d, x, n, worker->scratch);
        y[0] = finite ? best : 0;
        y[1] = finite ? FL_PICK_FOUND : FL_PICK_NOT_FINITE;
    }
}

static void scratch(const fl_node_view *node, const fl_limits *limits, size_t *own, size_t *shared)
{
    (void)limits;
    *own = node->n_in > 1 ? (size_t)fl_type_width(node->in[0]) * sizeof(fl_candidate) : 0;
    *shared = 0;
}

static const fl_kernel kernels[] = {
    {.op = "pick", .name = "ref", .n_phases = 1, .run = run, .scratch = scratch}};
const fl_kernel_list fl_ref_kernels_pick = FL_KERNEL_LIST(kernels);
