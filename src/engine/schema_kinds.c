/* The keywords of a schema: which are known, and what kinds of values they speak of. */
#include "engine/grammar_internal.h"

enum { NOTE = 256, GROUP = 512, TYPE = 1024, DEFS = 2048, VALUES = 4096 };

/* Kinds in the low bits: a keyword that restricts values of these. */
static const struct keyword {
    const char *name;
    unsigned what;
} keywords[] = {
    {"title", NOTE},
    {"description", NOTE},
    {"default", NOTE},
    {"example", NOTE},
    {"examples", NOTE},
    {"deprecated", NOTE},
    {"readOnly", NOTE},
    {"writeOnly", NOTE},
    {"contentEncoding", NOTE},
    {"contentMediaType", NOTE},
    {"$comment", NOTE},
    {"$schema", NOTE},
    {"$id", NOTE},
    {"$defs", DEFS},
    {"definitions", DEFS},
    {"type", TYPE},
    {"nullable", TYPE},
    {"$ref", GROUP},
    {"anyOf", GROUP},
    {"oneOf", GROUP},
    {"allOf", GROUP},
    {"enum", VALUES},
    {"const", VALUES},
    {"minLength", FL_KIND_STRING},
    {"maxLength", FL_KIND_STRING},
    {"pattern", FL_KIND_STRING},
    {"format", FL_KIND_STRING},
    {"minimum", FL_KIND_NUMBER},
    {"maximum", FL_KIND_NUMBER},
    {"exclusiveMinimum", FL_KIND_NUMBER},
    {"exclusiveMaximum", FL_KIND_NUMBER},
    {"items", FL_KIND_ARRAY},
    {"prefixItems", FL_KIND_ARRAY},
    {"minItems", FL_KIND_ARRAY},
    {"maxItems", FL_KIND_ARRAY},
    {"uniqueItems", FL_KIND_ARRAY},
    {"properties", FL_KIND_OBJECT},
    {"required", FL_KIND_OBJECT},
    {"additionalProperties", FL_KIND_OBJECT},
    {"minProperties", FL_KIND_OBJECT},
    {"maxProperties", FL_KIND_OBJECT},
};

static unsigned what_is(const char *name)
{
    for (size_t i = 0; i < sizeof keywords / sizeof *keywords; i++) {
        if (strcmp(keywords[i].name, name) == 0)
            return keywords[i].what;
    }
    return 0;
}

void fl_schema_check_keywords(fl_schema *c, const fl_json *schema, const char *path)
{
    for (void *it = fl_json_iter(schema); it; it = fl_json_next(schema, it)) {
        const char *name = fl_json_iter_key(it).data;
        if (!what_is(name))
            fl_grammar_fail(c->g, FL_ARGUMENT, "the schema keyword \"%.60s\" is not supported (%s)",
                            name, path);
    }
    if (fl_json_is(fl_json_get(schema, "uniqueItems"), FL_JSON_BOOL) &&
        fl_json_bool(fl_json_get(schema, "uniqueItems")))
        fl_grammar_fail(c->g, FL_ARGUMENT,
                        "the schema keyword \"uniqueItems\" is not supported (%s)", path);
}

bool fl_schema_only_notes(fl_schema *c, const fl_json *schema, const char *but, const char *path)
{
    for (void *it = fl_json_iter(schema); it; it = fl_json_next(schema, it)) {
        const char *name = fl_json_iter_key(it).data;
        unsigned what = what_is(name);
        if (what == NOTE || what == DEFS || strcmp(name, but) == 0 ||
            (what == TYPE && strcmp(but, "$ref") != 0))
            continue;
        fl_grammar_fail(c->g, FL_ARGUMENT, "%s: \"%.60s\" beside \"%s\" is not supported", path,
                        name, but);
        return false;
    }
    return true;
}

static unsigned kind_of_name(fl_schema *c, const fl_json *v, const char *path)
{
    static const struct {
        const char *name;
        unsigned kinds;
    } names[] = {{"null", FL_KIND_NULL},       {"boolean", FL_KIND_BOOL},
                 {"integer", FL_KIND_INTEGER}, {"number", FL_KIND_NUMBER | FL_KIND_INTEGER},
                 {"string", FL_KIND_STRING},   {"array", FL_KIND_ARRAY},
                 {"object", FL_KIND_OBJECT}};
    for (size_t i = 0; fl_json_is(v, FL_JSON_STRING) && i < sizeof names / sizeof *names; i++) {
        if (strcmp(names[i].name, fl_json_string(v).data) == 0)
            return names[i].kinds;
    }
    fl_grammar_fail(c->g, FL_ARGUMENT, "%s/type is not the name of a type, nor a list of such",
                    path);
    return 0;
}

unsigned fl_schema_kinds(fl_schema *c, const fl_json *schema, const char *path)
{
    const fl_json *type = fl_json_get(schema, "type"), *nullable = fl_json_get(schema, "nullable");
    unsigned kinds = 0, spoken = 0;
    if (fl_json_is(type, FL_JSON_ARRAY)) {
        for (size_t i = 0; i < fl_json_size(type); i++)
            kinds |= kind_of_name(c, fl_json_at(type, i), path);
        if (!kinds)
            fl_grammar_fail(c->g, FL_ARGUMENT, "%s/type is an empty list", path);
    } else if (type) {
        kinds = kind_of_name(c, type, path);
    }
    /* Without a type the values are of the kinds that the keywords are about. */
    for (void *it = fl_json_iter(schema); !type && it; it = fl_json_next(schema, it))
        spoken |= what_is(fl_json_iter_key(it).data);
    spoken &= FL_KIND_ALL;
    if (spoken & FL_KIND_NUMBER)
        spoken |= FL_KIND_INTEGER;
    if (!type)
        kinds = spoken ? spoken : FL_KIND_ALL;
    if (fl_json_is(nullable, FL_JSON_BOOL) && fl_json_bool(nullable))
        kinds |= FL_KIND_NULL;
    return kinds;
}
