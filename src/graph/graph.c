/* The graph as a container: constants, states, marks, and what may be read when it is finished.
 * Nodes are added in node.c; the passes have a file each. */
#include "graph/graph_internal.h"

#include "graph/cache_row.h"

#include "base/mem.h"

#include <limits.h>

fl_status fl_graph_nomem(fl_error *err)
{
    return fl_fail(err, FL_NOMEM, "no memory for the computation graph");
}

static fl_status check_open(const fl_graph *g, fl_error *err)
{
    return g->finished ? fl_fail(err, FL_ARGUMENT, "the graph is finished: nothing can be added")
                       : FL_OK;
}

static fl_status check_value(const fl_graph *g, fl_val v, const char *what, fl_error *err)
{
    if (v < 0 || (size_t)v >= g->values.n)
        return fl_fail(err, FL_ARGUMENT, "%s: %d is not a value of this graph", what, (int)v);
    fl_rows rows = g->values.data[v].type->rows;
    if (rows != FL_ROWS_TOKENS && rows != FL_ROWS_LOGITS)
        return fl_fail(err, FL_MODEL, "%s: a %s is given, expected a computed value", what,
                       rows == FL_ROWS_STATE ? "state" : "constant");
    return FL_OK;
}

fl_val fl_graph_add_value(fl_graph *g, const fl_type *type, const fl_tensor *tensors)
{
    fl_value v = {.type = type, .tensors = tensors};
    if (g->values.n >= INT32_MAX || !fl_vec_push(&g->values, v))
        return FL_NONE;
    return (fl_val)(g->values.n - 1);
}

fl_status fl_graph_create(const fl_registry *registry, fl_graph **out, fl_error *err)
{
    fl_graph *g = *out = fl_calloc(1, sizeof *g);
    if (!g)
        return fl_graph_nomem(err);
    g->registry = registry;
    g->logits = FL_NONE;
    return FL_OK;
}

void fl_graph_destroy(fl_graph *g)
{
    if (!g)
        return;
    fl_vec_free(&g->values);
    fl_vec_free(&g->nodes);
    fl_vec_free(&g->states);
    fl_vec_free(&g->taps);
    fl_strmap_free(&g->const_names);
    fl_strmap_free(&g->state_names);
    for (size_t i = 0; i < g->blocks.n; i++)
        fl_free(g->blocks.data[i]);
    fl_vec_free(&g->blocks);
    fl_arena_free(&g->arena);
    fl_free(g);
}

static bool same_shape(const fl_tensor *a, const fl_tensor *b)
{
    return a->dtype == b->dtype && a->ndim == b->ndim &&
           memcmp(a->shape, b->shape, (size_t)a->ndim * sizeof *a->shape) == 0;
}

static fl_status check_tensors(const char *name, const fl_tensor *t, int32_t n, fl_error *err)
{
    char a[128], b[128];
    if (n < 1)
        return fl_fail(err, FL_ARGUMENT, "constant %s: a stack of %d tensors", name, (int)n);
    if (t->ndim < 0 || t->ndim > FL_MAX_DIMS)
        return fl_fail(err, FL_ARGUMENT, "constant %s has %d dims, at most %d are possible", name,
                       t->ndim, FL_MAX_DIMS);
    int64_t bits = fl_dtype_bits(t->dtype);
    for (int i = 0; i < t->ndim; i++) {
        if (t->shape[i] < 1 || __builtin_mul_overflow(bits, t->shape[i], &bits))
            return fl_fail(err, FL_ARGUMENT, "constant %s has the impossible shape %s", name,
                           fl_shape_text(t->shape, t->ndim, a, sizeof a));
    }
    for (int32_t i = 0; i < n; i++) {
        if ((t[i].dtype == FL_MXFP4 && !t[i].data != !t[i].scale) ||
            ((t[i].dtype == FL_F8_BLOCK || t[i].dtype == FL_Q8) &&
             (!t[i].ndim || !t[i].data != !t[i].block_scale)))
            return fl_fail(err, FL_ARGUMENT, "constant %s: %s values and scales come together",
                           name, fl_dtype_name(t[i].dtype));
        if (!same_shape(&t[0], &t[i]))
            return fl_fail(err, FL_MODEL,
                           "constant %s: tensor %d of the stack is %s %s, the first is %s %s", name,
                           (int)i, fl_dtype_name(t[i].dtype),
                           fl_shape_text(t[i].shape, t[i].ndim, a, sizeof a),
                           fl_dtype_name(t->dtype), fl_shape_text(t->shape, t->ndim, b, sizeof b));
        if (!t[0].data != !t[i].data)
            return fl_fail(err, FL_ARGUMENT, "constant %s: only a part of the stack has data",
                           name);
    }
    return FL_OK;
}

