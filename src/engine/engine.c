/* The engine's life: everything it will need is allocated when it is created; a step allocates
 * nothing. */
#include "engine/engine_internal.h"

#include "base/mem.h"
#include "ops/device.h"

#include <stdio.h>
#include <string.h>
#include <xxhash.h>

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

typedef struct device_terms {
    int64_t memory; /* to use at most; 0: all */
    bool insisted;  /* it was asked for by name */
} device_terms;

/* Before anything is put on the device: what the plan and the state will take must be there. */
static fl_status reserve(fl_engine *e, const fl_graph *g, int64_t limit, fl_error *err)
{
    fl_device *d = e->device;
    fl_state_spec *specs;
    FL_TRY(fl_engine_specs(g, &specs, err));
    int64_t state = fl_state_device_bytes(specs, fl_graph_states(g), &e->sizes.state);
    fl_free(specs);
    int64_t plan = (int64_t)fl_plan_device_bytes(e->plan), total;
    int64_t room = limit && limit < (int64_t)d->memory ? limit : (int64_t)d->memory;
    if (state < 0 || __builtin_add_overflow(plan, state, &total) || total > room)
        return fl_fail(err, FL_NOMEM,
                       "%s: weights and workspace need %.3f GB and the state %.3f GB, %.3f GB may "
                       "be used: a smaller context or cache needs less",
                       d->name, (double)plan * 1e-9, (double)state * 1e-9, (double)room * 1e-9);
    return d->fn->reserve(d, (size_t)total, &e->sizes.plan.limits, err);
}

/* Saved rows are worth something only where the same numbers would be computed. */
static uint64_t fingerprint(const fl_engine *e, const fl_graph *g)
{
    uint64_t hash = XXH3_64bits_withSeed(e->device_text, e->device ? strlen(e->device_text) : 0,
                                         e->sizes.store.fingerprint);
    hash = XXH3_64bits_withSeed(fl_version(), strlen(fl_version()), hash);
    for (int i = 0; i < fl_graph_nodes(g); i++) {
        const fl_kernel *k = fl_plan_kernel(e->plan, i);
        if (k)
            hash = XXH3_64bits_withSeed(k->name, strlen(k->name), hash);
    }
    return hash;
}

static fl_status create_prefixes(fl_engine *e, const fl_graph *g, fl_error *err)
{
    fl_store_options o = e->sizes.store;
    FL_TRY(fl_prefix_create(e->state, e->sizes.max_prefixes, &e->prefix, err));
    o.fingerprint = fingerprint(e, g);
    return o.dir ? fl_prefix_store_open(e->prefix, &o, &e->store, err) : FL_OK;
}

/* A device that nobody insisted on must be worth it: if most weights would be read by the host, it
 * only adds copies.  Whoever names kernels has decided. */
static fl_status check_share(const fl_engine *e, const fl_graph *g, fl_error *err)
{
    const fl_sizes one = {.rows = 1, .logits = 1, .context = 1};
    double host = 0, all = 0;
    for (int i = 0; i < fl_graph_nodes(g); i++) {
        fl_node_view v = fl_graph_node_view(g, i);
        fl_cost cost = {0};
        v.op->cost(&v, &one, &cost);
        all += cost.weight_bytes;
        host += fl_plan_on_host(e->plan, i) ? cost.weight_bytes : 0;
    }
    if (e->sizes.plan.kernels || host <= all / 2)
        return FL_OK;
    return fl_fail(err, FL_UNSUPPORTED, "%s has no kernels for %.0f %% of the weights",
                   e->device->name, 100 * host / all);
}

/* What the host has to do with a device's steps is part of where the engine runs. */
static void note_host_calls(fl_engine *e)
{
    size_t n = strlen(e->device_text);
    if (e->device && fl_plan_host_calls(e->plan))
        snprintf(e->device_text + n, sizeof e->device_text - n,
                 " (%d of %d calls on the processor)", fl_plan_host_calls(e->plan),
                 fl_plan_calls(e->plan));
}

static void note_device(fl_engine *e)
{
    size_t n = strlen(e->device_text);
    if (e->device && e->device->note[0])
        snprintf(e->device_text + n, sizeof e->device_text - n, " (%s)", e->device->note);
}

