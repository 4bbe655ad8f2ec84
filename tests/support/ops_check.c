/* Running one case through a kernel in all the ways that must agree (ops_check.h). */
#include "support/ops_check.h"
#include "support/call_device.h"

#include "base/mem.h"
#include "ops/ops.h"
#include "support/cmocka_all.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- results, copied out of a call ---- */

typedef struct result {
    uint32_t *out[FL_MAX_OUT];           /* rows x width */
    unsigned char *state[TC_MAX_STATES]; /* the pool */
} result;

static int64_t out_elements(const tc *c, int o)
{
    return tc_n_rows(c, c->out_type[o].rows) * fl_type_width(&c->out_type[o]);
}

static size_t state_bytes(const tc *c, int s)
{
    return (size_t)(c->states[s].items * c->pools[s].item_bytes);
}

static result make_result(tc *c)
{
    result r = {0};
    for (int o = 0; o < c->n_out; o++)
        r.out[o] = tc_alloc(c, (size_t)out_elements(c, o) * 4, 4);
    for (int s = 0; s < c->n_states; s++)
        r.state[s] = tc_alloc(c, state_bytes(c, s), 4);
    return r;
}

static void take(const tc *c, result *r)
{
    for (int o = 0; o < c->n_out; o++) {
        int64_t width = fl_type_width(&c->out_type[o]), rows = tc_n_rows(c, c->out_type[o].rows);
        for (int64_t i = 0; i < rows; i++)
            memcpy(r->out[o] + i * width, fl_row_f32(&c->out[o], i), (size_t)width * 4);
    }
    for (int s = 0; s < c->n_states; s++)
        memcpy(r->state[s], c->pools[s].base, state_bytes(c, s));
}

static float as_float(uint32_t bits)
{
    float x;
    memcpy(&x, &bits, 4);
    return x;
}

/* ---- one check ---- */

typedef struct check {
    const ops_gen *gen;
    tc *c;
    const fl_kernel *kernel;
    result want, whole, got; /* by the reference, by the kernel in one go, by it in another way */
    ops_magnitude magnitudes[2]; /* for kernels of precision exact, fast */
    ops_magnitude *magnitude;    /* the kernel's */
    char message[400];
} check;

static bool close_enough(uint32_t got_bits, uint32_t want_bits, float magnitude, double tolerance)
{
    float got = as_float(got_bits), want = as_float(want_bits);
    if (got_bits == want_bits || magnitude == INFINITY)
        return true;
    if (tolerance == 0)
        return false;
    if (!isfinite(want))
        return isnan(want) ? isnan(got) : got == want;
    /* The last term lets numbers vanish that a float cannot hold at full precision. */
    return fabs((double)got - want) <= tolerance * magnitude + 1e-37;
}

static bool fail_check(check *k, const char *what)
{
    snprintf(k->message, sizeof k->message, "%s", what);
    return false;
}

static bool outputs_close(check *k)
{
    for (int o = 0; o < k->c->n_out; o++) {
        const fl_type *t = &k->c->out_type[o];
        int64_t width = fl_type_width(t), n = out_elements(k->c, o);
        for (int64_t i = 0; i < n; i++) {
            uint32_t got = k->whole.out[o][i], want = k->want.out[o][i];
            float magnitude = k->magnitude->out[o][i];
            if (t->dtype == FL_I32 ? got == want
                                   : close_enough(got, want, magnitude, k->gen->tolerance))
                continue;
            int n_chars =
                snprintf(k->message, sizeof k->message, "output %d row %lld element %lld ", o,
                         (long long)(i / width), (long long)(i % width));
            if (t->dtype == FL_I32)
                snprintf(k->message + n_chars, sizeof k->message - (size_t)n_chars,
                         "is %d, expected %d", (int)got, (int)want);
            else
                snprintf(k->message + n_chars, sizeof k->message - (size_t)n_chars,
                         "is %.9g, expected %.9g: off by %.3g of magnitude %.9g", as_float(got),
                         as_float(want), (as_float(got) - as_float(want)) / magnitude, magnitude);
            return false;
        }
    }
    return true;
}

/* An item that the reference left as it was must be left so; of another only its elements may
 * change, and are compared; of a cache that is not float32, its bytes. */
static bool states_close(check *k)
{
    for (int s = 0; s < k->c->n_states; s++) {
        int64_t size = k->c->pools[s].item_bytes, n = k->c->states[s].elements;
        int64_t used = k->c->states[s].used;
        for (int64_t i = 0; i < k->c->states[s].items; i++) {
            const unsigned char *was = k->c->states[s].initial + i * size;
            const unsigned char *want = k->want.state[s] + i * size;
            const unsigned char *got = k->whole.state[s] + i * size;
            bool same = memcmp(want, was, (size_t)size) == 0;
            if (same ? memcmp(got, was, (size_t)size) != 0
                     : memcmp(got + used, was + used, (size_t)(size - used)) != 0)
                return fail_check(k, "a state item was written that is not the step's");
            if (used != n * 4 && memcmp(got, want, (size_t)used) != 0)
                return fail_check(k, "a cached row is not the one expected");
            for (int64_t e = 0; !same && used == n * 4 && e < n; e++) {
                uint32_t a = ((const uint32_t *)got)[e], b = ((const uint32_t *)want)[e];
                if (close_enough(a, b, k->magnitude->state[s][i * n + e], k->gen->tolerance))
                    continue;
                snprintf(k->message, sizeof k->message,
                         "state %d item %lld element %lld is %.9g, expected %.9g", s, (long long)i,
                         (long long)e, as_float(a), as_float(b));
                return false;
            }
        }
    }
    return true;
}

