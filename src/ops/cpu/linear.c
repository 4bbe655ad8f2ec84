/* linear: the merged weights of a node are one long list of weight rows, shared out evenly; when
 * they are fewer than there are workers can use, the rows of x are shared out instead.
 *
 * exact  float32 rows, weights of any type.
 * fast   where the processor has BF16 dot products: phase 0 rounds the rows, phase 1 multiplies
 *        (bf16.h); elsewhere there is nothing to gain from rounding, and exact serves.
 * tiles  the same by tile instructions (amx.h), first choice for precision fast where there are
 * some.
 */
#include "ops/cpu/amx.h"
#include "ops/cpu/bf16.h"

#include "base/pool.h"
#include "base/taken.h"

/* Multiply-adds that are worth a worker.  Bytes of weights of a part that another worker may take
 * over: some microseconds of reading, beside which taking it is little.  Up to STREAMED rows of x
 * weights are read once and reading bounds a product; with more they are laid out in panels, and a
 * share stays whole. */
enum { WORTH = 8192, PART = 65536, STREAMED = 16 };

/* A product of rounded rows. */
typedef struct product {
    void (*round)(const fl_row_list *x, int64_t m, int64_t g, const fl_rounded *to, int64_t first);
    void (*mul)(const fl_tensor *w, int64_t n0, int64_t n1, const fl_rounded *x, int64_t first,
                const fl_row_list *y, int64_t m, void *scratch);
    int64_t side; /* rows of a group */
    size_t scratch;
} product;

/* p: NULL for exact. */
static void weight_rows(const fl_call *call, const product *p, const fl_worker *worker,
                        int64_t begin, int64_t end, int64_t row, int64_t rows)
{
    const fl_row_list x = {fl_row_f32(&call->in[0], row), call->in[0].stride, NULL};
    const fl_rounded rounded = {worker->shared, fl_type_width(&call->in[0].type)};
    for (int i = 1; i < call->n_in; i++) {
        int64_t n = call->in[i].type.dim[0], n0 = begin > 0 ? begin : 0, n1 = end < n ? end : n;
        const fl_arg *out = &call->out[i - 1];
        if (n0 < n1) {
            const fl_row_list y = {fl_row_f32(out, row) + n0, out->stride, NULL};
            const fl_tensor *w = call->in[i].tensors;
            if (p)
                p->mul(w, n0, n1, &rounded, row, &y, rows, worker->scratch);
            else
                fl_weights_mul(w, n0, n1, &x, &y, rows, worker->scratch);
        }
        begin -= n;
        end -= n;
    }
}

/* Weight rows of a part. */
static int64_t part_rows(const fl_call *call)
{
    const fl_type *w = &call->in[1].type;
    int64_t bytes = fl_type_width(&call->in[0].type) * fl_dtype_bits(w->dtype) / 8 + 1;
    return (PART / bytes + FL_WEIGHTS_W) / FL_WEIGHTS_W * FL_WEIGHTS_W;
}

/* All rows of x, part by part. */
static void in_parts(const fl_call *call, const product *p, const fl_worker *worker, int64_t total,
                     int64_t grain, int64_t rows)
{
    int64_t begin, end, at, part = part_rows(call);
    for (int j = 0; j < worker->n_threads; j++) {
        int owner = fl_owner(worker, j);
        fl_split(total, grain, owner, worker->n_threads, &begin, &end);
        while ((at = begin + part * fl_take(&worker->taken[owner])) < end)
            weight_rows(call, p, worker, at, at + part < end ? at + part : end, 0, rows);
    }
}

static void multiply(const fl_call *call, const fl_step *step, const product *p,
                     const fl_worker *worker)
{
    int64_t rows = fl_rows_now(step, call->in[0].type.rows), total = 0, begin, end;
    int64_t width = fl_type_width(&call->in[0].type);
    for (int i = 1; i < call->n_in; i++)
        total += call->in[i].type.dim[0];
    if (rows > worker->n_threads && total < FL_WEIGHTS_W * worker->n_threads) {
        fl_split(rows, p ? p->side : 1, worker->thread, worker->n_threads, &begin, &end);
        weight_rows(call, p, worker, 0, total, begin, end - begin);
    } else {
        int64_t least = WORTH / (width * rows + 1) + 1;
        int64_t grain = (least + FL_WEIGHTS_W - 1) / FL_WEIGHTS_W * FL_WEIGHTS_W;
        if (worker->taken && rows <= STREAMED) {
            in_parts(call, p, worker, total, grain, rows);
            return;
        }
        fl_split(total, grain, worker->thread, worker->n_threads, &begin, &end);
        weight_rows(call, p, worker, begin, end, 0, rows);
    }
}

