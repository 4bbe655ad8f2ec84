/* From JSON schemas to rules.
 *
 * What a schema means is taken from JSON Schema 2020-12, and only documents that are valid by it
 * can be written; but not every valid document can: properties come in the order of the schema,
 * strings have one spelling, numbers at most 18 digits.  Keywords that the compiler does not know
 * are refused by name, never ignored. */
#include "engine/grammar_internal.h"

#include <stdio.h>

enum { MAX_DEPTH = 400, MAX_RULES = 20000, BUCKETS = 256 };

/* A rule made for a schema: found again by what it was made for, so that recursion closes. */
struct fl_schema_rule {
    struct fl_schema_rule *next;
    const fl_json *schema;
    unsigned kinds;
    bool raw;
    int32_t rule;
};

static size_t bucket(const fl_json *schema)
{
    return (size_t)((uintptr_t)schema / 16 * 0x9e3779b1u) % BUCKETS;
}

const char *fl_schema_path(fl_schema *c, const char *path, const char *name)
{
    const char *made = fl_arena_printf(c->arena, "%s/%s", path, name);
    if (!made)
        fl_grammar_fail(c->g, FL_NOMEM, "no memory for a grammar");
    return made ? made : "";
}

int32_t fl_schema_count(fl_schema *c, const fl_json *schema, const char *name, int32_t none,
                        const char *path)
{
    const fl_json *v = fl_json_get(schema, name);
    if (!v)
        return none;
    double x = fl_json_is(v, FL_JSON_INT) || fl_json_is(v, FL_JSON_REAL) ? fl_json_number(v) : -1;
    if (x < 0 || x > 1e9 || x != (double)(int32_t)x) {
        fl_grammar_fail(c->g, FL_ARGUMENT, "%s/%s must be an integer from 0 to 10^9", path, name);
        return none;
    }
    return (int32_t)x;
}

/* ---- alternatives ---- */

static void check_apart(fl_schema *c, const fl_json *list, const char *path)
{
    size_t n = fl_json_size(list);
    if (n > 64)
        fl_grammar_fail(c->g, FL_ARGUMENT, "%s: oneOf has %zu alternatives, 64 at most", path, n);
    for (size_t i = 0; i < n && c->g->status == FL_OK; i++) {
        for (size_t k = 0; k < i; k++) {
            if (!fl_schemas_apart(c, fl_json_at(list, i), fl_json_at(list, k), 0)) {
                fl_grammar_fail(c->g, FL_ARGUMENT,
                                "%s: alternatives %zu and %zu of oneOf may hold for one value: "
                                "use anyOf, or tell them apart by a property with a const",
                                path, k, i);
                return;
            }
        }
    }
}

static void any_of(fl_schema *c, const fl_json *list, const char *name, unsigned kinds, bool raw,
                   int32_t rule, const char *path)
{
    fl_grammar *g = c->g;
    if (!fl_json_is(list, FL_JSON_ARRAY) || fl_json_size(list) == 0) {
        fl_grammar_fail(g, FL_ARGUMENT, "%s/%s must be a list of schemas", path, name);
        return;
    }
    for (size_t i = 0; i < fl_json_size(list) && g->status == FL_OK; i++) {
        char index[48];
        snprintf(index, sizeof index, "%s/%zu", name, i);
        int32_t one =
            fl_schema_rule(c, fl_json_at(list, i), kinds, raw, fl_schema_path(c, path, index));
        if (g->status == FL_OK)
            fl_grammar_call(g, g->rules.data[rule].start, one, 0, g->rules.data[rule].end);
    }
}

/* ---- one schema ---- */

