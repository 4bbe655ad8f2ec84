/* References: "#" and "#/$defs/name", JSON pointers into the same document. */
#include "engine/grammar_internal.h"

/* One piece of a pointer, unescaped into out; false when it is too long. */
static bool piece(const char *at, const char *end, char *out, size_t size)
{
    size_t n = 0;
    while (at < end) {
        char c = *at++;
        if (c == '~' && at < end) {
            c = *at == '1' ? '/' : '~';
            at++;
        } else if (c == '%' && end - at >= 2 && at[0] == '2' && (at[1] == '4' || at[1] == '5')) {
            c = at[1] == '4' ? '$' : '%';
            at += 2;
        }
        if (n + 1 >= size)
            return false;
        out[n++] = c;
    }
    out[n] = '\0';
    return true;
}

static const fl_json *step(const fl_json *from, const char *name)
{
    if (fl_json_is(from, FL_JSON_OBJECT))
        return fl_json_get(from, name);
    size_t index = 0;
    if (!fl_json_is(from, FL_JSON_ARRAY) || !*name || strlen(name) > 6)
        return NULL;
    for (; *name; name++) {
        if (*name < '0' || *name > '9')
            return NULL;
        index = index * 10 + (size_t)(*name - '0');
    }
    return index < fl_json_size(from) ? fl_json_at(from, index) : NULL;
}

const fl_json *fl_schema_target(fl_schema *c, const fl_json *ref, const char *path)
{
    char name[256];
    const fl_json *at = c->root;
    const char *text = fl_json_is(ref, FL_JSON_STRING) ? fl_json_string(ref).data : NULL;
    if (!text || text[0] != '#' || (text[1] && text[1] != '/')) {
        fl_grammar_fail(c->g, FL_ARGUMENT,
                        "%s/$ref: only references into the schema itself (#/...) are supported",
                        path);
        return NULL;
    }
    for (text++; at && *text;) {
        const char *end = text + 1 + strcspn(text + 1, "/");
        at = piece(text + 1, end, name, sizeof name) ? step(at, name) : NULL;
        text = end;
    }
    if (!at)
        fl_grammar_fail(c->g, FL_ARGUMENT, "%s/$ref: there is no \"%.100s\"", path,
                        fl_json_string(ref).data);
    return at;
}