static void run_exact(const fl_call *call, const fl_step *step, int phase, const fl_worker *worker)
{
    (void)phase;
    multiply(call, step, NULL, worker);
}

#if defined(__AVX512BF16__) || defined(FL_AMX)
static void run_rounded(const fl_call *call, const fl_step *step, int phase, const product *p,
                        const fl_worker *worker)
{
    const fl_arg *x = &call->in[0];
    if (phase == 1) {
        multiply(call, step, p, worker);
        return;
    }
    const fl_rounded rounded = {worker->shared, fl_type_width(&x->type)};
    const fl_row_list rows = {x->data, x->stride, NULL};
    int64_t begin, end, m = fl_rows_now(step, x->type.rows);
    fl_split(fl_rounded_groups(m, p->side), 1, worker->thread, worker->n_threads, &begin, &end);
    for (int64_t g = begin; g < end; g++)
        p->round(&rows, m, g, &rounded, 0);
}

static bool fits_rounded(const fl_node_view *node)
{
    for (int i = 1; i < node->n_in; i++) {
        if (!fl_rounded_type(node->in[i]->dtype))
            return false;
    }
    return true;
}

static void scratch_rounded(const fl_node_view *node, const fl_limits *limits, const product *p,
                            size_t *per_worker, size_t *shared)
{
    int64_t rows = node->in[0]->rows == FL_ROWS_LOGITS ? limits->max_logits : limits->max_rows;
    fl_room r = {0};
    (void)fl_rounded_room(&r, fl_rounded_groups(rows, p->side) * p->side,
                          fl_type_width(node->in[0]));
    *per_worker = p->scratch;
    *shared = r.used;
}

/* The functions of a product as kernels name them. */
#define KERNEL_OF(PRODUCT)                                                                         \
    static void run_##PRODUCT(const fl_call *call, const fl_step *step, int phase,                 \
                              const fl_worker *worker)                                             \
    {                                                                                              \
        run_rounded(call, step, phase, &PRODUCT, worker);                                          \
    }                                                                                              \
    static void scratch_##PRODUCT(const fl_node_view *node, const fl_limits *limits,               \
                                  size_t *per_worker, size_t *shared)                              \
    {                                                                                              \
        scratch_rounded(node, limits, &PRODUCT, per_worker, shared);                               \
    }
#endif

#if defined(__AVX512BF16__)
static const product fast = {fl_bf16_round, fl_bf16_mul, FL_BF16_X, FL_BF16_SCRATCH};
KERNEL_OF(fast)
#endif
#if defined(FL_AMX)
static const product tiles = {fl_amx_round, fl_amx_mul, FL_AMX_SIDE, FL_AMX_SCRATCH};
KERNEL_OF(tiles)
#endif

static bool fits_exact(const fl_node_view *node)
{
    for (int i = 1; i < node->n_in; i++) {
        if (!fl_weights_type(node->in[i]->dtype))
            return false;
    }
    return true;
}

static void scratch_exact(const fl_node_view *node, const fl_limits *limits, size_t *per_worker,
                          size_t *shared)
{
    (void)node;
    (void)limits;
    *per_worker = FL_WEIGHTS_SCRATCH;
    *shared = 0;
}

static const fl_kernel kernels[] = {
    {.op = "linear",
     .name = FL_CPU_TEXT("simd"),
     .isa = FL_CPU_ISA,
     .preference = FL_CPU_PREFERENCE,
     .n_phases = 1,
     .run = run_exact,
     .fits = fits_exact,
     .scratch = scratch_exact},
#if defined(__AVX512BF16__)
    {.op = "linear",
     .name = FL_CPU_TEXT("bf16"),
     .isa = FL_CPU_ISA,
     .fast = true,
     .bf16_dots = true,
     .preference = FL_CPU_PREFERENCE + 10,
     .n_phases = 2,
     .run = run_fast,
     .fits = fits_rounded,
     .scratch = scratch_fast},
#endif
#if defined(FL_AMX)
    {.op = "linear",
     .name = FL_AMX_TEXT("tiles"),
     .isa = FL_AMX_ISA,
     .fast = true,
     .preference = FL_AMX_PREFERENCE,
     .n_phases = 2,
     .run = run_tiles,
     .fits = fits_rounded,
     .scratch = scratch_tiles},
#endif
};
const fl_kernel_list FL_CPU_NAME(fl_cpu_kernels_linear) = FL_KERNEL_LIST(kernels);
