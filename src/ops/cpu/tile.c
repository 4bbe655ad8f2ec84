#include "ops/cpu/tile.h"

#include "ops/cpu/vmath.h"

/* An operand: a tile, or 16 copies of a number that are read again and again (step 0). */
typedef struct source {
    const float *p;
    int64_t step; /* 16 or 0 */
} source;

static vf vf_rsqrt(vf a)
{
    return vf_div(vf_set1(1.0f), vf_sqrt(a));
}

/* a < 0 ? 0 : a, so that NaN stays */
static vf vf_relu(vf a)
{
    return vf_select(vf_lt(a, vf_zero()), vf_zero(), a);
}

#define ONE(name, f)                                                                               \
    case FL_EXPR_##name:                                                                           \
        for (int64_t i = 0; i < vectors; i++)                                                      \
            vf_store(out + i * FL_LANES, f(vf_load(a.p + i * a.step)));                            \
        break;
#define TWO(name, f)                                                                               \
    case FL_EXPR_##name:                                                                           \
        for (int64_t i = 0; i < vectors; i++)                                                      \
            vf_store(out + i * FL_LANES, f(vf_load(a.p + i * a.step), vf_load(b.p + i * b.step))); \
        break;

static void apply(fl_expr_op op, source a, source b, int64_t vectors, float *out)
{
    switch (op) {
        TWO(ADD, vf_add)
        TWO(SUB, vf_sub)
        TWO(MUL, vf_mul)
        TWO(DIV, vf_div)
        TWO(MIN, vf_min)
        TWO(MAX, vf_max)
        ONE(NEG, vf_neg)
        ONE(TANH, vf_tanh)
        ONE(SIGMOID, vf_sigmoid)
        ONE(SILU, vf_silu)
        ONE(EXP, vf_exp)
        ONE(LOG, vf_log)
        ONE(SOFTPLUS, vf_softplus)
        ONE(RELU, vf_relu)
        ONE(SQRT, vf_sqrt)
        ONE(RSQRT, vf_rsqrt)
        ONE(ABS, vf_abs)
        ONE(ERF, vf_erf)
        ONE(GELU, vf_gelu)
    }
}

static source resolve(const fl_expr_operand *o, const float *const *inputs, const float *regs,
                      float *splat)
{
    if (o->src == FL_EXPR_INPUT)
        return (source){inputs[o->index], FL_LANES};
    if (o->src == FL_EXPR_REG)
        return (source){regs + o->index * FL_TILE, FL_LANES};
    vf_store(splat, vf_set1(o->value));
    return (source){splat, 0};
}

void fl_tile_run(const fl_expr *e, const float *const *inputs, int64_t n, float *regs, float *out)
{
    float splat_a[FL_LANES], splat_b[FL_LANES];
    int64_t vectors = (n + FL_LANES - 1) / FL_LANES;
    for (int i = 0; i < e->n_code; i++) {
        const fl_expr_instr *c = &e->code[i];
        apply(c->op, resolve(&c->a, inputs, regs, splat_a), resolve(&c->b, inputs, regs, splat_b),
              vectors, regs + c->dst * FL_TILE);
    }
    source r = resolve(&e->result, inputs, regs, splat_a);
    for (int64_t i = 0; i < n; i += FL_LANES)
        vf_storen(out + i, vf_load(r.p + i / FL_LANES * r.step),
                  n - i < FL_LANES ? (int)(n - i) : FL_LANES);
}
