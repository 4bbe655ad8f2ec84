/* Reading a regular expression of ECMA-262, as schemas use them.
 *
 * Where engines differ about Unicode (which digits \d takes, which blanks \s), a class in a pattern
 * takes what all of them take and a negated one leaves out what any of them would leave out: what
 * is written to a pattern matches it everywhere.  Not supported, and refused: references to groups,
 * looking ahead or behind, word borders, \p. */
#include "engine/grammar_internal.h"

enum { MAX_PATTERN = 4096, MAX_DEPTH = 64, MAX_TIMES = 1000 };

typedef struct parser {
    fl_bytes text;
    size_t at;
    int depth;
    fl_arena *arena;
    fl_error *err;
} parser;

static fl_status parse_alternatives(parser *p, fl_regex **out);

static fl_status refuse(parser *p, const char *what)
{
    return fl_fail(p->err, FL_ARGUMENT, "pattern \"%.*s\": %s (byte %zu)", (int)p->text.len,
                   p->text.data, what, p->at);
}

static fl_status no_memory(parser *p)
{
    return fl_fail(p->err, FL_NOMEM, "no memory for a pattern");
}

static int peek(const parser *p)
{
    return p->at < p->text.len ? (unsigned char)p->text.data[p->at] : -1;
}

static bool take(parser *p, char c)
{
    if (peek(p) != (unsigned char)c)
        return false;
    p->at++;
    return true;
}

static fl_regex *make(parser *p, fl_regex_kind kind, fl_regex *a, fl_regex *b)
{
    fl_regex *r = fl_arena_alloc(p->arena, sizeof *r);
    if (r)
        *r = (fl_regex){.kind = kind, .a = a, .b = b};
    return r;
}

static fl_status make_set(parser *p, const fl_charset *s, fl_regex **out)
{
    fl_regex *r = make(p, FL_REGEX_SET, NULL, NULL);
    fl_span *spans = r ? fl_arena_array(p->arena, s->n + 1, sizeof *spans) : NULL;
    if (!spans)
        return no_memory(p);
    if (s->n)
        memcpy(spans, s->data, s->n * sizeof *spans);
    r->spans = spans;
    r->n_spans = s->n;
    *out = r;
    return FL_OK;
}

static fl_status make_span(parser *p, uint32_t low, uint32_t high, fl_regex **out)
{
    fl_span span = {low, high};
    return make_set(p, &(fl_charset){.data = &span, .n = 1, .cap = 1}, out);
}

/* One character of the pattern, which is valid UTF-8 because it comes from JSON. */
static uint32_t next_char(parser *p)
{
    unsigned char c = (unsigned char)p->text.data[p->at++];
    if (c < 0x80)
        return c;
    int more = c >= 0xf0 ? 3 : c >= 0xe0 ? 2 : 1;
    uint32_t value = c & (0x3fu >> more);
    while (more-- && p->at < p->text.len)
        value = value << 6 | ((unsigned char)p->text.data[p->at++] & 0x3f);
    return value;
}

static fl_status read_hex(parser *p, int digits, uint32_t *out)
{
    *out = 0;
    for (int i = 0; i < digits; i++) {
        int c = peek(p), lower = c | 0x20;
        int value = c >= '0' && c <= '9'           ? c - '0'
                    : lower >= 'a' && lower <= 'f' ? lower - 'a' + 10
                                                   : -1;
        if (value < 0)
            return refuse(p, "a hexadecimal digit is missing");
        *out = *out * 16 + (uint32_t)value;
        p->at++;
    }
    return FL_OK;
}

/* ---- classes ---- */

static const fl_span digits[] = {{'0', '9'}},
                     words[] = {{'0', '9'}, {'A', 'Z'}, {'_', '_'}, {'a', 'z'}};
static const fl_span blanks[] = {{'\t', '\r'}, {' ', ' '}};
/* What some engine may take for a digit, a letter or a blank. */
static const fl_span maybe_digits[] = {
    {'0', '9'}, {0x660, 0x2fff}, {0xa000, 0xabff}, {0xe000, FL_CHAR_LAST}};
static const fl_span maybe_words[] = {
    {'0', '9'}, {'A', 'Z'}, {'_', '_'}, {'a', 'z'}, {0x80, FL_CHAR_LAST}};
static const fl_span maybe_blanks[] = {{'\t', '\r'},     {0x1c, ' '},      {0x85, 0x85},
                                       {0xa0, 0xa0},     {0x1680, 0x1680}, {0x180e, 0x180e},
                                       {0x2000, 0x200b}, {0x2028, 0x2029}, {0x202f, 0x202f},
                                       {0x205f, 0x205f}, {0x3000, 0x3000}, {0xfeff, 0xfeff}};