/* All NaN are one: which one comes out depends on the order of operands. */
static bool same_bits(check *k, const char *how)
{
    for (int o = 0; o < k->c->n_out; o++) {
        bool f32 = k->c->out_type[o].dtype == FL_F32;
        for (int64_t i = 0; i < out_elements(k->c, o); i++) {
            uint32_t a = k->whole.out[o][i], b = k->got.out[o][i];
            if (a == b || (f32 && isnan(as_float(a)) && isnan(as_float(b))))
                continue;
            snprintf(k->message, sizeof k->message, "output %d element %lld is %08x, and %08x %s",
                     o, (long long)i, a, b, how);
            return false;
        }
    }
    for (int s = 0; s < k->c->n_states; s++) {
        if (memcmp(k->whole.state[s], k->got.state[s], state_bytes(k->c, s)) == 0)
            continue;
        snprintf(k->message, sizeof k->message, "state %d differs %s", s, how);
        return false;
    }
    return true;
}

/* ---- the ways to run a step ---- */

static void run_sequences(check *k)
{
    for (int i = k->c->step.n_seqs - 1; i >= 0; i--) {
        const fl_seq_rows *q = &k->c->step.seqs[i];
        tc_run(k->c, k->kernel, 1, q->row0, q->row0 + q->n_rows);
    }
}

static void run_cut(check *k)
{
    for (int i = 0; i < k->c->step.n_seqs; i++) {
        const fl_seq_rows *q = &k->c->step.seqs[i];
        for (int32_t r = 0; r < q->n_rows;) {
            int32_t n =
                k->gen->grid ? FL_PAGE_TOKENS - (int32_t)((q->pos0 + r) % FL_PAGE_TOKENS) : 1;
            n = n < q->n_rows - r ? n : q->n_rows - r;
            tc_run(k->c, k->kernel, 2, q->row0 + r, q->row0 + r + n);
            r += n;
        }
    }
}

static bool run_way(check *k, int way, const char *how)
{
    tc_reset(k->c);
    if (way == 0)
        run_sequences(k);
    else if (way == 9)
        run_cut(k);
    else
        tc_run(k->c, k->kernel, way, 0, k->c->step.n_rows);
    const char *damage = tc_damage(k->c);
    if (damage) {
        snprintf(k->message, sizeof k->message, "%s (%s)", damage, how);
        return false;
    }
    take(k->c, &k->got);
    return same_bits(k, how);
}

static bool check_kernel(check *k, bool is_reference)
{
    tc *c = k->c;
    tc_reset(c);
    tc_run(c, k->kernel, 1, 0, c->step.n_rows);
    const char *damage = tc_damage(c);
    if (damage)
        return fail_check(k, damage);
    take(c, &k->whole);
    if (!is_reference && (!outputs_close(k) || !states_close(k)))
        return false;
    /* A device has one worker, and running there takes its time. */
    bool device = tc_on_device(k->kernel);
    if (!device &&
        (!run_way(k, 2, "with two workers") || !run_way(k, -3, "with three workers, last first")))
        return false;
    return run_way(k, 0, "with every sequence alone") &&
           ((device && c->step.n_rows > 16 && !k->gen->grid) ||
            run_way(k, 9, k->gen->grid ? "cut along the grid" : "row by row"));
}

/* ---- a case ---- */

/* While the reference's results are in c->out. */
static void set_magnitude(check *k, bool fast)
{
    tc *c = k->c;
    ops_magnitude *m = &k->magnitudes[fast];
    for (int o = 0; o < c->n_out; o++) {
        int64_t n = out_elements(c, o);
        m->out[o] = tc_alloc(c, (size_t)n * 4, 4);
        for (int64_t i = 0; i < n; i++)
            m->out[o][i] = fabsf(as_float(k->want.out[o][i]));
    }
    for (int s = 0; s < c->n_states; s++) {
        int64_t n = c->states[s].elements, size = c->pools[s].item_bytes;
        m->state[s] = tc_alloc(c, (size_t)(c->states[s].items * n) * 4, 4);
        for (int64_t i = 0; c->states[s].used == n * 4 && i < c->states[s].items; i++) {
            const float *item = (const float *)(k->want.state[s] + i * size);
            for (int64_t e = 0; e < n; e++)
                m->state[s][i * n + e] = fabsf(item[e]);
        }
    }
    if (k->gen->magnitude)
        k->gen->magnitude(c, fast, m);
}

