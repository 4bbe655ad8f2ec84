/* Measuring kernels where they will run: in whole steps of the model itself, with its weights, its
 * caches and its threads.  In round r every kind of node uses its r-th alternative (modulo how many
 * it has), and the plan's profile tells the time of each.  A kind of node is a signature; what one
 * node of it needs all need.  The plain kernels of the reference are not tried where there is
 * another: they are hundreds of times slower. */
#include "engine/engine_internal.h"
#include "engine/tuning_internal.h"

enum { REPEATS = 3 };

typedef struct tuner {
    const fl_model *model;
    const fl_graph *graph;
    fl_engine_options options;
    int prompt, steps;
    fl_tuning *t;
    int *kind;      /* [nodes] index into t->nodes, or -1 */
    int64_t *us;    /* [nodes] the plan's profile */
    int64_t *sum;   /* [kinds] of a run */
    int32_t *ids;   /* [prompt] */
    int64_t tokens; /* given in a run */
    fl_status status;
    fl_error error;
} tuner;

/* ---- what there is to choose ---- */

static int find(const fl_tuning *t, const char *signature)
{
    for (size_t i = 0; i < t->nodes.n; i++) {
        if (strcmp(t->nodes.data[i].signature, signature) == 0)
            return (int)i;
    }
    return -1;
}

static bool worth(const fl_kernel *k)
{
    return k->preference > 0 && k->isa > FL_ISA_BASE;
}

static fl_status add_node(tuner *u, const fl_plan *usual, const fl_plan_options *po, int i,
                          fl_error *err)
{
    char signature[FL_SIGNATURE];
    const fl_kernel *all[64], *now = fl_plan_kernel(usual, i);
    int n = fl_node_kernels(u->graph, i, po, all, 64);
    u->kind[i] = -1;
    if (!now || n < 2)
        return FL_OK;
    int at = find(u->t, fl_node_signature(u->graph, i, signature));
    if (at < 0) {
        fl_tuned_node node = {.kernels[0].name = now->name, .n_kernels = 1};
        for (int k = 0; k < n && k < 64 && node.n_kernels < FL_TUNED_KERNELS; k++) {
            if (all[k] != now && worth(all[k]))
                node.kernels[node.n_kernels++].name = all[k]->name;
        }
        if (node.n_kernels < 2)
            return FL_OK;
        node.signature = fl_arena_strdup(&u->t->texts, signature);
        at = (int)u->t->nodes.n;
        if (!node.signature || !fl_vec_push(&u->t->nodes, node))
            return fl_fail(err, FL_NOMEM, "no memory for a tuning");
    }
    u->t->nodes.data[at].nodes++;
    u->kind[i] = at;
    return FL_OK;
}

static fl_status list_kinds(tuner *u, const fl_engine_sizes *z, fl_error *err)
{
    fl_plan *usual;
    FL_TRY(fl_plan_create(u->graph, &z->plan, &usual, err));
    fl_status s = FL_OK;
    for (int i = 0; i < fl_graph_nodes(u->graph) && s == FL_OK; i++)
        s = add_node(u, usual, &z->plan, i, err);
    fl_plan_destroy(usual);
    return s;
}

/* ---- a round ---- */

static void on_token(void *ctx, const fl_token_event *e)
{
    tuner *u = ctx;
    u->tokens += e->id != FL_NO_TOKEN;
    if (e->finish == FL_FINISH_ERROR) {
        u->status = e->error.status;
        u->error = e->error;
    }
}

static void gather(tuner *u)
{
    memset(u->sum, 0, u->t->nodes.n * sizeof *u->sum);
    for (int i = 0; i < fl_graph_nodes(u->graph); i++) {
        if (u->kind[i] >= 0)
            u->sum[u->kind[i]] += u->us[i];
        u->us[i] = 0;
    }
}

static void keep_least(tuner *u, int round, bool prompt)
{
    gather(u);
    for (size_t i = 0; i < u->t->nodes.n; i++) {
        fl_tuned_node *n = &u->t->nodes.data[i];
        fl_tuned_kernel *k = &n->kernels[round % n->n_kernels];
        double *least = prompt ? &k->prompt_us : &k->step_us;
        double us = (double)u->sum[i] / (prompt ? 1 : u->steps);
        if (*least == 0 || us < *least)
            *least = us > 0 ? us : 1e-3;
    }
}

