/* Patterns of tokenizer.json are run by Oniguruma in its Ruby syntax.  This rewrites one for PCRE2.
 *
 * Most is written alike and means the same.  What is written alike and means something else is
 * rewritten (\s, \v, scripts, the dot, intersections of sets) or, where the families at hand never
 * use it, refused: a wrong split is silent, so nothing passes that is not known to be equal. */
#include "text/text_internal.h"

typedef struct reader {
    const char *at, *end, *start;
    fl_buf *out;
    fl_error *err;
} reader;

static fl_status no_memory(const reader *r)
{
    return fl_fail(r->err, FL_NOMEM, "no memory for a pattern");
}

static fl_status refuse(const reader *r, const char *what)
{
    return fl_fail(r->err, FL_UNSUPPORTED, "pattern, at byte %zu: %s", (size_t)(r->at - r->start),
                   what);
}

static fl_status put(reader *r, const char *text)
{
    return fl_vec_append(r->out, text, strlen(text)) ? FL_OK : no_memory(r);
}

/* Copies n bytes of the pattern. */
static fl_status copy(reader *r, size_t n)
{
    if (!fl_vec_append(r->out, r->at, n))
        return no_memory(r);
    r->at += n;
    return FL_OK;
}

static bool is_letter(char c)
{
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
}

static bool is_digit(char c)
{
    return c >= '0' && c <= '9';
}

static bool is_hex(char c)
{
    return is_digit(c) || (c >= 'a' && c <= 'f') || (c >= 'A' && c <= 'F');
}

static bool next_is(const reader *r, const char *text)
{
    size_t n = strlen(text);
    return (size_t)(r->end - r->at) >= n && memcmp(r->at, text, n) == 0;
}

/* \p{Name}: a general category of one or two letters, or a script, whose plain name PCRE2 takes for
 * the script's extensions. */
static fl_status property(reader *r)
{
    const char *name = r->at + 3, *close = name;
    while (close < r->end && (is_letter(*close) || *close == '_'))
        close++;
    if (r->end - r->at < 4 || r->at[2] != '{' || close == r->end || *close != '}' || close == name)
        return refuse(r, "a property is written \\p{Name}");
    size_t n = (size_t)(close - name);
    FL_TRY(copy(r, 3));
    if (n > 2)
        FL_TRY(put(r, "sc:"));
    return copy(r, n + 1);
}

/* \uHHHH */
static fl_status code_point(reader *r)
{
    for (int i = 2; i < 6; i++) {
        if (r->end - r->at < 6 || !is_hex(r->at[i]))
            return refuse(r, "\\u needs four hexadecimal digits");
    }
    r->at += 2;
    FL_TRY(put(r, "\\x{"));
    FL_TRY(copy(r, 4));
    return put(r, "}");
}

/* A backslash and what follows, inside and outside of sets. */
static fl_status escape(reader *r)
{
    static const struct {
        char letter;
        const char *text;
    } table[] = {{'s', "\\p{wspace}"}, {'S', "\\P{wspace}"}, {'d', "\\p{Nd}"},
                 {'D', "\\P{Nd}"},     {'n', "\\n"},         {'r', "\\r"},
                 {'t', "\\t"},         {'f', "\\f"},         {'v', "\\x0b"}};
    if (r->end - r->at < 2)
        return refuse(r, "nothing follows the backslash");
    char c = r->at[1];
    if (c == 'p' || c == 'P')
        return property(r);
    if (c == 'u')
        return code_point(r);
    for (size_t i = 0; i < sizeof table / sizeof *table; i++) {
        if (table[i].letter == c) {
            r->at += 2;
            return put(r, table[i].text);
        }
    }
    if (is_letter(c) || is_digit(c) || (unsigned char)c >= 0x80)
        return refuse(r, "this escape is not known to mean the same here");
    return copy(r, 2);
}

static fl_status set(reader *r, int depth);

