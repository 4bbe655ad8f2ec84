/* What each operation of an expression (graph/expr.h) is in float32, for one element: the
 * definition that the plain kernel and the GPU's share.  X(name, formula of a and b).  Of minus
 * infinity, silu and gelu are their limit. */
#ifndef FL_OPS_EXPR_FORMULAS_H
#define FL_OPS_EXPR_FORMULAS_H

#define FL_EXPR_FORMULAS(X)                                                                        \
    X(ADD, a + b)                                                                                  \
    X(SUB, a - b)                                                                                  \
    X(MUL, (a * b))                                                                                \
    X(DIV, a / b)                                                                                  \
    X(NEG, -a)                                                                                     \
    X(TANH, tanhf(a))                                                                              \
    X(SIGMOID, 1 / (1 + expf(-a)))                                                                 \
    X(SILU, a < -3.4e38f ? -0.0f : (a * (1 / (1 + expf(-a)))))                                     \
    X(EXP, expf(a))                                                                                \
    X(LOG, logf(a))                                                                                \
    X(SOFTPLUS, a > 20 ? a : log1pf(expf(a)))                                                      \
    X(RELU, a < 0 ? 0 : a)                                                                         \
    X(SQRT, sqrtf(a))                                                                              \
    X(RSQRT, 1 / sqrtf(a))                                                                         \
    X(ABS, fabsf(a))                                                                               \
    X(MIN, a < b ? a : b)                                                                          \
    X(MAX, a > b ? a : b)                                                                          \
    X(ERF, erff(a))                                                                                \
    X(GELU, a < -3.4e38f ? -0.0f : 0.5f * a * (1 + erff(a * 0.70710678118654752f)))

/* A case of a switch that returns the formula's value. */
#define FL_EXPR_CASE(name, formula)                                                                \
    case FL_EXPR_##name:                                                                           \
        return formula;

#endif
