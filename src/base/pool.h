/* A thread pool for short parallel regions.  fl_pool_run gives the same task to every worker (the
 * caller is worker 0) and returns when all are done; inside a task fl_pool_barrier joins them.
 * Workers spin for a short while, then sleep, so a region costs well under a microsecond while a
 * step runs and nothing while the program waits.  A pool is used by one thread at a time. */
#ifndef FL_BASE_POOL_H
#define FL_BASE_POOL_H

#include "base/status.h"

typedef struct fl_pool fl_pool;
typedef void (*fl_task)(void *ctx, int thread, int n_threads);

/* n_threads >= 1, the caller included; 1 makes no thread at all. */
FL_MUST_CHECK fl_status fl_pool_create(int n_threads, fl_pool **out, fl_error *err);
void fl_pool_destroy(fl_pool *pool); /* NULL is allowed */
int fl_pool_threads(const fl_pool *pool);
void fl_pool_run(fl_pool *pool, fl_task task, void *ctx);
void fl_pool_barrier(fl_pool *pool);

/* How many parts of each worker's share are taken (base/taken.h): [threads], all 0 when a task
 * begins and after a barrier; NULL for one thread. */
struct fl_taken *fl_pool_taken(const fl_pool *pool);

/* The part of [0, n) that belongs to a worker, cut at multiples of grain: a fixed function of
 * (n, grain, thread, n_threads), so the split never depends on timing. */
static inline void fl_split(int64_t n, int64_t grain, int thread, int n_threads, int64_t *begin,
                            int64_t *end)
{
    int64_t units = (n + grain - 1) / grain;
    int64_t b = units * thread / n_threads * grain, e = units * (thread + 1) / n_threads * grain;
    *begin = b < n ? b : n;
    *end = e < n ? e : n;
}

#endif
