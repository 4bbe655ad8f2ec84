/* The graph: building with checks and messages, folding, pruning, merging, order. */
#include "support/cmocka_all.h"

#include "base/mem.h"
#include "graph/graph_internal.h"
#include "support/fake_ops.h"
#include "support/graph_build.h"

#include <stdio.h>
#include <string.h>

static fl_graph *g;
static fl_error err;

static int setup(void **state)
{
    (void)state;
    return fl_graph_create(&fake_registry, &g, &err);
}

static int teardown(void **state)
{
    (void)state;
    fl_graph_destroy(g);
    return 0;
}

#define add(...) build_node(g, __VA_ARGS__)

/* Adds a node that must be refused with a message that has `want` in it. */
static void refuse(const char *want, const char *op, const fl_val *in, int n_in,
                   const fl_node_attr *attrs, int n_attrs)
{
    fl_val outs[FL_MAX_OUT];
    int n;
    assert_int_not_equal(fl_graph_node(g, op, "layers.3", in, n_in, attrs, n_attrs, outs, &n, &err),
                         FL_OK);
    assert_int_equal(n, 0);
    if (!strstr(err.message, want))
        fail_msg("message \"%s\" lacks \"%s\"", err.message, want);
}

static fl_val source(int64_t width)
{
    return add("source", NULL, 0, ATTRS(INT("width", width)));
}

static fl_val constant(const char *name, fl_dtype dtype, const void *data, int ndim, int64_t a,
                       int64_t b)
{
    fl_tensor t = {.dtype = dtype, .ndim = ndim, .shape = {a, b}, .data = data};
    fl_val v;
    OK(fl_graph_const(g, name, &t, 1, &v, &err));
    return v;
}

static void finish(fl_val tapped)
{
    OK(fl_graph_tap(g, "out", 0, tapped, &err));
    if (fl_graph_finish(g, &err) != FL_OK)
        fail_msg("%s", err.message);
}

/* The operator names in order: "source add". */
static const char *order(void)
{
    static char text[400];
    text[0] = 0;
    for (int i = 0; i < fl_graph_nodes(g); i++) {
        strcat(text, i ? " " : "");
        strcat(text, fl_graph_node_view(g, i).op->name);
    }
    return text;
}

/* ---- building ---- */

static void test_constants(void **state)
{
    (void)state;
    fl_val a = constant("w", FL_BF16, NULL, 2, 4, 8), v;
    assert_int_equal(constant("w", FL_BF16, NULL, 2, 4, 8), a);
    assert_int_not_equal(constant("w2", FL_BF16, NULL, 2, 4, 8), a);
    const fl_type *t = fl_graph_type(g, a);
    assert_int_equal(t->rows, FL_ROWS_CONST);
    assert_int_equal(t->dtype, FL_BF16);
    assert_int_equal(fl_type_width(t), 32);
    assert_int_equal(t->n_tensors, 1);
    assert_int_equal(t->state, -1);
    assert_null(fl_graph_type(g, FL_NONE));
    assert_null(fl_graph_type(g, 99));

    fl_tensor stack[3];
    for (int i = 0; i < 3; i++)
        stack[i] = (fl_tensor){.dtype = FL_F32, .ndim = 2, .shape = {2, 3}};
    OK(fl_graph_const(g, "stack", stack, 3, &v, &err));
    assert_int_equal(fl_graph_type(g, v)->n_tensors, 3);
    stack[2].shape[1] = 4;
    assert_int_equal(fl_graph_const(g, "uneven", stack, 3, &v, &err), FL_MODEL);
    assert_string_equal(err.message, "constant uneven: tensor 2 of the stack is F32 [2, 4], the "
                                     "first is F32 [2, 3]");
    stack[2].shape[1] = 3;
    stack[2].data = stack;
    assert_int_equal(fl_graph_const(g, "half", stack, 3, &v, &err), FL_ARGUMENT);
    assert_int_equal(fl_graph_const(g, "none", stack, 0, &v, &err), FL_ARGUMENT);
    assert_int_equal(fl_graph_const(g, "w", stack, 1, &v, &err), FL_MODEL);
    assert_non_null(strstr(err.message, "declared twice"));
    stack[0].shape[0] = INT64_MAX / 8;
    assert_int_equal(fl_graph_const(g, "huge", stack, 1, &v, &err), FL_ARGUMENT);
    stack[0].shape[0] = 0;
    assert_int_equal(fl_graph_const(g, "empty", stack, 1, &v, &err), FL_ARGUMENT);
    stack[0].ndim = 7;
    assert_int_equal(fl_graph_const(g, "deep", stack, 1, &v, &err), FL_ARGUMENT);
    fl_tensor mx = {.dtype = FL_MXFP4, .ndim = 2, .shape = {2, 32}, .data = stack};
    assert_int_equal(fl_graph_const(g, "mx", &mx, 1, &v, &err), FL_ARGUMENT);
    mx.dtype = FL_F8_BLOCK;
    assert_int_equal(fl_graph_const(g, "f8", &mx, 1, &v, &err), FL_ARGUMENT);
    assert_string_equal(err.message, "constant f8: F8_BLOCK values and scales come together");
    assert_int_equal(v, FL_NONE);
}

