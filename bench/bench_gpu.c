/* How near the kernels of a GPU come to its memory and arithmetic (docs/performance-gpu.md).
 *
 *     bench_gpu [operator [text]]    of attention and indexer only cases with the text in their
 *                                    name; of products those that a kernel of that name does
 *
 * Every line: the shape, the median time of a call (of 21, or as many as half a second has), the
 * floor (bytes that must move at the copy bandwidth measured here, or the other limit where it is
 * higher) and their ratio.  Weights and caches are random and, where they would fit the cache,
 * several sets of them take turns. */
#define _GNU_SOURCE
#include "base/mem.h"
#include "graph/cache_row.h"
#include "graph/device.h"
#include "ops/def/def_internal.h"
#include "ops/device.h"
#include "ops/draw.h"
#include "ops/ops.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { MAX_IN = 8, RUNS = 21 };
static const size_t BLOCK = 32 << 20; /* of random bytes, repeated */

static fl_device *device;
static bool fast;        /* the kernels of precision fast, too */
static double bandwidth; /* bytes a second, read and written, of a copy */
static uint64_t dice = 88172645463325252u;
static bool fast;          /* kernels of precision fast are taken */
static const char *only;   /* NULL, or what the name of a case must contain */
static const char *kernel; /* of products: NULL, or what is taken */

typedef struct bench {
    const fl_op *op;
    fl_step step;
    fl_seq_rows seqs[64];
    fl_type type[MAX_IN], out_type[FL_MAX_OUT];
    const fl_type *types[MAX_IN];
    fl_arg in[MAX_IN], out[FL_MAX_OUT];
    fl_tensor *tensors[MAX_IN];
    fl_attr attr[12];
    int n_in, n_out;
    fl_state_pool pools[2];
    int n_pools;
    fl_arena arena;
    const void *prep;
    int64_t max_context;
} bench;

static void must(fl_status s, const fl_error *err)
{
    if (s == FL_OK)
        return;
    fprintf(stderr, "bench_gpu: %s\n", err->message);
    exit(1);
}

static uint64_t next(void)
{
    dice ^= dice << 13;
    dice ^= dice >> 7;
    dice ^= dice << 17;
    return dice;
}

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static void *take(size_t bytes)
{
    void *p;
    fl_error err;
    must(device->fn->alloc(device, bytes, &p, &err), &err);
    return p;
}

/* FILL_KEYS: a vector of 128 is about 1 long; FILL_DECAYS: below 0; FILL_SHARES: from 0 to 1. */
typedef enum fill {
    FILL_BYTES,
    FILL_SCALES,
    FILL_BF16,
    FILL_F32,
    FILL_KEYS,
    FILL_DECAYS,
    FILL_SHARES
} fill;

/* Device memory of random numbers. */
static void *random_memory(size_t bytes, fill what)
{
    unsigned char *p = take(bytes), *host = malloc(BLOCK);
    fl_error err;
    size_t n = bytes < BLOCK ? bytes : BLOCK;
    for (size_t i = 0; i < BLOCK / 8; i++)
        ((uint64_t *)(void *)host)[i] = next();
    for (size_t i = 0; i < BLOCK && what == FILL_SCALES; i++)
        host[i] = (unsigned char)(118 + host[i] % 5);
    for (size_t i = 0; i < BLOCK / 2 && what == FILL_BF16; i++) { /* around 1/64, both signs */
        uint16_t *x = (uint16_t *)(void *)host + i;
        *x = (uint16_t)((*x & 0x807f) | (119 + (*x >> 8) % 4) << 7);
    }
    for (size_t i = 0; i < BLOCK / 4 && what >= FILL_F32; i++) {
        uint32_t *x = (uint32_t *)(void *)host + i,
                 mask = what == FILL_SHARES ? 0x7fffff : 0x807fffff;
        *x = (*x & mask) | (what == FILL_KEYS ? 122 + (*x >> 24) % 2 : 123 + (*x >> 24) % 4) << 23;
        *x |= what == FILL_DECAYS ? 0x80000000 : 0;
    }
    must(device->fn->upload(device, p, host, n, &err), &err);
    for (size_t done = n; done < bytes; done += n)
        device->fn->copy(device, p + done, p, bytes - done < n ? bytes - done : n);
    must(device->fn->wait(device, &err), &err);
    free(host);
    return p;
}

