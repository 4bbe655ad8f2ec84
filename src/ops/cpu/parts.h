/* Sums in double that the processor can run in parallel and that still have one order: element i
 * goes to part i mod 8, ascending; the parts are added in a tree. */
#ifndef FL_OPS_CPU_PARTS_H
#define FL_OPS_CPU_PARTS_H

#include <stdint.h>

enum { FL_PARTS = 8 };

static inline double fl_parts_join(const double *p)
{
    return ((p[0] + p[4]) + (p[2] + p[6])) + ((p[1] + p[5]) + (p[3] + p[7]));
}

#endif