static void test_states(void **state)
{
    (void)state;
    fl_val a, b;
    OK(fl_graph_state(g, &(fl_state_spec){"kv", true, FL_F32, 12}, &a, &err));
    OK(fl_graph_state(g, &(fl_state_spec){"tail", false, FL_F32, 5}, &b, &err));
    assert_int_equal(fl_graph_states(g), 2);
    assert_string_equal(fl_graph_state_spec(g, 1)->name, "tail");
    assert_int_equal(fl_graph_type(g, b)->state, 1);
    assert_true(fl_graph_type(g, a)->paged);
    assert_false(fl_graph_type(g, b)->paged);
    assert_int_equal(fl_type_width(fl_graph_type(g, a)), 12);
    assert_int_equal(fl_graph_state(g, &(fl_state_spec){"kv", true, FL_F32, 12}, &a, &err),
                     FL_MODEL);
    assert_int_equal(fl_graph_state(g, &(fl_state_spec){"x", true, FL_F32, 0}, &a, &err), FL_MODEL);
    assert_int_equal(fl_graph_state(g, &(fl_state_spec){"y", true, FL_F16, 4}, &a, &err), FL_MODEL);
    assert_int_equal(fl_graph_state(g, &(fl_state_spec){"z", false, FL_BF16, 4}, &a, &err),
                     FL_MODEL);
    OK(fl_graph_state(g, &(fl_state_spec){"keys", true, FL_I8, 100}, &a, &err));
    assert_int_equal(fl_state_item_bytes(fl_graph_state_spec(g, 2)), 128);
}

static void test_attributes(void **state)
{
    (void)state;
    fl_val x = source(4);
    char note[] = "mine";
    fl_val y = add("scale", LIST(x), ATTRS(INT("by", 3), TEXT("note", note)));
    note[0] = 'X'; /* texts are copied */
    finish(y);
    const fl_attr *a = fl_graph_node_view(g, 1).attr;
    assert_true(a[0].f == 3 && a[0].set);
    assert_string_equal(a[1].text, "mine");
    assert_true(a[2].i == 1 && !a[2].set);
    assert_int_equal(a[3].i, 7);
    assert_int_equal(a[4].n, 0);
    assert_string_equal(fl_graph_node_label(g, 1), "label");
}

