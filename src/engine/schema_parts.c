/* Schemas of strings, numbers, arrays and enumerated values. */
#include "engine/grammar_internal.h"

#include <math.h>
#include <stdlib.h>

/* ---- strings ---- */

#define YEAR "[0-9]{4}"
#define LEAP "(?:[0-9]{2}(?:0[48]|[2468][048]|[13579][26])|(?:[02468][048]|[13579][26])00)"
#define DATE                                                                                       \
    "(?:" YEAR "-(?:(?:0[13578]|1[02])-(?:0[1-9]|[12][0-9]|3[01])|(?:0[469]|11)-"                  \
    "(?:0[1-9]|[12][0-9]|30)|02-(?:0[1-9]|1[0-9]|2[0-8]))|" LEAP "-02-29)"
#define TIME "(?:[01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](?:\\.[0-9]{1,6})?"
#define ZONE "(?:Z|[+-](?:[01][0-9]|2[0-3]):[0-5][0-9])"
#define BYTE "(?:25[0-5]|2[0-4][0-9]|1[0-9][0-9]|[1-9]?[0-9])"
#define LABEL "[A-Za-z0-9](?:[A-Za-z0-9-]{0,30}[A-Za-z0-9])?"
#define HOST LABEL "(?:\\." LABEL "){1,3}"
#define HEX4 "[0-9a-f]{1,4}"

static const struct {
    const char *name, *pattern;
} formats[] = {
    {"date", "^" DATE "$"},
    {"time", "^" TIME ZONE "$"},
    {"date-time", "^" DATE "T" TIME ZONE "$"},
    {"duration", "^P(?:[1-9][0-9]{0,3}D(?:T[1-9][0-9]{0,3}[HMS])?|[1-9][0-9]{0,3}[WMY]|"
                 "T[1-9][0-9]{0,4}[HMS])$"},
    {"uuid", "^[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}$"},
    {"ipv4", "^" BYTE "(?:\\." BYTE "){3}$"},
    {"ipv6", "^(?:" HEX4 ":){7}" HEX4 "$"},
    {"hostname", "^" HOST "$"},
    {"email", "^[A-Za-z0-9_+-]{1,32}(?:\\.[A-Za-z0-9_+-]{1,32})?@" HOST "$"},
    {"uri", "^https?://" HOST "(?::[1-9][0-9]{1,3})?(?:/[A-Za-z0-9._~-]*)*"
            "(?:\\?[A-Za-z0-9._~=&-]*)?(?:#[A-Za-z0-9._~-]*)?$"},
};

/* The pattern of the schema's format, or NULL. */
static const char *format_pattern(fl_schema *c, const fl_json *format, const char *path)
{
    const char *name = fl_json_is(format, FL_JSON_STRING) ? fl_json_string(format).data : "";
    for (size_t i = 0; i < sizeof formats / sizeof *formats; i++) {
        if (strcmp(formats[i].name, name) == 0)
            return formats[i].pattern;
    }
    fl_grammar_fail(c->g, FL_ARGUMENT,
                    "%s: the format \"%.40s\" is not supported; known are date, time, date-time, "
                    "duration, uuid, ipv4, ipv6, hostname, email and uri",
                    path, name);
    return NULL;
}

int32_t fl_schema_string(fl_schema *c, const fl_json *schema, bool raw, const char *path)
{
    const fl_json *pattern = schema ? fl_json_get(schema, "pattern") : NULL;
    const fl_json *format = schema ? fl_json_get(schema, "format") : NULL;
    fl_bytes text = {0};
    fl_dfa d;
    fl_error e = {0};
    if (!schema)
        return fl_spell_string(c->g, NULL, 0, -1, raw);
    int32_t min = fl_schema_count(c, schema, "minLength", 0, path);
    int32_t max = fl_schema_count(c, schema, "maxLength", -1, path);
    if (pattern && format)
        fl_grammar_fail(c->g, FL_ARGUMENT, "%s: a pattern beside a format is not supported", path);
    if (pattern && !fl_json_is(pattern, FL_JSON_STRING))
        fl_grammar_fail(c->g, FL_ARGUMENT, "%s/pattern must be a string", path);
    if (c->g->status != FL_OK)
        return 0;
    if (pattern) {
        text = fl_json_string(pattern);
    } else if (format) {
        text.data = format_pattern(c, format, path);
        text.len = text.data ? strlen(text.data) : 0;
    }
    if (!text.data)
        return fl_spell_string(c->g, NULL, min, max, raw);
    if (fl_regex_compile(text, &d, &e) != FL_OK) {
        fl_grammar_fail(c->g, e.status, "%s: %s", path, e.message);
        return 0;
    }
    int32_t rule = fl_spell_string(c->g, &d, min, max, raw);
    fl_dfa_free(&d);
    return rule;
}

