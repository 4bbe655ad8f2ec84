/* Attention at long contexts beside the machine: the indexer, sparse and dense latent attention.
 *
 *   bench_attention [threads] [context] [part]    default: all processors, 65536 tokens, all
 *                                                 part: only what has it in its name
 *
 * Prints, for rows at the end of the context, GFLOP/s and the share of the peak of what the kernel
 * multiplies with (float32, or BF16 in precision fast), and GB/s of cached rows as if each were
 * read once per call. */
#define _GNU_SOURCE
#include "bench.h"

#include "graph/cache_row.h"
#include "ops/def/def_internal.h"
#include "ops/limits.h"

/* The indexer: sizes of a large model and of the bundled one. */
typedef struct index_sizes {
    const char *name;
    int64_t heads, dim, topk;
} index_sizes;
enum { TOPK = 2048 };
static const index_sizes INDEX_LARGE = {"32 heads of 128", 32, 128, TOPK};
static const index_sizes INDEX_SMALL = {"4 heads of 32", 4, 32, 128};

/* Latent attention: sizes of a large model and of one a tenth as wide. */
typedef struct sizes {
    const char *name;
    int64_t heads, nope, pe, value, latent;
} sizes;
static const sizes LARGE = {"96 heads of 512", 96, 128, 64, 128, 512};
static const sizes SMALL = {"16 heads of 256", 16, 128, 64, 128, 256};

static fl_pool *pool;
static int64_t context = 65536;
static fl_machine machine;
static const char *part = "";

static fl_arg cache_arg(fl_dtype t, int64_t width, fl_state_pool *to)
{
    int64_t bytes = fl_cache_row_bytes(t, width);
    float *row = bench_room((size_t)width * sizeof *row);
    *to = (fl_state_pool){bench_room((size_t)(context * bytes)), bytes};
    for (int64_t p = 0; p < context; p++) {
        for (int64_t i = 0; i < width; i++)
            row[i] = bench_next_float();
        fl_cache_encode(t, width, row, to->base + p * bytes);
    }
    fl_free_aligned(row);
    return (fl_arg){.type = {FL_ROWS_STATE, t, 1, {width}, 1, 0, true}};
}

static const fl_kernel *best_kernel(const char *op, bool fast)
{
    const fl_kernel *k, *best = NULL;
    for (int i = 0; (k = fl_registry_kernel(fl_ops_registry(), i)) != NULL; i++) {
        if (strcmp(k->op, op) == 0 && k->isa <= fl_cpu_isa() && k->fast == fast &&
            (!best || k->preference > best->preference))
            best = k;
    }
    return best;
}

static void measure(const char *what, const char *op, bench_call *b, int rows, double flops,
                    double bytes)
{
    fl_seq_rows *seq = (fl_seq_rows *)b->step.seqs;
    seq->n_rows = rows;
    seq->pos0 = context - rows;
    for (int fast = 0; fast < 2; fast++) {
        const fl_kernel *k = best_kernel(op, fast);
        double t = k ? bench_time(b, k, rows, context, NULL) : 0;
        double top = fast && machine.bf16 > 0 ? machine.bf16 : machine.f32;
        if (t > 0)
            printf("%-40s %3d rows %10.1f us %8.1f GFLOP/s %4.0f %% of %s %8.2f GB/s  (%s)\n", what,
                   rows, t * 1e6, flops / t / 1e9, 100 * flops / t / top, fast ? "BF16" : "F32 ",
                   bytes / t / 1e9, k->name);
    }
}

static void bench_index(fl_step step, const index_sizes *z, fl_dtype t)
{
    fl_attr attr[FL_INDEX_SELECT_SCALE + 1] = {
        [FL_INDEX_SELECT_TOPK] = {.i = z->topk}, [FL_INDEX_SELECT_SCALE] = {.f = 0.01}};
    enum { ROWS = 64 };
    char what[60];
    snprintf(what, sizeof what, "index_select %s, %s", z->name, fl_dtype_name(t));
    if (!strstr(what, part))
        return;
    fl_state_pool keys;
    bench_call b = {.pool = pool, .call = {.n_in = 3, .n_out = 1, .attr = attr}, .step = step};
    b.in[FL_INDEX_Q] = bench_rows(FL_F32, ROWS, z->heads, z->dim);
    b.in[FL_INDEX_W] = bench_rows(FL_F32, ROWS, z->heads, 0);
    b.in[FL_INDEX_KEYS] = cache_arg(t, z->dim, &keys);
    b.out[0] = bench_rows(FL_I32, ROWS, z->topk, 0);
    b.step.states = &keys;
    for (int rows = 1; rows <= ROWS; rows *= ROWS)
        measure(what, "index_select", &b, rows, 2.0 * (double)(z->heads * z->dim * context * rows),
                (double)(context * keys.item_bytes));
    fl_free_aligned(b.in[FL_INDEX_Q].data);
    fl_free_aligned(b.in[FL_INDEX_W].data);
    fl_free_aligned(b.out[0].data);
    fl_free_aligned(keys.base);
}

