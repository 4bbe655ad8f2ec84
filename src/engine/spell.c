/* How strings are written: from an automaton over characters to nodes over bytes.
 *
 * In JSON every string has exactly one spelling here: characters stand for themselves in UTF-8, and
 * only those that must be escaped are, in the shortest way.  So two strings are equal when their
 * bytes are, which enumerations, property names and patterns rely on. */
#include "engine/grammar_internal.h"

typedef struct speller {
    fl_grammar *g;
    int32_t rule;
    bool json, counted;
    int32_t first; /* state s is node first + s */
    int32_t
        *more[3]; /* [states] nodes that take 1, 2, 3 further bytes of a character; 0: none yet */
} speller;

static int tick(const speller *sp)
{
    return sp->counted ? FL_TICK : 0;
}

static int encode(uint32_t c, uint8_t out[4])
{
    if (c < 0x80) {
        out[0] = (uint8_t)c;
        return 1;
    }
    int n = c < 0x800 ? 2 : c < 0x10000 ? 3 : 4;
    for (int i = n - 1; i > 0; i--, c >>= 6)
        out[i] = (uint8_t)(0x80 | (c & 0x3f));
    out[0] = (uint8_t)((n == 2 ? 0xc0 : n == 3 ? 0xe0 : 0xf0) | c);
    return n;
}

/* The node from which n bytes 80 .. bf lead to state `to`. */
static int32_t continuation(speller *sp, int n, int32_t to)
{
    if (n == 0)
        return sp->first + to;
    int32_t *node = &sp->more[n - 1][to];
    if (*node == 0) {
        *node = fl_grammar_node(sp->g, sp->rule);
        fl_grammar_bytes(sp->g, *node, 0x80, 0xbf, 0, continuation(sp, n - 1, to));
    }
    return *node;
}

/* Characters low .. high whose encodings differ in every byte's range independently. */
static void add_block(speller *sp, int32_t from, const uint8_t *low, const uint8_t *high, int n,
                      int32_t to)
{
    int flags = tick(sp);
    for (int i = 0; i < n; i++, flags = 0) {
        bool plain = true;
        for (int k = i + 1; k < n; k++)
            plain &= low[k] == 0x80 && high[k] == 0xbf;
        int32_t next = plain ? continuation(sp, n - i - 1, to) : fl_grammar_node(sp->g, sp->rule);
        fl_grammar_bytes(sp->g, from, low[i], high[i], flags, next);
        if (plain)
            return;
        from = next;
    }
}

static void add_chars(speller *sp, int32_t from, uint32_t low, uint32_t high, int32_t to)
{
    static const uint32_t last[] = {0x7f, 0x7ff, 0xffff, FL_CHAR_LAST};
    while (low <= high) {
        uint32_t end = high;
        for (int i = 0; i < 4; i++) {
            if (low <= last[i] && end > last[i])
                end = last[i];
        }
        /* Shrink to a block: below the first byte that differs all must be 80 .. bf. */
        uint8_t a[4], b[4];
        for (int bits = 6; low >= 0x80 && bits <= 18; bits += 6) {
            uint32_t mask = (1u << bits) - 1;
            if ((low & ~mask) == (end & ~mask))
                break;
            if (low & mask)
                end = low | mask;
            else if ((end & mask) != mask)
                end = (end & ~mask) - 1;
        }
        int n = encode(low, a);
        encode(end, b);
        add_block(sp, from, a, b, n, to);
        low = end + 1;
    }
}

/* ---- JSON escapes ---- */

static const char *short_escape(uint32_t c)
{
    switch (c) {
    case '"':
        return "\"";
    case '\\':
        return "\\";
    case '\b':
        return "b";
    case '\t':
        return "t";
    case '\n':
        return "n";
    case '\f':
        return "f";
    case '\r':
        return "r";
    default:
        return NULL;
    }
}

/* The nodes behind the backslash of one state: made when they are needed. */
typedef struct escapes {
    int32_t slash, u, high[2]; /* behind "\", "\u00", "\u000" and "\u001" */
} escapes;