/* Rows of a cache with factors, some thousand of them repeated. */
static void *random_rows(fl_dtype dtype, int64_t elements, int64_t items)
{
    enum { ROWS = 4096 };
    fl_error err;
    size_t row = (size_t)fl_cache_row_bytes(dtype, elements), bytes = row * (size_t)items,
           n = row * ROWS;
    unsigned char *p = take(bytes), *host = malloc(n);
    float *x = malloc((size_t)elements * sizeof *x);
    for (size_t i = 0; i < ROWS; i++) {
        for (int64_t j = 0; j < elements; j++)
            x[j] = (float)(int64_t)(next() >> 40) / (1 << 23) - 1;
        fl_cache_encode(dtype, elements, x, host + i * row);
    }
    n = bytes < n ? bytes : n;
    must(device->fn->upload(device, p, host, n, &err), &err);
    for (size_t done = n; done < bytes; done += n)
        device->fn->copy(device, p + done, p, bytes - done < n ? bytes - done : n);
    must(device->fn->wait(device, &err), &err);
    free(x);
    free(host);
    return p;
}

/* ---- building a call ---- */

static void begin(bench *b, const char *op, int n_seqs, int rows_each, int64_t context)
{
    *b = (bench){.op = fl_registry_op(fl_ops_registry(), op), .max_context = context};
    int32_t rows = n_seqs * rows_each;
    int32_t *ids = calloc((size_t)rows, sizeof *ids), *row_seq = calloc((size_t)rows, 4);
    int32_t *logits = calloc((size_t)rows, 4);
    for (int s = 0; s < n_seqs; s++) {
        b->seqs[s] = (fl_seq_rows){s * rows_each, rows_each, context - rows_each, NULL, s};
        for (int r = 0; r < rows_each; r++) {
            row_seq[s * rows_each + r] = s;
            logits[s * rows_each + r] = s * rows_each + r;
        }
    }
    b->step = (fl_step){.n_rows = rows,
                        .n_seqs = n_seqs,
                        .n_logits = rows,
                        .ids = ids,
                        .row_seq = row_seq,
                        .seqs = b->seqs,
                        .logit_rows = logits,
                        .states = b->pools};
    for (int i = 0; i < b->op->n_attrs; i++) {
        b->attr[i].f = b->op->attrs[i].number;
        b->attr[i].i = (int64_t)b->op->attrs[i].number;
        b->attr[i].text = b->op->attrs[i].text;
    }
}

static fl_type *add(bench *b, fl_rows rows, fl_dtype dtype, int32_t n, int64_t d0, int64_t d1)
{
    fl_type *t = &b->type[b->n_in];
    *t = (fl_type){.rows = rows, .dtype = dtype, .ndim = d1 ? 2 : 1, .n_tensors = n, .state = -1};
    t->dim[0] = d0;
    t->dim[1] = d1;
    b->types[b->n_in] = t;
    b->in[b->n_in].type = *t;
    b->n_in++;
    return t;
}

static void add_rows_of(bench *b, fill what, fl_dtype dtype, int64_t d0, int64_t d1)
{
    fl_type *t = add(b, FL_ROWS_TOKENS, dtype, 1, d0, d1);
    fl_arg *a = &b->in[b->n_in - 1];
    a->stride = fl_type_width(t);
    a->data = random_memory((size_t)(b->step.n_rows * a->stride) * 4, what);
}

static void add_rows(bench *b, fl_dtype dtype, int64_t d0, int64_t d1)
{
    add_rows_of(b, FILL_F32, dtype, d0, d1);
}

