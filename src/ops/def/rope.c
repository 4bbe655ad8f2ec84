/* Rotary positions: rope.  The frequencies are made once, in double, with YaRN's blend of slowed
 * and unchanged ones when the context was extended. */
#include "ops/def/def_internal.h"

#include <math.h>
#include <string.h>

enum { MAX_WIDTH = 1 << 16 };
static const double PI = 3.14159265358979323846;

static fl_status infer(const fl_node_view *n, fl_type *out, int *n_out, fl_error *err)
{
    const fl_want any = {"x", FL_WANT_ACTIVATION, FL_WANT_F32, true, 1, {FL_ANY}};
    FL_TRY(fl_def_want(n, 0, &any, err));
    const fl_type *x = n->in[0];
    if (x->rows != FL_ROWS_TOKENS)
        return fl_fail(err, FL_MODEL, "input 0 has logit rows, expected token rows");
    int64_t d = x->dim[x->ndim - 1];
    FL_TRY(fl_def_number(n, FL_ROPE_WIDTH, 2, MAX_WIDTH, err));
    FL_TRY(fl_def_number(n, FL_ROPE_OFFSET, 0, (double)d, err));
    int64_t width = n->attr[FL_ROPE_WIDTH].i, offset = n->attr[FL_ROPE_OFFSET].i;
    if (width % 2 != 0 || width > d - offset)
        return fl_fail(err, FL_MODEL, "width %lld at offset %lld: not pairs of a last dim of %lld",
                       (long long)width, (long long)offset, (long long)d);
    const char *pairing = n->attr[FL_ROPE_PAIRING].text;
    if (strcmp(pairing, "interleaved") != 0 && strcmp(pairing, "half") != 0)
        return fl_fail(err, FL_MODEL, "pairing is \"%s\", expected \"interleaved\" or \"half\"",
                       pairing);
    FL_TRY(fl_def_number(n, FL_ROPE_THETA, 1.001, 1e15, err));
    FL_TRY(fl_def_number(n, FL_ROPE_FACTOR, 1, 1e6, err));
    FL_TRY(fl_def_number(n, FL_ROPE_CONTEXT, n->attr[FL_ROPE_FACTOR].f > 1, 1e12, err));
    FL_TRY(fl_def_number(n, FL_ROPE_BETA_FAST, 1e-3, 1e6, err));
    FL_TRY(fl_def_number(n, FL_ROPE_BETA_SLOW, 1e-3, 1e6, err));
    out[0] = *x;
    *n_out = 1;
    return FL_OK;
}

/* The dim (two per pair, in fractions) whose pair turns `turns` times in the original context. */
static double dim_of_turns(const fl_attr *a, double turns)
{
    double context = (double)a[FL_ROPE_CONTEXT].i, width = (double)a[FL_ROPE_WIDTH].i;
    return width * log(context / (turns * 2 * PI)) / (2 * log(a[FL_ROPE_THETA].f));
}

/* How much of pair j's frequency is slowed: 0 before `low`, 1 from `high` on. */
static double slowed(const fl_attr *a, int64_t j)
{
    double last = (double)a[FL_ROPE_WIDTH].i - 1;
    double low = fmax(floor(dim_of_turns(a, a[FL_ROPE_BETA_FAST].f)), 0);
    double high = fmin(ceil(dim_of_turns(a, a[FL_ROPE_BETA_SLOW].f)), last);
    if (high == low)
        high += 0.001; /* a step instead of a ramp, and no division by zero */
    return fmin(fmax(((double)j - low) / (high - low), 0), 1);
}

static fl_status prepare(const fl_node_view *n, fl_arena *arena, const void **prep, fl_error *err)
{
    const fl_attr *a = n->attr;
    int64_t width = a[FL_ROPE_WIDTH].i, pairs = width / 2;
    fl_rope *rope = fl_arena_alloc(arena, sizeof *rope);
    double *freq = fl_arena_array(arena, (size_t)pairs, sizeof *freq);
    if (!rope || !freq)
        return fl_fail(err, FL_NOMEM, "out of memory for %lld frequencies", (long long)pairs);
    for (int64_t j = 0; j < pairs; j++) {
        freq[j] = pow(a[FL_ROPE_THETA].f, -2 * (double)j / (double)width);
        if (a[FL_ROPE_FACTOR].f > 1) {
            double part = slowed(a, j);
            freq[j] *= part / a[FL_ROPE_FACTOR].f + (1 - part);
        }
    }
    bool half = strcmp(a[FL_ROPE_PAIRING].text, "half") == 0;
    *rope = (fl_rope){a[FL_ROPE_OFFSET].i, half ? 1 : 2, half ? pairs : 1, pairs, freq};
    *prep = rope;
    return FL_OK;
}

static void cost(const fl_node_view *n, const fl_sizes *sizes, fl_cost *out)
{
    out->flops = fl_def_rows(n->in[0], sizes) * (double)fl_type_width(n->in[0]) * 3;
}

static const fl_attr_spec attrs[] = {
    [FL_ROPE_OFFSET] = {"offset", FL_ATTR_INT, .number = 0},
    [FL_ROPE_WIDTH] = {"width", FL_ATTR_INT, .required = true},
    [FL_ROPE_PAIRING] = {"pairing", FL_ATTR_TEXT, .text = "interleaved"},
    [FL_ROPE_THETA] = {"theta", FL_ATTR_FLOAT, .required = true},
    [FL_ROPE_FACTOR] = {"factor", FL_ATTR_FLOAT, .number = 1},
    [FL_ROPE_CONTEXT] = {"context", FL_ATTR_INT, .number = 0},
    [FL_ROPE_BETA_FAST] = {"beta_fast", FL_ATTR_FLOAT, .number = 32},
    [FL_ROPE_BETA_SLOW] = {"beta_slow", FL_ATTR_FLOAT, .number = 1}};

const fl_op fl_op_rope = {
    .name = "rope",
    .doc = "turns pairs of a slice of the last dim by position * frequency; dsa 1.3",
    .min_in = 1,
    .max_in = 1,
    .attrs = attrs,
    .n_attrs = sizeof attrs / sizeof *attrs,
    .infer = infer,
    .prepare = prepare,
    .cost = cost,
};
