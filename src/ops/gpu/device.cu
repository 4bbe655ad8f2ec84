/* The device (graph/device.h) over the CUDA runtime: one stream, on which everything happens in
 * order.
 *
 * Memory is one block, taken by reserve.  Uploads go through two pinned buffers: one is filled from
 * the mapped file while the other is on its way.  Each step is written to the same place, so decode
 * steps (every sequence one row) are recorded as a graph, once per number of rows rounded up to a
 * bucket, and repeated: rows beyond those of the step find that they are not there.
 *
 * An error that the runtime reports stays: the device answers everything with it until it is
 * closed, and closing the last one then resets the hardware, so that the process can go on. */
#include "ops/gpu/gpu.h"

extern "C" {
#include "ops/fused.h"
}

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const size_t CHUNK = 16 << 20;
enum { MAX_HOST = 8, MAX_RECORDS = 64, MAX_BUCKET = 256 };
static const size_t LEFT_ALONE = (size_t)512 << 20; /* for the runtime and recorded steps */

typedef struct record {
    const void *owner;
    int32_t rows;
    cudaGraphExec_t graph;
} record;

typedef struct gpu {
    fl_device base; /* first: a gpu is a fl_device */
    int ordinal;
    cudaError_t failed; /* not cudaSuccess: for good */
    gpu_queue queue;
    fl_limits limits;
    unsigned char *arena;
    size_t size, used;
    void *host[MAX_HOST];
    int n_host;

    unsigned char *pinned[2]; /* upload buffers of CHUNK bytes */
    cudaEvent_t sent[2];
    int turn;

    unsigned char *step_here, *step_there; /* pinned, and on the device */
    size_t pages_at;                       /* offset of the page numbers, which come last */
    int64_t max_pages;
    fl_step shown;
    record records[MAX_RECORDS];
    int n_records;
    record *recording, *repeating;

    char arch[16];
    gpu_joined *joined;

    cudaEvent_t *marks; /* made when they are first needed */
    int n_marks, max_marks;
} gpu;

static int n_open; /* devices of this process */

static gpu *enter(fl_device *d)
{
    gpu *g = (gpu *)d;
    cudaSetDevice(g->ordinal);
    return g;
}

static fl_status check(gpu *g, cudaError_t e, const char *what, fl_error *err)
{
    if (g->failed == cudaSuccess)
        g->failed = e;
    if (g->failed == cudaSuccess)
        return FL_OK;
    return fl_fail(err, FL_DEVICE, "%s: %s: %s", g->base.name, what, cudaGetErrorString(g->failed));
}

#define TRY_GPU(g, call, what, err) FL_TRY(check(g, call, what, err))

/* ---- memory ---- */

static void close_device(fl_device *d)
{
    gpu *g = enter(d);
    if (g->queue.stream)
        cudaStreamSynchronize(g->queue.stream);
    for (int i = 0; i < g->n_records; i++)
        cudaGraphExecDestroy(g->records[i].graph);
    gpu_part(g->joined);
    for (int i = 0; i < g->n_host; i++)
        cudaFreeHost(g->host[i]);
    for (int i = 0; i < 2; i++) {
        if (g->sent[i])
            cudaEventDestroy(g->sent[i]);
    }
    for (int i = 0; i < g->n_marks; i++)
        cudaEventDestroy(g->marks[i]);
    fl_free(g->marks);
    cudaFree(g->arena);
    cudaFree(g->step_there);
    if (g->queue.stream)
        cudaStreamDestroy(g->queue.stream);
    if (--n_open == 0 && g->failed != cudaSuccess)
        cudaDeviceReset();
    (void)cudaGetLastError();
    fl_free(g);
}

static fl_status no_memory(gpu *g, cudaError_t e, size_t bytes, const char *where, fl_error *err)
{
    (void)cudaGetLastError(); /* nothing is broken */
    return fl_fail(err, FL_NOMEM, "%s: %zu bytes of %s memory: %s", g->base.name, bytes, where,
                   cudaGetErrorString(e));
}

