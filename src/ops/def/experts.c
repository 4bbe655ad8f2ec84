/* The mixture of experts: route chooses them, experts runs them. */
#include "ops/def/def_internal.h"

#include "graph/expr.h"

#include <math.h>
#include <string.h>

/* ---- route ---- */

static fl_status infer_route(const fl_node_view *n, fl_type *out, int *n_out, fl_error *err)
{
    const fl_want logits = {"logits", FL_WANT_ACTIVATION, FL_WANT_F32, false, 1, {FL_ANY}};
    FL_TRY(fl_def_want(n, 0, &logits, err));
    int64_t experts = n->in[0]->dim[0];
    const fl_want bias = {"bias", FL_WANT_CONST, FL_WANT_F32, false, 1, {experts}};
    if (n->n_in > 1 && n->in[1])
        FL_TRY(fl_def_want(n, 1, &bias, err));
    const char *func = n->attr[FL_ROUTE_FUNC].text;
    if (strcmp(func, "sigmoid") != 0 && strcmp(func, "softmax") != 0)
        return fl_fail(err, FL_MODEL, "func is \"%s\", expected \"sigmoid\" or \"softmax\"", func);
    FL_TRY(fl_def_number(n, FL_ROUTE_TOPK, 1, (double)experts, err));
    FL_TRY(fl_def_number(n, FL_ROUTE_SCALE, -1e6, 1e6, err));
    FL_TRY(fl_def_number(n, FL_ROUTE_GROUPS, 1, (double)experts, err));
    int64_t groups = n->attr[FL_ROUTE_GROUPS].i, topk = n->attr[FL_ROUTE_TOPK].i;
    FL_TRY(fl_def_number(n, FL_ROUTE_TOPK_GROUPS, 1, (double)groups, err));
    if (experts % groups != 0)
        return fl_fail(err, FL_MODEL, "%lld experts do not divide into %lld groups",
                       (long long)experts, (long long)groups);
    int64_t kept = n->attr[FL_ROUTE_TOPK_GROUPS].i * (experts / groups);
    if (kept < topk)
        return fl_fail(err, FL_MODEL, "topk is %lld but the kept groups have %lld experts",
                       (long long)topk, (long long)kept);
    out[0] = fl_def_type(n->in[0]->rows, FL_I32, 1, &topk);
    out[1] = fl_def_type(n->in[0]->rows, FL_F32, 1, &topk);
    *n_out = 2;
    return FL_OK;
}

static void cost_route(const fl_node_view *n, const fl_sizes *sizes, fl_cost *out)
{
    out->flops = fl_def_rows(n->in[0], sizes) * (double)n->in[0]->dim[0] * 4;
    out->weight_bytes = n->n_in > 1 && n->in[1] ? fl_def_bytes(n->in[1]) : 0;
}

static const fl_attr_spec route_attrs[] = {
    [FL_ROUTE_TOPK] = {"topk", FL_ATTR_INT, .required = true},
    [FL_ROUTE_FUNC] = {"func", FL_ATTR_TEXT, .required = true},
    [FL_ROUTE_RENORMALIZE] = {"renormalize", FL_ATTR_BOOL, .required = true},
    [FL_ROUTE_SCALE] = {"scale", FL_ATTR_FLOAT, .number = 1},
    [FL_ROUTE_GROUPS] = {"groups", FL_ATTR_INT, .number = 1},
    [FL_ROUTE_TOPK_GROUPS] = {"topk_groups", FL_ATTR_INT, .number = 1}};

const fl_op fl_op_route = {
    .name = "route",
    .doc = "top-k experts by score plus bias, weighted by score",
    .min_in = 1,
    .max_in = 2,
    .attrs = route_attrs,
    .n_attrs = 6,
    .infer = infer_route,
    .cost = cost_route,
};

/* ---- experts ---- */

enum { Z, IDS, WEIGHTS, W1, W3, W2 };

