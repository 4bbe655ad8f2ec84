/* Expressions: text to a register program in two steps.
 *
 * A recursive-descent parser reads the text and keeps one entry per operation that is left after
 * folding; operands are small values (an input, a number, or the index of an entry), so numbers
 * never take an entry.  Then the tree is written out operand by operand, the one that needs more
 * registers first, which gives the smallest number of registers there is: a tree of n operations
 * needs about log2 n, so FL_EXPR_MAX_CODE bounds the registers too. */
#include "graph/expr.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

enum { MAX_TEXT = 2000, MAX_DEPTH = 40, MAX_CONSTS = 32, MAX_NAME = 32 };

typedef struct name {
    const char *text;
    int len;
    float value; /* constants */
} name;

typedef struct parser {
    const char *text, *at;
    int depth;
    int n_inputs, n_consts;
    name inputs[FL_EXPR_MAX_INPUTS], consts[MAX_CONSTS];
    int n_tree;
    fl_expr_instr tree[FL_EXPR_MAX_CODE]; /* an operand REG is an index into tree */
    int need[FL_EXPR_MAX_CODE];           /* registers that an entry takes to compute */
    fl_error *err;
} parser;

static const struct {
    const char *text;
    int arity;
} ops[] = {
#define FL_EXPR_ROW(name, text, arity) {text, arity},
    FL_EXPR_MAP(FL_EXPR_ROW)
#undef FL_EXPR_ROW
};

enum { N_OPS = sizeof ops / sizeof *ops, FIRST_FUNCTION = FL_EXPR_NEG + 1 };

/* ---- messages ---- */

/* Reports what is wrong at a place of the text, with the column (from 1) and the text around. */
static fl_status wrong(const parser *p, const char *where, const char *what, const char *word,
                       int len)
{
    int column = (int)(where - p->text), total = (int)strlen(p->text);
    int from = column > 120 ? column - 60 : 0;
    int shown = total - from > 180 ? 180 : total - from;
    return fl_fail(p->err, FL_MODEL, "expression \"%s%.*s%s\": column %d: %s%s%.*s%s",
                   from ? "..." : "", shown, p->text + from, from + shown < total ? "..." : "",
                   column + 1, what, word ? " \"" : "", len, word ? word : "", word ? "\"" : "");
}

static fl_status wrong_here(const parser *p, const char *what)
{
    return wrong(p, p->at, what, NULL, 0);
}

/* ---- words ---- */

static bool is_digit(char c)
{
    return c >= '0' && c <= '9';
}

static bool is_letter(char c)
{
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_';
}

static const char *skip_space(const char *at)
{
    while (*at == ' ' || *at == '\t' || *at == '\n')
        at++;
    return at;
}

static int name_length(const char *at)
{
    int n = 0;
    if (is_letter(*at)) {
        while (is_letter(at[n]) || is_digit(at[n]))
            n++;
    }
    return n;
}

static const name *find(const name *list, int n, const char *text, int len)
{
    for (int i = 0; i < n; i++) {
        if (list[i].len == len && memcmp(list[i].text, text, (size_t)len) == 0)
            return &list[i];
    }
    return NULL;
}

/* Reads an unsigned number and returns its end, or NULL.  strtod would read it as the locale of the
 * embedding program says.  Exact for up to 15 digits and small exponents, else within a few units
 * of double rounding, far below the float32 it becomes. */
static const char *read_number(const char *at, double *out)
{
    double m = 0; /* the digits read as one integer */
    int scale = 0, digits = 0;
    for (; is_digit(*at); at++, digits++)
        m = m * 10 + (*at - '0');
    if (*at == '.') {
        for (at++; is_digit(*at); at++, digits++, scale--)
            m = m * 10 + (*at - '0');
    }
    if (!digits)
        return NULL;
    if (*at == 'e' || *at == 'E') {
        bool minus = at[1] == '-';
        at += at[1] == '-' || at[1] == '+' ? 2 : 1;
        if (!is_digit(*at))
            return NULL;
        int e = 0;
        for (; is_digit(*at); at++)
            e = e < 10000 ? e * 10 + (*at - '0') : e;
        scale += minus ? -e : e;
    }
    *out = scale < 0 ? m / pow(10, -scale) : m * pow(10, scale);
    return at;
}

/* ---- operations ---- */

static double apply(fl_expr_op op, double a, double b)
{
    switch (op) {
    case FL_EXPR_ADD:
        return a + b;
    case FL_EXPR_SUB:
        return a - b;
    case FL_EXPR_MUL:
        return a * b;
    case FL_EXPR_DIV:
        return a / b;
    case FL_EXPR_NEG:
        return -a;
    case FL_EXPR_TANH:
        return tanh(a);
    case FL_EXPR_SIGMOID:
        return 1 / (1 + exp(-a));
    case FL_EXPR_SILU:
        return a / (1 + exp(-a));
    case FL_EXPR_EXP:
        return exp(a);
    case FL_EXPR_LOG:
        return log(a);
    case FL_EXPR_SOFTPLUS:
        return fmax(a, 0) + log1p(exp(-fabs(a)));
    case FL_EXPR_RELU:
        return fmax(a, 0);
    case FL_EXPR_SQRT:
        return sqrt(a);
    case FL_EXPR_RSQRT:
        return 1 / sqrt(a);
    case FL_EXPR_ABS:
        return fabs(a);
    case FL_EXPR_MIN:
        return fmin(a, b);
    case FL_EXPR_MAX:
        return fmax(a, b);
    case FL_EXPR_ERF:
        return erf(a);
    case FL_EXPR_GELU:
        return 0.5 * a * (1 + erf(a * 0.70710678118654752440));
    }
    return 0;
}

