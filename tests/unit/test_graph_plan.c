/* Plans: the choice of kernels, memory, execution on several threads, taps and logits. */
#include "support/cmocka_all.h"

#include "base/mem.h"
#include "graph/plan.h"
#include "support/fake_ops.h"
#include "support/fake_step.h"
#include "support/graph_build.h"

#include <stdio.h>
#include <string.h>

static fl_graph *g;
static fl_plan *plan;
static fl_pool *pool;
static fl_error err;

static int setup(void **state)
{
    (void)state;
    g = NULL;
    plan = NULL;
    pool = NULL;
    return fl_graph_create(&fake_registry, &g, &err);
}

static int teardown(void **state)
{
    (void)state;
    fl_plan_destroy(plan);
    fl_graph_destroy(g);
    fl_pool_destroy(pool);
    return 0;
}

#define add(...) build_node(g, __VA_ARGS__)

static fl_val source(int64_t width)
{
    return add("source", NULL, 0, ATTRS(INT("width", width)));
}

static fl_plan_options options(int threads)
{
    return (fl_plan_options){
        .limits = {.max_rows = 40, .max_logits = 8, .n_threads = threads, .max_context = 100}};
}

static void prepare(int threads)
{
    fl_plan_options o = options(threads);
    OK(fl_plan_create(g, &o, &plan, &err));
    OK(fl_plan_prepare(plan, &err));
    OK(fl_pool_create(threads, &pool, &err));
}

/* ---- kernels ---- */

static const char *chosen(fl_isa isa, bool fast, const char *kernels, int node)
{
    fl_plan_options o = options(1);
    o.isa = isa;
    o.fast = fast;
    o.kernels = kernels;
    fl_plan_destroy(plan);
    if (fl_plan_create(g, &o, &plan, &err) != FL_OK)
        return err.message;
    return fl_plan_kernel(plan, node)->name;
}

static void test_choice(void **state)
{
    (void)state;
    fl_val x = source(5), y = source(4);
    OK(fl_graph_tap(g, "out", 0, add("scale", LIST(x), NONE), &err)); /* node 2 */
    OK(fl_graph_tap(g, "out", 1, add("scale", LIST(y), NONE), &err)); /* node 3 */
    OK(fl_graph_finish(g, &err));
    assert_string_equal(chosen(FL_ISA_BASE, false, NULL, 2), "ref"); /* phased wants even widths */
    assert_string_equal(chosen(FL_ISA_BASE, false, NULL, 3), "phased");
    assert_string_equal(chosen(FL_ISA_AVX2, false, NULL, 2), "wide-avx2");
    assert_string_equal(chosen(FL_ISA_AVX512, false, "", 2), "wide-avx512"); /* higher level */
    assert_string_equal(chosen(FL_ISA_VNNI, true, NULL, 2), "q8");

    /* By name, by family, and only where it fits. */
    assert_string_equal(chosen(FL_ISA_VNNI, true, "scale=ref", 3), "ref");
    assert_string_equal(chosen(FL_ISA_AVX512, true, "scale=wide", 3), "wide-avx512");
    assert_string_equal(chosen(FL_ISA_AVX2, true, "scale=wide", 3), "wide-avx2");
    assert_string_equal(chosen(FL_ISA_VNNI, false, "scale=wide-avx2", 3), "wide-avx2");
    assert_string_equal(chosen(FL_ISA_VNNI, false, "scale=only4", 3), "only4");
    assert_string_equal(chosen(FL_ISA_BASE, false, "scale=only4", 2), "ref");
    assert_string_equal(chosen(FL_ISA_BASE, false, "add=ref,scale=phased,linear=ref", 3), "phased");

    assert_string_equal(chosen(FL_ISA_VNNI, false, "skale=ref", 3),
                        "kernel choice \"skale=ref\": no operator is called so");
    assert_string_equal(chosen(FL_ISA_VNNI, false, "scal=ref", 3),
                        "kernel choice \"scal=ref\": no operator is called so");
    assert_string_equal(
        chosen(FL_ISA_VNNI, false, "add=ref,scale=wid", 3),
        "operator scale has no kernel \"wid\"; it has ref, phased, wide-avx2, wide-avx512, q8, "
        "only4");
    assert_string_equal(chosen(FL_ISA_AVX2, false, "scale=wide-avx512", 3),
                        "kernel wide-avx512 of scale needs avx512, the level in use is avx2");
    assert_string_equal(chosen(FL_ISA_AVX2, false, "scale=q8", 3),
                        "kernel q8 of scale is for precision fast only");
    assert_string_equal(chosen(FL_ISA_AVX2, false, "scale=ref,scale=ref", 3),
                        "kernel choice \"scale=ref\": scale is chosen twice");
    const char *malformed[] = {"scale", "scale=", "=ref", ",", "add=ref,,scale=ref"};
    for (size_t i = 0; i < 5; i++)
        assert_non_null(strstr(chosen(FL_ISA_BASE, false, malformed[i], 3), "OPERATOR=KERNEL"));
}