fl_status fl_graph_const(fl_graph *g, const char *name, const fl_tensor *tensors, int32_t n,
                         fl_val *out, fl_error *err)
{
    *out = FL_NONE;
    FL_TRY(check_open(g, err));
    FL_TRY(check_tensors(name, tensors, n, err));
    uint32_t old;
    if (fl_strmap_get(&g->const_names, name, strlen(name), &old)) {
        const fl_value *v = &g->values.data[old];
        if (v->type->n_tensors != n || !same_shape(&v->tensors[0], &tensors[0]))
            return fl_fail(err, FL_MODEL, "constant %s is declared twice with different shapes",
                           name);
        *out = (fl_val)old;
        return FL_OK;
    }
    fl_type *type = fl_arena_alloc(&g->arena, sizeof *type);
    fl_tensor *copy = fl_arena_array(&g->arena, (size_t)n, sizeof *copy);
    char *own = fl_arena_strdup(&g->arena, name);
    if (!type || !copy || !own)
        return fl_graph_nomem(err);
    memcpy(copy, tensors, (size_t)n * sizeof *copy);
    *type = (fl_type){.rows = FL_ROWS_CONST,
                      .dtype = tensors->dtype,
                      .ndim = tensors->ndim,
                      .n_tensors = n,
                      .state = -1};
    memcpy(type->dim, tensors->shape, sizeof type->dim);
    fl_val v = fl_graph_add_value(g, type, copy);
    if (v == FL_NONE || !fl_strmap_put(&g->const_names, own, strlen(own), (uint32_t)v, NULL))
        return fl_graph_nomem(err);
    *out = v;
    return FL_OK;
}

fl_status fl_graph_state(fl_graph *g, const fl_state_spec *spec, fl_val *out, fl_error *err)
{
    *out = FL_NONE;
    FL_TRY(check_open(g, err));
    if (spec->elements < 1 || spec->elements > INT64_MAX / 64)
        return fl_fail(err, FL_MODEL, "state %s: %lld elements per item", spec->name,
                       (long long)spec->elements);
    if (spec->dtype != FL_F32 && !(spec->paged && fl_cache_type(spec->dtype)))
        return fl_fail(err, FL_MODEL,
                       "state %s: type %s, possible are F32 and, for paged ones, BF16, F8_E4M3, I8",
                       spec->name, fl_dtype_name(spec->dtype));
    uint32_t old;
    if (fl_strmap_get(&g->state_names, spec->name, strlen(spec->name), &old))
        return fl_fail(err, FL_MODEL, "state %s is declared twice", spec->name);
    fl_type *type = fl_arena_alloc(&g->arena, sizeof *type);
    fl_state_spec own = *spec;
    own.name = fl_arena_strdup(&g->arena, spec->name);
    if (!type || !own.name)
        return fl_graph_nomem(err);
    *type = (fl_type){.rows = FL_ROWS_STATE,
                      .dtype = spec->dtype,
                      .ndim = 1,
                      .dim = {spec->elements},
                      .n_tensors = 1,
                      .state = (int32_t)g->states.n,
                      .paged = spec->paged};
    if (!fl_strmap_put(&g->state_names, own.name, strlen(own.name), (uint32_t)g->states.n, NULL) ||
        !fl_vec_push(&g->states, own))
        return fl_graph_nomem(err);
    *out = fl_graph_add_value(g, type, NULL);
    return *out == FL_NONE ? fl_graph_nomem(err) : FL_OK;
}

