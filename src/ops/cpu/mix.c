/* residual_mix: the scores of all sources of a row in one pass over each, then the mix in one pass
 * over all, in double as in norm.c.  Rows are dealt out; one row is worth one worker. */
#include "ops/cpu/cpu_internal.h"
#include "ops/cpu/parts.h"
#include "ops/cpu/simd.h"

#include "base/pool.h"
#include "ops/def/def_internal.h"

#include <math.h>

/* The score of one source: (w . v) * rsqrt(mean(v^2) + eps). */
static double score(const float *v, const float *w, int64_t n, double eps)
{
    fl_parts square = {.x = {0}}, dot = {.x = {0}};
    int64_t i = 0;
    for (; i + FL_PARTS <= n; i += FL_PARTS) {
        FL_UNROLL
        for (int j = 0; j < FL_PART_VECTORS; j++) {
            fl_wide x = FL_WIDEN(v + i + j * FL_WIDE);
            square.v[j] += x * x;
            dot.v[j] += x * FL_WIDEN(w + i + j * FL_WIDE);
        }
    }
    for (int j = 0; i + j < n; j++) {
        square.x[j] += (double)v[i + j] * v[i + j];
        dot.x[j] += (double)v[i + j] * w[i + j];
    }
    return fl_parts_join(&dot) / sqrt(fl_parts_join(&square) / (double)n + eps);
}

/* y = sum of p[i] source[i], i ascending */
static void mix(const double *p, const float *const *source, int n, int64_t width, float *y)
{
    int64_t d = 0;
    for (; d + FL_PARTS <= width; d += FL_PARTS) {
        fl_wide sum[FL_PART_VECTORS] = {0};
        for (int i = 0; i < n; i++) {
            FL_UNROLL
            for (int j = 0; j < FL_PART_VECTORS; j++)
                sum[j] += p[i] * FL_WIDEN(source[i] + d + j * FL_WIDE);
        }
        FL_UNROLL
        for (int j = 0; j < FL_PART_VECTORS; j++)
            FL_ROUND(y + d + j * FL_WIDE, sum[j]);
    }
    for (; d < width; d++) {
        double sum = 0;
        for (int i = 0; i < n; i++)
            sum += p[i] * source[i][d];
        y[d] = (float)sum;
    }
}

static void one_row(const fl_call *call, int64_t r)
{
    int64_t width = call->in[0].type.dim[0];
    const float *w = call->in[0].data, *source[FL_MIX_SOURCES];
    double p[FL_MIX_SOURCES], high = -INFINITY, sum = 0;
    int n = call->n_in - 1;
    for (int i = 0; i < n; i++) {
        source[i] = fl_row_f32(&call->in[i + 1], r);
        p[i] = score(source[i], w, width, call->attr[FL_RESIDUAL_MIX_EPS].f);
        high = p[i] > high ? p[i] : high;
    }
    for (int i = 0; i < n; i++) {
        p[i] = exp(p[i] - high);
        sum += p[i];
    }
    for (int i = 0; i < n; i++)
        p[i] /= sum;
    mix(p, source, n, width, fl_row_f32(&call->out[0], r));
}

static void run(const fl_call *call, const fl_step *step, int phase, const fl_worker *worker)
{
    (void)phase;
    int64_t begin, end, rows = fl_rows_now(step, call->out[0].type.rows);
    fl_split(rows, 1, worker->thread, worker->n_threads, &begin, &end);
    for (int64_t r = begin; r < end; r++)
        one_row(call, r);
}

static const fl_kernel kernels[] = {{.op = "residual_mix",
                                     .name = FL_CPU_TEXT("wide"),
                                     .isa = FL_CPU_ISA,
                                     .preference = FL_CPU_PREFERENCE,
                                     .n_phases = 1,
                                     .run = run}};
const fl_kernel_list FL_CPU_NAME(fl_cpu_kernels_mix) = FL_KERNEL_LIST(kernels);
