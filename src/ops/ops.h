/* The operators room: definitions (ops/def), plain-C truth (ops/ref) and CPU kernels (ops/cpu).
 * Rooms to the right use nothing of it but the registry; docs/internals/operators.md lists what is
 * in it. */
#ifndef FL_OPS_H
#define FL_OPS_H

#include "graph/op.h"

const fl_registry *fl_ops_registry(void);

#endif
