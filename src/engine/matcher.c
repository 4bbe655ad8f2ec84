/* Following answers through a grammar. */
#include "engine/matcher_internal.h"

enum { MAX_STACKS = 1024, MAX_STACKS_HELD = 512, MAX_TODO = 8192, MAX_WORK = 100000000 };

void fl_run_free(fl_run *r)
{
    fl_vec_free(&r->frames);
    fl_vec_free(&r->stacks);
    fl_vec_free(&r->todo);
}

static void fail(fl_run *r, fl_status s)
{
    if (r->status == FL_OK)
        r->status = s;
}

bool fl_run_may_enter(const fl_run *r, int32_t node, int32_t count, int32_t depth)
{
    const fl_node *n = &r->g->nodes.data[node];
    const fl_rule *rule = &r->g->rules.data[n->rule];
    if (depth + n->need > FL_MAX_FRAMES)
        return false;
    if (!rule->live)
        return true;
    size_t bit = (size_t)(node - rule->first) * (size_t)(fl_rule_top(rule) + 1) + (size_t)count;
    return rule->live[bit / 8] >> (bit % 8) & 1;
}

bool fl_run_may(const fl_run *r, const fl_frame *f, const fl_edge *e, int32_t *count)
{
    *count = f->count;
    if (!e->flags)
        return true;
    const fl_rule *rule = &r->g->rules.data[r->g->nodes.data[f->node].rule];
    if (r->free) {
        *count += (e->flags & FL_TICK) != 0;
        return true;
    }
    if (e->flags & FL_TICK) {
        if (rule->max >= 0 && f->count >= rule->max)
            return false;
        if (f->count < fl_rule_top(rule))
            ++*count;
    }
    return !(e->flags & FL_ENOUGH) || f->count >= rule->min;
}

static bool same(const fl_frame *a, const fl_frame *b)
{
    return a->node == b->node && a->count == b->count && a->parent == b->parent;
}

/* The index of a frame to return to, made now unless the last few hold it. */
static int32_t parent_of(fl_run *r, fl_frame f)
{
    enum { LOOK_BACK = 16 };
    for (size_t i = r->frames.n; i > 0 && r->frames.n - i < LOOK_BACK; i--) {
        if (same(&r->frames.data[i - 1], &f))
            return (int32_t)i - 1;
    }
    if (!fl_vec_push(&r->frames, f))
        return fail(r, FL_NOMEM), -1;
    return (int32_t)r->frames.n - 1;
}

static void later(fl_run *r, fl_frame f)
{
    if (r->todo.n >= MAX_TODO)
        fail(r, FL_ARGUMENT);
    else if (!fl_vec_push(&r->todo, f))
        fail(r, FL_NOMEM);
}

static void add_stack(fl_run *r, fl_frame f, size_t set)
{
    for (size_t i = set; i < r->stacks.n; i++) {
        if (same(&r->frames.data[r->stacks.data[i]], &f))
            return;
    }
    if (r->stacks.n - set >= MAX_STACKS)
        fail(r, FL_ARGUMENT);
    else if (!fl_vec_push(&r->frames, f) || !fl_vec_push(&r->stacks, (int32_t)r->frames.n - 1))
        fail(r, FL_NOMEM);
}

/* Takes the moves of one frame that take nothing; whether it has others. */
static bool move_on(fl_run *r, fl_frame f)
{
    const fl_node *n = &r->g->nodes.data[f.node];
    const fl_rule *rule = &r->g->rules.data[n->rule];
    bool takes = false;
    for (int32_t i = 0; i < n->n; i++) {
        const fl_edge *e = &r->g->edges.data[n->first + i];
        fl_frame next = f;
        if (e->kind == FL_EDGE_BYTES || e->kind == FL_EDGE_MARK) {
            takes = true;
            continue;
        }
        if (!fl_run_may(r, &f, e, &next.count))
            continue;
        next.node = e->to;
        if (e->kind == FL_EDGE_JUMP) {
            later(r, next);
            continue;
        }
        fl_frame inner = {
            .node = r->g->rules.data[e->arg].start, .parent = f.parent, .depth = f.depth};
        if (e->to != rule->end) { /* else nothing would be left to do here: its parent is ours */
            if (!fl_run_may_enter(r, next.node, next.count, next.depth) ||
                !fl_run_may_enter(r, inner.node, 0, f.depth + 1))
                continue;
            inner.parent = parent_of(r, next);
            inner.depth++;
        }
        later(r, inner);
    }
    return takes;
}

