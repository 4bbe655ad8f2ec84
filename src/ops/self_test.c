/* One call of each operator on a device, held against the reference.
 *
 * A kernel that was compiled for another processor, or to nothing, gives no error: it leaves its
 * output as it was.  So a device runs this once when it is opened, before anything depends on it:
 * small calls (self_test_trials.c) with numbers that make every element of the result matter, with
 * few rows and with a whole block of the chunk grid, through every kernel that fits. */
#include "ops/self_test_internal.h"

#include "base/mem.h"
#include "ops/ops.h"
#include "ops/plugin.h"

#include <math.h>
#include <string.h>

enum { POS0 = 64, PAGES = FL_TRIAL_PAGES, CONTEXT = PAGES * FL_PAGE_TOKENS };
enum { MAX_IN = FL_TRIAL_IN, MAX_ROWS = FL_TRIAL_ROWS, ELEMENTS = FL_TRIAL_ELEMENTS };
enum { RESULTS = 4 /* operands' worth of room for them */, FEW_ROWS = 3 };
#define ROOM ((size_t)32 << 20)

typedef struct bench {
    fl_device *device;
    unsigned char *room, *at; /* of the device, given out anew for every trial */
    float *host;              /* inputs of a trial, a copy of its state, two sets of results */
    fl_limits limits;
} bench;

static unsigned char *take(bench *b, size_t bytes)
{
    unsigned char *p = b->at;
    if (!fl_device_round(bytes, &bytes) || bytes > (size_t)(b->room + ROOM - p))
        return NULL;
    b->at += bytes;
    return p;
}

static int64_t width_of(const fl_type *t)
{
    return t->rows == FL_ROWS_STATE ? t->dim[0] : fl_type_width(t);
}

/* Runs the kernel with operands in host memory, or on the device; `out` gets its results packed,
 * and then what the state is. */
static fl_status run_call(bench *b, fl_trial *t, const void *prep, const fl_kernel *k,
                          fl_step *step, bool device, float *out, fl_error *err)
{
    fl_arg in[MAX_IN] = {0}, to[FL_MAX_OUT];
    fl_tensor tensors[MAX_IN][2];
    fl_state_pool pool = {0};
    fl_node_view v = {t->op, t->n_in, t->n_out, t->types, t->out_type, t->attr, prep};
    size_t own = 0, shared = 0, bytes = ELEMENTS * sizeof(float);
    b->at = b->room;
    for (int i = 0; i < t->n_in; i++) {
        unsigned char *data = device ? take(b, bytes) : (unsigned char *)t->here[i];
        if (!data)
            return fl_fail(err, FL_INTERNAL, "no room for the self-test");
        if (device)
            FL_TRY(b->device->fn->upload(b->device, data, t->here[i], bytes, err));
        in[i] = (fl_arg){.type = t->in_type[i], .data = data, .stride = width_of(&t->in_type[i])};
        if (in[i].type.rows == FL_ROWS_STATE)
            pool = (fl_state_pool){data, in[i].stride * (int64_t)sizeof(float)};
        if (in[i].type.rows != FL_ROWS_CONST)
            continue;
        for (int32_t e = 0; e < in[i].type.n_tensors; e++) {
            const fl_tensor *from = &t->tensors[i][e];
            ptrdiff_t skip = (const char *)from->data - (const char *)t->here[i];
            tensors[i][e] = *from;
            tensors[i][e].data = data + skip;
            if (from->scale)
                tensors[i][e].scale = data + (from->scale - (const uint8_t *)t->here[i]);
        }
        in[i].tensors = tensors[i];
        in[i].data = (void *)tensors[i][0].data;
    }
    for (int o = 0; o < t->n_out; o++) {
        to[o] = (fl_arg){.type = t->out_type[o], .stride = width_of(&t->out_type[o])};
        to[o].data = device ? (void *)take(b, bytes) : (void *)out;
        if (!to[o].data)
            return fl_fail(err, FL_INTERNAL, "no room for the self-test");
        out += device ? 0 : step->n_rows * to[o].stride;
    }
    if (k->scratch)
        k->scratch(&v, &b->limits, &own, &shared);
    fl_worker w = {.n_threads = 1};
    w.scratch = device ? (void *)take(b, own) : fl_alloc_aligned(own + 1, FL_CACHE_LINE);
    w.shared = device ? (void *)take(b, shared) : fl_alloc_aligned(shared + 1, FL_CACHE_LINE);
    fl_pass pass = {.step = step};
    fl_status s = w.scratch && w.shared ? FL_OK : fl_fail(err, FL_NOMEM, "no memory");
    step->states = &pool;
    if (device && s == FL_OK)
        s = b->device->fn->begin(b->device, NULL, step, true, &pass, err);
    w.queue = pass.queue;
    const fl_call call = {k, t->n_in, t->n_out, in, to, t->attr, prep};
    for (int phase = 0; s == FL_OK && phase < k->n_phases; phase++)
        k->run(&call, pass.step, phase, &w);
    bool state = t->state < t->n_in;
    if (!device) {
        fl_free_aligned(w.scratch);
        fl_free_aligned(w.shared);
        if (state)
            memcpy(out, t->here[t->state], bytes);
        return s;
    }
    if (s == FL_OK)
        s = b->device->fn->end(b->device, err);
    for (int o = 0; s == FL_OK && o < t->n_out; o++) {
        size_t row = (size_t)to[o].stride * sizeof(float);
        s = b->device->fn->download(b->device, out, to[o].data, row, row, (size_t)step->n_rows,
                                    err);
        out += step->n_rows * to[o].stride;
    }
    if (s == FL_OK && state)
        s = b->device->fn->download(b->device, out, in[t->state].data, bytes, bytes, 1, err);
    return s;
}

