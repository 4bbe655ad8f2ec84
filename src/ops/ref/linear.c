/* linear: every weight row is decoded once and multiplied with all rows. */
#include "ops/ref/ref_internal.h"

#include "base/pool.h"

double fl_ref_dot(const float *a, const float *b, int64_t n)
{
    double sum = 0;
    for (int64_t i = 0; i < n; i++)
        sum += (double)a[i] * b[i];
    return sum;
}

void fl_ref_decode(const fl_tensor *t, int64_t first, int64_t n, float *out)
{
    if (fl_tensor_to_f32(t, first, n, out) == FL_OK)
        return;
    for (int64_t i = 0; i < n; i++) /* a type that infer lets through is never refused */
        out[i] = 0;
}

static void run(const fl_call *call, const fl_step *step, int phase, const fl_worker *worker)
{
    (void)phase;
    const fl_arg *x = &call->in[0];
    int64_t k = fl_type_width(&x->type), rows = fl_rows_now(step, x->type.rows), begin, end;
    float *w = worker->scratch;
    for (int i = 1; i < call->n_in; i++) {
        fl_split(call->in[i].type.dim[0], 1, worker->thread, worker->n_threads, &begin, &end);
        for (int64_t n = begin; n < end; n++) {
            fl_ref_decode(call->in[i].tensors, n * k, k, w);
            for (int64_t r = 0; r < rows; r++)
                fl_row_f32(&call->out[i - 1], r)[n] = (float)fl_ref_dot(fl_row_f32(x, r), w, k);
        }
    }
}

static void scratch(const fl_node_view *node, const fl_limits *limits, size_t *per_worker,
                    size_t *shared)
{
    (void)limits;
    *per_worker = (size_t)fl_type_width(node->in[0]) * sizeof(float);
    *shared = 0;
}

static const fl_kernel kernels[] = {
    {.op = "linear", .name = "ref", .n_phases = 1, .run = run, .scratch = scratch}};
const fl_kernel_list fl_ref_kernels_linear = FL_KERNEL_LIST(kernels);
