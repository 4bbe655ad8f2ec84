/* From a pattern to a deterministic automaton.
 *
 * The tree becomes an automaton with empty moves (Thompson), which is made deterministic by sets of
 * its states.  The text stands between two symbols, FL_REGEX_BEGIN and FL_REGEX_END, that only ^
 * and $ match, and anything may stand before and after what the pattern finds; so anchors need no
 * treatment of their own.  All work is counted and bounded: a pattern that explodes is refused. */
#include "engine/grammar_internal.h"

enum { MAX_STATES = 20000, MAX_SETS = 2000, MAX_WORK = 30000000, MAX_ATOMS = 2000 };

/* A state has empty moves to a and b, or a move by spans to a. */
typedef struct state {
    int32_t a, b; /* -1: none */
    const fl_span *spans;
    size_t n_spans;
} state;

typedef struct set {
    int32_t first, n; /* members, sorted, in the pool */
    uint32_t hash;
} set;

typedef struct machine {
    FL_VEC(state) states;
    int32_t accept;
    FL_VEC(set) sets;
    FL_VEC(int32_t) pool;
    FL_VEC(uint32_t) atoms; /* where spans begin or end, sorted */
    int32_t *slots;         /* hash table of sets, twice MAX_SETS */
    uint32_t *marks;        /* [states] the round in which a state was reached */
    int32_t *todo;          /* [states] */
    int64_t work;
    uint32_t round;
    bool failed; /* no memory or too large: which is in err */
    fl_error *err;
} machine;

static void no_memory(machine *m)
{
    fl_fail(m->err, FL_NOMEM, "no memory for a pattern");
    m->failed = true;
}

static void too_large(machine *m)
{
    fl_fail(m->err, FL_ARGUMENT, "a pattern is too complex");
    m->failed = true;
}

static int32_t add_state(machine *m, int32_t a, int32_t b)
{
    if (m->failed)
        return 0;
    if (m->states.n >= MAX_STATES)
        too_large(m);
    else if (!fl_vec_push(&m->states, ((state){.a = a, .b = b})))
        no_memory(m);
    return m->failed ? 0 : (int32_t)m->states.n - 1;
}

/* States for r that end in `next`; returns the first. */
static int32_t build(machine *m, const fl_regex *r, int32_t next)
{
    int32_t s, first, end;
    if (m->failed)
        return 0;
    switch (r->kind) {
    case FL_REGEX_EMPTY:
        return next;
    case FL_REGEX_SET:
        s = add_state(m, next, -1);
        if (!m->failed) {
            m->states.data[s].spans = r->spans;
            m->states.data[s].n_spans = r->n_spans;
        }
        return s;
    case FL_REGEX_CAT:
        return build(m, r->a, build(m, r->b, next));
    case FL_REGEX_ALT:
        first = build(m, r->a, next);
        return add_state(m, first, build(m, r->b, next));
    case FL_REGEX_REPEAT:
        if (r->max < 0) {
            s = add_state(m, next, -1);
            first = build(m, r->a, s);
            if (!m->failed)
                m->states.data[s].b = first;
            next = s;
        }
        end = next;
        for (int i = r->max; i > r->min && !m->failed; i--)
            next = add_state(m, end, build(m, r->a, next));
        for (int i = 0; i < r->min && !m->failed; i++)
            next = build(m, r->a, next);
        return next;
    }
    return 0;
}

/* The set of states reached from those in todo[0 .. n) by empty moves: its index; -1 after failure.
 */
