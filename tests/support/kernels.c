#include "support/kernels.h"

#include "support/cmocka_all.h"

#include "base/cpu.h"
#include "base/mem.h"
#include "ops/ops.h"

#include <string.h>

const fl_kernel *tk_kernel(const char *op, const char *family, int i)
{
    const fl_kernel *k;
    size_t n = strlen(family);
    for (int j = 0; (k = fl_registry_kernel(fl_ops_registry(), j)) != NULL; j++) {
        bool named = strncmp(k->name, family, n) == 0 && (k->name[n] == 0 || k->name[n] == '-');
        if (strcmp(k->op, op) == 0 && named && k->isa <= fl_cpu_isa() && i-- == 0)
            return k;
    }
    return NULL;
}

static tk_result take(tc *c)
{
    const char *damage = tc_damage(c);
    if (damage)
        fail_msg("%s: %s", c->op->name, damage);
    tk_result r = {0};
    for (int o = 0; o < c->n_out; o++)
        r.output_bytes +=
            (size_t)(tc_n_rows(c, c->out_type[o].rows) * fl_type_width(&c->out_type[o]) * 4);
    r.bytes = r.output_bytes;
    for (int s = 0; s < c->n_states; s++)
        r.bytes += (size_t)(c->states[s].items * c->pools[s].item_bytes);
    r.data = fl_malloc(r.bytes);
    assert_non_null(r.data);
    unsigned char *p = r.data;
    for (int o = 0; o < c->n_out; o++) {
        size_t width = (size_t)fl_type_width(&c->out_type[o]) * 4;
        for (int64_t i = 0; i < tc_n_rows(c, c->out_type[o].rows); i++, p += width)
            memcpy(p, fl_row_f32(&c->out[o], i), width);
    }
    for (int s = 0; s < c->n_states; s++) {
        size_t bytes = (size_t)(c->states[s].items * c->pools[s].item_bytes);
        memcpy(p, c->pools[s].base, bytes);
        p += bytes;
    }
    return r;
}

tk_result tk_run(tc *c, const fl_kernel *k, int n_threads)
{
    tc_reset(c);
    tc_run(c, k, n_threads, 0, c->step.n_rows);
    return take(c);
}

tk_result tk_run_cut(tc *c, const fl_kernel *k, int n_threads, bool grid)
{
    tc_reset(c);
    int32_t row0 = 0;
    for (int32_t r = 1; r <= c->step.n_rows; r++) {
        bool end = r == c->step.n_rows;
        if (!end && grid && fl_step_pos(&c->step, r) % FL_PAGE_TOKENS != 0 &&
            c->step.row_seq[r] == c->step.row_seq[r - 1])
            continue;
        if (end || rng_one_in(c->random, grid ? 2 : 20)) {
            tc_run(c, k, n_threads, row0, r);
            row0 = r;
        }
    }
    return take(c);
}

void tk_free(tk_result *r)
{
    fl_free(r->data);
    *r = (tk_result){0};
}

void tk_same(const tc *c, const tk_result *a, const tk_result *b, const char *what)
{
    assert_int_equal(a->bytes, b->bytes);
    for (size_t i = 0; i + 4 <= a->bytes; i += 4) {
        if (memcmp(a->data + i, b->data + i, 4) != 0) {
            float x, y;
            memcpy(&x, a->data + i, 4);
            memcpy(&y, b->data + i, 4);
            fail_msg("%s, %s: %s element %zu is %.9g, not %.9g", c->op->name, what,
                     i < a->output_bytes ? "output" : "state", i / 4, y, x);
        }
    }
}

static void close_floats(const tc *c, const unsigned char *got, const unsigned char *want, size_t n,
                         double tolerance, const char *what)
{
    double largest = 0, distance = 0;
    size_t where = 0;
    for (size_t i = 0; i < n; i++) {
        float x, y;
        uint32_t bits;
        memcpy(&x, want + i * 4, 4);
        memcpy(&y, got + i * 4, 4);
        memcpy(&bits, want + i * 4, 4);
        if (bits == TC_POISON)
            continue; /* a gap: not a number of the test */
        if (isnan(x) != isnan(y))
            fail_msg("%s, %s: element %zu is %.9g, the reference has %.9g", c->op->name, what, i, y,
                     x);
        largest = fmax(largest, fabs(x));
        if (fabs((double)x - y) > distance) {
            distance = fabs((double)x - y);
            where = i;
        }
    }
    if (distance > tolerance * largest)
        fail_msg("%s, %s: element %zu of %zu is %.3g away, the largest value is %.3g", c->op->name,
                 what, where, n, distance, largest);
}

void tk_close(const tc *c, const tk_result *got, const tk_result *want, double tolerance,
              const char *what)
{
    size_t at = 0;
    for (int o = 0; o < c->n_out; o++) {
        size_t width = (size_t)fl_type_width(&c->out_type[o]);
        for (int64_t i = 0; i < tc_n_rows(c, c->out_type[o].rows); i++, at += width * 4)
            close_floats(c, got->data + at, want->data + at, width, tolerance, what);
    }
    if (c->op->effect)
        close_floats(c, got->data + at, want->data + at, (got->bytes - at) / 4, tolerance, what);
}
