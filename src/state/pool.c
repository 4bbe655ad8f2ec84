/* The memory of the pools: the host's, or a device's.  Everything that touches an item goes through
 * here. */
#include "state/state_internal.h"

#include "base/mem.h"

#include <string.h>

fl_status fl_pools_alloc(fl_state *st, fl_error *err)
{
    fl_device *d = st->limits.device;
    for (int i = 0; i < st->n_pools; i++) {
        size_t bytes = (size_t)(st->info[i].item_bytes * st->info[i].items);
        void *base;
        if (d) {
            FL_TRY(d->fn->alloc(d, bytes, &base, err));
        } else {
            /* fl_calloc leaves large memory to the system untouched: a cache costs what is used. */
            st->info[i].raw = base = fl_calloc(1, bytes + FL_CACHE_LINE);
            if (!base)
                return FL_NOMEM;
            uintptr_t line = (uintptr_t)base + FL_CACHE_LINE - 1;
            base = (void *)(line & ~(uintptr_t)(FL_CACHE_LINE - 1));
        }
        st->pools[i] = (fl_state_pool){base, st->info[i].item_bytes};
    }
    return FL_OK;
}

void fl_pool_copy(fl_state *st, void *to, const void *from, int64_t bytes)
{
    fl_device *d = st->limits.device;
    if (d)
        d->fn->copy(d, to, from, (size_t)bytes);
    else
        memcpy(to, from, (size_t)bytes);
}

void fl_pool_zero(fl_state *st, void *at, int64_t bytes)
{
    fl_device *d = st->limits.device;
    if (d)
        d->fn->zero(d, at, (size_t)bytes);
    else
        memset(at, 0, (size_t)bytes);
}

fl_status fl_pool_read(const fl_state *st, void *to, const void *from, int64_t bytes, fl_error *err)
{
    fl_device *d = st->limits.device;
    if (d)
        return d->fn->download(d, to, from, (size_t)bytes, (size_t)bytes, 1, err);
    memcpy(to, from, (size_t)bytes);
    return FL_OK;
}

fl_status fl_pool_write(const fl_state *st, void *to, const void *from, int64_t bytes,
                        fl_error *err)
{
    fl_device *d = st->limits.device;
    if (d)
        return d->fn->upload(d, to, from, (size_t)bytes, err);
    memcpy(to, from, (size_t)bytes);
    return FL_OK;
}
