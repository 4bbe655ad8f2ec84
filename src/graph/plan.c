/* Making a plan: kernels are chosen, values placed, scratch measured, and each node that is not a
 * view becomes one entry of a flat array, its operands side by side.  Offsets become addresses when
 * the workspace is allocated, so a plan that is never prepared costs next to nothing. */
#include "graph/plan_internal.h"

static fl_status check_options(const fl_graph *g, const fl_plan_options *o, fl_error *err)
{
    const fl_limits *l = &o->limits;
    if (!g->finished)
        return fl_fail(err, FL_ARGUMENT, "the graph of a plan must be finished");
    if (l->max_rows < 1 || l->max_logits < 0 || l->max_logits > l->max_rows || l->n_threads < 1 ||
        l->max_context < 1)
        return fl_fail(
            err, FL_ARGUMENT, "impossible limits: %d rows, %d logits, %d threads, context %lld",
            (int)l->max_rows, (int)l->max_logits, (int)l->n_threads, (long long)l->max_context);
    return FL_OK;
}

static fl_arg make_arg(const fl_graph *g, fl_val v, const fl_place *place)
{
    if (v == FL_NONE)
        return (fl_arg){0};
    const fl_value *value = &g->values.data[v];
    return (fl_arg){.type = *value->type,
                    .data = value->tensors ? (void *)value->tensors->data : NULL,
                    .stride = place[v].placed ? place[v].stride : fl_type_width(value->type),
                    .tensors = value->tensors};
}

/* Appends an operand to p->args, which has room. */
static fl_arg *add_arg(fl_plan *p, fl_val v, const fl_place *place)
{
    fl_arg *arg = &p->args[p->n_args];
    *arg = make_arg(p->graph, v, place);
    p->arg_val[p->n_args] = v;
    if (v != FL_NONE)
        p->arg_place[p->n_args] = place[v];
    p->n_args++;
    return arg;
}

static bool only_logits(const fl_node *node)
{
    for (int i = 0; i < node->n_out; i++) {
        if (node->out_type[i].rows != FL_ROWS_LOGITS)
            return false;
    }
    return node->n_out > 0;
}

/* Of what the host runs for a device only the rows are operands there. */
static bool add_item(fl_plan *p, size_t index, const fl_place *place)
{
    const fl_node *node = &p->graph->nodes.data[index];
    bool on_host = p->on_host[index] != NULL;
    fl_plan_item *item = &p->items[p->n_items++];
    const fl_arg *first = &p->args[p->n_args];
    for (int i = 0; i < node->n_in; i++) {
        fl_val v = node->in[i];
        add_arg(p, on_host && v != FL_NONE && !place[v].placed ? FL_NONE : v, place);
    }
    for (int i = 0; i < node->n_out; i++)
        add_arg(p, node->out[i], place);
    *item = (fl_plan_item){.call = {.kernel = p->kernels[index],
                                    .n_in = node->n_in,
                                    .n_out = node->n_out,
                                    .in = first,
                                    .out = first + node->n_in,
                                    .attr = node->attr,
                                    .prep = node->prep},
                           .logits_only = only_logits(node),
                           .first_tap = p->n_taps};
    return !on_host || fl_plan_host_item(p, item, node);
}

/* Adds the taps of the values that lie in output v, the item's, itself or as a view. */
static void add_taps(fl_plan *p, fl_plan_item *item, fl_val v, const fl_place *place)
{
    for (size_t i = 0; i < p->graph->taps.n; i++) {
        const fl_tap *tap = &p->graph->taps.data[i];
        if (place[tap->value].root != v)
            continue;
        p->taps[p->n_taps++] = (fl_plan_tap){
            .kind = tap->kind, .index = tap->index, .value = add_arg(p, tap->value, place)};
        item->n_taps++;
    }
}

/* The calls of the nodes that are made in the place of node i, itself first. */
static bool add_place(fl_plan *p, int32_t i, const fl_place *place)
{
    fl_joint *joint = p->joins[i] ? &p->joints[p->n_joints++] : NULL;
    if (joint)
        joint->calls = p->joint_calls + p->n_items;
    for (int32_t m = i; m != FL_NONE; m = p->next[m]) {
        const fl_node *node = &p->graph->nodes.data[m];
        if (!add_item(p, (size_t)m, place))
            return false;
        fl_plan_item *item = &p->items[p->n_items - 1];
        item->node = m;
        item->joint = joint;
        item->leads = m == i;
        p->joint_calls[p->n_items - 1] = &item->call;
        if (joint)
            joint->n++;
        for (int k = 0; k < node->n_out; k++)
            add_taps(p, item, node->out[k], place);
    }
    return true;
}

