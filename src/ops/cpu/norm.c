/* rmsnorm, l2norm and layernorm over the last dim of a row; the vectors of all rows are dealt out.
 *
 * All in double, rounded once at the end: a norm stands before every choice of experts and
 * positions, where the last bit of float32 decides between close candidates, and its cost is lost
 * beside the products around it.  Sums run in parts (parts.h). */
#include "ops/cpu/cpu_internal.h"
#include "ops/cpu/parts.h"
#include "ops/cpu/simd.h"

#include "base/pool.h"
#include "ops/def/def_internal.h"

#include <math.h>

/* Elements that are worth a worker. */
enum { WORTH = 2048 };

/* The parts of a sum of TERM(v) over v = x[i], and the sum. */
#define SUM_PARTS(name, TERM)                                                                      \
    static double name(const float *x, double shift, int64_t n)                                    \
    {                                                                                              \
        fl_parts sum = {.x = {0}};                                                                 \
        int64_t i = 0;                                                                             \
        for (; i + FL_PARTS <= n; i += FL_PARTS) {                                                 \
            FL_UNROLL                                                                              \
            for (int j = 0; j < FL_PART_VECTORS; j++) {                                            \
                fl_wide v = FL_WIDEN(x + i + j * FL_WIDE) - shift;                                 \
                sum.v[j] += TERM(v);                                                               \
            }                                                                                      \
        }                                                                                          \
        for (int j = 0; i + j < n; j++) {                                                          \
            double v = x[i + j] - shift;                                                           \
            sum.x[j] += TERM(v);                                                                   \
        }                                                                                          \
        return fl_parts_join(&sum);                                                                \
    }
#define ITSELF(v) (v)
#define SQUARE(v) ((v) * (v))
SUM_PARTS(sum_of, ITSELF)
SUM_PARTS(sum_of_squares, SQUARE)

/* y = (x - shift) * factor, times w and plus b where these are given */
static void put(const float *x, double shift, double factor, const float *w, const float *b,
                float *y, int64_t n)
{
    int64_t i = 0;
    for (; i + FL_WIDE <= n; i += FL_WIDE) {
        fl_wide v = (FL_WIDEN(x + i) - shift) * factor;
        if (w)
            v *= FL_WIDEN(w + i);
        if (b)
            v += FL_WIDEN(b + i);
        FL_ROUND(y + i, v);
    }
    for (; i < n; i++) {
        double v = (x[i] - shift) * factor * (w ? w[i] : 1);
        y[i] = (float)(b ? v + b[i] : v);
    }
}

static void rmsnorm(const fl_call *call, const float *x, float *y, int64_t n)
{
    const float *w = call->n_in > 1 ? call->in[1].data : NULL;
    double mean = sum_of_squares(x, 0, n) / (double)n;
    put(x, 0, 1 / sqrt(mean + call->attr[FL_RMSNORM_EPS].f), w, NULL, y, n);
}

static void l2norm(const fl_call *call, const float *x, float *y, int64_t n)
{
    double eps = call->attr[FL_L2NORM_EPS].f, times = call->attr[FL_L2NORM_SCALE].f;
    put(x, 0, times / sqrt(sum_of_squares(x, 0, n) + eps), NULL, NULL, y, n);
}

static void layernorm(const fl_call *call, const float *x, float *y, int64_t n)
{
    const float *w = call->in[1].data, *b = call->n_in > 2 ? call->in[2].data : NULL;
    double eps = call->attr[FL_LAYERNORM_EPS].f, mean = sum_of(x, 0, n) / (double)n;
    put(x, mean, 1 / sqrt(sum_of_squares(x, mean, n) / (double)n + eps), w, b, y, n);
}

typedef void (*norm_fn)(const fl_call *call, const float *x, float *y, int64_t n);

static void each_vector(norm_fn norm, const fl_call *call, const fl_step *step,
                        const fl_worker *worker)
{
    const fl_arg *x = &call->in[0], *y = &call->out[0];
    int64_t n = x->type.dim[x->type.ndim - 1], per_row = fl_type_width(&x->type) / n, begin, end;
    fl_split(fl_rows_now(step, x->type.rows) * per_row, WORTH / n + 1, worker->thread,
             worker->n_threads, &begin, &end);
    for (int64_t i = begin; i < end; i++) {
        int64_t r = i / per_row, at = i % per_row * n;
        norm(call, fl_row_f32(x, r) + at, fl_row_f32(y, r) + at, n);
    }
}

#define NORM_RUN(name)                                                                             \
    static void run_##name(const fl_call *call, const fl_step *step, int phase,                    \
                           const fl_worker *worker)                                                \
    {                                                                                              \
        (void)phase;                                                                               \
        each_vector(name, call, step, worker);                                                     \
    }
NORM_RUN(rmsnorm)
NORM_RUN(l2norm)
NORM_RUN(layernorm)

#define NORM_KERNEL(norm_op)                                                                       \
    {                                                                                              \
        .op = #norm_op, .name = FL_CPU_TEXT("wide"), .isa = FL_CPU_ISA,                            \
        .preference = FL_CPU_PREFERENCE, .n_phases = 1, .run = run_##norm_op                       \
    }
static const fl_kernel kernels[] = {NORM_KERNEL(rmsnorm), NORM_KERNEL(l2norm),
                                    NORM_KERNEL(layernorm)};
const fl_kernel_list FL_CPU_NAME(fl_cpu_kernels_norm) = FL_KERNEL_LIST(kernels);
