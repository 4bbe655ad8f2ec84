#define _GNU_SOURCE
#include "base/pool.h"

#include "base/mem.h"
#include "base/nodes.h"
#include "base/taken.h"

#include <limits.h>
#include <linux/futex.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <sys/syscall.h>
#include <unistd.h>

/* Enough to bridge the serial parts between two regions of a step; short enough that an idle or
 * oversubscribed machine gets its processors back. */
enum { SPINS = 1000 };

typedef struct worker {
    fl_pool *pool;
    pthread_t id;
    int thread;
} worker;

struct fl_pool {
    int n;
    _Alignas(FL_CACHE_LINE) atomic_uint epoch;   /* counts regions; workers wait for a change */
    _Alignas(FL_CACHE_LINE) atomic_uint arrived; /* workers at the barrier */
    _Alignas(FL_CACHE_LINE) atomic_uint phase;   /* counts barriers passed */
    atomic_int sleepers;
    fl_task task;
    void *ctx;
    bool stop;
    worker *workers; /* [n - 1] */
    fl_taken *taken; /* [n] */
};

static void relax(void)
{
#if defined(__x86_64__)
    __builtin_ia32_pause();
#endif
}

/* Waits until *word differs from old. */
static void await_change(fl_pool *p, atomic_uint *word, unsigned old)
{
    for (int i = 0; i < SPINS; i++) {
        if (atomic_load_explicit(word, memory_order_acquire) != old)
            return;
        relax();
    }
    atomic_fetch_add(&p->sleepers, 1);
    while (atomic_load(word) == old)
        syscall(SYS_futex, word, FUTEX_WAIT_PRIVATE, old, NULL, NULL, 0);
    atomic_fetch_sub(&p->sleepers, 1);
}

static void change(fl_pool *p, atomic_uint *word)
{
    atomic_fetch_add(word, 1);
    if (atomic_load(&p->sleepers))
        syscall(SYS_futex, word, FUTEX_WAKE_PRIVATE, INT_MAX, NULL, NULL, 0);
}

void fl_pool_barrier(fl_pool *p)
{
    if (p->n == 1)
        return;
    unsigned phase = atomic_load_explicit(&p->phase, memory_order_relaxed);
    if (atomic_fetch_add(&p->arrived, 1) + 1 == (unsigned)p->n) {
        atomic_store_explicit(&p->arrived, 0, memory_order_relaxed);
        for (int i = 0; i < p->n; i++) { /* looked at first: most phases take no parts */
            if (atomic_load_explicit(&p->taken[i].parts, memory_order_relaxed))
                atomic_store_explicit(&p->taken[i].parts, 0, memory_order_relaxed);
        }
        change(p, &p->phase);
    } else {
        await_change(p, &p->phase, phase);
    }
}

static void *work(void *arg)
{
    worker *w = arg;
    fl_pool *p = w->pool;
    unsigned seen = 0;
    for (;;) {
        await_change(p, &p->epoch, seen);
        seen++;
        if (p->stop)
            return NULL;
        p->task(p->ctx, w->thread, p->n);
        fl_pool_barrier(p);
    }
}

void fl_pool_run(fl_pool *p, fl_task task, void *ctx)
{
    if (p->n == 1) {
        task(ctx, 0, 1);
        return;
    }
    p->task = task;
    p->ctx = ctx;
    change(p, &p->epoch);
    task(ctx, 0, p->n);
    fl_pool_barrier(p);
}

/* On a machine with several memory nodes every worker but the caller's thread, which is not ours,
 * stays on one processor (nodes.h). */
static void settle(const fl_pool *p)
{
    unsigned char allowed[FL_MAX_CPUS];
    int cpus[FL_MAX_CPUS];
    cpu_set_t set;
    if (p->n > FL_MAX_CPUS || sched_getaffinity(0, sizeof set, &set) != 0)
        return;
    for (int i = 0; i < FL_MAX_CPUS; i++)
        allowed[i] = CPU_ISSET(i, &set) != 0;
    if (fl_nodes_spread(FL_NODES_ROOT, allowed, p->n, cpus) < 2)
        return;
    for (int i = 1; i < p->n; i++) {
        CPU_ZERO(&set);
        CPU_SET(cpus[i], &set);
        (void)pthread_setaffinity_np(p->workers[i - 1].id, sizeof set, &set); /* a hint */
    }
}

fl_status fl_pool_create(int n_threads, fl_pool **out, fl_error *err)
{
    *out = NULL;
    if (n_threads < 1 || n_threads > 4096)
        return fl_fail(err, FL_ARGUMENT, "thread count %d is outside 1..4096", n_threads);
    fl_pool *p = fl_alloc_aligned(sizeof *p, FL_CACHE_LINE);
    worker *w = fl_calloc((size_t)n_threads, sizeof *w);
    fl_taken *taken = fl_alloc_aligned((size_t)n_threads * sizeof *taken, FL_CACHE_LINE);
    if (!p || !w || !taken) {
        fl_free_aligned(p);
        fl_free(w);
        fl_free_aligned(taken);
        return fl_fail(err, FL_NOMEM, "no memory for a pool of %d threads", n_threads);
    }
    p->n = n_threads;
    p->workers = w;
    p->taken = taken;
    for (int i = 1; i < n_threads; i++) {
        w[i - 1] = (worker){.pool = p, .thread = i};
        if (pthread_create(&w[i - 1].id, NULL, work, &w[i - 1]) != 0) {
            /* The workers made so far wait on epoch; the stop flag needs no barrier. */
            p->n = i;
            fl_pool_destroy(p);
            return fl_fail(err, FL_NOMEM, "cannot start thread %d of %d", i, n_threads);
        }
    }
    settle(p);
    *out = p;
    return FL_OK;
}

void fl_pool_destroy(fl_pool *p)
{
    if (!p)
        return;
    p->stop = true;
    change(p, &p->epoch);
    for (int i = 1; i < p->n; i++)
        pthread_join(p->workers[i - 1].id, NULL);
    fl_free(p->workers);
    fl_free_aligned(p->taken);
    fl_free_aligned(p);
}

int fl_pool_threads(const fl_pool *p)
{
    return p->n;
}

struct fl_taken *fl_pool_taken(const fl_pool *p)
{
    return p->n > 1 ? p->taken : NULL;
}