static fl_status host_alloc(fl_device *d, size_t bytes, void **out, fl_error *err)
{
    gpu *g = enter(d);
    if (g->n_host == MAX_HOST)
        return fl_fail(err, FL_INTERNAL, "%s: too many blocks of host memory", d->name);
    cudaError_t e = cudaMallocHost(out, bytes);
    if (e != cudaSuccess)
        return no_memory(g, e, bytes, "pinned", err);
    g->host[g->n_host++] = *out;
    return FL_OK;
}

static size_t lined(size_t n)
{
    return (n + 63) / 64 * 64;
}

/* The parts of a step, one after the other, page numbers last.  base may be NULL. */
static size_t lay_step(const fl_limits *l, unsigned char *base, gpu_step *out)
{
    size_t rows = (size_t)l->max_rows, at = 0;
    out->counts = (int32_t *)(base + at);
    at += lined(GPU_COUNTS * sizeof(int32_t));
    out->seqs = (gpu_seq *)(base + at);
    at += lined((size_t)l->max_seqs * sizeof(gpu_seq));
    out->ids = (int32_t *)(base + at);
    at += lined(rows * sizeof(int32_t));
    out->row_seq = (int32_t *)(base + at);
    at += lined(rows * sizeof(int32_t));
    out->pos = (int32_t *)(base + at);
    at += lined(rows * sizeof(int32_t));
    out->logit_rows = (int32_t *)(base + at);
    at += lined((size_t)l->max_logits * sizeof(int32_t));
    out->pages = (int32_t *)(base + at);
    return at;
}

static fl_status reserve(fl_device *d, size_t bytes, const fl_limits *limits, fl_error *err)
{
    gpu *g = enter(d);
    void *p;
    g->limits = *limits;
    if (g->limits.max_seqs == 0)
        g->limits.max_seqs = limits->max_rows;
    g->queue.max_context = limits->max_context;
    g->max_pages =
        g->limits.max_seqs * ((limits->max_context + FL_PAGE_TOKENS - 1) / FL_PAGE_TOKENS);
    cudaError_t e = cudaMalloc(&p, bytes ? bytes : 1);
    if (e != cudaSuccess)
        return no_memory(g, e, bytes, "device", err);
    g->arena = (unsigned char *)p;
    g->size = bytes;
    g->pages_at = lay_step(&g->limits, NULL, &g->queue.step);
    size_t step_bytes = g->pages_at + (size_t)g->max_pages * sizeof(int32_t);
    e = cudaMalloc(&p, step_bytes);
    if (e != cudaSuccess)
        return no_memory(g, e, step_bytes, "device", err);
    g->step_there = (unsigned char *)p;
    lay_step(&g->limits, g->step_there, &g->queue.step);
    FL_TRY(host_alloc(d, step_bytes, &p, err));
    g->step_here = (unsigned char *)p;
    for (int i = 0; i < 2; i++) {
        FL_TRY(host_alloc(d, CHUNK, &p, err));
        g->pinned[i] = (unsigned char *)p;
        TRY_GPU(g, cudaEventCreateWithFlags(&g->sent[i], cudaEventDisableTiming), "event", err);
    }
    return FL_OK;
}

static fl_status alloc(fl_device *d, size_t bytes, void **out, fl_error *err)
{
    gpu *g = (gpu *)d;
    if (!fl_device_round(bytes, &bytes) || bytes > g->size - g->used)
        return fl_fail(err, FL_NOMEM, "%s: %zu bytes asked for, %zu of the reserve are left",
                       d->name, bytes, g->size - g->used);
    *out = g->arena + g->used;
    g->used += bytes;
    return FL_OK;
}

/* ---- transfers ---- */

