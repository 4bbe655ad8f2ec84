/* Keeping the weights of products in 8 bits (Q8): half of what BF16 reads, at the price of a
 * rounding that `eval --kl` shows.  Only matrices that nothing but "linear" reads are narrowed, and
 * not those whose product decides which experts run: a choice does not forgive rounding.  The
 * stored weights are read once, a row of blocks at a time by all processors; their pages can then
 * leave memory. */
#define _GNU_SOURCE
#include "graph/graph_internal.h"

#include "base/pool.h"

#include <sys/mman.h>

enum { MIN_ROWS = 64 }; /* smaller matrices are not worth a rounding */

typedef struct weight {
    bool linear, other; /* read by a product to narrow; read by something else */
} weight;

static bool narrow_type(const fl_type *t)
{
    return t->rows == FL_ROWS_CONST && t->n_tensors == 1 && t->ndim == 2 &&
           (t->dtype == FL_BF16 || t->dtype == FL_F16) && t->dim[0] >= MIN_ROWS &&
           t->dim[1] >= FL_Q8_BLOCK;
}

typedef struct job {
    const fl_tensor *from, *to;
} job;

static void convert(void *ctx, int thread, int n_threads)
{
    const job *j = ctx;
    int64_t begin, end;
    fl_split(j->from->shape[0], 16, thread, n_threads, &begin, &end);
    fl_tensor_to_q8(j->from, j->to, begin, end);
}

static fl_status narrow(fl_graph *g, fl_value *v, fl_pool *pool, fl_error *err)
{
    fl_type *type = fl_arena_array(&g->arena, 1, sizeof *type);
    fl_tensor *t = fl_arena_array(&g->arena, 1, sizeof *t);
    if (!type || !t)
        return fl_graph_nomem(err);
    const fl_tensor *from = v->tensors;
    *type = *v->type;
    type->dtype = FL_Q8;
    *t = *from;
    t->dtype = FL_Q8;
    t->data = NULL;
    g->narrowed += fl_tensor_bytes(from) - fl_tensor_bytes(t);
    if (from->data) {
        int64_t factors = fl_tensor_bytes(t) / (FL_Q8_BLOCK + (int64_t)sizeof(float));
        size_t bytes = (size_t)fl_tensor_bytes(t);
        void *raw;
        char *data = fl_alloc_large(bytes, &raw);
        if (!data || !fl_vec_push(&g->blocks, raw)) {
            fl_free(raw);
            return fl_graph_nomem(err);
        }
        t->data = data;
        t->block_scale = (float *)(data + factors * FL_Q8_BLOCK);
        fl_pool_run(pool, convert, &(job){from, t});
        /* A hint, and whole pages only: what else lies there is read again when needed. */
        uintptr_t page = 4096, at = ((uintptr_t)from->data + page - 1) / page * page;
        uintptr_t end = ((uintptr_t)from->data + (size_t)fl_tensor_bytes(from)) / page * page;
        if (at < end)
            (void)madvise((void *)at, end - at, MADV_COLD);
    }
    v->type = type;
    v->tensors = t;
    return FL_OK;
}

static fl_status narrow_all(fl_graph *g, weight *w, fl_pool *pool, fl_error *err)
{
    for (size_t i = 0; i < g->nodes.n; i++) {
        const fl_node *n = &g->nodes.data[i];
        bool linear = strcmp(n->op->name, "linear") == 0 && n->n_in == 2 && !n->decides;
        for (int k = 0; k < n->n_in; k++) {
            if (n->in[k] == FL_NONE)
                continue;
            if (linear && k == 1)
                w[n->in[k]].linear = true;
            else
                w[n->in[k]].other = true;
        }
    }
    for (size_t i = 0; i < g->values.n; i++) {
        if (w[i].linear && !w[i].other && narrow_type(g->values.data[i].type))
            FL_TRY(narrow(g, &g->values.data[i], pool, err));
        else
            w[i].linear = false;
    }
    for (size_t i = 0; i < g->nodes.n; i++) {
        fl_node *n = &g->nodes.data[i];
        if (n->n_in == 2 && n->in[1] != FL_NONE && w[n->in[1]].linear)
            n->in_type[1] = g->values.data[n->in[1]].type;
    }
    return FL_OK;
}

fl_status fl_graph_narrow(fl_graph *g, fl_error *err)
{
    weight *w = fl_calloc(g->values.n, sizeof *w);
    fl_pool *pool = NULL;
    fl_status s = w ? fl_pool_create(fl_cpu_count(), &pool, err) : fl_graph_nomem(err);
    if (s == FL_OK)
        s = narrow_all(g, w, pool, err);
    fl_pool_destroy(pool);
    fl_free(w);
    return s;
}
