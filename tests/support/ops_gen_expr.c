/* Cases of expr, and the error analysis that says how close an expression's value can be told. */
#include "graph/expr.h"

#include "support/ops_gen.h"

#include <math.h>
#include <string.h>

/* ---- error analysis ---- */

typedef struct number {
    double value, error; /* error in units of the tolerance */
} number;

static double sigmoid(double x)
{
    return 1 / (1 + exp(-x));
}

/* Value of an operation and its slope; binary operations are done by the caller. */
static double unary(fl_expr_op op, double x, double *slope)
{
    double s = sigmoid(x), bell = exp(-x * x / 2) / sqrt(2 * 3.14159265358979);
    switch (op) {
    case FL_EXPR_NEG:
        return *slope = 1, -x;
    case FL_EXPR_TANH:
        return *slope = 1 - tanh(x) * tanh(x), tanh(x);
    case FL_EXPR_SIGMOID:
        return *slope = s * (1 - s), s;
    case FL_EXPR_SILU:
        return *slope = s + fabs(x) * s * (1 - s), x * s;
    case FL_EXPR_EXP:
        return *slope = exp(x);
    case FL_EXPR_LOG:
        return *slope = 1 / x, log(x);
    case FL_EXPR_SOFTPLUS:
        return *slope = s, x > 20 ? x : log1p(exp(x));
    case FL_EXPR_RELU:
        return *slope = 1, x < 0 ? 0 : x;
    case FL_EXPR_SQRT:
        return *slope = 0.5 / sqrt(x), sqrt(x);
    case FL_EXPR_RSQRT:
        return *slope = 0.5 / (x * sqrt(x)), 1 / sqrt(x);
    case FL_EXPR_ABS:
        return *slope = 1, fabs(x);
    case FL_EXPR_ERF:
        return *slope = 2 / sqrt(3.14159265358979) * exp(-x * x), erf(x);
    case FL_EXPR_GELU:
        return *slope = 1 + fabs(x) * bell, 0.5 * x * (1 + erf(x / sqrt(2)));
    default:
        return *slope = INFINITY, NAN;
    }
}

static number step(fl_expr_op op, number a, number b)
{
    double slope, x = a.value, y = b.value;
    number r;
    switch (op) {
    case FL_EXPR_ADD:
        r = (number){x + y, a.error + b.error};
        break;
    case FL_EXPR_SUB:
        r = (number){x - y, a.error + b.error};
        break;
    case FL_EXPR_MUL:
        r = (number){x * y, fabs(x) * b.error + fabs(y) * a.error};
        break;
    case FL_EXPR_DIV:
        r = (number){x / y, a.error / fabs(y) + fabs(x / y / y) * b.error};
        break;
    case FL_EXPR_MIN:
        r = (number){x < y ? x : y, fmax(a.error, b.error)};
        break;
    case FL_EXPR_MAX:
        r = (number){x > y ? x : y, fmax(a.error, b.error)};
        break;
    default:
        r.value = unary(op, x, &slope);
        r.error = a.error ? slope * a.error : 0;
        /* erf and gelu come from 1 - something small on their flat sides. */
        if (op == FL_EXPR_GELU)
            r.error += fabs(x);
    }
    r.error += fabs(r.value) + 1.2e-32; /* small numbers may vanish */
    return r;
}

/* True where a float follows the double: no overflow, no operand whose sign or whose being above
 * zero hangs on its error, and none so uncertain that the slope says too little, unless it is far
 * out, where every function but those of a domain is flat or straight. */
static bool tame(fl_expr_op op, number a, number b, number r)
{
    const double unit = 1e-5, off_a = a.error * unit, off_b = b.error * unit;
    bool domain = op == FL_EXPR_LOG || op == FL_EXPR_SQRT || op == FL_EXPR_RSQRT;
    bool curved = !domain && op > FL_EXPR_NEG && op != FL_EXPR_RELU && op != FL_EXPR_ABS &&
                  op != FL_EXPR_MIN && op != FL_EXPR_MAX;
    if (domain && a.error && !(fabs(a.value) > 4 * off_a))
        return false;
    if (op == FL_EXPR_DIV && b.error && !(fabs(b.value) > 4 * off_b))
        return false;
    if (curved && off_a > 0.1 && !(fabs(a.value) - 4 * off_a > 100))
        return false;
    return !isfinite(r.value) || (fabs(r.value) < 1e37 && isfinite(r.error));
}

double ops_expr_error(const fl_expr *e, const double *value, const double *error, double *result)
{
    number regs[FL_EXPR_MAX_REGS] = {{0}};
    bool sure = true;
    for (int i = 0; i <= e->n_code; i++) {
        const fl_expr_operand *from[2] = {&e->result, NULL};
        number v[2] = {{0}};
        if (i < e->n_code) {
            from[0] = &e->code[i].a;
            from[1] = &e->code[i].b;
        }
        for (int k = 0; k < 2 && from[k]; k++) {
            v[k] = (number){from[k]->value, 0};
            if (from[k]->src == FL_EXPR_INPUT)
                v[k] = (number){value[from[k]->index], error[from[k]->index]};
            else if (from[k]->src == FL_EXPR_REG)
                v[k] = regs[from[k]->index];
        }
        if (i == e->n_code) {
            *result = v[0].value;
            return sure && !isnan(v[0].error) ? v[0].error : INFINITY;
        }
        number r = step(e->code[i].op, v[0], v[1]);
        sure = sure && tame(e->code[i].op, v[0], v[1], r);
        regs[e->code[i].dst] = r;
    }
    return INFINITY;
}

