/* pick: the next token of each row of logits.  A device's plan ends with it (graph/device.c), so
 * that logits need not leave the device. */
#include "graph/plan.h"
#include "ops/def/def_internal.h"

static fl_status infer_pick(const fl_node_view *n, fl_type *out, int *n_out, fl_error *err)
{
    const fl_want any = {"x", FL_WANT_ACTIVATION, FL_WANT_F32, true, 0, {0}};
    const fl_want how = {"draws", FL_WANT_ACTIVATION, FL_WANT_I32, true, 1, {FL_DRAW_WORDS}};
    FL_TRY(fl_def_want(n, 0, &any, err));
    if (n->n_in > 1)
        FL_TRY(fl_def_want(n, 1, &how, err));
    out[0] = fl_def_type(n->in[0]->rows, FL_I32, 1, (int64_t[]){2});
    *n_out = 1;
    return FL_OK;
}

static void cost_pick(const fl_node_view *n, const fl_sizes *sizes, fl_cost *out)
{
    out->flops = fl_def_rows(n->in[0], sizes) * (double)fl_type_width(n->in[0]);
}

const fl_op fl_op_pick = {
    .name = "pick",
    .doc = "the index of the highest element, the lowest of equals, or one drawn (ops/draw.h)",
    .min_in = 1,
    .max_in = 2,
    .infer = infer_pick,
    .cost = cost_pick,
};
