/* Finishing a grammar: nothing in it may lead to a place with no way on.
 *
 * The need of a node is the number of frames that the thriftiest way from it to its rule's end puts
 * on the stack; the matcher enters a node only when that many are left, so a document always closes
 * in time.  A node without any way has no need that is enough, and goes with all edges to it. */
#include "engine/grammar_internal.h"

static bool open_at(const fl_rule *r, int32_t node, int32_t count)
{
    size_t bit = (size_t)(node - r->first) * (size_t)(fl_rule_top(r) + 1) + (size_t)count;
    return r->live[bit / 8] >> (bit % 8) & 1;
}

/* One backward pass over the edges since `first` at one count; true when something changed. */
static bool spread(const fl_grammar *g, const fl_rule *r, size_t first, int32_t count)
{
    bool changed = false;
    for (size_t i = g->edges.n; i-- > first;) {
        const fl_edge *e = &g->edges.data[i];
        int32_t next = count;
        if (e->flags & FL_TICK) {
            if (r->max >= 0 && count == r->max)
                continue;
            next = count < fl_rule_top(r) ? count + 1 : count;
        }
        if (((e->flags & FL_ENOUGH) && count < r->min) || open_at(r, e->from, count) ||
            !open_at(r, e->to, next))
            continue;
        size_t bit = (size_t)(e->from - r->first) * (size_t)(fl_rule_top(r) + 1) + (size_t)count;
        r->live[bit / 8] |= (uint8_t)(1 << bit % 8);
        changed = true;
    }
    return changed;
}

void fl_grammar_live(fl_grammar *g, int32_t rule)
{
    enum { MAX_BITS = 1 << 24 };
    if (g->status != FL_OK)
        return;
    fl_rule *r = &g->rules.data[rule];
    size_t nodes = g->nodes.n - (size_t)r->first, counts = (size_t)fl_rule_top(r) + 1;
    if (nodes * counts > MAX_BITS) {
        fl_grammar_fail(g, FL_ARGUMENT, "a pattern with a length of up to %d is too large",
                        fl_rule_top(r));
        return;
    }
    r->live = fl_calloc(nodes * counts / 8 + 1, 1);
    if (!r->live) {
        fl_grammar_fail(g, FL_NOMEM, "no memory for a grammar");
        return;
    }
    size_t first = g->edges.n;
    while (first > 0 && g->edges.data[first - 1].from >= r->first)
        first--;
    for (int32_t c = (int32_t)counts; c-- > 0;) {
        size_t bit = (size_t)(r->end - r->first) * counts + (size_t)c;
        r->live[bit / 8] |= (uint8_t)(1 << bit % 8);
        while (spread(g, r, first, c)) {
        }
    }
    if (!open_at(r, r->start, 0)) /* no string is long and short enough: the rule goes */
        r->start = fl_grammar_node(g, rule);
}

/* Frames for the rule that edge e calls: a call with nothing left to do behind it takes the place
 * of its caller. */
static int call_need(const fl_grammar *g, const fl_edge *e)
{
    int inner = g->nodes.data[g->rules.data[e->arg].start].need;
    bool last = e->to == g->rules.data[g->nodes.data[e->from].rule].end;
    return inner == FL_NEVER || last ? inner : inner < FL_MAX_FRAMES ? inner + 1 : FL_NEVER;
}

/* The need of a way that begins with edge e. */
static int need_of(const fl_grammar *g, const fl_edge *e)
{
    int need = g->nodes.data[e->to].need;
    if (e->kind != FL_EDGE_CALL || need == FL_NEVER)
        return need;
    int inner = call_need(g, e);
    return need > inner ? need : inner;
}

/* What every node of a counted rule needs: such a rule makes each of its calls before it can end,
 * however far the count is. */
static void find_floors(fl_grammar *g)
{
    for (size_t i = 0; i < g->rules.n; i++)
        g->rules.data[i].floor = 0;
    for (size_t i = 0; i < g->edges.n; i++) {
        const fl_edge *e = &g->edges.data[i];
        fl_rule *r = &g->rules.data[g->nodes.data[e->from].rule];
        if (e->kind != FL_EDGE_CALL || r->min == 0)
            continue;
        int floor = call_need(g, e);
        if (r->floor < floor)
            r->floor = (uint8_t)floor;
    }
}

/* Least needs, lowered from FL_NEVER until nothing changes. */
static void find_needs(fl_grammar *g)
{
    for (size_t i = 0; i < g->nodes.n; i++)
        g->nodes.data[i].need = FL_NEVER;
    for (size_t i = 0; i < g->rules.n; i++)
        g->nodes.data[g->rules.data[i].end].need = 0;
    for (bool changed = true; changed;) {
        changed = false;
        find_floors(g);
        for (size_t i = g->edges.n; i-- > 0;) {
            const fl_edge *e = &g->edges.data[i];
            fl_node *from = &g->nodes.data[e->from];
            int need = need_of(g, e), floor = g->rules.data[from->rule].floor;
            need = need > floor ? need : floor;
            if (need < from->need) {
                from->need = (uint8_t)need;
                changed = true;
            }
        }
    }
}

