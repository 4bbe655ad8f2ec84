/* Nodes of a device's plan that the host runs, because the device has no kernel for them or because
 * the caller wanted it so.
 *
 * The rows of their inputs are fetched from the workspace into an area of host memory, the pool
 * runs the kernel as it does in a plan of the host, and the rows of the outputs are sent back.  The
 * area serves one call after the other.  Constants are read where the checkpoint has them, and the
 * states of such nodes lie in host memory, so a kernel sees what it would see in a plan of the host
 * and gives the same bits. */
#include "graph/plan_internal.h"

static bool has_rows(const fl_arg *a)
{
    return a->type.rows == FL_ROWS_TOKENS || a->type.rows == FL_ROWS_LOGITS;
}

/* Fetched rows come packed; sent ones go in one piece, so they lie as they will there. */
bool fl_plan_host_item(fl_plan *p, fl_plan_item *item, const fl_node *node)
{
    int n_in = node->n_in, n = n_in + node->n_out;
    fl_arg *own = &p->host_args[p->n_host_args];
    size_t *at = &p->host_at[p->n_host_args], end = 0;
    item->there = item->call.in;
    for (int k = 0; k < n; k++) {
        fl_val v = k < n_in ? node->in[k] : node->out[k - n_in];
        if (v == FL_NONE)
            continue;
        const fl_value *value = &p->graph->values.data[v];
        int64_t width = fl_type_width(value->type);
        own[k] = (fl_arg){.type = *value->type,
                          .data = value->tensors ? (void *)value->tensors->data : NULL,
                          .stride = k < n_in ? width : item->there[k].stride,
                          .tensors = value->tensors};
        if (!has_rows(&own[k]))
            continue;
        int32_t rows =
            own[k].type.rows == FL_ROWS_TOKENS ? p->limits.max_rows : p->limits.max_logits;
        size_t bytes = (size_t)own[k].stride * sizeof(float);
        at[k] = end;
        if (__builtin_mul_overflow(bytes, (size_t)rows, &bytes) ||
            __builtin_add_overflow(end, bytes, &end) || !fl_round_line(end, &end))
            return false;
    }
    item->call.in = own;
    item->call.out = own + n_in;
    p->n_host_args += (size_t)n;
    p->n_host_calls++;
    p->operand_bytes = end > p->operand_bytes ? end : p->operand_bytes;
    return true;
}

bool fl_plan_host_area(const fl_plan *p, size_t *bytes)
{
    return !__builtin_mul_overflow(p->host_worker_bytes, (size_t)p->n_threads, bytes) &&
           !__builtin_add_overflow(*bytes, p->host_shared_bytes, bytes) &&
           !__builtin_add_overflow(*bytes, p->operand_bytes, bytes);
}

fl_status fl_plan_host_prepare(fl_plan *p, fl_error *err)
{
    size_t bytes;
    if (!p->n_host_calls)
        return FL_OK;
    if (fl_plan_host_area(p, &bytes))
        p->host_area = fl_alloc_large(bytes, &p->host_raw);
    if (!p->host_area)
        return fl_fail(err, FL_NOMEM, "no memory for what the processor computes for %s",
                       p->device->name);
    for (size_t i = 0; i < p->n_host_args; i++) {
        if (has_rows(&p->host_args[i]))
            p->host_args[i].data = p->host_area + p->host_at[i];
    }
    return FL_OK;
}

typedef struct host_work {
    const fl_walk *walk;
    const fl_call *call;
} host_work;

static void work(void *ctx, int thread, int n_threads)
{
    const host_work *h = ctx;
    const fl_plan *p = h->walk->plan;
    unsigned char *scratch = p->host_area + p->operand_bytes;
    const fl_worker worker = {.thread = thread,
                              .n_threads = n_threads,
                              .scratch = scratch + (size_t)thread * p->host_worker_bytes,
                              .shared = scratch + (size_t)p->n_threads * p->host_worker_bytes,
                              .taken = fl_pool_taken(h->walk->pool)};
    for (int phase = 0; phase < h->call->kernel->n_phases; phase++) {
        h->call->kernel->run(h->call, h->walk->step, phase, &worker);
        fl_pool_barrier(h->walk->pool);
    }
}

fl_status fl_plan_host_call(const fl_walk *w, const fl_plan_item *item, fl_error *err)
{
    fl_device *d = w->plan->device;
    const fl_call *call = &item->call;
    for (int k = 0; k < call->n_in; k++) {
        const fl_arg *to = &call->in[k], *from = &item->there[k];
        size_t row = (size_t)to->stride * sizeof(float);
        int32_t rows = has_rows(to) ? fl_rows_now(w->step, to->type.rows) : 0;
        if (rows)
            FL_TRY(d->fn->download(d, to->data, from->data, row,
                                   (size_t)from->stride * sizeof(float), (size_t)rows, err));
    }
    host_work h = {w, call};
    fl_pool_run(w->pool, work, &h);
    for (int k = 0; k < call->n_out; k++) {
        const fl_arg *from = &call->out[k], *to = &item->there[call->n_in + k];
        size_t n = (size_t)fl_rows_now(w->step, from->type.rows) * (size_t)from->stride;
        if (n)
            FL_TRY(d->fn->upload(d, to->data, from->data, n * sizeof(float), err));
    }
    return FL_OK;
}
