/* Laying all intermediate values into one workspace.
 *
 * A value lives from the node that makes it to the last node that reads it or a view of it; the
 * logits live to the end.  Walking the nodes in order, the dead are taken off a list of live blocks
 * sorted by address and each new value goes into the smallest gap that holds it, or behind the
 * last.  The outputs of a node are placed while its inputs still live, so a kernel never works in
 * place; nodes that are made in one go count as one.  The list is short (what is alive at one
 * node), so the walk is linear in the nodes.
 *
 * Rows are padded to 16 elements: every row starts on a cache line, so vector loads do not
 * straddle lines and workers that write neighbouring rows do not share one.  Only the logits are
 * packed, since callers read them as one matrix.  Sizes depend on the limits alone. */
#include "graph/plan_internal.h"

enum { ROW_PAD = FL_CACHE_LINE / sizeof(float) };

typedef struct block {
    size_t at, size;
    int32_t last; /* node */
} block;

typedef struct layout {
    const fl_plan *plan;
    const fl_graph *graph;
    const fl_limits *limits;
    fl_place *place;
    int32_t *last; /* [values] last node that touches the memory of a root */
    FL_VEC(block) live;
    size_t bytes;
} layout;

/* ---- lifetimes ---- */

static void touch(layout *l, fl_val v, int32_t node)
{
    if (v != FL_NONE && l->last[l->place[v].root] < node)
        l->last[l->place[v].root] = node;
}

static void measure_lifetimes(layout *l)
{
    const fl_graph *g = l->graph;
    for (size_t v = 0; v < g->values.n; v++)
        l->place[v].root = (fl_val)v;
    for (size_t i = 0; i < g->nodes.n; i++) {
        const fl_node *n = &g->nodes.data[i];
        if (n->op->view)
            l->place[n->out[0]].root = l->place[n->in[0]].root;
        for (int k = 0; k < n->n_in; k++)
            touch(l, n->in[k], l->plan->at[i]);
        for (int k = 0; k < n->n_out; k++)
            touch(l, n->out[k], l->plan->at[i]);
    }
    if (g->logits != FL_NONE)
        touch(l, g->logits, (int32_t)g->nodes.n);
}

/* ---- placement ---- */

static void drop_dead(layout *l, int32_t node)
{
    size_t n = 0;
    for (size_t i = 0; i < l->live.n; i++) {
        if (l->live.data[i].last >= node)
            l->live.data[n++] = l->live.data[i];
    }
    l->live.n = n;
}

/* Finds a gap for b, whose size and last are set, and adds it to the live blocks. */
static bool place_block(layout *l, block *b)
{
    if (!fl_vec_reserve(&l->live, 1))
        return false;
    block *live = l->live.data;
    size_t end = 0, best = SIZE_MAX, slot = l->live.n;
    for (size_t i = 0; i < l->live.n; i++) {
        size_t gap = live[i].at - end;
        if (gap >= b->size && gap < best) {
            best = gap;
            slot = i;
            b->at = end;
        }
        end = live[i].at + live[i].size;
    }
    if (best == SIZE_MAX)
        b->at = end;
    if (b->size > SIZE_MAX / 2 - b->at)
        return false;
    memmove(&live[slot + 1], &live[slot], (l->live.n - slot) * sizeof *live);
    live[slot] = *b;
    l->live.n++;
    if (b->at + b->size > l->bytes)
        l->bytes = b->at + b->size;
    return true;
}

static fl_status place_value(layout *l, fl_val v, fl_error *err)
{
    const fl_type *type = l->graph->values.data[v].type;
    int64_t width = fl_type_width(type), stride = (width + ROW_PAD - 1) / ROW_PAD * ROW_PAD;
    fl_val logits = l->graph->logits;
    if (logits != FL_NONE && l->place[logits].root == v && fl_graph_vocab(l->graph) == width)
        stride = width;
    int32_t rows = type->rows == FL_ROWS_LOGITS ? l->limits->max_logits : l->limits->max_rows;
    block b = {.last = l->last[v]};
    if (__builtin_mul_overflow((size_t)stride * sizeof(float), (size_t)rows, &b.size) ||
        !fl_round_line(b.size, &b.size) || !place_block(l, &b))
        return fl_fail(err, FL_NOMEM, "no memory for %d rows of %lld elements", (int)rows,
                       (long long)width);
    l->place[v] = (fl_place){.root = v, .placed = true, .offset = b.at, .stride = stride};
    return FL_OK;
}

static fl_status place_outputs(layout *l, const fl_node *n, fl_error *err)
{
    for (int k = 0; k < n->n_out; k++)
        FL_TRY(place_value(l, n->out[k], err));
    return FL_OK;
}

static fl_status place_all(layout *l, fl_error *err)
{
    const fl_graph *g = l->graph;
    for (size_t i = 0; i < g->nodes.n; i++) {
        const fl_node *n = &g->nodes.data[i];
        if (n->op->view) {
            l->place[n->out[0]] = l->place[n->in[0]];
            l->place[n->out[0]].offset += (size_t)n->attr[FL_VIEW_OFFSET].i * sizeof(float);
            continue;
        }
        if (l->plan->at[i] != (int32_t)i)
            continue;
        drop_dead(l, (int32_t)i);
        for (fl_val m = (fl_val)i; m != FL_NONE; m = l->plan->next[m])
            FL_TRY(place_outputs(l, &g->nodes.data[m], err));
    }
    return FL_OK;
}

fl_status fl_plan_place(fl_plan *p, fl_place *place, fl_error *err)
{
    layout l = {.plan = p, .graph = p->graph, .limits = &p->limits, .place = place};
    l.last = fl_calloc(p->graph->values.n, sizeof *l.last);
    fl_status status = l.last ? FL_OK : fl_graph_nomem(err);
    if (status == FL_OK) {
        measure_lifetimes(&l);
        status = place_all(&l, err);
    }
    p->value_bytes = l.bytes;
    fl_free(l.last);
    fl_vec_free(&l.live);
    return status;
}