static void add_weight(bench *b, fl_dtype dtype, int32_t n, int64_t d0, int64_t d1)
{
    fl_type *t = add(b, FL_ROWS_CONST, dtype, n, d0, d1);
    fl_arg *a = &b->in[b->n_in - 1];
    size_t elements = (size_t)fl_type_width(t), bytes = elements * (size_t)fl_dtype_bits(dtype) / 8;
    fl_tensor *tensors = calloc((size_t)n, sizeof *tensors);
    unsigned char *data = random_memory(bytes * (size_t)n, dtype == FL_MXFP4  ? FILL_BYTES
                                                           : dtype == FL_BF16 ? FILL_BF16
                                                                              : FILL_F32);
    unsigned char *scale =
        dtype == FL_MXFP4 ? random_memory(elements / 32 * (size_t)n, FILL_SCALES) : NULL;
    for (int32_t i = 0; i < n; i++) {
        tensors[i] = (fl_tensor){.dtype = dtype, .ndim = 2, .shape = {d0, d1}};
        tensors[i].data = data + (size_t)i * bytes;
        tensors[i].scale = scale ? scale + (size_t)i * (elements / 32) : NULL;
    }
    a->tensors = tensors;
    a->data = (void *)tensors->data;
}

static void add_pages(bench *b)
{
    int64_t per = (b->max_context + FL_PAGE_TOKENS - 1) / FL_PAGE_TOKENS;
    for (int s = 0; s < b->step.n_seqs; s++) {
        int32_t *pages = calloc((size_t)per, sizeof *pages);
        for (int64_t i = 0; i < per; i++)
            pages[i] = (int32_t)(s * per + i);
        b->seqs[s].pages = pages;
    }
}

static void add_state(bench *b, bool paged, fl_dtype dtype, int64_t elements, int64_t items)
{
    if (paged)
        add_pages(b);
    fl_type *t = add(b, FL_ROWS_STATE, dtype, 0, elements, 0);
    t->state = b->n_pools;
    t->paged = paged;
    b->in[b->n_in - 1].type = *t;
    int64_t bytes = fl_cache_row_bytes(dtype, elements);
    b->pools[b->n_pools++] =
        (fl_state_pool){dtype == FL_F32    ? random_memory((size_t)(bytes * items), FILL_F32)
                        : dtype == FL_BF16 ? random_memory((size_t)(bytes * items), FILL_BF16)
                                           : random_rows(dtype, elements, items),
                        bytes};
}

static const fl_kernel *choose(const bench *b, const fl_node_view *v)
{
    const fl_kernel *found = NULL;
    for (int l = 0; l < device->n_lists; l++) {
        for (int i = 0; i < device->lists[l]->n; i++) {
            const fl_kernel *k = &device->lists[l]->kernels[i];
            if (strcmp(k->op, b->op->name) == 0 && (fast || !k->fast) && (!k->fits || k->fits(v)) &&
                (!kernel || strcmp(k->name, kernel) == 0) &&
                (!found || k->preference > found->preference))
                found = k;
        }
    }
    return found;
}

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* Median time of a call; `repeat` calls are queued between two looks at the clock. */
static double measure(bench *b, int64_t max_rows, int repeat)
{
    fl_error err;
    fl_node_view v = {
        .op = b->op, .n_in = b->n_in, .in = b->types, .out = b->out_type, .attr = b->attr};
    must(b->op->infer(&v, b->out_type, &b->n_out, &err), &err);
    v.n_out = b->n_out;
    if (b->op->prepare)
        must(b->op->prepare(&v, &b->arena, &b->prep, &err), &err);
    v.prep = b->prep;
    for (int o = 0; o < b->n_out; o++) {
        b->out[o] = (fl_arg){.type = b->out_type[o], .stride = fl_type_width(&b->out_type[o])};
        b->out[o].data = take((size_t)(b->step.n_rows * b->out[o].stride) * 4);
    }
    const fl_kernel *k = choose(b, &v);
    fl_call call = {.kernel = k,
                    .n_in = b->n_in,
                    .n_out = b->n_out,
                    .in = b->in,
                    .out = b->out,
                    .attr = b->attr,
                    .prep = b->prep};
    fl_limits limits = {.max_rows = (int32_t)max_rows,
                        .max_logits = (int32_t)max_rows,
                        .n_threads = 1,
                        .max_context = b->max_context,
                        .max_seqs = 64};
    size_t own = 0, shared = 0;
    if (k->scratch)
        k->scratch(&v, &limits, &own, &shared);
    fl_worker w = {.n_threads = 1, .scratch = take(own), .shared = take(shared)};
    double t[RUNS], all = 0;
    int n = 0;
    for (int r = -3; r < RUNS && (n < 3 || all < 0.5); r++) {
        fl_pass pass;
        must(device->fn->begin(device, NULL, &b->step, true, &pass, &err), &err);
        must(device->fn->wait(device, &err), &err);
        w.queue = pass.queue;
        double start = now();
        for (int i = 0; i < repeat; i++)
            for (int phase = 0; phase < k->n_phases; phase++)
                k->run(&call, pass.step, phase, &w);
        must(device->fn->end(device, &err), &err);
        must(device->fn->wait(device, &err), &err);
        all += now() - start;
        if (r >= 0)
            t[n++] = (now() - start) / repeat;
    }
    qsort(t, (size_t)n, sizeof *t, by_value);
    return t[n / 2];
}