/* ---- cases ---- */

/* Formulas of the model files and others that use every function. */
static const char *const formulas[] = {
    "4*tanh(a/4)*sigmoid(a) * 25*tanh(b/25)",
    "silu(a)*b",
    "-5*sigmoid(exp(c)*(a+b))",
    "-exp(c)*softplus(a+b)",
    "a*sigmoid(b)",
    "a+b",
    "a-b*c",
    "gelu(a)*b",
    "erf(a)+b/c",
    "max(a,b)-min(b,c)",
    "relu(a)*abs(b)",
    "sqrt(abs(a))+log(abs(b))",
    "rsqrt(abs(a)+1)*c",
    "tanh(a)*exp(-abs(b))/(1+c*c)",
    "a",
    "-a",
};

typedef struct text {
    char s[400];
    size_t n;
} text;

static void put(text *t, const char *s)
{
    for (; *s && t->n < sizeof t->s - 1; s++)
        t->s[t->n++] = *s;
}

/* A random formula of some depth. */
static void grow(rng *r, int depth, text *t)
{
    static const char *const leaves[] = {"a", "b", "c"}, *const numbers[] = {"0.5", "3", "-20"};
    static const char *const functions[] = {"tanh",     "sigmoid", "silu", "exp",   "log",
                                            "softplus", "relu",    "sqrt", "rsqrt", "abs",
                                            "erf",      "gelu",    "-"};
    static const char *const operators[] = {"+", "-", "*", "/"};
    if (depth == 0 || rng_one_in(r, 5)) {
        put(t, leaves[rng_int(r, 0, 2)]);
        return;
    }
    bool unary_one = rng_one_in(r, 2);
    int op = (int)rng_int(r, 0, 5);
    if (unary_one)
        put(t, functions[rng_int(r, 0, 12)]);
    else if (op > 3)
        put(t, op == 4 ? "min" : "max");
    put(t, "(");
    grow(r, depth - 1, t);
    if (!unary_one) {
        put(t, op > 3 ? "," : operators[op]);
        if (rng_one_in(r, 4)) /* never two: what is folded must be finite */
            put(t, numbers[rng_int(r, 0, 2)]);
        else
            grow(r, depth - 1, t);
    }
    put(t, ")");
}

/* Dims that broadcast into dim: some become 1, some leading ones go. */
static int thinned(rng *r, int ndim, const int64_t *dim, int64_t *out)
{
    int drop = rng_one_in(r, 3) ? (int)rng_int(r, 0, ndim) : 0;
    for (int i = drop; i < ndim; i++)
        out[i - drop] = rng_one_in(r, 4) ? 1 : dim[i];
    return ndim - drop;
}

static void make_expr(tc *c)
{
    rng *r = c->random;
    tc_step_random(c, 12, 200);
    int ndim = (int)rng_int(r, 1, 3);
    int64_t dim[3], some[3];
    for (int i = 0; i < ndim; i++)
        dim[i] = rng_int(r, 1, i == ndim - 1 ? (rng_one_in(r, 6) ? 1500 : 40) : 4);
    fl_rows rows = ops_row_symbol(c);
    bool constant = rng_one_in(r, 12); /* all three */
    for (int i = 0; i < 3; i++) {
        int n = thinned(r, ndim, dim, some), in;
        if (constant || (i > 0 && rng_one_in(r, 3))) {
            in = tc_const(c, FL_F32, 1, n, some);
        } else {
            in = tc_rows(c, rows, FL_F32, n, some);
            ops_special(c, in, true);
        }
        if (rng_one_in(r, 4)) {
            for (int64_t j = 0;
                 j < fl_type_width(&c->in_type[in]) && tc_n_rows(c, c->in_type[in].rows); j++)
                tc_f32(c, in, 0)[j] *= 20;
        }
    }
    text t = {{0}, 0};
    if (rng_one_in(r, 2))
        grow(r, 3, &t);
    else
        put(&t, formulas[rng_int(r, 0, sizeof formulas / sizeof *formulas - 1)]);
    char *own = tc_alloc(c, t.n + 1, 1);
    memcpy(own, t.s, t.n + 1);
    tc_text(c, "text", own);
    tc_text(c, "inputs", "a,b,c");
}

/* Where element i of the output's row looks in an operand's row. */
static int64_t meets(const fl_type *out, const fl_type *in, int64_t i)
{
    int64_t index[FL_MAX_DIMS], at = 0;
    for (int d = out->ndim - 1; d >= 0; d--) {
        index[d] = i % out->dim[d];
        i /= out->dim[d];
    }
    for (int d = 0; d < in->ndim; d++)
        at = at * in->dim[d] + (in->dim[d] == 1 ? 0 : index[d + out->ndim - in->ndim]);
    return at;
}

static void expr_magnitude(tc *c, bool fast, ops_magnitude *m)
{
    (void)fast;
    static const double exact[3] = {0, 0, 0};
    const fl_type *t = &c->out_type[0];
    int64_t width = fl_type_width(t);
    for (int64_t i = 0; i < tc_n_rows(c, t->rows) * width; i++) {
        double v[3], result;
        for (int k = 0; k < 3; k++) {
            int64_t row = c->in_type[k].rows == FL_ROWS_CONST ? 0 : i / width;
            v[k] = tc_f32(c, k, row)[meets(t, &c->in_type[k], i % width)];
        }
        m->out[0][i] = (float)ops_expr_error(c->prep, v, exact, &result);
    }
}

const ops_gen ops_gen_expr = {"expr", make_expr, expr_magnitude, 1e-6, false};
