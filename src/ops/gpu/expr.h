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

#endif
#endif
