/* linear: the merged weights of a node are one long list of weight rows, shared out evenly; when
 * they are fewer than there are workers can use, the rows of x are shared out instead. */
#include "ops/cpu/weights.h"

#include "base/pool.h"

/* Multiply-adds that are worth a worker. */
enum { WORTH = 8192 };

static void weight_rows(const fl_call *call, int64_t begin, int64_t end, int64_t row, int64_t rows,
                        void *scratch)
{
    const fl_row_list x = {fl_row_f32(&call->in[0], row), call->in[0].stride, NULL};
    for (int i = 1; i < call->n_in; i++) {
        int64_t n = call->in[i].type.dim[0], n0 = begin > 0 ? begin : 0, n1 = end < n ? end : n;
        const fl_arg *out = &call->out[i - 1];
        if (n0 < n1) {
            const fl_row_list y = {fl_row_f32(out, row) + n0, out->stride, NULL};
            fl_weights_mul(call->in[i].tensors, n0, n1, &x, &y, rows, scratch);
        }
        begin -= n;
        end -= n;
    }
}

static void run(const fl_call *call, const fl_step *step, int phase, const fl_worker *worker)
{
    (void)phase;
    int64_t rows = fl_rows_now(step, call->in[0].type.rows), total = 0, begin, end;
    int64_t width = fl_type_width(&call->in[0].type);
    for (int i = 1; i < call->n_in; i++)
        total += call->in[i].type.dim[0];
    if (rows > worker->n_threads && total < FL_WEIGHTS_W * worker->n_threads) {
        fl_split(rows, 1, worker->thread, worker->n_threads, &begin, &end);
        weight_rows(call, 0, total, begin, end - begin, worker->scratch);
    } else {
        int64_t least = WORTH / (width * rows + 1) + 1;
        int64_t grain = (least + FL_WEIGHTS_W - 1) / FL_WEIGHTS_W * FL_WEIGHTS_W;
        fl_split(total, grain, worker->thread, worker->n_threads, &begin, &end);
        weight_rows(call, begin, end, 0, rows, worker->scratch);
    }
}

static bool fits(const fl_node_view *node)
{
    for (int i = 1; i < node->n_in; i++) {
        if (!fl_weights_type(node->in[i]->dtype))
            return false;
    }
    return true;
}

static void scratch(const fl_node_view *node, const fl_limits *limits, size_t *per_worker,
                    size_t *shared)
{
    (void)node;
    (void)limits;
    *per_worker = FL_WEIGHTS_SCRATCH;
    *shared = 0;
}

static const fl_kernel kernels[] = {{.op = "linear",
                                     .name = FL_CPU_TEXT("simd"),
                                     .isa = FL_CPU_ISA,
                                     .preference = FL_CPU_PREFERENCE,
                                     .n_phases = 1,
                                     .run = run,
                                     .fits = fits,
                                     .scratch = scratch}};
const fl_kernel_list FL_CPU_NAME(fl_cpu_kernels_linear) = FL_KERNEL_LIST(kernels);
