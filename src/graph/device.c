/* The part of a plan that a device plays.
 *
 * The workspace lies in device memory with the layout that the host would use.  Every constant that
 * a call reads is copied there once, in its stored format: the tensors of a stack stand at equal
 * distances, data and scales apart, so a kernel finds tensor e from the first two.  A
 * step is handed over and its calls queued (or repeated from a recording).  Its logits stay there:
 * the next token of each row is taken there, if the device can, and rows are brought to the host
 * when they are asked for. */
#include "graph/plan_internal.h"

/* Bytes of the data and of the scales of one tensor. */
static void tensor_bytes(const fl_type *t, size_t *data, size_t *scale)
{
    int64_t n = fl_type_width(t), row = t->ndim ? t->dim[t->ndim - 1] : 1;
    *data = (size_t)fl_dtype_data_bytes(t->dtype, n, row);
    *scale = (size_t)fl_dtype_bytes(t->dtype, n, row) - *data;
}

/* The same, each rounded up to the device's alignment. */
static bool tensor_room(const fl_type *t, size_t *data, size_t *scale)
{
    tensor_bytes(t, data, scale);
    return fl_device_round(*data, data) && fl_device_round(*scale, scale);
}

static bool constant_room(const fl_type *t, size_t *bytes)
{
    size_t data, scale;
    return tensor_room(t, &data, &scale) && !__builtin_add_overflow(data, scale, &data) &&
           !__builtin_mul_overflow(data, (size_t)t->n_tensors, bytes);
}

/* Which constants the calls read: seen has one entry per value of the graph. */
static void mark_constants(const fl_plan *p, bool *seen)
{
    for (size_t i = 0; i < p->n_args; i++) {
        fl_val v = p->arg_val[i];
        if (v != FL_NONE && p->args[i].type.rows == FL_ROWS_CONST)
            seen[v] = true;
    }
}

/* ---- the next tokens ---- */

static fl_type words_of_logits(int64_t n)
{
    return (fl_type){.rows = FL_ROWS_LOGITS,
                     .dtype = FL_I32,
                     .ndim = 1,
                     .dim = {n},
                     .n_tensors = 1,
                     .state = -1};
}

/* Makes the call that takes them, which comes last in a step; without a kernel there is none. */
void fl_plan_device_picks(fl_plan *p)
{
    const fl_registry own = {.lists = p->device->lists, .n_lists = p->device->n_lists};
    const fl_op *op = fl_registry_op(p->graph->registry, "pick");
    const fl_type out = words_of_logits(2), draws = words_of_logits(FL_DRAW_WORDS);
    const fl_kernel *k, *found = NULL;
    if (!op || !p->logits)
        return;
    const fl_type *in[] = {&p->logits->type, &draws};
    const fl_node_view view = {.op = op, .n_in = 2, .n_out = 1, .in = in, .out = &out};
    for (int i = 0; (k = fl_registry_kernel(&own, i)) != NULL; i++) {
        if (strcmp(k->op, op->name) == 0 && (!k->fits || k->fits(&view)) &&
            (!found || k->preference > found->preference))
            found = k;
    }
    if (!found)
        return;
    if (found->scratch)
        found->scratch(&view, &p->limits, &p->worker_bytes, &p->shared_bytes);
    p->pick = (fl_arg){.type = out, .stride = 2};
    p->pick_in[1] = (fl_arg){.type = draws, .stride = FL_DRAW_WORDS};
    p->pick_call =
        (fl_call){.kernel = found, .n_in = 2, .n_out = 1, .in = p->pick_in, .out = &p->pick};
}

/* Tells the device how the tokens of the step are to be taken, where that is not "the highest" now
 * or was not before. */
static fl_status send_draws(fl_plan *p, int32_t n, fl_error *err)
{
    bool any = false;
    for (int32_t i = 0; i < n; i++)
        any |= p->host_draws[i].scale != 0;
    if (any) {
        p->n_drawn = n > p->n_drawn ? n : p->n_drawn;
        return p->device->fn->upload(p->device, p->pick_in[1].data, p->host_draws,
                                     (size_t)n * sizeof *p->host_draws, err);
    }
    if (p->n_drawn)
        p->device->fn->zero(p->device, p->pick_in[1].data,
                            (size_t)p->n_drawn * sizeof *p->host_draws);
    p->n_drawn = 0;
    return FL_OK;
}

fl_status fl_plan_device_measure(fl_plan *p, fl_error *err)
{
    const fl_graph *g = p->graph;
    bool *seen = fl_calloc(g->values.n, sizeof *seen);
    if (!seen)
        return fl_graph_nomem(err);
    mark_constants(p, seen);
    bool fits = fl_device_round(p->workspace_bytes, &p->device_bytes);
    for (size_t v = 0; v < g->values.n; v++) {
        size_t bytes = 0;
        if (seen[v])
            fits = fits && constant_room(g->values.data[v].type, &bytes) &&
                   !__builtin_add_overflow(p->device_bytes, bytes, &p->device_bytes);
    }
    fl_free(seen);
    return fits ? FL_OK : fl_fail(err, FL_NOMEM, "the weights are larger than memory can be");
}

