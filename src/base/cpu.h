/* What this processor can do.  Kernels are compiled once per level and chosen at run time. */
#ifndef FL_BASE_CPU_H
#define FL_BASE_CPU_H

#include <stdbool.h>

/* Levels in rising order; each includes the ones before it.
 * BASE: whatever the compiler targets by default.  AVX2: x86-64-v3 (AVX2, FMA, F16C, BMI).
 * AVX512: x86-64-v4 (F, BW, CD, DQ, VL).  VNNI: AVX512 with VNNI, VBMI and BF16 (Zen 4,
 * Sapphire Rapids).  AMX: VNNI with tiles (AMX-BF16, AMX-INT8; Sapphire Rapids). */
typedef enum fl_isa {
    FL_ISA_BASE,
    FL_ISA_AVX2,
    FL_ISA_AVX512,
    FL_ISA_VNNI,
    FL_ISA_AMX,
    FL_ISA_COUNT
} fl_isa;

/* The highest level this machine has.  Tiles have to be asked for: the first call does it, for the
 * whole process. */
fl_isa fl_cpu_isa(void);
const char *fl_isa_name(fl_isa isa); /* "avx2" */
/* What the processor calls itself ("AMD EPYC 9R14"), or "unknown processor".  Returns out. */
enum { FL_CPU_NAME = 49 };
const char *fl_cpu_name(char out[FL_CPU_NAME]);
/* Whether lines that are fetched ahead had better wait in the second-level cache: on Intel's
 * processors, where few can be on their way to the first (docs/performance.md). */
bool fl_cpu_fetch_second(void);
/* Whether BF16 dot products (VNNI level) make no more than float32 ones: on Intel's processors,
 * whose tiles are to do this, half as much (docs/performance.md). */
bool fl_cpu_slow_bf16_dots(void);
int fl_cpu_count(void); /* processors this process may use */

#endif
