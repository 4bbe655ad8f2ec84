/* The reference kernels: plain C, one file per kind of operator, written to be read.  Sums are kept
 * in double, so that what remains is the rounding of the result; every other kernel is held against
 * these (tests/unit/test_ops.c).  They need nothing of the processor and are never the fast way. */
#ifndef FL_OPS_REF_INTERNAL_H
#define FL_OPS_REF_INTERNAL_H

#include "graph/expr.h"
#include "graph/op.h"

/* Every file in this folder that has kernels: it defines `const fl_kernel_list
 * fl_ref_kernels_FILE`. */
#define FL_REF_FILES(X)                                                                            \
    X(norm)                                                                                        \
    X(rope)                                                                                        \
    X(linear)                                                                                      \
    X(rows)                                                                                        \
    X(pick)                                                                                        \
    X(conv)                                                                                        \
    X(delta_rule)                                                                                  \
    X(mla)                                                                                         \
    X(index_select)                                                                                \
    X(route)                                                                                       \
    X(experts)                                                                                     \
    X(mix)                                                                                         \
    X(expr)

#define FL_REF_DECLARE(file) extern const fl_kernel_list fl_ref_kernels_##file;
FL_REF_FILES(FL_REF_DECLARE)
#undef FL_REF_DECLARE

/* Runs a compiled expression on one value per input. */
float fl_ref_expr(const fl_expr *e, const float *inputs);

double fl_ref_dot(const float *a, const float *b, int64_t n);

/* index_select: the score of one position for one row. */
float fl_ref_index_score(const fl_call *call, const fl_step *step, int32_t row, int64_t pos);

/* n elements of a weight from element `first` on, as float.  The type is one that infer accepts. */
void fl_ref_decode(const fl_tensor *t, int64_t first, int64_t n, float *out);

#endif
