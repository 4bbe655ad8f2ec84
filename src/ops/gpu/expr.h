/* Running a compiled expression (graph/expr.h) for one element.  The program travels as an argument
 * of the kernel, so every thread of a warp executes the same instruction at the same time. */
#ifndef FL_OPS_GPU_EXPR_H
#define FL_OPS_GPU_EXPR_H

#include "ops/expr_formulas.h"
#include "ops/gpu/gpu.h"

#ifdef __CUDACC__

static __device__ inline float expr_apply(fl_expr_op op, float a, float b)
{
    switch (op) {
        FL_EXPR_FORMULAS(FL_EXPR_CASE)
    }
    return NAN;
}

static __device__ inline float expr_operand(const fl_expr_operand &o, const float *inputs,
                                            const float *regs)
{
    return o.src == FL_EXPR_INPUT ? inputs[o.index]
           : o.src == FL_EXPR_REG ? regs[o.index]
                                  : o.value;
}

static __device__ inline float expr_run(const fl_expr &e, const float *inputs)
{
    float regs[FL_EXPR_MAX_REGS];
    for (int i = 0; i < e.n_code; i++) {
        const fl_expr_instr &c = e.code[i];
        float b = c.b.src == FL_EXPR_CONST ? c.b.value : expr_operand(c.b, inputs, regs);
        regs[c.dst] = expr_apply(c.op, expr_operand(c.a, inputs, regs), b);
    }
    return expr_operand(e.result, inputs, regs);
}

/* The same for V elements at once, which share the looking at the program: in[k] has input k. */
template <int V>
static __device__ inline void expr_operands(const fl_expr_operand &o, const float (*in)[V],
                                            const float (*regs)[V], float to[V])
{
    const float *from = o.src == FL_EXPR_INPUT ? in[o.index] : regs[o.index];
#pragma unroll
    for (int v = 0; v < V; v++)
        to[v] = o.src == FL_EXPR_CONST ? o.value : from[v];
}

#define EXPR_CASE_MANY(name, formula)                                                              \
    case FL_EXPR_##name:                                                                           \
        _Pragma("unroll") for (int v = 0; v < V; v++)                                              \
        {                                                                                          \
            const float a = x[v], b = y[v];                                                        \
            (void)b;                                                                               \
            to[v] = formula;                                                                       \
        }                                                                                          \
        break;

template <int V>
static __device__ inline void expr_run_many(const fl_expr &e, const float (*in)[V], float out[V])
{
    float regs[FL_EXPR_MAX_REGS][V], x[V], y[V];
    for (int i = 0; i < e.n_code; i++) {
        const fl_expr_instr &c = e.code[i];
        float *to = regs[c.dst];
        expr_operands<V>(c.a, in, regs, x);
        expr_operands<V>(c.b, in, regs, y);
        switch (c.op) {
            FL_EXPR_FORMULAS(EXPR_CASE_MANY)
        }
    }
    expr_operands<V>(e.result, in, regs, out);
}
#undef EXPR_CASE_MANY

/* ---- programs that are known when a kernel is compiled, but for their numbers ----
 *
 * Kernels that have no time to look at a program have these for the usual gates of experts. */

typedef struct expr_step {
    fl_expr_op op;
    int dst;
    fl_expr_src a;
    int a_index;
    fl_expr_src b;
    int b_index;
} expr_step;

/* silu(g) * u */
struct expr_silu_gate {
    enum { N = 2 };
    static constexpr expr_step steps[N] = {{FL_EXPR_SILU, 0, FL_EXPR_INPUT, 0, FL_EXPR_CONST, 0},
                                           {FL_EXPR_MUL, 0, FL_EXPR_REG, 0, FL_EXPR_INPUT, 1}};
};

/* b * tanh(g / b) * sigmoid(g) * l * tanh(u / l) */
struct expr_tanh_gate {
    enum { N = 9 };
    static constexpr expr_step steps[N] = {{FL_EXPR_DIV, 0, FL_EXPR_INPUT, 0, FL_EXPR_CONST, 0},
                                           {FL_EXPR_TANH, 0, FL_EXPR_REG, 0, FL_EXPR_CONST, 0},
                                           {FL_EXPR_MUL, 0, FL_EXPR_CONST, 0, FL_EXPR_REG, 0},
                                           {FL_EXPR_SIGMOID, 1, FL_EXPR_INPUT, 0, FL_EXPR_CONST, 0},
                                           {FL_EXPR_MUL, 0, FL_EXPR_REG, 0, FL_EXPR_REG, 1},
                                           {FL_EXPR_MUL, 0, FL_EXPR_REG, 0, FL_EXPR_CONST, 0},
                                           {FL_EXPR_DIV, 1, FL_EXPR_INPUT, 1, FL_EXPR_CONST, 0},
                                           {FL_EXPR_TANH, 1, FL_EXPR_REG, 1, FL_EXPR_CONST, 0},
                                           {FL_EXPR_MUL, 0, FL_EXPR_REG, 0, FL_EXPR_REG, 1}};
};

static inline bool expr_operand_is(const fl_expr_operand &o, fl_expr_src src, int index)
{
    return o.src == src && (src == FL_EXPR_CONST || o.index == index);
}

template <class P> static inline bool expr_is(const fl_expr &e)
{
    bool same = e.n_code == P::N && expr_operand_is(e.result, FL_EXPR_REG, 0);
    for (int i = 0; i < P::N && same; i++) {
        const expr_step &s = P::steps[i];
        same = e.code[i].op == s.op && e.code[i].dst == s.dst &&
               expr_operand_is(e.code[i].a, s.a, s.a_index) &&
               expr_operand_is(e.code[i].b, s.b, s.b_index);
    }
    return same;
}

/* expr_run_many for a program that is P. */
template <class P, int V, int I = 0>
static __device__ inline void expr_run_known(const fl_expr &e, const float (*in)[V],
                                             float (*regs)[V], float out[V])
{
    if constexpr (I < P::N) {
        constexpr expr_step s = P::steps[I];
#pragma unroll
        for (int v = 0; v < V; v++) {
            float a = s.a == FL_EXPR_INPUT ? in[s.a_index][v]
                      : s.a == FL_EXPR_REG ? regs[s.a_index][v]
                                           : e.code[I].a.value;
            float b = s.b == FL_EXPR_INPUT ? in[s.b_index][v]
                      : s.b == FL_EXPR_REG ? regs[s.b_index][v]
                                           : e.code[I].b.value;
            regs[s.dst][v] = expr_apply(s.op, a, b);
        }
        expr_run_known<P, V, I + 1>(e, in, regs, out);
    } else {
#pragma unroll
        for (int v = 0; v < V; v++)
            out[v] = regs[0][v];
    }
}

#endif
#endif
