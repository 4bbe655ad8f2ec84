/* One call of each family of kernels on a device, held against the reference.
 *
 * A kernel that was compiled for another processor, or to nothing, gives no error: it leaves its
 * output as it was.  So a device runs this once when it is opened, before anything depends on it:
 * small calls with numbers that make every element of the result matter. */
#include "base/mem.h"
#include "ops/def/def_internal.h"
#include "ops/ops.h"
#include "ops/plugin.h"

#include <math.h>
#include <string.h>

enum { ROWS = 3, POS0 = 70, PAGES = 2, CONTEXT = 128, MAX_IN = 6, ROOM = 8 << 20 };
enum { ELEMENTS = 8192 /* of any operand, at most */ };

typedef struct trial {
    const fl_op *op;
    int n_in, n_out;
    fl_type in_type[MAX_IN], out_type[FL_MAX_OUT];
    const fl_type *types[MAX_IN];
    fl_attr attr[8];
    fl_tensor tensors[MAX_IN][2];
    float *here[MAX_IN]; /* contents of every input, ELEMENTS floats of room */
    int64_t items;       /* of the state, if there is one */
    uint32_t dice;
} trial;

/* A number around 1 in size, of either sign, never 0. */
static float number(trial *t)
{
    t->dice = t->dice * 1664525u + 1013904223u;
    float x = 0.25f + (float)(t->dice >> 9) / (float)(1 << 23);
    return t->dice & 256 ? x : -x;
}

static fl_type *add(trial *t, fl_rows rows, fl_dtype dtype, int64_t d0, int64_t d1)
{
    int i = t->n_in++;
    fl_type *type = &t->in_type[i];
    *type = (fl_type){.rows = rows, .dtype = dtype, .ndim = d1 ? 2 : 1, .n_tensors = 1};
    type->state = rows == FL_ROWS_STATE ? 0 : -1;
    type->dim[0] = d0;
    type->dim[1] = d1;
    t->types[i] = type;
    for (int64_t k = 0; k < ELEMENTS; k++)
        t->here[i][k] = number(t);
    return type;
}

static void add_weight(trial *t, fl_dtype dtype, int32_t n, int64_t d0, int64_t d1)
{
    int i = t->n_in;
    unsigned char *data = (unsigned char *)t->here[i];
    add(t, FL_ROWS_CONST, dtype, d0, d1)->n_tensors = n;
    size_t elements = (size_t)(d0 * d1), bytes = elements * (size_t)fl_dtype_bits(dtype) / 8;
    if (dtype == FL_BF16) {
        for (size_t k = 0; k < elements * (size_t)n; k++)
            ((uint16_t *)(void *)data)[k] = fl_f32_to_bf16(number(t));
    }
    unsigned char *scale = data + bytes * (size_t)n;
    for (size_t k = 0; k < elements / FL_MX_GROUP * (size_t)n && dtype == FL_MXFP4; k++)
        scale[k] = (unsigned char)(126 + k % 3);
    for (int32_t k = 0; k < n; k++) {
        t->tensors[i][k] = (fl_tensor){.dtype = dtype, .ndim = 2, .shape = {d0, d1}};
        t->tensors[i][k].data = data + (size_t)k * bytes;
        if (dtype == FL_MXFP4)
            t->tensors[i][k].scale = scale + (size_t)k * (elements / FL_MX_GROUP);
    }
}

static void add_state(trial *t, bool paged, int64_t elements)
{
    add(t, FL_ROWS_STATE, FL_F32, elements, 0)->paged = paged;
    t->items = paged ? PAGES * FL_PAGE_TOKENS : 1;
}

static void set(trial *t, int i, double value)
{
    t->attr[i].f = value;
    t->attr[i].i = (int64_t)value;
}

/* ---- the calls ---- */

static void make_rmsnorm(trial *t)
{
    add(t, FL_ROWS_TOKENS, FL_F32, 200, 0);
    set(t, FL_RMSNORM_EPS, 1e-5);
}