static bool add_items(fl_plan *p, const fl_place *place)
{
    const fl_graph *g = p->graph;
    for (size_t i = 0; i < g->nodes.n; i++) {
        if (!g->nodes.data[i].op->view && p->at[i] == (int32_t)i &&
            !add_place(p, (int32_t)i, place))
            return false;
    }
    if (g->logits != FL_NONE)
        p->logits = add_arg(p, g->logits, place);
    return true;
}

static bool alloc_choice(fl_plan *p)
{
    const fl_graph *g = p->graph;
    p->kernels = fl_arena_array(&p->arena, g->nodes.n, sizeof *p->kernels);
    p->on_host = fl_arena_array(&p->arena, g->nodes.n, sizeof *p->on_host);
    p->state_on_host = fl_arena_array(&p->arena, g->states.n, sizeof *p->state_on_host);
    p->named = fl_arena_array(&p->arena, g->nodes.n, sizeof *p->named);
    p->joins = fl_arena_array(&p->arena, g->nodes.n, sizeof *p->joins);
    p->at = fl_arena_array(&p->arena, g->nodes.n, sizeof *p->at);
    p->next = fl_arena_array(&p->arena, g->nodes.n, sizeof *p->next);
    return p->kernels && p->on_host && p->state_on_host && p->named && p->joins && p->at && p->next;
}

static bool alloc_arrays(fl_plan *p)
{
    const fl_graph *g = p->graph;
    size_t n_args = g->taps.n + 1, n_host = 0;
    for (size_t i = 0; i < g->nodes.n; i++) {
        size_t n = (size_t)(g->nodes.data[i].n_in + g->nodes.data[i].n_out);
        n_args += n;
        n_host += p->on_host[i] ? n : 0;
    }
    p->host_args = fl_arena_array(&p->arena, n_host, sizeof *p->host_args);
    p->host_at = fl_arena_array(&p->arena, n_host, sizeof *p->host_at);
    p->items = fl_arena_array(&p->arena, g->nodes.n, sizeof *p->items);
    p->joints = fl_arena_array(&p->arena, p->device ? g->nodes.n : 0, sizeof *p->joints);
    p->joint_calls = fl_arena_array(&p->arena, g->nodes.n, sizeof *p->joint_calls);
    p->marks = fl_arena_array(&p->arena, p->device ? g->nodes.n + 1 : 0, sizeof *p->marks);
    p->taps = fl_arena_array(&p->arena, g->taps.n, sizeof *p->taps);
    p->args = fl_arena_array(&p->arena, n_args, sizeof *p->args);
    p->arg_place = fl_arena_array(&p->arena, n_args, sizeof *p->arg_place);
    p->arg_val = fl_arena_array(&p->arena, n_args, sizeof *p->arg_val);
    return p->host_args && p->host_at && p->items && p->joints && p->joint_calls && p->marks &&
           p->taps && p->args && p->arg_place && p->arg_val;
}

/* ---- sizes ---- */

/* One scratch area serves all calls: it is as large as the largest of them needs.  What the host
 * runs for a device has an area of its own. */
static fl_status measure_scratch(fl_plan *p, fl_error *err)
{
    const fl_graph *g = p->graph;
    fl_limits host = p->limits;
    host.n_threads = p->n_threads;
    for (size_t i = 0; i < g->nodes.n; i++) {
        const fl_kernel *k = p->kernels[i];
        if (!k || !k->scratch)
            continue;
        size_t own = 0, shared = 0;
        fl_node_view view = fl_node_seen(&g->nodes.data[i]);
        bool on_host = p->on_host[i] != NULL;
        k->scratch(&view, on_host ? &host : &p->limits, &own, &shared);
        if (!fl_round_line(own, &own) || !fl_round_line(shared, &shared))
            return fl_fail(err, FL_NOMEM, "no memory for the scratch of kernel %s", k->name);
        size_t *most = on_host ? &p->host_worker_bytes : &p->worker_bytes;
        size_t *most_shared = on_host ? &p->host_shared_bytes : &p->shared_bytes;
        *most = own > *most ? own : *most;
        *most_shared = shared > *most_shared ? shared : *most_shared;
    }
    return FL_OK;
}

/* Logits that are a cut of a wider value are gathered into a matrix of their own. */
static bool measure_gather(fl_plan *p)
{
    if (p->device) {
        p->gather_bytes = (size_t)p->limits.max_logits * (sizeof(fl_draw) + sizeof(fl_pick));
        return fl_round_line(p->gather_bytes, &p->gather_bytes);
    }
    if (!p->logits || p->logits->stride == fl_type_width(&p->logits->type))
        return true;
    size_t row = (size_t)fl_type_width(&p->logits->type) * sizeof(float);
    return !__builtin_mul_overflow(row, (size_t)p->limits.max_logits, &p->gather_bytes) &&
           fl_round_line(p->gather_bytes, &p->gather_bytes);
}

