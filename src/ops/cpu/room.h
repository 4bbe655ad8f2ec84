/* Cutting a kernel's scratch into arrays.  One function names the arrays; with base NULL it only
 * measures (fl_kernel.scratch), with the memory it hands the arrays out. */
#ifndef FL_OPS_CPU_ROOM_H
#define FL_OPS_CPU_ROOM_H

#include "base/mem.h"

typedef struct fl_room {
    unsigned char *base;
    size_t used;
} fl_room;

/* count elements of `size` bytes, aligned to a cache line.  A size beyond all memory stays so. */
static inline void *fl_room_take(fl_room *r, int64_t count, size_t size)
{
    size_t at = r->used, bytes;
    if (__builtin_mul_overflow((size_t)count, size, &bytes) || bytes > SIZE_MAX / 4 ||
        at > SIZE_MAX / 4) {
        r->used = SIZE_MAX / 2;
        return NULL;
    }
    r->used += (bytes + FL_CACHE_LINE - 1) / FL_CACHE_LINE * FL_CACHE_LINE;
    return r->base ? r->base + at : NULL;
}

static inline float *fl_room_floats(fl_room *r, int64_t count)
{
    return fl_room_take(r, count, sizeof(float));
}

/* n rounded up to whole vectors of 16. */
static inline int64_t fl_padded(int64_t n)
{
    return (n + 15) / 16 * 16;
}

#endif