static void describe(const tc *c, char *out, size_t size)
{
    size_t n = (size_t)snprintf(out, size, "%d rows of %d sequences, %d logits;", c->step.n_rows,
                                c->step.n_seqs, c->step.n_logits);
    for (int i = 0; i < c->n_in && n < size; i++) {
        char shape[64] = "-";
        if (c->in_types[i])
            fl_shape_text(c->in_type[i].dim, c->in_type[i].ndim, shape, sizeof shape);
        n += (size_t)snprintf(out + n, size - n, " %s%s",
                              c->in_types[i] ? fl_dtype_name(c->in_type[i].dtype) : "", shape);
    }
    for (int i = 0; i < c->op->n_attrs && n < size; i++) {
        if (c->op->attrs[i].kind == FL_ATTR_TEXT)
            n += (size_t)snprintf(out + n, size - n, " %s=\"%s\"", c->op->attrs[i].name,
                                  c->attr[i].text);
        else
            n += (size_t)snprintf(out + n, size - n, " %s=%g", c->op->attrs[i].name, c->attr[i].f);
    }
}

static const char *report(check *k)
{
    static char text[1600];
    char shapes[1000];
    describe(k->c, shapes, sizeof shapes);
    snprintf(text, sizeof text, "%s %s: %s\n    in %s", k->kernel->op, k->kernel->name, k->message,
             shapes);
    return text;
}

/* The kernels of the list (NULL: the registry's up to this machine's level) that fit the case.
 * Returns how many; some[fast]: whether one has that precision. */
static int kernels_that_fit(const tc *c, const fl_kernel *const *list, const fl_kernel **fit,
                            bool some[2])
{
    fl_node_view view = tc_view(c);
    const fl_kernel *k;
    int n = 0;
    for (int i = 0; (k = list ? list[i] : fl_registry_kernel(fl_ops_registry(), i)) != NULL; i++) {
        if (strcmp(k->op, c->op->name) != 0 || (!list && k->isa > fl_cpu_isa()) ||
            (k->fits && !k->fits(&view)))
            continue;
        assert_true(n < OPS_MAX_KERNELS);
        fit[n++] = k;
        some[k->fast] = true;
    }
    return n;
}

const char *ops_check(const ops_gen *g, uint64_t seed, const fl_kernel *const *list,
                      void (*ran)(void *ctx, const fl_kernel *k), void *ctx)
{
    rng random = {seed};
    tc c;
    check k = {.gen = g, .c = &c};
    const char *wrong = NULL;
    const fl_kernel *reference = tc_kernel(g->op, "ref"), *fit[OPS_MAX_KERNELS];
    bool some[2] = {false, false};
    tc_begin(&c, g->op, &random);
    g->make(&c);
    tc_finish(&c);
    int n = kernels_that_fit(&c, list, fit, some);
    if (n > 0) {
        k.want = make_result(&c);
        k.whole = make_result(&c);
        k.got = make_result(&c);
        tc_reset(&c);
        tc_run(&c, reference, 1, 0, c.step.n_rows);
        take(&c, &k.want);
        for (int fast = 0; fast < 2; fast++) {
            if (some[fast])
                set_magnitude(&k, fast);
        }
    }
    for (int i = 0; !wrong && i < n; i++) {
        k.kernel = fit[i];
        k.magnitude = &k.magnitudes[k.kernel->fast];
        if (!check_kernel(&k, k.kernel == reference))
            wrong = report(&k);
        if (ran)
            ran(ctx, k.kernel);
    }
    tc_end(&c);
    return wrong;
}

/* ---- for generators ---- */

float ops_tiny = 1e-40f;

void ops_special(tc *c, int i, bool nan)
{
    rng *r = c->random;
    int64_t width = fl_type_width(&c->in_type[i]);
    for (int64_t row = 0; row < tc_n_rows(c, c->in_type[i].rows); row++) {
        float *x = tc_f32(c, i, row), scale = 1;
        int what = (int)rng_int(r, 0, 20);
        if (what == 0)
            scale = 1e15f;
        else if (what == 1)
            scale = 1e-15f;
        else if (what == 2)
            scale = ops_tiny;
        else if (what == 3)
            scale = 0;
        for (int64_t j = 0; j < width && scale != 1; j++)
            x[j] *= scale;
        if (what == 4)
            x[rng_int(r, 0, width - 1)] = 1e15f;
        else if (what == 5)
            x[rng_int(r, 0, width - 1)] = -0.0f;
        else if (what == 6 && nan)
            x[rng_int(r, 0, width - 1)] = NAN;
    }
}

fl_rows ops_row_symbol(tc *c)
{
    return rng_one_in(c->random, 4) ? FL_ROWS_LOGITS : FL_ROWS_TOKENS;
}

fl_dtype ops_cache_type(tc *c)
{
    static const fl_dtype types[] = {FL_F32, FL_F32, FL_F32, FL_BF16, FL_F8_E4M3, FL_I8};
    return types[rng_int(c->random, 0, 5)];
}

float *ops_decode(tc *c, const fl_tensor *t)
{
    int64_t n = fl_tensor_elements(t);
    float *out = tc_alloc(c, (size_t)n * 4, 4);
    assert_int_equal(fl_tensor_to_f32(t, 0, n, out), FL_OK);
    return out;
}
