/* The check of an input against what an operator wants of it, and the words for both. */
#include "ops/def/def_internal.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>

enum { TEXT = 200 }; /* bytes of one type in words */

typedef struct text {
    char s[TEXT];
    size_t n;
} text;

static void add(text *t, const char *fmt, ...) FL_PRINTF(2, 3);

static void add(text *t, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    int n = vsnprintf(t->s + t->n, sizeof t->s - t->n, fmt, ap);
    va_end(ap);
    if (n > 0) {
        t->n += (size_t)n;
        if (t->n >= sizeof t->s)
            t->n = sizeof t->s - 1;
    }
}

static const char *const kind_text[] = {[FL_WANT_ACTIVATION] = "an activation",
                                        [FL_WANT_CONST] = "a constant",
                                        [FL_WANT_STACK] = "a stack",
                                        [FL_WANT_PAGED] = "a paged state",
                                        [FL_WANT_RECURRENT] = "a recurrent state"};

static fl_want_kind kind_of(const fl_type *t)
{
    if (t->rows == FL_ROWS_STATE)
        return t->paged ? FL_WANT_PAGED : FL_WANT_RECURRENT;
    if (t->rows == FL_ROWS_CONST)
        return t->n_tensors > 1 ? FL_WANT_STACK : FL_WANT_CONST;
    return FL_WANT_ACTIVATION;
}

static void add_dims(text *t, bool lead, int ndim, const int64_t *dim)
{
    add(t, " [%s", lead ? ".." : "");
    for (int i = 0; i < ndim; i++) {
        add(t, i || lead ? ", " : "");
        if (dim[i] == FL_ANY)
            add(t, "*");
        else
            add(t, "%lld", (long long)dim[i]);
    }
    add(t, "]");
}

static void describe(text *t, const fl_type *type)
{
    add(t, "%s %s", kind_text[kind_of(type)], fl_dtype_name(type->dtype));
    add_dims(t, false, type->ndim, type->dim);
    if (type->n_tensors > 1)
        add(t, " x %d", (int)type->n_tensors);
}

static void describe_want(text *t, const fl_want *w)
{
    add(t, "%s", kind_text[w->kind]);
    int left = __builtin_popcount(w->dtypes);
    for (int d = 0; d < FL_DTYPE_COUNT; d++) {
        if (!(w->dtypes & FL_DTYPE_BIT(d)))
            continue;
        add(t, " %s", fl_dtype_name((fl_dtype)d));
        left--;
        add(t, left > 1 ? "," : left == 1 ? " or" : "");
    }
    add_dims(t, w->lead, w->ndim, w->dim);
}

static bool dims_fit(const fl_type *t, const fl_want *w)
{
    if (w->lead ? t->ndim < w->ndim : t->ndim != w->ndim)
        return false;
    const int64_t *dim = t->dim + (t->ndim - w->ndim);
    for (int i = 0; i < w->ndim; i++) {
        if (w->dim[i] != FL_ANY && w->dim[i] != dim[i])
            return false;
    }
    return true;
}

fl_status fl_def_want(const fl_node_view *node, int i, const fl_want *w, fl_error *err)
{
    const fl_type *t = i < node->n_in ? node->in[i] : NULL;
    text got = {0}, want = {0};
    describe_want(&want, w);
    if (!t)
        return fl_fail(err, FL_MODEL, "input %d (%s) is missing, expected %s", i, w->what, want.s);
    fl_want_kind kind = kind_of(t);
    bool right = kind == w->kind || (kind == FL_WANT_CONST && w->kind == FL_WANT_STACK);
    if (right && (w->dtypes & FL_DTYPE_BIT(t->dtype)) && dims_fit(t, w))
        return FL_OK;
    describe(&got, t);
    return fl_fail(err, FL_MODEL, "input %d (%s) is %s, expected %s", i, w->what, got.s, want.s);
}

fl_status fl_def_same_rows(const fl_node_view *node, int i, int as, fl_error *err)
{
    static const char *const rows[] = {[FL_ROWS_TOKENS] = "token", [FL_ROWS_LOGITS] = "logit"};
    if (node->in[i]->rows == node->in[as]->rows)
        return FL_OK;
    return fl_fail(err, FL_MODEL, "input %d has %s rows but input %d has %s rows", i,
                   rows[node->in[i]->rows], as, rows[node->in[as]->rows]);
}

fl_status fl_def_number(const fl_node_view *node, int i, double low, double high, fl_error *err)
{
    const fl_attr_spec *s = &node->op->attrs[i];
    double x = s->kind == FL_ATTR_FLOAT ? node->attr[i].f : (double)node->attr[i].i;
    if (isfinite(x) && x >= low && x <= high)
        return FL_OK;
    return fl_fail(err, FL_MODEL, "attribute %s is %g, expected a number from %g to %g", s->name, x,
                   low, high);
}

fl_type fl_def_type(fl_rows rows, fl_dtype dtype, int ndim, const int64_t *dim)
{
    fl_type t = {.rows = rows, .dtype = dtype, .ndim = ndim, .n_tensors = 1, .state = -1};
    for (int i = 0; i < ndim; i++)
        t.dim[i] = dim[i];
    return t;
}

double fl_def_rows(const fl_type *t, const fl_sizes *sizes)
{
    return t->rows == FL_ROWS_TOKENS   ? (double)sizes->rows
           : t->rows == FL_ROWS_LOGITS ? (double)sizes->logits
                                       : 1.0;
}

double fl_def_bytes(const fl_type *t)
{
    if (t->rows == FL_ROWS_STATE)
        return (double)fl_cache_row_bytes(t->dtype, fl_type_width(t));
    return (double)fl_dtype_bytes(t->dtype, fl_type_width(t), t->ndim ? t->dim[t->ndim - 1] : 1);
}