fl_status fl_graph_tap(fl_graph *g, const char *kind, int index, fl_val v, fl_error *err)
{
    FL_TRY(check_open(g, err));
    FL_TRY(check_value(g, v, kind, err));
    fl_tap tap = {.kind = fl_arena_strdup(&g->arena, kind), .index = index, .value = v};
    return tap.kind && fl_vec_push(&g->taps, tap) ? FL_OK : fl_graph_nomem(err);
}

fl_status fl_graph_output(fl_graph *g, fl_val logits, fl_error *err)
{
    FL_TRY(check_open(g, err));
    FL_TRY(check_value(g, logits, "output", err));
    if (g->logits != FL_NONE)
        return fl_fail(err, FL_MODEL, "output: the logits are marked twice");
    const fl_type *t = g->values.data[logits].type;
    if (t->rows != FL_ROWS_LOGITS || t->dtype != FL_F32)
        return fl_fail(err, FL_MODEL, "output: %s, expected float32 rows picked by gather_logits",
                       t->rows != FL_ROWS_LOGITS ? "one row per token" : fl_dtype_name(t->dtype));
    g->logits = logits;
    return FL_OK;
}

fl_status fl_graph_finish(fl_graph *g, fl_error *err)
{
    FL_TRY(check_open(g, err));
    if (g->logits == FL_NONE && g->taps.n == 0)
        return fl_fail(err, FL_MODEL, "the graph has no output");
    g->finished = true;
    FL_TRY(fl_graph_prune(g, err));
    FL_TRY(fl_graph_fold(g, err));
    if (g->cache != FL_KV_F32)
        FL_TRY(fl_graph_shrink(g, err));
    if (g->narrow)
        FL_TRY(fl_graph_narrow(g, err));
    return fl_graph_merge(g, err);
}

void fl_graph_keep_q8(fl_graph *g)
{
    g->narrow = true;
}

void fl_graph_keep_cache(fl_graph *g, fl_kv form)
{
    g->cache = form;
}

int64_t fl_state_item_bytes(const fl_state_spec *spec)
{
    return fl_cache_row_bytes(spec->dtype, spec->elements);
}

/* ---- reading ---- */

int64_t fl_graph_saved_bytes(const fl_graph *g)
{
    return g->narrowed;
}

const fl_type *fl_graph_type(const fl_graph *g, fl_val v)
{
    return v < 0 || (size_t)v >= g->values.n ? NULL : g->values.data[v].type;
}

int fl_graph_states(const fl_graph *g)
{
    return (int)g->states.n;
}

const fl_state_spec *fl_graph_state_spec(const fl_graph *g, int i)
{
    return &g->states.data[i];
}

int fl_graph_nodes(const fl_graph *g)
{
    return (int)g->nodes.n;
}

fl_node_view fl_node_seen(const fl_node *n)
{
    return (fl_node_view){.op = n->op,
                          .n_in = n->n_in,
                          .n_out = n->n_out,
                          .in = n->in_type,
                          .out = n->out_type,
                          .attr = n->attr,
                          .prep = n->prep};
}

fl_node_view fl_graph_node_view(const fl_graph *g, int i)
{
    return fl_node_seen(&g->nodes.data[i]);
}

const char *fl_graph_node_label(const fl_graph *g, int i)
{
    return g->nodes.data[i].label;
}

int64_t fl_graph_vocab(const fl_graph *g)
{
    return g->logits == FL_NONE ? 0 : fl_type_width(g->values.data[g->logits].type);
}

fl_cost fl_graph_cost(const fl_graph *g, const fl_sizes *sizes)
{
    fl_cost sum = {0};
    for (size_t i = 0; i < g->nodes.n; i++) {
        fl_node_view view = fl_node_seen(&g->nodes.data[i]);
        fl_cost one = {0};
        if (view.op->cost)
            view.op->cost(&view, sizes, &one);
        sum.flops += one.flops;
        sum.weight_bytes += one.weight_bytes;
        sum.state_bytes += one.state_bytes;
    }
    return sum;
}
