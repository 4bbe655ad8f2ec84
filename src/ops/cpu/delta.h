/* What the two forms of delta_rule share: the operands of a call, and the token recurrence. */
#ifndef FL_OPS_CPU_DELTA_H
#define FL_OPS_CPU_DELTA_H

#include "ops/cpu/cpu_internal.h"

typedef struct fl_delta {
    int64_t heads, dk, dv;
    const fl_arg *q, *k, *v, *g, *beta, *out; /* rows of [heads][dk]; v, out: of [heads][dv] */
    const fl_state_pool *pool;
} fl_delta;

#define fl_delta_of FL_CPU_NAME(fl_delta_of)
#define fl_delta_strips FL_CPU_NAME(fl_delta_strips)
#define fl_delta_floats FL_CPU_NAME(fl_delta_floats)
#define fl_delta_tokens FL_CPU_NAME(fl_delta_tokens)

fl_delta fl_delta_of(const fl_call *call, const fl_step *step);

int64_t fl_delta_strips(int64_t dv);       /* strips of columns that a head is cut into */
int64_t fl_delta_floats(const fl_type *q); /* floats of scratch */

/* Takes one strip of head h through the n rows from `row` on.  state: the head's [dk][dv], rows ld
 * apart. */
void fl_delta_tokens(const fl_delta *d, int64_t h, int64_t strip, int64_t row, int64_t n,
                     float *state, int64_t ld, float *scratch);

#endif
