/* Constant folding: a node whose inputs are all constants, and whose outputs its operator infers as
 * constants, is computed once when the graph is finished, by the operator's reference kernel on a
 * step of one row.  The result lives in the graph's arena.  When the weights are not there (a
 * survey of a checkpoint) only the type is kept.  A view of a constant points into it. */
#include "graph/graph_internal.h"

static bool foldable(const fl_node *node)
{
    if (node->op->effect || node->n_out == 0)
        return false;
    for (int i = 0; i < node->n_in; i++) {
        if (node->in_type[i] && node->in_type[i]->rows != FL_ROWS_CONST)
            return false;
    }
    for (int i = 0; i < node->n_out; i++) {
        if (node->out_type[i].rows != FL_ROWS_CONST)
            return false;
    }
    return true;
}

/* The tensors of output i, data still NULL, and the value made a constant. */
static fl_tensor *declare(fl_graph *g, const fl_node *node, int i)
{
    const fl_type *type = &node->out_type[i];
    fl_tensor *t = fl_arena_array(&g->arena, (size_t)type->n_tensors, sizeof *t);
    if (!t)
        return NULL;
    for (int k = 0; k < type->n_tensors; k++) {
        t[k] = (fl_tensor){.dtype = type->dtype, .ndim = type->ndim};
        memcpy(t[k].shape, type->dim, sizeof type->dim);
    }
    g->values.data[node->out[i]].tensors = t;
    return t;
}

/* ---- views ---- */

static fl_status fold_view(fl_graph *g, const fl_node *node, fl_error *err)
{
    const fl_type *in = node->in_type[0], *out = &node->out_type[0];
    const fl_tensor *from = g->values.data[node->in[0]].tensors;
    int64_t offset = node->attr[FL_VIEW_OFFSET].i;
    if (out->n_tensors != in->n_tensors)
        return fl_fail(err, FL_INTERNAL, "a view of %d tensors cannot be %d", (int)in->n_tensors,
                       (int)out->n_tensors);
    int64_t row = in->ndim ? in->dim[in->ndim - 1] : 0;
    bool whole = row && offset % row == 0 && out->ndim && out->dim[out->ndim - 1] == row;
    if (in->dtype == FL_MXFP4 && (!whole || row % FL_MX_GROUP))
        return fl_fail(err, FL_MODEL,
                       "a view of MXFP4 must take whole rows of %lld elements, a multiple of %d",
                       (long long)row, FL_MX_GROUP);
    if (in->dtype == FL_F8_BLOCK && (!whole || offset / row % FL_F8_SIDE))
        return fl_fail(
            err, FL_MODEL,
            "a view of F8_BLOCK must take whole rows of %lld elements, the first of them "
            "a multiple of %d",
            (long long)row, FL_F8_SIDE);
    fl_tensor *to = declare(g, node, 0);
    if (!to)
        return fl_graph_nomem(err);
    for (int k = 0; k < in->n_tensors; k++) {
        if (from[k].data)
            to[k].data = (const char *)from[k].data + offset * fl_dtype_bits(in->dtype) / 8;
        if (from[k].scale)
            to[k].scale = from[k].scale + offset / FL_MX_GROUP;
        if (from[k].block_scale)
            to[k].block_scale = from[k].block_scale + offset / row / FL_F8_SIDE * fl_f8_blocks(row);
    }
    return FL_OK;
}

/* ---- computed constants ---- */

static const fl_kernel *reference(const fl_graph *g, const fl_node *node)
{
    fl_node_view view = fl_node_seen(node);
    const fl_kernel *k;
    for (int i = 0; (k = fl_registry_kernel(g->registry, i)) != NULL; i++) {
        if (k->preference == 0 && strcmp(k->op, node->op->name) == 0 &&
            (!k->fits || k->fits(&view)))
            return k;
    }
    return NULL;
}

/* Memory for the data of a constant, aligned like the workspace. */
static void *const_data(fl_graph *g, const fl_tensor *t)
{
    char *p = fl_arena_alloc(&g->arena, (size_t)fl_tensor_bytes(t) + FL_CACHE_LINE);
    return p ? p + (-(uintptr_t)p & (FL_CACHE_LINE - 1)) : NULL;
}

static fl_arg const_arg(const fl_type *type, const fl_tensor *tensors)
{
    if (!type)
        return (fl_arg){0};
    return (fl_arg){.type = *type,
                    .data = (void *)tensors->data,
                    .stride = fl_type_width(type),
                    .tensors = tensors};
}

static fl_status evaluate(const fl_node *node, const fl_kernel *kernel, const fl_arg *args,
                          fl_error *err)
{
    size_t own = 0, shared = 0;
    if (kernel->scratch) {
        fl_node_view view = fl_node_seen(node);
        fl_limits one = {.max_rows = 1, .max_logits = 1, .n_threads = 1, .max_context = 1};
        kernel->scratch(&view, &one, &own, &shared);
    }
    fl_worker worker = {.thread = 0, .n_threads = 1};
    worker.scratch = fl_alloc_aligned(own, FL_CACHE_LINE);
    worker.shared = fl_alloc_aligned(shared, FL_CACHE_LINE);
    fl_status status = worker.scratch && worker.shared ? FL_OK : fl_graph_nomem(err);
    if (status == FL_OK) {
        fl_step step = {.n_rows = 1, .n_logits = 1};
        fl_call call = {.kernel = kernel,
                        .n_in = node->n_in,
                        .n_out = node->n_out,
                        .in = args,
                        .out = args + node->n_in,
                        .attr = node->attr,
                        .prep = node->prep};
        for (int phase = 0; phase < kernel->n_phases; phase++)
            kernel->run(&call, &step, phase, &worker);
    }
    fl_free_aligned(worker.scratch);
    fl_free_aligned(worker.shared);
    return status;
}

static fl_status fold_call(fl_graph *g, const fl_node *node, fl_error *err)
{
    const fl_kernel *kernel = reference(g, node);
    if (!kernel)
        return fl_fail(err, FL_UNSUPPORTED, "no reference kernel for constants of this kind");
    fl_arg *args = fl_arena_array(&g->arena, (size_t)(node->n_in + node->n_out), sizeof *args);
    if (!args)
        return fl_graph_nomem(err);
    bool have_data = true;
    for (int i = 0; i < node->n_in; i++) {
        if (node->in[i] == FL_NONE)
            continue;
        args[i] = const_arg(node->in_type[i], g->values.data[node->in[i]].tensors);
        have_data &= args[i].data != NULL;
    }
    for (int i = 0; i < node->n_out; i++) {
        fl_tensor *t = declare(g, node, i);
        if (!t)
            return fl_graph_nomem(err);
        for (int k = 0; have_data && k < node->out_type[i].n_tensors; k++) {
            t[k].data = const_data(g, &t[k]);
            if (!t[k].data)
                return fl_graph_nomem(err);
        }
        args[node->n_in + i] = const_arg(&node->out_type[i], t);
    }
    return have_data ? evaluate(node, kernel, args, err) : FL_OK;
}

fl_status fl_graph_fold(fl_graph *g, fl_error *err)
{
    size_t n = 0;
    for (size_t i = 0; i < g->nodes.n; i++) {
        const fl_node *node = &g->nodes.data[i];
        if (!foldable(node)) {
            g->nodes.data[n++] = *node;
            continue;
        }
        fl_status status = node->op->view ? fold_view(g, node, err) : fold_call(g, node, err);
        if (status != FL_OK) {
            fl_node_explain(err, node);
            return status;
        }
    }
    g->nodes.n = n;
    return FL_OK;
}
