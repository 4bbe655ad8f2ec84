#include "support/fake_ops.h"

#include "base/pool.h"

#include <string.h>

int fake_calls;

static void count(const fl_worker *w)
{
    if (w->thread == 0)
        fake_calls++;
}

/* Calls body for every row of this worker. */
#define FOR_ROWS(call, step, worker, r)                                                            \
    int64_t row_begin, row_end;                                                                    \
    fl_split(fl_rows_now(step, (call)->out[0].type.rows), 1, (worker)->thread,                     \
             (worker)->n_threads, &row_begin, &row_end);                                           \
    for (int64_t r = row_begin; r < row_end; r++)

/* Row r of an operand; the one row of a constant. */
static float *row(const fl_arg *a, int64_t r)
{
    return a->type.rows == FL_ROWS_CONST ? a->data : fl_row_f32(a, r);
}

/* ---- source ---- */

float fake_source(int32_t id, int64_t column)
{
    return (float)(id % 7) - (float)(column % 5) * 0.25f;
}

static fl_status source_infer(const fl_node_view *n, fl_type *out, int *n_out, fl_error *err)
{
    if (n->attr[0].i < 1)
        return fl_fail(err, FL_MODEL, "attribute width is %d", (int)n->attr[0].i);
    out[0] = (fl_type){
        .rows = FL_ROWS_TOKENS, .dtype = FL_F32, .ndim = 1, .dim = {n->attr[0].i}, .state = -1};
    *n_out = 1;
    return FL_OK;
}

static void source_run(const fl_call *c, const fl_step *s, int phase, const fl_worker *w)
{
    (void)phase;
    count(w);
    FOR_ROWS(c, s, w, r)
    {
        for (int64_t i = 0; i < fl_type_width(&c->out[0].type); i++)
            fl_row_f32(&c->out[0], r)[i] = fake_source(s->ids[r], i);
    }
}

/* ---- add ---- */

static fl_status add_infer(const fl_node_view *n, fl_type *out, int *n_out, fl_error *err)
{
    char a[64], b[64];
    out[0] = *n->in[0];
    for (int i = 0; i < n->n_in; i++) {
        const fl_type *t = n->in[i];
        if (fl_type_width(t) != fl_type_width(n->in[0]))
            return fl_fail(err, FL_MODEL, "input %d is %s, expected %s", i,
                           fl_shape_text(t->dim, t->ndim, a, sizeof a),
                           fl_shape_text(n->in[0]->dim, n->in[0]->ndim, b, sizeof b));
        if (t->rows != FL_ROWS_CONST)
            out[0].rows = t->rows;
    }
    *n_out = 1;
    return FL_OK;
}

static void add_run(const fl_call *c, const fl_step *s, int phase, const fl_worker *w)
{
    (void)phase;
    count(w);
    FOR_ROWS(c, s, w, r)
    {
        for (int64_t i = 0; i < fl_type_width(&c->out[0].type); i++) {
            float sum = 0;
            for (int k = 0; k < c->n_in; k++)
                sum += row(&c->in[k], r)[i];
            row(&c->out[0], r)[i] = sum;
        }
    }
}

/* ---- scale ---- */

static fl_status like_infer(const fl_node_view *n, fl_type *out, int *n_out, fl_error *err)
{
    (void)err;
    out[0] = *n->in[0];
    *n_out = 1;
    return FL_OK;
}

/* Remembers the attribute, to prove that a kernel sees what prepare made. */
static fl_status scale_prepare(const fl_node_view *n, fl_arena *arena, const void **prep,
                               fl_error *err)
{
    float *by = fl_arena_alloc(arena, sizeof *by);
    if (!by)
        return fl_fail(err, FL_NOMEM, "no memory");
    *by = (float)n->attr[0].f;
    *prep = by;
    return FL_OK;
}

static void scale_run(const fl_call *c, const fl_step *s, int phase, const fl_worker *w)
{
    (void)phase;
    count(w);
    FOR_ROWS(c, s, w, r)
    {
        for (int64_t i = 0; i < fl_type_width(&c->out[0].type); i++)
            row(&c->out[0], r)[i] = *(const float *)c->prep * row(&c->in[0], r)[i];
    }
}

/* Phase 0 copies the rows to the shared scratch, phase 1 reads those of another worker. */
static void phased_run(const fl_call *c, const fl_step *s, int phase, const fl_worker *w)
{
    int64_t width = fl_type_width(&c->out[0].type), rows = fl_rows_now(s, c->out[0].type.rows);
    float *shared = w->shared, *own = w->scratch;
    if (phase == 0)
        count(w);
    FOR_ROWS(c, s, w, r)
    {
        if (phase == 0) {
            memcpy(own, fl_row_f32(&c->in[0], r), (size_t)width * sizeof *own);
            memcpy(shared + r * width, own, (size_t)width * sizeof *own);
        } else {
            int64_t other = rows - 1 - r;
            for (int64_t i = 0; i < width; i++)
                fl_row_f32(&c->out[0], other)[i] =
                    *(const float *)c->prep * shared[other * width + i];
        }
    }
}

