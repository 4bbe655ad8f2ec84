/* What the files of the graph room share: how values and nodes are kept, and the passes.
 *
 * Nodes stand in the order in which the model file made them.  A node can only name values that
 * exist, so this order is topological from the start and keeps the nodes of one state in order;
 * the passes remove nodes and move a product up to an earlier one with the same input, never down.
 * Types live in the arena and do not move: views of nodes point at them. */
#ifndef FL_GRAPH_INTERNAL_H
#define FL_GRAPH_INTERNAL_H

#include "base/strmap.h"
#include "base/vec.h"
#include "graph/graph.h"

typedef struct fl_value {
    const fl_type *type;
    const fl_tensor *tensors; /* constants: type->n_tensors of them; else NULL */
} fl_value;

typedef struct fl_node {
    const fl_op *op;
    const char *label;
    int n_in, n_out;
    fl_val *in, *out;        /* an input that was left out is FL_NONE */
    const fl_type **in_type; /* as fl_node_view wants them */
    const fl_type *out_type;
    const fl_attr *attr;
    const void *prep;
    bool decides; /* what it makes goes into a choice of experts, which does not forgive rounding */
} fl_node;

typedef struct fl_tap {
    const char *kind;
    int index;
    fl_val value;
} fl_tap;

struct fl_graph {
    const fl_registry *registry;
    fl_arena arena;
    FL_VEC(fl_value) values;
    FL_VEC(fl_node) nodes;
    FL_VEC(fl_state_spec) states;
    FL_VEC(fl_tap) taps;
    fl_strmap const_names, state_names;
    fl_val logits;         /* FL_NONE: not marked yet */
    FL_VEC(void *) blocks; /* narrowed weights, owned */
    int64_t narrowed;      /* bytes that narrowing saved */
    bool finished, narrow;
    fl_kv cache; /* the form of the paged caches */
};

/* The attributes of an operator with op->view, in this order. */
enum { FL_VIEW_OFFSET, FL_VIEW_DIMS, FL_VIEW_ATTRS };

fl_status fl_graph_nomem(fl_error *err);
fl_node_view fl_node_seen(const fl_node *node);
/* Adds a value; FL_NONE when memory ran out. */
fl_val fl_graph_add_value(fl_graph *g, const fl_type *type, const fl_tensor *tensors);
/* Appends to text, which is `size` bytes and always terminated; what does not fit is cut. */
void fl_text_append(char *text, size_t size, const char *more);
/* Appends "BF16 [4, 8]", "tokens [64]"; NULL: "none". */
void fl_type_append(char *text, size_t size, const fl_type *t);
/* Puts "label: op(inputs with shapes): " before the message of err. */
void fl_node_explain(fl_error *err, const fl_node *node);
/* Runs the operator's rules over a node whose op, in, in_type and attr are set: infers and checks
 * the output types (written to the arena, node->out_type and n_out), then prepares. */
FL_MUST_CHECK fl_status fl_node_infer(fl_graph *g, fl_node *node, fl_error *err);

/* The passes, in the order in which they run. */
FL_MUST_CHECK fl_status fl_graph_prune(fl_graph *g, fl_error *err);  /* prune.c */
FL_MUST_CHECK fl_status fl_graph_fold(fl_graph *g, fl_error *err);   /* fold.c */
FL_MUST_CHECK fl_status fl_graph_shrink(fl_graph *g, fl_error *err); /* cache.c, likewise */
FL_MUST_CHECK fl_status fl_graph_narrow(fl_graph *g, fl_error *err); /* narrow.c, when asked for */
FL_MUST_CHECK fl_status fl_graph_merge(fl_graph *g, fl_error *err);  /* merge.c */

#endif
