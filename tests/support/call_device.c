#include "support/call_device.h"

#include "base/mem.h"
#include "support/call_internal.h"
#include "support/cmocka_all.h"
#include "support/device_room.h"

#include <string.h>

enum { ROOM = 192 << 20, ROWS = 256, CONTEXT = 2048, MAX_POISON = 1 << 20 };

static device_room room; /* given out anew for each run */
static const fl_limits limits = {
    .max_rows = ROWS, .max_logits = ROWS, .n_threads = 1, .max_context = CONTEXT, .max_seqs = ROWS};

void tc_use_device(fl_device *d)
{
    room.device = NULL;
    if (d)
        device_open_room(&room, d, ROOM, &limits);
}

bool tc_on_device(const fl_kernel *k)
{
    for (int l = 0; room.device && l < room.device->n_lists; l++) {
        const fl_kernel_list *list = room.device->lists[l];
        if (k >= list->kernels && k < list->kernels + list->n)
            return true;
    }
    return false;
}

/* The tensors of a constant at equal distances, as a plan lays them. */
static fl_tensor *send_tensors(const fl_arg *a)
{
    int32_t n = a->type.n_tensors;
    fl_tensor *out = fl_calloc((size_t)n, sizeof *out);
    assert_non_null(out);
    for (int32_t i = 0; i < n; i++) {
        const fl_tensor *t = &a->tensors[i];
        out[i] = *t;
        int64_t elements = fl_tensor_elements(t), row = t->ndim ? t->shape[t->ndim - 1] : 1;
        size_t bytes = (size_t)fl_dtype_data_bytes(t->dtype, elements, row);
        size_t scales = (size_t)fl_dtype_bytes(t->dtype, elements, row) - bytes;
        out[i].data = device_send(&room, t->data, bytes);
        if (t->scale)
            out[i].scale = device_send(&room, t->scale, scales);
        if (t->block_scale)
            out[i].block_scale = (float *)(void *)device_send(&room, t->block_scale, scales);
    }
    return out;
}

static fl_arg send_input(const fl_arg *a, int32_t rows)
{
    fl_arg out = *a;
    if (a->type.rows == FL_ROWS_CONST && a->tensors) {
        out.tensors = send_tensors(a);
        out.data = (void *)out.tensors->data;
    } else if (a->data && rows > 0) {
        int64_t n = (rows - 1) * a->stride + fl_type_width(&a->type);
        out.data = device_send(&room, a->data, (size_t)n * 4);
    } else if (a->data) {
        out.data = room.base;
    }
    return out;
}

static void *poisoned(size_t bytes)
{
    size_t n = bytes < MAX_POISON ? bytes : MAX_POISON;
    unsigned char *poison = fl_malloc(n + 4), *p = device_take(&room, bytes);
    fl_error err;
    assert_non_null(poison);
    tc_poison(poison, n);
    device_must(room.device->fn->upload(room.device, p, poison, n, &err), &err);
    fl_free(poison);
    return p;
}

void tc_run_on_device(tc *c, const fl_call *call, const fl_step *step, int32_t row0, int32_t logit0)
{
    fl_arg in[TC_MAX_IN], out[FL_MAX_OUT];
    fl_state_pool pools[TC_MAX_STATES];
    unsigned char *there[FL_MAX_OUT], *pool_there[TC_MAX_STATES];
    size_t out_bytes[FL_MAX_OUT], pool_bytes[TC_MAX_STATES];
    room.used = 0;
    for (int i = 0; i < call->n_in; i++)
        in[i] = send_input(&call->in[i], fl_rows_now(step, call->in[i].type.rows));
    for (int o = 0; o < call->n_out; o++) {
        const fl_arg *a = &c->out[o];
        int32_t first = a->type.rows == FL_ROWS_TOKENS   ? row0
                        : a->type.rows == FL_ROWS_LOGITS ? logit0
                                                         : 0;
        out_bytes[o] = (size_t)(tc_n_rows(c, a->type.rows) * a->stride) * 4 + 2 * TC_GUARD;
        there[o] = device_send(&room, (unsigned char *)a->data - TC_GUARD, out_bytes[o]);
        out[o] = *a;
        out[o].data = there[o] + TC_GUARD + first * a->stride * 4;
    }
    for (int s = 0; s < c->n_states; s++) {
        pool_bytes[s] = (size_t)(c->states[s].items * c->pools[s].item_bytes) + 2 * TC_GUARD;
        pool_there[s] = device_send(&room, c->pools[s].base - TC_GUARD, pool_bytes[s]);
        pools[s] = (fl_state_pool){pool_there[s] + TC_GUARD, c->pools[s].item_bytes};
    }
    size_t own = 0, shared = 0;
    if (call->kernel->scratch) {
        fl_node_view v = tc_view(c);
        call->kernel->scratch(&v, &limits, &own, &shared);
    }
    fl_step far_step = *step;
    far_step.states = pools;
    fl_call far = *call;
    far.in = in;
    far.out = out;
    const fl_call *calls[] = {&far};
    const fl_worker w = {.n_threads = 1, .scratch = poisoned(own), .shared = poisoned(shared)};
    device_run(&room, NULL, &far_step, calls, 1, w);
    for (int o = 0; o < call->n_out; o++)
        device_fetch(&room, (unsigned char *)c->out[o].data - TC_GUARD, there[o], out_bytes[o]);
    for (int s = 0; s < c->n_states; s++)
        device_fetch(&room, c->pools[s].base - TC_GUARD, pool_there[s], pool_bytes[s]);
    for (int i = 0; i < call->n_in; i++) {
        if (in[i].type.rows == FL_ROWS_CONST)
            fl_free((void *)in[i].tensors);
    }
}
