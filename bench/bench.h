/* What the benches of the CPU kernels share: memory that is there or the program ends, random
 * numbers, operands, and the time of one kernel call on a pool. */
#ifndef FL_BENCH_H
#define FL_BENCH_H

#include "base/mem.h"
#include "base/pool.h"
#include "ops/ops.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

static inline void bench_die(const char *what)
{
    fprintf(stderr, "%s\n", what);
    exit(1);
}

static inline void *bench_room(size_t bytes)
{
    void *p = fl_alloc_aligned(bytes ? bytes : 1, FL_CACHE_LINE);
    if (!p)
        bench_die("out of memory");
    return p;
}

static inline uint32_t bench_next32(void)
{
    static uint64_t seed = 1;
    seed = seed * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(seed >> 32);
}

/* -1 .. 1 */
static inline float bench_next_float(void)
{
    return (float)((int32_t)bench_next32() >> 8) * 0x1p-23f;
}

/* Rows of a x b random elements (b: 0 for one dimension). */
static inline fl_arg bench_rows(fl_dtype t, int64_t rows, int64_t a, int64_t b)
{
    int64_t width = b ? a * b : a;
    fl_arg arg = {.type = {FL_ROWS_TOKENS, t, b ? 2 : 1, {a, b}, 1, -1, false}, .stride = width};
    float *p = bench_room((size_t)(rows * width) * sizeof *p);
    for (int64_t i = 0; i < rows * width; i++)
        p[i] = bench_next_float();
    arg.data = p;
    return arg;
}

typedef struct bench_call {
    fl_pool *pool;
    fl_call call; /* n_in, n_out, attr, prep */
    fl_arg in[8], out[1];
    fl_step step;
    size_t per_worker;
    char *scratch, *shared;
} bench_call;

static inline void bench_task(void *ctx, int thread, int n_threads)
{
    bench_call *b = ctx;
    fl_worker w = {.thread = thread,
                   .n_threads = n_threads,
                   .scratch = b->scratch + (size_t)thread * b->per_worker,
                   .shared = b->shared,
                   .taken = fl_pool_taken(b->pool)};
    for (int p = 0; p < b->call.kernel->n_phases; p++) {
        if (p)
            fl_pool_barrier(b->pool);
        b->call.kernel->run(&b->call, &b->step, p, &w);
    }
}

/* With one thread its own processor time, which other programs disturb less. */
static inline double bench_now(const fl_pool *pool)
{
    struct timespec t;
    clock_gettime(fl_pool_threads(pool) == 1 ? CLOCK_THREAD_CPUTIME_ID : CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* The best time in seconds of one call of kernel k with so many rows: for about half a second, at
 * least five times; 0 when the kernel does not fit.  before (may be NULL) comes before each call.
 */
static inline double bench_time(bench_call *b, const fl_kernel *k, int rows, int64_t context,
                                void (*before)(bench_call *b))
{
    const fl_type *types[8];
    for (int i = 0; i < b->call.n_in; i++)
        types[i] = &b->in[i].type;
    fl_node_view view = {
        .n_in = b->call.n_in, .n_out = 1, .in = types, .attr = b->call.attr, .prep = b->call.prep};
    fl_limits limits = {.max_rows = rows,
                        .max_logits = rows,
                        .n_threads = fl_pool_threads(b->pool),
                        .max_context = context};
    size_t shared = 0;
    if (k->fits && !k->fits(&view))
        return 0;
    b->per_worker = 0;
    if (k->scratch)
        k->scratch(&view, &limits, &b->per_worker, &shared);
    b->per_worker = (b->per_worker + FL_CACHE_LINE - 1) / FL_CACHE_LINE * FL_CACHE_LINE;
    b->scratch = bench_room(b->per_worker * (size_t)limits.n_threads);
    b->shared = bench_room(shared);
    b->call.kernel = k;
    b->call.in = b->in;
    b->call.out = b->out;
    b->step.n_rows = rows;
    double least = 1e9, start = bench_now(b->pool);
    for (int i = 0; i < 5 || bench_now(b->pool) - start < 0.4; i++) {
        if (before)
            before(b);
        double t = bench_now(b->pool);
        fl_pool_run(b->pool, bench_task, b);
        t = bench_now(b->pool) - t;
        least = t < least ? t : least;
    }
    fl_free_aligned(b->scratch);
    fl_free_aligned(b->shared);
    return least;
}

#endif
