/* experts: row by row, expert by expert, in the order of ids. */
#include "ops/ref/ref_internal.h"

#include "base/pool.h"

#include <string.h>

enum { Z, IDS, WEIGHTS, W1, W3, W2 };

/* hidden = act(W1[e] z, W3[e] z) */
static void hidden_of(const fl_call *call, int32_t e, const float *z, float *hidden, float *w)
{
    int64_t inner = call->in[W1].type.dim[0], width = call->in[W1].type.dim[1];
    for (int64_t i = 0; i < inner; i++) {
        float gate_up[2];
        for (int b = 0; b < 2; b++) {
            fl_ref_decode(&call->in[b ? W3 : W1].tensors[e], i * width, width, w);
            gate_up[b] = (float)fl_ref_dot(z, w, width);
        }
        hidden[i] = fl_ref_expr(call->prep, gate_up);
    }
}

static void run(const fl_call *call, const fl_step *step, int phase, const fl_worker *worker)
{
    (void)phase;
    int64_t inner = call->in[W1].type.dim[0], width = call->in[W1].type.dim[1];
    int64_t k = call->in[IDS].type.dim[0], begin, end;
    int32_t n_experts = call->in[W1].type.n_tensors;
    float *hidden = worker->scratch, *w = hidden + inner;
    fl_split(fl_rows_now(step, call->in[Z].type.rows), 1, worker->thread, worker->n_threads, &begin,
             &end);
    for (int64_t r = begin; r < end; r++) {
        const int32_t *ids = (const int32_t *)fl_row_f32(&call->in[IDS], r);
        const float *weights = fl_row_f32(&call->in[WEIGHTS], r);
        float *y = fl_row_f32(&call->out[0], r);
        memset(y, 0, (size_t)width * sizeof *y);
        for (int64_t j = 0; j < k; j++) {
            if (ids[j] < 0 || ids[j] >= n_experts)
                continue; /* no such expert: it adds nothing */
            hidden_of(call, ids[j], fl_row_f32(&call->in[Z], r), hidden, w);
            for (int64_t i = 0; i < width; i++) {
                fl_ref_decode(&call->in[W2].tensors[ids[j]], i * inner, inner, w);
                y[i] += weights[j] * (float)fl_ref_dot(hidden, w, inner);
            }
        }
    }
}

static void scratch(const fl_node_view *node, const fl_limits *limits, size_t *per_worker,
                    size_t *shared)
{
    (void)limits;
    int64_t inner = node->in[W1]->dim[0], width = node->in[W1]->dim[1];
    *per_worker = (size_t)(inner + (inner > width ? inner : width)) * sizeof(float);
    *shared = 0;
}

static const fl_kernel kernels[] = {
    {.op = "experts", .name = "ref", .n_phases = 1, .run = run, .scratch = scratch}};
const fl_kernel_list fl_ref_kernels_experts = FL_KERNEL_LIST(kernels);
