/* How the paged caches are kept, when the caller asks for less than float32 (fl_graph_keep_cache).
 * Model files declare float32 caches; this pass gives a cache its type by what reads it.  Keys that
 * an indexer scores become BF16, or in both 8-bit forms signed bytes, so that scores are integer
 * products; what attention reads becomes what was asked for. */
#include "graph/graph_internal.h"

#include "graph/cache_row.h"

static fl_dtype type_for(const fl_graph *g, fl_val state, int64_t elements)
{
    bool keys = false;
    for (size_t i = 0; i < g->nodes.n; i++) {
        const fl_node *n = &g->nodes.data[i];
        for (int k = 0; k < n->n_in; k++)
            keys |= n->in[k] == state && strcmp(n->op->name, "index_select") == 0;
    }
    if (g->cache == FL_KV_BF16)
        return FL_BF16;
    if (keys) /* one scale for a whole key */
        return elements <= FL_CACHE_GROUP ? FL_I8 : FL_BF16;
    return g->cache == FL_KV_FP8 ? FL_F8_E4M3 : FL_I8;
}

fl_status fl_graph_shrink(fl_graph *g, fl_error *err)
{
    for (size_t i = 0; i < g->values.n; i++) {
        fl_value *v = &g->values.data[i];
        if (v->type->rows != FL_ROWS_STATE || !v->type->paged || v->type->dtype != FL_F32)
            continue;
        fl_type *type = fl_arena_alloc(&g->arena, sizeof *type);
        if (!type)
            return fl_graph_nomem(err);
        *type = *v->type;
        type->dtype = type_for(g, (fl_val)i, type->dim[0]);
        g->states.data[type->state].dtype = type->dtype;
        v->type = type;
    }
    for (size_t i = 0; i < g->nodes.n; i++) {
        fl_node *n = &g->nodes.data[i];
        for (int k = 0; k < n->n_in; k++) {
            if (n->in[k] != FL_NONE)
                n->in_type[k] = g->values.data[n->in[k]].type;
        }
    }
    return FL_OK;
}