static void test_messages(void **state)
{
    (void)state;
    fl_val x = source(4), y = source(5), w = constant("w", FL_BF16, NULL, 2, 4, 8), s, stack;
    fl_val logits = add("gather_logits", LIST(x), NONE), ids = add("argmax", LIST(x), NONE);
    fl_tensor t[2] = {{.dtype = FL_F32, .ndim = 1, .shape = {3}},
                      {.dtype = FL_F32, .ndim = 1, .shape = {3}}};
    OK(fl_graph_const(g, "st", t, 2, &stack, &err));
    OK(fl_graph_state(g, &(fl_state_spec){"kv", true, FL_F32, 12}, &s, &err));
    refuse("layers.3: unknown operator \"nothing\"", "nothing", LIST(x), NONE);
    refuse("layers.3: add(tokens [4], tokens [5]): input 1 is [5], expected [4]", "add", LIST(x, y),
           NONE);
    refuse("linear(tokens [4], BF16 [4, 8]): input 1 (weight) is [4, 8], expected [*, 4]", "linear",
           LIST(x, w), NONE);
    refuse("total(logits [4], state [12]): input 1 (state) is not a recurrent", "total",
           LIST(logits, s), NONE);
    refuse("add(tokens I32 [1], 2 x F32 [3])", "add", LIST(ids, stack), NONE);
    refuse("2 inputs, expected 1 to 1", "split", LIST(x, x), NONE);
    refuse("1 inputs, expected 2 to 17", "linear", LIST(x), NONE);
    refuse("input 0 is not a value of this graph", "split", LIST(FL_NONE), NONE);
    refuse("input 0 is not a value of this graph", "split", LIST(77), NONE);
    refuse("input 0 is not a value of this graph", "split", LIST(-5), NONE);
    refuse("source(): attribute width is missing, expected an integer", "source", NULL, 0, NONE);
    refuse("attribute width is -3", "source", NULL, 0, ATTRS(INT("width", -3)));
    refuse("attribute width is a number, expected an integer", "source", NULL, 0,
           ATTRS(NUM("width", 3)));
    refuse("scale(tokens [4]): attribute note is an integer, expected a text", "scale", LIST(x),
           ATTRS(INT("note", 1)));
    refuse("attribute by is given twice", "scale", LIST(x), ATTRS(INT("by", 1), INT("by", 1)));
    refuse("unknown attribute \"bye\"; it has by, note, flag, count, list", "scale", LIST(x),
           ATTRS(INT("bye", 1)));
    refuse("unknown attribute \"bye\"", "add", LIST(x), ATTRS(INT("bye", 1)));
    fl_node_attr long_list = {.name = "list", .kind = FL_ATTR_INTS, .value = {.n = 7}};
    refuse("attribute list has 7 entries, at most 6", "scale", LIST(x), &long_list, 1);
    refuse("elements 2 to 6 of 4 do not exist", "view", LIST(x),
           ATTRS(INT("offset", 2), DIMS(2, 2, 2)));
    refuse("elements -1 to 1 of 4 do not exist", "view", LIST(x),
           ATTRS(INT("offset", -1), DIMS(1, 2)));
    refuse("output 0 has an impossible size", "view", LIST(x), ATTRS(DIMS(2, 2, INT64_MAX)));
    refuse("output 0 has an impossible size", "view", LIST(x), ATTRS(DIMS(1, 0)));
    refuse("infers a state", "scale", LIST(s), NONE);

    /* An optional input that is left out at the end does not count. */
    fl_val z = add("scale", LIST(x, FL_NONE), NONE);
    finish(z);
    assert_int_equal(fl_graph_node_view(g, 1).n_in, 1);
}

