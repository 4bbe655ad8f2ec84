/* Schemas of objects.
 *
 * Declared properties come in the order of the schema, each at most once; required ones that are
 * not declared follow, then, where the schema allows them, properties with other names.  Between
 * "{" or
 * "," and "}" a node says what comes next; optional properties are jumped over. */
#include "engine/grammar_internal.h"

#include <stdlib.h>

typedef struct property {
    const char *name; /* terminated; JSON keys hold no NUL */
    const fl_json *schema;
    bool required;
} property;

typedef struct object {
    fl_schema *c;
    const char *path;
    property *list;
    size_t n, n_required;
    const fl_json *others; /* the schema of other names; NULL: anything */
    bool has_others;
} object;

static const fl_json *member(const fl_json *schema, const char *name)
{
    return schema ? fl_json_get(schema, name) : NULL;
}

static property *find(object *o, const char *name)
{
    for (size_t i = 0; i < o->n; i++) {
        if (strcmp(o->list[i].name, name) == 0)
            return &o->list[i];
    }
    return NULL;
}

/* Marks what is required, adding names that are not declared. */
static void read_required(object *o, const fl_json *required)
{
    enum { MAX_LOOKED_UP = 4000 };
    fl_grammar *g = o->c->g;
    if (!fl_json_is(required, FL_JSON_ARRAY) || fl_json_size(required) > MAX_LOOKED_UP) {
        fl_grammar_fail(g, FL_ARGUMENT, "%s/required must be a list of at most %d names", o->path,
                        MAX_LOOKED_UP);
        return;
    }
    for (size_t i = 0; i < fl_json_size(required); i++) {
        const fl_json *v = fl_json_at(required, i);
        const char *name = fl_json_is(v, FL_JSON_STRING) ? fl_json_string(v).data : NULL;
        if (!name) {
            fl_grammar_fail(g, FL_ARGUMENT, "%s/required must be a list of names", o->path);
            return;
        }
        property *p = find(o, name);
        if (!p && !o->has_others) {
            fl_grammar_fail(g, FL_ARGUMENT,
                            "%s: \"%.60s\" is required, not declared, and additionalProperties is "
                            "false",
                            o->path, name);
            return;
        }
        if (!p) {
            p = &o->list[o->n++];
            *p = (property){.name = name, .schema = o->others};
        }
        o->n_required += !p->required;
        p->required = true;
    }
}

static bool read_object(object *o, const fl_json *schema)
{
    fl_grammar *g = o->c->g;
    const fl_json *properties = member(schema, "properties"),
                  *required = member(schema, "required");
    const fl_json *others = member(schema, "additionalProperties");
    if (properties && !fl_json_is(properties, FL_JSON_OBJECT)) {
        fl_grammar_fail(g, FL_ARGUMENT, "%s/properties must be an object", o->path);
        return false;
    }
    size_t n = properties ? fl_json_size(properties) : 0;
    n += fl_json_is(required, FL_JSON_ARRAY) ? fl_json_size(required) : 0;
    o->list = fl_arena_array(o->c->arena, n + 1, sizeof *o->list);
    if (!o->list) {
        fl_grammar_fail(g, FL_NOMEM, "no memory for the properties of %s", o->path);
        return false;
    }
    o->has_others = !fl_json_is(others, FL_JSON_BOOL) || fl_json_bool(others);
    o->others = fl_json_is(others, FL_JSON_BOOL) ? NULL : others;
    for (void *it = properties ? fl_json_iter(properties) : NULL; it;
         it = fl_json_next(properties, it))
        o->list[o->n++] =
            (property){.name = fl_json_iter_key(it).data, .schema = fl_json_iter_value(it)};
    if (required)
        read_required(o, required);
    return g->status == FL_OK;
}

static int compare_names(const void *a, const void *b)
{
    const fl_bytes *x = a, *y = b;
    return strcmp(x->data, y->data);
}

/* The rule for names that are not in the list. */
static int32_t other_names(object *o)
{
    fl_grammar *g = o->c->g;
    fl_bytes *names = fl_arena_array(o->c->arena, o->n + 1, sizeof *names);
    if (!names) {
        fl_grammar_fail(g, FL_NOMEM, "no memory for the properties of %s", o->path);
        return 0;
    }
    for (size_t i = 0; i < o->n; i++)
        names[i] = (fl_bytes){o->list[i].name, strlen(o->list[i].name)};
    qsort(names, o->n, sizeof *names, compare_names);
    return fl_spell_other_names(g, names, o->n);
}