static void make_linear(trial *t)
{
    add(t, FL_ROWS_TOKENS, FL_F32, 160, 0);
    add_weight(t, FL_BF16, 1, 40, 160);
    add_weight(t, FL_MXFP4, 1, 40, 160);
}

static void make_experts(trial *t)
{
    add(t, FL_ROWS_TOKENS, FL_F32, 64, 0);
    add(t, FL_ROWS_TOKENS, FL_I32, 2, 0);
    for (int k = 0; k < ROWS * 2; k++)
        ((int32_t *)(void *)t->here[1])[k] = k % 2;
    add(t, FL_ROWS_TOKENS, FL_F32, 2, 0);
    add_weight(t, FL_MXFP4, 2, 32, 64);
    add_weight(t, FL_MXFP4, 2, 32, 64);
    add_weight(t, FL_MXFP4, 2, 64, 32);
    t->attr[FL_EXPERTS_ACT].text = "silu(g)*u";
}

static void make_delta_rule(trial *t)
{
    for (int i = FL_DELTA_Q; i <= FL_DELTA_G; i++)
        add(t, FL_ROWS_TOKENS, FL_F32, 2, 16);
    for (int k = 0; k < ELEMENTS; k++) { /* decays, and keys of length about 1 */
        t->here[FL_DELTA_G][k] = -fabsf(t->here[FL_DELTA_G][k]);
        t->here[FL_DELTA_K][k] *= 0.3f;
    }
    add(t, FL_ROWS_TOKENS, FL_F32, 2, 0);
    add_state(t, false, 2 * 16 * 16);
}

static void make_mla(trial *t)
{
    add(t, FL_ROWS_TOKENS, FL_F32, 4, 48);
    add_weight(t, FL_BF16, 1, 4 * (32 + 16), 32);
    add_state(t, true, 48);
    set(t, FL_MLA_V_DIM, 16);
    set(t, FL_MLA_SCALE, 0.02);
}

static void make_index_select(trial *t)
{
    add(t, FL_ROWS_TOKENS, FL_F32, 4, 32);
    add(t, FL_ROWS_TOKENS, FL_F32, 4, 0);
    add_state(t, true, 32);
    set(t, FL_INDEX_SELECT_TOPK, 20);
    set(t, FL_INDEX_SELECT_SCALE, 1);
}

static const struct {
    const char *op;
    void (*make)(trial *t);
} TRIALS[] = {{"rmsnorm", make_rmsnorm}, {"linear", make_linear},
              {"experts", make_experts}, {"delta_rule", make_delta_rule},
              {"mla", make_mla},         {"index_select", make_index_select}};
enum { N_TRIALS = sizeof TRIALS / sizeof *TRIALS };

/* ---- running ---- */

typedef struct bench {
    fl_device *device;
    unsigned char *room, *at; /* of the device, given out anew for every trial */
    float *host;              /* inputs of a trial, then two sets of results */
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

/* Runs the kernel with operands in host memory, or on the device; `out` gets its results packed. */
static fl_status run_call(bench *b, trial *t, const void *prep, const fl_kernel *k, fl_step *step,
                          bool device, float *out, fl_error *err)
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
        out += device ? 0 : ROWS * to[o].stride;
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
    if (!device) {
        fl_free_aligned(w.scratch);
        fl_free_aligned(w.shared);
        return s;
    }
    if (s == FL_OK)
        s = b->device->fn->end(b->device, err);
    for (int o = 0; s == FL_OK && o < t->n_out; o++) {
        size_t row = (size_t)to[o].stride * sizeof(float);
        s = b->device->fn->download(b->device, out, to[o].data, row, row, ROWS, err);
        out += ROWS * to[o].stride;
    }
    return s;
}