static void test_choice_fits_nothing(void **state)
{
    (void)state;
    OK(fl_graph_tap(g, "out", 0, add("scale", LIST(source(5)), NONE), &err));
    OK(fl_graph_finish(g, &err));
    assert_string_equal(chosen(FL_ISA_BASE, false, "scale=only4", 1),
                        "kernel \"only4\" fits none of the 1 nodes of scale");
}

static void test_no_kernel(void **state)
{
    (void)state;
    OK(fl_graph_tap(g, "out", 0, add("orphan", LIST(source(5)), NONE), &err));
    OK(fl_graph_finish(g, &err));
    assert_string_equal(
        chosen(FL_ISA_AVX2, false, NULL, 1),
        "label: orphan(tokens [5]): no kernel does this at level avx2 in precision exact");
}

static void test_options(void **state)
{
    (void)state;
    OK(fl_graph_tap(g, "out", 0, source(5), &err));
    fl_plan_options o = options(1);
    assert_int_equal(fl_plan_create(g, &o, &plan, &err), FL_ARGUMENT); /* not finished */
    OK(fl_graph_finish(g, &err));
    fl_limits bad[] = {
        {0, 0, 1, 1, 0}, {1, -1, 1, 1, 0}, {1, 2, 1, 1, 0}, {1, 1, 0, 1, 0}, {1, 1, 1, 0, 0}};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        o.limits = bad[i];
        assert_int_equal(fl_plan_create(g, &o, &plan, &err), FL_ARGUMENT);
        assert_null(plan);
    }
}

/* ---- memory ---- */

static void test_sizes(void **state)
{
    (void)state;
    /* 5 columns take 16; a chain needs two at a time, whatever its length. */
    fl_val x = source(5);
    for (int i = 0; i < 10; i++)
        x = add("split", LIST(x), NONE);
    OK(fl_graph_tap(g, "out", 0, x, &err));
    OK(fl_graph_finish(g, &err));
    fl_plan_options o = options(1);
    OK(fl_plan_create(g, &o, &plan, &err));
    assert_int_equal(fl_plan_calls(plan), 11);
    assert_int_equal(fl_plan_workspace_bytes(plan), 3 * 40 * 16 * 4);
    assert_null(fl_plan_logits(plan));
    assert_int_equal(fl_plan_run(plan, NULL, NULL, NULL, NULL, &err), FL_ARGUMENT);
    assert_non_null(strstr(err.message, "not prepared"));
    fl_plan_destroy(plan);

    o.limits.max_rows = INT32_MAX;
    OK(fl_plan_create(g, &o, &plan, &err)); /* predicting needs no memory */
    assert_true(fl_plan_workspace_bytes(plan) == (size_t)3 * INT32_MAX * 64);
}

static void test_scratch_is_shared_by_calls(void **state)
{
    (void)state;
    fl_val x = source(32);
    for (int i = 0; i < 10; i++)
        x = add("scale", LIST(x), NONE);
    OK(fl_graph_tap(g, "out", 0, x, &err));
    OK(fl_graph_finish(g, &err));
    fl_plan_options o = options(3);
    OK(fl_plan_create(g, &o, &plan, &err));
    size_t row = 32 * 4;
    assert_int_equal(fl_plan_workspace_bytes(plan), 2 * 40 * row + 3 * row + 40 * row);
}

