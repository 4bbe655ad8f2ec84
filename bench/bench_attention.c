/* Attention at long contexts beside the machine: the indexer and sparse latent attention at the
 * sizes of large models.
 *
 *   bench_attention [threads] [context]        default: all processors, 65536 tokens
 *
 * Prints, for one row and for 64 rows at the end of the context, GFLOP/s and the share of the
 * float32 peak, and GB/s of cached rows as if each were read once per call. */
#define _GNU_SOURCE
#include "base/mem.h"
#include "base/pool.h"
#include "graph/cache_row.h"
#include "ops/def/def_internal.h"
#include "ops/limits.h"
#include "ops/ops.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { HEADS = 96, NOPE = 128, PE = 64, VALUE = 128, LATENT = 512 };
enum { INDEX_HEADS = 32, INDEX_DIM = 128, TOPK = 2048, MOST_ROWS = 64 };

static fl_pool *pool;
static int64_t context = 65536;
static fl_machine machine;

static void die(const char *what)
{
    fprintf(stderr, "bench_attention: %s\n", what);
    exit(1);
}

static void *room(size_t bytes)
{
    void *p = fl_alloc_aligned(bytes ? bytes : 1, FL_CACHE_LINE);
    if (!p)
        die("out of memory");
    return p;
}

static uint32_t next32(void)
{
    static uint64_t seed = 1;
    seed = seed * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(seed >> 32);
}

static float next_float(void)
{
    return (float)((int32_t)next32() >> 8) * 0x1p-23f;
}

static fl_arg rows_arg(fl_dtype t, int ndim, int64_t a, int64_t b)
{
    int64_t width = ndim == 2 ? a * b : a;
    fl_arg arg = {.type = {FL_ROWS_TOKENS, t, ndim, {a, b}, 1, -1, false}, .stride = width};
    float *p = room((size_t)(MOST_ROWS * width) * sizeof *p);
    for (int64_t i = 0; i < MOST_ROWS * width; i++)
        p[i] = next_float();
    arg.data = p;
    return arg;
}

static fl_arg cache_arg(fl_dtype t, int64_t width, fl_state_pool *to)
{
    int64_t bytes = fl_cache_row_bytes(t, width);
    float *row = room((size_t)width * sizeof *row);
    *to = (fl_state_pool){room((size_t)(context * bytes)), bytes};
    for (int64_t p = 0; p < context; p++) {
        for (int64_t i = 0; i < width; i++)
            row[i] = next_float();
        fl_cache_encode(t, width, row, to->base + p * bytes);
    }
    fl_free_aligned(row);
    return (fl_arg){.type = {FL_ROWS_STATE, t, 1, {width}, 1, 0, true}};
}

typedef struct bench {
    fl_call call;
    fl_arg in[4], out;
    fl_step step;
    size_t per_worker;
    char *scratch, *shared;
} bench;

static void task(void *ctx, int thread, int n_threads)
{
    bench *b = ctx;
    fl_worker w = {.thread = thread,
                   .n_threads = n_threads,
                   .scratch = b->scratch + (size_t)thread * b->per_worker,
                   .shared = b->shared};
    for (int p = 0; p < b->call.kernel->n_phases; p++) {
        if (p)
            fl_pool_barrier(pool);
        b->call.kernel->run(&b->call, &b->step, p, &w);
    }
}

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static const fl_kernel *best_kernel(const char *op, const fl_node_view *view)
{
    const fl_kernel *k, *best = NULL;
    for (int i = 0; (k = fl_registry_kernel(fl_ops_registry(), i)) != NULL; i++) {
        if (strcmp(k->op, op) == 0 && k->isa <= fl_cpu_isa() && (!k->fits || k->fits(view)) &&
            (!best || k->preference > best->preference))
            best = k;
    }
    return best;
}

static void measure(const char *what, const char *op, bench *b, int rows, double flops,
                    double bytes)
{
    const fl_type *types[4];
    for (int i = 0; i < b->call.n_in; i++)
        types[i] = &b->in[i].type;
    fl_node_view view = {.n_in = b->call.n_in, .n_out = 1, .in = types, .attr = b->call.attr};
    fl_limits limits = {.max_rows = rows,
                        .max_logits = rows,
                        .n_threads = fl_pool_threads(pool),
                        .max_context = context};
    fl_seq_rows *seq = (fl_seq_rows *)b->step.seqs;
    size_t shared = 0;
    double least = 1e9, start = now();
    b->call.kernel = best_kernel(op, &view);
    b->call.in = b->in;
    b->call.out = &b->out;
    b->step.n_rows = seq->n_rows = rows;
    seq->pos0 = context - rows;
    b->call.kernel->scratch(&view, &limits, &b->per_worker, &shared);
    b->per_worker = (b->per_worker + 63) / 64 * 64;
    b->scratch = room(b->per_worker * (size_t)limits.n_threads);
    b->shared = room(shared);
    for (int i = 0; i < 3 || now() - start < 0.5; i++) {
        double t = now();
        fl_pool_run(pool, task, b);
        t = now() - t;
        least = t < least ? t : least;
    }
    printf("%-28s %3d rows %10.1f us %8.1f GFLOP/s %4.0f %% of float32 %8.2f GB/s  (%s)\n", what,
           rows, least * 1e6, flops / least / 1e9, 100 * flops / least / machine.f32,
           bytes / least / 1e9, b->call.kernel->name);
    fl_free_aligned(b->scratch);
    fl_free_aligned(b->shared);
}