static void phased_scratch(const fl_node_view *n, const fl_limits *l, size_t *own, size_t *shared)
{
    *own = (size_t)fl_type_width(n->in[0]) * sizeof(float);
    *shared = *own * (size_t)l->max_rows;
}

static bool phased_fits(const fl_node_view *n)
{
    return n->in[0]->rows != FL_ROWS_CONST && fl_type_width(n->in[0]) % 2 == 0;
}

static bool only4_fits(const fl_node_view *n)
{
    return fl_type_width(n->in[0]) == 4;
}

/* ---- linear ---- */

static fl_status linear_infer(const fl_node_view *n, fl_type *out, int *n_out, fl_error *err)
{
    char a[64];
    for (int i = 1; i < n->n_in; i++) {
        const fl_type *t = n->in[i];
        if (t->rows != FL_ROWS_CONST || t->ndim != 2 || t->dim[1] != fl_type_width(n->in[0]))
            return fl_fail(err, FL_MODEL, "input %d (weight) is %s, expected [*, %lld]", i,
                           fl_shape_text(t->dim, t->ndim, a, sizeof a),
                           (long long)fl_type_width(n->in[0]));
        out[i - 1] = (fl_type){
            .rows = n->in[0]->rows, .dtype = FL_F32, .ndim = 1, .dim = {t->dim[0]}, .state = -1};
    }
    *n_out = n->n_in - 1;
    return FL_OK;
}

static void linear_cost(const fl_node_view *n, const fl_sizes *s, fl_cost *out)
{
    for (int i = 1; i < n->n_in; i++) {
        out->flops += 2.0 * (double)s->rows * (double)fl_type_width(n->in[i]);
        out->weight_bytes += 4.0 * (double)fl_type_width(n->in[i]);
    }
}

static void linear_run(const fl_call *c, const fl_step *s, int phase, const fl_worker *w)
{
    (void)phase;
    count(w);
    FOR_ROWS(c, s, w, r)
    {
        for (int k = 0; k < c->n_out; k++) {
            const fl_arg *m = &c->in[k + 1];
            for (int64_t o = 0; o < m->type.dim[0]; o++) {
                float sum = 0;
                for (int64_t i = 0; i < m->type.dim[1]; i++) {
                    float x;
                    fl_status st = fl_tensor_to_f32(m->tensors, o * m->type.dim[1] + i, 1, &x);
                    sum += st == FL_OK ? row(&c->in[0], r)[i] * x : 0;
                }
                row(&c->out[k], r)[o] = sum;
            }
        }
    }
}

/* ---- split, total, gather_logits, argmax, view ---- */

static fl_status split_infer(const fl_node_view *n, fl_type *out, int *n_out, fl_error *err)
{
    (void)err;
    out[0] = out[1] = *n->in[0];
    *n_out = 2;
    return FL_OK;
}

static void split_run(const fl_call *c, const fl_step *s, int phase, const fl_worker *w)
{
    (void)phase;
    count(w);
    FOR_ROWS(c, s, w, r)
    {
        for (int64_t i = 0; i < fl_type_width(&c->out[0].type); i++) {
            row(&c->out[0], r)[i] = row(&c->in[0], r)[i] + 1;
            row(&c->out[1], r)[i] = row(&c->in[0], r)[i] * 3;
        }
    }
}

static fl_status total_infer(const fl_node_view *n, fl_type *out, int *n_out, fl_error *err)
{
    if (n->in[1]->rows != FL_ROWS_STATE || n->in[1]->paged)
        return fl_fail(err, FL_MODEL, "input 1 (state) is not a recurrent state");
    return like_infer(n, out, n_out, err);
}

static void total_run(const fl_call *c, const fl_step *s, int phase, const fl_worker *w)
{
    (void)phase;
    count(w);
    int64_t begin, end;
    fl_split(s->n_seqs, 1, w->thread, w->n_threads, &begin, &end);
    for (int64_t q = begin; q < end; q++) {
        const fl_seq_rows *seq = &s->seqs[q];
        float *sum = fl_state_slot(&s->states[c->in[1].type.state], seq);
        for (int32_t r = seq->row0; r < seq->row0 + seq->n_rows; r++) {
            for (int64_t i = 0; i < fl_type_width(&c->out[0].type); i++) {
                sum[i] += fl_row_f32(&c->in[0], r)[i];
                fl_row_f32(&c->out[0], r)[i] = sum[i];
            }
        }
    }
}

static fl_status gather_infer(const fl_node_view *n, fl_type *out, int *n_out, fl_error *err)
{
    FL_TRY(like_infer(n, out, n_out, err));
    out[0].rows = FL_ROWS_LOGITS;
    return FL_OK;
}

static void gather_run(const fl_call *c, const fl_step *s, int phase, const fl_worker *w)
{
    (void)phase;
    count(w);
    FOR_ROWS(c, s, w, r)
    memcpy(fl_row_f32(&c->out[0], r), fl_row_f32(&c->in[0], s->logit_rows[r]),
           (size_t)fl_type_width(&c->out[0].type) * sizeof(float));
}