void fl_run_settle(fl_run *r, fl_frame f, size_t set)
{
    if (r->g->nodes.data[f.node].takes) { /* by far the most: a byte inside a text */
        r->work++;
        if (fl_run_may_enter(r, f.node, f.count, f.depth))
            add_stack(r, f, set);
        return;
    }
    r->todo.n = 0;
    later(r, f);
    while (r->todo.n > 0 && r->status == FL_OK) {
        fl_frame at = r->todo.data[--r->todo.n];
        if (++r->work > MAX_WORK)
            fail(r, FL_ARGUMENT);
        if (!fl_run_may_enter(r, at.node, at.count, at.depth))
            continue;
        if (at.node != r->g->rules.data[r->g->nodes.data[at.node].rule].end) {
            if (move_on(r, at))
                add_stack(r, at, set);
        } else if (at.parent < 0) {
            r->exited = true;
            r->exit_count = at.count;
        } else {
            later(r, r->frames.data[at.parent]);
        }
    }
}

static void take(fl_run *r, size_t begin, size_t end, fl_edge_kind kind, int32_t what)
{
    r->exited = false;
    for (size_t i = begin; i < end; i++) {
        fl_frame f = r->frames.data[r->stacks.data[i]];
        const fl_node *n = &r->g->nodes.data[f.node];
        for (int32_t k = 0; k < n->n; k++) {
            const fl_edge *e = &r->g->edges.data[n->first + k];
            fl_frame next = f;
            bool fits = kind == FL_EDGE_BYTES ? what >= e->low && what <= e->high : what == e->arg;
            if (e->kind != kind || !fits || !fl_run_may(r, &f, e, &next.count))
                continue;
            next.node = e->to;
            fl_run_settle(r, next, end);
        }
    }
}

void fl_run_byte(fl_run *r, size_t begin, size_t end, uint8_t byte)
{
    take(r, begin, end, FL_EDGE_BYTES, byte);
}

void fl_run_mark(fl_run *r, size_t begin, size_t end, int32_t token)
{
    take(r, begin, end, FL_EDGE_MARK, token);
}

/* ---- one answer ---- */

static fl_status no_memory(fl_error *err)
{
    return fl_fail(err, FL_NOMEM, "no memory to follow an answer");
}

static uint32_t hash_frame(const fl_frame *f)
{
    uint32_t h = (uint32_t)f->node * 0x9e3779b1u;
    h = (h ^ (uint32_t)f->count) * 0x85ebca6bu;
    h = (h ^ (uint32_t)f->parent) * 0xc2b2ae35u;
    return h ^ h >> 15;
}

/* Puts the frames that the stacks [begin, n) reach to the front of the run, equal ones once, and
 * drops the rest.  Parents stand before their children, so one pass each way does it. */
static fl_status compact(fl_matcher *m, fl_run *r, size_t begin, fl_error *err)
{
    size_t n = r->frames.n, kept = 0, cap = 16;
    m->map.n = m->slots.n = 0;
    if (!fl_vec_reserve(&m->map, n))
        return no_memory(err);
    memset(m->map.data, 0, n * sizeof *m->map.data);
    for (size_t i = begin; i < r->stacks.n; i++)
        m->map.data[r->stacks.data[i]] = 1;
    for (size_t i = n; i-- > 0;) {
        if (m->map.data[i] && r->frames.data[i].parent >= 0)
            m->map.data[r->frames.data[i].parent] = 1;
        kept += m->map.data[i] != 0;
    }
    while (cap < 2 * kept)
        cap *= 2;
    if (!fl_vec_reserve(&m->slots, cap))
        return no_memory(err);
    memset(m->slots.data, 0, cap * sizeof *m->slots.data);
    kept = 0;
    for (size_t i = 0; i < n; i++) {
        if (!m->map.data[i])
            continue;
        fl_frame f = r->frames.data[i];
        f.parent = f.parent < 0 ? -1 : m->map.data[f.parent];
        size_t slot = hash_frame(&f) & (cap - 1);
        while (m->slots.data[slot] && !same(&r->frames.data[m->slots.data[slot] - 1], &f))
            slot = (slot + 1) & (cap - 1);
        if (!m->slots.data[slot]) {
            r->frames.data[kept++] = f;
            m->slots.data[slot] = (int32_t)kept;
        }
        m->map.data[i] = m->slots.data[slot] - 1;
    }
    r->frames.n = kept;
    size_t stacks = 0;
    memset(m->slots.data, 0, cap * sizeof *m->slots.data); /* now: the frame is a stack */
    for (size_t i = begin; i < r->stacks.n; i++) {
        int32_t at = m->map.data[r->stacks.data[i]];
        if (!m->slots.data[at])
            r->stacks.data[stacks++] = at;
        m->slots.data[at] = 1;
    }
    r->stacks.n = stacks;
    return FL_OK;
}

static fl_status check(const fl_run *r, fl_error *err)
{
    if (r->status == FL_NOMEM)
        return no_memory(err);
    if (r->status != FL_OK || r->stacks.n > MAX_STACKS_HELD)
        return fl_fail(err, FL_ARGUMENT,
                       "the schema has too many alternatives that begin alike to be followed");
    return FL_OK;
}

