#include "support/fake_device.h"

#include "base/mem.h"
#include "ops/fused.h"
#include "support/cmocka_all.h"

#include <stdio.h>
#include <string.h>

const char *fake_device_broken;
int fake_device_alive, fake_device_repeats, fake_device_joined;
void (*fake_device_on_join)(const fl_joint *joints, int n);
size_t fake_device_reserved, fake_device_fetched;
static long fail_in;

enum { MAX_BLOCKS = 64, MAX_OPS = 64, MAX_CALLS = 1024, MAX_RECORDS = 16, MAX_ARGS = 64 };

/* No processor here can use an address with this bit alone. */
static const uintptr_t FAR = (uintptr_t)1 << 62;

typedef struct record {
    const void *owner;
    int32_t rows, logits;
    const fl_call *calls[MAX_CALLS];
    int n;
} record;

typedef struct fake {
    fl_device base;
    const fl_registry *registry;
    fl_kernel kernels[MAX_OPS];
    fl_kernel_list list;
    const fl_kernel_list *lists[1];
    unsigned char *arena;
    size_t size, used;
    void *host[MAX_BLOCKS];
    int n_host;
    bool dead;
    const fl_step *step;
    fl_limits limits;
    int n_marks;
    record *records[MAX_RECORDS], *recording, *repeating;
    int n_records;
} fake;

void fake_device_fail_at(long n)
{
    fail_in = n;
}

static fl_status fault(fake *f, bool lasting, fl_error *err)
{
    if (!f->dead && (fail_in == 0 || --fail_in > 0))
        return FL_OK;
    f->dead |= lasting;
    return fl_fail(err, FL_DEVICE, "%s: out of luck", f->base.name);
}

static void *near(const void *p)
{
    if (p && !((uintptr_t)p & FAR))
        fail_msg("an address of the host was given to the device");
    return p ? (void *)((uintptr_t)p - FAR) : NULL;
}

/* ---- memory ---- */

static void close_device(fl_device *d)
{
    fake *f = (fake *)d;
    fl_free_aligned(f->arena);
    for (int i = 0; i < f->n_host; i++)
        fl_free(f->host[i]);
    for (int i = 0; i < f->n_records; i++)
        fl_free(f->records[i]);
    fl_free(f);
    fake_device_alive--;
}

static fl_status reserve(fl_device *d, size_t bytes, const fl_limits *limits, fl_error *err)
{
    fake *f = (fake *)d;
    FL_TRY(fault(f, false, err));
    assert_true(!f->arena && limits->max_seqs > 0 && bytes <= d->memory);
    f->arena = fl_alloc_aligned(bytes, FL_DEVICE_ALIGN);
    f->size = fake_device_reserved = bytes;
    f->limits = *limits;
    if (!f->arena)
        return fl_fail(err, FL_NOMEM, "no memory");
    memset(f->arena, 0xa5, bytes);
    return FL_OK;
}

static fl_status alloc(fl_device *d, size_t bytes, void **out, fl_error *err)
{
    fake *f = (fake *)d;
    FL_TRY(fault(f, false, err));
    assert_true(fl_device_round(bytes, &bytes));
    if (bytes > f->size - f->used)
        fail_msg("%zu bytes asked for, %zu left: the prediction was wrong", bytes,
                 f->size - f->used);
    *out = (void *)((uintptr_t)(f->arena + f->used) + FAR);
    f->used += bytes;
    return FL_OK;
}

static fl_status host_alloc(fl_device *d, size_t bytes, void **out, fl_error *err)
{
    fake *f = (fake *)d;
    FL_TRY(fault(f, false, err));
    *out = fl_malloc(bytes);
    if (!*out)
        return fl_fail(err, FL_NOMEM, "no memory");
    assert_true(f->n_host < MAX_BLOCKS);
    f->host[f->n_host++] = *out;
    return FL_OK;
}

