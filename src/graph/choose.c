/* Choosing a kernel for every node: among the kernels of the operator that the processor level and
 * the precision allow and that fit the node, the one of highest preference; on equal preference the
 * one for the higher level, then the earlier in the registry.  A caller may name kernels
 * ("mla=expanded"): a name stands for the kernel of this name or for a family, the part before a
 * dash ("rows16" for "rows16-avx512").  A named kernel is taken where it fits; elsewhere the rule
 * above applies, so one name can serve a model of mixed weight types.  What was measured on this
 * machine (choices.h) comes between a name and preference.  A node that decides over experts gets
 * an exact kernel in either precision.  Kernels made of BF16 dot products come after the exact ones
 * on processors where these are slow.
 *
 * In a device's plan the kernels are the device's.  A node for which it has none gets one of the
 * host, and so does one whose operator is named "cpu" or "cpu:NAME".  A state lies in one place, so
 * nodes that share one follow each other there. */
#include "base/cpu.h"
#include "graph/choices.h"
#include "graph/plan_internal.h"

typedef struct pick { /* one "op=name" */
    const char *name; /* NULL: none for this operator */
    int len;          /* 0: any kernel */
    bool host;        /* a kernel of the host, also in a device's plan */
    int nodes, hits;  /* nodes of the operator, and those that got the named kernel */
} pick;

typedef struct chooser {
    const fl_registry *registry;
    const fl_plan_options *opts;
    pick *picks; /* [n_ops] */
} chooser;

static int op_index(const fl_registry *r, const fl_op *op)
{
    int i = 0;
    while (r->ops[i] != op)
        i++;
    return i;
}

/* The i-th kernel to choose from: the host's, or the device's. */
static const fl_kernel *nth(const chooser *c, bool host, int i)
{
    const fl_device *d = c->opts->device;
    if (!d || host)
        return fl_registry_kernel(c->registry, i);
    const fl_registry own = {.lists = d->lists, .n_lists = d->n_lists};
    return fl_registry_kernel(&own, i);
}

static bool is_for(const fl_kernel *k, const fl_op *op)
{
    return strcmp(k->op, op->name) == 0;
}

static bool allowed(const fl_kernel *k, const fl_plan_options *o)
{
    return k->isa <= o->isa && (!k->fast || o->fast);
}

static bool is_named(const fl_kernel *k, const pick *p)
{
    return p->len == 0 || (strncmp(k->name, p->name, (size_t)p->len) == 0 &&
                           (k->name[p->len] == 0 || k->name[p->len] == '-'));
}

/* ---- "op=name,op=name" ---- */

static fl_status check_pick(const chooser *c, const fl_op *op, const pick *p, fl_error *err)
{
    const fl_kernel *k, *refused = NULL;
    char known[200] = "";
    for (int i = 0; (k = nth(c, p->host, i)) != NULL; i++) {
        if (!is_for(k, op))
            continue;
        if (is_named(k, p)) {
            if (allowed(k, c->opts))
                return FL_OK;
            refused = k;
        }
        fl_text_append(known, sizeof known, known[0] ? ", " : "");
        fl_text_append(known, sizeof known, k->name);
    }
    if (!refused)
        return fl_fail(err, FL_ARGUMENT, "operator %s has no kernel \"%.*s\"; it has %s", op->name,
                       p->len, p->name, known);
    if (refused->isa > c->opts->isa)
        return fl_fail(err, FL_ARGUMENT, "kernel %s of %s needs %s, the level in use is %s",
                       refused->name, op->name, fl_isa_name(refused->isa),
                       fl_isa_name(c->opts->isa));
    return fl_fail(err, FL_ARGUMENT, "kernel %s of %s is for precision fast only", refused->name,
                   op->name);
}

static fl_status parse_pick(chooser *c, const char *text, int len, fl_error *err)
{
    const char *equals = memchr(text, '=', (size_t)len);
    if (!equals || equals == text || equals == text + len - 1)
        return fl_fail(err, FL_ARGUMENT, "kernel choice \"%.*s\": expected OPERATOR=KERNEL", len,
                       text);
    const fl_registry *r = c->registry;
    size_t op_len = (size_t)(equals - text);
    int i = 0;
    while (i < r->n_ops &&
           (strncmp(r->ops[i]->name, text, op_len) != 0 || r->ops[i]->name[op_len] != 0))
        i++;
    if (i == r->n_ops)
        return fl_fail(err, FL_ARGUMENT, "kernel choice \"%.*s\": no operator is called so", len,
                       text);
    pick *p = &c->picks[i];
    if (p->name)
        return fl_fail(err, FL_ARGUMENT, "kernel choice \"%.*s\": %s is chosen twice", len, text,
                       r->ops[i]->name);
    p->name = equals + 1;
    p->len = len - (int)op_len - 1;
    p->host = p->len >= 3 && strncmp(p->name, "cpu", 3) == 0 && (p->len == 3 || p->name[3] == ':');
    if (p->host) {
        int skip = p->len == 3 ? 3 : 4;
        p->name += skip;
        p->len -= skip;
    }
    return check_pick(c, r->ops[i], p, err);
}

static fl_status parse_picks(chooser *c, fl_error *err)
{
    for (const char *at = c->opts->kernels; at && *at;) {
        int len = (int)strcspn(at, ",");
        FL_TRY(parse_pick(c, at, len, err));
        at += len + (at[len] == ',');
    }
    return FL_OK;
}

/* ---- the choice ---- */

/* Below the kernels of precision exact where its instructions are slower than theirs. */
static int standing(const fl_kernel *k)
{
    return k->preference - (k->bf16_dots && fl_cpu_slow_bf16_dots() ? 20 : 0);
}

