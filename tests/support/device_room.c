#include "support/device_room.h"

#include "support/cmocka_all.h"

void device_must(fl_status s, const fl_error *err)
{
    if (s != FL_OK)
        fail_msg("%s", err->message);
}

void device_open_room(device_room *r, fl_device *d, size_t bytes, const fl_limits *limits)
{
    fl_error err;
    void *p;
    device_must(d->fn->reserve(d, bytes, limits, &err), &err);
    device_must(d->fn->alloc(d, bytes, &p, &err), &err);
    *r = (device_room){.device = d, .base = p, .bytes = bytes};
}

unsigned char *device_take(device_room *r, size_t bytes)
{
    unsigned char *p = r->base + r->used;
    assert_true(fl_device_round(bytes, &bytes));
    if (bytes > r->bytes - r->used)
        fail_msg("the case does not fit the room of the test");
    r->used += bytes;
    return p;
}

unsigned char *device_send(device_room *r, const void *from, size_t bytes)
{
    fl_error err;
    unsigned char *p = device_take(r, bytes);
    device_must(r->device->fn->upload(r->device, p, from, bytes, &err), &err);
    return p;
}

void device_fetch(const device_room *r, void *to, const void *from, size_t bytes)
{
    fl_error err;
    device_must(r->device->fn->download(r->device, to, from, bytes, bytes, 1, &err), &err);
}

void device_run(const device_room *r, const void *key, const fl_step *step,
                const fl_call *const *calls, int n, fl_worker w)
{
    fl_pass pass;
    fl_error err;
    fl_device *d = r->device;
    device_must(d->fn->begin(d, key, step, true, &pass, &err), &err);
    w.queue = pass.queue;
    for (int i = 0; i < n; i++) {
        for (int phase = 0; phase < calls[i]->kernel->n_phases; phase++)
            calls[i]->kernel->run(calls[i], pass.step, phase, &w);
    }
    device_must(d->fn->end(d, &err), &err);
    device_must(d->fn->wait(d, &err), &err);
}
