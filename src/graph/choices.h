/* Kernels chosen beforehand: for a node, described by its signature, the name of the kernel that
 * was found to be the fastest (engine/tune.h).  A plan takes it where it still exists, is allowed
 * and fits; a kernel named by the caller comes before it, preference after it. */
#ifndef FL_GRAPH_CHOICES_H
#define FL_GRAPH_CHOICES_H

#include "graph/plan.h"

enum { FL_SIGNATURE = 512 }; /* bytes, the final 0 included */

/* What decides how fast a node runs: "linear(tokens [2048], BF16 [8192, 2048])", and the attributes
 * that were given.  Longer ones are cut and end in a hash of the whole.  Returns out. */
const char *fl_node_signature(const fl_graph *g, int node, char out[FL_SIGNATURE]);

/* The host's kernels that may run a node under these options, in the order of the registry; at most
 * max are written.  Returns how many there are.  View nodes have none. */
int fl_node_kernels(const fl_graph *g, int node, const fl_plan_options *o, const fl_kernel **out,
                    int max);

FL_MUST_CHECK fl_status fl_choices_create(fl_choices **out, fl_error *err);
void fl_choices_destroy(fl_choices *c); /* NULL is allowed */
/* Both texts are copied; a second choice for a signature replaces the first. */
FL_MUST_CHECK fl_status fl_choices_set(fl_choices *c, const char *signature, const char *kernel,
                                       fl_error *err);
const char *fl_choices_get(const fl_choices *c, const char *signature); /* NULL: none */

#endif