static fl_status begin(fl_choice_state *c, fl_error *err)
{
    fl_run *r = &c->run;
    r->frames.n = r->stacks.n = 0;
    r->exited = false;
    r->status = FL_OK;
    r->work = 0;
    fl_run_settle(r, (fl_frame){.node = r->g->rules.data[r->g->root].start, .parent = -1}, 0);
    c->complete = r->exited;
    c->begun = true;
    c->n = 0;
    return check(r, err);
}

static fl_status advance(fl_matcher *m, fl_choice_state *c, int32_t id, fl_error *err)
{
    fl_run *r = &c->run;
    const fl_tokenizer *t = m->g->trie->tokenizer;
    size_t from = 0, to = r->stacks.n;
    fl_bytes text = fl_tokenizer_bytes(t, id);
    r->work = 0;
    r->exited = false;
    if (fl_tokenizer_is_special(t, id)) {
        fl_run_mark(r, from, to, id);
        from = to;
    } else {
        for (size_t i = 0; i < text.len; i++, from = to, to = r->stacks.n)
            fl_run_byte(r, from, to, (uint8_t)text.data[i]);
    }
    c->complete = r->exited;
    if (r->status == FL_OK)
        FL_TRY(compact(m, r, from, err));
    FL_TRY(check(r, err));
    if (r->stacks.n == 0 && !c->complete)
        return fl_fail(err, FL_ARGUMENT, "token %d does not fit the form of the answer", id);
    c->n++;
    return FL_OK;
}

/* ---- the interface ---- */

fl_status fl_matcher_create(fl_grammar *g, int choices, const int32_t *stop_ids, size_t n_stop,
                            fl_matcher **out, fl_error *err)
{
    *out = NULL;
    if (choices < 1 || choices > 1 << 16)
        return fl_fail(err, FL_ARGUMENT, "%d answers", choices);
    for (size_t i = 0; i < n_stop; i++) {
        if (stop_ids[i] < 0 || stop_ids[i] >= g->trie->vocab)
            return fl_fail(err, FL_ARGUMENT, "stop token %d is outside the vocabulary",
                           stop_ids[i]);
    }
    fl_matcher *m = fl_calloc(1, sizeof *m + (size_t)choices * sizeof m->choices[0]);
    if (!m)
        return no_memory(err);
    m->g = fl_grammar_hold(g);
    m->n_choices = choices;
    for (int i = 0; i < choices; i++)
        m->choices[i].run.g = g;
    m->stop_ids = fl_realloc_array(NULL, n_stop + 1, sizeof *m->stop_ids);
    m->levels = fl_realloc_array(NULL, (size_t)g->trie->longest + 1, sizeof *m->levels);
    if (!m->stop_ids || !m->levels) {
        fl_matcher_destroy(m);
        return no_memory(err);
    }
    if (n_stop)
        memcpy(m->stop_ids, stop_ids, n_stop * sizeof *stop_ids);
    m->n_stop = n_stop;
    *out = m;
    return FL_OK;
}

void fl_matcher_destroy(fl_matcher *m)
{
    if (!m)
        return;
    for (int i = 0; i < m->n_choices; i++)
        fl_run_free(&m->choices[i].run);
    fl_free(m->stop_ids);
    fl_free(m->levels);
    fl_vec_free(&m->map);
    fl_vec_free(&m->slots);
    fl_vec_free(&m->hits);
    fl_vec_free(&m->exits);
    fl_grammar_release(m->g);
    fl_free(m);
}

static fl_status fill(fl_matcher *m, fl_choice_state *c, const int32_t *answer, int64_t n,
                      uint32_t *allowed, fl_error *err)
{
    if (!c->begun || n < c->n)
        FL_TRY(begin(c, err));
    while (c->n < n)
        FL_TRY(advance(m, c, answer[c->n], err));
    c->run.work = 0;
    memset(allowed, 0, (size_t)((m->g->trie->vocab + 31) / 32) * sizeof *allowed);
    fl_mask_fill(m, c, allowed);
    FL_TRY(check(&c->run, err));
    for (size_t i = 0; c->complete && i < m->n_stop; i++)
        allowed[m->stop_ids[i] / 32] |= 1u << m->stop_ids[i] % 32;
    return FL_OK;
}

fl_status fl_matcher_mask(void *ctx, int choice, const int32_t *answer, int64_t n,
                          uint32_t *allowed, fl_error *err)
{
    fl_matcher *m = ctx;
    fl_choice_state *c = &m->choices[choice];
    fl_status s = fill(m, c, answer, n, allowed, err);
    c->begun = s == FL_OK; /* a failure leaves nothing to go on from */
    return s;
}