/* Removes edges into nowhere and puts the rest in order of their node. */
static fl_status sort_edges(fl_grammar *g, fl_error *err)
{
    size_t kept = 0;
    for (size_t i = 0; i < g->edges.n; i++) {
        const fl_edge *e = &g->edges.data[i];
        if (need_of(g, e) != FL_NEVER)
            g->edges.data[kept++] = *e;
    }
    g->edges.n = kept;
    fl_edge *sorted = fl_realloc_array(NULL, kept + 1, sizeof *sorted);
    if (!sorted)
        return fl_fail(err, FL_NOMEM, "no memory for a grammar");
    for (size_t i = 0; i < kept; i++)
        g->nodes.data[g->edges.data[i].from].n++;
    int32_t at = 0;
    for (size_t i = 0; i < g->nodes.n; i++) {
        g->nodes.data[i].first = at;
        at += g->nodes.data[i].n;
        g->nodes.data[i].n = 0;
    }
    for (size_t i = 0; i < kept; i++) {
        fl_node *n = &g->nodes.data[g->edges.data[i].from];
        sorted[n->first + n->n++] = g->edges.data[i];
    }
    for (size_t i = 0; i < g->nodes.n; i++) {
        fl_node *n = &g->nodes.data[i];
        n->takes = (int32_t)i != g->rules.data[n->rule].end;
        for (int32_t k = 0; k < n->n; k++)
            n->takes &= sorted[n->first + k].kind <= FL_EDGE_MARK;
    }
    fl_vec_free(&g->edges);
    g->edges.data = sorted;
    g->edges.n = g->edges.cap = kept;
    return FL_OK;
}

/* ---- moves that take nothing ---- */

/* Whether a rule can be passed without a byte: [rules], as a fixed point over all nodes. */
static void find_empty(const fl_grammar *g, bool *node_empty)
{
    for (size_t i = 0; i < g->rules.n; i++)
        node_empty[g->rules.data[i].end] = true;
    for (bool changed = true; changed;) {
        changed = false;
        for (size_t i = g->edges.n; i-- > 0;) {
            const fl_edge *e = &g->edges.data[i];
            bool passes = e->kind == FL_EDGE_JUMP ||
                          (e->kind == FL_EDGE_CALL && node_empty[g->rules.data[e->arg].start]);
            if (passes && node_empty[e->to] && !node_empty[e->from])
                node_empty[e->from] = changed = true;
        }
    }
}

typedef struct visit {
    int32_t node, edge;
    bool inner; /* of a call: the rule was looked at, now what follows */
} visit;

/* Whether a node comes back to itself by moves that take nothing. */
static fl_status check_loops(const fl_grammar *g, const bool *empty, uint8_t *seen, visit *way,
                             fl_error *err)
{
    enum { NEW, OPEN, DONE };
    for (size_t root = 0; root < g->nodes.n; root++) {
        size_t n = 0;
        if (seen[root] != NEW)
            continue;
        way[n++] = (visit){.node = (int32_t)root};
        seen[root] = OPEN;
        while (n > 0) {
            visit *v = &way[n - 1];
            const fl_node *node = &g->nodes.data[v->node];
            if (v->edge == node->n) {
                seen[v->node] = DONE;
                n--;
                continue;
            }
            const fl_edge *e = &g->edges.data[node->first + v->edge];
            int32_t to = -1;
            if (e->kind == FL_EDGE_CALL && !v->inner) {
                to = g->rules.data[e->arg].start;
                v->inner = empty[to];
                v->edge += !v->inner;
            } else {
                if (e->kind == FL_EDGE_JUMP || e->kind == FL_EDGE_CALL)
                    to = e->to;
                v->inner = false;
                v->edge++;
            }
            if (to < 0 || seen[to] == DONE)
                continue;
            if (seen[to] == OPEN)
                return fl_fail(err, FL_ARGUMENT,
                               "the schema refers to itself with nothing in between");
            seen[to] = OPEN;
            way[n++] = (visit){.node = to};
        }
    }
    return FL_OK;
}

static fl_status check_empty_moves(const fl_grammar *g, fl_error *err)
{
    bool *empty = fl_calloc(g->nodes.n, sizeof *empty);
    uint8_t *seen = fl_calloc(g->nodes.n, sizeof *seen);
    visit *way = fl_realloc_array(NULL, g->nodes.n + 1, sizeof *way);
    fl_status s = FL_NOMEM;
    if (empty && seen && way) {
        find_empty(g, empty);
        s = check_loops(g, empty, seen, way, err);
    } else {
        fl_fail(err, FL_NOMEM, "no memory for a grammar");
    }
    fl_free(empty);
    fl_free(seen);
    fl_free(way);
    return s;
}

fl_status fl_grammar_finish(fl_grammar *g, fl_error *err)
{
    if (g->status != FL_OK)
        return fl_fail(err, g->status, "%s", g->error.message);
    find_needs(g);
    int need = g->nodes.data[g->rules.data[g->root].start].need;
    if (need == FL_NEVER)
        return fl_fail(err, FL_ARGUMENT, "no document of at most %d levels satisfies the schema",
                       FL_MAX_FRAMES);
    FL_TRY(sort_edges(g, err));
    return check_empty_moves(g, err);
}
