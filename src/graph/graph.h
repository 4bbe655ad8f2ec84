/* The graph room: a model's computation as values and nodes.
 *
 * A model file builds the graph once through these functions; row counts stay symbolic.  Passes
 * (fl_graph_finish) fold nodes whose inputs are all constants, merge linear products that share an
 * input, drop what nothing needs and order the rest.  plan.h then lays the values into one
 * workspace and turns the nodes into a flat array of kernel calls. */
#ifndef FL_GRAPH_H
#define FL_GRAPH_H

#include "graph/op.h"

typedef struct fl_graph fl_graph;
typedef int32_t fl_val; /* a value; FL_NONE: left out */
enum { FL_NONE = -1 };

/* What a sequence keeps between steps; the state manager sizes its pools from these. */
typedef struct fl_state_spec {
    const char *name;
    bool paged;       /* one item per token, found through the page table; else one per sequence */
    fl_dtype dtype;   /* F32; of a paged state also BF16, F8_E4M3, I8: rows as in cache_row.h */
    int64_t elements; /* per item */
} fl_state_spec;

int64_t fl_state_item_bytes(const fl_state_spec *spec);

typedef struct fl_node_attr { /* an attribute given by a model file */
    const char *name;
    fl_attr_kind kind; /* an INT is accepted where a FLOAT is asked for */
    fl_attr value;
} fl_node_attr;

FL_MUST_CHECK fl_status fl_graph_create(const fl_registry *registry, fl_graph **out, fl_error *err);
void fl_graph_destroy(fl_graph *g); /* NULL is allowed */

/* ---- building.  Strings are copied; tensor data is borrowed. ---- */

/* A constant: one tensor, or a stack of n equal ones.  The same name gives the same value. */
FL_MUST_CHECK fl_status fl_graph_const(fl_graph *g, const char *name, const fl_tensor *tensors,
                                       int32_t n, fl_val *out, fl_error *err);
FL_MUST_CHECK fl_status fl_graph_state(fl_graph *g, const fl_state_spec *spec, fl_val *out,
                                       fl_error *err);
/* Adds a node; outs has FL_MAX_OUT room.  Inputs and attributes are checked here, and a message
 * reads "label: op(shapes of the inputs): what was found and expected".  label
 * ("layers.3.self_attn") goes before error messages and into reports. */
FL_MUST_CHECK fl_status fl_graph_node(fl_graph *g, const char *op, const char *label,
                                      const fl_val *in, int n_in, const fl_node_attr *attrs,
                                      int n_attrs, fl_val *outs, int *n_out, fl_error *err);
/* Marks a value to be shown to the step's observer under (kind, index): the running sum after layer
 * i is ("layer", i), the selection that the j-th full-attention layer makes ("select", j).
 * fl_graph_output marks the logits. */
FL_MUST_CHECK fl_status fl_graph_tap(fl_graph *g, const char *kind, int index, fl_val v,
                                     fl_error *err);
FL_MUST_CHECK fl_status fl_graph_output(fl_graph *g, fl_val logits, fl_error *err);

/* Before fl_graph_finish: keep the weights of products in 8 bits (Q8), converted when the graph is
 * finished. */
void fl_graph_keep_q8(fl_graph *g);

/* Before fl_graph_finish: keep the paged caches, declared as F32, in this form.  BF16: all of them.
 * FP8, INT8: what attention reads as F8_E4M3 or I8, and keys that an indexer scores as I8 (BF16
 * where a key has more than FL_CACHE_GROUP elements). */
void fl_graph_keep_cache(fl_graph *g, fl_kv form);

/* Runs the passes.  Constants are folded with the reference kernels when their data is there.
 * After a failure the graph can only be destroyed. */
FL_MUST_CHECK fl_status fl_graph_finish(fl_graph *g, fl_error *err);

/* ---- reading, after fl_graph_finish ---- */

const fl_type *fl_graph_type(const fl_graph *g, fl_val v);
int fl_graph_states(const fl_graph *g);
const fl_state_spec *fl_graph_state_spec(const fl_graph *g, int i);
int fl_graph_nodes(const fl_graph *g); /* in order of execution */
fl_node_view fl_graph_node_view(const fl_graph *g, int i);
const char *fl_graph_node_label(const fl_graph *g, int i);
int64_t fl_graph_saved_bytes(const fl_graph *g); /* of weights, by fl_graph_keep_q8 */
int64_t fl_graph_vocab(const fl_graph *g);       /* width of the logits */
/* Sum of the cost rules over all nodes. */
fl_cost fl_graph_cost(const fl_graph *g, const fl_sizes *sizes);

#endif
