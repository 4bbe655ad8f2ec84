/* What the kernels of mla's expanded form share (mla_expand_mma.cu, mla_attend_mma.cu).
 *
 * With three parts the six greatest products of parts are taken.  The unit adds them up, the least
 * first, and cuts off what a float32 does not hold, so the greatest products have an accumulator of
 * their own, or one of 64 elements that is then added to a float32. */
#ifndef FL_OPS_GPU_MLA_TILES_H
#define FL_OPS_GPU_MLA_TILES_H

#include "ops/gpu/mla_expand.h"
#include "ops/gpu/tiles.h"

enum { KEY_PLANES = 3 /* two of a head's own, one common */, VALUE_HALVES = 2 };

#endif
