/* Which tokens a configuration takes.
 *
 * The tokens that fit a stack are found by walking the trie.  What its top frame does with them
 * depends on that frame alone until it is left; so a walk of the frame by itself gives the tokens
 * that stay inside, and the places of the trie where the frame is left, from which the walk goes on
 * with the frame's parent.  Inside a string nearly the whole vocabulary fits and a walk is long,
 * but frames of one node with alike counters share its result, whatever lies beneath them. */
#include "engine/matcher_internal.h"

enum { WAYS = 256, LONG_WALK = 2000 };

/* The result of a long walk of one frame. */
typedef struct mask {
    int32_t node, count_left, count_missing, depth; /* the key; node 0: none */
    uint32_t *bits;
    fl_text_hit *exits;
    size_t n_exits;
} mask;

struct fl_mask_cache {
    mask masks[WAYS];
};

static void free_mask(mask *k)
{
    fl_free(k->bits);
    fl_free(k->exits);
    *k = (mask){0};
}

void fl_mask_cache_free(struct fl_mask_cache *c)
{
    for (int i = 0; c && i < WAYS; i++)
        free_mask(&c->masks[i]);
    fl_free(c);
}

static void set_bit(uint32_t *allowed, int32_t id)
{
    allowed[id / 32] |= 1u << id % 32;
}

/* The lowest counter of the stacks from `begin` on. */
static int32_t lowest(const fl_run *r, size_t begin)
{
    int32_t count = INT32_MAX;
    for (size_t i = begin; i < r->stacks.n; i++) {
        int32_t c = r->frames.data[r->stacks.data[i]].count;
        count = c < count ? c : count;
    }
    return count;
}

int32_t fl_mask_walk(fl_matcher *m, fl_run *r, int32_t root, size_t begin, size_t end, bool local)
{
    const fl_token_trie *t = m->g->trie;
    int32_t looked = 0, i = root + 1;
    m->levels[0] = (fl_level){begin, end, r->frames.n};
    while (i < t->skip[root] && r->status == FL_OK) {
        int d = t->depth[i] - t->depth[root];
        const fl_level *from = &m->levels[d - 1];
        looked++;
        r->stacks.n = from->end;
        r->frames.n = from->frames;
        fl_run_byte(r, from->begin, from->end, t->byte[i]);
        m->levels[d] = (fl_level){from->end, r->stacks.n, r->frames.n};
        bool goes_on = r->stacks.n > from->end, ok = true;
        if (t->token[i] != FL_NO_TOKEN && (goes_on || (r->exited && !local)))
            ok = fl_vec_push(&m->hits, ((fl_text_hit){t->token[i], lowest(r, from->end)}));
        if (local && r->exited)
            ok &= fl_vec_push(&m->exits, ((fl_text_hit){i, r->exit_count}));
        if (!ok)
            r->status = FL_NOMEM;
        i = goes_on ? i + 1 : t->skip[i];
    }
    r->stacks.n = end;
    r->frames.n = m->levels[0].frames;
    return looked;
}

int32_t fl_mask_walk_frame(fl_matcher *m, fl_run *r, fl_frame alone)
{
    size_t begin = r->stacks.n, frames = r->frames.n;
    m->hits.n = m->exits.n = 0;
    if (!fl_vec_push(&r->frames, alone) || !fl_vec_push(&r->stacks, (int32_t)r->frames.n - 1)) {
        r->status = FL_NOMEM;
        return 0;
    }
    int32_t looked = fl_mask_walk(m, r, 0, begin, begin + 1, true);
    r->stacks.n = begin;
    r->frames.n = frames;
    return looked;
}

static int32_t at_most(int32_t x, int32_t limit)
{
    return x < limit ? x : limit;
}

/* What a walk of the frame depends on.  Counts further from a bound than the longest token is long
 * are alike; the depth matters where rules are called. */
static mask key_of(const fl_grammar *g, const fl_frame *f)
{
    const fl_rule *rule = &g->rules.data[g->nodes.data[f->node].rule];
    int32_t far = g->trie->longest + 1;
    mask k = {.node = f->node, .count_left = far, .depth = rule->calls ? f->depth : 0};
    if (rule->live) {
        k.count_left = f->count;
        return k;
    }
    if (rule->max >= 0)
        k.count_left = at_most(rule->max - f->count, far);
    k.count_missing = f->count < rule->min ? at_most(rule->min - f->count, far) : 0;
    return k;
}

static mask *slot_of(fl_grammar *g, const mask *k)
{
    if (!g->cache)
        g->cache = fl_calloc(1, sizeof *g->cache);
    uint32_t h = (uint32_t)k->node * 0x9e3779b1u + (uint32_t)k->count_left * 0x85ebca6bu +
                 (uint32_t)k->count_missing * 0xc2b2ae35u + (uint32_t)k->depth * 0x27d4eb2fu;
    return g->cache ? &g->cache->masks[(h >> 16) % WAYS] : NULL;
}

static bool same_key(const mask *a, const mask *b)
{
    return a->node == b->node && a->count_left == b->count_left &&
           a->count_missing == b->count_missing && a->depth == b->depth;
}

