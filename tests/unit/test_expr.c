/* Expressions: compiled programs against C doubles, the shape of the code, and every message. */
#include "support/cmocka_all.h"

#include "base/mem.h"
#include "graph/expr.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

static float sigmoid(float x)
{
    return 1 / (1 + expf(-x));
}

/* Runs a program on one number per input: what the kernels do with tiles. */
static float run(const fl_expr *e, const float *in)
{
    float reg[FL_EXPR_MAX_REGS];
    for (int i = 0; i < FL_EXPR_MAX_REGS; i++)
        reg[i] = NAN;
    for (int i = 0; i <= e->n_code; i++) {
        fl_expr_operand o[2] = {e->result, {.src = FL_EXPR_CONST}};
        if (i < e->n_code) {
            o[0] = e->code[i].a;
            o[1] = e->code[i].b;
        }
        float v[2];
        for (int k = 0; k < 2; k++) {
            if (o[k].src == FL_EXPR_REG)
                assert_in_range(o[k].index, 0, e->n_regs - 1);
            if (o[k].src == FL_EXPR_INPUT)
                assert_in_range(o[k].index, 0, e->n_inputs - 1);
            v[k] = o[k].src == FL_EXPR_REG     ? reg[o[k].index]
                   : o[k].src == FL_EXPR_INPUT ? in[o[k].index]
                                               : o[k].value;
        }
        if (i == e->n_code)
            return v[0];
        float a = v[0], b = v[1], r = NAN;
        switch (e->code[i].op) {
        case FL_EXPR_ADD:
            r = a + b;
            break;
        case FL_EXPR_SUB:
            r = a - b;
            break;
        case FL_EXPR_MUL:
            r = a * b;
            break;
        case FL_EXPR_DIV:
            r = a / b;
            break;
        case FL_EXPR_NEG:
            r = -a;
            break;
        case FL_EXPR_TANH:
            r = tanhf(a);
            break;
        case FL_EXPR_SIGMOID:
            r = sigmoid(a);
            break;
        case FL_EXPR_SILU:
            r = a * sigmoid(a);
            break;
        case FL_EXPR_EXP:
            r = expf(a);
            break;
        case FL_EXPR_LOG:
            r = logf(a);
            break;
        case FL_EXPR_SOFTPLUS:
            r = log1pf(expf(a));
            break;
        case FL_EXPR_RELU:
            r = a > 0 ? a : 0;
            break;
        case FL_EXPR_SQRT:
            r = sqrtf(a);
            break;
        case FL_EXPR_RSQRT:
            r = 1 / sqrtf(a);
            break;
        case FL_EXPR_ABS:
            r = fabsf(a);
            break;
        case FL_EXPR_MIN:
            r = a < b ? a : b;
            break;
        case FL_EXPR_MAX:
            r = a > b ? a : b;
            break;
        case FL_EXPR_ERF:
            r = erff(a);
            break;
        case FL_EXPR_GELU:
            r = 0.5f * a * (1 + erff(a * 0.70710678f));
            break;
        }
        assert_in_range(e->code[i].dst, 0, e->n_regs - 1);
        reg[e->code[i].dst] = r;
    }
    return NAN;
}

static const fl_expr *compile(fl_arena *a, const char *text, const char *inputs, const char *consts)
{
    const fl_expr *e;
    fl_error err;
    if (fl_expr_compile(text, inputs, consts, a, &e, &err) != FL_OK)
        fail_msg("%s: %s", text, err.message);
    assert_in_range(e->n_regs, 0, FL_EXPR_MAX_REGS);
    assert_in_range(e->n_code, 0, FL_EXPR_MAX_CODE);
    return e;
}