static void test_marks(void **state)
{
    (void)state;
    fl_val x = source(4), w = constant("w", FL_F32, NULL, 1, 4, 0), s;
    OK(fl_graph_state(g, &(fl_state_spec){"tail", false, FL_F32, 4}, &s, &err));
    assert_int_equal(fl_graph_finish(g, &err), FL_MODEL);
    assert_string_equal(err.message, "the graph has no output");
    assert_int_equal(fl_graph_tap(g, "layer", 0, w, &err), FL_MODEL);
    assert_int_equal(fl_graph_tap(g, "layer", 0, s, &err), FL_MODEL);
    assert_int_equal(fl_graph_tap(g, "layer", 0, 50, &err), FL_ARGUMENT);
    assert_int_equal(fl_graph_output(g, x, &err), FL_MODEL);
    assert_non_null(strstr(err.message, "gather_logits"));
    fl_val y = add("gather_logits", LIST(x), NONE);
    OK(fl_graph_output(g, y, &err));
    assert_int_equal(fl_graph_output(g, y, &err), FL_MODEL);
    OK(fl_graph_finish(g, &err));
    assert_int_equal(fl_graph_vocab(g), 4);
    assert_int_equal(fl_graph_finish(g, &err), FL_ARGUMENT);
    assert_int_equal(fl_graph_tap(g, "layer", 0, x, &err), FL_ARGUMENT);
    refuse("finished", "source", NULL, 0, ATTRS(INT("width", 3)));
}

/* ---- folding ---- */

static void test_fold(void **state)
{
    (void)state;
    const float a[4] = {1, 2, 3, 4}, b[4] = {10, 20, 30, 40};
    fl_val x = source(2);
    fl_val sum = add(
        "add", LIST(constant("a", FL_F32, a, 2, 2, 2), constant("b", FL_F32, b, 2, 2, 2)), NONE);
    fl_val three = add("scale", LIST(sum), ATTRS(INT("by", 3)));
    fl_val cut = add("view", LIST(three), ATTRS(INT("offset", 2), DIMS(1, 2)));
    assert_int_equal(fl_graph_type(g, cut)->rows, FL_ROWS_CONST);
    fl_val y = add("add", LIST(x, cut), NONE);
    fake_calls = 0;
    finish(y);
    assert_string_equal(order(), "source add");
    assert_int_equal(fake_calls, 2);
    fl_node_view n = fl_graph_node_view(g, 1);
    assert_int_equal(n.in[1]->rows, FL_ROWS_CONST);
    assert_int_equal(n.in[1]->ndim, 1);
}

/* Nothing is computed when any of the data is missing, but the node still goes. */
static void test_fold_without_data(void **state)
{
    (void)state;
    const float a[4] = {1, 2, 3, 4};
    fl_val x = source(4);
    fl_val sum = add(
        "add", LIST(constant("a", FL_F32, a, 1, 4, 0), constant("b", FL_F32, NULL, 1, 4, 0)), NONE);
    fl_val cut = add("view", LIST(sum), ATTRS(DIMS(2, 2, 2)));
    fake_calls = 0;
    finish(add("add", LIST(x, cut), NONE));
    assert_string_equal(order(), "source add");
    assert_int_equal(fake_calls, 0);
}

static void test_fold_refusals(void **state)
{
    (void)state;
    fl_val y = add("orphan", LIST(constant("a", FL_F32, NULL, 1, 4, 0)), NONE);
    OK(fl_graph_tap(g, "out", 0, add("add", LIST(source(4), y), NONE), &err));
    assert_int_equal(fl_graph_finish(g, &err), FL_UNSUPPORTED);
    assert_string_equal(err.message,
                        "label: orphan(F32 [4]): no reference kernel for constants of this kind");
}