/* ---- numbers ---- */

static void read_bound(fl_schema *c, const fl_json *schema, const char *name, bool integer,
                       double *bound, bool *outside, bool lower, bool exclusive, const char *path)
{
    const fl_json *v = fl_json_get(schema, name);
    if (!v)
        return;
    if (!fl_json_is(v, FL_JSON_INT) && !fl_json_is(v, FL_JSON_REAL)) {
        fl_grammar_fail(c->g, FL_ARGUMENT, "%s/%s must be a number", path, name);
        return;
    }
    double x = fl_json_number(v);
    if (integer && fabs(x) > 0x1p53 && fabs(x) < 1e18)
        fl_grammar_fail(c->g, FL_ARGUMENT, "%s/%s: bounds beyond 2^53 are not supported", path,
                        name);
    if (lower ? x > *bound : x < *bound) {
        *bound = x;
        *outside = exclusive;
    } else if (x == *bound) {
        *outside |= exclusive;
    }
}

int32_t fl_schema_number(fl_schema *c, const fl_json *schema, bool integer, const char *path)
{
    fl_bounds b = {.low = -INFINITY, .high = INFINITY};
    if (schema) {
        read_bound(c, schema, "minimum", integer, &b.low, &b.above_low, true, false, path);
        read_bound(c, schema, "exclusiveMinimum", integer, &b.low, &b.above_low, true, true, path);
        read_bound(c, schema, "maximum", integer, &b.high, &b.below_high, false, false, path);
        read_bound(c, schema, "exclusiveMaximum", integer, &b.high, &b.below_high, false, true,
                   path);
    }
    return fl_spell_number(c->g, &b, integer);
}

/* ---- arrays ---- */

/* Items 0 .. k - 1 have schemas of their own, the others share one; `min` and `max` count all.  The
 * rule's counter counts the others. */
int32_t fl_schema_array(fl_schema *c, const fl_json *schema, const char *path)
{
    fl_grammar *g = c->g;
    const fl_json *items = schema ? fl_json_get(schema, "items") : NULL;
    const fl_json *prefix = schema ? fl_json_get(schema, "prefixItems") : NULL;
    int32_t min = 0, max = -1, k = 0;
    if (schema) {
        min = fl_schema_count(c, schema, "minItems", 0, path);
        max = fl_schema_count(c, schema, "maxItems", -1, path);
    }
    if (prefix && !fl_json_is(prefix, FL_JSON_ARRAY))
        fl_grammar_fail(g, FL_ARGUMENT, "%s/prefixItems must be a list of schemas", path);
    if (fl_json_is(items, FL_JSON_ARRAY))
        fl_grammar_fail(g, FL_ARGUMENT, "%s/items must be one schema; lists are prefixItems", path);
    if (g->status != FL_OK)
        return 0;
    k = prefix ? (int32_t)fl_json_size(prefix) : 0;
    bool more = max < 0 || max > k; /* others may follow */
    int32_t rule =
        fl_grammar_rule(g, more && min > k ? min - k : 0, more && max >= 0 ? max - k : -1);
    if ((max >= 0 && min > max) || g->status != FL_OK)
        return rule;
    int32_t end = g->rules.data[rule].end, close = fl_grammar_node(g, rule);
    fl_grammar_bytes(g, close, ']', ']', 0, end);
    int32_t at = fl_grammar_space(g, fl_grammar_byte(g, g->rules.data[rule].start, '[', 0));
    if (min == 0)
        fl_grammar_jump(g, at, 0, close);
    for (int32_t i = 0; i < k && (max < 0 || i < max) && g->status == FL_OK; i++) {
        int32_t item = fl_schema_rule(c, fl_json_at(prefix, (size_t)i), FL_KIND_ALL, false,
                                      fl_schema_path(c, path, "prefixItems"));
        if (i > 0)
            at = fl_grammar_space(g, fl_grammar_byte(g, at, ',', 0));
        at = fl_grammar_then(g, at, item);
        if (i + 1 >= min)
            fl_grammar_jump(g, fl_grammar_space(g, at), 0, close);
    }
    if (!more || g->status != FL_OK)
        return rule;
    int32_t other = fl_schema_rule(c, items, FL_KIND_ALL, false, fl_schema_path(c, path, "items"));
    int32_t before = fl_grammar_node(g, rule), after = fl_grammar_then(g, before, other);
    if (k == 0)
        fl_grammar_jump(g, at, FL_TICK, before);
    else
        fl_grammar_jump(g, fl_grammar_space(g, fl_grammar_byte(g, at, ',', FL_TICK)), 0, before);
    fl_grammar_jump(g, fl_grammar_space(g, fl_grammar_byte(g, after, ',', FL_TICK)), 0, before);
    int32_t enough = fl_grammar_node(g, rule);
    fl_grammar_jump(g, after, FL_ENOUGH, enough);
    fl_grammar_jump(g, fl_grammar_space(g, enough), 0, close);
    return rule;
}

