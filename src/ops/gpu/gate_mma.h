/* The usual gates of experts as precision fast computes them, with the processor's approximations
 * (relative errors of up to 2^-11, a quarter of the rounding to BF16 that follows): exactly, they
 * take longer than the products that they wait for. */
#ifndef FL_OPS_GPU_GATE_MMA_H
#define FL_OPS_GPU_GATE_MMA_H

#include "ops/gpu/expr.h"

/* Which of the programs of expr.h an activation is. */
typedef enum expert_gate { GATE_ANY, GATE_SILU, GATE_TANH } expert_gate;

#ifdef __CUDACC__

static inline expert_gate gate_of(const fl_expr *act)
{
    return act && expr_is<expr_silu_gate>(*act)   ? GATE_SILU
           : act && expr_is<expr_tanh_gate>(*act) ? GATE_TANH
                                                  : GATE_ANY;
}

static __device__ inline float fast_tanh(float x)
{
    float y;
    asm("tanh.approx.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

static __device__ inline float fast_sigmoid(float x)
{
    return __fdividef(1, 1 + __expf(-x));
}

/* A gate that is not GATE_ANY. */
static __device__ inline float fast_gate(expert_gate gate, const fl_expr &act, float g, float u)
{
    if (gate == GATE_SILU)
        return g * fast_sigmoid(g) * u;
    float high = act.code[2].a.value * act.code[5].b.value;
    return fast_tanh(g * __fdividef(1, act.code[0].b.value)) * fast_sigmoid(g) *
           (high * fast_tanh(u * __fdividef(1, act.code[6].b.value)));
}

/* One element, with activations in so many parts. */
template <int PARTS>
static __device__ inline float gate_run(expert_gate gate, const fl_expr &act, float g, float u)
{
    const float in[2][1] = {{g}, {u}};
    float regs[2][1], out[1];
    if (gate == GATE_ANY)
        return expr_run(act, &in[0][0]);
    if (PARTS == 1)
        return fast_gate(gate, act, g, u);
    if (gate == GATE_SILU)
        expr_run_known<expr_silu_gate, 1>(act, in, regs, out);
    else
        expr_run_known<expr_tanh_gate, 1>(act, in, regs, out);
    return out[0];
}

#endif
#endif