/* Views of a stack of each type point at the right rows of each tensor. */
static void test_fold_views(void **state)
{
    (void)state;
    static uint8_t bytes[2][4 * 64 * 4], scales[2][8];
    const fl_dtype dtypes[] = {FL_F32, FL_BF16, FL_MXFP4};
    for (int d = 0; d < 3; d++) {
        teardown(NULL);
        setup(NULL);
        fl_tensor t[2];
        for (int k = 0; k < 2; k++) {
            for (size_t i = 0; i < sizeof bytes[k]; i++)
                bytes[k][i] = (uint8_t)(i * 37 + (size_t)k * 11) & 0x3f;
            for (int i = 0; i < 8; i++)
                scales[k][i] = (uint8_t)(120 + i + k);
            t[k] = (fl_tensor){.dtype = dtypes[d], .ndim = 2, .shape = {4, 64}, .data = bytes[k]};
            t[k].scale = dtypes[d] == FL_MXFP4 ? scales[k] : NULL;
        }
        fl_val w;
        OK(fl_graph_const(g, "w", t, 2, &w, &err));
        fl_val rows = add("view", LIST(w), ATTRS(INT("offset", 128), DIMS(2, 2, 64)));
        fl_val last = add("view", LIST(rows), ATTRS(INT("offset", 64), DIMS(2, 1, 64)));
        finish(add("linear", LIST(source(64), last), NONE));
        assert_string_equal(order(), "source linear");
        const fl_tensor *cut = g->values.data[last].tensors;
        for (int k = 0; k < 2; k++) {
            float want[64], got[64];
            OK(fl_tensor_to_f32(&t[k], 3 * 64, 64, want));
            OK(fl_tensor_to_f32(&cut[k], 0, 64, got));
            assert_memory_equal(want, got, sizeof want);
        }
    }
}

static void test_fold_mxfp4_view_refused(void **state)
{
    (void)state;
    static const uint8_t codes[64 * 4], scales[8];
    fl_tensor t = {.dtype = FL_MXFP4, .ndim = 2, .shape = {4, 64}, .data = codes, .scale = scales};
    fl_val w;
    OK(fl_graph_const(g, "w", &t, 1, &w, &err));
    fl_val part = add("view", LIST(w), ATTRS(INT("offset", 32), DIMS(2, 2, 64)));
    OK(fl_graph_tap(g, "out", 0, add("linear", LIST(source(64), part), NONE), &err));
    assert_int_equal(fl_graph_finish(g, &err), FL_MODEL);
    assert_non_null(strstr(err.message, "must take whole rows of 64"));
}

/* Rows of a matrix in blocks may be taken from where a row of blocks begins. */
static void test_fold_f8_view(void **state)
{
    (void)state;
    static uint8_t values[2][300 * 200];
    static float scales[2][3 * 2];
    fl_tensor t[2];
    for (int k = 0; k < 2; k++) {
        for (int i = 0; i < 300 * 200; i++)
            values[k][i] = (uint8_t)(i * 89 + k) & 0x77;
        for (int i = 0; i < 6; i++)
            scales[k][i] = (float)(1 + i + 6 * k);
        t[k] = (fl_tensor){.dtype = FL_F8_BLOCK, .ndim = 2, .shape = {300, 200}, .data = values[k]};
        t[k].block_scale = scales[k];
    }
    fl_val w;
    OK(fl_graph_const(g, "w", t, 2, &w, &err));
    fl_val part = add("view", LIST(w), ATTRS(INT("offset", 128 * 200), DIMS(2, 150, 200)));
    finish(add("linear", LIST(source(200), part), NONE));
    const fl_tensor *cut = g->values.data[part].tensors;
    for (int k = 0; k < 2; k++) {
        static float want[150 * 200], got[150 * 200];
        OK(fl_tensor_to_f32(&t[k], 128 * 200, 150 * 200, want));
        OK(fl_tensor_to_f32(&cut[k], 0, 150 * 200, got));
        assert_memory_equal(want, got, sizeof want);
    }
    teardown(NULL);
    setup(NULL);
    OK(fl_graph_const(g, "w", t, 2, &w, &err));
    part = add("view", LIST(w), ATTRS(INT("offset", 127 * 200), DIMS(2, 2, 200)));
    OK(fl_graph_tap(g, "out", 0, add("linear", LIST(source(200), part), NONE), &err));
    assert_int_equal(fl_graph_finish(g, &err), FL_MODEL);
    assert_non_null(strstr(err.message, "must take whole rows of 200"));
}

