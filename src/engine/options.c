/* Options become sizes, and sizes become a prediction.  fl_engine_create and fl_engine_predict use
 * the same functions, so what is predicted is what is allocated. */
#include "engine/engine_internal.h"

#include "base/mem.h"

enum {
    MAX_THREADS = 1024,
    MAX_SEQS = 4096,
    MAX_CHUNK = 1 << 15,
    DEFAULT_SEQS = 8,
    DEFAULT_CHUNK = 256,
    /* A model may say a million tokens; a cache for that is a decision of whoever owns the memory,
     * not a default. */
    DEFAULT_CONTEXT = 65536,
    DEFAULT_SHARE = 8192, /* of the default cache, for every sequence when all are in use */
    SHOWN_LOGITS_BYTES = 64 << 20
};

fl_engine_options fl_engine_options_default(void)
{
    return (fl_engine_options){.isa = FL_ISA_COUNT};
}

fl_request_params fl_request_params_default(void)
{
    return (fl_request_params){.sampling = fl_sampling_default(), .keep_from = FL_NONE};
}

static fl_status check(const char *name, int64_t value, int64_t low, int64_t high, fl_error *err)
{
    if (value >= low && value <= high)
        return FL_OK;
    return fl_fail(err, FL_ARGUMENT, "%s is %lld, allowed is %lld to %lld", name, (long long)value,
                   (long long)low, (long long)high);
}

/* Prompts that show all their logits are run in pieces whose logits fit SHOWN_LOGITS_BYTES, but not
 * below the grid. */
static int32_t shown_logits(int64_t vocab, int32_t chunk)
{
    int64_t rows = SHOWN_LOGITS_BYTES / ((int64_t)sizeof(float) * vocab);
    rows -= rows % FL_PAGE_TOKENS;
    return rows < FL_PAGE_TOKENS ? FL_PAGE_TOKENS : rows > chunk ? chunk : (int32_t)rows;
}

fl_status fl_engine_resolve(const fl_graph *g, int64_t model_context, const fl_engine_options *o,
                            fl_engine_sizes *out, fl_error *err)
{
    int64_t vocab = fl_graph_vocab(g);
    FL_TRY(check("vocabulary", vocab, 1, INT32_MAX, err));
    FL_TRY(check("the model's context", model_context, 1, INT32_MAX, err));
    int threads = o->threads ? o->threads : fl_cpu_count();
    int seqs = o->max_seqs ? o->max_seqs : DEFAULT_SEQS;
    int chunk = o->chunk ? o->chunk : DEFAULT_CHUNK;
    int64_t context = o->max_context                    ? o->max_context
                      : model_context < DEFAULT_CONTEXT ? model_context
                                                        : DEFAULT_CONTEXT;
    FL_TRY(check("threads", threads, 1, MAX_THREADS, err));
    FL_TRY(check("max_seqs", seqs, 1, MAX_SEQS, err));
    FL_TRY(check("chunk", chunk, FL_PAGE_TOKENS, MAX_CHUNK, err));
    if (chunk % FL_PAGE_TOKENS)
        return fl_fail(err, FL_ARGUMENT, "chunk is %d, it must be a multiple of %d", chunk,
                       FL_PAGE_TOKENS);
    FL_TRY(check("max_context", context, 1, model_context, err));
    FL_TRY(check("max_waiting", o->max_waiting, 0, INT32_MAX, err));
    FL_TRY(check("max_prefixes", o->max_prefixes, 0, MAX_SEQS, err));
    FL_TRY(check("max_snapshots", o->max_snapshots, 0, MAX_SEQS, err));
    int64_t cache = o->cache_tokens;
    if (!cache) {
        int64_t share = context < DEFAULT_SHARE ? context : DEFAULT_SHARE;
        share += FL_PAGE_TOKENS - 1 - (share - 1) % FL_PAGE_TOKENS; /* whole pages */
        cache = seqs * share > context ? seqs * share : context;
    }
    FL_TRY(check("cache_tokens", cache, 1, INT32_MAX - FL_PAGE_TOKENS, err));
    fl_isa best = fl_cpu_isa();
    int32_t shown = shown_logits(vocab, chunk);
    *out = (fl_engine_sizes){
        .plan = {.limits = {.max_rows = chunk + seqs,
                            .max_logits = shown + seqs,
                            .n_threads = threads,
                            .max_context = context,
                            .max_seqs = seqs},
                 .isa = o->isa < best ? o->isa : best,
                 .fast = o->fast,
                 .kernels = o->kernels,
                 .choices = o->choices},
        .state = {.n_seqs = seqs,
                  .n_snaps = o->max_snapshots + o->max_prefixes,
                  .n_tokens = cache,
                  .max_context = context},
        .chunk = chunk,
        .shown_logits = shown,
        .max_waiting = o->max_waiting,
        .max_prefixes = o->max_prefixes,
        .settle = o->settle,
        .store = {.dir = o->prefix_dir,
                  .fingerprint = o->fingerprint,
                  .max_bytes = o->prefix_disk,
                  .note = o->note,
                  .note_ctx = o->note_ctx},
        .clock = o->clock,
        .clock_ctx = o->clock_ctx,
    };
    return FL_OK;
}

