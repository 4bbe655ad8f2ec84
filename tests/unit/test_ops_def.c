/* The rules of the operators: output types, refusals and their words, costs. */
#include "support/call.h"
#include "support/cmocka_all.h"

#include "ops/def/def_internal.h"
#include "ops/ops.h"

#include <stdio.h>
#include <string.h>

#define DIM(...) ((const int64_t[]){__VA_ARGS__})

static rng random_numbers = {7};

static void begin(tc *c, const char *op)
{
    tc_begin(c, op, &random_numbers);
    tc_step(c, 2, (const int[]){2, 1}, (const int64_t[]){0, 5});
}

static int rows(tc *c, int ndim, const int64_t *dim)
{
    return tc_rows(c, FL_ROWS_TOKENS, FL_F32, ndim, dim);
}

static void shape_is(const fl_type *t, fl_rows symbol, const char *want)
{
    char text[64];
    assert_int_equal(t->rows, symbol);
    assert_string_equal(fl_shape_text(t->dim, t->ndim, text, sizeof text), want);
}

/* The case is refused in these words; then it is given back. */
static void refused(tc *c, const char *words)
{
    fl_error err = {0};
    assert_int_equal(tc_try_infer(c, &err), FL_MODEL);
    assert_string_equal(err.message, words);
    tc_end(c);
}

static void test_messages(void **state)
{
    (void)state;
    tc c;
    begin(&c, "linear");
    rows(&c, 2, DIM(4, 4));
    tc_const(&c, FL_BF16, 1, 2, DIM(4, 8));
    refused(&c, "input 1 (weight) is a constant BF16 [4, 8], expected a constant F32, BF16, "
                "F16, MXFP4, F8_BLOCK or Q8 [*, 16]");
    begin(&c, "linear");
    rows(&c, 1, DIM(33));
    tc_const(&c, FL_MXFP4, 1, 2, DIM(32, 33));
    refused(&c, "input 1 is MXFP4 with rows of 33, not a multiple of 32");
    begin(&c, "rmsnorm");
    tc_const(&c, FL_F32, 1, 1, DIM(4));
    refused(&c, "input 0 (x) is a constant F32 [4], expected an activation F32 [.., *]");
    begin(&c, "rmsnorm");
    rows(&c, 1, DIM(4));
    tc_number(&c, "eps", -1);
    refused(&c, "attribute eps is -1, expected a number from 0 to 1");
    begin(&c, "layernorm");
    rows(&c, 1, DIM(4));
    tc_none(&c);
    refused(&c, "input 1 (weight) is missing, expected a constant F32 [4]");
    begin(&c, "conv1d");
    rows(&c, 1, DIM(6));
    tc_const(&c, FL_F32, 1, 2, DIM(6, 4));
    tc_state_in(&c, true, 18);
    refused(&c, "input 2 (tail) is a paged state F32 [18], expected a recurrent state F32 [18]");
    begin(&c, "cache_write");
    tc_state_in(&c, true, 7);
    rows(&c, 1, DIM(4));
    rows(&c, 1, DIM(4));
    refused(&c, "input 0 (cache) is a paged state F32 [7], expected a paged "
                "state F32, BF16, I8 or F8_E4M3 [8]");
    begin(&c, "expr");
    rows(&c, 2, DIM(3, 4));
    tc_const(&c, FL_F32, 1, 1, DIM(5));
    tc_text(&c, "text", "a+b");
    tc_text(&c, "inputs", "a,b");
    refused(&c, "\"a+b\": input 1 is [5], which does not broadcast with [3, 4]");
    begin(&c, "view");
    rows(&c, 2, DIM(3, 4));
    tc_number(&c, "offset", 5);
    tc_ints(&c, "dims", 2, DIM(2, 4));
    refused(&c, "offset 5 and dims do not lie within the 12 elements of input 0");
    begin(&c, "view");
    rows(&c, 2, DIM(3, 4));
    tc_ints(&c, "dims", 3, DIM(INT64_MAX, INT64_MAX, 4));
    refused(&c, "offset 0 and dims do not lie within the 12 elements of input 0");
}

