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

#endif
#endif
