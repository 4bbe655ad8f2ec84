/* Elementwise formulas: expr. */
#include "graph/expr.h"

#include "ops/def/def_internal.h"

#include <string.h>

/* Numpy's rule: dims are aligned at the last one and are equal or 1. */
static fl_status broadcast(const fl_node_view *n, int i, fl_type *t, fl_error *err)
{
    const fl_type *x = n->in[i];
    int ndim = x->ndim > t->ndim ? x->ndim : t->ndim;
    int64_t dim[FL_MAX_DIMS];
    for (int d = 0; d < ndim; d++) {
        int a = d - (ndim - t->ndim), b = d - (ndim - x->ndim);
        int64_t have = a < 0 ? 1 : t->dim[a], add = b < 0 ? 1 : x->dim[b];
        if (have != add && have != 1 && add != 1) {
            char left[100], right[100];
            return fl_fail(
                err, FL_MODEL, "\"%s\": input %d is %s, which does not broadcast with %s",
                n->attr[FL_EXPR_TEXT].text, i, fl_shape_text(x->dim, x->ndim, right, sizeof right),
                fl_shape_text(t->dim, t->ndim, left, sizeof left));
        }
        dim[d] = have == 1 ? add : have;
    }
    t->ndim = ndim;
    memcpy(t->dim, dim, (size_t)ndim * sizeof *dim);
    return FL_OK;
}

static int count_names(const char *names)
{
    int n = *names ? 1 : 0;
    for (; *names; names++)
        n += *names == ',';
    return n;
}

static fl_status infer(const fl_node_view *n, fl_type *out, int *n_out, fl_error *err)
{
    fl_type t = fl_def_type(FL_ROWS_CONST, FL_F32, 0, NULL);
    int named = count_names(n->attr[FL_EXPR_NAMES].text);
    if (named != n->n_in)
        return fl_fail(err, FL_MODEL, "\"%s\": %d inputs are named but %d are given",
                       n->attr[FL_EXPR_TEXT].text, named, n->n_in);
    for (int i = 0; i < n->n_in; i++) {
        const fl_type *x = n->in[i];
        bool constant = x && x->rows == FL_ROWS_CONST;
        const fl_want operand = {
            "operand", constant ? FL_WANT_CONST : FL_WANT_ACTIVATION, FL_WANT_F32, true, 0, {0}};
        FL_TRY(fl_def_want(n, i, &operand, err));
        if (!constant && t.rows != FL_ROWS_CONST && t.rows != x->rows)
            return fl_fail(err, FL_MODEL, "\"%s\": input %d mixes token rows and logit rows",
                           n->attr[FL_EXPR_TEXT].text, i);
        if (!constant)
            t.rows = x->rows;
        FL_TRY(broadcast(n, i, &t, err));
    }
    out[0] = t;
    *n_out = 1;
    return FL_OK;
}

static fl_status prepare(const fl_node_view *n, fl_arena *arena, const void **prep, fl_error *err)
{
    const fl_expr *e = NULL;
    FL_TRY(fl_expr_compile(n->attr[FL_EXPR_TEXT].text, n->attr[FL_EXPR_NAMES].text,
                           n->attr[FL_EXPR_CONSTS].text, arena, &e, err));
    *prep = e;
    return FL_OK;
}

static void cost(const fl_node_view *n, const fl_sizes *sizes, fl_cost *out)
{
    const fl_expr *e = n->prep;
    out->flops = e->n_code * fl_def_rows(&n->out[0], sizes) * (double)fl_type_width(&n->out[0]);
    for (int i = 0; i < n->n_in; i++)
        out->weight_bytes += n->in[i]->rows == FL_ROWS_CONST ? fl_def_bytes(n->in[i]) : 0;
}

static const fl_attr_spec attrs[] = {[FL_EXPR_TEXT] = {"text", FL_ATTR_TEXT, .required = true},
                                     [FL_EXPR_NAMES] = {"inputs", FL_ATTR_TEXT, .required = true},
                                     [FL_EXPR_CONSTS] = {"consts", FL_ATTR_TEXT, .text = ""}};

const fl_op fl_op_expr = {
    .name = "expr",
    .doc = "an elementwise formula with numpy broadcasting over the dims of a row (graph/expr.h)",
    .min_in = 1,
    .max_in = FL_EXPR_MAX_INPUTS,
    .attrs = attrs,
    .n_attrs = 3,
    .infer = infer,
    .prepare = prepare,
    .cost = cost,
};