static fl_status upload(fl_device *d, void *to, const void *from, size_t bytes, fl_error *err)
{
    gpu *g = enter(d);
    while (bytes) {
        size_t n = bytes < CHUNK ? bytes : CHUNK;
        int i = g->turn;
        g->turn = !i;
        TRY_GPU(g, cudaEventSynchronize(g->sent[i]), "copy to the device", err);
        memcpy(g->pinned[i], from, n);
        TRY_GPU(g, cudaMemcpyAsync(to, g->pinned[i], n, cudaMemcpyHostToDevice, g->queue.stream),
                "copy to the device", err);
        TRY_GPU(g, cudaEventRecord(g->sent[i], g->queue.stream), "copy to the device", err);
        to = (char *)to + n;
        from = (const char *)from + n;
        bytes -= n;
    }
    return FL_OK;
}

static fl_status wait(fl_device *d, fl_error *err)
{
    gpu *g = enter(d);
    return check(g, cudaStreamSynchronize(g->queue.stream), "running a step", err);
}

static fl_status download(fl_device *d, void *to, const void *from, size_t row_bytes, size_t stride,
                          size_t rows, fl_error *err)
{
    gpu *g = enter(d);
    TRY_GPU(
        g,
        rows == 1 || stride == row_bytes
            ? cudaMemcpyAsync(to, from, row_bytes * rows, cudaMemcpyDeviceToHost, g->queue.stream)
            : cudaMemcpy2DAsync(to, row_bytes, from, stride, row_bytes, rows,
                                cudaMemcpyDeviceToHost, g->queue.stream),
        "copy to the host", err);
    return wait(d, err);
}

static void copy(fl_device *d, void *to, const void *from, size_t bytes)
{
    gpu *g = enter(d);
    (void)check(g, cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToDevice, g->queue.stream),
                "copy", NULL);
}

static void zero(fl_device *d, void *at, size_t bytes)
{
    gpu *g = enter(d);
    (void)check(g, cudaMemsetAsync(at, 0, bytes, g->queue.stream), "zero", NULL);
}

/* ---- steps ---- */

/* Writes the step as kernels will find it; *bytes: how much of it there is. */
static fl_status write_step(gpu *g, const fl_step *s, size_t *bytes, fl_error *err)
{
    gpu_step to;
    int64_t n_pages = 0;
    lay_step(&g->limits, g->step_here, &to);
    int32_t *counts = (int32_t *)to.counts, *pos = (int32_t *)to.pos, *pages = (int32_t *)to.pages;
    counts[GPU_ROWS] = s->n_rows;
    counts[GPU_SEQS] = s->n_seqs;
    counts[GPU_LOGITS] = s->n_logits;
    counts[GPU_ONE] = 1;
    memcpy((void *)to.ids, s->ids, (size_t)s->n_rows * sizeof *s->ids);
    memcpy((void *)to.row_seq, s->row_seq, (size_t)s->n_rows * sizeof *s->row_seq);
    if (s->n_logits)
        memcpy((void *)to.logit_rows, s->logit_rows, (size_t)s->n_logits * sizeof *s->logit_rows);
    if (s->n_seqs > g->limits.max_seqs)
        return fl_fail(err, FL_ARGUMENT, "%s: a step of %d sequences, room is for %d", g->base.name,
                       s->n_seqs, g->limits.max_seqs);
    for (int32_t i = 0; i < s->n_seqs; i++) {
        const fl_seq_rows *q = &s->seqs[i];
        int64_t n = q->pages ? (q->pos0 + q->n_rows + FL_PAGE_TOKENS - 1) / FL_PAGE_TOKENS : 0;
        gpu_seq seq = {q->row0, q->n_rows, q->slot, (int32_t)n_pages, q->pos0};
        ((gpu_seq *)to.seqs)[i] = seq;
        for (int32_t r = 0; r < q->n_rows; r++)
            pos[q->row0 + r] = (int32_t)(q->pos0 + r);
        if (n)
            memcpy(pages + n_pages, q->pages, (size_t)n * sizeof *pages);
        n_pages += n;
    }
    *bytes = g->pages_at + (size_t)n_pages * sizeof *pages;
    return FL_OK;
}

