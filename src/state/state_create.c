/* Creation of a state manager: limits become sizes, sizes become memory.
 *
 * All that the manager will ever hold is allocated here, and fl_state_bytes adds up the same sizes
 * without allocating. */
#include "state/state_internal.h"

#include "base/mem.h"
#include "graph/cache_row.h"

#include <string.h>
#include <xxhash.h>

enum { MAX_SEQS = 1 << 16, MAX_SNAPS = 1 << 16, MAX_POOLS = 1 << 16 };

static fl_status check_limits(const fl_state_limits *l, int n, fl_error *err)
{
    if (n < 0 || n > MAX_POOLS)
        return fl_fail(err, FL_ARGUMENT, "%d state pools, at most %d are possible", n, MAX_POOLS);
    if (l->n_seqs < 1 || l->n_seqs > MAX_SEQS)
        return fl_fail(err, FL_ARGUMENT, "%d sequences asked for, possible are 1 to %d", l->n_seqs,
                       MAX_SEQS);
    if (l->n_snaps < 0 || l->n_snaps > MAX_SNAPS)
        return fl_fail(err, FL_ARGUMENT, "%d snapshots asked for, possible are 0 to %d", l->n_snaps,
                       MAX_SNAPS);
    /* Row numbers of the pools (page * FL_PAGE_TOKENS + offset) stay within 32 bits. */
    if (l->n_tokens < 1 || l->n_tokens > INT32_MAX - FL_PAGE_TOKENS)
        return fl_fail(err, FL_ARGUMENT, "a cache of %lld tokens is out of range",
                       (long long)l->n_tokens);
    if (l->max_context < 1 || l->max_context > INT32_MAX - FL_PAGE_TOKENS)
        return fl_fail(err, FL_ARGUMENT, "a context of %lld tokens is out of range",
                       (long long)l->max_context);
    return FL_OK;
}

/* Sizes of one pool. */
static fl_status lay_pool(const fl_state_spec *specs, int i, const fl_state_limits *l,
                          fl_pool_info *out, fl_error *err)
{
    const fl_state_spec *spec = &specs[i];
    bool on_host = l->on_host && l->on_host[i];
    int64_t items =
        spec->paged ? fl_pages_for(l->n_tokens) * FL_PAGE_TOKENS : (int64_t)l->n_seqs + l->n_snaps;
    int64_t bytes, total;
    bool possible = spec->elements >= 1 && spec->elements <= INT64_MAX / 64 &&
                    (spec->dtype == FL_F32 || (spec->paged && fl_cache_type(spec->dtype)));
    bytes = possible ? fl_state_item_bytes(spec) : 0;
    if (!possible || __builtin_mul_overflow(bytes, items, &total))
        return fl_fail(err, FL_ARGUMENT, "state %s: %lld items of %lld elements are out of range",
                       spec->name, (long long)items, (long long)spec->elements);
    *out = (fl_pool_info){.name_hash = XXH3_64bits(spec->name, strlen(spec->name)),
                          .elements = spec->elements,
                          .item_bytes = bytes,
                          .items = items,
                          .dtype = spec->dtype,
                          .paged = spec->paged,
                          .device = on_host ? NULL : l->device};
    return FL_OK;
}

int64_t fl_state_bytes(const fl_state_spec *specs, int n, const fl_state_limits *l)
{
    if (check_limits(l, n, NULL) != FL_OK)
        return -1;
    int64_t total = (int64_t)sizeof(fl_state) +
                    fl_pages_for(l->n_tokens) * 2 * (int64_t)sizeof(int32_t) +
                    l->n_seqs * (int64_t)sizeof(fl_seq_state) +
                    l->n_seqs * fl_pages_for(l->max_context) * (int64_t)sizeof(int32_t) +
                    l->n_snaps * (int64_t)sizeof(fl_snap_state) +
                    n * (int64_t)(sizeof(fl_pool_info) + sizeof(fl_state_pool));
    for (int i = 0; i < n; i++) {
        fl_pool_info info;
        if (lay_pool(specs, i, l, &info, NULL) != FL_OK ||
            __builtin_add_overflow(total, info.item_bytes * info.items + FL_CACHE_LINE, &total))
            return -1;
    }
    return total;
}

