/* What `tune` found on this machine for one model: for every kind of node with a choice of kernels,
 * how long each took and which is to be used.  Kept as one JSON file per key in a folder; the key
 * names processor, threads, precision, version and the shapes of the model, so a file is never used
 * where it was not measured (docs/internals/engine.md). */
#ifndef FL_TUNING_H
#define FL_TUNING_H

#include "engine/engine.h"
#include "graph/choices.h"

enum { FL_TUNED_KERNELS = 16 }; /* alternatives that are tried at most */

typedef struct fl_tuned_kernel {
    const char *name;
    double prompt_us, step_us; /* all nodes of the kind: in the prompt, in a step of one token */
} fl_tuned_kernel;

typedef struct fl_tuned_node {
    const char *signature; /* fl_node_signature */
    int nodes;             /* of this kind in the graph */
    int n_kernels, usual, chosen;
    fl_tuned_kernel kernels[FL_TUNED_KERNELS];
} fl_tuned_node;

typedef struct fl_tuning fl_tuning;

/* Told before each round of measuring; may be NULL. */
typedef void (*fl_tune_fn)(void *ctx, int round, int n_rounds);

/* Runs a prompt of `prompt` tokens and `steps` steps of generation on the CPU, as often as the node
 * with the most alternatives needs, and keeps for each kind of node the kernel with the least
 * prompt_us / (least prompt_us) + step_us / (least step_us); what preference would take stays
 * unless another is better by a twentieth. */
FL_MUST_CHECK fl_status fl_tune(const fl_model *m, const fl_engine_options *o, int prompt,
                                int steps, fl_tune_fn told, void *ctx, fl_tuning **out,
                                fl_error *err);
void fl_tuning_destroy(fl_tuning *t); /* NULL is allowed */

/* Writes the file into dir, which is made if it is not there; path: where it is. */
FL_MUST_CHECK fl_status fl_tuning_save(const fl_tuning *t, const char *dir, char path[512],
                                       fl_error *err);
/* Reads what was measured for this model with these options (threads, isa, fast).  FL_NOTFOUND when
 * nothing was; FL_FORMAT when the file is damaged. */
FL_MUST_CHECK fl_status fl_tuning_load(const fl_model *m, const fl_engine_options *o,
                                       const char *dir, fl_tuning **out, fl_error *err);

const fl_choices *fl_tuning_choices(const fl_tuning *t); /* lives as long as t */
const char *fl_tuning_key(const fl_tuning *t);
int fl_tuning_nodes(const fl_tuning *t);
const fl_tuned_node *fl_tuning_node(const fl_tuning *t, int i);

#endif