static fl_status infer_experts(const fl_node_view *n, fl_type *out, int *n_out, fl_error *err)
{
    const fl_want z = {"z", FL_WANT_ACTIVATION, FL_WANT_F32, false, 1, {FL_ANY}};
    const fl_want ids = {"ids", FL_WANT_ACTIVATION, FL_WANT_I32, false, 1, {FL_ANY}};
    FL_TRY(fl_def_want(n, Z, &z, err));
    FL_TRY(fl_def_want(n, IDS, &ids, err));
    int64_t width = n->in[Z]->dim[0], k = n->in[IDS]->dim[0];
    const fl_want weights = {"weights", FL_WANT_ACTIVATION, FL_WANT_F32, false, 1, {k}};
    FL_TRY(fl_def_want(n, WEIGHTS, &weights, err));
    FL_TRY(fl_def_same_rows(n, IDS, Z, err));
    FL_TRY(fl_def_same_rows(n, WEIGHTS, Z, err));

    const fl_want w1 = {"W1", FL_WANT_STACK, FL_WANT_MATRIX, false, 2, {FL_ANY, width}};
    FL_TRY(fl_def_want(n, W1, &w1, err));
    int64_t inner = n->in[W1]->dim[0];
    const fl_want w3 = {"W3", FL_WANT_STACK, FL_WANT_MATRIX, false, 2, {inner, width}};
    const fl_want w2 = {"W2", FL_WANT_STACK, FL_WANT_MATRIX, false, 2, {width, inner}};
    FL_TRY(fl_def_want(n, W3, &w3, err));
    FL_TRY(fl_def_want(n, W2, &w2, err));
    for (int i = W1; i <= W2; i++) {
        const fl_type *t = n->in[i];
        if (t->n_tensors != n->in[W1]->n_tensors || t->dtype != n->in[W1]->dtype)
            return fl_fail(err, FL_MODEL, "input %d is a stack of %d %s tensors, W1 one of %d %s",
                           i, (int)t->n_tensors, fl_dtype_name(t->dtype), (int)n->in[W1]->n_tensors,
                           fl_dtype_name(n->in[W1]->dtype));
        if (t->dtype == FL_MXFP4 && t->dim[1] % FL_MX_GROUP != 0)
            return fl_fail(err, FL_MODEL,
                           "input %d is MXFP4 with rows of %lld, not a multiple of %d", i,
                           (long long)t->dim[1], FL_MX_GROUP);
    }
    out[0] = *n->in[Z];
    *n_out = 1;
    return FL_OK;
}

static fl_status prepare_experts(const fl_node_view *n, fl_arena *arena, const void **prep,
                                 fl_error *err)
{
    const fl_expr *act = NULL;
    FL_TRY(fl_expr_compile(n->attr[FL_EXPERTS_ACT].text, "g,u", n->attr[FL_EXPERTS_CONSTS].text,
                           arena, &act, err));
    *prep = act;
    return FL_OK;
}

static void cost_experts(const fl_node_view *n, const fl_sizes *sizes, fl_cost *out)
{
    double rows = fl_def_rows(n->in[Z], sizes), k = (double)n->in[IDS]->dim[0];
    double all = n->in[W1]->n_tensors;
    /* How many different experts the rows touch when they choose independently. */
    double touched = k < all ? all * -expm1(rows * log1p(-k / all)) : all;
    for (int i = W1; i <= W2; i++) {
        out->flops += 2 * rows * k * (double)fl_type_width(n->in[i]);
        out->weight_bytes += touched * fl_def_bytes(n->in[i]);
    }
}

static const fl_attr_spec experts_attrs[] = {
    [FL_EXPERTS_ACT] = {"act", FL_ATTR_TEXT, .required = true},
    [FL_EXPERTS_CONSTS] = {"consts", FL_ATTR_TEXT, .text = ""}};

const fl_op fl_op_experts = {
    .name = "experts",
    .doc = "sum_j w_j W2[e_j] act(W1[e_j] z, W3[e_j] z) in the order of ids",
    .min_in = 6,
    .max_in = 6,
    .attrs = experts_attrs,
    .n_attrs = 2,
    .infer = infer_experts,
    .prepare = prepare_experts,
    .cost = cost_experts,
};