/* 2048 positions a row, ascending; neighbouring rows share most of them. */
static fl_arg selection(int64_t rows)
{
    fl_arg a = bench_rows(FL_I32, rows, TOPK, 0);
    int64_t every = (context - rows) / TOPK;
    for (int64_t i = 0; i < rows * TOPK; i++)
        ((int32_t *)a.data)[i] =
            (int32_t)(i % TOPK * every +
                      (bench_next32() % 8 ? 0 : bench_next32() % (uint32_t)every));
    return a;
}

/* One row and `rows` rows.  Operations: one row, and rows with a selection, in the absorbed form,
 * whole blocks of rows that see everything in the expanded form, as if in runs of up to 512. */
static void bench_mla(fl_step step, const sizes *z, fl_dtype t, bool sparse, int rows)
{
    fl_attr attr[FL_MLA_SCALE + 1] = {
        [FL_MLA_V_DIM] = {.i = z->value}, [FL_MLA_SCALE] = {.f = 0.07}};
    char what[80];
    snprintf(what, sizeof what, "mla %s %s, %s", sparse ? "sparse" : "dense", z->name,
             fl_dtype_name(t));
    if (!strstr(what, part))
        return;
    fl_state_pool cache;
    bench_call b = {
        .pool = pool, .call = {.n_in = sparse ? 4 : 3, .n_out = 1, .attr = attr}, .step = step};
    fl_tensor kv_b = {
        .dtype = FL_BF16, .ndim = 2, .shape = {z->heads * (z->nope + z->value), z->latent}};
    uint16_t *weights = bench_room((size_t)fl_tensor_bytes(&kv_b));
    for (int64_t i = 0; i < kv_b.shape[0] * z->latent; i++)
        weights[i] = (uint16_t)(0x3c00 | (bench_next32() & 0x807f));
    kv_b.data = weights;
    b.in[FL_MLA_Q] = bench_rows(FL_F32, rows, z->heads, z->nope + z->pe);
    b.in[FL_MLA_KV_B] =
        (fl_arg){.type = {FL_ROWS_CONST, FL_BF16, 2, {kv_b.shape[0], z->latent}, 1, -1, false},
                 .tensors = &kv_b};
    b.in[FL_MLA_CACHE] = cache_arg(t, z->latent + z->pe, &cache);
    if (sparse)
        b.in[FL_MLA_SELECT] = selection(rows);
    b.out[0] = bench_rows(FL_F32, rows, z->heads, z->value);
    b.step.states = &cache;
    double seen = sparse ? TOPK : (double)context;
    double weighed = (double)(z->latent * (z->nope + z->value));
    for (int n = 1; n <= rows; n += rows - 1) {
        double per_key = sparse || n == 1
                             ? (double)(2 * z->latent + z->pe)
                             : (double)(z->nope + z->pe + z->value) + weighed / (n < 512 ? n : 512);
        double per_row = sparse || n == 1 ? weighed : 0;
        measure(what, "mla", &b, n, 2.0 * (double)z->heads * n * (per_key * seen + per_row),
                seen * (double)cache.item_bytes * (sparse ? n : 1));
    }
    fl_free_aligned(b.in[FL_MLA_Q].data);
    if (sparse)
        fl_free_aligned(b.in[FL_MLA_SELECT].data);
    fl_free_aligned(b.out[0].data);
    fl_free_aligned(weights);
    fl_free_aligned(cache.base);
}

int main(int argc, char **argv)
{
    static const fl_dtype types[] = {FL_F32, FL_BF16, FL_F8_E4M3, FL_I8};
    static int32_t row_seq[512];
    fl_error err;
    if (fl_pool_create(argc > 1 ? atoi(argv[1]) : fl_cpu_count(), &pool, &err) != FL_OK ||
        fl_machine_measure(pool, fl_cpu_isa(), &machine, &err) != FL_OK)
        bench_die(err.message);
    if (argc > 2)
        context = atoll(argv[2]) / FL_PAGE_TOKENS * FL_PAGE_TOKENS;
    if (argc > 3)
        part = argv[3];
    if (context < 2 * TOPK)
        bench_die("a context of 4096 tokens at least");
    int32_t *pages = bench_room((size_t)(context / FL_PAGE_TOKENS) * sizeof *pages);
    for (int64_t i = 0; i < context / FL_PAGE_TOKENS; i++)
        pages[i] = (int32_t)i;
    fl_seq_rows seq = {.pages = pages};
    fl_step step = {.n_seqs = 1, .seqs = &seq, .row_seq = row_seq};
    printf("%d threads, %lld tokens: %.0f GFLOP/s float32, %.0f BF16, %.1f GB/s from memory\n",
           fl_pool_threads(pool), (long long)context, machine.f32 / 1e9, machine.bf16 / 1e9,
           machine.memory / 1e9);
    for (int i = 0; i < 4; i++) {
        if (types[i] == FL_F8_E4M3)
            continue;
        bench_index(step, &INDEX_LARGE, types[i]);
        bench_index(step, &INDEX_SMALL, types[i]);
    }
    for (int i = 0; i < 4; i++)
        bench_mla(step, &LARGE, types[i], true, 64);
    for (int i = 0; i < 4; i++)
        bench_mla(step, &SMALL, types[i], false, 512);
    fl_free_aligned(pages);
    fl_pool_destroy(pool);
    return 0;
}
