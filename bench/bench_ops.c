/* How near the CPU kernels come to the machine.
 *
 *   bench_ops [threads] [level] [part]    level: 0 base .. 3 avx512-vnni; default: all there is
 *                                         part: only what has it in its name ("linear Q8 4096", "8
 * rows")
 *
 * Measures the multiply-add peak and the read bandwidth (from memory and from the last cache) and
 * then linear and experts beside them: GFLOP/s and share of the peak (of BF16 for linear and of 8
 * bits for experts in precision fast, else of float32), GB/s of weights and share of the bandwidth
 * of where the weights lie.  Every figure is the best of many runs, on random data.
 */
#define _GNU_SOURCE
#include "bench.h"

#include "graph/expr.h"
#include "ops/limits.h"

static fl_pool *pool;
static fl_isa isa;
static const char *part = "";
static double peak, bf16_peak, int8_peak, memory_speed, cache_speed; /* GFLOP/s, GB/s */

enum { MEMORY_BYTES = 256 << 20, TOP = 16 }; /* of copies of weights, to be read from memory */

/* ---- what the machine can do ---- */

static void measure_machine(void)
{
    fl_machine m;
    fl_error err;
    if (fl_machine_measure(pool, isa, &m, &err) != FL_OK)
        bench_die(err.message);
    peak = m.f32 / 1e9;
    bf16_peak = m.bf16 > 0 ? m.bf16 / 1e9 : peak;
    int8_peak = m.int8 > 0 ? m.int8 / 1e9 : peak;
    memory_speed = m.memory / 1e9;
    cache_speed = m.cache / 1e9;
    printf("%s, %d threads: %.0f GFLOP/s (BF16 %.0f, 8 bits %.0f), reads %.1f GB/s from memory, "
           "%.1f GB/s from cache\n",
           fl_isa_name(isa), fl_pool_threads(pool), peak, m.bf16 / 1e9, m.int8 / 1e9, memory_speed,
           cache_speed);
}

/* ---- one kernel call ---- */

typedef struct bench {
    bench_call c;       /* the first member: turn gets it */
    fl_tensor *weights; /* copies of the tensors, taken in turn */
    int copies, turn, stack;
} bench;

static fl_tensor random_tensor(fl_dtype t, int64_t rows, int64_t cols)
{
    if (t == FL_Q8) {
        fl_tensor from = random_tensor(FL_BF16, rows, cols), to = from;
        to.dtype = FL_Q8;
        to.data = bench_room((size_t)fl_tensor_bytes(&to));
        to.block_scale = bench_room((size_t)fl_tensor_bytes(&to));
        fl_tensor_to_q8(&from, &to, 0, rows);
        fl_free_aligned((void *)from.data);
        return to;
    }
    fl_tensor w = {.dtype = t, .ndim = 2, .shape = {rows, cols}};
    size_t bytes = (size_t)(rows * cols * fl_dtype_bits(t) / 8);
    unsigned char *p = bench_room(bytes);
    for (size_t i = 0; i < bytes / 4; i++) {
        uint32_t x = bench_next32();
        float f = bench_next_float();
        if (t == FL_F32)
            memcpy(&x, &f, sizeof x);
        else if (t == FL_BF16 || t == FL_F16) /* about 0.5 .. 2, both signs */
            x = (x & 0x80ff80ffu) | (t == FL_BF16 ? 0x3f003f00u : 0x38003800u);
        else if (t == FL_F8_BLOCK) /* no NaN */
            x &= 0xbfbfbfbfu;
        memcpy(p + 4 * i, &x, sizeof x);
    }
    w.data = p;
    if (t == FL_F8_BLOCK) {
        int64_t blocks = fl_f8_blocks(rows) * fl_f8_blocks(cols);
        float *s = bench_room((size_t)blocks * sizeof *s);
        for (int64_t i = 0; i < blocks; i++)
            s[i] = 0.01f;
        w.block_scale = s;
    }
    if (t == FL_MXFP4) {
        uint8_t *s = bench_room((size_t)(rows * cols / FL_MX_GROUP));
        for (int64_t i = 0; i < rows * cols / FL_MX_GROUP; i++)
            s[i] = (uint8_t)(118 + bench_next32() % 4); /* as close as those of a row mostly are */
        w.scale = s;
    }
    return w;
}