static fl_status build(fl_engine *e, const fl_graph *g, const device_terms *terms, fl_error *err)
{
    e->sizes.plan.device = e->sizes.state.device = e->device;
    FL_TRY(fl_plan_create(g, &e->sizes.plan, &e->plan, err));
    e->sizes.state.on_host = fl_plan_states_on_host(e->plan);
    note_host_calls(e);
    if (e->device && !terms->insisted)
        FL_TRY(check_share(e, g, err));
    if (e->device)
        FL_TRY(reserve(e, g, terms->memory, err));
    FL_TRY(create_state(e, g, err));
    if (e->sizes.max_prefixes)
        FL_TRY(create_prefixes(e, g, err));
    FL_TRY(create_arrays(e, err));
    FL_TRY(fl_plan_prepare(e->plan, err));
    note_device(e);
    bool alone = e->device && !fl_plan_host_calls(e->plan);
    return fl_pool_create(alone ? 1 : e->sizes.plan.limits.n_threads, &e->pool, err);
}

/* An engine on this device, which is its own from here on, whatever becomes of it; NULL: on the
 * host.  where: how it calls the place. */
static fl_status create_on(fl_device *device, const char *where, const fl_graph *g,
                           const fl_engine_sizes *sizes, const device_terms *terms, fl_engine **out,
                           fl_error *err)
{
    fl_engine *e = fl_calloc(1, sizeof *e);
    if (!e) {
        if (device)
            device->fn->close(device);
        return fl_fail(err, FL_NOMEM, "no memory for an engine");
    }
    e->sizes = *sizes;
    e->vocab = fl_graph_vocab(g);
    e->stats.progress_us = fl_engine_now(e);
    e->device = device;
    if (device)
        snprintf(e->device_text, sizeof e->device_text, "%s", where);
    else
        snprintf(e->device_text, sizeof e->device_text, "cpu (%s)", where);
    fl_status s = build(e, g, terms, err);
    if (s != FL_OK)
        fl_engine_destroy(e);
    else
        *out = e;
    return s;
}

fl_status fl_engine_create_graph(const fl_graph *g, int64_t model_context,
                                 const fl_engine_options *o, fl_engine **out, fl_error *err)
{
    *out = NULL;
    fl_engine_sizes sizes;
    char why[200];
    fl_device *device = o->given_device;
    fl_status s = fl_engine_resolve(g, model_context, o, &sizes, err);
    if (s == FL_OK && device)
        snprintf(why, sizeof why, "%s", device->name);
    else if (s == FL_OK)
        s = fl_device_open(o->device, &device, why, err);
    if (s != FL_OK) {
        if (device)
            device->fn->close(device);
        return s;
    }
    const device_terms terms = {o->device_memory,
                                o->given_device || (device && strcmp(o->device, "auto") != 0)};
    s = create_on(device, why, g, &sizes, &terms, out, err);
    if (s == FL_OK || !device || terms.insisted)
        return s;
    fl_error found = {0};
    fl_error *reason = err ? err : &found;
    snprintf(why, sizeof why, "%.199s", reason->message);
    return create_on(NULL, why, g, &sizes, &terms, out, err);
}

void fl_engine_destroy(fl_engine *e)
{
    if (!e)
        return;
    while (e->n_live > 0 || e->waiting) {
        fl_request *r = (e->n_live ? e->live[0] : e->waiting)->request;
        for (int i = 0; i < r->p.n; i++)
            fl_queue_leave(e, &r->choices[i]);
        fl_queue_part(e, r);
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
    fl_prefix_store_close(e->store);
    fl_prefix_destroy(e->prefix);
    fl_state_destroy(e->state);
    fl_plan_destroy(e->plan);
    if (e->device)
        e->device->fn->close(e->device);
    fl_free(e);
}

void fl_engine_get_stats(const fl_engine *e, fl_engine_stats *out)
{
    *out = e->stats;
    out->running = e->n_live;
    out->waiting = e->n_waiting - e->n_settling;
    for (int i = 0; i < e->n_live; i++)
        out->running -= e->live[i]->request->settles;
    if (e->prefix)
        fl_prefix_get_stats(e->prefix, &out->prefix);
    out->tokens = e->sizes.state.n_tokens;
    out->free_tokens = fl_state_free_tokens(e->state);
    out->now_us = fl_engine_now(e);
}

fl_state *fl_engine_state(fl_engine *e)
{
    return e->state;
}

const fl_plan *fl_engine_plan(const fl_engine *e)
{
    return e->plan;
}

void fl_engine_profile(fl_engine *e, int64_t *us)
{
    fl_plan_profile(e->plan, us);
}

const char *fl_engine_device(const fl_engine *e)
{
    return e->device_text;
}