static fl_status argmax_infer(const fl_node_view *n, fl_type *out, int *n_out, fl_error *err)
{
    FL_TRY(like_infer(n, out, n_out, err));
    out[0].dtype = FL_I32;
    out[0].ndim = 1;
    out[0].dim[0] = 1;
    return FL_OK;
}

static void argmax_run(const fl_call *c, const fl_step *s, int phase, const fl_worker *w)
{
    (void)phase;
    count(w);
    FOR_ROWS(c, s, w, r)
    {
        const float *x = fl_row_f32(&c->in[0], r);
        int32_t best = 0;
        for (int32_t i = 1; i < fl_type_width(&c->in[0].type); i++)
            best = x[i] > x[best] ? i : best;
        ((int32_t *)c->out[0].data)[r * c->out[0].stride] = best;
    }
}

static fl_status view_infer(const fl_node_view *n, fl_type *out, int *n_out, fl_error *err)
{
    FL_TRY(like_infer(n, out, n_out, err));
    out[0].ndim = n->attr[1].n;
    memcpy(out[0].dim, n->attr[1].v, sizeof out[0].dim);
    return FL_OK;
}

/* ---- the lists ---- */

#define OP(op_name, lo, hi, ...)                                                                   \
    static const fl_op op_##op_name = {                                                            \
        .name = #op_name, .doc = "fake", .min_in = lo, .max_in = hi, __VA_ARGS__}

static const fl_attr_spec source_attrs[] = {
    {.name = "width", .kind = FL_ATTR_INT, .required = true}};
static const fl_attr_spec scale_attrs[] = {
    {.name = "by", .kind = FL_ATTR_FLOAT, .number = 2},
    {.name = "note", .kind = FL_ATTR_TEXT, .text = "default"},
    {.name = "flag", .kind = FL_ATTR_BOOL, .number = 1},
    {.name = "count", .kind = FL_ATTR_INT, .number = 7},
    {.name = "list", .kind = FL_ATTR_INTS},
};
static const fl_attr_spec view_attrs[] = {{.name = "offset", .kind = FL_ATTR_INT},
                                          {.name = "dims", .kind = FL_ATTR_INTS, .required = true}};

OP(source, 0, 0, .infer = source_infer, .attrs = source_attrs, .n_attrs = 1);
OP(add, 1, 8, .infer = add_infer);
OP(scale, 1, 2, .infer = like_infer, .prepare = scale_prepare, .attrs = scale_attrs, .n_attrs = 5);
OP(linear, 2, 1 + FL_MAX_OUT, .infer = linear_infer, .cost = linear_cost);
OP(split, 1, 1, .infer = split_infer);
OP(total, 2, 2, .infer = total_infer, .effect = true);
OP(gather_logits, 1, 1, .infer = gather_infer);
OP(argmax, 1, 1, .infer = argmax_infer);
OP(view, 1, 1, .infer = view_infer, .attrs = view_attrs, .n_attrs = 2, .view = true);
OP(orphan, 1, 1, .infer = like_infer);

static const fl_op *const ops[] = {&op_source, &op_add,   &op_scale,         &op_linear,
                                   &op_split,  &op_total, &op_gather_logits, &op_argmax,
                                   &op_view,   &op_orphan};

static const fl_kernel kernels[] = {
    {.op = "source", .name = "ref", .n_phases = 1, .run = source_run},
    {.op = "add", .name = "ref", .n_phases = 1, .run = add_run},
    {.op = "scale", .name = "ref", .n_phases = 1, .run = scale_run},
    {.op = "linear", .name = "ref", .n_phases = 1, .run = linear_run},
    {.op = "split", .name = "ref", .n_phases = 1, .run = split_run},
    {.op = "total", .name = "ref", .n_phases = 1, .run = total_run},
    {.op = "gather_logits", .name = "ref", .n_phases = 1, .run = gather_run},
    {.op = "argmax", .name = "ref", .n_phases = 1, .run = argmax_run},
};
static const fl_kernel more_kernels[] = {
    {.op = "scale",
     .name = "phased",
     .preference = 5,
     .n_phases = 2,
     .run = phased_run,
     .fits = phased_fits,
     .scratch = phased_scratch},
    {.op = "scale",
     .name = "wide-avx2",
     .isa = FL_ISA_AVX2,
     .preference = 7,
     .n_phases = 1,
     .run = scale_run},
    {.op = "scale",
     .name = "wide-avx512",
     .isa = FL_ISA_AVX512,
     .preference = 7,
     .n_phases = 1,
     .run = scale_run},
    {.op = "scale", .name = "q8", .fast = true, .preference = 9, .n_phases = 1, .run = scale_run},
    {.op = "scale",
     .name = "only4",
     .preference = -1,
     .n_phases = 1,
     .run = scale_run,
     .fits = only4_fits},
};

static const fl_kernel_list first = FL_KERNEL_LIST(kernels), second = FL_KERNEL_LIST(more_kernels);
static const fl_kernel_list *const lists[] = {&first, &second};

const fl_registry fake_registry = {
    .ops = ops, .n_ops = sizeof ops / sizeof *ops, .lists = lists, .n_lists = 2};
