/* Nodes that a device makes in one go (fl_device_fn.join): fewer launches, and values that do not
 * travel through memory.
 *
 * A node joins the group of an earlier one, in whose place it is then made, when the device can do
 * that and everything that it reads is there by then: made before that place, or by the group, in
 * which case it reads the whole value.  What a kernel does beside its outputs keeps its order: a
 * node that shares a state with one in between stays where it is.  A kernel that the caller named
 * is used as it is. */
#include "graph/plan_internal.h"

enum { LOOK_BACK = 4, MEMBERS = 24 }; /* groups that are looked at; nodes of a group */

typedef struct group {
    int32_t first, last;
    int n;
    fl_node_view member[MEMBERS];
} group;

typedef struct joiner {
    fl_plan *plan;
    int32_t *maker;          /* [values] the node that made it; FL_NONE: none did */
    int32_t *state_user;     /* [states] in whose place it was last used; FL_NONE: not yet */
    group groups[LOOK_BACK]; /* a ring */
    int n_groups;
} joiner;

/* Whether v is all of what its maker made, perhaps with other dims; *maker: of the memory that it
 * lies in. */
static bool is_whole(const joiner *j, fl_val v, int32_t *maker)
{
    const fl_graph *g = j->plan->graph;
    int64_t width = fl_type_width(g->values.data[v].type);
    bool whole = true;
    for (*maker = j->maker[v]; *maker != FL_NONE && g->nodes.data[*maker].op->view;
         *maker = j->maker[v]) {
        v = g->nodes.data[*maker].in[0];
        whole = whole && fl_type_width(g->values.data[v].type) == width;
    }
    return whole;
}

/* Whether node i can be made in the place of the group. */
static bool can_join(const joiner *j, const group *to, int32_t i)
{
    const fl_plan *p = j->plan;
    const fl_node *node = &p->graph->nodes.data[i];
    uint64_t inside = 0;
    if (to->n == MEMBERS || node->n_in > 64 || node->n_out < 1 ||
        to->member[0].out[0].rows != node->out_type[0].rows)
        return false;
    for (int k = 0; k < node->n_in; k++) {
        int32_t maker;
        if (node->in[k] == FL_NONE)
            continue;
        const fl_type *t = node->in_type[k];
        if (t->rows == FL_ROWS_STATE && j->state_user[t->state] >= to->first)
            return false;
        bool whole = is_whole(j, node->in[k], &maker);
        bool here = maker != FL_NONE && p->at[maker] == to->first;
        if (maker != FL_NONE && p->at[maker] > to->first)
            return false;
        if (here && !whole)
            return false;
        inside |= here ? (uint64_t)1 << k : 0;
    }
    fl_node_view view = fl_node_seen(node);
    return p->device->fn->joins(p->device, to->member, to->n, &view, inside);
}

static void join_one(joiner *j, int32_t i)
{
    fl_plan *p = j->plan;
    fl_node_view view = fl_node_seen(&p->graph->nodes.data[i]);
    if (p->on_host[i] || p->named[i] || !p->device->fn->joins(p->device, NULL, 0, &view, 0))
        return;
    p->joins[i] = true;
    for (int k = j->n_groups - 1; k >= 0 && k >= j->n_groups - LOOK_BACK; k--) {
        group *to = &j->groups[k % LOOK_BACK];
        if (!can_join(j, to, i))
            continue;
        to->member[to->n++] = view;
        p->at[i] = to->first;
        p->next[to->last] = i;
        to->last = i;
        return;
    }
    group *fresh = &j->groups[j->n_groups++ % LOOK_BACK];
    fresh->first = fresh->last = i;
    fresh->n = 1;
    fresh->member[0] = view;
}

static void join_all(joiner *j)
{
    fl_plan *p = j->plan;
    const fl_graph *g = p->graph;
    for (size_t i = 0; i < g->nodes.n; i++) {
        const fl_node *node = &g->nodes.data[i];
        if (!node->op->view)
            join_one(j, (int32_t)i);
        for (int k = 0; k < node->n_out; k++)
            j->maker[node->out[k]] = (int32_t)i;
        for (int k = 0; k < node->n_in; k++) {
            const fl_type *t = node->in_type[k];
            if (t && t->rows == FL_ROWS_STATE && j->state_user[t->state] < p->at[i])
                j->state_user[t->state] = p->at[i];
        }
    }
}

fl_status fl_plan_join(fl_plan *p, fl_error *err)
{
    const fl_graph *g = p->graph;
    for (size_t i = 0; i < g->nodes.n; i++) {
        p->at[i] = (int32_t)i;
        p->next[i] = FL_NONE;
    }
    if (!p->device || !p->device->fn->join)
        return FL_OK;
    joiner *j = fl_calloc(1, sizeof *j);
    if (!j)
        return fl_graph_nomem(err);
    j->plan = p;
    j->maker = fl_calloc(g->values.n + 1, sizeof *j->maker);
    j->state_user = fl_calloc(g->states.n + 1, sizeof *j->state_user);
    bool room = j->maker && j->state_user;
    for (size_t i = 0; room && i < g->values.n; i++)
        j->maker[i] = FL_NONE;
    for (size_t i = 0; room && i < g->states.n; i++)
        j->state_user[i] = FL_NONE;
    if (room)
        join_all(j);
    fl_free(j->maker);
    fl_free(j->state_user);
    fl_free(j);
    return room ? FL_OK : fl_graph_nomem(err);
}