static fl_status upload(fl_device *d, void *to, const void *from, size_t bytes, fl_error *err)
{
    FL_TRY(fault((fake *)d, false, err));
    if (bytes)
        memcpy(near(to), from, bytes);
    return FL_OK;
}

static fl_status download(fl_device *d, void *to, const void *from, size_t row_bytes, size_t stride,
                          size_t rows, fl_error *err)
{
    FL_TRY(fault((fake *)d, true, err));
    fake_device_fetched += rows * row_bytes;
    for (size_t r = 0; r < rows; r++)
        memcpy((char *)to + r * row_bytes, (const char *)near(from) + r * stride, row_bytes);
    return FL_OK;
}

static void copy(fl_device *d, void *to, const void *from, size_t bytes)
{
    (void)d;
    memcpy(near(to), near(from), bytes);
}

static void zero(fl_device *d, void *at, size_t bytes)
{
    (void)d;
    memset(near(at), 0, bytes);
}

/* ---- kernels ---- */

/* An operand with near addresses; tensors has room for its tensors. */
static fl_arg near_arg(const fl_arg *a, fl_tensor **tensors)
{
    fl_arg out = *a;
    out.data = near(a->data);
    if (a->type.rows == FL_ROWS_CONST && a->tensors) {
        out.tensors = *tensors;
        for (int32_t i = 0; i < a->type.n_tensors; i++, (*tensors)++) {
            **tensors = a->tensors[i];
            (*tensors)->data = near(a->tensors[i].data);
            (*tensors)->scale = near(a->tensors[i].scale);
            (*tensors)->block_scale = near(a->tensors[i].block_scale);
        }
    }
    return out;
}

static const fl_kernel *best(const fake *f, const fl_node_view *v)
{
    const fl_kernel *k, *found = NULL;
    for (int i = 0; (k = fl_registry_kernel(f->registry, i)) != NULL; i++) {
        if (strcmp(k->op, v->op->name) == 0 && k->isa <= fl_cpu_isa() && !k->fast &&
            (!found || k->preference >= found->preference) && (!k->fits || k->fits(v)))
            found = k;
    }
    assert_non_null(found);
    return found;
}

static void make_call(const fake *f, const fl_call *call, const fl_step *far_step)
{
    fl_arg arg[MAX_ARGS];
    const fl_type *in_type[MAX_ARGS];
    fl_type out_type[FL_MAX_OUT];
    fl_state_pool pools[MAX_ARGS];
    int n_tensors = 0, n = call->n_in + call->n_out;
    assert_true(n <= MAX_ARGS);
    for (int i = 0; i < call->n_in; i++)
        n_tensors += call->in[i].type.n_tensors;
    fl_tensor *tensors = fl_calloc((size_t)n_tensors + 1, sizeof *tensors), *next = tensors;
    assert_non_null(tensors);
    fl_step step = *far_step;
    for (int i = 0; i < call->n_in; i++) {
        const fl_arg *a = &call->in[i];
        bool left_out = !a->data && a->type.rows != FL_ROWS_STATE;
        arg[i] = near_arg(a, &next);
        in_type[i] = left_out ? NULL : &a->type;
        if (a->type.rows == FL_ROWS_STATE) {
            int s = a->type.state;
            assert_true(s < MAX_ARGS);
            pools[s] = far_step->states[s];
            pools[s].base = near(pools[s].base);
        }
    }
    for (int i = 0; i < call->n_out; i++) {
        arg[call->n_in + i] = near_arg(&call->out[i], &next);
        out_type[i] = call->out[i].type;
    }
    step.states = pools;
    fl_node_view v = {.op = fl_registry_op(f->registry, call->kernel->op),
                      .n_in = call->n_in,
                      .n_out = call->n_out,
                      .in = in_type,
                      .out = out_type,
                      .attr = call->attr,
                      .prep = call->prep};
    const fl_kernel *k = best(f, &v);
    size_t own = 0, shared = 0;
    fl_limits limits = {.max_rows = step.n_rows,
                        .max_logits = step.n_logits,
                        .n_threads = 1,
                        .max_context = 1 << 14};
    if (k->scratch)
        k->scratch(&v, &limits, &own, &shared);
    fl_worker w = {.n_threads = 1,
                   .scratch = fl_alloc_aligned(own + 1, FL_CACHE_LINE),
                   .shared = fl_alloc_aligned(shared + 1, FL_CACHE_LINE)};
    fl_call here = *call;
    here.kernel = k;
    here.in = arg;
    here.out = arg + call->n_in;
    for (int phase = 0; phase < k->n_phases; phase++)
        k->run(&here, &step, phase, &w);
    fl_free_aligned(w.scratch);
    fl_free_aligned(w.shared);
    fl_free(tensors);
}

