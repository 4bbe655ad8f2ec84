/* rmsnorm, l2norm and layernorm: one vector (the last dim of a row) at a time. */
#include "ops/ref/ref_internal.h"

#include "base/pool.h"
#include "ops/def/def_internal.h"

#include <math.h>

static double sum_of_squares(const float *x, int64_t n)
{
    double sum = 0;
    for (int64_t i = 0; i < n; i++)
        sum += (double)x[i] * x[i];
    return sum;
}

static void rmsnorm(const fl_call *call, const float *x, float *y, int64_t n)
{
    const float *w = call->n_in > 1 ? call->in[1].data : NULL;
    double r = 1 / sqrt(sum_of_squares(x, n) / (double)n + call->attr[FL_RMSNORM_EPS].f);
    for (int64_t i = 0; i < n; i++)
        y[i] = (float)(x[i] * r * (w ? w[i] : 1));
}

static void l2norm(const fl_call *call, const float *x, float *y, int64_t n)
{
    double r =
        call->attr[FL_L2NORM_SCALE].f / sqrt(sum_of_squares(x, n) + call->attr[FL_L2NORM_EPS].f);
    for (int64_t i = 0; i < n; i++)
        y[i] = (float)(x[i] * r);
}

static void layernorm(const fl_call *call, const float *x, float *y, int64_t n)
{
    const float *w = call->in[1].data, *b = call->n_in > 2 ? call->in[2].data : NULL;
    double mean = 0, variance = 0;
    for (int64_t i = 0; i < n; i++)
        mean += x[i];
    mean /= (double)n;
    for (int64_t i = 0; i < n; i++)
        variance += (x[i] - mean) * (x[i] - mean);
    variance /= (double)n;
    double r = 1 / sqrt(variance + call->attr[FL_LAYERNORM_EPS].f);
    for (int64_t i = 0; i < n; i++)
        y[i] = (float)((x[i] - mean) * r * w[i] + (b ? b[i] : 0));
}

typedef void (*norm_fn)(const fl_call *call, const float *x, float *y, int64_t n);

static void each_vector(norm_fn norm, const fl_call *call, const fl_step *step,
                        const fl_worker *worker)
{
    const fl_arg *x = &call->in[0], *y = &call->out[0];
    int64_t n = x->type.dim[x->type.ndim - 1], width = fl_type_width(&x->type), begin, end;
    fl_split(fl_rows_now(step, x->type.rows), 1, worker->thread, worker->n_threads, &begin, &end);
    for (int64_t r = begin; r < end; r++) {
        for (int64_t i = 0; i < width; i += n)
            norm(call, fl_row_f32(x, r) + i, fl_row_f32(y, r) + i, n);
    }
}

#define NORM_KERNEL(name)                                                                          \
    static void run_##name(const fl_call *call, const fl_step *step, int phase,                    \
                           const fl_worker *worker)                                                \
    {                                                                                              \
        (void)phase;                                                                               \
        each_vector(name, call, step, worker);                                                     \
    }
NORM_KERNEL(rmsnorm)
NORM_KERNEL(l2norm)
NORM_KERNEL(layernorm)

static const fl_kernel kernels[] = {
    {.op = "rmsnorm", .name = "ref", .n_phases = 1, .run = run_rmsnorm},
    {.op = "l2norm", .name = "ref", .n_phases = 1, .run = run_l2norm},
    {.op = "layernorm", .name = "ref", .n_phases = 1, .run = run_layernorm},
};
const fl_kernel_list fl_ref_kernels_norm = FL_KERNEL_LIST(kernels);
