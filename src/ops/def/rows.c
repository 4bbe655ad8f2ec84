/* Operators that move rows and compute nothing: embed, gather_logits, cache_write, view, cast. */
#include "ops/def/def_internal.h"

/* ---- embed ---- */

static fl_status infer_embed(const fl_node_view *n, fl_type *out, int *n_out, fl_error *err)
{
    const fl_want table = {"table", FL_WANT_CONST, FL_WANT_FLOAT, false, 2, {FL_ANY, FL_ANY}};
    FL_TRY(fl_def_want(n, 0, &table, err));
    out[0] = fl_def_type(FL_ROWS_TOKENS, FL_F32, 1, &n->in[0]->dim[1]);
    *n_out = 1;
    return FL_OK;
}

static void cost_embed(const fl_node_view *n, const fl_sizes *sizes, fl_cost *out)
{
    out->weight_bytes = (double)sizes->rows * fl_def_bytes(n->in[0]) / (double)n->in[0]->dim[0];
}

const fl_op fl_op_embed = {
    .name = "embed",
    .doc = "the table row of each token id, zeros for an id outside the table",
    .min_in = 1,
    .max_in = 1,
    .infer = infer_embed,
    .cost = cost_embed,
};

/* ---- gather_logits ---- */

static fl_status infer_gather(const fl_node_view *n, fl_type *out, int *n_out, fl_error *err)
{
    const fl_want any = {"x", FL_WANT_ACTIVATION, FL_WANT_F32, true, 0, {0}};
    FL_TRY(fl_def_want(n, 0, &any, err));
    if (n->in[0]->rows != FL_ROWS_TOKENS)
        return fl_fail(err, FL_MODEL, "input 0 has logit rows already");
    out[0] = *n->in[0];
    out[0].rows = FL_ROWS_LOGITS;
    *n_out = 1;
    return FL_OK;
}

static void cost_nothing(const fl_node_view *n, const fl_sizes *sizes, fl_cost *out)
{
    (void)n;
    (void)sizes;
    (void)out;
}

const fl_op fl_op_gather_logits = {
    .name = "gather_logits",
    .doc = "the rows whose logits are wanted (step.h)",
    .min_in = 1,
    .max_in = 1,
    .infer = infer_gather,
    .cost = cost_nothing,
};

/* ---- cache_write ---- */

static fl_status infer_cache_write(const fl_node_view *n, fl_type *out, int *n_out, fl_error *err)
{
    (void)out;
    const fl_want part = {"part", FL_WANT_ACTIVATION, FL_WANT_F32, true, 0, {0}};
    int64_t width = 0;
    for (int i = 1; i < n->n_in; i++) {
        FL_TRY(fl_def_want(n, i, &part, err));
        if (n->in[i]->rows != FL_ROWS_TOKENS)
            return fl_fail(err, FL_MODEL, "input %d has logit rows", i);
        width += fl_type_width(n->in[i]);
    }
    *n_out = 0;
    const fl_want cache = {"cache", FL_WANT_PAGED, FL_WANT_CACHE, false, 1, {width}};
    return fl_def_want(n, 0, &cache, err);
}

static void cost_cache_write(const fl_node_view *n, const fl_sizes *sizes, fl_cost *out)
{
    out->state_bytes = (double)sizes->rows * fl_def_bytes(n->in[0]);
}

const fl_op fl_op_cache_write = {
    .name = "cache_write",
    .doc = "the parts of each row, one after the other, into the cached row of its position",
    .min_in = 2,
    .max_in = FL_MAX_OUT + 1,
    .effect = true,
    .infer = infer_cache_write,
    .cost = cost_cache_write,
};

/* ---- view ---- */

static fl_status infer_view(const fl_node_view *n, fl_type *out, int *n_out, fl_error *err)
{
    const fl_type *x = n->in[0];
    if (!x)
        return fl_fail(err, FL_MODEL, "input 0 is missing");
    if (x->rows == FL_ROWS_STATE)
        return fl_fail(err, FL_MODEL, "input 0 is a state, which has no view");
    const fl_attr *dims = &n->attr[FL_VIEW_DIMS];
    int64_t offset = n->attr[FL_VIEW_OFFSET].i, width = fl_type_width(x), size = 1;
    bool wraps = dims->n < 1;
    for (int i = 0; i < dims->n; i++)
        wraps |= dims->v[i] < 1 || __builtin_mul_overflow(size, dims->v[i], &size);
    if (wraps || offset < 0 || offset > width || size > width - offset)
        return fl_fail(err, FL_MODEL,
                       "offset %lld and dims do not lie within the %lld elements of input 0",
                       (long long)offset, (long long)width);
    out[0] = fl_def_type(x->rows, x->dtype, dims->n, dims->v);
    out[0].n_tensors = x->n_tensors;
    *n_out = 1;
    return FL_OK;
}

static const fl_attr_spec view_attrs[] = {
    [FL_VIEW_OFFSET] = {"offset", FL_ATTR_INT, .number = 0},
    [FL_VIEW_DIMS] = {"dims", FL_ATTR_INTS, .required = true}};

const fl_op fl_op_view = {
    .name = "view",
    .doc = "the same memory with other dims, from an offset on",
    .min_in = 1,
    .max_in = 1,
    .attrs = view_attrs,
    .n_attrs = 2,
    .view = true,
    .infer = infer_view,
    .cost = cost_nothing,
};

/* ---- cast ---- */

static fl_status infer_cast(const fl_node_view *n, fl_type *out, int *n_out, fl_error *err)
{
    const fl_want any = {"constant", FL_WANT_CONST, FL_WANT_MATRIX, true, 0, {0}};
    FL_TRY(fl_def_want(n, 0, &any, err));
    out[0] = fl_def_type(FL_ROWS_CONST, FL_F32, n->in[0]->ndim, n->in[0]->dim);
    *n_out = 1;
    return FL_OK;
}

const fl_op fl_op_cast = {
    .name = "cast",
    .doc = "a constant as F32",
    .min_in = 1,
    .max_in = 1,
    .infer = infer_cast,
    .cost = cost_nothing,
};
