/* Expressions (graph/expr.h) over tiles: each instruction runs over a whole tile that stays in the
 * first-level cache, so the program is interpreted once per 256 elements.  Lanes do not meet: the
 * result of an element does not depend on the tile it is in. */
#ifndef FL_OPS_CPU_TILE_H
#define FL_OPS_CPU_TILE_H

#include "graph/expr.h"
#include "ops/cpu/cpu_internal.h"

enum { FL_TILE = 256 }; /* elements; a multiple of the lanes */

#define fl_tile_run FL_CPU_NAME(fl_tile_run)

/* Runs e over the first n (1..FL_TILE) elements of its input tiles.  Inputs are readable up to n
 * rounded up to 16 elements; regs has FL_EXPR_MAX_REGS tiles.  The result, n elements, goes to out,
 * which may be an input. */
void fl_tile_run(const fl_expr *e, const float *const *inputs, int64_t n, float *regs, float *out);

#endif
