/* Random graphs: whatever the passes and the memory layout do, every marked value is what a naive
 * walk over the model's own list of operations gives, bit for bit, with the workspace poisoned
 * before each step, for several steps and thread counts. */
#include "support/cmocka_all.h"

#include "base/mem.h"
#include "graph/plan.h"
#include "graph/plan_internal.h"
#include "support/fake_ops.h"
#include "support/fake_step.h"
#include "support/graph_build.h"
#include "support/rng.h"

#include <stdio.h>
#include <string.h>

enum {
    MAX_NODES = 60,
    MAX_VALUES = 150,
    MAX_WIDTH = 40,
    MAX_ROWS = 12,
    MAX_STATES = 3,
    SEEDS = 120
};

typedef enum what {
    CONST,
    SOURCE,
    ADD,
    SCALE,
    SPLIT1,
    SPLIT3,
    LINEAR,
    VIEW,
    TOTAL,
    GATHER,
    ARGMAX
} what;

typedef struct entry { /* one value, as the test knows it */
    what kind;
    fl_val v;
    fl_rows rows;
    int64_t width;
    int n_in, in[4];   /* entries */
    float by;          /* SCALE */
    int64_t offset;    /* VIEW */
    int state;         /* TOTAL */
    const float *data; /* CONST, LINEAR weights */
    bool tapped;
    float out[MAX_ROWS][MAX_WIDTH];
} entry;

typedef struct scene {
    rng r;
    uint64_t seed;
    fl_graph *g;
    int n, n_states, logits, n_taps, seen;
    fl_val states[MAX_STATES];
    int64_t state_width[MAX_STATES];
    entry e[MAX_VALUES];
    float pool[8000]; /* numbers for constants */
    fl_error err;
} scene;

static scene s; /* too large for the stack */

#define MUST(expr)                                                                                 \
    do {                                                                                           \
        if ((expr) != FL_OK)                                                                       \
            fail_msg("seed %llu: %s", (unsigned long long)s.seed, s.err.message);                  \
    } while (0)

static entry *node(const char *op, what kind, const fl_val *in, int n_in, const fl_node_attr *attrs,
                   int n_attrs)
{
    fl_val outs[FL_MAX_OUT];
    int n;
    MUST(fl_graph_node(s.g, op, "random", in, n_in, attrs, n_attrs, outs, &n, &s.err));
    entry *first = &s.e[s.n];
    for (int i = 0; i < n; i++) {
        const fl_type *t = fl_graph_type(s.g, outs[i]);
        s.e[s.n++] = (entry){.kind = (kind == SPLIT1 && i == 1) ? SPLIT3 : kind,
                             .v = outs[i],
                             .rows = t->rows,
                             .width = fl_type_width(t)};
    }
    return first;
}

/* A random entry that has the rows (or is a constant, when allowed) and the width; -1: none. */
static int find(fl_rows rows, int64_t width, bool or_const)
{
    int start = (int)rng_int(&s.r, 0, s.n - 1);
    for (int i = 0; i < s.n; i++) {
        entry *e = &s.e[(start + i) % s.n];
        bool fits = e->rows == rows || (or_const && e->rows == FL_ROWS_CONST);
        if (fits && (width == 0 || e->width == width) && e->kind != ARGMAX)
            return (int)(e - s.e);
    }
    return -1;
}

static void add_const(int64_t rows, int64_t width, entry *weight)
{
    char name[16];
    snprintf(name, sizeof name, "c%d.%d", s.n, weight != NULL);
    fl_tensor t = {
        .dtype = FL_F32, .ndim = weight ? 2 : 1, .shape = {weight ? rows : width, width}};
    t.data = &s.pool[rng_int(&s.r, 0, 8000 - rows * width)];
    fl_val v;
    MUST(fl_graph_const(s.g, name, &t, 1, &v, &s.err));
    if (weight) {
        weight->v = v;
        weight->data = t.data;
        return;
    }
    s.e[s.n] =
        (entry){.kind = CONST, .v = v, .rows = FL_ROWS_CONST, .width = width, .data = t.data};
    s.n++;
}

static void add_linear(int x)
{
    int count = (int)rng_int(&s.r, 1, 4);
    for (int i = 0; i < count; i++) {
        entry w = {0};
        int64_t rows = rng_int(&s.r, 1, MAX_WIDTH);
        add_const(rows, s.e[x].width, &w);
        entry *e = node("linear", LINEAR, LIST(s.e[x].v, w.v), NONE);
        e->n_in = 1;
        e->in[0] = x;
        e->data = w.data;
    }
}

static void add_sum(int x)
{
    fl_val in[4];
    int from[4], n = (int)rng_int(&s.r, 1, 4);
    for (int i = 0; i < n; i++) {
        from[i] = i ? find(s.e[x].rows, s.e[x].width, true) : x;
        in[i] = s.e[from[i]].v;
    }
    entry *e = node("add", ADD, in, n, NONE);
    e->n_in = n;
    memcpy(e->in, from, sizeof from);
}