static void run(const fl_call *call, const fl_step *step, int phase, const fl_worker *worker)
{
    fake *f = worker->queue;
    (void)phase;
    assert_int_equal(worker->n_threads, 1);
    if (fake_device_broken && strcmp(call->kernel->op, fake_device_broken) == 0)
        return;
    if (f->recording) {
        assert_true(f->recording->n < MAX_CALLS);
        f->recording->calls[f->recording->n++] = call;
    }
    make_call(f, call, step);
}

/* ---- calls in one go ---- */

static bool joins(const fl_device *d, const fl_node_view *members, int n, const fl_node_view *node,
                  uint64_t inside)
{
    (void)d;
    return fl_fused_joins(members, n, node, inside);
}

static bool apart(const fake *f, const fl_arg *a, const fl_arg *b)
{
    int32_t most = f->limits.max_rows;
    const char *x = a->data, *y = b->data;
    size_t n = (size_t)(a->stride * most) * 4, m = (size_t)(b->stride * most) * 4;
    if (a->type.rows == FL_ROWS_LOGITS)
        n = (size_t)(a->stride * f->limits.max_logits) * 4;
    if (b->type.rows == FL_ROWS_LOGITS)
        m = (size_t)(b->stride * f->limits.max_logits) * 4;
    return x + n <= y || y + m <= x;
}

/* The calls of a joint may run in any order but that of who reads whom, so what one writes lies
 * apart from whatever else they read and write. */
static void check_apart(const fake *f, const fl_joint *j)
{
    for (int i = 0; i < j->n; i++) {
        const fl_arg *out = &j->calls[i]->out[0];
        assert_int_equal(j->calls[i]->n_out, 1);
        for (int k = 0; k < j->n; k++) {
            const fl_call *c = j->calls[k];
            assert_true(k == i || apart(f, out, &c->out[0]));
            for (int a = 0; a < c->n_in; a++) {
                const fl_type *t = &c->in[a].type;
                bool rows = t->rows == FL_ROWS_TOKENS || t->rows == FL_ROWS_LOGITS;
                bool of_this = rows && k > i && c->in[a].data == out->data;
                if (rows && !of_this && !apart(f, out, &c->in[a]))
                    fail_msg("%s %d of a joint writes over what %s %d reads",
                             j->calls[i]->kernel->op, i, c->kernel->op, k);
            }
        }
    }
}

static void run_joint(const fl_call *call, const fl_step *step, int phase, const fl_worker *worker)
{
    const fl_joint *j = call->prep;
    for (int i = 0; i < j->n; i++)
        run(j->calls[i], step, phase, worker);
    fake_device_joined += j->n > 1 ? j->n : 0;
}

static const fl_kernel joint_kernel = {
    .op = "joint", .name = "fake", .n_phases = 1, .run = run_joint};

static fl_status join(fl_device *d, fl_joint *joints, int n, fl_error *err)
{
    fake *f = (fake *)d;
    FL_TRY(fault(f, false, err));
    for (int i = 0; i < n; i++) {
        check_apart(f, &joints[i]);
        joints[i].call = (fl_call){.kernel = &joint_kernel, .prep = &joints[i]};
    }
    if (fake_device_on_join)
        fake_device_on_join(joints, n);
    return FL_OK;
}