/* ---- weights ---- */

/* Copies tensor i of a constant to `data` and its scales to `scale`; *out: the tensor there. */
static fl_status upload_tensor(fl_device *d, const fl_value *value, int32_t i, unsigned char *data,
                               unsigned char *scale, fl_tensor *out, fl_error *err)
{
    size_t n, n_scale;
    const fl_tensor *from = &value->tensors[i];
    tensor_bytes(value->type, &n, &n_scale);
    *out = *from;
    out->data = data;
    out->scale = from->scale ? scale : NULL;
    out->block_scale = from->block_scale ? (float *)(void *)scale : NULL;
    FL_TRY(d->fn->upload(d, data, from->data, n, err));
    const void *scales = from->scale ? (const void *)from->scale : from->block_scale;
    return n_scale ? d->fn->upload(d, scale, scales, n_scale, err) : FL_OK;
}

/* Copies constant v to the device.  *out: its tensors with the addresses there. */
static fl_status upload_constant(fl_plan *p, fl_val v, fl_tensor **out, fl_error *err)
{
    const fl_value *value = &p->graph->values.data[v];
    const fl_type *t = value->type;
    size_t data, scale, bytes;
    void *base;
    if (!value->tensors || !value->tensors->data)
        return fl_fail(err, FL_ARGUMENT, "a constant of the plan has no data: nothing to copy");
    fl_tensor *copy = fl_arena_array(&p->arena, (size_t)t->n_tensors, sizeof *copy);
    if (!copy || !tensor_room(t, &data, &scale) || !constant_room(t, &bytes))
        return fl_graph_nomem(err);
    FL_TRY(p->device->fn->alloc(p->device, bytes, &base, err));
    unsigned char *at = base, *scales = at + (size_t)t->n_tensors * data;
    for (int32_t i = 0; i < t->n_tensors; i++)
        FL_TRY(upload_tensor(p->device, value, i, at + (size_t)i * data, scales + (size_t)i * scale,
                             &copy[i], err));
    *out = copy;
    return FL_OK;
}

static fl_status upload_constants(fl_plan *p, fl_tensor **copies, fl_error *err)
{
    for (size_t i = 0; i < p->n_args; i++) {
        fl_arg *arg = &p->args[i];
        fl_val v = p->arg_val[i];
        if (v == FL_NONE || arg->type.rows != FL_ROWS_CONST)
            continue;
        if (!copies[v])
            FL_TRY(upload_constant(p, v, &copies[v], err));
        arg->tensors = copies[v];
        arg->data = (void *)copies[v]->data;
    }
    return FL_OK;
}

/* ---- preparing ---- */

static size_t tap_bytes(const fl_plan *p)
{
    size_t most = 0;
    for (int i = 0; i < p->n_taps; i++) {
        const fl_type *t = &p->taps[i].value->type;
        size_t row = (size_t)fl_type_width(t) * sizeof(float);
        most = row > most ? row : most;
    }
    return most * (size_t)p->limits.max_rows;
}

static size_t logits_bytes(const fl_plan *p)
{
    size_t vocab = p->logits ? (size_t)fl_type_width(&p->logits->type) : 0;
    return vocab * (size_t)p->limits.max_logits * sizeof(float);
}

static size_t per_logits(const fl_plan *p)
{
    return (size_t)p->limits.max_logits * (sizeof(fl_draw) + sizeof(fl_pick));
}

size_t fl_plan_device_host_bytes(const fl_plan *p)
{
    return per_logits(p) + logits_bytes(p) + tap_bytes(p) + 1;
}

fl_status fl_plan_device_prepare(fl_plan *p, fl_error *err)
{
    fl_device *d = p->device;
    void *host = NULL, *workspace;
    size_t n_picks = (size_t)p->limits.max_logits;
    FL_TRY(d->fn->host_alloc(d, per_logits(p) + logits_bytes(p) + 1, &host, err));
    p->host_draws = host;
    p->host_picks = (fl_pick *)(void *)(p->host_draws + n_picks);
    p->host_logits = (float *)(void *)(p->host_picks + n_picks);
    memset(p->host_draws, 0, n_picks * sizeof *p->host_draws);
    FL_TRY(d->fn->host_alloc(d, tap_bytes(p) + 1, &host, err));
    p->host_rows = host;
    fl_tensor **copies = fl_calloc(p->graph->values.n, sizeof(fl_tensor *));
    if (!copies)
        return fl_graph_nomem(err);
    fl_status s = upload_constants(p, copies, err);
    fl_free(copies);
    if (s == FL_OK)
        s = d->fn->alloc(d, p->workspace_bytes, &workspace, err);
    if (s == FL_OK)
        s = fl_plan_host_prepare(p, err);
    if (s == FL_OK) {
        p->workspace = workspace;
        p->pick_in[1].data = p->workspace + p->value_bytes;
        p->pick.data = (fl_draw *)p->pick_in[1].data + n_picks;
        d->fn->zero(d, p->pick_in[1].data, n_picks * sizeof(fl_draw));
    }
    return s;
}

