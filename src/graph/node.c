/* Adding a node: its inputs and attributes are checked against the operator's declaration, then the
 * operator's own rules infer its outputs.  Every message carries the label, the operator and the
 * shapes of the inputs, so that an error in a model file reads without a debugger. */
#include "graph/graph_internal.h"

#include <stdio.h>

void fl_text_append(char *text, size_t size, const char *more)
{
    size_t n = strlen(text);
    snprintf(text + n, size - n, "%s", more);
}

void fl_type_append(char *text, size_t size, const fl_type *t)
{
    char piece[32], shape[96];
    if (!t) {
        fl_text_append(text, size, "none");
        return;
    }
    switch (t->rows) {
    case FL_ROWS_CONST:
        if (t->n_tensors != 1) {
            snprintf(piece, sizeof piece, "%d x ", (int)t->n_tensors);
            fl_text_append(text, size, piece);
        }
        fl_text_append(text, size, fl_dtype_name(t->dtype));
        break;
    case FL_ROWS_TOKENS:
        fl_text_append(text, size, t->dtype == FL_I32 ? "tokens I32" : "tokens");
        break;
    case FL_ROWS_LOGITS:
        fl_text_append(text, size, t->dtype == FL_I32 ? "logits I32" : "logits");
        break;
    case FL_ROWS_STATE:
        fl_text_append(text, size, t->dtype == FL_F32 ? "state" : "state ");
        if (t->dtype != FL_F32)
            fl_text_append(text, size, fl_dtype_name(t->dtype));
        break;
    }
    fl_text_append(text, size, " ");
    fl_text_append(text, size, fl_shape_text(t->dim, t->ndim, shape, sizeof shape));
}

void fl_node_explain(fl_error *err, const fl_node *node)
{
    char shapes[200] = "";
    for (int i = 0; i < node->n_in; i++) {
        if (i)
            fl_text_append(shapes, sizeof shapes, ", ");
        fl_type_append(shapes, sizeof shapes, node->in_type[i]);
    }
    fl_error_prefix(err, "%.100s: %s(%s)", node->label, node->op->name, shapes);
}

/* ---- attributes ---- */

static const char *const kind_text[] = {[FL_ATTR_INT] = "an integer",
                                        [FL_ATTR_FLOAT] = "a number",
                                        [FL_ATTR_BOOL] = "true or false",
                                        [FL_ATTR_TEXT] = "a text",
                                        [FL_ATTR_INTS] = "a list of integers"};

static void fill_default(const fl_attr_spec *spec, fl_attr *a)
{
    switch (spec->kind) {
    case FL_ATTR_INT:
    case FL_ATTR_BOOL:
        a->i = (int64_t)spec->number;
        break;
    case FL_ATTR_FLOAT:
        a->f = spec->number;
        break;
    case FL_ATTR_TEXT:
        a->text = spec->text;
        break;
    case FL_ATTR_INTS:
        break;
    }
}

static fl_status set_attr(fl_graph *g, const fl_op *op, const fl_node_attr *given, fl_attr *attrs,
                          fl_error *err)
{
    int k = 0;
    while (k < op->n_attrs && strcmp(op->attrs[k].name, given->name) != 0)
        k++;
    if (k == op->n_attrs) {
        char known[200] = "";
        for (int i = 0; i < op->n_attrs; i++) {
            fl_text_append(known, sizeof known, i ? ", " : "; it has ");
            fl_text_append(known, sizeof known, op->attrs[i].name);
        }
        return fl_fail(err, FL_MODEL, "unknown attribute \"%.60s\"%s", given->name, known);
    }
    const fl_attr_spec *spec = &op->attrs[k];
    fl_attr *a = &attrs[k];
    if (a->set)
        return fl_fail(err, FL_MODEL, "attribute %s is given twice", spec->name);
    bool widen = spec->kind == FL_ATTR_FLOAT && given->kind == FL_ATTR_INT;
    if (given->kind != spec->kind && !widen)
        return fl_fail(err, FL_MODEL, "attribute %s is %s, expected %s", spec->name,
                       kind_text[given->kind], kind_text[spec->kind]);
    *a = given->value;
    a->set = true;
    if (widen)
        a->f = (double)given->value.i;
    if (spec->kind == FL_ATTR_INTS && (a->n < 0 || a->n > FL_MAX_DIMS))
        return fl_fail(err, FL_MODEL, "attribute %s has %d entries, at most %d are possible",
                       spec->name, a->n, FL_MAX_DIMS);
    if (spec->kind == FL_ATTR_TEXT) {
        a->text = fl_arena_strdup(&g->arena, given->value.text);
        if (!a->text)
            return fl_graph_nomem(err);
    }
    return FL_OK;
}