static void test_route_and_experts_messages(void **state)
{
    (void)state;
    tc c;
    begin(&c, "route");
    rows(&c, 1, DIM(6));
    tc_number(&c, "topk", 3);
    tc_text(&c, "func", "tanh");
    refused(&c, "func is \"tanh\", expected \"sigmoid\" or \"softmax\"");
    begin(&c, "route");
    rows(&c, 1, DIM(6));
    tc_number(&c, "topk", 3);
    tc_text(&c, "func", "sigmoid");
    tc_number(&c, "groups", 4);
    refused(&c, "6 experts do not divide into 4 groups");
    begin(&c, "route");
    rows(&c, 1, DIM(6));
    tc_number(&c, "topk", 3);
    tc_text(&c, "func", "sigmoid");
    tc_number(&c, "groups", 3);
    refused(&c, "topk is 3 but the kept groups have 2 experts");
    begin(&c, "experts");
    rows(&c, 1, DIM(8));
    tc_rows(&c, FL_ROWS_TOKENS, FL_I32, 1, DIM(2));
    rows(&c, 1, DIM(2));
    tc_const(&c, FL_BF16, 3, 2, DIM(4, 8));
    tc_const(&c, FL_BF16, 3, 2, DIM(4, 8));
    tc_const(&c, FL_BF16, 2, 2, DIM(8, 4));
    refused(&c, "input 5 is a stack of 2 BF16 tensors, W1 one of 3 BF16");
    begin(&c, "experts");
    rows(&c, 1, DIM(8));
    tc_rows(&c, FL_ROWS_LOGITS, FL_I32, 1, DIM(2));
    rows(&c, 1, DIM(2));
    refused(&c, "input 1 has logit rows but input 0 has token rows");
    begin(&c, "residual_mix");
    tc_const(&c, FL_F32, 1, 1, DIM(8));
    rows(&c, 1, DIM(8));
    tc_rows(&c, FL_ROWS_LOGITS, FL_F32, 1, DIM(8));
    refused(&c, "input 2 has logit rows but input 1 has token rows");
}

static void test_types(void **state)
{
    (void)state;
    tc c;
    begin(&c, "linear");
    tc_rows(&c, FL_ROWS_LOGITS, FL_F32, 2, DIM(2, 8));
    tc_const(&c, FL_BF16, 1, 2, DIM(5, 16));
    tc_const(&c, FL_F32, 1, 2, DIM(7, 16));
    tc_finish(&c);
    assert_int_equal(c.n_out, 2);
    shape_is(&c.out_type[0], FL_ROWS_LOGITS, "[5]");
    shape_is(&c.out_type[1], FL_ROWS_LOGITS, "[7]");
    tc_end(&c);

    begin(&c, "expr");
    rows(&c, 2, DIM(3, 1));
    tc_const(&c, FL_F32, 1, 3, DIM(2, 1, 4));
    tc_text(&c, "text", "a*b");
    tc_text(&c, "inputs", "a,b");
    tc_finish(&c);
    shape_is(&c.out_type[0], FL_ROWS_TOKENS, "[2, 3, 4]");
    tc_end(&c);

    begin(&c, "gather_logits");
    rows(&c, 2, DIM(3, 2));
    tc_finish(&c);
    shape_is(&c.out_type[0], FL_ROWS_LOGITS, "[3, 2]");
    tc_end(&c);

    begin(&c, "view");
    tc_const(&c, FL_BF16, 1, 1, DIM(12));
    tc_number(&c, "offset", 4);
    tc_ints(&c, "dims", 2, DIM(2, 4));
    fl_error err;
    assert_int_equal(tc_try_infer(&c, &err), FL_OK);
    shape_is(&c.out_type[0], FL_ROWS_CONST, "[2, 4]");
    assert_int_equal(c.out_type[0].dtype, FL_BF16);
    tc_end(&c);
}

static fl_cost cost_of(tc *c, int64_t n_rows)
{
    fl_cost out = {0};
    fl_sizes sizes = {.rows = n_rows, .logits = 1, .context = 100};
    fl_node_view v = tc_view(c);
    c->op->cost(&v, &sizes, &out);
    return out;
}