static void report(const char *shape, double seconds, double bytes, double flops)
{
    double floor = bytes / bandwidth;
    printf("%-58s %9.1f us  floor %8.1f us  x %6.2f  %7.1f GB/s  %7.2f TFLOP/s\n", shape,
           seconds * 1e6, floor * 1e6, seconds / floor, bytes / seconds * 1e-9,
           flops / seconds * 1e-12);
    fflush(stdout);
}

/* ---- a device for each case: its memory begins anew ---- */

static void fresh(size_t gigabytes, int64_t rows, int64_t context)
{
    char why[200];
    fl_error err;
    if (device)
        device->fn->close(device);
    must(fl_device_open("cuda", &device, why, &err), &err);
    fl_limits limits = {.max_rows = (int32_t)rows,
                        .max_logits = (int32_t)rows,
                        .n_threads = 1,
                        .max_context = context,
                        .max_seqs = 64};
    must(device->fn->reserve(device, gigabytes << 30, &limits, &err), &err);
}

static void bench_copy(void)
{
    fl_error err;
    fresh(8, 64, 64);
    size_t n = (size_t)3 << 30;
    void *a = random_memory(n, FILL_BYTES), *b = take(n);
    double best = 1e9;
    for (int i = 0; i < 10; i++) {
        double start = now();
        device->fn->copy(device, b, a, n);
        must(device->fn->wait(device, &err), &err);
        double t = now() - start;
        best = t < best ? t : best;
    }
    bandwidth = 2 * (double)n / best;
    printf("%s; a copy moves %.2f TB/s\n", device->name, bandwidth * 1e-12);
}

static void bench_linear(void)
{
    kernel = only;
    static const struct {
        int rows;
        int64_t n, k;
        fl_dtype type;
    } cases[] = {
        {1, 12288, 7168, FL_BF16},     {1, 7168, 12288, FL_BF16},    {1, 896, 7168, FL_BF16},
        {8, 12288, 7168, FL_BF16},     {64, 12288, 7168, FL_BF16},   {256, 12288, 7168, FL_BF16},
        {1024, 12288, 7168, FL_BF16},  {4096, 12288, 7168, FL_BF16}, {1, 12288, 7168, FL_MXFP4},
        {1024, 12288, 7168, FL_MXFP4}, {256, 40, 7168, FL_BF16},     {256, 896, 7168, FL_BF16},
    };
    enum { CASES = sizeof cases / sizeof *cases };
    for (int j = 0; j < 2 * CASES; j++) {
        char name[80];
        int i = j / 2;
        fast = j % 2;
        if (kernel && !fast) /* which takes the others, too */
            continue;
        bench b;
        fresh(4, 4096, 64);
        begin(&b, "linear", 1, cases[i].rows, 64 + cases[i].rows);
        b.max_context = 64;
        add_rows(&b, FL_F32, cases[i].k, 0);
        add_weight(&b, cases[i].type, 1, cases[i].n, cases[i].k);
        double bytes = (double)fl_dtype_bytes(cases[i].type, cases[i].n * cases[i].k, cases[i].k);
        snprintf(name, sizeof name, "linear %s %lld x %lld, %d rows%s",
                 fl_dtype_name(cases[i].type), (long long)cases[i].n, (long long)cases[i].k,
                 cases[i].rows, fast ? ", fast" : "");
        report(name, measure(&b, 4096, cases[i].rows > 8 ? 2 : 20), bytes,
               2.0 * cases[i].rows * (double)(cases[i].n * cases[i].k));
    }
    fast = false;
    kernel = NULL;
}

