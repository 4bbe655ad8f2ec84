/* The engine's life: everything it will need is allocated when it is created; a step allocates
 * nothing. */
#include "engine/engine_internal.h"

#include "base/mem.h"

static fl_status create_state(fl_engine *e, const fl_graph *g, fl_error *err)
{
    fl_state_spec *specs;
    FL_TRY(fl_engine_specs(g, &specs, err));
    fl_status s = fl_state_create(specs, fl_graph_states(g), &e->sizes.state, &e->state, err);
    fl_free(specs);
    return s;
}

static fl_status create_arrays(fl_engine *e, fl_error *err)
{
    const fl_limits *l = &e->sizes.plan.limits;
    size_t rows = (size_t)l->max_rows, seqs = (size_t)e->sizes.state.n_seqs;
    e->ids = fl_calloc(rows, sizeof *e->ids);
    e->row_seq = fl_calloc(rows, sizeof *e->row_seq);
    e->logit_rows = fl_calloc((size_t)l->max_logits, sizeof *e->logit_rows);
    e->seqs = fl_calloc(seqs, sizeof *e->seqs);
    e->shares = fl_calloc(seqs, sizeof *e->shares);
    e->live = fl_calloc(seqs, sizeof *e->live);
    if (!e->ids || !e->row_seq || !e->logit_rows || !e->seqs || !e->shares || !e->live)
        return fl_fail(err, FL_NOMEM, "no memory for steps of %d rows", l->max_rows);
    e->step = (fl_step){.ids = e->ids,
                        .row_seq = e->row_seq,
                        .seqs = e->seqs,
                        .logit_rows = e->logit_rows,
                        .states = fl_state_pools(e->state)};
    return fl_sample_scratch_init(&e->scratch, e->vocab, err);
}

static fl_status build(fl_engine *e, const fl_graph *g, fl_error *err)
{
    FL_TRY(fl_plan_create(g, &e->sizes.plan, &e->plan, err));
    FL_TRY(create_state(e, g, err));
    FL_TRY(create_arrays(e, err));
    FL_TRY(fl_plan_prepare(e->plan, err));
    return fl_pool_create(e->sizes.plan.limits.n_threads, &e->pool, err);
}

fl_status fl_engine_create_graph(const fl_graph *g, int64_t model_context,
                                 const fl_engine_options *o, fl_engine **out, fl_error *err)
{
    *out = NULL;
    fl_engine_sizes sizes;
    FL_TRY(fl_engine_resolve(g, model_context, o, &sizes, err));
    fl_engine *e = fl_calloc(1, sizeof *e);
    if (!e)
        return fl_fail(err, FL_NOMEM, "no memory for an engine");
    e->sizes = sizes;
    e->vocab = fl_graph_vocab(g);
    fl_status s = build(e, g, err);
    if (s != FL_OK)
        fl_engine_destroy(e);
    else
        *out = e;
    return s;
}

void fl_engine_destroy(fl_engine *e)
{
    if (!e)
        return;
    while (e->n_live > 0) {
        fl_request *r = e->live[--e->n_live]->request;
        if (--r->n_alive == 0)
            fl_request_free(r);
    }
    fl_sample_scratch_free(&e->scratch);
    fl_free(e->ids);
    fl_free(e->row_seq);
    fl_free(e->logit_rows);
    fl_free(e->seqs);
    fl_free(e->shares);
    fl_free(e->live);
    fl_pool_destroy(e->pool);
    fl_state_destroy(e->state);
    fl_plan_destroy(e->plan);
    fl_free(e);
}

fl_state *fl_engine_state(fl_engine *e)
{
    return e->state;
}

const fl_plan *fl_engine_plan(const fl_engine *e)
{
    return e->plan;
}