/* ---- enumerations ---- */

typedef struct literals {
    fl_grammar *g;
    const fl_bytes *texts; /* sorted */
    int32_t end;
} literals;

static int compare(const void *a, const void *b)
{
    const fl_bytes *x = a, *y = b;
    size_t n = x->len < y->len ? x->len : y->len;
    int order = n ? memcmp(x->data, y->data, n) : 0;
    return order ? order : (x->len > y->len) - (x->len < y->len);
}

/* texts[begin .. end) share their first `depth` bytes, which lead to `node`.  Runs that do not
 * branch are walked, so recursion is only as deep as branches nest, which halves nothing: the loop
 * takes the last group itself and recurses into the others. */
static void add_texts(literals *l, int32_t node, size_t begin, size_t end, size_t depth)
{
    while (begin < end && l->g->status == FL_OK) {
        if (l->texts[begin].len == depth) {
            fl_grammar_jump(l->g, node, 0, l->end);
            while (begin < end && l->texts[begin].len == depth)
                begin++;
            continue;
        }
        size_t i = begin;
        unsigned char c = (unsigned char)l->texts[begin].data[depth];
        while (i < end && (unsigned char)l->texts[i].data[depth] == c)
            i++;
        int32_t next = fl_grammar_byte(l->g, node, c, 0);
        if (i == end) {
            node = next;
            depth++;
            continue;
        }
        add_texts(l, next, begin, i, depth + 1);
        begin = i;
    }
}

static unsigned kind_of_value(const fl_json *v)
{
    switch (fl_json_typeof(v)) {
    case FL_JSON_NULL:
        return FL_KIND_NULL;
    case FL_JSON_BOOL:
        return FL_KIND_BOOL;
    case FL_JSON_INT:
        return FL_KIND_INTEGER;
    case FL_JSON_REAL:
        return FL_KIND_NUMBER;
    case FL_JSON_STRING:
        return FL_KIND_STRING;
    case FL_JSON_ARRAY:
        return FL_KIND_ARRAY;
    case FL_JSON_OBJECT:
        return FL_KIND_OBJECT;
    }
    return 0;
}

/* Appends the text of one value, if it is of the kinds wanted. */
static bool add_value(fl_schema *c, const fl_json *v, unsigned kinds, bool raw, fl_bytes *out,
                      size_t *n)
{
    fl_buf text = {0};
    if (!(kind_of_value(v) & kinds))
        return true;
    fl_bytes s = {0};
    if (raw && fl_json_is(v, FL_JSON_STRING)) {
        s = fl_json_string(v);
    } else if (fl_json_dump(v, true, false, &text) == FL_OK) {
        s = (fl_bytes){text.data, text.n};
    }
    const char *copy = s.data ? fl_arena_strndup(c->arena, s.data, s.len) : NULL;
    fl_vec_free(&text);
    if (copy)
        out[(*n)++] = (fl_bytes){copy, s.len};
    return copy != NULL;
}

int32_t fl_schema_literals(fl_schema *c, const fl_json *schema, unsigned kinds, bool raw,
                           const char *path)
{
    fl_grammar *g = c->g;
    const fl_json *list = fl_json_get(schema, "enum"), *one = fl_json_get(schema, "const");
    if (!fl_schema_only_notes(c, schema, list ? "enum" : "const", path))
        return 0;
    if (list && !fl_json_is(list, FL_JSON_ARRAY)) {
        fl_grammar_fail(g, FL_ARGUMENT, "%s/enum must be a list", path);
        return 0;
    }
    size_t n = 0, count = list ? fl_json_size(list) : 1;
    fl_bytes *texts = fl_arena_array(c->arena, count + 1, sizeof *texts);
    bool ok = texts != NULL;
    for (size_t i = 0; ok && i < count; i++)
        ok = add_value(c, list ? fl_json_at(list, i) : one, kinds, raw, texts, &n);
    int32_t rule = fl_grammar_rule(g, 0, -1);
    if (!ok)
        fl_grammar_fail(g, FL_NOMEM, "no memory for the values of %s", path);
    if (g->status != FL_OK)
        return rule;
    qsort(texts, n, sizeof *texts, compare);
    literals l = {.g = g, .texts = texts, .end = g->rules.data[rule].end};
    add_texts(&l, g->rules.data[rule].start, 0, n, 0);
    return rule;
}
