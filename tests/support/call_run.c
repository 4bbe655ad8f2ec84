/* Running one operator call (call.h) and finding what a kernel wrote that it must not. */
#include "support/call.h"

#include "support/call_device.h"
#include "support/call_internal.h"
#include "support/cmocka_all.h"

#include "base/mem.h"
#include "base/pool.h"
#include "base/taken.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

static uint64_t checksum(const unsigned char *p, size_t n)
{
    uint64_t h = 0xcbf29ce484222325u;
    for (size_t i = 0; i < n; i++)
        h = (h ^ p[i]) * 0x100000001b3u;
    return h;
}

void tc_reset(tc *c)
{
    c->damage[0] = 0;
    for (tc_block *b = c->blocks; b; b = b->next) {
        if (b->input)
            b->sum = checksum(b->data, b->bytes);
    }
    for (int o = 0; o < c->n_out; o++) {
        int64_t n = tc_n_rows(c, c->out_type[o].rows) * c->out[o].stride;
        tc_poison((unsigned char *)c->out[o].data - TC_GUARD, (size_t)n * 4 + 2 * TC_GUARD);
    }
    for (int s = 0; s < c->n_states; s++) {
        size_t bytes = (size_t)(c->states[s].items * c->pools[s].item_bytes);
        tc_poison(c->pools[s].base - TC_GUARD, bytes + 2 * TC_GUARD);
        memcpy(c->pools[s].base, c->states[s].initial, bytes);
    }
}

/* ---- running ---- */

typedef struct part { /* some rows of the step, made a step of their own */
    fl_step step;
    fl_seq_rows *seqs;
    int32_t *row_seq, *logit_rows;
    int32_t row0, logit0;
} part;

static void make_part(const tc *c, int32_t row0, int32_t row1, part *p)
{
    const fl_step *s = &c->step;
    *p = (part){.step = *s, .row0 = row0};
    p->seqs = fl_calloc((size_t)s->n_seqs, sizeof *p->seqs);
    p->row_seq = fl_calloc((size_t)(row1 - row0), sizeof *p->row_seq);
    p->logit_rows = fl_calloc((size_t)s->n_logits, sizeof *p->logit_rows);
    assert_true(p->seqs && p->row_seq && p->logit_rows);
    int32_t n = 0;
    for (int i = 0; i < s->n_seqs; i++) {
        fl_seq_rows q = s->seqs[i];
        int32_t first = q.row0 > row0 ? q.row0 : row0;
        int32_t last = q.row0 + q.n_rows < row1 ? q.row0 + q.n_rows : row1;
        if (first >= last)
            continue;
        q.pos0 += first - q.row0;
        q.row0 = first - row0;
        q.n_rows = last - first;
        for (int32_t r = first; r < last; r++)
            p->row_seq[r - row0] = n;
        p->seqs[n++] = q;
    }
    p->step.n_rows = row1 - row0;
    p->step.n_seqs = n;
    p->step.ids = s->ids + row0;
    p->step.seqs = p->seqs;
    p->step.row_seq = p->row_seq;
    p->step.logit_rows = p->logit_rows;
    p->step.n_logits = 0;
    for (int32_t i = 0; i < s->n_logits; i++) {
        if (s->logit_rows[i] < row0)
            p->logit0++;
        else if (s->logit_rows[i] < row1)
            p->logit_rows[p->step.n_logits++] = s->logit_rows[i] - row0;
    }
}

static void free_part(part *p)
{
    fl_free(p->seqs);
    fl_free(p->row_seq);
    fl_free(p->logit_rows);
}

static void shift(const part *p, const fl_arg *from, fl_arg *to, int n)
{
    for (int i = 0; i < n; i++) {
        to[i] = from[i];
        int32_t first = from[i].type.rows == FL_ROWS_TOKENS   ? p->row0
                        : from[i].type.rows == FL_ROWS_LOGITS ? p->logit0
                                                              : 0;
        if (to[i].data)
            to[i].data = (float *)to[i].data + first * to[i].stride;
    }
}

/* Scratch of n bytes, poisoned, with a guard after its last byte. */
static unsigned char *scratch(size_t n)
{
    unsigned char *p = fl_alloc_aligned(n + TC_GUARD, 64);
    assert_non_null(p);
    tc_poison(p, n + TC_GUARD);
    return p;
}

