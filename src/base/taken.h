/* Shares of work that are taken part by part: by the worker whose share it is, and by others that
 * are done with theirs.  A header of its own, because C++ knows no C atomics and the kernels of a
 * GPU include pool.h. */
#ifndef FL_BASE_TAKEN_H
#define FL_BASE_TAKEN_H

#include "base/mem.h"

#include <stdatomic.h>
#include <stdint.h>

/* How many parts of a worker's share are taken. */
typedef struct fl_taken {
    _Alignas(FL_CACHE_LINE) atomic_int parts;
} fl_taken;

/* The number of the next part of a share, perhaps past its last: it is now the caller's. */
static inline int64_t fl_take(fl_taken *share)
{
    return atomic_fetch_add_explicit(&share->parts, 1, memory_order_relaxed);
}

#endif