static void add_escape(speller *sp, int32_t from, uint32_t c, int32_t to, escapes *e)
{
    static const char digits[] = "0123456789abcdef";
    const char *name = short_escape(c);
    if (e->slash == 0)
        e->slash = fl_grammar_byte(sp->g, from, '\\', tick(sp));
    if (name) {
        fl_grammar_bytes(sp->g, e->slash, name[0], name[0], 0, sp->first + to);
        return;
    }
    if (e->u == 0)
        e->u = fl_grammar_text(sp->g, e->slash, "u00", 3);
    int32_t *high = &e->high[c >> 4];
    if (*high == 0)
        *high = fl_grammar_byte(sp->g, e->u, '0' + (int)(c >> 4), 0);
    fl_grammar_bytes(sp->g, *high, digits[c & 15], digits[c & 15], 0, sp->first + to);
}

static void add_arc(speller *sp, const fl_arc *arc, escapes *e)
{
    uint32_t low = arc->span.low, high = arc->span.high;
    int32_t from = sp->first + arc->from;
    for (uint32_t c = low; sp->json && c <= high && c <= '\\'; c++) {
        if (c >= 0x20 && c != '"' && c != '\\')
            continue;
        if (c > low)
            add_chars(sp, from, low, c - 1, arc->to);
        add_escape(sp, from, c, arc->to, e);
        low = c + 1;
    }
    if (low <= high)
        add_chars(sp, from, low, high, arc->to);
}

/* ---- strings ---- */

/* The automaton of all strings. */
static bool any_string(fl_dfa *d)
{
    return fl_vec_push(&d->accept, true) &&
           fl_vec_push(&d->arcs, ((fl_arc){0, 0, {FL_CHAR_FIRST, FL_SURROGATE - 1}})) &&
           fl_vec_push(&d->arcs, ((fl_arc){0, 0, {FL_SURROGATE_END, FL_CHAR_LAST}}));
}

static void spell(speller *sp, const fl_dfa *d)
{
    fl_grammar *g = sp->g;
    int32_t start = g->rules.data[sp->rule].start, end = g->rules.data[sp->rule].end;
    int enough = sp->counted ? FL_ENOUGH : 0;
    for (size_t i = 0; i < d->accept.n; i++) {
        int32_t node = fl_grammar_node(g, sp->rule);
        sp->first = i == 0 ? node : sp->first;
    }
    if (g->status != FL_OK)
        return;
    if (sp->json)
        fl_grammar_bytes(g, start, '"', '"', 0, sp->first);
    else
        fl_grammar_jump(g, start, 0, sp->first);
    size_t at = 0;
    for (size_t s = 0; s < d->accept.n; s++) {
        escapes e = {0};
        for (; at < d->arcs.n && d->arcs.data[at].from == (int32_t)s && g->status == FL_OK; at++)
            add_arc(sp, &d->arcs.data[at], &e);
        if (d->accept.data[s] && sp->json)
            fl_grammar_bytes(g, sp->first + (int32_t)s, '"', '"', enough, end);
        else if (d->accept.data[s])
            fl_grammar_jump(g, sp->first + (int32_t)s, enough, end);
    }
}

int32_t fl_spell_string(fl_grammar *g, const fl_dfa *d, int32_t min, int32_t max, bool raw)
{
    fl_dfa any = {0};
    speller sp = {.g = g, .json = !raw, .counted = !d || min > 0 || max >= 0};
    bool ok = d || any_string(&any), plain = !d;
    d = d ? d : &any;
    for (int i = 0; i < 3; i++) {
        sp.more[i] = fl_calloc(d->accept.n + 1, sizeof **sp.more);
        ok &= sp.more[i] != NULL;
    }
    sp.rule = fl_grammar_rule(g, sp.counted ? min : 0, sp.counted ? max : -1);
    if (!ok)
        fl_grammar_fail(g, FL_NOMEM, "no memory for a grammar");
    else if (g->status == FL_OK && (max < 0 || min <= max)) /* else no string fits */
        spell(&sp, d);
    if (sp.counted && !plain)
        fl_grammar_live(g, sp.rule);
    if (plain && g->status == FL_OK &&
        g->nodes.n - (size_t)g->rules.data[sp.rule].first <= FL_SHAPE_NODES)
        g->rules.data[sp.rule].shape = raw ? FL_SHAPE_RAW : FL_SHAPE_QUOTED;
    for (int i = 0; i < 3; i++)
        fl_free(sp.more[i]);
    fl_dfa_free(&any);
    return sp.rule;
}