static fl_status one_run(tuner *u, fl_engine *e, int round, fl_error *err)
{
    fl_request *r;
    fl_request_params p = {.prompt = u->ids,
                           .n_prompt = u->prompt,
                           .max_tokens = u->steps + 1,
                           .sampling = fl_sampling_default(),
                           .on_token = on_token,
                           .ctx = u,
                           .keep_from = FL_NONE};
    u->tokens = 0;
    u->status = FL_OK;
    FL_TRY(fl_engine_submit(e, &p, &r, err));
    bool prompting = true;
    for (bool busy = true; busy;) {
        FL_TRY(fl_engine_step(e, &busy, err));
        if (prompting && u->tokens > 0) {
            keep_least(u, round, true);
            prompting = false;
        }
    }
    keep_least(u, round, false);
    if (u->status != FL_OK && err)
        *err = u->error;
    return u->status;
}

static fl_status one_round(tuner *u, int round, fl_error *err)
{
    fl_engine *e = NULL;
    for (size_t i = 0; i < u->t->nodes.n; i++) {
        const fl_tuned_node *n = &u->t->nodes.data[i];
        FL_TRY(fl_choices_set(u->t->choices, n->signature, n->kernels[round % n->n_kernels].name,
                              err));
    }
    u->options.choices = u->t->choices;
    FL_TRY(fl_engine_create(u->model, &u->options, &e, err));
    fl_engine_profile(e, u->us);
    fl_status s = FL_OK;
    for (int i = 0; i < REPEATS && s == FL_OK; i++)
        s = one_run(u, e, round, err);
    fl_engine_destroy(e);
    return s;
}

/* ---- the choice ---- */

/* The clock counts microseconds, so very short times are made to matter less. */
static double cost_of(const fl_tuned_kernel *k, double prompt, double step)
{
    return (k->prompt_us + 10) / (prompt + 10) + (k->step_us + 1) / (step + 1);
}

static void choose(fl_tuned_node *n)
{
    double prompt = n->kernels[0].prompt_us, step = n->kernels[0].step_us, least = 0;
    for (int k = 1; k < n->n_kernels; k++) {
        prompt = n->kernels[k].prompt_us < prompt ? n->kernels[k].prompt_us : prompt;
        step = n->kernels[k].step_us < step ? n->kernels[k].step_us : step;
    }
    for (int k = 0; k < n->n_kernels; k++) {
        double cost = cost_of(&n->kernels[k], prompt, step) * (k == n->usual ? 0.95 : 1);
        if (k == 0 || cost < least) {
            least = cost;
            n->chosen = k;
        }
    }
}

static fl_status measure(tuner *u, fl_tune_fn told, void *ctx, fl_error *err)
{
    int rounds = 0;
    for (size_t i = 0; i < u->t->nodes.n; i++) {
        int n = u->t->nodes.data[i].n_kernels;
        rounds = n > rounds ? n : rounds;
    }
    for (int r = 0; r < rounds; r++) {
        if (told)
            told(ctx, r, rounds);
        FL_TRY(one_round(u, r, err));
    }
    for (size_t i = 0; i < u->t->nodes.n; i++)
        choose(&u->t->nodes.data[i]);
    return fl_tuning_settle(u->t, err);
}

fl_status fl_tune(const fl_model *m, const fl_engine_options *o, int prompt, int steps,
                  fl_tune_fn told, void *ctx, fl_tuning **out, fl_error *err)
{
    fl_engine_sizes z;
    tuner u = {
        .model = m, .graph = fl_model_graph(m), .options = *o, .prompt = prompt, .steps = steps};
    *out = NULL;
    if (prompt < 1 || steps < 1)
        return fl_fail(err, FL_ARGUMENT, "tuning needs at least one token of prompt and one step");
    u.options.device = NULL;
    u.options.kernels = NULL;
    u.options.choices = NULL;
    FL_TRY(fl_engine_resolve(u.graph, fl_model_max_context(m), &u.options, &z, err));
    FL_TRY(fl_tuning_begin(u.graph, &z, &u.t, err));
    size_t n = (size_t)fl_graph_nodes(u.graph);
    u.kind = fl_calloc(n, sizeof *u.kind);
    u.us = fl_calloc(n, sizeof *u.us);
    u.sum = fl_calloc(n, sizeof *u.sum);
    u.ids = fl_calloc((size_t)prompt, sizeof *u.ids);
    fl_status s = FL_OK;
    if (!u.kind || !u.us || !u.sum || !u.ids)
        s = fl_fail(err, FL_NOMEM, "no memory for a tuning");
    for (int64_t i = 0; s == FL_OK && i < prompt; i++) /* spread over the vocabulary */
        u.ids[i] = (int32_t)(i * 7919 % fl_graph_vocab(u.graph));
    if (s == FL_OK)
        s = list_kinds(&u, &z, err);
    if (s == FL_OK)
        s = measure(&u, told, ctx, err);
    fl_free(u.kind);
    fl_free(u.us);
    fl_free(u.sum);
    fl_free(u.ids);
    if (s != FL_OK)
        fl_tuning_destroy(u.t);
    else
        *out = u.t;
    return s;
}
