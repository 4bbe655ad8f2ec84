/* residual_mix: a softmax over the sources of one row, then the mix of the raw sources. */
#include "ops/ref/ref_internal.h"

#include "base/pool.h"
#include "ops/def/def_internal.h"

#include <math.h>

static void one_row(const fl_call *call, int64_t r)
{
    const float *w = call->in[0].data;
    int64_t width = call->in[0].type.dim[0];
    double p[FL_MIX_SOURCES], high = -INFINITY, sum = 0;
    int n = call->n_in - 1;
    for (int i = 0; i < n; i++) {
        const float *v = fl_row_f32(&call->in[i + 1], r);
        double mean = fl_ref_dot(v, v, width) / (double)width;
        p[i] = fl_ref_dot(v, w, width) / sqrt(mean + call->attr[FL_RESIDUAL_MIX_EPS].f);
        high = p[i] > high ? p[i] : high;
    }
    for (int i = 0; i < n; i++) {
        p[i] = exp(p[i] - high);
        sum += p[i];
    }
    float *y = fl_row_f32(&call->out[0], r);
    for (int64_t d = 0; d < width; d++) {
        double mix = 0;
        for (int i = 0; i < n; i++)
            mix += p[i] / sum * fl_row_f32(&call->in[i + 1], r)[d];
        y[d] = (float)mix;
    }
}

static void run(const fl_call *call, const fl_step *step, int phase, const fl_worker *worker)
{
    (void)phase;
    int64_t begin, end, rows = fl_rows_now(step, call->out[0].type.rows);
    fl_split(rows, 1, worker->thread, worker->n_threads, &begin, &end);
    for (int64_t r = begin; r < end; r++)
        one_row(call, r);
}

static const fl_kernel kernels[] = {
    {.op = "residual_mix", .name = "ref", .n_phases = 1, .run = run}};
const fl_kernel_list fl_ref_kernels_mix = FL_KERNEL_LIST(kernels);
