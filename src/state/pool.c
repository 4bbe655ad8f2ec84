/* The memory of the pools: each lies with the host or with a device.  Everything that touches an
 * item goes through here. */
#include "state/state_internal.h"

#include "base/mem.h"

#include <string.h>

fl_status fl_pools_alloc(fl_state *st, fl_error *err)
{
    for (int i = 0; i < st->n_pools; i++) {
        fl_device *d = st->info[i].device;
        size_t bytes = (size_t)(st->info[i].item_bytes * st->info[i].items);
        void *base;
        if (d) {
            FL_TRY(d->fn->alloc(d, bytes, &base, err));
        } else {
            base = fl_alloc_large(bytes, &st->info[i].raw); /* a cache costs what is used */
            if (!base)
                return FL_NOMEM;
        }
        st->pools[i] = (fl_state_pool){base, st->info[i].item_bytes};
    }
    return FL_OK;
}

void fl_pool_copy(fl_device *d, void *to, const void *from, int64_t bytes)
{
    if (d)
        d->fn->copy(d, to, from, (size_t)bytes);
    else
        memcpy(to, from, (size_t)bytes);
}

void fl_pool_zero(fl_device *d, void *at, int64_t bytes)
{
    if (d)
        d->fn->zero(d, at, (size_t)bytes);
    else
        memset(at, 0, (size_t)bytes);
}

fl_status fl_pool_read(fl_device *d, void *to, const void *from, int64_t bytes, fl_error *err)
{
    if (d)
        return d->fn->download(d, to, from, (size_t)bytes, (size_t)bytes, 1, err);
    memcpy(to, from, (size_t)bytes);
    return FL_OK;
}

fl_status fl_pool_write(fl_device *d, void *to, const void *from, int64_t bytes, fl_error *err)
{
    if (d)
        return d->fn->upload(d, to, from, (size_t)bytes, err);
    memcpy(to, from, (size_t)bytes);
    return FL_OK;
}