static fl_status set_attrs(fl_graph *g, fl_node *node, const fl_node_attr *given, int n,
                           fl_error *err)
{
    const fl_op *op = node->op;
    fl_attr *attrs = fl_arena_array(&g->arena, (size_t)op->n_attrs, sizeof *attrs);
    if (!attrs)
        return fl_graph_nomem(err);
    for (int i = 0; i < n; i++)
        FL_TRY(set_attr(g, op, &given[i], attrs, err));
    for (int i = 0; i < op->n_attrs; i++) {
        if (attrs[i].set)
            continue;
        if (op->attrs[i].required)
            return fl_fail(err, FL_MODEL, "attribute %s is missing, expected %s", op->attrs[i].name,
                           kind_text[op->attrs[i].kind]);
        fill_default(&op->attrs[i], &attrs[i]);
    }
    node->attr = attrs;
    return FL_OK;
}

/* ---- inputs and outputs ---- */

static fl_status set_inputs(fl_graph *g, fl_node *node, const fl_val *in, int n, fl_error *err)
{
    const fl_op *op = node->op;
    while (n > op->min_in && in[n - 1] == FL_NONE)
        n--;
    if (n < op->min_in || n > op->max_in)
        return fl_fail(err, FL_MODEL, "%d inputs, expected %d to %d", n, op->min_in, op->max_in);
    fl_val *own = fl_arena_array(&g->arena, (size_t)n, sizeof *own);
    const fl_type **types = fl_arena_array(&g->arena, (size_t)n, sizeof *types);
    if (!own || !types)
        return fl_graph_nomem(err);
    for (int i = 0; i < n; i++) {
        if (in[i] == FL_NONE ? i < op->min_in : in[i] < 0 || (size_t)in[i] >= g->values.n)
            return fl_fail(err, FL_MODEL, "input %d is not a value of this graph", i);
        own[i] = in[i];
        types[i] = fl_graph_type(g, in[i]);
    }
    node->n_in = n;
    node->in = own;
    node->in_type = types;
    return FL_OK;
}

/* An operator's rule is code of this library; still, what it says is checked once here so that
 * no later arithmetic on widths can wrap. */
static fl_status check_output(const fl_node *node, int i, fl_type *t, fl_error *err)
{
    bool all_const = true;
    for (int k = 0; k < node->n_in; k++)
        all_const &= !node->in_type[k] || node->in_type[k]->rows == FL_ROWS_CONST;
    if (t->rows == FL_ROWS_STATE || (t->rows == FL_ROWS_CONST && !all_const))
        return fl_fail(err, FL_INTERNAL, "output %d: the operator infers a state or constant", i);
    if (t->rows != FL_ROWS_CONST && t->dtype != FL_F32 && t->dtype != FL_I32)
        return fl_fail(err, FL_INTERNAL, "output %d: %s, values are F32 or I32", i,
                       fl_dtype_name(t->dtype));
    if (t->ndim < 0 || t->ndim > FL_MAX_DIMS)
        return fl_fail(err, FL_INTERNAL, "output %d has %d dims", i, t->ndim);
    int64_t bits = 64;
    for (int k = 0; k < t->ndim; k++) {
        if (t->dim[k] < 1 || __builtin_mul_overflow(bits, t->dim[k], &bits))
            return fl_fail(err, FL_MODEL, "output %d has an impossible size", i);
    }
    t->state = -1;
    if (t->n_tensors < 1)
        t->n_tensors = 1;
    return FL_OK;
}