/* Rows that a recorded step is launched for. */
static int32_t bucket(const gpu *g, int32_t rows)
{
    int32_t b = 1;
    while (b < rows)
        b = b < 4 ? 2 * b : b < 16 ? b + 4 : b < 64 ? b + 16 : b + 64;
    int32_t most =
        g->limits.max_seqs < g->limits.max_logits ? g->limits.max_seqs : g->limits.max_logits;
    return b < most ? b : most;
}

static fl_status begin(fl_device *d, const void *owner, const fl_step *step, bool observed,
                       fl_pass *pass, fl_error *err)
{
    gpu *g = enter(d);
    size_t bytes = 0;
    TRY_GPU(g, cudaSuccess, "starting a step", err);
    FL_TRY(write_step(g, step, &bytes, err));
    TRY_GPU(g,
            cudaMemcpyAsync(g->step_there, g->step_here, bytes, cudaMemcpyHostToDevice,
                            g->queue.stream),
            "starting a step", err);
    g->shown = *step;
    g->recording = g->repeating = NULL;
    g->queue.error = cudaSuccess;
    pass->walk = true;
    pass->step = &g->shown;
    pass->queue = &g->queue;
    bool decode = step->n_rows == step->n_seqs && step->n_logits == step->n_rows;
    int32_t rows = decode ? bucket(g, step->n_rows) : 0;
    if (observed || !decode || rows > MAX_BUCKET || rows < step->n_rows)
        return FL_OK;
    for (int i = 0; i < g->n_records && !g->repeating; i++) {
        if (g->records[i].owner == owner && g->records[i].rows == rows)
            g->repeating = &g->records[i];
    }
    pass->walk = !g->repeating;
    if (g->repeating || g->n_records == MAX_RECORDS)
        return FL_OK;
    g->recording = &g->records[g->n_records];
    g->recording->owner = owner;
    g->recording->rows = rows;
    g->shown.n_rows = g->shown.n_seqs = g->shown.n_logits = rows;
    return check(g, cudaStreamBeginCapture(g->queue.stream, cudaStreamCaptureModeThreadLocal),
                 "recording a step", err);
}

static fl_status end(fl_device *d, fl_error *err)
{
    gpu *g = enter(d);
    record *r = g->repeating;
    if (g->recording) {
        cudaGraph_t graph = NULL;
        r = g->recording;
        g->recording = NULL;
        cudaError_t e = cudaStreamEndCapture(g->queue.stream, &graph);
        if (e == cudaSuccess && g->queue.error == cudaSuccess)
            e = cudaGraphInstantiate(&r->graph, graph, 0);
        if (graph)
            cudaGraphDestroy(graph);
        TRY_GPU(g, g->queue.error, "launching", err);
        TRY_GPU(g, e, "recording a step", err);
        g->n_records++;
    }
    TRY_GPU(g, g->queue.error, "launching", err);
    return r ? check(g, cudaGraphLaunch(r->graph, g->queue.stream), "repeating a step", err)
             : FL_OK;
}

/* ---- calls in one go ---- */

static bool joins(const fl_device *d, const fl_node_view *members, int n, const fl_node_view *node,
                  uint64_t inside)
{
    (void)d;
    return fl_fused_joins(members, n, node, inside);
}

static fl_status join(fl_device *d, fl_joint *joints, int n, fl_error *err)
{
    gpu *g = enter(d);
    return gpu_join(joints, n, g->arch, &g->joined, d->note, err);
}

/* ---- times within a step ---- */

static void mark(fl_device *d, int i)
{
    gpu *g = enter(d);
    if (i >= g->max_marks) {
        int most = 2 * i + 64;
        void *more = fl_realloc_array(g->marks, (size_t)most, sizeof *g->marks);
        if (!more)
            return; /* times will say so */
        g->marks = (cudaEvent_t *)more;
        g->max_marks = most;
    }
    if (i == g->n_marks && check(g, cudaEventCreate(&g->marks[i]), "mark", NULL) == FL_OK)
        g->n_marks++;
    if (i < g->n_marks)
        (void)check(g, cudaEventRecord(g->marks[i], g->queue.stream), "mark", NULL);
}