/* The value of op over a and b: a number when both are, else a new entry of the tree. */
static fl_status combine(parser *p, const char *where, fl_expr_op op, fl_expr_operand a,
                         fl_expr_operand b, fl_expr_operand *out)
{
    if (a.src == FL_EXPR_CONST && b.src == FL_EXPR_CONST) {
        float value = (float)apply(op, a.value, b.value);
        if (!isfinite(value))
            return wrong(p, where, "the result is not a finite number", NULL, 0);
        *out = (fl_expr_operand){.src = FL_EXPR_CONST, .value = value};
        return FL_OK;
    }
    if (p->n_tree == FL_EXPR_MAX_CODE) {
        char text[64];
        snprintf(text, sizeof text, "more than %d operations", FL_EXPR_MAX_CODE);
        return wrong(p, where, text, NULL, 0);
    }
    int need_a = a.src == FL_EXPR_REG ? p->need[a.index] : 0;
    int need_b = b.src == FL_EXPR_REG ? p->need[b.index] : 0;
    int more = need_a > need_b ? need_a : need_b;
    p->need[p->n_tree] = need_a == need_b ? more + 1 : more;
    p->tree[p->n_tree] = (fl_expr_instr){.op = op, .a = a, .b = b};
    *out = (fl_expr_operand){.src = FL_EXPR_REG, .index = p->n_tree++};
    return FL_OK;
}

/* ---- the grammar ---- */

static const fl_expr_operand zero = {.src = FL_EXPR_CONST};

static fl_status parse_sum(parser *p, fl_expr_operand *out);

static bool take(parser *p, char c)
{
    p->at = skip_space(p->at);
    if (*p->at != c)
        return false;
    p->at++;
    return true;
}

static fl_status parse_call(parser *p, const char *where, int len, fl_expr_operand *out)
{
    int op = FIRST_FUNCTION;
    while (op < N_OPS && ((int)strlen(ops[op].text) != len || memcmp(ops[op].text, where, len)))
        op++;
    if (op == N_OPS)
        return wrong(p, where, "unknown function", where, len);
    fl_expr_operand a, b = zero;
    FL_TRY(parse_sum(p, &a));
    if (ops[op].arity == 2) {
        if (!take(p, ','))
            return wrong(p, p->at, "expected a comma: two arguments for", where, len);
        FL_TRY(parse_sum(p, &b));
    }
    if (!take(p, ')'))
        return wrong(p, p->at, "expected ) after the arguments of", where, len);
    return combine(p, where, (fl_expr_op)op, a, b, out);
}

static fl_status parse_name(parser *p, fl_expr_operand *out)
{
    const char *where = p->at;
    int len = name_length(where);
    p->at += len;
    if (take(p, '('))
        return parse_call(p, where, len, out);
    const name *found = find(p->inputs, p->n_inputs, where, len);
    if (found) {
        *out = (fl_expr_operand){.src = FL_EXPR_INPUT, .index = (int)(found - p->inputs)};
        return FL_OK;
    }
    found = find(p->consts, p->n_consts, where, len);
    if (!found)
        return wrong(p, where, "unknown name", where, len);
    *out = (fl_expr_operand){.src = FL_EXPR_CONST, .value = found->value};
    return FL_OK;
}

static fl_status parse_number(parser *p, fl_expr_operand *out)
{
    double value;
    const char *end = read_number(p->at, &value);
    if (!end || is_letter(*end))
        return wrong_here(p, "malformed number");
    if (!isfinite((float)value))
        return wrong_here(p, "number out of range");
    p->at = end;
    *out = (fl_expr_operand){.src = FL_EXPR_CONST, .value = (float)value};
    return FL_OK;
}

static fl_status parse_unary(parser *p, fl_expr_operand *out)
{
    p->at = skip_space(p->at);
    const char *where = p->at;
    fl_status status;
    if (p->depth == MAX_DEPTH)
        return wrong_here(p, "nested too deep");
    p->depth++;
    if (take(p, '-')) {
        fl_expr_operand a;
        FL_TRY(parse_unary(p, &a));
        status = combine(p, where, FL_EXPR_NEG, a, zero, out);
    } else if (take(p, '(')) {
        FL_TRY(parse_sum(p, out));
        status = take(p, ')') ? FL_OK : wrong_here(p, "expected )");
    } else if (is_letter(*where)) {
        status = parse_name(p, out);
    } else if (is_digit(*where) || *where == '.') {
        status = parse_number(p, out);
    } else {
        status = wrong_here(p, "expected a number, a name or (");
    }
    p->depth--;
    return status;
}