/* ---- pruning, merging, order ---- */

static void test_prune(void **state)
{
    (void)state;
    fl_val s, x = source(4), y = add("scale", LIST(x), NONE);
    OK(fl_graph_state(g, &(fl_state_spec){"tail", false, FL_F32, 4}, &s, &err));
    add("split", LIST(y), NONE);
    add("orphan", LIST(constant("c", FL_F32, NULL, 1, 4, 0)), NONE); /* never folded */
    add("total", LIST(y, s), NONE); /* writes a state: stays, with its input */
    fl_val z = add("argmax", LIST(x), NONE);
    add("argmax", LIST(y), NONE);
    finish(z);
    assert_string_equal(order(), "source scale total argmax");
}

static void test_merge(void **state)
{
    (void)state;
    fl_val x = source(4), outs[5], w[5];
    fl_val other = add("scale", LIST(x), NONE);
    for (int i = 0; i < 5; i++) {
        char name[8];
        snprintf(name, sizeof name, "w%d", i);
        w[i] = constant(name, i == 3 ? FL_BF16 : FL_F32, NULL, 2, i + 1, 4);
        outs[i] = add("linear", LIST(i == 4 ? other : x, w[i]), NONE);
        if (i != 1)
            OK(fl_graph_tap(g, "out", i, outs[i], &err));
    }
    fl_val unused = add("split", LIST(outs[1]), NONE);
    OK(fl_graph_tap(g, "split", 0, unused, &err));
    OK(fl_graph_finish(g, &err));
    /* w0, w1, w2 join; w3 has another type, w4 another input. */
    assert_string_equal(order(), "source scale linear linear linear split");
    fl_node_view n = fl_graph_node_view(g, 2);
    assert_int_equal(n.n_in, 4);
    assert_int_equal(n.n_out, 3);
    for (int i = 0; i < 3; i++) {
        assert_ptr_equal(fl_graph_type(g, outs[i]), &n.out[i]);
        assert_int_equal(n.out[i].dim[0], i + 1);
        assert_ptr_equal(n.in[i + 1], fl_graph_type(g, w[i]));
    }
    assert_int_equal(fl_graph_node_view(g, 3).n_in, 2);
    fl_cost cost = fl_graph_cost(g, &(fl_sizes){.rows = 10});
    assert_true(cost.flops == 2 * 10 * 4 * (1 + 2 + 3 + 4 + 5));
    assert_true(cost.weight_bytes == 4 * 4 * (1 + 2 + 3 + 4 + 5));
}

static void test_merge_is_bounded(void **state)
{
    (void)state;
    fl_val x = source(4), w = constant("w", FL_F32, NULL, 2, 3, 4);
    for (int i = 0; i < FL_MAX_OUT + 3; i++)
        OK(fl_graph_tap(g, "out", i, add("linear", LIST(x, w), NONE), &err));
    OK(fl_graph_finish(g, &err));
    assert_string_equal(order(), "source linear linear");
    assert_int_equal(fl_graph_node_view(g, 1).n_out, FL_MAX_OUT);
    assert_int_equal(fl_graph_node_view(g, 2).n_out, 3);
}

/* Matrices that are worth it are kept in 8 bits, and join each other. */
static void test_keep_q8(void **state)
{
    (void)state;
    static uint16_t data[64 * 128];
    for (int i = 0; i < 64 * 128; i++)
        data[i] = fl_f32_to_bf16((float)(i % 255 - 127));
    static const struct {
        const char *name;
        fl_dtype dtype;
        int64_t rows;
        fl_dtype want;
    } cases[] = {{"a", FL_BF16, 64, FL_Q8},
                 {"few rows", FL_BF16, 63, FL_BF16},
                 {"b", FL_BF16, 64, FL_Q8},
                 {"float", FL_F32, 32, FL_F32}};
    fl_val x = source(128), w[4];
    fl_graph_keep_q8(g);
    for (int i = 0; i < 4; i++) {
        w[i] = constant(cases[i].name, cases[i].dtype, data, 2, cases[i].rows, 128);
        OK(fl_graph_tap(g, "out", i, add("linear", LIST(x, w[i]), NONE), &err));
    }
    OK(fl_graph_finish(g, &err));
    for (int i = 0; i < 4; i++)
        assert_int_equal(fl_graph_type(g, w[i])->dtype, cases[i].want);
    assert_string_equal(order(), "source linear linear linear");
    assert_int_equal(fl_graph_node_view(g, 1).n_in, 3);
    assert_int_equal(fl_graph_saved_bytes(g), 2 * 64 * (2 * 128 - 132));
}