static void drop_scratch(tc *c, unsigned char *p, size_t n, const char *what)
{
    unsigned char guard[TC_GUARD + 4];
    tc_poison(guard, sizeof guard);
    if (memcmp(p + n, guard + n % 4, TC_GUARD) != 0)
        snprintf(c->damage, sizeof c->damage, "%s written beyond its %zu bytes", what, n);
    fl_free_aligned(p);
}

void tc_run(tc *c, const fl_kernel *k, int n_threads, int32_t row0, int32_t row1)
{
    enum { THREADS = 8 };
    bool backward = n_threads < 0;
    int n = backward ? -n_threads : n_threads;
    assert_in_range(n, 1, THREADS);
    part p;
    fl_arg in[TC_MAX_IN], out[FL_MAX_OUT];
    make_part(c, row0, row1, &p);
    shift(&p, c->in, in, c->n_in);
    shift(&p, c->out, out, c->n_out);
    fl_call call = {.kernel = k,
                    .n_in = c->n_in,
                    .n_out = c->n_out,
                    .in = in,
                    .out = out,
                    .attr = c->attr,
                    .prep = c->prep};
    if (tc_on_device(k)) {
        tc_run_on_device(c, &call, &p.step, p.row0, p.logit0);
        free_part(&p);
        return;
    }
    size_t per_worker = 0, shared = 0;
    fl_limits limits = c->limits;
    limits.n_threads = n;
    if (k->scratch) {
        fl_node_view v = tc_view(c);
        k->scratch(&v, &limits, &per_worker, &shared);
    }
    unsigned char *own[THREADS], *common = scratch(shared);
    for (int t = 0; t < n; t++)
        own[t] = scratch(per_worker);
    for (int phase = 0; phase < k->n_phases; phase++) {
        fl_taken taken[THREADS] = {0};
        for (int t = 0; t < n; t++) {
            int thread = backward ? n - 1 - t : t;
            fl_worker w = {.thread = thread, .n_threads = n, .taken = backward ? taken : NULL};
            w.scratch = per_worker ? own[thread] : NULL;
            w.shared = shared ? common : NULL;
            k->run(&call, &p.step, phase, &w);
        }
    }
    for (int t = 0; t < n; t++)
        drop_scratch(c, own[t], per_worker, "scratch");
    drop_scratch(c, common, shared, "shared scratch");
    free_part(&p);
}

/* ---- damage ---- */

static bool is_poison(const void *p, size_t bytes)
{
    unsigned char want[4];
    tc_poison(want, sizeof want);
    for (size_t i = 0; i < bytes; i++) {
        if (((const unsigned char *)p)[i] != want[i % 4])
            return false;
    }
    return true;
}

static const char *output_damage(tc *c, int o)
{
    const fl_arg *a = &c->out[o];
    const unsigned char *p = a->data;
    int64_t width = fl_type_width(&a->type), n = tc_n_rows(c, a->type.rows);
    if (!is_poison(p - TC_GUARD, TC_GUARD))
        return "before the first row";
    if (!is_poison(p + n * a->stride * 4, TC_GUARD))
        return "after the last row";
    for (int64_t r = 0; r < n; r++, p += a->stride * 4) {
        if (!is_poison(p + width * 4, (size_t)(a->stride - width) * 4))
            return "between rows";
        for (int64_t j = 0; j < width; j++) {
            if (is_poison(p + j * 4, 4))
                return "not at all: an element of a row was left out";
        }
    }
    return NULL;
}

const char *tc_damage(tc *c)
{
    if (c->damage[0])
        return c->damage;
    for (int o = 0; o < c->n_out; o++) {
        const char *where = output_damage(c, o);
        if (where) {
            snprintf(c->damage, sizeof c->damage, "output %d written %s", o, where);
            return c->damage;
        }
    }
    for (int s = 0; s < c->n_states; s++) {
        const unsigned char *base = c->pools[s].base;
        size_t bytes = (size_t)(c->states[s].items * c->pools[s].item_bytes);
        if (!is_poison(base - TC_GUARD, TC_GUARD) || !is_poison(base + bytes, TC_GUARD))
            return "state pool written outside its items";
    }
    for (const tc_block *b = c->blocks; b; b = b->next) {
        if (b->input && checksum(b->data, b->bytes) != b->sum)
            return "an input was written to";
    }
    return NULL;
}