static void add_total(int x)
{
    int k = (int)rng_int(&s.r, 0, MAX_STATES - 1);
    if (k >= s.n_states) {
        k = s.n_states++;
        char name[16];
        snprintf(name, sizeof name, "s%d", k);
        s.state_width[k] = s.e[x].width;
        fl_state_spec spec = {name, false, FL_F32, MAX_WIDTH};
        MUST(fl_graph_state(s.g, &spec, &s.states[k], &s.err));
    }
    entry *e = node("total", TOTAL, LIST(s.e[x].v, s.states[k]), NONE);
    e->n_in = 1;
    e->in[0] = x;
    e->state = k;
}

static void add_random(void)
{
    int x = find(rng_one_in(&s.r, 4) ? FL_ROWS_LOGITS : FL_ROWS_TOKENS, 0, true);
    if (x < 0)
        x = 0;
    entry *from = &s.e[x], *e;
    int64_t width = rng_int(&s.r, 1, MAX_WIDTH);
    switch (rng_int(&s.r, 0, 9)) {
    case 0:
        e = node("source", SOURCE, NULL, 0, ATTRS(INT("width", width)));
        return;
    case 1:
        add_const(1, rng_one_in(&s.r, 2) ? from->width : width, NULL);
        return;
    case 2:
    case 3:
        add_sum(x);
        return;
    case 4:
        e = node("scale", SCALE, LIST(from->v), ATTRS(NUM("by", 0.25)));
        e->by = 0.25f;
        break;
    case 5:
        e = node("split", SPLIT1, LIST(from->v), NONE);
        e[1].n_in = 1;
        e[1].in[0] = x;
        break;
    case 6:
        if (from->rows != FL_ROWS_CONST)
            add_linear(x);
        return;
    case 7:
        width = rng_int(&s.r, 1, from->width);
        int64_t offset = rng_int(&s.r, 0, from->width - width);
        e = node("view", VIEW, LIST(from->v), ATTRS(INT("offset", offset), DIMS(2, 1, width)));
        e->offset = offset;
        break;
    case 8:
        if (from->rows == FL_ROWS_TOKENS)
            add_total(x);
        return;
    default:
        if (from->rows == FL_ROWS_CONST)
            return;
        if (from->rows == FL_ROWS_TOKENS && rng_one_in(&s.r, 2))
            e = node("gather_logits", GATHER, LIST(from->v), NONE);
        else
            e = node("argmax", ARGMAX, LIST(from->v), NONE);
        break;
    }
    e->n_in = 1;
    e->in[0] = x;
}

static void build(void)
{
    MUST(fl_graph_create(&fake_registry, &s.g, &s.err));
    for (int i = 0; i < 8000; i++)
        s.pool[i] = rng_float(&s.r, -0.5f, 0.5f);
    node("source", SOURCE, NULL, 0, ATTRS(INT("width", rng_int(&s.r, 1, MAX_WIDTH))));
    int n = (int)rng_int(&s.r, 3, MAX_NODES);
    for (int i = 0; i < n && s.n < MAX_VALUES - 10; i++)
        add_random();
    s.logits = find(FL_ROWS_LOGITS, 0, false);
    if (s.logits >= 0)
        MUST(fl_graph_output(s.g, s.e[s.logits].v, &s.err));
    for (int i = 0; i < s.n; i++) {
        if (s.e[i].rows != FL_ROWS_CONST && (i == 0 || rng_one_in(&s.r, 3))) {
            MUST(fl_graph_tap(s.g, "value", i, s.e[i].v, &s.err));
            s.e[i].tapped = true;
        }
    }
    MUST(fl_graph_finish(s.g, &s.err));
}

/* ---- the naive walk ---- */

static void evaluate_row(entry *e, const fl_step *step, int32_t r, const float *const *in)
{
    for (int64_t i = 0; i < e->width; i++) {
        float *out = &e->out[r][i];
        float sum = 0;
        switch (e->kind) {
        case CONST:
            *out = e->data[i];
            break;
        case SOURCE:
            *out = fake_source(step->ids[r], i);
            break;
        case ADD:
            for (int k = 0; k < e->n_in; k++)
                sum += in[k][i];
            *out = sum;
            break;
        case SCALE:
            *out = e->by * in[0][i];
            break;
        case SPLIT1:
            *out = in[0][i] + 1;
            break;
        case SPLIT3:
            *out = in[0][i] * 3;
            break;
        case LINEAR:
            for (int64_t k = 0; k < s.e[e->in[0]].width; k++)
                sum += in[0][k] * e->data[i * s.e[e->in[0]].width + k];
            *out = sum;
            break;
        case VIEW:
            *out = in[0][e->offset + i];
            break;
        case GATHER:
            *out = s.e[e->in[0]].out[step->logit_rows[r]][i];
            break;
        case ARGMAX:
            *out = 0;
            for (int k = 1; k < s.e[e->in[0]].width; k++)
                *out = in[0][k] > in[0][(int)*out] ? (float)k : *out;
            break;
        case TOTAL:
            break;
        }
    }
}

