/* A small set of operators and kernels to test the graph room with, apart from the real ones.
 *
 *   source         -> tokens [width]                    a number made of the token id and the
 * column add            x, y...  -> the sum                  all constant: a constant scale x -> by
 * * x                   kernels ref, phased, wide-avx2, wide-avx512, q8 (fast) and only4 (width 4)
 *   linear         x, W...  -> x W^T each
 *   split          x        -> x + 1, 3 x
 *   total          x, state -> the running sum of each sequence; writes the state
 *   gather_logits  x        -> the rows whose logits are wanted
 *   argmax         x        -> I32 [1]
 *   view           x        -> offset, dims
 *   orphan         x        -> x                        has no kernel */
#ifndef FL_TEST_FAKE_OPS_H
#define FL_TEST_FAKE_OPS_H

#include "graph/op.h"

extern const fl_registry fake_registry;

/* How often kernel->run was entered with phase 0 on thread 0, since it was last set to 0. */
extern int fake_calls;

float fake_source(int32_t id, int64_t column);

#endif