static fl_status measure(fl_plan *p, fl_error *err)
{
    if (p->device)
        fl_plan_device_picks(p);
    FL_TRY(measure_scratch(p, err));
    size_t workers, sum;
    if (!measure_gather(p) ||
        __builtin_mul_overflow(p->worker_bytes, (size_t)p->limits.n_threads, &workers) ||
        __builtin_add_overflow(p->value_bytes, p->gather_bytes, &sum) ||
        __builtin_add_overflow(sum, workers, &sum) ||
        __builtin_add_overflow(sum, p->shared_bytes, &sum))
        return fl_fail(err, FL_NOMEM, "the workspace of these limits is larger than memory can be");
    p->workspace_bytes = sum;
    if (!fl_plan_host_area(p, &sum))
        return fl_fail(err, FL_NOMEM, "the operands of these limits are larger than memory can be");
    return p->device ? fl_plan_device_measure(p, err) : FL_OK;
}

static fl_status fill(fl_plan *p, const fl_plan_options *opts, fl_place *place, fl_error *err)
{
    if (!place || !alloc_choice(p))
        return fl_graph_nomem(err);
    FL_TRY(fl_plan_choose(p, opts, err));
    FL_TRY(fl_plan_join(p, err));
    if (!alloc_arrays(p))
        return fl_graph_nomem(err);
    FL_TRY(fl_plan_place(p, place, err));
    if (!add_items(p, place))
        return fl_fail(err, FL_NOMEM, "the operands of these limits are larger than memory can be");
    return measure(p, err);
}

/* ---- the interface ---- */

fl_status fl_plan_create(const fl_graph *g, const fl_plan_options *opts, fl_plan **out,
                         fl_error *err)
{
    *out = NULL;
    FL_TRY(check_options(g, opts, err));
    fl_plan *p = fl_calloc(1, sizeof *p);
    if (!p)
        return fl_graph_nomem(err);
    p->graph = g;
    p->limits = opts->limits;
    p->n_threads = opts->limits.n_threads;
    p->device = opts->device;
    if (p->device)
        p->limits.n_threads = 1;
    fl_place *place = fl_calloc(g->values.n, sizeof *place);
    fl_status status = fill(p, opts, place, err);
    fl_free(place);
    if (status != FL_OK) {
        fl_plan_destroy(p);
        return status;
    }
    *out = p;
    return FL_OK;
}

fl_status fl_plan_prepare(fl_plan *p, fl_error *err)
{
    if (p->workspace)
        return FL_OK;
    if (p->device)
        FL_TRY(fl_plan_device_prepare(p, err));
    else
        p->workspace = fl_alloc_large(p->workspace_bytes, &p->raw);
    if (!p->workspace)
        return fl_fail(err, FL_NOMEM,
                       "no memory for a workspace of %zu bytes; fewer rows per step need less",
                       p->workspace_bytes);
    for (size_t i = 0; i < p->n_args; i++) {
        if (p->arg_place[i].placed)
            p->args[i].data = p->workspace + p->arg_place[i].offset;
    }
    if (p->pick_call.kernel)
        p->pick_in[0] = *p->logits;
    return p->n_joints ? p->device->fn->join(p->device, p->joints, p->n_joints, err) : FL_OK;
}

void fl_plan_destroy(fl_plan *p)
{
    if (!p)
        return;
    fl_free(p->raw);
    fl_free(p->host_raw);
    fl_arena_free(&p->arena);
    fl_free(p);
}

size_t fl_plan_workspace_bytes(const fl_plan *p)
{
    return p->workspace_bytes;
}

size_t fl_plan_device_bytes(const fl_plan *p)
{
    return p->device_bytes;
}

void fl_plan_profile(fl_plan *p, int64_t *us)
{
    p->us = us;
}

size_t fl_plan_host_bytes(const fl_plan *p)
{
    size_t bytes = 0;
    if (!p->device)
        return p->workspace_bytes;
    (void)fl_plan_host_area(p, &bytes); /* found to fit when the plan was made */
    return bytes + fl_plan_device_host_bytes(p);
}

const char *fl_plan_on_host(const fl_plan *p, int node)
{
    return p->on_host[node];
}

int fl_plan_host_calls(const fl_plan *p)
{
    return p->n_host_calls;
}

const bool *fl_plan_states_on_host(const fl_plan *p)
{
    return p->state_on_host;
}

int fl_plan_calls(const fl_plan *p)
{
    return p->n_items;
}

const fl_kernel *fl_plan_kernel(const fl_plan *p, int node)
{
    return p->kernels[node];
}