static void test_values(void **state)
{
    (void)state;
    fl_arena a = {0};
    const double x = 0.7, y = -1.3, z = 2.5;
    const struct {
        const char *text;
        double want;
    } rows[] = {
        {"x", x},
        {"  x+y*z ", x + y * z},
        {"(x+y)*z", (x + y) * z},
        {"x-y-z", x - y - z},
        {"x-(y-z)", x - (y - z)},
        {"x/y/z", x / y / z},
        {"x/y*z", x / y * z},
        {"-x*y", -x * y},
        {"x*-y", x * -y},
        {"--x", x},
        {"x - -y", x + y},
        {"-(x+y)", -(x + y)},
        {"-tanh(-x)", tanh(x)},
        {"2*3+x", 6 + x},
        {"x+2*3", x + 6},
        {"1/(1+exp(-x))", 1 / (1 + exp(-x))},
        {"sigmoid(x)", 1 / (1 + exp(-x))},
        {"silu(y)", y / (1 + exp(-y))},
        {"log(z)", log(z)},
        {"softplus(y)", log1p(exp(y))},
        {"relu(y)+relu(x)", x},
        {"sqrt(z)*rsqrt(z)", 1},
        {"abs(y)", -y},
        {"min(x,y)", y},
        {"max( x , y )", x},
        {"erf(x)", erf(x)},
        {"gelu(y)", 0.5 * y * (1 + erf(y / sqrt(2)))},
        {"k*x + 1.5e1 - .5", 4 * x + 14.5},
        {"m", -0.25},
        {"3e-1*2.", 0.6},
        {"min(max(x,y)*z, -y) / (x - (y + z * (x + y)))",
         fmin(fmax(x, y) * z, -y) / (x - (y + z * (x + y)))},
        {"k*tanh(x/k)*sigmoid(x) * 25*tanh(z/25)",
         4 * tanh(x / 4) / (1 + exp(-x)) * 25 * tanh(z / 25)},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        const fl_expr *e = compile(&a, rows[i].text, "x, y,z", "k=4, m = -0.25");
        float got = run(e, (const float[]){(float)x, (float)y, (float)z});
        if (!(fabs(got - rows[i].want) < 2e-6 * (1 + fabs(rows[i].want))))
            fail_msg("%s = %g, expected %g", rows[i].text, got, rows[i].want);
    }
    fl_arena_free(&a);
}

/* Every function folded in the compiler agrees with the interpreter. */
static void test_folding(void **state)
{
    (void)state;
    fl_arena a = {0};
#define ROW(name, text, arity) text,
    const char *names[] = {FL_EXPR_MAP(ROW)};
#undef ROW
    for (size_t i = FL_EXPR_TANH; i < sizeof names / sizeof *names; i++) {
        bool two = strcmp(names[i], "min") == 0 || strcmp(names[i], "max") == 0;
        char open[64], folded[64];
        snprintf(open, sizeof open, "%s(x%s)", names[i], two ? ",y" : "");
        snprintf(folded, sizeof folded, "%s(0.4%s)", names[i], two ? ",-2" : "");
        const fl_expr *e = compile(&a, open, "x,y", ""), *f = compile(&a, folded, "", "");
        assert_int_equal(e->n_code, 1);
        assert_int_equal(f->n_code, 0);
        assert_int_equal(f->result.src, FL_EXPR_CONST);
        assert_true(fabsf(run(e, (const float[]){0.4f, -2}) - run(f, NULL)) < 1e-6f);
    }
    const fl_expr *e = compile(&a, "(2+3)*x*(1-k/2)", "x", "k=2");
    assert_int_equal(e->n_code, 2);
    e = compile(&a, "x", "x", "");
    assert_int_equal(e->n_code, 0);
    assert_int_equal(e->n_regs, 0);
    fl_arena_free(&a);
}

static void test_registers(void **state)
{
    (void)state;
    fl_arena a = {0};
    assert_int_equal(compile(&a, "x+y*(x+y*(x+y*(x+y)))", "x,y", "")->n_regs, 1);
    assert_int_equal(compile(&a, "(x+y)*(x-y)", "x,y", "")->n_regs, 2);
    assert_int_equal(compile(&a, "(x+y)*((x+y)*(x-y))", "x,y", "")->n_regs, 2);
    assert_int_equal(compile(&a, "((x+y)*(x-y))/((x+y)*(x-y))", "x,y", "")->n_regs, 3);
    fl_arena_free(&a);
}