static void evaluate(const fl_step *step, float sums[][FAKE_SEQS][MAX_WIDTH])
{
    for (int n = 0; n < s.n; n++) {
        entry *e = &s.e[n];
        for (int32_t r = 0; r < fl_rows_now(step, e->rows); r++) {
            const float *in[4];
            for (int k = 0; k < e->n_in; k++) {
                const entry *from = &s.e[e->in[k]];
                in[k] = from->out[from->rows == FL_ROWS_CONST ? 0 : r];
            }
            evaluate_row(e, step, r, in);
            for (int64_t i = 0; e->kind == TOTAL && i < e->width; i++) {
                float *sum = &sums[e->state][step->row_seq[r]][i];
                e->out[r][i] = *sum += in[0][i];
            }
        }
    }
}

/* ---- comparing ---- */

static void check(const entry *e, int32_t r, int64_t i, float got)
{
    if (got != e->out[r][i])
        fail_msg("seed %llu: value %d (kind %d) row %d column %d is %g, expected %g",
                 (unsigned long long)s.seed, (int)(e - s.e), e->kind, (int)r, (int)i, (double)got,
                 (double)e->out[r][i]);
}

static void see(void *ctx, const char *kind_text, int index, const fl_arg *value, int32_t rows)
{
    const fl_step *step = ctx;
    const entry *e = &s.e[index];
    assert_string_equal(kind_text, "value");
    assert_int_equal(fl_type_width(&value->type), e->width);
    assert_int_equal(rows, fl_rows_now(step, e->rows));
    for (int32_t r = 0; r < rows; r++) {
        for (int64_t i = 0; i < e->width; i++)
            check(e, r, i,
                  e->kind == ARGMAX ? (float)((int32_t *)value->data)[r * value->stride + i]
                                    : fl_row_f32(value, r)[i]);
    }
    s.seen++;
}

static void run_steps(int threads)
{
    fl_plan *plan;
    fl_pool *pool;
    fl_plan_options o = {
        .limits = {
            .max_rows = MAX_ROWS, .max_logits = 4, .n_threads = threads, .max_context = 100}};
    MUST(fl_plan_create(s.g, &o, &plan, &s.err));
    MUST(fl_plan_prepare(plan, &s.err));
    MUST(fl_pool_create(threads, &pool, &s.err));
    rng r = {s.seed};
    static float naive[MAX_STATES][FAKE_SEQS][MAX_WIDTH], sums[MAX_STATES][FAKE_SEQS][MAX_WIDTH];
    memset(naive, 0, sizeof naive);
    memset(sums, 0, sizeof sums);
    for (int k = 0; k < 3; k++) {
        fake_step f;
        int32_t rows[3];
        int n_seqs = (int)rng_int(&r, 1, 3), total = 0, expected = 0;
        for (int q = 0; q < n_seqs; q++)
            total += rows[q] = (int32_t)rng_int(&r, 1, MAX_ROWS / 3);
        fake_step_make(&f, n_seqs, rows, (int)rng_int(&r, 0, total < 4 ? total : 4));
        for (int i = 0; i < MAX_STATES; i++)
            f.pools[i] = (fl_state_pool){(unsigned char *)sums[i], sizeof sums[i][0]};
        evaluate(&f.step, naive);
        memset(plan->workspace, 0xff, plan->workspace_bytes); /* NaN, and -1 as an index */
        s.seen = 0;
        MUST(fl_plan_run(plan, pool, &f.step, see, &f.step, &s.err));
        for (int i = 0; i < s.n; i++)
            expected += s.e[i].tapped && (s.e[i].rows == FL_ROWS_TOKENS || f.step.n_logits > 0);
        assert_in_range(s.seen, expected, expected);
        const float *logits = fl_plan_logits(plan);
        for (int32_t row = 0; logits && row < f.step.n_logits; row++) {
            for (int64_t i = 0; i < s.e[s.logits].width; i++)
                check(&s.e[s.logits], row, i, logits[row * s.e[s.logits].width + i]);
        }
    }
    fl_pool_destroy(pool);
    fl_plan_destroy(plan);
}

static void test_random_graphs(void **state)
{
    (void)state;
    int merged = 0, folded = 0;
    for (uint64_t seed = 1; seed <= SEEDS; seed++) {
        memset(&s, 0, sizeof s);
        s.seed = seed;
        s.r.state = seed;
        build();
        for (int i = 0; i < fl_graph_nodes(s.g); i++) {
            fl_node_view n = fl_graph_node_view(s.g, i);
            merged += strcmp(n.op->name, "linear") == 0 && n.n_out > 1;
        }
        for (int i = 0; i < s.n; i++)
            folded += s.e[i].rows == FL_ROWS_CONST && s.e[i].kind != CONST;
        run_steps(1);
        run_steps(2 + (int)(seed % 2));
        fl_graph_destroy(s.g);
    }
    assert_true(merged > SEEDS / 10 && folded > SEEDS / 10); /* the passes had work */
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_random_graphs)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
