/* greatest: which element of a row is the highest.  A device's plan ends with it (graph/device.c),
 * so that a greedy request's logits need not leave the device. */
#include "ops/def/def_internal.h"

static fl_status infer_greatest(const fl_node_view *n, fl_type *out, int *n_out, fl_error *err)
{
    const fl_want any = {"x", FL_WANT_ACTIVATION, FL_WANT_F32, true, 0, {0}};
    FL_TRY(fl_def_want(n, 0, &any, err));
    out[0] = fl_def_type(n->in[0]->rows, FL_I32, 1, (int64_t[]){2});
    *n_out = 1;
    return FL_OK;
}

static void cost_greatest(const fl_node_view *n, const fl_sizes *sizes, fl_cost *out)
{
    out->flops = fl_def_rows(n->in[0], sizes) * (double)fl_type_width(n->in[0]);
}

const fl_op fl_op_greatest = {
    .name = "greatest",
    .doc = "the index of the highest element, the lowest of equals, and whether all are finite",
    .min_in = 1,
    .max_in = 1,
    .infer = infer_greatest,
    .cost = cost_greatest,
};
