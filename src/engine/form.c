/* From a form to a grammar: literals, control tokens and free text around schemas. */
#include "engine/grammar_internal.h"

typedef struct compiler {
    fl_grammar *g;
    const fl_form *form;
    fl_arena schemas; /* an fl_schema for each root, and what they need */
    FL_VEC(fl_schema *) roots;
    int depth;
} compiler;

enum { MAX_DEPTH = 200 };

/* Rules of one root are shared by all places that refer to it. */
static fl_schema *schemas_of(compiler *c, const fl_json *root)
{
    for (size_t i = 0; i < c->roots.n; i++) {
        if (c->roots.data[i]->root == root)
            return c->roots.data[i];
    }
    fl_schema *s = fl_arena_alloc(&c->schemas, sizeof *s);
    if (!s || !fl_vec_push(&c->roots, s)) {
        fl_grammar_fail(c->g, FL_NOMEM, "no memory for a grammar");
        return NULL;
    }
    *s = (fl_schema){.g = c->g, .arena = &c->schemas, .root = root};
    return s;
}

/* Takes back what was built since the grammar had these sizes, and that it failed. */
static void take_back(fl_grammar *g, size_t nodes, size_t edges, size_t rules, int32_t space)
{
    while (g->rules.n > rules)
        fl_free(g->rules.data[--g->rules.n].live);
    g->nodes.n = nodes;
    g->edges.n = edges;
    g->space = space;
    g->status = FL_OK;
}

static int32_t schema_part(compiler *c, const fl_form_part *p, int32_t from)
{
    fl_grammar *g = c->g;
    fl_schema *s = schemas_of(c, p->root ? p->root : p->schema);
    if (!s)
        return 0;
    bool raw = p->kind == FL_FORM_RAW;
    unsigned kinds = raw ? FL_KIND_STRING : p->types;
    size_t nodes = g->nodes.n, edges = g->edges.n, rules = g->rules.n;
    int32_t space = g->space;
    int32_t rule = fl_schema_rule(s, p->schema, kinds, raw, p->text.data ? p->text.data : "#");
    if (g->status == FL_ARGUMENT && p->lenient) {
        take_back(g, nodes, edges, rules, space);
        s->made = NULL; /* rules of other parts stay, but are not found again */
        s->depth = 0;
        rule = fl_schema_rule(s, NULL, kinds, raw, "#");
    }
    return fl_grammar_then(g, from, rule);
}

static int32_t pattern_part(compiler *c, const fl_form_part *p, int32_t from)
{
    fl_dfa d;
    fl_error e = {0};
    if (fl_regex_compile(p->text, &d, &e) != FL_OK) {
        fl_grammar_fail(c->g, e.status, "%s", e.message);
        return 0;
    }
    int32_t rule = fl_spell_string(c->g, &d, 0, -1, true);
    fl_dfa_free(&d);
    return fl_grammar_then(c->g, from, rule);
}

/* Lays part `index` out from node `from`; returns where it ends. */
static int32_t lay(compiler *c, int32_t index, int32_t from)
{
    fl_grammar *g = c->g;
    const fl_form_part *p = &c->form->parts.data[index];
    const int32_t *kids = c->form->kids.data + p->first;
    if (g->status != FL_OK)
        return 0;
    int32_t rule = g->nodes.data[from].rule, to, body;
    if (++c->depth > MAX_DEPTH)
        fl_grammar_fail(g, FL_ARGUMENT, "a form is nested too deep");
    switch (p->kind) {
    case FL_FORM_TEXT:
        to = fl_grammar_text(g, from, p->text.data, p->text.len);
        break;
    case FL_FORM_MARKER:
        to = fl_grammar_node(g, rule);
        fl_grammar_mark(g, from, p->marker, to);
        break;
    case FL_FORM_ANY:
        to = fl_grammar_node(g, rule);
        fl_grammar_jump(g, from, 0, to);
        fl_grammar_bytes(g, to, 0, 255, 0, to);
        break;
    case FL_FORM_JSON:
    case FL_FORM_RAW:
        to = schema_part(c, p, from);
        break;
    case FL_FORM_MATCH:
        to = pattern_part(c, p, from);
        break;
    case FL_FORM_SEQ:
        to = from;
        for (int32_t i = 0; i < p->n; i++)
            to = lay(c, kids[i], to);
        break;
    case FL_FORM_ALT:
        to = fl_grammar_node(g, rule);
        for (int32_t i = 0; i < p->n; i++)
            fl_grammar_jump(g, lay(c, kids[i], from), 0, to);
        break;
    default: /* FL_FORM_MANY */
        to = fl_grammar_node(g, rule);
        fl_grammar_jump(g, from, 0, to);
        body = fl_grammar_node(g, rule);
        fl_grammar_jump(g, to, 0, body);
        fl_grammar_jump(g, lay(c, kids[0], body), 0, to);
        break;
    }
    c->depth--;
    return to;
}

static fl_status finish(fl_grammar *g, fl_grammar **out, fl_error *err)
{
    fl_status s = fl_grammar_finish(g, err);
    if (s == FL_OK)
        *out = g;
    else
        fl_grammar_release(g);
    return s;
}

fl_status fl_grammar_of_form(const fl_token_trie *t, const fl_form *form, fl_grammar **out,
                             fl_error *err)
{
    *out = NULL;
    fl_grammar *g = fl_grammar_create(t);
    if (!g)
        return fl_fail(err, FL_NOMEM, "no memory for a grammar");
    compiler c = {.g = g, .form = form};
    g->root = fl_grammar_rule(g, 0, -1);
    if (g->status == FL_OK) {
        const fl_rule r = g->rules.data[g->root];
        fl_grammar_jump(g, lay(&c, form->root, r.start), 0, r.end);
    }
    fl_vec_free(&c.roots);
    fl_arena_free(&c.schemas);
    return finish(g, out, err);
}

fl_status fl_grammar_of_schema(const fl_token_trie *t, const fl_json *schema, fl_grammar **out,
                               fl_error *err)
{
    *out = NULL;
    fl_grammar *g = fl_grammar_create(t);
    if (!g)
        return fl_fail(err, FL_NOMEM, "no memory for a grammar");
    fl_arena arena = {0};
    fl_schema c = {.g = g, .arena = &arena, .root = schema};
    g->root = fl_schema_rule(&c, schema, schema ? FL_KIND_ALL : FL_KIND_OBJECT, false, "#");
    fl_arena_free(&arena);
    return finish(g, out, err);
}