/* Before a call: the next copy of the weights. */
static void turn(bench_call *c)
{
    bench *b = (bench *)c;
    for (int i = 0, at = b->turn++ % b->copies * b->stack; i < c->call.n_in; i++) {
        if (c->in[i].type.rows != FL_ROWS_CONST)
            continue;
        c->in[i].tensors = &b->weights[at];
        c->in[i].data = (void *)b->weights[at].data;
        at += c->in[i].type.n_tensors;
    }
}

static void release(bench *b)
{
    for (int i = 0; i < b->c.call.n_in; i++) {
        if (b->c.in[i].type.rows != FL_ROWS_CONST)
            fl_free_aligned(b->c.in[i].data);
    }
    fl_free_aligned(b->c.out[0].data);
    for (int i = 0; i < b->copies * b->stack; i++) {
        fl_free_aligned((void *)b->weights[i].data);
        fl_free_aligned((void *)b->weights[i].scale);
        fl_free_aligned((void *)b->weights[i].block_scale);
    }
    fl_free_aligned(b->weights);
}

static void report(const char *what, int rows, double t, double flops, double bytes, double top,
                   bool cached)
{
    double gf = flops / t / 1e9, gb = bytes / t / 1e9, limit = cached ? cache_speed : memory_speed;
    printf("%-34s %4d rows %10.1f us %8.1f GFLOP/s %4.0f %%  %7.2f GB/s %4.0f %% of %s\n", what,
           rows, t * 1e6, gf, 100 * gf / top, gb, 100 * gb / limit, cached ? "cache" : "memory");
}

static void each_kernel(const char *op, bench *b, const char *shape, int rows, double flops,
                        double bytes, bool cached)
{
    const fl_kernel *k;
    for (int i = 0; (k = fl_registry_kernel(fl_ops_registry(), i)) != NULL; i++) {
        if (strcmp(k->op, op) != 0 || k->isa != isa || k->preference <= 0)
            continue;
        double t = bench_time(&b->c, k, rows, rows, turn);
        char what[80];
        snprintf(what, sizeof what, "%s%s %s", op, k->fast ? " fast" : "", shape);
        if (t > 0)
            report(what, rows, t, flops, bytes,
                   !k->fast                    ? peak
                   : strcmp(op, "linear") == 0 ? bf16_peak
                                               : int8_peak,
                   cached);
    }
}

static bool wanted(const char *op, const char *shape, int rows)
{
    char name[100];
    snprintf(name, sizeof name, "%s %s %d rows", op, shape, rows);
    return strstr(name, part) != NULL;
}

static void bench_linear(fl_dtype t, int64_t k, int64_t n, int rows, bool cached)
{
    char shape[60];
    snprintf(shape, sizeof shape, "%s %lld -> %lld", fl_dtype_name(t), (long long)k, (long long)n);
    if (!wanted("linear", shape, rows))
        return;
    bench b = {.c = {.pool = pool, .call = {.n_in = 2, .n_out = 1}}, .stack = 1};
    fl_tensor first = random_tensor(t, n, k);
    double bytes = (double)fl_tensor_bytes(&first);
    b.copies = cached ? 1 : 1 + (int)(MEMORY_BYTES / bytes);
    b.weights = bench_room((size_t)b.copies * sizeof *b.weights);
    for (int i = 0; i < b.copies; i++)
        b.weights[i] = i ? random_tensor(t, n, k) : first;
    b.c.in[0] = bench_rows(FL_F32, rows, k, 0);
    b.c.in[1] = (fl_arg){.type = {FL_ROWS_CONST, t, 2, {n, k}, 1, -1, false}};
    b.c.out[0] = bench_rows(FL_F32, rows, n, 0);
    each_kernel("linear", &b, shape, rows, 2.0 * (double)(k * n) * rows, bytes, cached);
    release(&b);
}