static void bench_experts(void)
{
    kernel = only;
    static const int rows[] = {1, 8, 64, 512, 4096, 16384};
    enum { EXPERTS = 896, K = 16, CASES = sizeof rows / sizeof *rows };
    const int64_t width = 3584, inner = 3072;
    for (int c = 0; c < 2 * CASES; c++) {
        int i = c / 2;
        bench b;
        fast = c % 2;
        if (!fast && (kernel || rows[i] > 4096))
            continue; /* a third of a second each */
        char name[80];
        fl_error err;
        fresh(40, 16384, 64);
        begin(&b, "experts", 1, rows[i], 64 + rows[i]);
        b.max_context = 64;
        add_rows(&b, FL_F32, width, 0);
        add_rows(&b, FL_I32, K, 0);
        int32_t *ids = malloc((size_t)rows[i] * K * sizeof *ids);
        bool seen[EXPERTS] = {false};
        int touched = 0;
        for (int r = 0; r < rows[i]; r++) {
            for (int j = 0; j < K; j++) {
                int32_t e;
                bool twice;
                do {
                    e = (int32_t)(next() % EXPERTS);
                    twice = false;
                    for (int l = 0; l < j; l++)
                        twice |= ids[r * K + l] == e;
                } while (twice);
                ids[r * K + j] = e;
                touched += !seen[e];
                seen[e] = true;
            }
        }
        must(device->fn->upload(device, b.in[1].data, ids, (size_t)rows[i] * K * 4, &err), &err);
        free(ids);
        add_rows(&b, FL_F32, K, 0);
        add_weight(&b, FL_MXFP4, EXPERTS, inner, width);
        add_weight(&b, FL_MXFP4, EXPERTS, inner, width);
        add_weight(&b, FL_MXFP4, EXPERTS, width, inner);
        b.attr[FL_EXPERTS_ACT].text = "b*tanh(g/b)*sigmoid(g) * l*tanh(u/l)";
        b.attr[FL_EXPERTS_CONSTS].text = "b=4,l=25";
        double each = 3.0 * (double)(width * inner);
        snprintf(name, sizeof name, "experts MXFP4, %d rows (%d of %d experts)%s", rows[i], touched,
                 EXPERTS, fast ? ", fast" : "");
        report(name, measure(&b, rows[i] > 4096 ? rows[i] : 4096, rows[i] > 8 ? 1 : 5),
               touched * each * 17 / 32, 2 * each * K * rows[i]);
    }
    fast = false;
    kernel = NULL;
}