static int32_t close_set(machine *m, size_t n)
{
    int32_t begin = (int32_t)m->pool.n;
    while (n > 0) {
        int32_t s = m->todo[--n];
        const state *st = &m->states.data[s];
        m->work++;
        if (st->spans || s == m->accept) {
            if (!fl_vec_push(&m->pool, s))
                return no_memory(m), -1;
            continue;
        }
        int32_t next[2] = {st->a, st->b};
        for (int i = 0; i < 2; i++) {
            if (next[i] >= 0 && m->marks[next[i]] != m->round) {
                m->marks[next[i]] = m->round;
                m->todo[n++] = next[i];
            }
        }
    }
    int32_t size = (int32_t)m->pool.n - begin, *members = m->pool.data + begin;
    uint32_t hash = 2166136261u;
    for (int32_t i = 1; i < size; i++) { /* insertion: sets are small or nearly sorted */
        int32_t x = members[i], at = i;
        for (; at > 0 && members[at - 1] > x; at--, m->work++)
            members[at] = members[at - 1];
        members[at] = x;
    }
    for (int32_t i = 0; i < size; i++)
        hash = (hash ^ (uint32_t)members[i]) * 16777619u;
    uint32_t slot = hash % (2 * MAX_SETS);
    for (; m->slots[slot] > 0; slot = (slot + 1) % (2 * MAX_SETS)) {
        const set *old = &m->sets.data[m->slots[slot] - 1];
        if (old->hash == hash && old->n == size &&
            (size == 0 ||
             memcmp(m->pool.data + old->first, members, (size_t)size * sizeof *members) == 0)) {
            m->pool.n = (size_t)begin;
            return m->slots[slot] - 1;
        }
    }
    if (m->sets.n >= MAX_SETS || m->work > MAX_WORK)
        return too_large(m), -1;
    if (!fl_vec_push(&m->sets, ((set){begin, size, hash})))
        return no_memory(m), -1;
    m->slots[slot] = (int32_t)m->sets.n;
    return (int32_t)m->sets.n - 1;
}

/* The set reached from set `from` by one symbol. */
static int32_t move_set(machine *m, int32_t from, uint32_t symbol)
{
    set s = m->sets.data[from];
    size_t n = 0;
    m->round++;
    for (int32_t i = 0; i < s.n; i++) {
        const state *st = &m->states.data[m->pool.data[s.first + i]];
        m->work++;
        for (size_t k = 0; k < st->n_spans; k++, m->work++) {
            if (symbol < st->spans[k].low || symbol > st->spans[k].high)
                continue;
            if (m->marks[st->a] != m->round) {
                m->marks[st->a] = m->round;
                m->todo[n++] = st->a;
            }
            break;
        }
    }
    if (m->work > MAX_WORK)
        return too_large(m), -1;
    return close_set(m, n);
}

static bool add_atom(machine *m, uint32_t at)
{
    size_t i = m->atoms.n;
    while (i > 0 && m->atoms.data[i - 1] > at)
        i--;
    if (i > 0 && m->atoms.data[i - 1] == at)
        return true;
    if (m->atoms.n >= MAX_ATOMS)
        return too_large(m), false;
    if (!fl_vec_reserve(&m->atoms, 1))
        return no_memory(m), false;
    memmove(&m->atoms.data[i + 1], &m->atoms.data[i], (m->atoms.n - i) * sizeof at);
    m->atoms.data[i] = at;
    m->atoms.n++;
    return true;
}

/* Characters between two neighbouring atoms are alike for all states. */
static bool find_atoms(machine *m)
{
    bool ok = add_atom(m, FL_CHAR_FIRST) && add_atom(m, FL_SURROGATE) &&
              add_atom(m, FL_SURROGATE_END) && add_atom(m, FL_REGEX_BEGIN);
    for (size_t s = 0; ok && s < m->states.n; s++) {
        const state *st = &m->states.data[s];
        for (size_t k = 0; ok && k < st->n_spans; k++)
            ok = add_atom(m, st->spans[k].low) && add_atom(m, st->spans[k].high + 1);
    }
    return ok;
}

/* States are sets in the order in which they are found, but that the start, the set behind
 * FL_REGEX_BEGIN, is state 0: it is set 0 or set 1, which then change places. */
static int32_t swapped(int32_t i, int32_t start)
{
    return start == 1 && i < 2 ? 1 - i : i;
}