/* Keeps the hits and exits of a walk.  Without memory it is not kept. */
static void keep(fl_matcher *m, mask *slot, mask k)
{
    size_t words = (size_t)(m->g->trie->vocab + 31) / 32;
    free_mask(slot);
    k.bits = fl_calloc(words, sizeof *k.bits);
    k.exits = fl_realloc_array(NULL, m->exits.n + 1, sizeof *k.exits);
    if (!k.bits || !k.exits) {
        free_mask(&k);
        return;
    }
    for (size_t i = 0; i < m->hits.n; i++)
        set_bit(k.bits, m->hits.data[i].what);
    k.n_exits = m->exits.n;
    if (m->exits.n)
        memcpy(k.exits, m->exits.data, m->exits.n * sizeof *k.exits);
    *slot = k;
}

static void add_hits(const fl_matcher *m, uint32_t *allowed)
{
    for (size_t i = 0; i < m->hits.n; i++)
        set_bit(allowed, m->hits.data[i].what);
}

/* Where a frame is left: tokens that end there fit, and the walk goes on with the frame it returns
 * to. */
static void go_on(fl_matcher *m, fl_run *r, const fl_frame *f, const fl_text_hit *exits, size_t n,
                  uint32_t *allowed)
{
    const fl_token_trie *t = m->g->trie;
    size_t begin = r->stacks.n, frames = r->frames.n;
    for (size_t i = 0; i < n; i++) {
        if (t->token[exits[i].what] != FL_NO_TOKEN)
            set_bit(allowed, t->token[exits[i].what]);
    }
    if (f->parent < 0 || n == 0)
        return;
    fl_run_settle(r, r->frames.data[f->parent], begin);
    size_t end = r->stacks.n;
    m->hits.n = 0;
    for (size_t i = 0; i < n && end > begin && r->status == FL_OK; i++)
        fl_mask_walk(m, r, exits[i].what, begin, end, false);
    add_hits(m, allowed);
    r->stacks.n = begin;
    r->frames.n = frames;
}

/* Whether the frame returns to where bytes may follow. */
static bool returns_to_bytes(fl_run *r, const fl_frame *f)
{
    size_t begin = r->stacks.n, frames = r->frames.n;
    bool bytes = false;
    if (f->parent < 0)
        return false;
    fl_run_settle(r, r->frames.data[f->parent], begin);
    for (size_t i = begin; i < r->stacks.n; i++) {
        const fl_node *n = &r->g->nodes.data[r->frames.data[r->stacks.data[i]].node];
        for (int32_t k = 0; k < n->n; k++)
            bytes |= r->g->edges.data[n->first + k].kind == FL_EDGE_BYTES;
    }
    r->stacks.n = begin;
    r->frames.n = frames;
    return bytes;
}

static void add_bits(const fl_matcher *m, const uint32_t *bits, uint32_t *allowed)
{
    for (int64_t i = 0; i < (m->g->trie->vocab + 31) / 32; i++)
        allowed[i] |= bits[i];
}

/* In free text every token fits. */
static bool is_free(const fl_grammar *g, const fl_frame *f)
{
    const fl_node *n = &g->nodes.data[f->node];
    for (int32_t k = 0; k < n->n; k++) {
        const fl_edge *e = &g->edges.data[n->first + k];
        if (e->kind == FL_EDGE_BYTES && e->low == 0 && e->high == 255 && e->to == f->node)
            return true;
    }
    return false;
}

static void add_bytes(fl_matcher *m, fl_run *r, fl_frame f, uint32_t *allowed)
{
    fl_shape shape = m->g->rules.data[m->g->nodes.data[f.node].rule].shape;
    if (is_free(m->g, &f)) {
        add_bits(m, m->g->trie->all, allowed);
        return;
    }
    if (shape != FL_SHAPE_NONE) {
        /* A raw string may be left behind every character; those tokens stay inside as well. */
        bool exits = shape == FL_SHAPE_QUOTED || returns_to_bytes(r, &f);
        fl_text_walk_fill(m, r, &f, exits, allowed);
        go_on(m, r, &f, m->exits.data, m->exits.n, allowed);
        return;
    }
    mask key = key_of(m->g, &f), *slot = slot_of(m->g, &key);
    if (slot && same_key(slot, &key)) {
        add_bits(m, slot->bits, allowed);
        go_on(m, r, &f, slot->exits, slot->n_exits, allowed);
        return;
    }
    fl_frame alone = f;
    alone.parent = -1;
    int32_t looked = fl_mask_walk_frame(m, r, alone);
    add_hits(m, allowed);
    if (looked > LONG_WALK && slot && r->status == FL_OK)
        keep(m, slot, key);
    go_on(m, r, &f, m->exits.data, m->exits.n, allowed);
}

void fl_mask_fill(fl_matcher *m, fl_choice_state *c, uint32_t *allowed)
{
    fl_run *r = &c->run;
    size_t n = r->stacks.n;
    for (size_t i = 0; i < n && r->status == FL_OK; i++) {
        fl_frame f = r->frames.data[r->stacks.data[i]];
        const fl_node *node = &r->g->nodes.data[f.node];
        bool bytes = false;
        for (int32_t k = 0; k < node->n; k++) {
            const fl_edge *e = &r->g->edges.data[node->first + k];
            int32_t count;
            bytes |= e->kind == FL_EDGE_BYTES;
            if (e->kind == FL_EDGE_MARK && fl_run_may(r, &f, e, &count) &&
                fl_run_may_enter(r, e->to, count, f.depth))
                set_bit(allowed, e->arg);
        }
        if (bytes)
            add_bytes(m, r, f, allowed);
    }
}
