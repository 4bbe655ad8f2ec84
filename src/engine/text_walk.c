/* Walks of strings, kept with the trie.
 *
 * In a string nearly every token fits, so the walk of the whole vocabulary is the longest there is,
 * and every schema has strings, of ever other lengths.  But what a string without a pattern does
 * with a token depends on its bounds only through the number of characters that the token adds.  So
 * it is walked once, without bounds, and the counts are kept with the tokens: a mask is then the
 * tokens of few enough characters, for any schema and any bound. */
#include "engine/matcher_internal.h"

enum { SHAPES = 3 };

typedef struct text_walk {
    bool done;
    int32_t most;      /* the highest count of the tokens */
    fl_text_hit *hits; /* tokens that stay inside, by rising count */
    size_t n_hits;
    uint32_t *bits; /* all of them */
    fl_text_hit *exits;
    size_t n_exits;
} text_walk;

struct fl_text_walks {
    text_walk walks[SHAPES][FL_SHAPE_NODES];
};

struct fl_text_walks *fl_text_walks_create(void)
{
    return fl_calloc(1, sizeof(struct fl_text_walks));
}

void fl_text_walks_free(struct fl_text_walks *w)
{
    for (int s = 0; w && s < SHAPES; s++) {
        for (int i = 0; i < FL_SHAPE_NODES; i++) {
            fl_free(w->walks[s][i].hits);
            fl_free(w->walks[s][i].bits);
            fl_free(w->walks[s][i].exits);
        }
    }
    fl_free(w);
}

/* Puts the hits of the matcher in order of their counts. */
static bool sort_hits(fl_matcher *m, text_walk *w)
{
    size_t n = m->hits.n, words = (size_t)(m->g->trie->vocab + 31) / 32;
    size_t *place = fl_calloc((size_t)m->g->trie->longest + 2, sizeof *place);
    w->hits = fl_realloc_array(NULL, n + 1, sizeof *w->hits);
    w->bits = fl_calloc(words, sizeof *w->bits);
    w->exits = fl_realloc_array(NULL, m->exits.n + 1, sizeof *w->exits);
    bool ok = place && w->hits && w->bits && w->exits;
    for (size_t i = 0; ok && i < n; i++)
        place[m->hits.data[i].count + 1]++;
    for (int c = 0; ok && c <= m->g->trie->longest; c++)
        place[c + 1] += place[c];
    for (size_t i = 0; ok && i < n; i++) {
        fl_text_hit h = m->hits.data[i];
        w->hits[place[h.count]++] = h;
        w->bits[h.what / 32] |= 1u << h.what % 32;
        w->most = h.count > w->most ? h.count : w->most;
    }
    if (ok && m->exits.n)
        memcpy(w->exits, m->exits.data, m->exits.n * sizeof *w->exits);
    w->n_hits = n;
    w->n_exits = m->exits.n;
    fl_free(place);
    return ok;
}

static bool make(fl_matcher *m, fl_run *r, int32_t node, text_walk *w)
{
    r->free = true;
    fl_mask_walk_frame(m, r, (fl_frame){.node = node, .parent = -1});
    r->free = false;
    if (r->status == FL_OK && sort_hits(m, w)) {
        w->done = true;
        return true;
    }
    fl_free(w->hits);
    fl_free(w->bits);
    fl_free(w->exits);
    *w = (text_walk){0};
    if (r->status == FL_OK)
        r->status = FL_NOMEM;
    return false;
}

void fl_text_walk_fill(fl_matcher *m, fl_run *r, const fl_frame *f, bool exits, uint32_t *allowed)
{
    const fl_rule *rule = &m->g->rules.data[m->g->nodes.data[f->node].rule];
    text_walk *w = &m->g->trie->walks->walks[rule->shape][f->node - rule->first];
    int32_t left = rule->max < 0 ? INT32_MAX : rule->max - f->count;
    int32_t missing = rule->min > f->count ? rule->min - f->count : 0;
    if (!w->done && !make(m, r, f->node, w))
        return;
    if (left >= w->most) {
        for (int64_t i = 0; i < (m->g->trie->vocab + 31) / 32; i++)
            allowed[i] |= w->bits[i];
    }
    for (size_t i = 0; left < w->most && i < w->n_hits && w->hits[i].count <= left; i++)
        allowed[w->hits[i].what / 32] |= 1u << w->hits[i].what % 32;
    m->exits.n = 0;
    for (size_t i = 0; exits && i < w->n_exits; i++) {
        if (w->exits[i].count <= left && w->exits[i].count >= missing &&
            !fl_vec_push(&m->exits, w->exits[i]))
            r->status = FL_NOMEM;
    }
}
