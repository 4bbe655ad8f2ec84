/* Expressions: the elementwise formulas of a model file, compiled to a small register program.
 *
 *   b*tanh(g/b)*sigmoid(g) * l*tanh(u/l)        with g, u inputs and b = 4, l = 25
 *
 * Grammar: + - * / unary minus, parentheses, numbers, names, and the functions tanh sigmoid silu
 * exp log softplus relu sqrt rsqrt abs min max erf gelu.  gelu is the exact one, with erf.  Numbers
 * are folded at compile time; nothing else is re-ordered, so rounding is that of the text read from
 * left to right.  The program is data; the vector kernels of op "expr" (and of operators that take
 * an activation, such as "experts") run it over tiles that stay in the first-level cache. */
#ifndef FL_GRAPH_EXPR_H
#define FL_GRAPH_EXPR_H

#include "base/arena.h"
#include "base/status.h"

enum { FL_EXPR_MAX_INPUTS = 12, FL_EXPR_MAX_REGS = 16, FL_EXPR_MAX_CODE = 64 };

#define FL_EXPR_MAP(X)                                                                             \
    X(ADD, "+", 2)                                                                                 \
    X(SUB, "-", 2)                                                                                 \
    X(MUL, "*", 2)                                                                                 \
    X(DIV, "/", 2)                                                                                 \
    X(NEG, "neg", 1)                                                                               \
    X(TANH, "tanh", 1)                                                                             \
    X(SIGMOID, "sigmoid", 1)                                                                       \
    X(SILU, "silu", 1)                                                                             \
    X(EXP, "exp", 1)                                                                               \
    X(LOG, "log", 1)                                                                               \
    X(SOFTPLUS, "softplus", 1)                                                                     \
    X(RELU, "relu", 1)                                                                             \
    X(SQRT, "sqrt", 1)                                                                             \
    X(RSQRT, "rsqrt", 1)                                                                           \
    X(ABS, "abs", 1)                                                                               \
    X(MIN, "min", 2)                                                                               \
    X(MAX, "max", 2)                                                                               \
    X(ERF, "erf", 1)                                                                               \
    X(GELU, "gelu", 1)

typedef enum fl_expr_op {
#define FL_EXPR_ENUM(name, text, arity) FL_EXPR_##name,
    FL_EXPR_MAP(FL_EXPR_ENUM)
#undef FL_EXPR_ENUM
} fl_expr_op;

/* An operand: an input tile, a register tile, or a number. */
typedef enum fl_expr_src { FL_EXPR_INPUT, FL_EXPR_REG, FL_EXPR_CONST } fl_expr_src;
typedef struct fl_expr_operand {
    fl_expr_src src;
    int index;   /* INPUT, REG */
    float value; /* CONST */
} fl_expr_operand;

typedef struct fl_expr_instr {
    fl_expr_op op;
    int dst;              /* register; may be one of the operands */
    fl_expr_operand a, b; /* of one-argument operations b is the number 0 */
} fl_expr_instr;

typedef struct fl_expr {
    int n_inputs, n_regs, n_code;
    fl_expr_operand result; /* usually the register of the last instruction */
    fl_expr_instr code[FL_EXPR_MAX_CODE];
} fl_expr;

/* Compiles text.  inputs: comma-separated names in the order of the operands ("g,u"); constants:
 * "b=4,l=25" or "".  Errors show the text and the column.  The result lives in the arena. */
FL_MUST_CHECK fl_status fl_expr_compile(const char *text, const char *inputs, const char *constants,
                                        fl_arena *arena, const fl_expr **out, fl_error *err);

#endif