static void bench_delta(void)
{
    static const struct {
        int seqs, rows, heads;
    } cases[] = {{1, 1, 96},    {8, 1, 96},     {64, 1, 96},   {1, 1, 12},     {8, 1, 12},
                 {64, 1, 12},   {1, 1024, 12},  {1, 8192, 12}, {1, 65536, 12}, {1, 1024, 96},
                 {1, 8192, 96}, {1, 65536, 96}, {8, 1024, 12}};
    enum { D = 128 };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        bench b;
        char name[80];
        int rows = cases[i].seqs * cases[i].rows, heads = cases[i].heads;
        fresh(24, rows, 64);
        begin(&b, "delta_rule", cases[i].seqs, cases[i].rows, cases[i].rows);
        b.max_context = 64;
        add_rows(&b, FL_F32, heads, D);
        add_rows_of(&b, FILL_KEYS, FL_F32, heads, D);
        add_rows(&b, FL_F32, heads, D);
        add_rows_of(&b, FILL_DECAYS, FL_F32, heads, D);
        add_rows_of(&b, FILL_SHARES, FL_F32, heads, 0);
        add_state(&b, false, FL_F32, (int64_t)heads * D * D, 64);
        double state = 2.0 * cases[i].seqs * heads * D * D * 4;
        snprintf(name, sizeof name, "delta_rule %d x %d rows, %d heads", cases[i].seqs,
                 cases[i].rows, heads);
        report(name, measure(&b, rows, cases[i].rows > 1 ? 1 : 20),
               state + 5.0 * rows * heads * D * 4, 7.0 * rows * heads * D * D);
    }
}

/* A row at decode, and rows of a prompt, for caches of every type; `fast`: with precision fast. */
static void mla_case(int seqs, int rows_each, int64_t heads, int64_t context, int64_t select,
                     fl_dtype cache, bool with_fast)
{
    bench b;
    fl_error err;
    char name[120];
    int rows = seqs * rows_each;
    double keys = select ? (double)select : (double)context;
    snprintf(name, sizeof name, "mla%s %s %d x %d rows, %lld heads, %.0f of %lld keys",
             with_fast ? " fast" : "", fl_dtype_name(cache), seqs, rows_each, (long long)heads,
             keys, (long long)context);
    if (only && !strstr(name, only))
        return;
    fast = with_fast;
    fresh(16, 512, context);
    begin(&b, "mla", seqs, rows_each, context);
    add_rows(&b, FL_F32, heads, 192);
    add_weight(&b, FL_BF16, 1, heads * 256, 512);
    add_state(&b, true, cache, 576, context * seqs);
    if (select) {
        int32_t *list = malloc((size_t)(rows * select) * 4);
        add_rows(&b, FL_I32, select, 0);
        for (int64_t k = 0; k < rows * select; k++)
            list[k] = (int32_t)(k % select * (context / select) +
                                (int64_t)(next() % (uint64_t)(context / select)));
        must(device->fn->upload(device, b.in[3].data, list, (size_t)(rows * select) * 4, &err),
             &err);
        free(list);
    }
    b.attr[FL_MLA_V_DIM].i = 128;
    b.attr[FL_MLA_V_DIM].f = 128;
    b.attr[FL_MLA_SCALE].f = 0.01;
    report(name, measure(&b, 512, rows > 16 ? 1 : 5),
           seqs * keys * (double)fl_cache_row_bytes(cache, 576) + 2.0 * (double)heads * 256 * 512,
           2.0 * rows * keys * (double)heads * (576 + 512));
    fast = false;
}

static const fl_dtype caches[] = {FL_F32, FL_BF16, FL_F8_E4M3, FL_I8};
enum { CACHES = sizeof caches / sizeof *caches };

static void bench_mla(void)
{
    static const struct {
        int seqs, rows, heads;
        int64_t context;
        int select;
    } cases[] = {{1, 1, 96, 4096, 0},       {1, 1, 96, 32768, 0},       {1, 1, 96, 131072, 0},
                 {1, 1, 96, 1 << 20, 0},    {1, 1, 12, 131072, 0},      {1, 1, 96, 1 << 20, 2048},
                 {16, 1, 96, 4096, 0},      {1, 256, 96, 4096, 0},      {1, 512, 96, 4096, 0},
                 {1, 512, 96, 32768, 0},    {1, 512, 96, 131072, 0},    {1, 512, 96, 1 << 20, 0},
                 {1, 256, 96, 32768, 2048}, {1, 256, 96, 1 << 20, 2048}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        int n = cases[i].rows == 512 ? 2 : CACHES; /* what takes long, with two caches */
        for (int c = 0; c < 2 * n; c++)
            mla_case(cases[i].seqs, cases[i].rows, cases[i].heads, cases[i].context,
                     cases[i].select, caches[c / 2], c % 2);
    }
}