fl_status fl_engine_specs(const fl_graph *g, fl_state_spec **out, fl_error *err)
{
    int n = fl_graph_states(g);
    *out = fl_realloc_array(NULL, (size_t)n, sizeof **out);
    if (!*out)
        return fl_fail(err, FL_NOMEM, "no memory for %d state specs", n);
    for (int i = 0; i < n; i++)
        (*out)[i] = *fl_graph_state_spec(g, i);
    return FL_OK;
}

int64_t fl_engine_array_bytes(const fl_engine_sizes *z, int64_t vocab)
{
    const fl_limits *l = &z->plan.limits;
    return (int64_t)sizeof(fl_engine) + fl_sample_scratch_bytes(vocab) +
           (z->max_prefixes ? fl_prefix_bytes(z->state.n_tokens, z->state.n_snaps) : 0) +
           l->max_rows * 2 * (int64_t)sizeof(int32_t) + l->max_logits * (int64_t)sizeof(int32_t) +
           z->state.n_seqs *
               (int64_t)(sizeof(fl_seq_rows) + sizeof(fl_share) + sizeof(fl_choice *));
}

fl_status fl_engine_predict_graph(const fl_graph *g, int64_t model_context,
                                  const fl_engine_options *o, fl_engine_memory *out, fl_error *err)
{
    *out = (fl_engine_memory){0};
    fl_engine_sizes z;
    FL_TRY(fl_engine_resolve(g, model_context, o, &z, err));
    z.plan.device = z.state.device = o->given_device;
    fl_plan *plan;
    FL_TRY(fl_plan_create(g, &z.plan, &plan, err));
    fl_state_spec *specs;
    fl_status s = fl_engine_specs(g, &specs, err);
    int64_t there = 0;
    if (s == FL_OK) {
        z.state.on_host = fl_plan_states_on_host(plan);
        out->state = fl_state_bytes(specs, fl_graph_states(g), &z.state);
        there = fl_state_device_bytes(specs, fl_graph_states(g), &z.state);
        fl_free(specs);
    }
    out->workspace = (int64_t)fl_plan_host_bytes(plan);
    out->device = (int64_t)fl_plan_device_bytes(plan);
    fl_plan_destroy(plan);
    FL_TRY(s);
    if (out->state < 0 || there < 0)
        return fl_fail(err, FL_ARGUMENT, "a cache of %lld tokens is beyond any machine",
                       (long long)z.state.n_tokens);
    out->device += there;
    out->state -= there < out->state ? there : out->state; /* sizes there are rounded up */
    out->workspace += fl_engine_array_bytes(&z, fl_graph_vocab(g));
    out->total = out->workspace + out->state;
    return FL_OK;
}
