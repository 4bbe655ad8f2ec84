/* expr: the program of graph/expr.h run for one element at a time. */
#include "ops/ref/ref_internal.h"

#include "base/pool.h"
#include "ops/expr_formulas.h"

#include <math.h>

static float apply(fl_expr_op op, float a, float b)
{
    switch (op) {
        FL_EXPR_FORMULAS(FL_EXPR_CASE)
    }
    return NAN;
}

static float operand(const fl_expr_operand *o, const float *inputs, const float *regs)
{
    return o->src == FL_EXPR_INPUT ? inputs[o->index]
           : o->src == FL_EXPR_REG ? regs[o->index]
                                   : o->value;
}

float fl_ref_expr(const fl_expr *e, const float *inputs)
{
    float regs[FL_EXPR_MAX_REGS] = {0};
    for (int i = 0; i < e->n_code; i++) {
        const fl_expr_instr *c = &e->code[i];
        regs[c->dst] = apply(c->op, operand(&c->a, inputs, regs), operand(&c->b, inputs, regs));
    }
    return operand(&e->result, inputs, regs);
}

/* Element of an operand's row that meets element i of the output's row. */
static int64_t meets(const fl_type *out, const fl_type *in, int64_t i)
{
    int64_t at = 0, step = 1;
    for (int d = 1; d <= in->ndim; d++) { /* from the last dim on */
        int64_t size = in->dim[in->ndim - d], whole = out->dim[out->ndim - d];
        at += size == 1 ? 0 : i % whole * step;
        step *= size;
        i /= whole;
    }
    return at;
}

static void run(const fl_call *call, const fl_step *step, int phase, const fl_worker *worker)
{
    (void)phase;
    const fl_arg *y = &call->out[0];
    int64_t width = fl_type_width(&y->type), begin, end;
    fl_split(fl_rows_now(step, y->type.rows), 1, worker->thread, worker->n_threads, &begin, &end);
    for (int64_t r = begin; r < end; r++) {
        for (int64_t i = 0; i < width; i++) {
            float v[FL_EXPR_MAX_INPUTS];
            for (int k = 0; k < call->n_in; k++) {
                const fl_arg *x = &call->in[k];
                int64_t row = x->type.rows == FL_ROWS_CONST ? 0 : r;
                v[k] = fl_row_f32(x, row)[meets(&y->type, &x->type, i)];
            }
            fl_row_f32(y, r)[i] = fl_ref_expr(call->prep, v);
        }
    }
}

static const fl_kernel kernels[] = {{.op = "expr", .name = "ref", .n_phases = 1, .run = run}};
const fl_kernel_list fl_ref_kernels_expr = FL_KERNEL_LIST(kernels);
