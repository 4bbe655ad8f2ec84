/* Whether two schemas can hold for one value.
 *
 * oneOf promises that exactly one alternative holds, and the automaton follows one; so it must be
 * plain that no other does.  It is plain when the types differ, when the enumerated values do, or
 * when objects differ in a required property.  The answer "apart" is certain, the other is not. */
#include "engine/grammar_internal.h"

enum { MAX_DEPTH = 8 };

static const fl_json *resolve(fl_schema *c, const fl_json *s)
{
    for (int i = 0; i < MAX_DEPTH && fl_json_is(s, FL_JSON_OBJECT); i++) {
        const fl_json *ref = fl_json_get(s, "$ref"), *all = fl_json_get(s, "allOf");
        if (ref)
            s = fl_schema_target(c, ref, "#");
        else if (fl_json_is(all, FL_JSON_ARRAY) && fl_json_size(all) == 1)
            s = fl_json_at(all, 0);
        else
            break;
    }
    return s;
}

static size_t n_values(const fl_json *s)
{
    const fl_json *list = fl_json_get(s, "enum");
    if (list)
        return fl_json_is(list, FL_JSON_ARRAY) ? fl_json_size(list) : 0;
    return fl_json_get(s, "const") ? 1 : 0;
}

static const fl_json *value_at(const fl_json *s, size_t i)
{
    const fl_json *list = fl_json_get(s, "enum");
    return list ? fl_json_at(list, i) : fl_json_get(s, "const");
}

static bool is_number(const fl_json *v)
{
    return fl_json_is(v, FL_JSON_INT) || fl_json_is(v, FL_JSON_REAL);
}

/* Certainly different. */
static bool values_apart(const fl_json *a, const fl_json *b)
{
    if (is_number(a) && is_number(b))
        return fl_json_number(a) < fl_json_number(b) || fl_json_number(a) > fl_json_number(b);
    if (fl_json_typeof(a) != fl_json_typeof(b))
        return true;
    if (fl_json_is(a, FL_JSON_BOOL))
        return fl_json_bool(a) != fl_json_bool(b);
    if (!fl_json_is(a, FL_JSON_STRING))
        return false;
    fl_bytes x = fl_json_string(a), y = fl_json_string(b);
    return x.len != y.len || memcmp(x.data, y.data, x.len) != 0;
}

static bool value_of_kinds(const fl_json *v, unsigned kinds)
{
    switch (fl_json_typeof(v)) {
    case FL_JSON_NULL:
        return kinds & FL_KIND_NULL;
    case FL_JSON_BOOL:
        return kinds & FL_KIND_BOOL;
    case FL_JSON_INT:
    case FL_JSON_REAL:
        return kinds & (FL_KIND_NUMBER | FL_KIND_INTEGER);
    case FL_JSON_STRING:
        return kinds & FL_KIND_STRING;
    case FL_JSON_ARRAY:
        return kinds & FL_KIND_ARRAY;
    case FL_JSON_OBJECT:
        return kinds & FL_KIND_OBJECT;
    }
    return true;
}

/* Whether the enumerated values of a (there are some) cannot be in b. */
static bool listed_apart(fl_schema *c, const fl_json *a, const fl_json *b)
{
    enum { MAX_PAIRS = 100000 };
    size_t n = n_values(a), m = n_values(b);
    unsigned kinds = m ? 0 : fl_schema_kinds(c, b, "#");
    if (n * (m + 1) > MAX_PAIRS)
        return false;
    for (size_t i = 0; i < n; i++) {
        if (!m && value_of_kinds(value_at(a, i), kinds))
            return false;
        for (size_t k = 0; k < m; k++) {
            if (!values_apart(value_at(a, i), value_at(b, k)))
                return false;
        }
    }
    return true;
}

/* Whether every object of a has a property that those of b have otherwise, or cannot have. */
static bool objects_apart(fl_schema *c, const fl_json *a, const fl_json *b, int depth)
{
    const fl_json *needed = fl_json_get(a, "required"),
                  *others = fl_json_get(b, "additionalProperties");
    const fl_json *pa = fl_json_get(a, "properties"), *pb = fl_json_get(b, "properties");
    bool closed = fl_json_is(others, FL_JSON_BOOL) && !fl_json_bool(others);
    for (size_t i = 0; fl_json_is(needed, FL_JSON_ARRAY) && i < fl_json_size(needed); i++) {
        const fl_json *v = fl_json_at(needed, i);
        const char *name = fl_json_is(v, FL_JSON_STRING) ? fl_json_string(v).data : NULL;
        const fl_json *mine = name && fl_json_is(pa, FL_JSON_OBJECT) ? fl_json_get(pa, name) : NULL;
        const fl_json *its = name && fl_json_is(pb, FL_JSON_OBJECT) ? fl_json_get(pb, name) : NULL;
        if (name && closed && !its)
            return true;
        if (mine && its && fl_schemas_apart(c, mine, its, depth + 1))
            return true; /* an object of a has it, and what it has is wrong for b */
    }
    return false;
}

static const fl_json *alternatives(const fl_json *s)
{
    const fl_json *any = fl_json_get(s, "anyOf"), *one = fl_json_get(s, "oneOf");
    const fl_json *list = any ? any : one;
    return fl_json_is(list, FL_JSON_ARRAY) && fl_json_size(list) > 0 ? list : NULL;
}

/* Whether b is apart from every alternative in the list. */
static bool all_apart(fl_schema *c, const fl_json *list, const fl_json *b, int depth)
{
    enum { MAX_ALTERNATIVES = 64 };
    if (fl_json_size(list) > MAX_ALTERNATIVES)
        return false;
    for (size_t i = 0; i < fl_json_size(list); i++) {
        if (!fl_schemas_apart(c, fl_json_at(list, i), b, depth + 1))
            return false;
    }
    return true;
}

bool fl_schemas_apart(fl_schema *c, const fl_json *a, const fl_json *b, int depth)
{
    if (depth > MAX_DEPTH || c->g->status != FL_OK)
        return false;
    a = resolve(c, a);
    b = resolve(c, b);
    if (!fl_json_is(a, FL_JSON_OBJECT) || !fl_json_is(b, FL_JSON_OBJECT))
        return false;
    if (alternatives(a))
        return all_apart(c, alternatives(a), b, depth);
    if (alternatives(b))
        return all_apart(c, alternatives(b), a, depth);
    if (n_values(a))
        return listed_apart(c, a, b);
    if (n_values(b))
        return listed_apart(c, b, a);
    unsigned shared = fl_schema_kinds(c, a, "#") & fl_schema_kinds(c, b, "#");
    if (shared == 0)
        return true;
    return shared == FL_KIND_OBJECT &&
           (objects_apart(c, a, b, depth) || objects_apart(c, b, a, depth));
}
