/* expr: a thread per element.  Operands broadcast: each has a stride per dim of the output, zero
 * where it has one element only. */
#include "ops/gpu/expr.h"

enum { THREADS = 256 };

typedef struct expr_args {
    gpu_rows in[FL_EXPR_MAX_INPUTS], out;
    int stride[FL_EXPR_MAX_INPUTS][FL_MAX_DIMS];
    bool flat[FL_EXPR_MAX_INPUTS]; /* the output's dims: element i meets element i */
    int dim[FL_MAX_DIMS];
    int ndim, n_in;
    int64_t width;
    const int32_t *count;
} expr_args;

static __device__ int64_t meets(const expr_args &a, int k, int64_t i)
{
    int64_t at = 0;
    if (a.flat[k])
        return i;
    for (int d = a.ndim - 1; d >= 0; d--) {
        at += i % a.dim[d] * a.stride[k][d];
        i /= a.dim[d];
    }
    return at;
}

static __global__ void expr_kernel(expr_args a, fl_expr e)
{
    int64_t row = blockIdx.x, i = (int64_t)blockIdx.y * THREADS + threadIdx.x;
    if (row >= *a.count || i >= a.width)
        return;
    float v[FL_EXPR_MAX_INPUTS];
    for (int k = 0; k < a.n_in; k++)
        v[k] = a.in[k].p[row * a.in[k].stride + meets(a, k, i)];
    a.out.p[row * a.out.stride + i] = expr_run(e, v);
}

static void set_strides(const fl_type *out, const fl_type *in, int *stride, bool *flat)
{
    int step = 1;
    *flat = fl_type_width(in) == fl_type_width(out);
    for (int d = 1; d <= out->ndim; d++) { /* from the last dim on */
        int64_t size = d <= in->ndim ? in->dim[in->ndim - d] : 1;
        stride[out->ndim - d] = size == 1 ? 0 : step;
        step *= (int)size;
    }
}

static void run(const fl_call *call, const fl_step *step, int phase, const fl_worker *worker)
{
    (void)phase;
    gpu_queue *q = (gpu_queue *)worker->queue;
    const fl_type *t = &call->out[0].type;
    int64_t rows = fl_rows_now(step, t->rows);
    expr_args a = {};
    a.n_in = call->n_in;
    a.ndim = t->ndim;
    for (int d = 0; d < t->ndim; d++)
        a.dim[d] = (int)t->dim[d];
    for (int k = 0; k < call->n_in; k++) {
        a.in[k] = gpu_rows_of(&call->in[k]);
        set_strides(t, &call->in[k].type, a.stride[k], &a.flat[k]);
    }
    a.out = gpu_rows_of(&call->out[0]);
    a.width = fl_type_width(t);
    a.count = gpu_count(q, t->rows);
    dim3 grid((unsigned)rows, gpu_blocks(a.width, THREADS));
    if (rows)
        expr_kernel<<<grid, THREADS, 0, q->stream>>>(a, *(const fl_expr *)call->prep);
    gpu_launched(q);
}

static const fl_kernel kernels[] = {
    {.op = "expr", .name = "gpu", .preference = 1, .n_phases = 1, .run = run}};
extern const fl_kernel_list gpu_kernels_expr = FL_KERNEL_LIST(kernels);