static fl_status times(fl_device *d, int n, int64_t *us, fl_error *err)
{
    gpu *g = enter(d);
    if (n > g->n_marks)
        return fl_fail(err, FL_NOMEM, "no memory for %d times within a step", n);
    for (int i = 0; i < n; i++) {
        float ms = 0;
        TRY_GPU(g, cudaEventElapsedTime(&ms, g->marks[0], g->marks[i]), "times", err);
        us[i] = (int64_t)((double)ms * 1000);
    }
    return FL_OK;
}

/* ---- opening ---- */

static const fl_device_fn functions = {.close = close_device,
                                       .reserve = reserve,
                                       .alloc = alloc,
                                       .host_alloc = host_alloc,
                                       .upload = upload,
                                       .download = download,
                                       .copy = copy,
                                       .zero = zero,
                                       .begin = begin,
                                       .end = end,
                                       .wait = wait,
                                       .joins = joins,
                                       .join = join,
                                       .mark = mark,
                                       .times = times};

#define GPU_POINTER(file) &gpu_kernels_##file,
static const fl_kernel_list *const lists[] = {GPU_FILES(GPU_POINTER)};

static fl_status open_device(int ordinal, fl_device **out, fl_error *err)
{
    int n = 0;
    cudaDeviceProp p;
    size_t unused = 0, total = 0;
    *out = NULL;
    cudaError_t e = cudaGetDeviceCount(&n);
    if (e != cudaSuccess) {
        (void)cudaGetLastError();
        return fl_fail(err, FL_DEVICE, "%s",
                       e == cudaErrorInsufficientDriver ? "no driver, or one older than the plugin"
                                                        : cudaGetErrorString(e));
    }
    if (ordinal >= n)
        return fl_fail(err, FL_NOTFOUND, "there are %d, numbered from 0", n);
    e = cudaSetDevice(ordinal);
    if (e == cudaSuccess)
        e = cudaGetDeviceProperties(&p, ordinal);
    if (e == cudaSuccess)
        e = cudaMemGetInfo(&unused, &total);
    if (e != cudaSuccess) {
        (void)cudaGetLastError();
        return fl_fail(err, FL_DEVICE, "%s", cudaGetErrorString(e));
    }
    if (p.warpSize != GPU_LANES)
        return fl_fail(err, FL_UNSUPPORTED, "%.100s has warps of %d threads, the kernels want %d",
                       p.name, p.warpSize, (int)GPU_LANES);
    gpu *g = (gpu *)fl_calloc(1, sizeof(gpu));
    if (!g)
        return fl_fail(err, FL_NOMEM, "no memory for a device");
    g->ordinal = ordinal;
    g->base.fn = &functions;
    g->base.lists = lists;
    g->base.n_lists = (int)(sizeof lists / sizeof *lists);
    g->base.memory = unused > LEFT_ALONE ? unused - LEFT_ALONE : 0;
    g->queue.processors = p.multiProcessorCount;
#ifdef FL_GPU_WGMMA
    g->queue.wgmma = p.major == 9;
#endif
    snprintf(g->arch, sizeof g->arch, GPU_ARCH "_%d%d", p.major, p.minor);
    snprintf(g->base.name, sizeof g->base.name, GPU_KIND ":%d %.100s, %.1f GiB", ordinal, p.name,
             (double)total / (1 << 30));
    n_open++;
    fl_status s =
        check(g, cudaStreamCreateWithFlags(&g->queue.stream, cudaStreamNonBlocking), "stream", err);
    if (s != FL_OK) {
        close_device(&g->base);
        return s;
    }
    *out = &g->base;
    return FL_OK;
}

static const fl_plugin plugin = {FL_PLUGIN_LAYOUT, FL_VERSION, GPU_KIND, open_device};

extern "C" FL_API const fl_plugin *fl_plugin_entry(void)
{
    return &plugin;
}