/* ---- running ---- */

static fl_status fetch(const fl_plan *p, const fl_arg *value, int32_t rows, void *to, fl_error *err)
{
    return p->device->fn->download(p->device, to, value->data,
                                   (size_t)fl_type_width(&value->type) * sizeof(float),
                                   (size_t)value->stride * sizeof(float), (size_t)rows, err);
}

static fl_status show_taps(const fl_walk *w, const fl_plan_item *item, fl_error *err)
{
    for (int i = item->first_tap; i < item->first_tap + item->n_taps; i++) {
        const fl_plan_tap *t = &w->plan->taps[i];
        int32_t rows = fl_rows_now(w->step, t->value->type.rows);
        FL_TRY(fetch(w->plan, t->value, rows, w->plan->host_rows, err));
        fl_arg seen = *t->value;
        seen.data = w->plan->host_rows;
        seen.stride = fl_type_width(&seen.type);
        w->tap(w->ctx, t->kind, t->index, &seen, rows);
    }
    return FL_OK;
}

static void mark(const fl_plan *p, int i)
{
    if (p->us)
        p->device->fn->mark(p->device, i);
}

/* After a step: what lies between two marks is the call's. */
static fl_status book_times(const fl_plan *p, fl_error *err)
{
    if (!p->us)
        return FL_OK;
    FL_TRY(p->device->fn->times(p->device, p->n_items + 1, p->marks, err));
    for (int i = 0; i < p->n_items; i++)
        p->us[p->items[i].node] += p->marks[i + 1] - p->marks[i];
    return FL_OK;
}

static void queue_call(const fl_call *call, const fl_pass *pass, const fl_worker *worker)
{
    for (int phase = 0; phase < call->kernel->n_phases; phase++)
        call->kernel->run(call, pass->step, phase, worker);
}

static fl_status make_calls(const fl_walk *w, const fl_pass *pass, fl_error *err)
{
    const fl_plan *p = w->plan;
    unsigned char *scratch = p->workspace + p->value_bytes + p->gather_bytes;
    const fl_worker worker = {.n_threads = 1,
                              .scratch = scratch,
                              .shared = scratch + p->worker_bytes,
                              .queue = pass->queue};
    mark(p, 0);
    for (int i = 0; i < p->n_items; i++) {
        const fl_plan_item *item = &p->items[i];
        bool skip = item->logits_only && pass->step->n_logits == 0;
        const fl_joint *joint = item->joint && item->joint->call.kernel ? item->joint : NULL;
        if (!skip && item->there)
            FL_TRY(fl_plan_host_call(w, item, err));
        else if (!skip && !joint)
            queue_call(&item->call, pass, &worker);
        else if (!skip && item->leads)
            queue_call(&joint->call, pass, &worker);
        mark(p, i + 1);
        if (!skip && w->tap && item->n_taps)
            FL_TRY(show_taps(w, item, err));
    }
    if (p->pick_call.kernel && pass->step->n_logits > 0)
        queue_call(&p->pick_call, pass, &worker);
    return FL_OK;
}

fl_status fl_plan_device_run(const fl_walk *w, fl_error *err)
{
    fl_plan *p = w->plan;
    fl_device *d = p->device;
    fl_pass pass;
    bool observed = w->tap || p->n_host_calls || p->us;
    if (p->pick_call.kernel)
        FL_TRY(send_draws(p, w->step->n_logits, err));
    FL_TRY(d->fn->begin(d, p, w->step, observed, &pass, err));
    fl_status calls = pass.walk ? make_calls(w, &pass, err) : FL_OK;
    fl_status s = d->fn->end(d, calls == FL_OK ? err : NULL);
    s = calls != FL_OK ? calls : s;
    if (s == FL_OK && p->pick_call.kernel && w->step->n_logits > 0)
        s = fetch(p, &p->pick, w->step->n_logits, p->host_picks, err);
    else if (s == FL_OK)
        s = d->fn->wait(d, err);
    return s == FL_OK ? book_times(p, err) : s;
}

fl_status fl_plan_fetch(fl_plan *p, int32_t first, int32_t n, fl_error *err)
{
    if (!p->device)
        return FL_OK;
    if (!p->workspace || !p->logits || first < 0 || n < 0 || first > p->limits.max_logits - n)
        return fl_fail(err, FL_ARGUMENT, "logits of rows %d + %d, the plan has room for %d", first,
                       n, p->logits ? (int)p->limits.max_logits : 0);
    fl_arg rows = *p->logits;
    rows.data = fl_row_f32(p->logits, first);
    size_t skip = (size_t)first * (size_t)fl_type_width(&rows.type);
    return n ? fetch(p, &rows, n, p->host_logits + skip, err) : FL_OK;
}

fl_draw *fl_plan_draws(fl_plan *p)
{
    return p->workspace && p->pick_call.kernel ? p->host_draws : NULL;
}

const fl_pick *fl_plan_picks(const fl_plan *p)
{
    return p->workspace && p->pick_call.kernel ? p->host_picks : NULL;
}
