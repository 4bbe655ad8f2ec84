/* Running a plan: one region of the pool per step, in which every worker walks the flat array and
 * meets the others after each phase of each call.  The step is checked against the limits first,
 * because a kernel trusts it. */
#include "graph/plan_internal.h"

#include "base/clock.h"

/* ---- the step ---- */

static fl_status check_counts(const fl_plan *p, const fl_step *s, fl_error *err)
{
    const fl_limits *l = &p->limits;
    if (s->n_rows < 1 || s->n_rows > l->max_rows)
        return fl_fail(err, FL_ARGUMENT, "a step of %d rows, the plan is made for 1 to %d",
                       (int)s->n_rows, (int)l->max_rows);
    if (s->n_logits < 0 || s->n_logits > l->max_logits)
        return fl_fail(err, FL_ARGUMENT, "a step of %d logits, the plan is made for up to %d",
                       (int)s->n_logits, (int)l->max_logits);
    for (int32_t i = 0; i < s->n_logits; i++) {
        int32_t low = i ? s->logit_rows[i - 1] + 1 : 0;
        if (s->logit_rows[i] < low || s->logit_rows[i] >= s->n_rows)
            return fl_fail(err, FL_ARGUMENT, "logits wanted of row %d, expected %d to %d",
                           (int)s->logit_rows[i], (int)low, (int)s->n_rows - 1);
    }
    return FL_OK;
}

static fl_status check_sequence(const fl_plan *p, const fl_step *s, int32_t i, int32_t row0,
                                bool paged, fl_error *err)
{
    const fl_seq_rows *q = &s->seqs[i];
    if (q->row0 != row0 || q->n_rows < 1 || q->n_rows > s->n_rows - row0)
        return fl_fail(err, FL_ARGUMENT,
                       "sequence %d of the step has rows %d + %d, expected to start at %d of %d",
                       (int)i, (int)q->row0, (int)q->n_rows, (int)row0, (int)s->n_rows);
    if (q->pos0 < 0 || q->pos0 > p->limits.max_context - q->n_rows)
        return fl_fail(err, FL_ARGUMENT,
                       "sequence %d of the step reaches position %lld, the context is %lld", (int)i,
                       (long long)q->pos0 + q->n_rows - 1, (long long)p->limits.max_context);
    if (q->slot < 0 || (paged && !q->pages))
        return fl_fail(err, FL_ARGUMENT, "sequence %d of the step has no slot or pages", (int)i);
    for (int32_t row = row0; row < row0 + q->n_rows; row++) {
        if (s->row_seq[row] != i)
            return fl_fail(err, FL_ARGUMENT, "row %d is said to be of sequence %d, not %d",
                           (int)row, (int)s->row_seq[row], (int)i);
    }
    return FL_OK;
}

static fl_status check_step(const fl_plan *p, const fl_step *s, fl_error *err)
{
    FL_TRY(check_counts(p, s, err));
    bool paged = false;
    for (int i = 0; i < fl_graph_states(p->graph); i++) {
        const fl_state_spec *spec = fl_graph_state_spec(p->graph, i);
        const fl_state_pool *pool = s->states ? &s->states[i] : NULL;
        int64_t need = fl_state_item_bytes(spec);
        if (!pool || !pool->base || pool->item_bytes < need)
            return fl_fail(err, FL_ARGUMENT, "the step has no pool of %lld bytes an item for %s",
                           (long long)need, spec->name);
        paged |= spec->paged;
    }
    int32_t row0 = 0;
    for (int32_t i = 0; i < s->n_seqs; i++) {
        FL_TRY(check_sequence(p, s, i, row0, paged, err));
        row0 += s->seqs[i].n_rows;
    }
    if (row0 != s->n_rows)
        return fl_fail(err, FL_ARGUMENT, "the sequences of the step have %d rows, the step %d",
                       (int)row0, (int)s->n_rows);
    return FL_OK;
}

/* ---- the walk ---- */

static void show_taps(const fl_walk *w, const fl_plan_item *item)
{
    for (int i = item->first_tap; i < item->first_tap + item->n_taps; i++) {
        const fl_plan_tap *t = &w->plan->taps[i];
        w->tap(w->ctx, t->kind, t->index, t->value, fl_rows_now(w->step, t->value->type.rows));
    }
}

/* Books the time since *then on a node. */
static void book(int64_t *us, int node, int64_t *then)
{
    int64_t now = fl_clock_us();
    us[node] += now - *then;
    *then = now;
}

static void work(void *ctx, int thread, int n_threads)
{
    const fl_walk *w = ctx;
    const fl_plan *p = w->plan;
    unsigned char *scratch = p->workspace + p->value_bytes + p->gather_bytes;
    const fl_worker worker = {
        .thread = thread,
        .n_threads = n_threads,
        .scratch = scratch + (size_t)thread * p->worker_bytes,
        .shared = scratch + (size_t)p->limits.n_threads * p->worker_bytes,
        .taken = fl_pool_taken(w->pool),
    };
    int64_t *us = thread == 0 ? p->us : NULL, then = us ? fl_clock_us() : 0;
    for (int i = 0; i < p->n_items; i++) {
        const fl_plan_item *item = &p->items[i];
        if (item->logits_only && w->step->n_logits == 0)
            continue;
        for (int phase = 0; phase < item->call.kernel->n_phases; phase++) {
            item->call.kernel->run(&item->call, w->step, phase, &worker);
            fl_pool_barrier(w->pool);
        }
        if (us)
            book(us, item->node, &then);
        if (w->tap && item->n_taps) {
            if (thread == 0)
                show_taps(w, item);
            fl_pool_barrier(w->pool);
        }
    }
}

static void gather_logits(const fl_plan *p, int32_t n)
{
    size_t width = (size_t)fl_type_width(&p->logits->type);
    float *to = fl_plan_logits(p);
    for (int32_t r = 0; r < n; r++)
        memcpy(to + (size_t)r * width, fl_row_f32(p->logits, r), width * sizeof *to);
}

fl_status fl_plan_run(fl_plan *p, fl_pool *pool, const fl_step *step, fl_tap_fn tap, void *ctx,
                      fl_error *err)
{
    if (!p->workspace)
        return fl_fail(err, FL_ARGUMENT, "the plan is not prepared: it has no workspace");
    bool on_host = !p->device || p->n_host_calls;
    if (on_host && fl_pool_threads(pool) > p->n_threads)
        return fl_fail(err, FL_ARGUMENT, "a pool of %d threads, the plan is made for %d",
                       fl_pool_threads(pool), p->n_threads);
    FL_TRY(check_step(p, step, err));
    const fl_walk w = {.plan = p, .pool = pool, .step = step, .tap = tap, .ctx = ctx};
    if (p->device)
        return fl_plan_device_run(&w, err);
    fl_pool_run(pool, work, (void *)&w);
    if (p->gather_bytes)
        gather_logits(p, step->n_logits);
    return FL_OK;
}

float *fl_plan_logits(const fl_plan *p)
{
    if (!p->workspace || !p->logits)
        return NULL;
    if (p->device)
        return p->host_logits;
    return p->gather_bytes ? (float *)(p->workspace + p->value_bytes) : p->logits->data;
}
