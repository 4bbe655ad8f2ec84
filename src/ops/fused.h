/* Calls that a GPU makes in one go, as CUDA source that is compiled when a plan is prepared.
 *
 * Expressions, norms, short convolutions and residual mixes work on rows: element i of an output
 * needs element i of an input, or a vector of it (the granule: what a norm goes over).  So calls
 * that read each other's outputs as a whole form a chain, which is cut into spans of one granule; a
 * team of threads holds a span of every value in registers and goes through the calls in order.
 * Chains that have nothing to do with each other stand side by side in one kernel.  Every output is
 * written to memory, too: others may read it.
 *
 * This part decides and writes text; it needs no GPU.  fused.cu compiles and launches. */
#ifndef FL_OPS_FUSED_H
#define FL_OPS_FUSED_H

#include "base/vec.h"
#include "graph/device.h"
#include "ops/gpu/row_math.h"

enum { FL_FUSED_CALLS = 24 };

/* fl_device_fn.joins. */
bool fl_fused_joins(const fl_node_view *members, int n, const fl_node_view *node, uint64_t inside);

typedef struct fl_fused_chain {
    int64_t width, span; /* elements of a row, and those that a team holds */
    int threads;         /* of a team */
    int64_t teams;       /* for a row */
    unsigned blocks;     /* likewise */
} fl_fused_chain;

typedef struct fl_fused {
    int n_calls, n_chains, n_args, n_states, threads; /* of a block */
    const fl_call *const *call;
    int chain_of[FL_FUSED_CALLS];
    fl_fused_chain chain[FL_FUSED_CALLS];
    const fl_arg *arg[GPU_FUSED_ARGS]; /* gpu_fused.at */
    int32_t state[GPU_FUSED_STATES];   /* pools: gpu_fused.state */
    unsigned blocks;                   /* for a row, of all chains */
} fl_fused;

/* Lays out a joint whose operands have addresses; false: it is not worth a kernel of its own, or
 * too much for one. */
bool fl_fused_lay(const fl_joint *j, fl_fused *out);

/* The text of all kernels of a plan, each once: joints that differ in addresses alone share one. */
typedef struct fl_fused_unit {
    FL_VEC(fl_buf) texts;
} fl_fused_unit;

/* Adds the kernel of a joint; *number: it will be called "fused<number>".  false: out of memory. */
bool fl_fused_unit_add(fl_fused_unit *u, const fl_fused *f, int *number);
/* Appends the whole text and a zero. */
bool fl_fused_unit_write(const fl_fused_unit *u, fl_buf *to);
void fl_fused_unit_free(fl_fused_unit *u);

#endif
