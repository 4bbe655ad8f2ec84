/* The short causal convolution: conv1d. */
#include "ops/def/def_internal.h"

static fl_status infer(const fl_node_view *n, fl_type *out, int *n_out, fl_error *err)
{
    const fl_want any = {"x", FL_WANT_ACTIVATION, FL_WANT_F32, true, 0, {0}};
    FL_TRY(fl_def_want(n, 0, &any, err));
    if (n->in[0]->rows != FL_ROWS_TOKENS)
        return fl_fail(err, FL_MODEL, "input 0 has logit rows");
    int64_t channels = fl_type_width(n->in[0]);
    bool flat = n->n_in > 1 && n->in[1] && n->in[1]->ndim == 2;
    const fl_want weight = {"weight", FL_WANT_CONST, FL_WANT_F32,
                            false,    flat ? 2 : 3,  {channels, flat ? FL_ANY : 1, FL_ANY}};
    FL_TRY(fl_def_want(n, 1, &weight, err));
    int64_t taps = n->in[1]->dim[n->in[1]->ndim - 1];
    const fl_want tail = {"tail", FL_WANT_RECURRENT,      FL_WANT_F32, false,
                          1,      {(taps - 1) * channels}};
    FL_TRY(fl_def_want(n, 2, &tail, err));
    out[0] = *n->in[0];
    *n_out = 1;
    return FL_OK;
}

static void cost(const fl_node_view *n, const fl_sizes *sizes, fl_cost *out)
{
    out->flops = 2 * (double)sizes->rows * (double)fl_type_width(n->in[1]);
    out->weight_bytes = fl_def_bytes(n->in[1]);
    out->state_bytes = 2 * fl_def_bytes(n->in[2]); /* read and written once a sequence */
}

const fl_op fl_op_conv1d = {
    .name = "conv1d",
    .doc = "causal depthwise convolution with a carried tail",
    .min_in = 3,
    .max_in = 3,
    .effect = true,
    .infer = infer,
    .cost = cost,
};
