/* The functions of ops/cpu/simd.h and vmath.h made callable, once per processor level: tests hold
 * the levels against each other and against libm. */
#ifndef FL_TESTS_PROBE_H
#define FL_TESTS_PROBE_H

#include "base/cpu.h"

enum { FL_PROBE_LANES = 16 };

/* a, b, c and out: 16 elements each; c may also be read as bytes, out may hold integers. */
typedef struct fl_probe {
    const char *name;
    int arity; /* how many of a, b, c it reads */
    void (*run)(const float *a, const float *b, const float *c, float *out);
} fl_probe;

/* The probes of a level, ended by a NULL name, in the same order at each; NULL: not built. */
const fl_probe *fl_probes(fl_isa isa);

/* The highest level that is built and that this machine has. */
fl_isa fl_probe_top(void);

const fl_probe *fl_probe_find(fl_isa isa, const char *name);

#endif
