/* Sums in double that the processor can run in parallel and that still have one order: element i
 * goes to part i mod 32, ascending; the parts are added in a tree.  And the vectors of doubles that
 * such loops are written on: how wide they are does not show in a result. */
#ifndef FL_OPS_CPU_PARTS_H
#define FL_OPS_CPU_PARTS_H

#include <stdint.h>

#if defined(__AVX512F__)
enum { FL_WIDE = 8 };
#else
enum { FL_WIDE = 4 };
#endif
enum { FL_PARTS = 32, FL_PART_VECTORS = FL_PARTS / FL_WIDE };

typedef double fl_wide __attribute__((vector_size(8 * FL_WIDE)));
/* The floats that one fl_wide is made from or rounded to, wherever they lie. */
typedef float fl_narrow __attribute__((vector_size(4 * FL_WIDE), aligned(4), may_alias));

#define FL_WIDEN(p) __builtin_convertvector(*(const fl_narrow *)(p), fl_wide)
#define FL_ROUND(p, a) (*(fl_narrow *)(p) = __builtin_convertvector(a, fl_narrow))

typedef union fl_parts {
    fl_wide v[FL_PART_VECTORS];
    double x[FL_PARTS];
} fl_parts;

static inline double fl_parts_join(fl_parts *p)
{
    for (int half = FL_PART_VECTORS / 2; half; half /= 2) {
        for (int j = 0; j < half; j++)
            p->v[j] += p->v[j + half];
    }
    for (int half = FL_WIDE / 2; half; half /= 2) {
        for (int j = 0; j < half; j++)
            p->x[j] += p->x[j + half];
    }
    return p->x[0];
}

#endif