static fl_status check_view(const fl_node *node, const fl_type *out, int n_out, fl_error *err)
{
    if (node->op->n_attrs != FL_VIEW_ATTRS || n_out != 1)
        return fl_fail(err, FL_INTERNAL,
                       "a view has the attributes offset and dims and one output");
    const fl_type *in = node->in_type[0];
    int64_t offset = node->attr[FL_VIEW_OFFSET].i, width = fl_type_width(out);
    if (in->rows == FL_ROWS_STATE)
        return fl_fail(err, FL_MODEL, "a state cannot be viewed");
    if (offset < 0 || offset > fl_type_width(in) - width)
        return fl_fail(err, FL_MODEL, "elements %lld to %lld of %lld do not exist",
                       (long long)offset, (long long)(offset + width),
                       (long long)fl_type_width(in));
    if (out->rows != in->rows || out->dtype != in->dtype)
        return fl_fail(err, FL_INTERNAL, "a view may not change rows or type");
    return FL_OK;
}

fl_status fl_node_infer(fl_graph *g, fl_node *node, fl_error *err)
{
    fl_type found[FL_MAX_OUT] = {{0}};
    int n = 0;
    fl_node_view view = fl_node_seen(node);
    FL_TRY(node->op->infer(&view, found, &n, err));
    if (n < 0 || n > FL_MAX_OUT)
        return fl_fail(err, FL_INTERNAL, "the operator infers %d outputs", n);
    for (int i = 0; i < n; i++)
        FL_TRY(check_output(node, i, &found[i], err));
    if (node->op->view)
        FL_TRY(check_view(node, found, n, err));
    fl_type *types = fl_arena_array(&g->arena, (size_t)n, sizeof *types);
    if (!types)
        return fl_graph_nomem(err);
    memcpy(types, found, (size_t)n * sizeof *types);
    node->n_out = n;
    node->out_type = types;
    if (node->op->prepare) {
        view = fl_node_seen(node);
        FL_TRY(node->op->prepare(&view, &g->arena, &node->prep, err));
    }
    return FL_OK;
}

static fl_status add_outputs(fl_graph *g, fl_node *node, fl_error *err)
{
    fl_val *out = fl_arena_array(&g->arena, (size_t)node->n_out, sizeof *out);
    if (!out)
        return fl_graph_nomem(err);
    for (int i = 0; i < node->n_out; i++) {
        out[i] = fl_graph_add_value(g, &node->out_type[i], NULL);
        if (out[i] == FL_NONE)
            return fl_graph_nomem(err);
    }
    node->out = out;
    return FL_OK;
}

static fl_status build(fl_graph *g, fl_node *node, const fl_val *in, int n_in,
                       const fl_node_attr *attrs, int n_attrs, fl_error *err)
{
    FL_TRY(set_inputs(g, node, in, n_in, err));
    FL_TRY(set_attrs(g, node, attrs, n_attrs, err));
    FL_TRY(fl_node_infer(g, node, err));
    return add_outputs(g, node, err);
}

/* Marks the node that makes what a choice of experts is made from. */
static void mark_decider(fl_graph *g, const fl_node *route)
{
    for (size_t i = g->nodes.n; i-- > 0;) {
        fl_node *n = &g->nodes.data[i];
        for (int o = 0; o < n->n_out; o++) {
            if (n->out[o] == route->in[0]) {
                n->decides = true;
                return;
            }
        }
    }
}

fl_status fl_graph_node(fl_graph *g, const char *op, const char *label, const fl_val *in, int n_in,
                        const fl_node_attr *attrs, int n_attrs, fl_val *outs, int *n_out,
                        fl_error *err)
{
    *n_out = 0;
    if (g->finished)
        return fl_fail(err, FL_ARGUMENT, "%s: the graph is finished: nothing can be added", label);
    fl_node node = {.op = fl_registry_op(g->registry, op)};
    if (!node.op)
        return fl_fail(err, FL_MODEL, "%s: unknown operator \"%s\"", label, op);
    node.label = fl_arena_strdup(&g->arena, label);
    if (!node.label)
        return fl_graph_nomem(err);
    fl_status status = build(g, &node, in, n_in, attrs, n_attrs, err);
    if (status != FL_OK) {
        fl_node_explain(err, &node);
        return status;
    }
    if (!fl_vec_push(&g->nodes, node))
        return fl_graph_nomem(err);
    if (strcmp(op, "route") == 0)
        mark_decider(g, &node);
    memcpy(outs, node.out, (size_t)node.n_out * sizeof *outs);
    *n_out = node.n_out;
    return FL_OK;
}