static void test_costs(void **state)
{
    (void)state;
    tc c;
    begin(&c, "linear");
    rows(&c, 1, DIM(64));
    tc_const(&c, FL_MXFP4, 1, 2, DIM(10, 64));
    tc_const(&c, FL_BF16, 1, 2, DIM(3, 64));
    tc_finish(&c);
    fl_cost cost = cost_of(&c, 5);
    assert_float_equal(cost.flops, 2.0 * 5 * 13 * 64, 0.5);
    assert_float_equal(cost.weight_bytes, 10 * 34 + 3 * 128, 0.5);
    tc_end(&c);

    begin(&c, "experts");
    rows(&c, 1, DIM(32));
    tc_rows(&c, FL_ROWS_TOKENS, FL_I32, 1, DIM(2));
    rows(&c, 1, DIM(2));
    for (int i = 0; i < 3; i++)
        tc_const(&c, FL_MXFP4, 8, 2, DIM(32, 32));
    tc_text(&c, "act", "silu(g)*u");
    tc_finish(&c);
    double each = 3 * 32 * 17;
    assert_float_equal(cost_of(&c, 1).weight_bytes, 2 * each, 0.5);    /* one row: its own */
    assert_float_equal(cost_of(&c, 1000).weight_bytes, 8 * each, 0.5); /* many: all */
    assert_float_equal(cost_of(&c, 3).flops, 2.0 * 3 * 2 * 3 * 1024, 0.5);
    tc_end(&c);

    begin(&c, "conv1d");
    rows(&c, 1, DIM(6));
    tc_const(&c, FL_F32, 1, 2, DIM(6, 4));
    tc_state_in(&c, false, 18);
    tc_finish(&c);
    assert_float_equal(cost_of(&c, 9).state_bytes, 2 * 18 * 4, 0.5);
    tc_end(&c);
}

/* Whatever types and attributes come, a rule accepts with sound outputs or refuses with words. */
static void test_any_input(void **state)
{
    (void)state;
    const fl_registry *r = fl_ops_registry();
    rng random = {1};
    for (long i = 0; i < 40000; i++) {
        const fl_op *op = r->ops[rng_int(&random, 0, r->n_ops - 1)];
        fl_type type[TC_MAX_IN], out[FL_MAX_OUT];
        const fl_type *in[TC_MAX_IN];
        fl_attr attr[TC_MAX_ATTR] = {{0}};
        int n_in = (int)rng_int(&random, op->min_in, op->min_in + 2), n_out = -1;
        for (int k = 0; k < n_in; k++) {
            fl_type *t = &type[k];
            *t = (fl_type){.rows = (fl_rows)rng_int(&random, 0, 3), .state = -1, .n_tensors = 1};
            t->dtype =
                rng_one_in(&random, 3) ? (fl_dtype)rng_int(&random, 0, FL_DTYPE_COUNT - 1) : FL_F32;
            t->ndim = (int)rng_int(&random, 0, rng_one_in(&random, 4) ? FL_MAX_DIMS : 2);
            for (int d = 0; d < t->ndim; d++)
                t->dim[d] = rng_one_in(&random, 9) ? (int64_t)1 << 40 : rng_int(&random, 1, 4);
            for (int d = 2; d < t->ndim; d++) /* a type's width fits 63 bits: graph.h */
                t->dim[d] = rng_int(&random, 1, 4);
            if (t->ndim >= 2 && t->dim[0] > 4 && t->dim[1] > 4)
                t->dim[1] = 4;
            t->paged = rng_one_in(&random, 2);
            in[k] = k >= op->min_in && rng_one_in(&random, 3) ? NULL : t;
        }
        for (int k = 0; k < op->n_attrs; k++) {
            static const char *const texts[] = {"", "a", "a,b", "sigmoid", "g*u", "a*b"};
            attr[k].i = rng_one_in(&random, 9) ? INT64_MIN : rng_int(&random, -1, 5);
            attr[k].f = rng_one_in(&random, 9) ? INFINITY : rng_float(&random, -1, 1);
            attr[k].text = texts[rng_int(&random, 0, 5)];
            attr[k].n = (int)rng_int(&random, 0, 2);
            attr[k].v[0] = rng_one_in(&random, 9) ? INT64_MAX : rng_int(&random, -1, 3);
            attr[k].v[1] = rng_one_in(&random, 9) ? INT64_MAX : rng_int(&random, -1, 3);
        }
        fl_node_view v = {
            .op = op, .n_in = n_in < op->max_in ? n_in : op->max_in, .in = in, .attr = attr};
        fl_error err = {0};
        if (op->infer(&v, out, &n_out, &err) != FL_OK) {
            assert_true(strlen(err.message) > 10);
            continue;
        }
        assert_in_range(n_out, 0, FL_MAX_OUT);
        assert_true(n_out > 0 || op->effect);
        for (int o = 0; o < n_out; o++)
            assert_true(out[o].ndim <= FL_MAX_DIMS && out[o].rows != FL_ROWS_STATE);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_messages),  cmocka_unit_test(test_route_and_experts_messages),
        cmocka_unit_test(test_types),     cmocka_unit_test(test_costs),
        cmocka_unit_test(test_any_input),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