/* What "." leaves out. */
static const fl_span line_ends[] = {{'\n', '\n'}, {'\r', '\r'}, {0x85, 0x85}, {0x2028, 0x2029}};

#define SPANS(a) (a), sizeof(a) / sizeof *(a)

static bool add_spans(fl_charset *s, const fl_span *spans, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        if (!fl_charset_add(s, spans[i].low, spans[i].high))
            return false;
    }
    return true;
}

/* Adds all but the spans. */
static bool add_others(fl_charset *s, const fl_span *spans, size_t n)
{
    fl_charset not = {0};
    bool ok =
        add_spans(&not, spans, n) && fl_charset_invert(&not ) && add_spans(s, not .data, not .n);
    fl_vec_free(&not );
    return ok;
}

/* Adds \d, \w, \s or a negation of them; false when letter is none of these.  generous: for a set
 * that will be inverted. */
static bool add_class(fl_charset *s, int letter, bool generous, bool *ok)
{
    switch (letter) {
    case 'd':
        *ok = generous ? add_spans(s, SPANS(maybe_digits)) : add_spans(s, SPANS(digits));
        return true;
    case 'D':
        *ok = generous ? add_others(s, SPANS(digits)) : add_others(s, SPANS(maybe_digits));
        return true;
    case 'w':
        *ok = generous ? add_spans(s, SPANS(maybe_words)) : add_spans(s, SPANS(words));
        return true;
    case 'W':
        *ok = generous ? add_others(s, SPANS(words)) : add_others(s, SPANS(maybe_words));
        return true;
    case 's':
        *ok = generous ? add_spans(s, SPANS(maybe_blanks)) : add_spans(s, SPANS(blanks));
        return true;
    case 'S':
        *ok = generous ? add_others(s, SPANS(blanks)) : add_others(s, SPANS(maybe_blanks));
        return true;
    default:
        return false;
    }
}