static void bench_index(fl_step step, fl_dtype t)
{
    fl_attr attr[FL_INDEX_SELECT_SCALE + 1] = {
        [FL_INDEX_SELECT_TOPK] = {.i = TOPK}, [FL_INDEX_SELECT_SCALE] = {.f = 0.01}};
    fl_state_pool keys;
    bench b = {.call = {.n_in = 3, .n_out = 1, .attr = attr}, .step = step};
    b.in[FL_INDEX_Q] = rows_arg(FL_F32, 2, INDEX_HEADS, INDEX_DIM);
    b.in[FL_INDEX_W] = rows_arg(FL_F32, 1, INDEX_HEADS, 0);
    b.in[FL_INDEX_KEYS] = cache_arg(t, INDEX_DIM, &keys);
    b.out = rows_arg(FL_I32, 1, TOPK, 0);
    b.step.states = &keys;
    char what[40];
    snprintf(what, sizeof what, "index_select %s", fl_dtype_name(t));
    for (int rows = 1; rows <= MOST_ROWS; rows *= MOST_ROWS)
        measure(what, "index_select", &b, rows,
                2.0 * INDEX_HEADS * INDEX_DIM * (double)context * rows,
                (double)(context * keys.item_bytes));
    fl_free_aligned(b.in[FL_INDEX_Q].data);
    fl_free_aligned(b.in[FL_INDEX_W].data);
    fl_free_aligned(b.out.data);
    fl_free_aligned(keys.base);
}

/* Every row selects 2048 positions, ascending; neighbouring rows share most of them. */
static void bench_sparse(fl_step step, fl_dtype t)
{
    fl_attr attr[FL_MLA_SCALE + 1] = {[FL_MLA_V_DIM] = {.i = VALUE}, [FL_MLA_SCALE] = {.f = 0.07}};
    fl_state_pool cache;
    bench b = {.call = {.n_in = 4, .n_out = 1, .attr = attr}, .step = step};
    fl_tensor kv_b = {.dtype = FL_BF16, .ndim = 2, .shape = {HEADS * (NOPE + VALUE), LATENT}};
    uint16_t *weights = room((size_t)fl_tensor_bytes(&kv_b));
    for (int64_t i = 0; i < kv_b.shape[0] * LATENT; i++)
        weights[i] = (uint16_t)(0x3c00 | (next32() & 0x807f));
    kv_b.data = weights;
    b.in[FL_MLA_Q] = rows_arg(FL_F32, 2, HEADS, NOPE + PE);
    b.in[FL_MLA_KV_B] =
        (fl_arg){.type = {FL_ROWS_CONST, FL_BF16, 2, {kv_b.shape[0], LATENT}, 1, -1, false},
                 .tensors = &kv_b};
    b.in[FL_MLA_CACHE] = cache_arg(t, LATENT + PE, &cache);
    b.in[FL_MLA_SELECT] = rows_arg(FL_I32, 1, TOPK, 0);
    b.out = rows_arg(FL_F32, 2, HEADS, VALUE);
    b.step.states = &cache;
    int64_t every = (context - MOST_ROWS) / TOPK;
    for (int64_t i = 0; i < MOST_ROWS * TOPK; i++)
        ((int32_t *)b.in[FL_MLA_SELECT].data)[i] =
            (int32_t)(i % TOPK * every + (next32() % 8 ? 0 : next32() % (uint32_t)every));
    char what[40];
    snprintf(what, sizeof what, "mla, 2048 selected, %s", fl_dtype_name(t));
    for (int rows = 1; rows <= MOST_ROWS; rows *= MOST_ROWS)
        measure(what, "mla", &b, rows,
                2.0 * HEADS * TOPK * (2 * LATENT + PE) * rows +
                    2.0 * HEADS * LATENT * (NOPE + VALUE) * rows,
                (double)(TOPK * cache.item_bytes * rows));
    for (int i = 0; i < 4; i++)
        fl_free_aligned(b.in[i].data);
    fl_free_aligned(b.out.data);
    fl_free_aligned(weights);
    fl_free_aligned(cache.base);
}

int main(int argc, char **argv)
{
    fl_error err;
    int32_t row_seq[MOST_ROWS] = {0};
    if (fl_pool_create(argc > 1 ? atoi(argv[1]) : fl_cpu_count(), &pool, &err) != FL_OK ||
        fl_machine_measure(pool, fl_cpu_isa(), &machine, &err) != FL_OK)
        die(err.message);
    if (argc > 2)
        context = atoll(argv[2]) / FL_PAGE_TOKENS * FL_PAGE_TOKENS;
    if (context < 2 * TOPK)
        die("a context of 4096 tokens at least");
    int32_t *pages = room((size_t)(context / FL_PAGE_TOKENS) * sizeof *pages);
    for (int64_t i = 0; i < context / FL_PAGE_TOKENS; i++)
        pages[i] = (int32_t)i;
    fl_seq_rows seq = {.pages = pages};
    fl_step step = {.n_seqs = 1, .seqs = &seq, .row_seq = row_seq};
    printf("%d threads, %lld tokens: %.0f GFLOP/s float32, %.1f GB/s from memory\n",
           fl_pool_threads(pool), (long long)context, machine.f32 / 1e9, machine.memory / 1e9);
    bench_index(step, FL_F32);
    bench_index(step, FL_BF16);
    bench_index(step, FL_I8);
    bench_sparse(step, FL_F32);
    bench_sparse(step, FL_BF16);
    fl_free_aligned(pages);
    fl_pool_destroy(pool);
    return 0;
}
