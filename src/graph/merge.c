/* Merging products: linear nodes that read the same value become one node with several weights and
 * as many outputs, so that a kernel reads the input once and splits the rows of all weights over
 * the workers in one region.  Only weights of one element type join: a kernel is made for a type.
 * What decides over experts stays apart from the rest: precision fast leaves it exact.
 * The merged node stands where the first of its members stood, which is late enough because a
 * weight is never computed in the step. */
#include "graph/graph_internal.h"

typedef struct group {
    int32_t next;  /* next group that reads the same value; FL_NONE: the last */
    int32_t leads; /* the group this node belongs to, by its first node; FL_NONE: none */
    int32_t size;  /* of the first node: members */
} group;

static bool mergeable(const fl_node *n)
{
    return strcmp(n->op->name, "linear") == 0 && n->n_in == 2 && n->n_out == 1 &&
           n->in_type[1]->rows == FL_ROWS_CONST;
}

/* Assigns node i to the first open group over its input, or opens one. */
static void join(const fl_graph *g, group *groups, int32_t *head, int32_t i)
{
    const fl_node *n = &g->nodes.data[i];
    int room = n->op->max_in - 1 < FL_MAX_OUT ? n->op->max_in - 1 : FL_MAX_OUT;
    int32_t *link = &head[n->in[0]];
    while (*link != FL_NONE) {
        group *other = &groups[*link];
        const fl_node *lead = &g->nodes.data[*link];
        if (lead->in_type[1]->dtype == n->in_type[1]->dtype && other->size < room &&
            lead->decides == n->decides) {
            other->size++;
            groups[i].leads = *link;
            return;
        }
        link = &other->next;
    }
    *link = i;
    groups[i] = (group){.next = FL_NONE, .leads = i, .size = 1};
}

/* Makes room for the members of a group in its first node. */
static fl_status widen(fl_graph *g, fl_node *node, int32_t size, fl_error *err)
{
    fl_val *in = fl_arena_array(&g->arena, (size_t)size + 1, sizeof *in);
    fl_val *out = fl_arena_array(&g->arena, (size_t)size, sizeof *out);
    const fl_type **types = fl_arena_array(&g->arena, (size_t)size + 1, sizeof *types);
    if (!in || !out || !types)
        return fl_graph_nomem(err);
    in[0] = node->in[0];
    types[0] = node->in_type[0];
    node->n_in = 1;
    node->n_out = 0;
    node->in = in;
    node->out = out;
    node->in_type = types;
    return FL_OK;
}

/* Adds a member's weight and output. */
static void take(fl_node *node, fl_val weight, const fl_type *type, fl_val out)
{
    node->in[node->n_in] = weight;
    node->in_type[node->n_in++] = type;
    node->out[node->n_out++] = out;
}

/* The operator's rule sees the merged node again: it has the last word on what it accepts. */
static fl_status settle(fl_graph *g, fl_node *node, fl_error *err)
{
    int members = node->n_out;
    FL_TRY(fl_node_infer(g, node, err));
    if (node->n_out != members)
        return fl_fail(err, FL_INTERNAL, "%d merged products gave %d outputs", members,
                       node->n_out);
    for (int i = 0; i < members; i++)
        g->values.data[node->out[i]].type = &node->out_type[i];
    return FL_OK;
}

static fl_status rebuild(fl_graph *g, const group *groups, fl_error *err)
{
    fl_node *nodes = g->nodes.data;
    for (size_t i = 0; i < g->nodes.n; i++) {
        int32_t lead = groups[i].leads;
        if (lead == FL_NONE || groups[lead].size == 1)
            continue;
        fl_val weight = nodes[i].in[1], out = nodes[i].out[0];
        const fl_type *type = nodes[i].in_type[1];
        if ((size_t)lead == i)
            FL_TRY(widen(g, &nodes[i], groups[i].size, err));
        take(&nodes[lead], weight, type, out);
    }
    size_t n = 0;
    for (size_t i = 0; i < g->nodes.n; i++) {
        int32_t lead = groups[i].leads;
        if (lead != FL_NONE && (size_t)lead != i)
            continue;
        if (lead != FL_NONE && groups[i].size > 1) {
            fl_status status = settle(g, &nodes[i], err);
            if (status != FL_OK) {
                fl_node_explain(err, &nodes[i]);
                return status;
            }
        }
        nodes[n++] = nodes[i];
    }
    g->nodes.n = n;
    return FL_OK;
}

fl_status fl_graph_merge(fl_graph *g, fl_error *err)
{
    group *groups = fl_calloc(g->nodes.n, sizeof *groups);
    int32_t *head = fl_calloc(g->values.n, sizeof *head); /* first group that reads a value */
    fl_status status = groups && head ? FL_OK : fl_graph_nomem(err);
    if (status == FL_OK) {
        for (size_t i = 0; i < g->values.n; i++)
            head[i] = FL_NONE;
        for (size_t i = 0; i < g->nodes.n; i++) {
            groups[i].leads = FL_NONE;
            if (mergeable(&g->nodes.data[i]))
                join(g, groups, head, (int32_t)i);
        }
        status = rebuild(g, groups, err);
    }
    fl_free(groups);
    fl_free(head);
    return status;
}
