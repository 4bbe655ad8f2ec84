#define _GNU_SOURCE
#include "ops/limits.h"

#include "base/mem.h"
#include "ops/cpu/cpu_files.h"

#include <errno.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#define DECLARE(X, level) extern const fl_limits_probe fl_limits_probe_##level;
FL_CPU_LEVELS(DECLARE, unused)
#if defined(__x86_64__) /* built with the level below it */
extern const fl_limits_probe fl_limits_probe_amx;
#else
#define fl_limits_probe_amx fl_limits_probe_base
#endif
#define POINTER(X, level) &fl_limits_probe_##level,
static const fl_limits_probe *const probes[FL_ISA_COUNT] = {
    FL_CPU_LEVELS(POINTER, unused)[FL_ISA_AMX] = &fl_limits_probe_amx};

/* Bytes read from memory, far more than a cache; and from the cache, more than the inner ones. */
#define MEMORY_BYTES ((size_t)512 << 20)
#define CACHE_BYTES ((size_t)8 << 20)
enum { RUNS = 6 };  /* at least */
#define ENOUGH 0.15 /* seconds of them */

static double seconds(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

typedef struct measure {
    float (*rounds)(int64_t n);
    float (*read)(const float *data, int64_t n);
    const float *data;
    int64_t n; /* rounds, or floats of all threads */
    volatile float sink;
} measure;

static void compute(void *ctx, int thread, int n_threads)
{
    measure *m = ctx;
    (void)n_threads;
    float x = m->rounds(m->n);
    if (thread == 0)
        m->sink = x;
}

static void read_part(void *ctx, int thread, int n_threads)
{
    measure *m = ctx;
    int64_t begin, end;
    fl_split(m->n, 256, thread, n_threads, &begin, &end);
    float x = m->read(m->data + begin, end - begin);
    if (thread == 0)
        m->sink = x;
}

/* The best of a few runs: what disturbs a run only makes it slower. */
static double best(fl_pool *pool, fl_task task, measure *m)
{
    double least = 1e9, start = seconds();
    for (int i = 0; i < RUNS || seconds() - start < ENOUGH; i++) {
        double t = seconds();
        fl_pool_run(pool, task, m);
        t = seconds() - t;
        least = t < least ? t : least;
    }
    return least;
}

static double rate(fl_pool *pool, float (*rounds)(int64_t), double per_round)
{
    if (!rounds)
        return 0;
    measure m = {.rounds = rounds, .n = 1 << 18};
    return (double)m.n * per_round * fl_pool_threads(pool) / best(pool, compute, &m);
}

/* The pages of a buffer belong to the worker that will read them. */
static void fill(void *ctx, int thread, int n_threads)
{
    measure *m = ctx;
    int64_t begin, end;
    fl_split(m->n, 256, thread, n_threads, &begin, &end);
    memset((float *)m->data + begin, 1, (size_t)(end - begin) * sizeof(float));
}

fl_status fl_machine_measure(fl_pool *pool, fl_isa isa, fl_machine *out, fl_error *err)
{
    const fl_limits_probe *p = probes[isa];
    if (!p)
        return fl_fail(err, FL_UNSUPPORTED, "level %s is not built", fl_isa_name(isa));
    float *data = fl_alloc_aligned(MEMORY_BYTES, FL_CACHE_LINE);
    if (!data)
        return fl_fail(err, FL_NOMEM, "no memory to measure reading");
    measure m = {.read = p->read, .data = data, .n = MEMORY_BYTES / sizeof(float)};
    fl_pool_run(pool, fill, &m);
    *out = (fl_machine){.f32 = rate(pool, p->f32, 512),
                        .bf16 = rate(pool, p->bf16, 1024),
                        .int8 = rate(pool, p->int8, 2048)};
    out->memory = MEMORY_BYTES / best(pool, read_part, &m);
    m.n = CACHE_BYTES / sizeof(float);
    out->cache = CACHE_BYTES / best(pool, read_part, &m);
    fl_free_aligned(data);
    return FL_OK;
}

/* ---- disk ---- */

enum { PIECE = 4 << 20, DISK_ALIGN = 4096 };
#define DISK_BYTES ((int64_t)1 << 30) /* at most */

typedef struct disk {
    int file;
    int64_t pieces;
    atomic_llong next, done; /* pieces taken; bytes read */
    char *buffer;            /* a piece per thread */
} disk;

static void read_pieces(void *ctx, int thread, int n_threads)
{
    disk *d = ctx;
    (void)n_threads;
    for (;;) {
        int64_t i = atomic_fetch_add(&d->next, 1);
        if (i >= d->pieces)
            return;
        ssize_t n = pread(d->file, d->buffer + (size_t)thread * PIECE, PIECE, i * PIECE);
        if (n > 0)
            atomic_fetch_add(&d->done, n);
    }
}

fl_status fl_machine_disk(fl_pool *pool, const char *path, double *out, fl_error *err)
{
    struct stat st;
    disk d = {.file = open(path, O_RDONLY | O_DIRECT | O_CLOEXEC)};
    if (d.file < 0)
        return fl_fail(err, errno == EINVAL ? FL_UNSUPPORTED : FL_IO,
                       "%s: cannot read directly: %s", path, strerror(errno));
    fl_status s = FL_OK;
    d.buffer = fl_alloc_aligned((size_t)fl_pool_threads(pool) * PIECE, DISK_ALIGN);
    if (!d.buffer) {
        s = fl_fail(err, FL_NOMEM, "no memory to measure reading");
    } else if (fstat(d.file, &st) != 0) {
        s = fl_fail(err, FL_IO, "%s: %s", path, strerror(errno));
    } else {
        d.pieces = (st.st_size < DISK_BYTES ? st.st_size : DISK_BYTES) / PIECE;
        double t = seconds();
        fl_pool_run(pool, read_pieces, &d);
        t = seconds() - t;
        if (d.done == 0 || t <= 0)
            s = fl_fail(err, FL_UNSUPPORTED, "%s: nothing read; a file of some megabytes is needed",
                        path);
        else
            *out = (double)d.done / t;
    }
    fl_free_aligned(d.buffer);
    close(d.file);
    return s;
}
