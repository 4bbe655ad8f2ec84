#include "ops/fused_internal.h"

enum { MOST_HELD = 16, BLOCK = 128, PLAIN_SPAN = 128, WIDEST = 1 << 26 };

fl_fused_kind fl_fused_kind_of(const char *op)
{
    static const char *const names[] = {"expr", "conv1d", "rmsnorm", "l2norm", "residual_mix"};
    int i = 0;
    while (i < FL_FUSED_NOT && strcmp(op, names[i]) != 0)
        i++;
    return (fl_fused_kind)i;
}

/* Elements of a row that a call looks at together; 0: no call for this. */
static int64_t granule(const char *op, const fl_type *in, const fl_type *out)
{
    switch (fl_fused_kind_of(op)) {
    case FL_FUSED_EXPR:
    case FL_FUSED_CONV:
        return 1;
    case FL_FUSED_RMS:
    case FL_FUSED_L2:
        return in->ndim ? in->dim[in->ndim - 1] : 1;
    case FL_FUSED_MIX:
        return fl_type_width(out);
    default:
        return 0;
    }
}

static bool held(int64_t g)
{
    return g > 0 && (g + fl_row_threads(g) - 1) / fl_row_threads(g) <= MOST_HELD;
}

bool fl_fused_joins(const fl_node_view *members, int n, const fl_node_view *node, uint64_t inside)
{
    if (node->n_out != 1 || n >= FL_FUSED_CALLS || fl_fused_kind_of(node->op->name) == FL_FUSED_NOT)
        return false;
    const fl_type *out = &node->out[0];
    int64_t width = fl_type_width(out), own = granule(node->op->name, node->in[0], out);
    int args = 0;
    if (!held(own) || out->rows == FL_ROWS_CONST || width < 1 || width > WIDEST)
        return false;
    for (int k = 0; k < node->n_in; k++) {
        bool here = inside >> k & 1;
        args += node->in[k] != NULL;
        if (here && (fl_fused_kind_of(node->op->name) == FL_FUSED_CONV ||
                     fl_type_width(node->in[k]) != width))
            return false;
        if (node->in[k] && node->in[k]->rows != FL_ROWS_STATE && node->in[k]->dtype != FL_F32)
            return false;
    }
    for (int i = 0; i < n; i++) {
        int64_t g = granule(members[i].op->name, members[i].in[0], &members[i].out[0]);
        if (g > 1 && own > 1 && g != own && fl_type_width(&members[i].out[0]) == width)
            return false; /* of one chain, perhaps */
        own = own > 1 || fl_type_width(&members[i].out[0]) != width ? own : g;
        args += members[i].n_in + 1;
    }
    return args < GPU_FUSED_ARGS;
}

/* ---- laying out ---- */

int fl_fused_maker(const fl_fused *f, int before, const fl_arg *a)
{
    for (int i = before - 1; i >= 0 && a->data; i--) {
        if (f->call[i]->out[0].data == a->data)
            return i;
    }
    return -1;
}

static bool is_same(const fl_arg *a, const fl_arg *b)
{
    bool constant = a->type.rows == FL_ROWS_CONST;
    return a->data == b->data && constant == (b->type.rows == FL_ROWS_CONST) &&
           (constant || a->stride == b->stride);
}

int fl_fused_place(const fl_fused *f, const fl_arg *a)
{
    int i = 0;
    while (i < f->n_args && !is_same(f->arg[i], a))
        i++;
    return i;
}

static bool add_arg(fl_fused *f, const fl_arg *a)
{
    if (fl_fused_place(f, a) < f->n_args)
        return true;
    if (f->n_args == GPU_FUSED_ARGS)
        return false;
    f->arg[f->n_args++] = a;
    return true;
}

static bool add_state(fl_fused *f, int32_t pool)
{
    if (f->n_states == GPU_FUSED_STATES)
        return false;
    f->state[f->n_states++] = pool;
    return true;
}

/* Puts call i into the chain of what it reads, or into one of its own; two that it reads become
 * one. */
static bool add_call(fl_fused *f, int i)
{
    const fl_call *c = f->call[i];
    bool fits = true;
    f->chain_of[i] = i;
    for (int k = 0; k < c->n_in; k++) {
        if (c->in[k].type.rows == FL_ROWS_STATE) {
            fits = fits && add_state(f, c->in[k].type.state);
            continue;
        }
        if (!c->in[k].data)
            continue;
        int m = fl_fused_maker(f, i, &c->in[k]);
        if (m < 0) {
            fits = fits && add_arg(f, &c->in[k]);
            continue;
        }
        int old = f->chain_of[m];
        for (int o = 0; o < i && old != i; o++)
            f->chain_of[o] = f->chain_of[o] == old ? i : f->chain_of[o];
    }
    return fits && add_arg(f, &c->out[0]);
}

/* Numbers the chains from 0 on, in the order of their first calls. */
static void number(fl_fused *f)
{
    int known[FL_FUSED_CALLS];
    for (int i = 0; i < f->n_calls; i++) {
        int n = 0;
        while (n < f->n_chains && known[n] != f->chain_of[i])
            n++;
        if (n == f->n_chains)
            known[f->n_chains++] = f->chain_of[i];
        f->chain_of[i] = n;
    }
}

static bool measure(fl_fused *f)
{
    for (int i = 0; i < f->n_calls; i++) {
        const fl_call *c = f->call[i];
        fl_fused_chain *chain = &f->chain[f->chain_of[i]];
        int64_t width = fl_type_width(&c->out[0].type);
        int64_t g = granule(c->kernel->op, &c->in[0].type, &c->out[0].type);
        if ((chain->width && chain->width != width) ||
            (chain->span > 1 && g > 1 && chain->span != g))
            return false;
        chain->width = width;
        chain->span = g > chain->span ? g : chain->span;
    }
    f->threads = BLOCK;
    for (int n = 0; n < f->n_chains; n++) {
        fl_fused_chain *chain = &f->chain[n];
        chain->span = chain->span > 1 ? chain->span : PLAIN_SPAN;
        chain->threads = fl_row_threads(chain->span);
        chain->teams = (chain->width + chain->span - 1) / chain->span;
        f->threads = chain->threads > f->threads ? chain->threads : f->threads;
    }
    for (int n = 0; n < f->n_chains; n++) {
        fl_fused_chain *chain = &f->chain[n];
        int64_t side_by_side = f->threads / chain->threads;
        chain->blocks = (unsigned)((chain->teams + side_by_side - 1) / side_by_side);
        f->blocks += chain->blocks;
    }
    return f->blocks <= 65535;
}

bool fl_fused_lay(const fl_joint *j, fl_fused *out)
{
    *out = (fl_fused){.n_calls = j->n, .call = j->calls};
    if (j->n > FL_FUSED_CALLS ||
        (j->n == 1 && fl_fused_kind_of(j->calls[0]->kernel->op) != FL_FUSED_EXPR))
        return false;
    for (int i = 0; i < j->n; i++) {
        if (!add_call(out, i))
            return false;
    }
    number(out);
    return measure(out);
}