/* Random trees: the program computes what the tree says. */
static uint32_t seed;

static uint32_t rnd(uint32_t n)
{
    seed = seed * 1664525u + 1013904223u;
    return (seed >> 8) % n;
}

static double random_tree(char *text, int *len, int depth, const double *in)
{
    if (depth == 0 || rnd(6) == 0) {
        uint32_t k = rnd(4);
        *len += sprintf(text + *len, "%s", (const char *[]){"p", "q", "r", "0.5"}[k]);
        return k == 3 ? 0.5 : in[k];
    }
    double a, b;
    switch (rnd(6)) {
    case 0:
        *len += sprintf(text + *len, "-");
        return -random_tree(text, len, depth - 1, in);
    case 1:
        *len += sprintf(text + *len, "tanh(");
        a = tanh(random_tree(text, len, depth - 1, in));
        *len += sprintf(text + *len, ")");
        return a;
    case 2:
        *len += sprintf(text + *len, "max(");
        a = random_tree(text, len, depth - 1, in);
        *len += sprintf(text + *len, ", ");
        b = random_tree(text, len, depth - 1, in);
        *len += sprintf(text + *len, ")");
        return fmax(a, b);
    default: {
        uint32_t op = rnd(3);
        *len += sprintf(text + *len, "(");
        a = random_tree(text, len, depth - 1, in);
        *len += sprintf(text + *len, "%c", "+-*"[op]);
        b = random_tree(text, len, depth - 1, in);
        *len += sprintf(text + *len, ")");
        return op == 0 ? a + b : op == 1 ? a - b : a * b;
    }
    }
}

static void test_random_trees(void **state)
{
    (void)state;
    int compiled = 0;
    for (uint32_t s = 1; s <= 2000; s++) {
        seed = s;
        fl_arena a = {0};
        char text[4000];
        int len = 0;
        double in[3];
        for (int i = 0; i < 3; i++)
            in[i] = rnd(2001) / 1000.0 - 1;
        double want = random_tree(text, &len, 6, in);
        const fl_expr *e;
        if (fl_expr_compile(text, "p,q,r", "", &a, &e, NULL) == FL_OK) {
            float got = run(e, (const float[]){(float)in[0], (float)in[1], (float)in[2]});
            if (!(fabs(got - want) < 1e-4 * (1 + fabs(want))))
                fail_msg("seed %u: %s = %g, expected %g", s, text, got, want);
            compiled++;
        } else {
            assert_true(len > FL_EXPR_MAX_CODE); /* too many operations is the only excuse */
        }
        fl_arena_free(&a);
    }
    assert_true(compiled > 1500);
}

static void refuse(const char *text, const char *inputs, const char *consts, const char *want)
{
    fl_arena a = {0};
    fl_error err;
    const fl_expr *e;
    assert_int_equal(fl_expr_compile(text, inputs, consts, &a, &e, &err), FL_MODEL);
    assert_null(e);
    if (!strstr(err.message, want))
        fail_msg("%.60s: message \"%s\" lacks \"%s\"", text, err.message, want);
    fl_arena_free(&a);
}

static void repeat(char *out, const char *piece, int n)
{
    out[0] = 0;
    for (int i = 0; i < n; i++)
        strcat(out, piece);
}