/* An output of a merged node that nothing reads was pruned before it could join. */
static void test_merge_after_prune(void **state)
{
    (void)state;
    fl_val x = source(4), w = constant("w", FL_F32, NULL, 2, 3, 4);
    add("linear", LIST(x, w), NONE);
    finish(add("linear", LIST(x, w), NONE));
    assert_int_equal(fl_graph_node_view(g, 1).n_out, 1);
}

/* ---- failures of memory: each allocation in turn ---- */

static fl_status build_all(fl_graph **out)
{
    static const float data[16] = {1, 2, 3};
    fl_tensor t = {.dtype = FL_F32, .ndim = 2, .shape = {4, 4}, .data = data};
    fl_val x, y, w, w2, s, outs[FL_MAX_OUT];
    fl_node_attr width = INT("width", 4), note = TEXT("note", "text");
    int n;
    FL_TRY(fl_graph_create(&fake_registry, out, &err));
    g = *out;
    FL_TRY(fl_graph_state(g, &(fl_state_spec){"tail", false, FL_F32, 4}, &s, &err));
    FL_TRY(fl_graph_const(g, "w", &t, 1, &w, &err));
    FL_TRY(fl_graph_node(g, "source", "l", NULL, 0, &width, 1, &x, &n, &err));
    FL_TRY(fl_graph_node(g, "scale", "l", &w, 1, &note, 1, &w2, &n, &err));
    for (int i = 0; i < 2; i++) {
        FL_TRY(
            fl_graph_node(g, "linear", "l", (fl_val[]){x, i ? w : w2}, 2, NULL, 0, outs, &n, &err));
        FL_TRY(fl_graph_tap(g, "linear", i, outs[0], &err));
    }
    FL_TRY(fl_graph_node(g, "total", "l", (fl_val[]){x, s}, 2, NULL, 0, outs, &n, &err));
    FL_TRY(fl_graph_node(g, "gather_logits", "l", outs, 1, NULL, 0, &y, &n, &err));
    FL_TRY(fl_graph_output(g, y, &err));
    return fl_graph_finish(g, &err);
}

static void test_no_memory(void **state)
{
    (void)state;
    int failures = 0;
    fl_status status = FL_NOMEM;
    for (long n = 1; status != FL_OK; n++) {
        fl_graph_destroy(g);
        g = NULL;
        fl_mem_fail_at(n);
        status = build_all(&g);
        fl_mem_fail_at(0);
        if (status != FL_OK) {
            assert_int_equal(status, FL_NOMEM);
            failures++;
        }
    }
    assert_true(failures > 10);
}

int main(void)
{
#define T(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
    const struct CMUnitTest tests[] = {
        T(test_constants),
        T(test_states),
        T(test_attributes),
        T(test_messages),
        T(test_marks),
        T(test_fold),
        T(test_fold_without_data),
        T(test_fold_refusals),
        T(test_fold_views),
        T(test_fold_mxfp4_view_refused),
        T(test_fold_f8_view),
        T(test_prune),
        T(test_merge),
        T(test_keep_q8),
        T(test_merge_is_bounded),
        T(test_merge_after_prune),
        T(test_no_memory),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