/* The members of a set up to "]" or "&&".  A set inside is one of the members. */
static fl_status members(reader *r, int depth)
{
    while (r->at < r->end && *r->at != ']' && !next_is(r, "&&")) {
        if (*r->at == '\\') {
            FL_TRY(escape(r));
        } else if (*r->at == '[') {
            if (depth || next_is(r, "[:") || next_is(r, "[^"))
                return refuse(r, "a set inside of a set");
            r->at++;
            FL_TRY(members(r, depth + 1));
            if (r->at == r->end || *r->at != ']')
                return refuse(r, "an intersection inside of a set");
            r->at++;
        } else {
            FL_TRY(copy(r, 1));
        }
    }
    return FL_OK;
}

/* One side of an intersection: a whole set, or members without brackets. */
static fl_status operand(reader *r, int depth)
{
    if (r->at < r->end && *r->at == '[' && !next_is(r, "[:"))
        return set(r, depth + 1);
    FL_TRY(put(r, "["));
    FL_TRY(members(r, 0));
    return put(r, "]");
}

/* [A&&B] is (?:(?=[A])[B]): the character is looked at first, then taken. */
static fl_status set(reader *r, int depth)
{
    size_t start = r->out->n;
    bool negated = next_is(r, "[^"), crossed = false;
    if (depth > 4)
        return refuse(r, "sets are nested too deeply");
    const char *open = r->at;
    r->at += negated ? 2 : 1;
    if (r->at < r->end && *r->at == ']')
        return refuse(r, "an empty set");
    FL_TRY(put(r, negated ? "[^" : "["));
    FL_TRY(members(r, 0));
    FL_TRY(put(r, "]"));
    while (next_is(r, "&&")) {
        if (negated || r->at == open + 1)
            return refuse(r, "an intersection that is negated or has an empty side");
        static const char look[] = "(?:(?=";
        size_t n = r->out->n - start, more = sizeof look - 1;
        if (!fl_vec_append(r->out, look, more))
            return no_memory(r);
        memmove(r->out->data + start + more, r->out->data + start, n);
        memcpy(r->out->data + start, look, more);
        FL_TRY(put(r, ")"));
        r->at += 2;
        FL_TRY(operand(r, depth));
        FL_TRY(put(r, ")"));
        crossed = true;
    }
    if (r->at == r->end || *r->at != ']')
        return refuse(r, crossed ? "more than one set after &&" : "a set without its end");
    r->at++;
    return FL_OK;
}

/* {n}, {n,} or {n,m} */
static fl_status interval(reader *r)
{
    const char *p = r->at + 1;
    while (p < r->end && is_digit(*p))
        p++;
    bool good = p > r->at + 1;
    if (p < r->end && *p == ',')
        p++;
    while (p < r->end && is_digit(*p))
        p++;
    if (!good || p == r->end || *p != '}')
        return refuse(r, "a brace that is no {n,m}");
    if (p + 1 < r->end && (p[1] == '+' || p[1] == '?'))
        return refuse(r, "a sign after {n,m} means another thing in each syntax");
    return copy(r, (size_t)(p + 1 - r->at));
}

static fl_status group(reader *r)
{
    static const char *const known[] = {"(?:", "(?=", "(?!", "(?<=", "(?<!", "(?>", "(?i:"};
    for (size_t i = 0; i < sizeof known / sizeof *known; i++) {
        if (next_is(r, known[i]))
            return copy(r, strlen(known[i]));
    }
    if (next_is(r, "(?") || next_is(r, "(*"))
        return refuse(r, "this kind of group");
    return copy(r, 1);
}

fl_status fl_ruby_pattern(fl_bytes pattern, fl_buf *out, fl_error *err)
{
    reader r = {pattern.data, pattern.data + pattern.len, pattern.data, out, err};
    while (r.at < r.end) {
        switch (*r.at) {
        case '\\':
            FL_TRY(escape(&r));
            break;
        case '[':
            FL_TRY(set(&r, 0));
            break;
        case '{':
            FL_TRY(interval(&r));
            break;
        case '(':
            FL_TRY(group(&r));
            break;
        case '.':
            r.at++;
            FL_TRY(put(&r, "[^\\n]"));
            break;
        case '^':
        case '$':
            return refuse(&r, "the begin or end of a line");
        case 0:
            return refuse(&r, "a zero byte");
        default:
            FL_TRY(copy(&r, 1));
        }
    }
    return fl_vec_push(out, 0) ? FL_OK : no_memory(&r);
}
