/* Options for a given amount of memory: what the fixed parts leave over becomes cache. */
#include "engine/engine_internal.h"

enum { PROBE_TOKENS = 1 << 16 };

/* Total without weights, with a cache of so many tokens. */
static fl_status total_with(const fl_graph *g, int64_t model_context, fl_engine_options o,
                            int64_t tokens, int64_t *total, fl_error *err)
{
    fl_engine_memory mem;
    o.cache_tokens = tokens;
    FL_TRY(fl_engine_predict_graph(g, model_context, &o, &mem, err));
    *total = mem.total;
    return FL_OK;
}

fl_status fl_engine_fit_graph(const fl_graph *g, int64_t model_context, int64_t weights,
                              int64_t ram, fl_engine_options *o, fl_error *err)
{
    fl_engine_sizes z;
    int64_t small, large;
    FL_TRY(fl_engine_resolve(g, model_context, o, &z, err));
    FL_TRY(total_with(g, model_context, *o, FL_PAGE_TOKENS, &small, err));
    FL_TRY(total_with(g, model_context, *o, FL_PAGE_TOKENS + PROBE_TOKENS, &large, err));
    int64_t page = (large - small) / (PROBE_TOKENS / FL_PAGE_TOKENS);
    int64_t left = ram - weights - small, most = (INT32_MAX - FL_PAGE_TOKENS) / FL_PAGE_TOKENS;
    int64_t pages = left < 0 ? 0 : page > 0 ? 1 + left / page : most; /* one is in `small` */
    int64_t tokens = (pages < most ? pages : most) * FL_PAGE_TOKENS;
    int64_t context = o->max_context ? o->max_context : FL_PAGE_TOKENS, total = ram;
    while (tokens >= context && total > ram - weights) { /* a hash table grows by steps */
        FL_TRY(total_with(g, model_context, *o, tokens, &total, err));
        if (total > ram - weights)
            tokens -= tokens / 4096 * FL_PAGE_TOKENS + FL_PAGE_TOKENS;
    }
    if (tokens < context)
        return fl_fail(err, FL_ARGUMENT,
                       "%.3f GB do not hold %.3f GB of weights, %.3f GB for %d sequences and steps "
                       "of %d rows, and %lld tokens of cache at %.1f kB: allow more, or fewer "
                       "sequences, snapshots or tokens of context",
                       (double)ram * 1e-9, (double)weights * 1e-9, (double)small * 1e-9,
                       z.state.n_seqs, z.chunk, (long long)context,
                       (double)page / FL_PAGE_TOKENS * 1e-3);
    o->cache_tokens = tokens;
    o->max_context = tokens < z.state.max_context ? tokens : z.state.max_context;
    return FL_OK;
}
