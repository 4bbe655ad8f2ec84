/* What a model file's build(g, config) works on. */
#ifndef FL_MODEL_BUILDER_INTERNAL_H
#define FL_MODEL_BUILDER_INTERNAL_H

#include "model/inventory_internal.h"
#include "model/lua_internal.h"

typedef struct fl_builder {
    fl_graph *graph;
    const fl_registry *registry;
    fl_inventory *inventory;
    int layers; /* at most so many layers; 0: all */
    bool dense;
    char label[120]; /* what is being built */
    fl_names *kinds; /* one entry per layer */
    int64_t max_context;
    fl_strmap asked;         /* names of weights, so that each is counted once */
    FL_VEC(fl_tensor) stack; /* one stack of experts */
} fl_builder;

void fl_builder_free(fl_builder *b);
/* Pushes g. */
void fl_lua_push_graph(lua_State *L);

#endif