static const fl_kernel *best(const chooser *c, const fl_node *node, const pick *only, bool host)
{
    fl_node_view view = fl_node_seen(node);
    const fl_kernel *k, *found = NULL;
    for (int i = 0; (k = nth(c, host, i)) != NULL; i++) {
        if (!is_for(k, node->op) || !allowed(k, c->opts) || (k->fast && node->decides) ||
            (only && !is_named(k, only)))
            continue;
        bool better = !found || standing(k) > standing(found) ||
                      (standing(k) == standing(found) && k->isa > found->isa);
        if (better && (!k->fits || k->fits(&view)))
            found = k;
    }
    return found;
}

/* The kernel of the host that was measured to be the best for node i, if it can still be had. */
static const fl_kernel *measured(const chooser *c, const fl_graph *g, int i)
{
    char signature[FL_SIGNATURE];
    if (!c->opts->choices)
        return NULL;
    const char *name = fl_choices_get(c->opts->choices, fl_node_signature(g, i, signature));
    const pick whole = {.name = name, .len = name ? (int)strlen(name) : 0};
    return name ? best(c, &g->nodes.data[i], &whole, true) : NULL;
}

static const char NAMED[] = "named so", LACKING[] = "the device has no kernel for it",
                  SHARED[] = "the processor keeps its state";

/* The kernel of node i.  bound: its state is the host's. */
static fl_status choose_one(chooser *c, fl_plan *plan, size_t i, bool bound, fl_error *err)
{
    const fl_node *node = &plan->graph->nodes.data[i];
    pick *p = &c->picks[op_index(c->registry, node->op)];
    const fl_kernel *found = NULL;
    const char *why = bound ? SHARED : NULL;
    if (p->name && (p->host || !bound)) {
        found = best(c, node, p, p->host);
        why = found && p->host ? NAMED : why;
        p->nodes += !bound;
        p->hits += !bound && found;
    }
    if (!found && (bound || !c->opts->device))
        found = measured(c, plan->graph, (int)i);
    if (!found)
        found = best(c, node, NULL, bound);
    if (!found && c->opts->device) {
        found = best(c, node, NULL, true);
        why = LACKING;
    }
    plan->kernels[i] = found;
    plan->named[i] = p->name && found && is_named(found, p);
    plan->on_host[i] = c->opts->device ? why : NULL;
    if (found)
        return FL_OK;
    fl_status status =
        fl_fail(err, FL_UNSUPPORTED, "no kernel does this at level %s%s", fl_isa_name(c->opts->isa),
                c->opts->fast ? "" : " in precision exact");
    fl_node_explain(err, node);
    return status;
}

/* Whether a node touches a state of the host; with `claim` all states that it touches become so. */
static bool touches_host(fl_plan *p, const fl_node *node, bool claim)
{
    bool found = false;
    for (int k = 0; k < node->n_in; k++) {
        if (!node->in_type[k] || node->in_type[k]->rows != FL_ROWS_STATE)
            continue;
        bool *state = &p->state_on_host[node->in_type[k]->state];
        *state |= claim;
        found |= *state;
    }
    return found;
}

/* Moves the nodes that share a state with a node of the host there, until none is left. */
static fl_status follow_states(chooser *c, fl_plan *p, fl_error *err)
{
    const fl_graph *g = p->graph;
    for (bool moved = true; moved;) {
        moved = false;
        for (size_t i = 0; i < g->nodes.n; i++) {
            const fl_node *node = &g->nodes.data[i];
            if (p->on_host[i] || !p->kernels[i] || !touches_host(p, node, false))
                continue;
            FL_TRY(choose_one(c, p, i, true, err));
            (void)touches_host(p, node, true);
            moved = true;
        }
    }
    return FL_OK;
}

static fl_status choose_all(chooser *c, fl_plan *p, fl_error *err)
{
    const fl_graph *g = p->graph;
    FL_TRY(parse_picks(c, err));
    for (size_t i = 0; i < g->nodes.n; i++) {
        if (g->nodes.data[i].op->view)
            continue;
        FL_TRY(choose_one(c, p, i, false, err));
        if (p->on_host[i])
            (void)touches_host(p, &g->nodes.data[i], true);
    }
    for (int i = 0; i < g->registry->n_ops; i++) {
        const pick *k = &c->picks[i];
        if (k->nodes && !k->hits)
            return fl_fail(err, FL_ARGUMENT, "kernel \"%.*s\" fits none of the %d nodes of %s",
                           k->len, k->name, k->nodes, g->registry->ops[i]->name);
    }
    return follow_states(c, p, err);
}

fl_status fl_plan_choose(fl_plan *p, const fl_plan_options *opts, fl_error *err)
{
    chooser c = {.registry = p->graph->registry, .opts = opts};
    c.picks = fl_calloc((size_t)c.registry->n_ops, sizeof *c.picks);
    if (!c.picks)
        return fl_graph_nomem(err);
    fl_status status = choose_all(&c, p, err);
    fl_free(c.picks);
    return status;
}

int fl_node_kernels(const fl_graph *g, int node, const fl_plan_options *o, const fl_kernel **out,
                    int max)
{
    const chooser c = {.registry = g->registry, .opts = o};
    const fl_node *n = &g->nodes.data[node];
    fl_node_view view = fl_node_seen(n);
    const fl_kernel *k;
    int found = 0;
    for (int i = 0; !n->op->view && (k = nth(&c, true, i)) != NULL; i++) {
        if (!is_for(k, n->op) || !allowed(k, o) || (k->fast && n->decides) ||
            (k->fits && !k->fits(&view)))
            continue;
        if (found < max)
            out[found] = k;
        found++;
    }
    return found;
}
