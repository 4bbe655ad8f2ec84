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
#include "ops/cpu/room.h"

#include "base/pool.h"

/* Multiply-adds that are worth a worker. */
enum { WORTH = 8192 };

enum form { EXACT, FAST, TILES };

/* rounded: the rows of x in the form that fl_bf16_mul or fl_amx_mul wants, or NULL. */
static void weight_rows(const fl_call *call, enum form form, void *rounded, int64_t begin,
                        int64_t end, int64_t row, int64_t rows, void *scratch)
{
    const fl_row_list x = {fl_row_f32(&call->in[0], row), call->in[0].stride, NULL};
    int64_t width = fl_type_width(&call->in[0].type);
    (void)rounded, (void)width; /* not all levels have all forms */
    for (int i = 1; i < call->n_in; i++) {
        int64_t n = call->in[i].type.dim[0], n0 = begin > 0 ? begin : 0, n1 = end < n ? end : n;
        const fl_arg *out = &call->out[i - 1];
        if (n0 < n1) {
            const fl_row_list y = {fl_row_f32(out, row) + n0, out->stride, NULL};
            const fl_tensor *w = call->in[i].tensors;
            if (form == EXACT)
                fl_weights_mul(w, n0, n1, &x, &y, rows, scratch);
#if defined(__AVX512BF16__)
            if (form == FAST)
                fl_bf16_mul(w, n0, n1, &(const fl_bf16){rounded, width}, row, &y, rows, scratch);
#endif
#if defined(FL_AMX)
            if (form == TILES)
                fl_amx_mul(w, n0, n1, &(const fl_amx){rounded, width}, row, &y, rows, scratch);
#endif
        }
        begin -= n;
        end -= n;
    }
}

/* grain_x: rows of x that are not to be parted. */
static void multiply(const fl_call *call, const fl_step *step, enum form form, int64_t grain_x,
                     const fl_worker *worker)
{
    int64_t rows = fl_rows_now(step, call->in[0].type.rows), total = 0, begin, end;
    int64_t width = fl_type_width(&call->in[0].type);
    if (rows == 0) /* no logits are wanted: no weight is read, and there is no row to stand in */
        return;
    for (int i = 1; i < call->n_in; i++)
        total += call->in[i].type.dim[0];
    if (rows > worker->n_threads && total < FL_WEIGHTS_W * worker->n_threads) {
        fl_split(rows, grain_x, worker->thread, worker->n_threads, &begin, &end);
        weight_rows(call, form, worker->shared, 0, total, begin, end - begin, worker->scratch);
    } else {
        int64_t least = WORTH / (width * rows + 1) + 1;
        int64_t grain = (least + FL_WEIGHTS_W - 1) / FL_WEIGHTS_W * FL_WEIGHTS_W;
        fl_split(total, grain, worker->thread, worker->n_threads, &begin, &end);
        weight_rows(call, form, worker->shared, begin, end, 0, rows, worker->scratch);
    }
}

static void run_exact(const fl_call *call, const fl_step *step, int phase, const fl_worker *worker)
{
    (void)phase;
    multiply(call, step, EXACT, 1, worker);
}

#if defined(__AVX512BF16__)
static void run_fast(const fl_call *call, const fl_step *step, int phase, const fl_worker *worker)
{
    const fl_arg *x = &call->in[0];
    const fl_bf16 rounded = {worker->shared, fl_type_width(&x->type)};
    if (phase == 1) {
        multiply(call, step, FAST, FL_BF16_X, worker);
        return;
    }
    const fl_row_list rows = {x->data, x->stride, NULL};
    int64_t begin, end, m = fl_rows_now(step, x->type.rows);
    fl_split(fl_bf16_groups(m), 1, worker->thread, worker->n_threads, &begin, &end);
    fl_bf16_round(&rows, m, &rounded, begin, end);
}

static bool fits_fast(const fl_node_view *node)
{
    for (int i = 1; i < node->n_in; i++) {
        if (!fl_bf16_type(node->in[i]->dtype))
            return false;
    }
    return true;
}

static void scratch_fast(const fl_node_view *node, const fl_limits *limits, size_t *per_worker,
                         size_t *shared)
{
    int64_t rows = node->in[0]->rows == FL_ROWS_LOGITS ? limits->max_logits : limits->max_rows;
    fl_room r = {0};
    (void)fl_room_take(&r, fl_bf16_groups(rows), (size_t)fl_bf16_bytes(fl_type_width(node->in[0])));
    *per_worker = FL_BF16_SCRATCH;
    *shared = r.used;
}
#endif

#if defined(FL_AMX)
static void run_tiles(const fl_call *call, const fl_step *step, int phase, const fl_worker *worker)
{
    const fl_arg *x = &call->in[0];
    if (phase == 1) {
        multiply(call, step, TILES, FL_AMX_SIDE, worker);
        return;
    }
    const fl_amx rounded = {worker->shared, fl_type_width(&x->type)};
    const fl_row_list rows = {x->data, x->stride, NULL};
    int64_t begin, end, m = fl_rows_now(step, x->type.rows);
    fl_split(fl_amx_groups(m), 1, worker->thread, worker->n_threads, &begin, &end);
    for (int64_t g = begin; g < end; g++)
        fl_amx_round(&rows, m, g, &rounded, 0);
}

static bool fits_tiles(const fl_node_view *node)
{
    for (int i = 1; i < node->n_in; i++) {
        if (!fl_amx_type(node->in[i]->dtype))
            return false;
    }
    return true;
}

static void scratch_tiles(const fl_node_view *node, const fl_limits *limits, size_t *per_worker,
                          size_t *shared)
{
    int64_t rows = node->in[0]->rows == FL_ROWS_LOGITS ? limits->max_logits : limits->max_rows;
    fl_room r = {0};
    (void)fl_room_take(&r, rows, (size_t)fl_amx_bytes(fl_type_width(node->in[0])));
    (void)fl_room_take(&r, 1, FL_CACHE_LINE);
    *per_worker = FL_AMX_SCRATCH;
    *shared = r.used;
}
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
     .preference = FL_CPU_PREFERENCE + 10,
     .n_phases = 2,
     .run = run_fast,
     .fits = fits_fast,
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
     .fits = fits_tiles,
     .scratch = scratch_tiles},
#endif
};
const fl_kernel_list FL_CPU_NAME(fl_cpu_kernels_linear) = FL_KERNEL_LIST(kernels);
