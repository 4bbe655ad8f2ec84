/* What the machine can do, measured by code of each processor level. */
#ifndef FL_BENCH_LIMITS_H
#define FL_BENCH_LIMITS_H

#include "base/cpu.h"

#include <stdint.h>

typedef struct fl_limits_probe {
    float (*fma)(int64_t rounds);                /* 16 x 16 x rounds multiply-adds in registers */
    float (*read)(const float *data, int64_t n); /* n: a multiple of 256 */
} fl_limits_probe;

extern const fl_limits_probe *const fl_limits_probes[FL_ISA_COUNT];

#endif
