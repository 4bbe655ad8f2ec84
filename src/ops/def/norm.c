/* Normalisation of the last dim: rmsnorm, l2norm, layernorm. */
#include "ops/def/def_internal.h"

static fl_status want_x(const fl_node_view *n, fl_error *err)
{
    const fl_want any = {"x", FL_WANT_ACTIVATION, FL_WANT_F32, true, 1, {FL_ANY}};
    return fl_def_want(n, 0, &any, err);
}

/* An optional F32 vector as long as the last dim of x. */
static fl_status want_vector(const fl_node_view *n, int i, const char *what, fl_error *err)
{
    const fl_type *x = n->in[0];
    const fl_want vector = {what, FL_WANT_CONST, FL_WANT_F32, false, 1, {x->dim[x->ndim - 1]}};
    return fl_def_want(n, i, &vector, err);
}

static bool given(const fl_node_view *n, int i)
{
    return i < n->n_in && n->in[i];
}

static fl_status like_x(const fl_node_view *n, fl_type *out, int *n_out)
{
    out[0] = *n->in[0];
    *n_out = 1;
    return FL_OK;
}

static fl_status infer_rmsnorm(const fl_node_view *n, fl_type *out, int *n_out, fl_error *err)
{
    FL_TRY(want_x(n, err));
    if (given(n, 1))
        FL_TRY(want_vector(n, 1, "weight", err));
    FL_TRY(fl_def_number(n, FL_RMSNORM_EPS, 0, 1, err));
    return like_x(n, out, n_out);
}

static fl_status infer_l2norm(const fl_node_view *n, fl_type *out, int *n_out, fl_error *err)
{
    FL_TRY(want_x(n, err));
    FL_TRY(fl_def_number(n, FL_L2NORM_EPS, 0, 1, err));
    FL_TRY(fl_def_number(n, FL_L2NORM_SCALE, -1e6, 1e6, err));
    return like_x(n, out, n_out);
}

static fl_status infer_layernorm(const fl_node_view *n, fl_type *out, int *n_out, fl_error *err)
{
    FL_TRY(want_x(n, err));
    FL_TRY(want_vector(n, 1, "weight", err));
    if (given(n, 2))
        FL_TRY(want_vector(n, 2, "bias", err));
    FL_TRY(fl_def_number(n, FL_LAYERNORM_EPS, 0, 1, err));
    return like_x(n, out, n_out);
}

static void cost(const fl_node_view *n, const fl_sizes *sizes, fl_cost *out)
{
    out->flops = fl_def_rows(n->in[0], sizes) * (double)fl_type_width(n->in[0]) * 4;
    for (int i = 1; i < n->n_in; i++)
        out->weight_bytes += n->in[i] ? fl_def_bytes(n->in[i]) : 0;
}

static const fl_attr_spec eps[] = {[FL_RMSNORM_EPS] = {"eps", FL_ATTR_FLOAT, .required = true}};
static const fl_attr_spec l2norm_attrs[] = {
    [FL_L2NORM_EPS] = {"eps", FL_ATTR_FLOAT, .required = true},
    [FL_L2NORM_SCALE] = {"scale", FL_ATTR_FLOAT, .number = 1}};

const fl_op fl_op_rmsnorm = {
    .name = "rmsnorm",
    .doc = "w * x * rsqrt(mean(x^2) + eps) over the last dim",
    .min_in = 1,
    .max_in = 2,
    .attrs = eps,
    .n_attrs = 1,
    .infer = infer_rmsnorm,
    .cost = cost,
};

const fl_op fl_op_l2norm = {
    .name = "l2norm",
    .doc = "scale * x * rsqrt(sum(x^2) + eps) over the last dim",
    .min_in = 1,
    .max_in = 1,
    .attrs = l2norm_attrs,
    .n_attrs = 2,
    .infer = infer_l2norm,
    .cost = cost,
};

const fl_op fl_op_layernorm = {
    .name = "layernorm",
    .doc = "w * (x - mean(x)) * rsqrt(variance(x) + eps) + b over the last dim",
    .min_in = 2,
    .max_in = 3,
    .attrs = eps,
    .n_attrs = 1,
    .infer = infer_layernorm,
    .cost = cost,
};