static bool same(const trial *t, const float *got, const float *want)
{
    for (int o = 0; o < t->n_out; o++) {
        int64_t n = ROWS * width_of(&t->out_type[o]);
        double off = 0, size = 0;
        if (t->out_type[o].dtype == FL_I32 && memcmp(got, want, (size_t)n * sizeof *got) != 0)
            return false;
        for (int64_t i = 0; i < n && t->out_type[o].dtype == FL_F32; i++) {
            off = fmax(off, fabs((double)got[i] - want[i]));
            size = fmax(size, fabs((double)want[i]));
        }
        if (!(off <= 1e-4 * size)) /* NaN is not */
            return false;
        got += n;
        want += n;
    }
    return true;
}

static const fl_kernel *nth_of(const fl_device *d, int i)
{
    const fl_registry own = {.lists = d->lists, .n_lists = d->n_lists};
    return fl_registry_kernel(&own, i);
}

/* All kernels of the device for one operator that are not for precision fast. */
static fl_status run_trial(bench *b, int which, fl_step *step, fl_error *err)
{
    trial t = {.op = fl_registry_op(fl_ops_registry(), TRIALS[which].op), .dice = 7};
    fl_arena arena = {0};
    const fl_kernel *k, *reference = NULL;
    const void *prep = NULL;
    float *want = b->host + MAX_IN * ELEMENTS, *got = want + ELEMENTS;
    for (int i = 0; i < MAX_IN; i++)
        t.here[i] = b->host + (size_t)i * ELEMENTS;
    for (int i = 0; i < t.op->n_attrs; i++)
        t.attr[i].text = t.op->attrs[i].text;
    TRIALS[which].make(&t);
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
    bool known = false; /* the reference changes the state, so it comes last */
    for (int i = 0; s == FL_OK && (k = nth_of(b->device, i)) != NULL; i++) {
        if (strcmp(k->op, t.op->name) != 0 || k->fast || (k->fits && !k->fits(&v)))
            continue;
        if (!known) {
            float *state = t.here[t.n_in - 1];
            memcpy(got, state, ELEMENTS * sizeof *got);
            s = run_call(b, &t, prep, reference, step, false, want, err);
            memcpy(state, got, ELEMENTS * sizeof *got);
            known = true;
        }
        memset(got, 0xff, ELEMENTS * sizeof *got);
        if (s == FL_OK)
            s = run_call(b, &t, prep, k, step, true, got, err);
        if (s == FL_OK && !same(&t, got, want))
            s = fl_fail(err, FL_DEVICE, "%s: kernel %s of %s gives wrong results", b->device->name,
                        k->name, k->op);
    }
    fl_arena_free(&arena);
    return s;
}

fl_status fl_device_self_test(fl_device *d, fl_error *err)
{
    static const int32_t ids[ROWS], row_seq[ROWS], logit_rows[ROWS] = {0, 1, 2}, pages[] = {1, 0};
    const fl_seq_rows seq = {0, ROWS, POS0, pages, 0};
    fl_step step = {.n_rows = ROWS,
                    .n_seqs = 1,
                    .n_logits = ROWS,
                    .ids = ids,
                    .row_seq = row_seq,
                    .seqs = &seq,
                    .logit_rows = logit_rows};
    bench b = {.device = d,
               .limits = {.max_rows = ROWS,
                          .max_logits = ROWS,
                          .n_threads = 1,
                          .max_context = CONTEXT,
                          .max_seqs = 1}};
    void *room;
    FL_TRY(d->fn->reserve(d, ROOM, &b.limits, err));
    FL_TRY(d->fn->alloc(d, ROOM, &room, err));
    b.room = room;
    b.host = fl_calloc((MAX_IN + 2) * (size_t)ELEMENTS, sizeof *b.host);
    if (!b.host)
        return fl_fail(err, FL_NOMEM, "no memory for the self-test");
    fl_status s = FL_OK;
    for (int i = 0; s == FL_OK && i < N_TRIALS; i++)
        s = run_trial(&b, i, &step, err);
    fl_free(b.host);
    return s;
}