/* The character that an escape after "\" stands for. */
static fl_status read_escape(parser *p, uint32_t *out)
{
    static const char letters[] = "tnvfr", values[] = "\t\n\v\f\r";
    int c = peek(p);
    const char *known = c > 0 ? strchr(letters, c) : NULL;
    if (c == 'x' || c == 'u') {
        p->at++;
        FL_TRY(read_hex(p, c == 'x' ? 2 : 4, out));
        if (*out >= FL_SURROGATE && *out < FL_SURROGATE_END)
            return refuse(p, "a surrogate is not a character");
        return FL_OK;
    }
    if (known) {
        p->at++;
        *out = (unsigned char)values[known - letters];
        return FL_OK;
    }
    if (c < 0 || (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z'))
        return refuse(p, "this escape is not supported");
    *out = next_char(p);
    return FL_OK;
}

/* One member of [...]: a character, or a class that goes into s at once. */
static fl_status read_member(parser *p, fl_charset *s, bool generous, uint32_t *c, bool *is_class)
{
    bool ok = true;
    *is_class = false;
    if (!take(p, '\\')) {
        *c = next_char(p);
        return FL_OK;
    }
    if (add_class(s, peek(p), generous, &ok)) {
        p->at++;
        *is_class = true;
        return ok ? FL_OK : no_memory(p);
    }
    if (take(p, 'b')) {
        *c = '\b';
        return FL_OK;
    }
    return read_escape(p, c);
}

static fl_status fill_set(parser *p, fl_charset *s, bool negated)
{
    while (!take(p, ']')) {
        uint32_t low, high;
        bool is_class;
        if (peek(p) < 0)
            return refuse(p, "] is missing");
        FL_TRY(read_member(p, s, negated, &low, &is_class));
        if (is_class)
            continue;
        high = low;
        if (p->at + 1 < p->text.len && peek(p) == '-' && p->text.data[p->at + 1] != ']') {
            p->at++;
            FL_TRY(read_member(p, s, negated, &high, &is_class));
            if (is_class || high < low)
                return refuse(p, "a range of characters is out of order");
        }
        if (!fl_charset_add(s, low, high))
            return no_memory(p);
    }
    return !negated || fl_charset_invert(s) ? FL_OK : no_memory(p);
}

static fl_status parse_set(parser *p, fl_regex **out)
{
    fl_charset s = {0};
    bool negated = take(p, '^');
    fl_status status = fill_set(p, &s, negated);
    if (status == FL_OK)
        status = make_set(p, &s, out);
    fl_vec_free(&s);
    return status;
}

static fl_status parse_class(parser *p, int letter, fl_regex **out)
{
    fl_charset s = {0};
    bool ok = true;
    fl_status status;
    if (letter == '.')
        ok = add_others(&s, SPANS(line_ends));
    else
        add_class(&s, letter, false, &ok);
    status = ok ? make_set(p, &s, out) : no_memory(p);
    fl_vec_free(&s);
    return status;
}

/* ---- the tree ---- */

static fl_status parse_group(parser *p, fl_regex **out)
{
    if (take(p, '?')) {
        if (take(p, '<') && peek(p) != '=' && peek(p) != '!') { /* a name */
            while (peek(p) >= 0 && !take(p, '>'))
                p->at++;
        } else if (!take(p, ':')) {
            return refuse(p, "groups of this kind are not supported");
        }
    }
    if (++p->depth > MAX_DEPTH)
        return refuse(p, "groups are nested too deep");
    FL_TRY(parse_alternatives(p, out));
    p->depth--;
    return take(p, ')') ? FL_OK : refuse(p, ") is missing");
}

static fl_status parse_atom(parser *p, fl_regex **out)
{
    uint32_t c;
    if (take(p, '('))
        return parse_group(p, out);
    if (take(p, '['))
        return parse_set(p, out);
    if (take(p, '.'))
        return parse_class(p, '.', out);
    if (take(p, '^'))
        return make_span(p, FL_REGEX_BEGIN, FL_REGEX_BEGIN, out);
    if (take(p, '$'))
        return make_span(p, FL_REGEX_END, FL_REGEX_END, out);
    if (peek(p) == '*' || peek(p) == '+' || peek(p) == '?')
        return refuse(p, "there is nothing to repeat");
    if (!take(p, '\\')) {
        c = next_char(p);
    } else if (peek(p) > 0 && strchr("dDwWsS", peek(p))) {
        return parse_class(p, (unsigned char)p->text.data[p->at++], out);
    } else {
        FL_TRY(read_escape(p, &c));
    }
    return make_span(p, c, c, out);
}

static bool read_number(parser *p, int *out)
{
    size_t begin = p->at;
    *out = 0;
    while (peek(p) >= '0' && peek(p) <= '9' && *out <= MAX_TIMES)
        *out = *out * 10 + (p->text.data[p->at++] - '0');
    return p->at > begin;
}

/* {n}, {n,} or {n,m}; anything else after "{" is a plain character. */
static bool read_braces(parser *p, int *min, int *max)
{
    size_t begin = p->at;
    if (take(p, '{') && read_number(p, min)) {
        *max = *min;
        if (take(p, ',') && !read_number(p, max))
            *max = -1;
        if (take(p, '}'))
            return true;
    }
    p->at = begin;
    return false;
}

static fl_status parse_repeat(parser *p, fl_regex **out)
{
    FL_TRY(parse_atom(p, out));
    for (int n = 0;; n++) {
        int min = 0, max = -1;
        if (take(p, '?'))
            max = 1;
        else if (take(p, '+'))
            min = 1;
        else if (!take(p, '*') && !read_braces(p, &min, &max))
            return FL_OK;
        take(p, '?'); /* lazy: the same strings */
        if (n > 0)
            return refuse(p, "there is nothing to repeat");
        if (min > MAX_TIMES || max > MAX_TIMES || (max >= 0 && max < min))
            return refuse(p, "a number of repetitions is too large or out of order");
        fl_regex *r = make(p, FL_REGEX_REPEAT, *out, NULL);
        if (!r)
            return no_memory(p);
        r->min = min;
        r->max = max;
        *out = r;
    }
}

static fl_status parse_sequence(parser *p, fl_regex **out)
{
    *out = make(p, FL_REGEX_EMPTY, NULL, NULL);
    if (!*out)
        return no_memory(p);
    while (peek(p) >= 0 && peek(p) != '|' && peek(p) != ')') {
        fl_regex *next;
        FL_TRY(parse_repeat(p, &next));
        *out = (*out)->kind == FL_REGEX_EMPTY ? next : make(p, FL_REGEX_CAT, *out, next);
        if (!*out)
            return no_memory(p);
    }
    return FL_OK;
}

static fl_status parse_alternatives(parser *p, fl_regex **out)
{
    FL_TRY(parse_sequence(p, out));
    while (take(p, '|')) {
        fl_regex *next;
        FL_TRY(parse_sequence(p, &next));
        *out = make(p, FL_REGEX_ALT, *out, next);
        if (!*out)
            return no_memory(p);
    }
    return FL_OK;
}

fl_status fl_regex_parse(fl_bytes pattern, fl_arena *arena, fl_regex **out, fl_error *err)
{
    parser p = {.text = pattern, .arena = arena, .err = err};
    if (pattern.len > MAX_PATTERN)
        return fl_fail(err, FL_ARGUMENT, "a pattern has %zu bytes, at most %d are supported",
                       pattern.len, MAX_PATTERN);
    FL_TRY(parse_alternatives(&p, out));
    return peek(&p) < 0 ? FL_OK : refuse(&p, ") has no (");
}