/* ": value" */
static int32_t value_of(object *o, int32_t at, const fl_json *schema, const char *name)
{
    fl_grammar *g = o->c->g;
    int32_t rule =
        fl_schema_rule(o->c, schema, FL_KIND_ALL, false, fl_schema_path(o->c, o->path, name));
    return fl_grammar_then(g, fl_grammar_space(g, fl_grammar_byte(g, at, ':', 0)), rule);
}

static int32_t key_text(object *o, int32_t at, const char *name)
{
    fl_buf key = {0};
    if (fl_json_quote(name, strlen(name), &key))
        at = fl_grammar_text(o->c->g, at, key.data, key.n);
    else
        fl_grammar_fail(o->c->g, FL_NOMEM, "no memory for the properties of %s", o->path);
    fl_vec_free(&key);
    return at;
}

/* How many properties there may be.  Together with optional ones this would need their number in
 * the automaton; it is supported where only other names are free. */
static void read_counts(object *o, const fl_json *schema, int32_t *min, int32_t *max)
{
    fl_grammar *g = o->c->g;
    *min = schema ? fl_schema_count(o->c, schema, "minProperties", 0, o->path) : 0;
    *max = schema ? fl_schema_count(o->c, schema, "maxProperties", -1, o->path) : -1;
    int32_t required = (int32_t)o->n_required, declared = (int32_t)o->n;
    if (*min <= required)
        *min = required;
    if (!o->has_others && *max >= declared)
        *max = -1;
    if ((*min > required || *max >= 0) && required != declared)
        fl_grammar_fail(g, FL_ARGUMENT,
                        "%s: minProperties and maxProperties beside optional properties are not "
                        "supported",
                        o->path);
    if (*min > required + 1)
        fl_grammar_fail(g, FL_ARGUMENT, "%s: minProperties is supported up to %d here", o->path,
                        required + 1);
    *min -= required;
    *max -= *max < 0 ? 0 : required;
}

int32_t fl_schema_object(fl_schema *c, const fl_json *schema, const char *path)
{
    fl_grammar *g = c->g;
    object o = {.c = c, .path = path};
    int32_t min, max;
    if (!read_object(&o, schema))
        return 0;
    read_counts(&o, schema, &min, &max);
    const fl_json *limit = member(schema, "maxProperties");
    if (g->status != FL_OK)
        return 0;
    int32_t rule = fl_grammar_rule(g, min, max);
    if (limit && fl_json_number(limit) < (double)o.n_required)
        return rule; /* nothing fits */
    int flags = min > 0 || max >= 0 ? FL_TICK : 0, enough = min > 0 ? FL_ENOUGH : 0;
    int32_t close = fl_grammar_node(g, rule), open = fl_grammar_node(g, rule);
    fl_grammar_bytes(g, close, '}', '}', 0, g->status == FL_OK ? g->rules.data[rule].end : 0);
    int32_t first = fl_grammar_space(
        g, fl_grammar_byte(g, g->status == FL_OK ? g->rules.data[rule].start : 0, '{', 0));
    fl_grammar_jump(g, first, o.n == 0 ? flags : 0, open);
    if (o.n_required == 0)
        fl_grammar_jump(g, first, enough, close);
    size_t left = o.n_required;
    for (size_t i = 0; i < o.n && g->status == FL_OK; i++) {
        const property *p = &o.list[i];
        int32_t next = fl_grammar_node(g, rule), after = fl_grammar_node(g, rule);
        int32_t at = value_of(&o, key_text(&o, open, p->name), p->schema, p->name);
        fl_grammar_jump(g, at, 0, after);
        left -= p->required;
        if (!p->required)
            fl_grammar_jump(g, open, 0, next);
        if (left == 0) {
            int32_t done = fl_grammar_node(g, rule);
            fl_grammar_jump(g, after, enough, done);
            fl_grammar_jump(g, fl_grammar_space(g, done), 0, close);
        }
        if (i + 1 < o.n || o.has_others) {
            int comma = i + 1 == o.n ? flags : 0;
            fl_grammar_jump(g, fl_grammar_space(g, fl_grammar_byte(g, after, ',', comma)), 0, next);
        }
        open = next;
    }
    if (!o.has_others || max == 0 || g->status != FL_OK)
        return rule;
    int32_t names = o.n ? other_names(&o) : fl_spell_string(g, NULL, 0, -1, false);
    int32_t at = value_of(&o, fl_grammar_then(g, open, names), o.others, "additionalProperties");
    fl_grammar_jump(g, fl_grammar_space(g, fl_grammar_byte(g, at, ',', flags)), 0, open);
    int32_t done = fl_grammar_node(g, rule);
    fl_grammar_jump(g, at, enough, done);
    fl_grammar_jump(g, fl_grammar_space(g, done), 0, close);
    return rule;
}