static void bench_experts(fl_dtype t, int64_t z, int64_t inner, int experts, int rows)
{
    char shape[60];
    snprintf(shape, sizeof shape, "%s %d x %lld x %lld", fl_dtype_name(t), experts, (long long)z,
             (long long)inner);
    if (!wanted("experts", shape, rows))
        return;
    bench b = {
        .c = {.pool = pool, .call = {.n_in = 6, .n_out = 1}}, .copies = 1, .stack = 3 * experts};
    b.weights = bench_room((size_t)b.stack * sizeof *b.weights);
    for (int i = 0; i < b.stack; i++)
        b.weights[i] = i < 2 * experts ? random_tensor(t, inner, z) : random_tensor(t, z, inner);
    b.c.in[0] = bench_rows(FL_F32, rows, z, 0);
    b.c.in[1] = bench_rows(FL_I32, rows, TOP, 0);
    b.c.in[2] = bench_rows(FL_F32, rows, TOP, 0);
    for (int i = 3; i < 6; i++)
        b.c.in[i] = (fl_arg){
            .type = {
                FL_ROWS_CONST, t, 2, {i < 5 ? inner : z, i < 5 ? z : inner}, experts, -1, false}};
    b.c.out[0] = bench_rows(FL_F32, rows, z, 0);
    int touched = 0;
    char *seen = bench_room((size_t)experts);
    for (int r = 0; r < rows; r++) {
        for (int j = 0; j < TOP; j++) { /* distinct within a row */
            int e = (int)(bench_next32() % (unsigned)(experts / TOP)) * TOP + j;
            ((int32_t *)b.c.in[1].data)[r * TOP + j] = e;
            touched += !seen[e];
            seen[e] = 1;
        }
    }
    fl_free_aligned(seen);
    fl_arena arena = {0};
    const fl_expr *act = NULL;
    fl_error err;
    if (fl_expr_compile("b*tanh(g/b)*sigmoid(g) * l*tanh(u/l)", "g,u", "b=4,l=25", &arena, &act,
                        &err) != FL_OK)
        bench_die(err.message);
    b.c.call.prep = act;
    double per = (double)(fl_tensor_bytes(&b.weights[0]) * 3);
    each_kernel("experts", &b, shape, rows, 6.0 * (double)(z * inner) * rows * TOP, per * touched,
                false);
    fl_arena_free(&arena);
    release(&b);
}

static void bench_level(void)
{
    static const fl_dtype types[] = {FL_BF16, FL_F32, FL_F16, FL_F8_BLOCK, FL_MXFP4, FL_Q8};
    static const int rows[] = {1, 4, 8, 64, 256, 512};
    enum { TYPES = sizeof types / sizeof *types, ROWS = sizeof rows / sizeof *rows };
    measure_machine();
    for (int t = 0; t < TYPES; t++) {
        bench_linear(types[t], 4096, 4096, 1, false);
        bench_linear(types[t], 1024, 1024, 1, true);
    }
    for (int t = 0; t < TYPES; t += t ? 1 : 3) {
        for (int r = 1; r < ROWS; r++) {
            bench_linear(types[t], 256, 256, rows[r], true);
            bench_linear(types[t], 1024, 1024, rows[r], true);
            bench_linear(types[t], 4096, 4096, rows[r], false);
        }
    }
    for (int t = 0; t < TYPES - 1; t += t ? 1 : 3) {
        for (int r = 0; r < ROWS; r++)
            bench_experts(types[t], 1024, 768, 128, rows[r]);
    }
}

int main(int argc, char **argv)
{
    int threads = argc > 1 ? atoi(argv[1]) : fl_cpu_count();
    part = argc > 3 ? argv[3] : part;
    fl_error err;
    if (fl_pool_create(threads, &pool, &err) != FL_OK)
        bench_die(err.message);
    for (int i = argc > 2 ? atoi(argv[2]) : 0; i <= (argc > 2 ? atoi(argv[2]) : (int)fl_cpu_isa());
         i++) {
        isa = (fl_isa)i;
        if (i <= (int)fl_cpu_isa())
            bench_level();
    }
    fl_pool_destroy(pool);
    return 0;
}