static void test_too_large(void **state)
{
    (void)state;
    fl_val x = source((int64_t)1 << 55);
    OK(fl_graph_tap(g, "out", 0, x, &err));
    OK(fl_graph_finish(g, &err));
    fl_plan_options o = options(1);
    o.limits.max_rows = 1000;
    assert_int_equal(fl_plan_create(g, &o, &plan, &err), FL_NOMEM);
    o.limits.max_rows = 1;
    o.limits.max_logits = 0;
    OK(fl_plan_create(g, &o, &plan, &err));
    fl_mem_fail_at(1); /* what the system would say, without asking it for 128 petabytes */
    assert_int_equal(fl_plan_prepare(plan, &err), FL_NOMEM);
    fl_mem_fail_at(0);
    assert_string_equal(err.message, "no memory for a workspace of 144115188075855872 bytes; "
                                     "fewer rows per step need less");
}

/* ---- running ---- */

typedef struct seen {
    int n;
    char text[200];
} seen;

static void note(void *ctx, const char *kind, int index, const fl_arg *value, int32_t rows)
{
    seen *s = ctx;
    char piece[64];
    double first = value->type.dtype == FL_I32
                       ? ((int32_t *)value->data)[(rows - 1) * value->stride]
                       : (double)fl_row_f32(value, rows - 1)[0];
    snprintf(piece, sizeof piece, "%s%d:%dx%d=%g ", kind, index, (int)rows,
             (int)fl_type_width(&value->type), first);
    strcat(s->text, piece);
    s->n++;
}

/* Taps see values and views in the order of the nodes, constants take part, folding is right. */
static void test_taps(void **state)
{
    (void)state;
    const float a[4] = {1, 2, 3, 4};
    fl_tensor t = {.dtype = FL_F32, .ndim = 1, .shape = {4}, .data = a};
    fl_val c, x = source(4);
    OK(fl_graph_const(g, "a", &t, 1, &c, &err));
    fl_val c3 = add("scale", LIST(c), ATTRS(INT("by", 3)));
    fl_val c2 = add("view", LIST(c3), ATTRS(INT("offset", 2), DIMS(1, 2)));
    fl_val tail = add("view", LIST(x), ATTRS(INT("offset", 2), DIMS(2, 1, 2)));
    fl_val y = add("add", LIST(tail, c2), NONE);
    fl_val best = add("argmax", LIST(y), NONE);
    fl_val last = add("view", LIST(tail), ATTRS(INT("offset", 1), DIMS(1, 1)));
    fl_val z = add("gather_logits", LIST(y), NONE);
    OK(fl_graph_output(g, z, &err));
    OK(fl_graph_tap(g, "best", 1, best, &err));
    OK(fl_graph_tap(g, "y", 2, y, &err));
    OK(fl_graph_tap(g, "last", 3, last, &err));
    OK(fl_graph_tap(g, "z", 4, z, &err));
    OK(fl_graph_tap(g, "x", 5, x, &err));
    OK(fl_graph_finish(g, &err));
    for (int threads = 1; threads <= 3; threads++) {
        fl_plan_destroy(plan);
        fl_pool_destroy(pool);
        prepare(threads);
        assert_null(fl_plan_kernel(plan, 1)); /* a view */
        fake_step s;
        fake_step_make(&s, 2, (const int32_t[]){3, 2}, 2);
        seen log = {0};
        OK(fl_plan_run(plan, pool, &s.step, note, &log, &err));
        float x0 = fake_source(s.step.ids[4], 0), y0 = fake_source(s.step.ids[4], 2) + 9;
        float x3 = fake_source(s.step.ids[4], 3);
        char want[200];
        snprintf(want, sizeof want, "last3:5x1=%g x5:5x4=%g y2:5x2=%g best1:5x1=1 z4:2x2=%g ", x3,
                 x0, y0, y0);
        assert_string_equal(log.text, want);
        assert_true(fl_plan_logits(plan)[2] == y0);
        assert_true(fl_plan_logits(plan)[3] == x3 + 12);

        /* Without logits the nodes over them do not run, and nobody sees them. */
        s.step.n_logits = 0;
        fake_calls = 0;
        log = (seen){0};
        OK(fl_plan_run(plan, pool, &s.step, note, &log, &err));
        assert_int_equal(fake_calls, fl_plan_calls(plan) - 1);
        assert_int_equal(log.n, 4);
        OK(fl_plan_run(plan, pool, &s.step, NULL, NULL, &err));
    }
}

