/* JSON out, byte for byte as Python's json.dumps(ensure_ascii=False) writes it.
 *
 * Chat formats put tool schemas into the prompt as Python printed them in training, so a space or
 * a digit more would be another prompt.  jansson's own writer differs in floats and in the case of
 * escapes.  Trees come from fl_json_parse, whose depth limit bounds the recursion. */
#include "checkpoint/json.h"

#include "base/mem.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static bool put(fl_buf *out, const char *text)
{
    return fl_vec_append(out, text, strlen(text));
}

bool fl_json_quote(const char *text, size_t len, fl_buf *out)
{
    static const char short_form[] = {['\b'] = 'b', ['\t'] = 't', ['\n'] = 'n', ['\f'] = 'f',
                                      ['\r'] = 'r', ['"'] = '"',  ['\\'] = '\\'};
    size_t plain = 0; /* start of the run not yet copied */
    if (!put(out, "\""))
        return false;
    for (size_t i = 0; i < len; i++) {
        unsigned char c = (unsigned char)text[i];
        char escape[8];
        if (c < sizeof short_form && short_form[c])
            snprintf(escape, sizeof escape, "\\%c", short_form[c]);
        else if (c < 0x20)
            snprintf(escape, sizeof escape, "\\u%04x", c);
        else
            continue;
        if (!fl_vec_append(out, text + plain, i - plain) || !put(out, escape))
            return false;
        plain = i + 1;
    }
    return fl_vec_append(out, text + plain, len - plain) && put(out, "\"");
}

bool fl_json_real(double x, fl_buf *out)
{
    if (isnan(x))
        return put(out, "NaN");
    if (isinf(x))
        return put(out, x < 0 ? "-Infinity" : "Infinity");
    if (x == 0)
        return put(out, signbit(x) ? "-0.0" : "0.0");
    /* The fewest significant digits that read back as x; 17 always do. */
    char sci[32];
    for (int digits = 0; digits <= 16; digits++) {
        snprintf(sci, sizeof sci, "%.*e", digits, x);
        if (strtod(sci, NULL) == x)
            break;
    }
    int exp = (int)strtol(strchr(sci, 'e') + 1, NULL, 10);
    char digits[24], text[64];
    int n = 0;
    for (const char *p = sci; *p != 'e'; p++) {
        if (*p >= '0' && *p <= '9')
            digits[n++] = *p;
    }
    digits[n] = 0;
    const char *sign = x < 0 ? "-" : "";
    if (exp < -4 || exp >= 16)
        snprintf(text, sizeof text, "%s%c%s%se%c%02d", sign, digits[0], n > 1 ? "." : "",
                 digits + 1, exp < 0 ? '-' : '+', abs(exp));
    else if (exp < 0)
        snprintf(text, sizeof text, "%s0.%.*s%s", sign, -exp - 1, "0000", digits);
    else if (n <= exp + 1)
        snprintf(text, sizeof text, "%s%s%.*s.0", sign, digits, exp + 1 - n, "0000000000000000");
    else
        snprintf(text, sizeof text, "%s%.*s.%s", sign, exp + 1, digits, digits + exp + 1);
    return put(out, text);
}

typedef struct member {
    fl_bytes key;
    const fl_json *value;
} member;

/* Python sorts by code point, which is the byte order of UTF-8. */
static int by_key(const void *a, const void *b)
{
    fl_bytes x = ((const member *)a)->key, y = ((const member *)b)->key;
    int c = memcmp(x.data, y.data, x.len < y.len ? x.len : y.len);
    return c ? c : (x.len > y.len) - (x.len < y.len);
}

static fl_status dump_object(const fl_json *v, bool spaced, bool sorted, fl_buf *out)
{
    size_t n = fl_json_size(v), i = 0;
    member *members = fl_realloc_array(NULL, n, sizeof *members);
    if (!members)
        return FL_NOMEM;
    for (void *it = fl_json_iter(v); it; it = fl_json_next(v, it))
        members[i++] = (member){fl_json_iter_key(it), fl_json_iter_value(it)};
    if (sorted)
        qsort(members, n, sizeof *members, by_key);
    fl_status s = put(out, "{") ? FL_OK : FL_NOMEM;
    for (i = 0; s == FL_OK && i < n; i++) {
        if ((i && !put(out, spaced ? ", " : ",")) ||
            !fl_json_quote(members[i].key.data, members[i].key.len, out) ||
            !put(out, spaced ? ": " : ":"))
            s = FL_NOMEM;
        else
            s = fl_json_dump(members[i].value, spaced, sorted, out);
    }
    fl_free(members);
    if (s == FL_OK && !put(out, "}"))
        s = FL_NOMEM;
    return s;
}

static fl_status dump_array(const fl_json *v, bool spaced, bool sorted, fl_buf *out)
{
    if (!put(out, "["))
        return FL_NOMEM;
    for (size_t i = 0; i < fl_json_size(v); i++) {
        if (i && !put(out, spaced ? ", " : ","))
            return FL_NOMEM;
        FL_TRY(fl_json_dump(fl_json_at(v, i), spaced, sorted, out));
    }
    return put(out, "]") ? FL_OK : FL_NOMEM;
}

fl_status fl_json_dump(const fl_json *v, bool spaced, bool sorted, fl_buf *out)
{
    bool ok;
    char number[24];
    fl_bytes text;
    switch (fl_json_typeof(v)) {
    case FL_JSON_OBJECT:
        return dump_object(v, spaced, sorted, out);
    case FL_JSON_ARRAY:
        return dump_array(v, spaced, sorted, out);
    case FL_JSON_STRING:
        text = fl_json_string(v);
        ok = fl_json_quote(text.data, text.len, out);
        break;
    case FL_JSON_INT:
        snprintf(number, sizeof number, "%lld", (long long)fl_json_int(v));
        ok = put(out, number);
        break;
    case FL_JSON_REAL:
        ok = fl_json_real(fl_json_number(v), out);
        break;
    case FL_JSON_BOOL:
        ok = put(out, fl_json_bool(v) ? "true" : "false");
        break;
    default:
        ok = put(out, "null");
        break;
    }
    return ok ? FL_OK : FL_NOMEM;
}
