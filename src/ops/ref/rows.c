/* Kernels that move rows: embed, gather_logits, cache_write, cast. */
#include "ops/ref/ref_internal.h"

#include "base/pool.h"
#include "graph/cache_row.h"

#include <string.h>

static void run_embed(const fl_call *call, const fl_step *step, int phase, const fl_worker *worker)
{
    (void)phase;
    const fl_arg *table = &call->in[0];
    int64_t vocab = table->type.dim[0], width = table->type.dim[1], begin, end;
    fl_split(step->n_rows, 1, worker->thread, worker->n_threads, &begin, &end);
    for (int64_t r = begin; r < end; r++) {
        float *y = fl_row_f32(&call->out[0], r);
        int32_t id = step->ids[r];
        if (id >= 0 && id < vocab)
            fl_ref_decode(table->tensors, id * width, width, y);
        else
            memset(y, 0, (size_t)width * sizeof *y);
    }
}

static void run_gather(const fl_call *call, const fl_step *step, int phase, const fl_worker *worker)
{
    (void)phase;
    size_t bytes = (size_t)fl_type_width(&call->in[0].type) * sizeof(float);
    int64_t begin, end;
    fl_split(step->n_logits, 1, worker->thread, worker->n_threads, &begin, &end);
    for (int64_t i = begin; i < end; i++)
        memcpy(fl_row_f32(&call->out[0], i), fl_row_f32(&call->in[0], step->logit_rows[i]), bytes);
}

static void run_cache_write(const fl_call *call, const fl_step *step, int phase,
                            const fl_worker *worker)
{
    (void)phase;
    const fl_state_pool *pool = &step->states[call->in[0].type.state];
    const fl_type *cache = &call->in[0].type;
    int64_t begin, end;
    fl_split(step->n_rows, 1, worker->thread, worker->n_threads, &begin, &end);
    for (int32_t r = (int32_t)begin; r < end; r++) {
        float *whole = worker->scratch, *at = whole;
        for (int i = 1; i < call->n_in; i++) {
            int64_t width = fl_type_width(&call->in[i].type);
            memcpy(at, fl_row_f32(&call->in[i], r), (size_t)width * sizeof *at);
            at += width;
        }
        fl_cache_encode(cache->dtype, cache->dim[0], whole,
                        fl_state_row(pool, &step->seqs[step->row_seq[r]], fl_step_pos(step, r)));
    }
}

static void cache_write_scratch(const fl_node_view *node, const fl_limits *limits,
                                size_t *per_worker, size_t *shared)
{
    (void)limits;
    *per_worker = (size_t)node->in[0]->dim[0] * sizeof(float);
    *shared = 0;
}

static void run_cast(const fl_call *call, const fl_step *step, int phase, const fl_worker *worker)
{
    (void)step;
    (void)phase;
    const fl_arg *x = &call->in[0];
    int64_t begin, end; /* an even grain: two MXFP4 codes share a byte */
    fl_split(fl_type_width(&x->type), 64, worker->thread, worker->n_threads, &begin, &end);
    fl_ref_decode(x->tensors, begin, end - begin, (float *)call->out[0].data + begin);
}

static const fl_kernel kernels[] = {
    {.op = "embed", .name = "ref", .n_phases = 1, .run = run_embed},
    {.op = "gather_logits", .name = "ref", .n_phases = 1, .run = run_gather},
    {.op = "cache_write",
     .name = "ref",
     .n_phases = 1,
     .run = run_cache_write,
     .scratch = cache_write_scratch},
    {.op = "cast", .name = "ref", .n_phases = 1, .run = run_cast},
};
const fl_kernel_list fl_ref_kernels_rows = FL_KERNEL_LIST(kernels);
