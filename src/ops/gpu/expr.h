/* Running a compiled expression (graph/expr.h) for one element.  The program travels as an argument
 * of the kernel, so every thread of a warp executes the same instruction at the same time. */
#ifndef FL_OPS_GPU_EXPR_H
#define FL_OPS_GPU_EXPR_H

#include "ops/gpu/gpu.h"

#ifdef __CUDACC__

static __device__ inline float expr_sigmoid(float x)
{
    return 1 / (1 + expf(-x));
}

static __device__ inline float expr_apply(int op, float a, float b)
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
        return tanhf(a);
    case FL_EXPR_SIGMOID:
        return expr_sigmoid(a);
    case FL_EXPR_SILU:
        return a * expr_sigmoid(a);
    case FL_EXPR_EXP:
        return expf(a);
    case FL_EXPR_LOG:
        return logf(a);
    case FL_EXPR_SOFTPLUS:
        return a > 20 ? a : log1pf(expf(a));
    case FL_EXPR_RELU:
        return a < 0 ? 0 : a;
    case FL_EXPR_SQRT:
        return sqrtf(a);
    case FL_EXPR_RSQRT:
        return 1 / sqrtf(a);
    case FL_EXPR_ABS:
        return fabsf(a);
    case FL_EXPR_MIN:
        return a < b ? a : b;
    case FL_EXPR_MAX:
        return a > b ? a : b;
    case FL_EXPR_ERF:
        return erff(a);
    default: /* FL_EXPR_GELU */
        return 0.5f * a * (1 + erff(a * 0.70710678118654752f));
    }
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