static void by_kind(fl_schema *c, const fl_json *schema, unsigned kinds, bool raw, int32_t rule,
                    const char *path)
{
    fl_grammar *g = c->g;
    static const char *const words[] = {"null", "true", "false"};
    int32_t parts[4] = {0};
    int32_t start = g->rules.data[rule].start, end = g->rules.data[rule].end;
    if (kinds & FL_KIND_STRING)
        parts[0] = fl_schema_string(c, schema, raw, path);
    if (kinds & (FL_KIND_INTEGER | FL_KIND_NUMBER))
        parts[1] = fl_schema_number(c, schema, !(kinds & FL_KIND_NUMBER), path);
    if (kinds & FL_KIND_ARRAY)
        parts[2] = fl_schema_array(c, schema, path);
    if (kinds & FL_KIND_OBJECT)
        parts[3] = fl_schema_object(c, schema, path);
    for (int i = 0; i < 4 && g->status == FL_OK; i++) {
        if (parts[i])
            fl_grammar_call(g, start, parts[i], 0, end);
    }
    for (int i = 0; i < 3; i++) {
        if (kinds & (i ? FL_KIND_BOOL : FL_KIND_NULL))
            fl_grammar_jump(g, fl_grammar_text(g, start, words[i], strlen(words[i])), 0, end);
    }
}

static void fill(fl_schema *c, const fl_json *schema, unsigned kinds, bool raw, int32_t rule,
                 const char *path)
{
    fl_grammar *g = c->g;
    if (!schema || fl_json_is(schema, FL_JSON_BOOL)) {
        if (!schema || fl_json_bool(schema))
            by_kind(c, NULL, kinds, raw, rule, path);
        return; /* false: nothing fits */
    }
    if (!fl_json_is(schema, FL_JSON_OBJECT)) {
        fl_grammar_fail(g, FL_ARGUMENT, "%s must be a schema, not %s", path,
                        fl_json_type_name(schema));
        return;
    }
    fl_schema_check_keywords(c, schema, path);
    kinds &= fl_schema_kinds(c, schema, path);
    if (g->status != FL_OK)
        return;
    int32_t one = 0;
    static const char *const groups[] = {"$ref", "anyOf", "oneOf", "allOf"};
    for (int i = 0; i < 4; i++) {
        const fl_json *v = fl_json_get(schema, groups[i]);
        if (!v)
            continue;
        if (!fl_schema_only_notes(c, schema, groups[i], path))
            return;
        if (i == 1 || i == 2) {
            any_of(c, v, groups[i], kinds, raw, rule, path);
            if (i == 2)
                check_apart(c, v, path);
            return;
        }
        if (i == 3 && (!fl_json_is(v, FL_JSON_ARRAY) || fl_json_size(v) != 1)) {
            fl_grammar_fail(g, FL_ARGUMENT,
                            "%s: allOf is supported with one schema only: write its parts into "
                            "one",
                            path);
            return;
        }
        const fl_json *target = i == 0 ? fl_schema_target(c, v, path) : fl_json_at(v, 0);
        if (g->status == FL_OK)
            one = fl_schema_rule(c, target, kinds, raw, path);
    }
    if (!one && (fl_json_get(schema, "enum") || fl_json_get(schema, "const")))
        one = fl_schema_literals(c, schema, kinds, raw, path);
    if (g->status != FL_OK)
        return;
    if (one)
        fl_grammar_call(g, g->rules.data[rule].start, one, 0, g->rules.data[rule].end);
    else
        by_kind(c, schema, kinds, raw, rule, path);
}

int32_t fl_schema_rule(fl_schema *c, const fl_json *schema, unsigned kinds, bool raw,
                       const char *path)
{
    fl_grammar *g = c->g;
    if (g->status != FL_OK)
        return 0;
    if (!c->made)
        c->made = fl_arena_array(c->arena, BUCKETS, sizeof *c->made);
    struct fl_schema_rule *head = c->made ? &c->made[bucket(schema)] : NULL, *m;
    for (m = head ? head->next : NULL; m; m = m->next) {
        if (m->schema == schema && m->kinds == kinds && m->raw == raw)
            return m->rule;
    }
    if (c->depth >= MAX_DEPTH || c->n_made >= MAX_RULES) {
        fl_grammar_fail(g, FL_ARGUMENT, "the schema is nested too deep or too large");
        return 0;
    }
    m = head ? fl_arena_alloc(c->arena, sizeof *m) : NULL;
    if (!m) {
        fl_grammar_fail(g, FL_NOMEM, "no memory for a grammar");
        return 0;
    }
    *m = (struct fl_schema_rule){head->next, schema, kinds, raw, fl_grammar_rule(g, 0, -1)};
    head->next = m;
    c->n_made++;
    c->depth++;
    if (g->status == FL_OK)
        fill(c, schema, kinds, raw, m->rule, path);
    c->depth--;
    return m->rule;
}
