/* The residual stream over depth: residual_mix. */
#include "ops/def/def_internal.h"

static fl_status infer(const fl_node_view *n, fl_type *out, int *n_out, fl_error *err)
{
    const fl_want weight = {"weight", FL_WANT_CONST, FL_WANT_F32, false, 1, {FL_ANY}};
    FL_TRY(fl_def_want(n, 0, &weight, err));
    const fl_want source = {"source", FL_WANT_ACTIVATION, FL_WANT_F32, false,
                            1,        {n->in[0]->dim[0]}};
    for (int i = 1; i < n->n_in; i++) {
        FL_TRY(fl_def_want(n, i, &source, err));
        FL_TRY(fl_def_same_rows(n, i, 1, err));
    }
    FL_TRY(fl_def_number(n, FL_RESIDUAL_MIX_EPS, 0, 1, err));
    out[0] = *n->in[1];
    *n_out = 1;
    return FL_OK;
}

static void cost(const fl_node_view *n, const fl_sizes *sizes, fl_cost *out)
{
    double sources = n->n_in - 1;
    out->flops = 6 * sources * fl_def_rows(n->in[1], sizes) * (double)n->in[0]->dim[0];
    out->weight_bytes = fl_def_bytes(n->in[0]);
}

static const fl_attr_spec attrs[] = {
    [FL_RESIDUAL_MIX_EPS] = {"eps", FL_ATTR_FLOAT, .required = true}};

const fl_op fl_op_residual_mix = {
    .name = "residual_mix",
    .doc = "sum_i p_i v_i, p = softmax_i(w . v_i rsqrt(mean(v_i^2) + eps))",
    .min_in = 2,
    .max_in = FL_MIX_SOURCES + 1,
    .attrs = attrs,
    .n_attrs = 1,
    .infer = infer,
    .cost = cost,
};