static fl_status allocate(fl_state *st, fl_error *err)
{
    const fl_state_limits *l = &st->limits;
    size_t n_pages = (size_t)st->n_pages, n_seqs = (size_t)l->n_seqs;
    st->free_pages = fl_calloc(n_pages, sizeof *st->free_pages);
    st->refs = fl_calloc(n_pages, sizeof *st->refs);
    st->seqs = fl_calloc(n_seqs, sizeof *st->seqs);
    st->tables = fl_calloc(n_seqs * (size_t)st->max_pages, sizeof *st->tables);
    st->snaps = fl_calloc((size_t)l->n_snaps, sizeof *st->snaps);
    if (!st->free_pages || !st->refs || !st->seqs || !st->tables || !st->snaps)
        return FL_NOMEM;
    return fl_pools_alloc(st, err);
}

int64_t fl_state_device_bytes(const fl_state_spec *specs, int n, const fl_state_limits *l)
{
    size_t total = 0;
    for (int i = 0; i < n; i++) {
        fl_pool_info info;
        size_t bytes = 0;
        if (lay_pool(specs, i, l, &info, NULL) != FL_OK ||
            !fl_device_round((size_t)(info.item_bytes * info.items), &bytes) ||
            __builtin_add_overflow(total, info.device ? bytes : 0, &total) || total > INT64_MAX)
            return -1;
    }
    return (int64_t)total;
}

fl_status fl_state_create(const fl_state_spec *specs, int n, const fl_state_limits *limits,
                          fl_state **out, fl_error *err)
{
    *out = NULL;
    FL_TRY(check_limits(limits, n, err));
    int64_t bytes = fl_state_bytes(specs, n, limits);
    fl_state *st = fl_calloc(1, sizeof *st);
    if (!st)
        return fl_fail(err, FL_NOMEM, "no memory for a state manager");
    st->limits = *limits;
    st->limits.on_host = NULL;
    st->n_pools = n;
    st->n_pages = (int32_t)fl_pages_for(limits->n_tokens);
    st->max_pages = (int32_t)fl_pages_for(limits->max_context);
    st->info = fl_calloc((size_t)n, sizeof *st->info);
    st->pools = fl_calloc((size_t)n, sizeof *st->pools);
    fl_status status = st->info && st->pools ? FL_OK : FL_NOMEM;
    for (int i = 0; i < n && status == FL_OK; i++) {
        status = lay_pool(specs, i, limits, &st->info[i], err);
        st->recurrent |= !specs[i].paged;
    }
    if (status == FL_OK)
        status = bytes < 0 ? FL_NOMEM : allocate(st, err);
    if (status != FL_OK) {
        fl_state_destroy(st);
        if (status == FL_NOMEM)
            fl_fail(err, FL_NOMEM,
                    "no memory for a state of %lld bytes (%lld tokens, %d sequences, %d "
                    "snapshots): use a smaller cache",
                    (long long)bytes, (long long)limits->n_tokens, limits->n_seqs, limits->n_snaps);
        return status;
    }
    for (int32_t s = 0; s < limits->n_seqs; s++)
        st->seqs[s].pages = st->tables + (int64_t)s * st->max_pages;
    for (int32_t k = 0; k < limits->n_snaps; k++)
        st->snaps[k].owner = FL_NONE;
    while (st->n_free < st->n_pages) { /* low page numbers are on top */
        st->free_pages[st->n_free] = st->n_pages - 1 - st->n_free;
        st->n_free++;
    }
    *out = st;
    return FL_OK;
}

void fl_state_destroy(fl_state *st)
{
    if (!st)
        return;
    for (int i = 0; st->info && i < st->n_pools; i++)
        fl_free(st->info[i].raw);
    fl_free(st->info);
    fl_free(st->pools);
    fl_free(st->free_pages);
    fl_free(st->refs);
    fl_free(st->tables);
    fl_free(st->seqs);
    fl_free(st->snaps);
    fl_free(st);
}

const fl_state_pool *fl_state_pools(const fl_state *st)
{
    return st->pools;
}