static fl_status parse_product(parser *p, fl_expr_operand *out)
{
    FL_TRY(parse_unary(p, out));
    for (;;) {
        const char *where = p->at = skip_space(p->at);
        if (*where != '*' && *where != '/')
            return FL_OK;
        p->at++;
        fl_expr_operand right;
        FL_TRY(parse_unary(p, &right));
        FL_TRY(combine(p, where, *where == '*' ? FL_EXPR_MUL : FL_EXPR_DIV, *out, right, out));
    }
}

static fl_status parse_sum(parser *p, fl_expr_operand *out)
{
    FL_TRY(parse_product(p, out));
    for (;;) {
        const char *where = p->at = skip_space(p->at);
        if (*where != '+' && *where != '-')
            return FL_OK;
        p->at++;
        fl_expr_operand right;
        FL_TRY(parse_product(p, &right));
        FL_TRY(combine(p, where, *where == '+' ? FL_EXPR_ADD : FL_EXPR_SUB, *out, right, out));
    }
}

/* ---- the lists of names ---- */

/* Reads "a, b" (values false) or "a = 1, b = -2" into list. */
static fl_status parse_list(parser *p, const char *what, const char *text, bool values, name *list,
                            int max, int *n)
{
    const char *at = skip_space(text);
    while (*at) {
        name one = {.text = at, .len = name_length(at)};
        if (one.len == 0 || one.len > MAX_NAME)
            return fl_fail(p->err, FL_MODEL,
                           "expression %s \"%.200s\": malformed name at column %d", what, text,
                           (int)(at - text) + 1);
        if (*n == max)
            return fl_fail(p->err, FL_MODEL, "expression %s \"%.200s\": more than %d names", what,
                           text, max);
        if (find(p->inputs, p->n_inputs, at, one.len) || find(p->consts, p->n_consts, at, one.len))
            return fl_fail(p->err, FL_MODEL, "expression %s \"%.200s\": %.*s stands for two things",
                           what, text, one.len, at);
        at = skip_space(at + one.len);
        if (values) {
            double value = 0;
            const char *number = *at == '=' ? skip_space(at + 1) : at;
            bool minus = *number == '-';
            const char *end = *at == '=' ? read_number(number + minus, &value) : NULL;
            if (!end || !isfinite((float)value))
                return fl_fail(p->err, FL_MODEL,
                               "expression %s \"%.200s\": %.*s needs = and a number", what, text,
                               one.len, one.text);
            one.value = (float)(minus ? -value : value);
            at = skip_space(end);
        }
        list[(*n)++] = one;
        if (*at == ',')
            at = skip_space(at + 1);
        else if (*at)
            return fl_fail(p->err, FL_MODEL, "expression %s \"%.200s\": expected , at column %d",
                           what, text, (int)(at - text) + 1);
    }
    return FL_OK;
}

/* ---- writing the program ---- */

/* Writes the instructions for an operand; a result of the tree goes to register base, and registers
 * below base are kept. */
static fl_expr_operand emit(const parser *p, fl_expr *e, fl_expr_operand a, int base)
{
    if (a.src != FL_EXPR_REG)
        return a;
    fl_expr_instr in = p->tree[a.index];
    bool both = in.a.src == FL_EXPR_REG && in.b.src == FL_EXPR_REG;
    if (both && p->need[in.b.index] > p->need[in.a.index]) {
        in.b = emit(p, e, in.b, base);
        in.a = emit(p, e, in.a, base + 1);
    } else {
        in.a = emit(p, e, in.a, base);
        in.b = emit(p, e, in.b, both ? base + 1 : base);
    }
    in.dst = base;
    e->code[e->n_code++] = in;
    return (fl_expr_operand){.src = FL_EXPR_REG, .index = base};
}

fl_status fl_expr_compile(const char *text, const char *inputs, const char *constants,
                          fl_arena *arena, const fl_expr **out, fl_error *err)
{
    *out = NULL;
    parser p = {.text = text, .at = text, .err = err};
    if (strlen(text) > MAX_TEXT || strlen(inputs) > MAX_TEXT || strlen(constants) > MAX_TEXT)
        return fl_fail(err, FL_MODEL, "expression \"%.60s...\": longer than %d characters", text,
                       MAX_TEXT);
    FL_TRY(parse_list(&p, "inputs", inputs, false, p.inputs, FL_EXPR_MAX_INPUTS, &p.n_inputs));
    FL_TRY(parse_list(&p, "constants", constants, true, p.consts, MAX_CONSTS, &p.n_consts));
    fl_expr_operand result;
    FL_TRY(parse_sum(&p, &result));
    if (*p.at)
        return wrong_here(&p, "expected an operator or the end");
    fl_expr *e = fl_arena_alloc(arena, sizeof *e);
    if (!e)
        return fl_fail(err, FL_NOMEM, "no memory for an expression");
    e->n_inputs = p.n_inputs;
    e->n_regs = result.src == FL_EXPR_REG ? p.need[result.index] : 0;
    e->result = emit(&p, e, result, 0);
    *out = e;
    return FL_OK;
}
