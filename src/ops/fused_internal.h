/* What deciding (fused.c) and writing (fused_source.c) share. */
#ifndef FL_OPS_FUSED_INTERNAL_H
#define FL_OPS_FUSED_INTERNAL_H

#include "ops/fused.h"

typedef enum fl_fused_kind {
    FL_FUSED_EXPR,
    FL_FUSED_CONV,
    FL_FUSED_RMS,
    FL_FUSED_L2,
    FL_FUSED_MIX,
    FL_FUSED_NOT
} fl_fused_kind;

fl_fused_kind fl_fused_kind_of(const char *op);

/* The call of the joint, before this one, that made operand a; -1: none did. */
int fl_fused_maker(const fl_fused *f, int before, const fl_arg *a);
/* Where operand a, which no call of the joint made, or an output stands in f->arg; n_args: not
 * there. */
int fl_fused_place(const fl_fused *f, const fl_arg *a);

#endif