static bool near(const float *got, const float *want, int64_t n)
{
    double off = 0, size = 0;
    for (int64_t i = 0; i < n; i++) {
        double d = fabs((double)got[i] - want[i]);
        off = d <= off ? off : d; /* NaN stays */
        size = fmax(size, fabs((double)want[i]));
    }
    return off <= 1e-4 * size;
}

static bool same(const fl_trial *t, int32_t rows, const float *got, const float *want)
{
    for (int o = 0; o < t->n_out; o++) {
        int64_t n = rows * width_of(&t->out_type[o]);
        bool whole = t->out_type[o].dtype == FL_I32;
        if (whole ? memcmp(got, want, (size_t)n * sizeof *got) != 0 : !near(got, want, n))
            return false;
        got += n;
        want += n;
    }
    return t->state >= t->n_in || near(got, want, ELEMENTS);
}

static const fl_kernel *nth_of(const fl_device *d, int i)
{
    const fl_registry own = {.lists = d->lists, .n_lists = d->n_lists};
    return fl_registry_kernel(&own, i);
}

/* All kernels of the device for one operator that are not for precision fast. */
static fl_status run_trial(bench *b, const fl_trial_kind *kind, fl_step *step, fl_error *err)
{
    fl_trial t = {
        .op = fl_registry_op(fl_ops_registry(), kind->op), .state = FL_TRIAL_IN, .dice = 7};
    fl_arena arena = {0};
    const fl_kernel *k, *reference = NULL;
    const void *prep = NULL;
    float *state = b->host + MAX_IN * ELEMENTS, *want = state + ELEMENTS,
          *got = want + RESULTS * ELEMENTS;
    for (int i = 0; i < MAX_IN; i++)
        t.here[i] = b->host + (size_t)i * ELEMENTS;
    for (int i = 0; i < t.op->n_attrs; i++) {
        const fl_attr_spec *a = &t.op->attrs[i];
        t.attr[i] = (fl_attr){.i = (int64_t)a->number, .f = a->number, .text = a->text};
    }
    kind->make(&t);
    for (int i = 0; (k = fl_registry_kernel(fl_ops_registry(), i)) != NULL; i++) {
        if (strcmp(k->op, t.op->name) == 0 && strcmp(k->name, "ref") == 0)
            reference = k;
    }
    fl_node_view v = {t.op, t.n_in, 0, t.types, NULL, t.attr, NULL};
    fl_status s = t.op->infer(&v, t.out_type, &t.n_out, err);
    if (s == FL_OK && t.op->prepare)
        s = t.op->prepare(&v, &arena, &prep, err);
    v.n_out = t.n_out;
    v.out = t.out_type;
    v.prep = prep;
    bool known = false, keeps = t.state < t.n_in;
    for (int i = 0; s == FL_OK && (k = nth_of(b->device, i)) != NULL; i++) {
        if (strcmp(k->op, t.op->name) != 0 || k->fast || (k->fits && !k->fits(&v)))
            continue;
        if (!known) {
            if (keeps)
                memcpy(state, t.here[t.state], ELEMENTS * sizeof *state);
            s = run_call(b, &t, prep, reference, step, false, want, err);
            if (keeps)
                memcpy(t.here[t.state], state, ELEMENTS * sizeof *state);
            known = true;
        }
        memset(got, 0xff, RESULTS * ELEMENTS * sizeof *got);
        if (s == FL_OK)
            s = run_call(b, &t, prep, k, step, true, got, err);
        if (s == FL_OK && !same(&t, step->n_rows, got, want))
            s = fl_fail(err, FL_DEVICE, "%s: kernel %s of %s gives wrong results on %d rows",
                        b->device->name, k->name, k->op, step->n_rows);
    }
    fl_arena_free(&arena);
    return s;
}

fl_status fl_device_self_test(fl_device *d, fl_error *err)
{
    static const int32_t row_seq[MAX_ROWS], pages[PAGES] = {2, 0, 1},
                                            counts[] = {FEW_ROWS, MAX_ROWS};
    int32_t index[MAX_ROWS];
    fl_seq_rows seq = {.pos0 = POS0, .pages = pages};
    fl_step step = {
        .n_seqs = 1, .ids = index, .row_seq = row_seq, .seqs = &seq, .logit_rows = index};
    bench b = {.device = d,
               .limits = {.max_rows = MAX_ROWS,
                          .max_logits = MAX_ROWS,
                          .n_threads = 1,
                          .max_context = CONTEXT,
                          .max_seqs = 1}};
    void *room;
    for (int32_t i = 0; i < MAX_ROWS; i++)
        index[i] = i;
    FL_TRY(d->fn->reserve(d, ROOM, &b.limits, err));
    FL_TRY(d->fn->alloc(d, ROOM, &room, err));
    b.room = room;
    b.host = fl_calloc((MAX_IN + 1 + 2 * RESULTS) * (size_t)ELEMENTS, sizeof *b.host);
    if (!b.host)
        return fl_fail(err, FL_NOMEM, "no memory for the self-test");
    fl_status s = FL_OK;
    for (int i = 0; s == FL_OK && i < 2 * fl_trial_count; i++) {
        const fl_trial_kind *kind = &fl_trial_kinds[i / 2];
        step.n_rows = step.n_logits = seq.n_rows = counts[i % 2];
        if (i % 2 == 0 || !kind->few)
            s = run_trial(&b, kind, &step, err);
    }
    fl_free(b.host);
    return s;
}