/* Logits are packed rows, also as a view of the whole or of a part of a wider value. */
static void test_logits(void **state)
{
    (void)state;
    for (int form = 0; form < 3; form++) {
        teardown(NULL);
        setup(NULL);
        fl_val x = source(7), y = add("gather_logits", LIST(x), NONE);
        if (form == 1)
            y = add("view", LIST(y), ATTRS(DIMS(2, 1, 7)));
        if (form == 2)
            y = add("view", LIST(y), ATTRS(INT("offset", 3), DIMS(1, 4)));
        OK(fl_graph_output(g, y, &err));
        add("split", LIST(y), NONE);
        OK(fl_graph_finish(g, &err));
        int64_t vocab = fl_graph_vocab(g), skip = form == 2 ? 3 : 0;
        assert_int_equal(vocab, form == 2 ? 4 : 7);
        prepare(2);
        fake_step s;
        fake_step_make(&s, 2, (const int32_t[]){9, 4}, 3);
        OK(fl_plan_run(plan, pool, &s.step, NULL, NULL, &err));
        const float *logits = fl_plan_logits(plan);
        for (int32_t r = 0; r < s.step.n_logits; r++) {
            for (int64_t i = 0; i < vocab; i++)
                assert_true(logits[r * vocab + i] ==
                            fake_source(s.step.ids[s.step.logit_rows[r]], i + skip));
        }
    }
}

/* Nodes of one state run in the order in which they were made, and carry over between steps. */
static void test_state_order(void **state)
{
    (void)state;
    fl_val s, x = source(1);
    OK(fl_graph_state(g, &(fl_state_spec){"sum", false, FL_F32, 1}, &s, &err));
    fl_val first = add("total", LIST(x, s), NONE);
    fl_val second = add("total", LIST(x, s), NONE);
    OK(fl_graph_tap(g, "second", 0, second, &err));
    OK(fl_graph_tap(g, "first", 0, first, &err));
    OK(fl_graph_finish(g, &err));
    for (int threads = 1; threads <= 3; threads++) {
        fl_plan_destroy(plan);
        fl_pool_destroy(pool);
        prepare(threads);
        fake_step f;
        fake_step_make(&f, 2, (const int32_t[]){2, 1}, 0);
        float sums[2] = {0}, want = 0;
        f.pools[0] = (fl_state_pool){(unsigned char *)sums, sizeof *sums};
        char text[100];
        for (int step = 0; step < 3; step++) {
            seen log = {0};
            float one = fake_source(f.step.ids[2], 0);
            OK(fl_plan_run(plan, pool, &f.step, note, &log, &err));
            snprintf(text, sizeof text, "first0:3x1=%g second0:3x1=%g ", want + one,
                     want + 2 * one);
            assert_string_equal(log.text, text);
            want += 2 * one;
        }
    }
}

static void bad_step(const fake_step *s, const char *want)
{
    assert_int_equal(fl_plan_run(plan, pool, &s->step, NULL, NULL, &err), FL_ARGUMENT);
    if (!strstr(err.message, want))
        fail_msg("message \"%s\" lacks \"%s\"", err.message, want);
}

