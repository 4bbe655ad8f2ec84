#include "graph/choices.h"

#include "base/mem.h"
#include "base/strmap.h"
#include "graph/graph_internal.h"

#include <stdio.h>
#include <xxhash.h>

/* ---- signatures ---- */

static bool put(fl_buf *b, const char *text)
{
    return fl_vec_append(b, text, strlen(text));
}

static bool put_attr(fl_buf *b, const fl_attr_spec *spec, const fl_attr *a)
{
    char text[64];
    if (!a->set)
        return true;
    if (!put(b, " ") || !put(b, spec->name) || !put(b, "="))
        return false;
    switch (spec->kind) {
    case FL_ATTR_TEXT:
        return put(b, a->text);
    case FL_ATTR_FLOAT:
        snprintf(text, sizeof text, "%.9g", a->f);
        return put(b, text);
    case FL_ATTR_INTS:
        return put(b, fl_shape_text(a->v, a->n, text, sizeof text));
    default:
        snprintf(text, sizeof text, "%lld", (long long)a->i);
        return put(b, text);
    }
}

static bool put_node(fl_buf *b, const fl_node *n)
{
    char type[200];
    bool ok = put(b, n->op->name) && put(b, "(");
    for (int i = 0; i < n->n_in && ok; i++) {
        type[0] = 0;
        fl_type_append(type, sizeof type, n->in_type[i]);
        ok = put(b, i ? ", " : "") && put(b, type);
    }
    ok = ok && put(b, ")");
    for (int i = 0; i < n->op->n_attrs && ok; i++)
        ok = put_attr(b, &n->op->attrs[i], &n->attr[i]);
    return ok && (!n->decides || put(b, " decides")); /* it has other kernels */
}

const char *fl_node_signature(const fl_graph *g, int node, char out[FL_SIGNATURE])
{
    fl_buf b = {0};
    bool whole = put_node(&b, &g->nodes.data[node]);
    size_t n = b.n < FL_SIGNATURE ? b.n : FL_SIGNATURE - 1;
    if (n)
        memcpy(out, b.data, n);
    out[n] = 0;
    if (whole && b.n >= FL_SIGNATURE)
        snprintf(out + FL_SIGNATURE - 18, 18, "#%016llx",
                 (unsigned long long)XXH3_64bits(b.data, b.n));
    fl_vec_free(&b);
    return out;
}

/* ---- the table ---- */

struct fl_choices {
    fl_arena texts;
    fl_strmap map; /* signature -> index into kernels */
    FL_VEC(const char *) kernels;
};

fl_status fl_choices_create(fl_choices **out, fl_error *err)
{
    *out = fl_calloc(1, sizeof **out);
    return *out ? FL_OK : fl_fail(err, FL_NOMEM, "no memory for choices of kernels");
}

void fl_choices_destroy(fl_choices *c)
{
    if (!c)
        return;
    fl_strmap_free(&c->map);
    fl_vec_free(&c->kernels);
    fl_arena_free(&c->texts);
    fl_free(c);
}

fl_status fl_choices_set(fl_choices *c, const char *signature, const char *kernel, fl_error *err)
{
    uint32_t at;
    size_t len = strlen(signature);
    const char *name = fl_arena_strdup(&c->texts, kernel);
    if (name && fl_strmap_get(&c->map, signature, len, &at)) {
        c->kernels.data[at] = name;
        return FL_OK;
    }
    const char *key = fl_arena_strdup(&c->texts, signature);
    if (!name || !key || !fl_vec_push(&c->kernels, name) ||
        !fl_strmap_put(&c->map, key, len, (uint32_t)c->kernels.n - 1, NULL))
        return fl_fail(err, FL_NOMEM, "no memory for choices of kernels");
    return FL_OK;
}

const char *fl_choices_get(const fl_choices *c, const char *signature)
{
    uint32_t at;
    return fl_strmap_get(&c->map, signature, strlen(signature), &at) ? c->kernels.data[at] : NULL;
}
