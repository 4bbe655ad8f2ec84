/* A plan: the graph made flat for one machine.  It holds one workspace for all intermediates, whose
 * size is known from the limits alone, and an array of kernel calls.  Running it allocates nothing
 * and looks nothing up. */
#ifndef FL_GRAPH_PLAN_H
#define FL_GRAPH_PLAN_H

#include "base/pool.h"
#include "graph/device.h"
#include "graph/graph.h"

typedef struct fl_plan fl_plan;
typedef struct fl_choices fl_choices; /* choices.h */

typedef struct fl_plan_options {
    fl_limits limits;
    fl_isa isa; /* highest level to use; kernels above it are not considered */
    bool fast;  /* precision fast: kernels with rounded activations are allowed */
    /* "mla=expanded,delta_rule=chunked" picks by name, or by the part of a name before a dash
     * ("rows16" for "rows16-avx2" and its like); where the pick does not fit, and for NULL,
     * preference decides.  A name that does not exist, needs a higher level, or fits nowhere is an
     * error.  "mla=cpu" and "mla=cpu:expanded" name kernels of the host in a device's plan, too. */
    const char *kernels;
    const fl_choices
        *choices;      /* measured before, for kernels of the host; NULL: none.  Not owned. */
    fl_device *device; /* runs the plan with its own kernels, and the host what it has none for;
                          NULL: the host does.  Not owned. */
} fl_plan_options;

/* Sees a tapped value right after it was computed: rows x width elements, `stride` apart; dtype F32
 * or I32. */
typedef void (*fl_tap_fn)(void *ctx, const char *kind, int index, const fl_arg *value,
                          int32_t rows);

/* Chooses kernels and sizes memory; allocates nothing but the plan itself, so it also serves to
 * predict.  fl_plan_prepare allocates the workspace, on a device out of what was reserved, and
 * brings the weights there.  The graph must outlive the plan. */
FL_MUST_CHECK fl_status fl_plan_create(const fl_graph *g, const fl_plan_options *opts,
                                       fl_plan **out, fl_error *err);
FL_MUST_CHECK fl_status fl_plan_prepare(fl_plan *p, fl_error *err);
void fl_plan_destroy(fl_plan *p); /* NULL is allowed */

size_t fl_plan_workspace_bytes(const fl_plan *p); /* intermediates and scratch */
size_t fl_plan_device_bytes(const fl_plan *p);    /* what prepare takes of the device's reserve:
                                                     workspace and weights; 0 without a device */
size_t fl_plan_host_bytes(const fl_plan *p);      /* what it takes of the host's memory */
int fl_plan_calls(const fl_plan *p);              /* nodes that are not views */
const fl_kernel *fl_plan_kernel(const fl_plan *p, int node); /* chosen for graph node; NULL: view */

/* Of a device's plan: why the host runs a node ("named so"), NULL when it does not; how many calls
 * it makes; and for each state whether it must lie in its memory, because its nodes use it. */
const char *fl_plan_on_host(const fl_plan *p, int node);
int fl_plan_host_calls(const fl_plan *p);
const bool *fl_plan_states_on_host(const fl_plan *p);

/* From now on a step adds the microseconds of every call to us[its graph node], from the last
 * barrier of the call before to its own, or, on a device, from the end of one to the end of the
 * next; us has fl_graph_nodes entries, and stays the caller's.  NULL ends it. */
void fl_plan_profile(fl_plan *p, int64_t *us);

/* Runs one step on the pool, which has at most limits.n_threads threads (a device needs one for
 * what the host runs).  FL_ARGUMENT, and nothing was run, when the step breaks a limit or
 * contradicts itself (token ids and page numbers are the engine's to check).  Nodes over logit rows
 * are left out of a step without logits, and so are their taps.  tap may be NULL; it is called on
 * the calling thread, in the order of the nodes. */
FL_MUST_CHECK fl_status fl_plan_run(fl_plan *p, fl_pool *pool, const fl_step *step, fl_tap_fn tap,
                                    void *ctx, fl_error *err);
/* The logits of the last step: [n_logits, vocab] float32, packed, valid until the next; NULL when
 * the graph has none or the plan is not prepared.  A device keeps them: there rows are valid once
 * they have been fetched (elsewhere fetching does nothing). */
float *fl_plan_logits(const fl_plan *p);
FL_MUST_CHECK fl_status fl_plan_fetch(fl_plan *p, int32_t first, int32_t n, fl_error *err);

/* How to take a token from a row of logits (ops/draw.h): a device does it where the logits are.  As
 * it travels there: FL_DRAW_WORDS words of a row.  All zero: the highest. */
typedef struct fl_draw {
    float scale;     /* log2(e) / temperature; 0: the highest is taken */
    float floor;     /* of what is kept, from the highest; -infinity: off */
    int32_t top_k;   /* 0: off */
    uint32_t top_p;  /* in 2^-32; FL_DRAW_ALL: off */
    uint64_t random; /* the point of the distribution, in 2^-64 */
} fl_draw;
enum { FL_DRAW_WORDS = sizeof(fl_draw) / sizeof(int32_t) };
#define FL_DRAW_ALL UINT32_MAX

/* Where to say, before a step, how the tokens of its logits are to be taken: [n_logits], kept until
 * it is written again; NULL: the plan takes none by itself. */
fl_draw *fl_plan_draws(fl_plan *p);

/* What a device takes from each row of the logits of a step. */
enum { FL_PICK_NOT_FINITE, FL_PICK_FOUND, FL_PICK_ASK /* fetch the row: too many are alike */ };
typedef struct fl_pick {
    int32_t id, state; /* the id means something with FL_PICK_FOUND */
} fl_pick;
const fl_pick *fl_plan_picks(const fl_plan *p); /* [n_logits] of the last step; NULL: not found */

#endif