/* ---- names that are not taken ---- */

typedef struct name_tree {
    const fl_bytes *names; /* sorted, without repetition */
    fl_dfa *d;             /* state 0: nothing read; the last state: no name any more */
    int32_t sink;
    bool ok;
} name_tree;

static uint32_t char_at(fl_bytes s, size_t at, size_t *len)
{
    unsigned char c = (unsigned char)s.data[at];
    *len = c < 0x80 ? 1 : c < 0xe0 ? 2 : c < 0xf0 ? 3 : 4;
    uint32_t value = *len == 1 ? c : c & (0x7fu >> *len);
    for (size_t i = 1; i < *len && at + i < s.len; i++)
        value = value << 6 | ((unsigned char)s.data[at + i] & 0x3f);
    return value;
}

static void add_name_arc(name_tree *t, int32_t from, int32_t to, uint32_t low, uint32_t high)
{
    if (low < FL_SURROGATE && high >= FL_SURROGATE_END) {
        add_name_arc(t, from, to, low, FL_SURROGATE - 1);
        low = FL_SURROGATE_END;
    }
    if (low >= FL_SURROGATE && low < FL_SURROGATE_END)
        low = FL_SURROGATE_END;
    if (high >= FL_SURROGATE && high < FL_SURROGATE_END)
        high = FL_SURROGATE - 1;
    if (low <= high)
        t->ok &= fl_vec_push(&t->d->arcs, ((fl_arc){from, to, {low, high}}));
}

/* Fills state `at`, reached by the first `depth` bytes that names[begin .. end) share, and the
 * states behind it are put into a queue: breadth first keeps arcs in order. */
typedef struct name_state {
    size_t begin, end, depth;
} name_state;

static void fill_names(name_tree *t, size_t n)
{
    FL_VEC(name_state) queue = {0};
    t->ok &= fl_vec_push(&queue, ((name_state){0, n, 0}));
    for (size_t at = 0; t->ok && at < queue.n; at++) {
        name_state s = queue.data[at];
        uint32_t low = FL_CHAR_FIRST;
        size_t i = s.begin;
        bool is_name = i < s.end && t->names[i].len == s.depth;
        i += is_name;
        t->ok &= fl_vec_push(&t->d->accept, !is_name);
        while (i < s.end && t->ok) {
            size_t len, from = i;
            uint32_t c = char_at(t->names[i], s.depth, &len);
            while (i < s.end && t->names[i].len >= s.depth + len &&
                   memcmp(t->names[i].data + s.depth, t->names[from].data + s.depth, len) == 0)
                i++;
            if (c > low)
                add_name_arc(t, (int32_t)at, -1, low, c - 1);
            add_name_arc(t, (int32_t)at, (int32_t)queue.n, c, c);
            low = c + 1;
            t->ok &= queue.n < FL_MAX_NODES / 16 &&
                     fl_vec_push(&queue, ((name_state){from, i, s.depth + len}));
        }
        if (low <= FL_CHAR_LAST)
            add_name_arc(t, (int32_t)at, -1, low, FL_CHAR_LAST);
    }
    t->sink = (int32_t)queue.n;
    fl_vec_free(&queue);
}

int32_t fl_spell_other_names(fl_grammar *g, const fl_bytes *names, size_t n)
{
    fl_dfa d = {0};
    name_tree t = {.names = names, .d = &d, .ok = true};
    int32_t rule = 0;
    fill_names(&t, n);
    for (size_t i = 0; i < d.arcs.n; i++) {
        if (d.arcs.data[i].to < 0)
            d.arcs.data[i].to = t.sink;
    }
    add_name_arc(&t, t.sink, t.sink, FL_CHAR_FIRST, FL_CHAR_LAST);
    t.ok &= fl_vec_push(&d.accept, true);
    if (t.ok)
        rule = fl_spell_string(g, &d, 0, -1, false);
    else
        fl_grammar_fail(g, FL_NOMEM, "no memory for %zu property names", n);
    fl_dfa_free(&d);
    return rule;
}