static void bench_index(void)
{
    static const struct {
        int rows, heads;
        int64_t context;
    } cases[] = {{1, 32, 4096},    {1, 32, 32768},    {1, 32, 131072},
                 {1, 32, 1 << 20}, {64, 32, 32768},   {256, 32, 4096},
                 {256, 32, 32768}, {256, 32, 131072}, {256, 32, 1 << 20}};
    static const fl_dtype types[] = {FL_F32, FL_BF16, FL_I8};
    for (size_t i = 0; i < 3 * sizeof cases / sizeof *cases; i++) {
        bench b;
        char name[120];
        int rows = cases[i / 3].rows, heads = cases[i / 3].heads;
        int64_t context = cases[i / 3].context;
        fl_dtype type = types[i % 3];
        snprintf(name, sizeof name, "index_select %s %d rows, %d heads, %lld keys",
                 fl_dtype_name(type), rows, heads, (long long)context);
        if (only && !strstr(name, only))
            continue;
        fresh(8, 256, context);
        begin(&b, "index_select", 1, rows, context);
        add_rows(&b, FL_F32, heads, 128);
        add_rows(&b, FL_F32, heads, 0);
        add_state(&b, true, type, 128, context);
        b.attr[FL_INDEX_SELECT_TOPK].i = 2048;
        b.attr[FL_INDEX_SELECT_TOPK].f = 2048;
        report(name, measure(&b, 256, rows > 64 ? 1 : 5),
               (double)context * (double)fl_cache_row_bytes(type, 128),
               2.0 * rows * (double)context * heads * 128);
    }
}

/* Taking tokens: a floor of one pass over the logits. */
static void bench_pick(void)
{
    enum { VOCAB = 163840 };
    static const struct {
        const char *how;
        float temperature;
        int32_t top_k;
        float top_p;
    } ways[] = {{"the highest", 0, 0, 1},
                {"drawn", 0.1f, 0, 1},
                {"top-k 50", 0.1f, 50, 1},
                {"top-p 0.95", 0.1f, 0, 0.95f},
                {"top-k 50, top-p 0.95", 0.1f, 50, 0.95f}};
    for (int i = 0; i < 10; i++) {
        bench b;
        fl_error err;
        fl_draw d[64] = {{0}};
        char name[120];
        int rows = i % 2 ? 64 : 1, way = i / 2;
        snprintf(name, sizeof name, "pick %d rows of %d, %s", rows, VOCAB, ways[way].how);
        if (only && !strstr(name, only))
            continue;
        fresh(2, 64, 64);
        begin(&b, "pick", rows, 1, 64);
        add_rows(&b, FL_F32, VOCAB, 0);
        add_rows(&b, FL_I32, FL_DRAW_WORDS, 0);
        for (int r = 0; r < rows && ways[way].temperature > 0; r++)
            d[r] = fl_draw_of(ways[way].temperature, ways[way].top_k, ways[way].top_p, 0, next());
        must(device->fn->upload(device, b.in[1].data, d, (size_t)rows * sizeof *d, &err), &err);
        report(name, measure(&b, 64, 5), 4.0 * rows * VOCAB, 0);
    }
}

int main(int argc, char **argv)
{
    static const struct {
        const char *name;
        void (*run)(void);
    } all[] = {{"linear", bench_linear}, {"experts", bench_experts},    {"delta_rule", bench_delta},
               {"mla", bench_mla},       {"index_select", bench_index}, {"pick", bench_pick}};
    only = argc > 2 ? argv[2] : NULL;
    bench_copy();
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        if (argc < 2 || strcmp(argv[1], all[i].name) == 0)
            all[i].run();
    }
    device->fn->close(device);
    return 0;
}