static void test_errors(void **state)
{
    (void)state;
    refuse("b*q", "b", "", "expression \"b*q\": column 3: unknown name \"q\"");
    refuse("b*(b+1", "b", "", "column 7: expected )");
    refuse("b)", "b", "", "column 2: expected an operator or the end");
    refuse("b b", "b", "", "column 3: expected an operator or the end");
    refuse("", "b", "", "column 1: expected a number, a name or (");
    refuse("b*", "b", "", "column 3: expected a number, a name or (");
    refuse("*b", "b", "", "column 1: expected a number, a name or (");
    refuse("b^2", "b", "", "column 2: expected an operator");
    refuse("sin(b)", "b", "", "column 1: unknown function \"sin\"");
    refuse("neg(b)", "b", "", "unknown function \"neg\"");
    refuse("max(b)", "b", "", "expected a comma: two arguments for \"max\"");
    refuse("exp(b,b)", "b", "", "expected ) after the arguments of \"exp\"");
    refuse("b+1/0", "b", "", "column 4: the result is not a finite number");
    refuse("log(-1)", "b", "", "not a finite number");
    refuse("1e99", "", "", "number out of range");
    refuse("1.2.3", "", "", "expected an operator");
    refuse("1e", "", "", "malformed number");
    refuse("2b", "b", "", "malformed number");
    refuse(".", "b", "", "malformed number");
    refuse("b\xc3\xa9", "b", "", "column 2");
    refuse("b", "b,b", "", "b stands for two things");
    refuse("b", "b", "b=1", "b stands for two things");
    refuse("b", "b c", "", "expected , at column 3");
    refuse("b", ",b", "", "malformed name at column 1");
    refuse("b", "b", "k", "k needs = and a number");
    refuse("b", "b", "k=x", "k needs = and a number");
    refuse("b", "b", "k=1e999", "k needs = and a number");
    refuse("b", "a,b,c,d,e,f,g,h,i,j,k,l,m", "", "more than 12 names");

    char text[4096];
    repeat(text, "(", 200);
    refuse(text, "b", "", "column 41: nested too deep");
    repeat(text, "-", 200);
    refuse(text, "b", "", "column 41: nested too deep");
    repeat(text, "abs(", 200);
    refuse(text, "b", "", "nested too deep");
    repeat(text, "b+", 64);
    fl_arena a = {0};
    compile(&a, strcat(text, "b"), "b", "");
    refuse(strcat(text, "+b"), "b", "", "column 130: more than 64 operations");
    fl_arena_free(&a);
    repeat(text, " ", 2000);
    refuse(strcat(text, "b"), "b", "", "longer than 2000 characters");
    repeat(text, "1+", 999);
    refuse(strcat(text, "$"), "b", "", "...1+1+");
}

/* Any bytes at all give a program or a message, never anything else. */
static void test_hostile_bytes(void **state)
{
    (void)state;
    static const char alphabet[] = "bq01.,+-*/()e \texp=max(\xff";
    for (uint32_t s = 1; s <= 20000; s++) {
        seed = s;
        char text[64] = "";
        int len = (int)rnd(40);
        for (int i = 0; i < len; i++)
            text[i] = alphabet[rnd(sizeof alphabet - 1)];
        fl_arena a = {0};
        const fl_expr *e;
        fl_error err;
        fl_status st = fl_expr_compile(text, "b", "", &a, &e, &err);
        assert_true(st == FL_OK || (st == FL_MODEL && strlen(err.message) > 0));
        st = fl_expr_compile("b", text, "", &a, &e, &err);
        assert_true(st == FL_OK || st == FL_MODEL);
        st = fl_expr_compile("1", "", text, &a, &e, &err);
        assert_true(st == FL_OK || st == FL_MODEL);
        fl_arena_free(&a);
    }
}

static void test_no_memory(void **state)
{
    (void)state;
    fl_arena a = {0};
    const fl_expr *e;
    fl_mem_fail_at(1);
    assert_int_equal(fl_expr_compile("b", "b", "", &a, &e, NULL), FL_NOMEM);
    fl_mem_fail_at(0);
    fl_arena_free(&a);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_values),    cmocka_unit_test(test_folding),
        cmocka_unit_test(test_registers), cmocka_unit_test(test_random_trees),
        cmocka_unit_test(test_errors),    cmocka_unit_test(test_hostile_bytes),
        cmocka_unit_test(test_no_memory),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