/* ---- steps ---- */

static fl_status begin(fl_device *d, const void *owner, const fl_step *step, bool observed,
                       fl_pass *pass, fl_error *err)
{
    fake *f = (fake *)d;
    FL_TRY(fault(f, true, err));
    f->step = step;
    f->recording = f->repeating = NULL;
    *pass = (fl_pass){.walk = true, .step = step, .queue = f};
    if (observed || step->n_rows != step->n_seqs)
        return FL_OK;
    for (int i = 0; i < f->n_records; i++) {
        record *r = f->records[i];
        if (r->owner == owner && r->rows == step->n_rows && r->logits == step->n_logits)
            f->repeating = r;
    }
    pass->walk = !f->repeating;
    if (pass->walk && f->n_records < MAX_RECORDS) {
        record *r = fl_calloc(1, sizeof *r);
        assert_non_null(r);
        *r = (record){.owner = owner, .rows = step->n_rows, .logits = step->n_logits};
        f->recording = f->records[f->n_records++] = r;
    }
    return FL_OK;
}

static fl_status end(fl_device *d, fl_error *err)
{
    fake *f = (fake *)d;
    f->recording = NULL;
    FL_TRY(fault(f, true, err));
    for (int i = 0; f->repeating && i < f->repeating->n; i++)
        make_call(f, f->repeating->calls[i], f->step);
    fake_device_repeats += f->repeating != NULL;
    return FL_OK;
}

static fl_status wait(fl_device *d, fl_error *err)
{
    return fault((fake *)d, true, err);
}

/* Between two marks a microsecond passes. */
static void mark(fl_device *d, int i)
{
    fake *f = (fake *)d;
    assert_true(i == 0 || i == f->n_marks);
    f->n_marks = i + 1;
}

static fl_status times(fl_device *d, int n, int64_t *us, fl_error *err)
{
    fake *f = (fake *)d;
    FL_TRY(fault(f, true, err));
    assert_int_equal(n, f->n_marks);
    for (int i = 0; i < n; i++)
        us[i] = i;
    return FL_OK;
}

static const fl_device_fn functions = {.close = close_device,
                                       .reserve = reserve,
                                       .alloc = alloc,
                                       .host_alloc = host_alloc,
                                       .upload = upload,
                                       .download = download,
                                       .copy = copy,
                                       .zero = zero,
                                       .begin = begin,
                                       .end = end,
                                       .wait = wait,
                                       .joins = joins,
                                       .join = join,
                                       .mark = mark,
                                       .times = times};

static bool is_in(const char *list, const char *name)
{
    size_t n = strlen(name);
    for (const char *at = list; at && *at; at += strcspn(at, ","), at += *at == ',') {
        if (strncmp(at, name, n) == 0 && (at[n] == ',' || at[n] == 0))
            return true;
    }
    return false;
}

fl_device *fake_device_open(const fl_registry *registry, size_t memory, const char *without)
{
    fake *f = fl_calloc(1, sizeof *f);
    assert_non_null(f);
    f->registry = registry;
    f->base = (fl_device){
        .fn = &functions, .lists = f->lists, .n_lists = 1, .memory = memory, .name = "fake:0"};
    for (int i = 0; i < registry->n_ops; i++) {
        if (registry->ops[i]->view || is_in(without, registry->ops[i]->name))
            continue;
        assert_true(f->list.n < MAX_OPS);
        f->kernels[f->list.n++] =
            (fl_kernel){.op = registry->ops[i]->name, .name = "fake", .n_phases = 1, .run = run};
    }
    f->list.kernels = f->kernels;
    f->lists[0] = &f->list;
    fake_device_alive++;
    return &f->base;
}
