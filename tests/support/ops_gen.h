/* The generators, one per operator (ops_check.h): a file per kind of operator, a line here. */
#ifndef FL_TEST_OPS_GEN_H
#define FL_TEST_OPS_GEN_H

#include "support/ops_check.h"

#define OPS_GENS(X)                                                                                \
    X(embed)                                                                                       \
    X(rmsnorm)                                                                                     \
    X(l2norm)                                                                                      \
    X(layernorm)                                                                                   \
    X(rope)                                                                                        \
    X(linear)                                                                                      \
    X(conv1d)                                                                                      \
    X(delta_rule)                                                                                  \
    X(cache_write)                                                                                 \
    X(mla)                                                                                         \
    X(index_select)                                                                                \
    X(route)                                                                                       \
    X(experts)                                                                                     \
    X(residual_mix)                                                                                \
    X(expr)                                                                                        \
    X(gather_logits)                                                                               \
    X(pick)                                                                                        \
    X(cast)

#define OPS_GEN_DECLARE(op) extern const ops_gen ops_gen_##op;
OPS_GENS(OPS_GEN_DECLARE)
#undef OPS_GEN_DECLARE

#endif
