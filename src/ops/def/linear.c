/* Matrix products with weights: linear (one or several weights on the same rows). */
#include "ops/def/def_internal.h"

static fl_status infer(const fl_node_view *n, fl_type *out, int *n_out, fl_error *err)
{
    const fl_want any = {"x", FL_WANT_ACTIVATION, FL_WANT_F32, true, 0, {0}};
    FL_TRY(fl_def_want(n, 0, &any, err));
    int64_t width = fl_type_width(n->in[0]);
    const fl_want weight = {"weight", FL_WANT_CONST, FL_WANT_MATRIX, false, 2, {FL_ANY, width}};
    for (int i = 1; i < n->n_in; i++) {
        FL_TRY(fl_def_want(n, i, &weight, err));
        if (n->in[i]->dtype == FL_MXFP4 && width % FL_MX_GROUP != 0)
            return fl_fail(err, FL_MODEL,
                           "input %d is MXFP4 with rows of %lld, not a multiple of %d", i,
                           (long long)width, FL_MX_GROUP);
        out[i - 1] = fl_def_type(n->in[0]->rows, FL_F32, 1, &n->in[i]->dim[0]);
    }
    *n_out = n->n_in - 1;
    return FL_OK;
}

static void cost(const fl_node_view *n, const fl_sizes *sizes, fl_cost *out)
{
    for (int i = 1; i < n->n_in; i++) {
        out->flops += 2 * fl_def_rows(n->in[0], sizes) * (double)fl_type_width(n->in[i]);
        out->weight_bytes += fl_def_bytes(n->in[i]);
    }
}

const fl_op fl_op_linear = {
    .name = "linear",
    .doc = "y = x W^T for each weight W; MXFP4 and FP8 are expanded inside",
    .min_in = 2,
    .max_in = FL_MAX_OUT + 1,
    .infer = infer,
    .cost = cost,
};