static void test_bad_steps(void **state)
{
    (void)state;
    fl_val kv, x = source(4);
    OK(fl_graph_state(g, &(fl_state_spec){"kv", true, FL_F32, 3}, &kv, &err));
    OK(fl_graph_output(g, add("gather_logits", LIST(x), NONE), &err));
    OK(fl_graph_finish(g, &err));
    prepare(1);
    float item[3];
    fake_step s;
#define FRESH()                                                                                    \
    (fake_step_make(&s, 2, (const int32_t[]){3, 2}, 2),                                            \
     s.pools[0] = (fl_state_pool){(unsigned char *)item, sizeof item})
    FRESH();
    OK(fl_plan_run(plan, pool, &s.step, NULL, NULL, &err));
    s.step.n_rows = 0;
    bad_step(&s, "0 rows, the plan is made for 1 to 40");
    s.step.n_rows = 41;
    bad_step(&s, "41 rows");
    FRESH();
    s.step.n_logits = 9;
    bad_step(&s, "9 logits, the plan is made for up to 8");
    s.step.n_logits = -1;
    bad_step(&s, "-1 logits");
    FRESH();
    s.logit_rows[1] = s.logit_rows[0];
    bad_step(&s, "logits wanted of row");
    s.logit_rows[1] = 5;
    bad_step(&s, "logits wanted of row 5");
    FRESH();
    s.seqs[1].row0 = 2;
    bad_step(&s, "sequence 1 of the step has rows 2 + 2, expected to start at 3");
    FRESH();
    s.seqs[1].n_rows = 3;
    bad_step(&s, "sequence 1 of the step has rows 3 + 3");
    FRESH();
    s.step.n_seqs = 1;
    bad_step(&s, "the sequences of the step have 3 rows, the step 5");
    FRESH();
    s.row_seq[3] = 0;
    bad_step(&s, "row 3 is said to be of sequence 0, not 1");
    FRESH();
    s.seqs[0].pos0 = 98;
    bad_step(&s, "sequence 0 of the step reaches position 100, the context is 100");
    s.seqs[0].pos0 = -1;
    bad_step(&s, "reaches position");
    FRESH();
    s.seqs[1].pages = NULL;
    bad_step(&s, "sequence 1 of the step has no slot or pages");
    FRESH();
    s.seqs[1].slot = -1;
    bad_step(&s, "no slot or pages");
    FRESH();
    s.pools[0].item_bytes = 8;
    bad_step(&s, "no pool of 12 bytes an item for kv");
    s.step.states = NULL;
    bad_step(&s, "no pool");
    FRESH();
    fl_pool *two;
    OK(fl_pool_create(2, &two, &err));
    assert_int_equal(fl_plan_run(plan, two, &s.step, NULL, NULL, &err), FL_ARGUMENT);
    assert_string_equal(err.message, "a pool of 2 threads, the plan is made for 1");
    fl_pool_destroy(two);
}

static void test_no_memory(void **state)
{
    (void)state;
    fl_val x = source(6), y = add("gather_logits", LIST(add("scale", LIST(x), NONE)), NONE);
    OK(fl_graph_output(g, add("view", LIST(y), ATTRS(DIMS(1, 2))), &err));
    OK(fl_graph_tap(g, "x", 0, x, &err));
    OK(fl_graph_finish(g, &err));
    fl_plan_options o = options(1);
    int failures = 0;
    fl_status status = FL_NOMEM;
    for (long n = 1; status != FL_OK; n++) {
        fl_plan_destroy(plan);
        fl_mem_fail_at(n);
        status = fl_plan_create(g, &o, &plan, &err);
        if (status == FL_OK)
            status = fl_plan_prepare(plan, &err);
        fl_mem_fail_at(0);
        failures += status == FL_NOMEM;
        assert_true(status == FL_OK || status == FL_NOMEM);
    }
    assert_true(failures >= 5);
    fake_step s; /* the plan that got through works, without another allocation */
    fake_step_make(&s, 1, (const int32_t[]){3}, 1);
    OK(fl_pool_create(1, &pool, &err));
    long before = fl_mem_count();
    OK(fl_plan_run(plan, pool, &s.step, NULL, NULL, &err));
    assert_int_equal(fl_mem_count(), before);
}

int main(void)
{
#define T(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
    const struct CMUnitTest tests[] = {
        T(test_choice),    T(test_choice_fits_nothing),
        T(test_no_kernel), T(test_options),
        T(test_sizes),     T(test_scratch_is_shared_by_calls),
        T(test_too_large), T(test_taps),
        T(test_logits),    T(test_state_order),
        T(test_bad_steps), T(test_no_memory),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