/* All arcs of one state, by characters; neighbours with one target are joined. */
static bool add_arcs(machine *m, int32_t state_no, int32_t start, fl_dfa *out)
{
    for (size_t i = 0; i + 1 < m->atoms.n && m->atoms.data[i] < FL_REGEX_BEGIN; i++) {
        uint32_t low = m->atoms.data[i], high = m->atoms.data[i + 1] - 1;
        if (low < FL_CHAR_FIRST || (low >= FL_SURROGATE && low < FL_SURROGATE_END))
            continue;
        int32_t to = move_set(m, swapped(state_no, start), low);
        if (to < 0)
            return false;
        if (m->sets.data[to].n == 0)
            continue;
        to = swapped(to, start);
        fl_arc *last = out->arcs.n ? &out->arcs.data[out->arcs.n - 1] : NULL;
        if (last && last->from == state_no && last->to == to && last->span.high + 1 == low)
            last->span.high = high;
        else if (!fl_vec_push(&out->arcs, ((fl_arc){state_no, to, {low, high}})))
            return no_memory(m), false;
    }
    return true;
}

static bool accepts(machine *m, int32_t at)
{
    int32_t end = move_set(m, at, FL_REGEX_END);
    for (int32_t i = 0; end >= 0 && i < m->sets.data[end].n; i++) {
        if (m->pool.data[m->sets.data[end].first + i] == m->accept)
            return true;
    }
    return false;
}

/* Sets reached by FL_REGEX_END become states that no character leads to. */
static void determine(machine *m, int32_t first, fl_dfa *out)
{
    m->round++;
    m->marks[first] = m->round;
    m->todo[0] = first;
    int32_t before = close_set(m, 1);
    int32_t start = before < 0 ? -1 : move_set(m, before, FL_REGEX_BEGIN);
    if (start < 0)
        return;
    for (int32_t i = 0; i < (int32_t)m->sets.n; i++) {
        if (!add_arcs(m, i, start, out))
            return;
        bool accept = accepts(m, swapped(i, start));
        if (!m->failed && !fl_vec_push(&out->accept, accept))
            no_memory(m);
        if (m->failed)
            return;
    }
}

static const fl_span anything[] = {{0, FL_REGEX_END}};

fl_status fl_regex_compile(fl_bytes pattern, fl_dfa *out, fl_error *err)
{
    fl_arena arena = {0};
    fl_regex *tree;
    fl_error why = {0};
    machine m = {.err = &why};
    *out = (fl_dfa){0};
    fl_status s = fl_regex_parse(pattern, &arena, &tree, &why);
    if (s == FL_OK) {
        /* anything* pattern anything* */
        fl_regex any = {.kind = FL_REGEX_SET, .spans = anything, .n_spans = 1};
        fl_regex some = {.kind = FL_REGEX_REPEAT, .a = &any, .max = -1};
        m.accept = add_state(&m, -1, -1);
        int32_t start = build(&m, &some, build(&m, tree, build(&m, &some, m.accept)));
        m.slots = fl_calloc(2 * MAX_SETS, sizeof *m.slots);
        m.marks = fl_calloc(m.states.n + 1, sizeof *m.marks);
        m.todo = fl_realloc_array(NULL, m.states.n + 1, sizeof *m.todo);
        if (!m.failed && (!m.slots || !m.marks || !m.todo))
            no_memory(&m);
        if (!m.failed && find_atoms(&m))
            determine(&m, start, out);
        s = m.failed ? why.status : FL_OK;
    }
    if (s != FL_OK) {
        fl_dfa_free(out);
        fl_fail(err, s, "%s", why.message);
    }
    fl_arena_free(&arena);
    fl_vec_free(&m.states);
    fl_vec_free(&m.sets);
    fl_vec_free(&m.pool);
    fl_vec_free(&m.atoms);
    fl_free(m.slots);
    fl_free(m.marks);
    fl_free(m.todo);
    return s;
}

void fl_dfa_free(fl_dfa *d)
{
    fl_vec_free(&d->arcs);
    fl_vec_free(&d->accept);
}
