/* What the files of a plan share: choice of kernels (choose.c), layout of memory (memory.c), the
 * flat array (plan.c), its execution (run.c), the part of both that a device plays (device.c), the
 * nodes that it makes in one go (join.c), and those that the host runs for it (host.c). */
#ifndef FL_GRAPH_PLAN_INTERNAL_H
#define FL_GRAPH_PLAN_INTERNAL_H

#include "graph/graph_internal.h"
#include "graph/plan.h"

/* Where row 0 of a value lies.  Constants and states are not placed. */
typedef struct fl_place {
    fl_val root; /* of a view: the value whose memory it is; else itself */
    bool placed;
    size_t offset;  /* bytes from the start of the workspace */
    int64_t stride; /* elements from row to row; of a view: those of what it looks into */
} fl_place;

typedef struct fl_plan_tap {
    const char *kind;
    int index;
    const fl_arg *value;
} fl_plan_tap;

typedef struct fl_plan_item { /* one kernel call and the taps that follow it */
    fl_call call;
    int node;            /* of the graph */
    const fl_arg *there; /* the host runs it for a device: its operands in the workspace, of which
                            the call's are copies in host memory; else NULL */
    fl_joint *joint;     /* the calls that are made together with this one; NULL: none */
    bool leads;          /* it is the first of them */
    bool logits_only;    /* nothing to do in a step without logits */
    int first_tap, n_taps;
} fl_plan_item;

struct fl_plan {
    const fl_graph *graph;
    fl_limits limits;
    fl_arena arena;
    const fl_kernel **kernels; /* [nodes]; NULL: view */
    const char **on_host;      /* [nodes] why the host runs it for a device; NULL: it does not */
    bool *state_on_host;       /* [states] */
    bool *named;               /* [nodes] the caller named the kernel */
    bool *joins;               /* [nodes] the device can make it in one go with others */
    int32_t *at; /* [nodes] the node in whose place it is made: the first of its joint, or itself */
    int32_t *next; /* [nodes] the next of its joint; FL_NONE: the last, or alone */
    fl_joint *joints;
    const fl_call **joint_calls; /* [nodes] of all joints, one after the other */
    int n_joints;
    fl_plan_item *items;
    int n_items;
    fl_plan_tap *taps; /* in order of the items */
    int n_taps;

    /* All operands, those of one call side by side, then those of the taps, then the logits. */
    fl_arg *args;
    fl_place *arg_place; /* data is filled in when the workspace is there */
    fl_val *arg_val;     /* FL_NONE: left out */
    size_t n_args;

    /* The workspace: values, then the logits if they must be gathered (on a device: how
     * tokens are to be taken, and those that were), then per-worker scratch, then shared scratch.
     * Every part starts at a multiple of FL_CACHE_LINE. */
    size_t value_bytes, gather_bytes, worker_bytes, shared_bytes, workspace_bytes;
    unsigned char *workspace; /* NULL: not prepared */
    void *raw;                /* in host memory: the allocation that it lies in */
    const fl_arg *logits;     /* NULL: the graph has none */
    int64_t *us;              /* [nodes] of fl_plan_profile; NULL: nobody asks */

    /* With a device the workspace is there, and so are copies of the constants. */
    fl_device *device;
    size_t device_bytes;
    int64_t *marks;           /* [calls + 1] times within a step, when they are asked for */
    fl_call pick_call;        /* takes the next tokens; kernel NULL: none can */
    fl_arg pick_in[2], pick;  /* logits, draws [max_logits, FL_DRAW_WORDS]; [max_logits, 2] */
    int32_t n_drawn;          /* rows of draws that may not be zero there */
    fl_draw *host_draws;      /* [max_logits] */
    fl_pick *host_picks;      /* [max_logits] */
    float *host_logits;       /* [max_logits, vocab] */
    unsigned char *host_rows; /* the rows of a tapped value */

    /* The calls that the host makes for it, one at a time: operands, then scratch of each of
     * n_threads workers, then shared scratch. */
    int n_threads, n_host_calls;
    fl_arg *host_args;
    size_t *host_at; /* offsets of the operands */
    size_t n_host_args, operand_bytes, host_worker_bytes, host_shared_bytes;
    unsigned char *host_area;
    void *host_raw; /* the allocation that it lies in */
};

/* A step whose calls are to be made, and who watches. */
typedef struct fl_walk {
    fl_plan *plan;
    fl_pool *pool; /* on a device: used for the calls of the host alone */
    const fl_step *step;
    fl_tap_fn tap;
    void *ctx;
} fl_walk;

/* device.c */
FL_MUST_CHECK fl_status fl_plan_device_measure(fl_plan *p, fl_error *err);
void fl_plan_device_picks(fl_plan *p);              /* before scratch is measured */
size_t fl_plan_device_host_bytes(const fl_plan *p); /* of host memory, by prepare */
FL_MUST_CHECK fl_status fl_plan_device_prepare(fl_plan *p, fl_error *err);
FL_MUST_CHECK fl_status fl_plan_device_run(const fl_walk *w, fl_error *err);

/* host.c */
/* Gives an item whose operands are set copies of them in host memory; false: beyond memory. */
bool fl_plan_host_item(fl_plan *p, fl_plan_item *item, const fl_node *node);
bool fl_plan_host_area(const fl_plan *p, size_t *bytes);
FL_MUST_CHECK fl_status fl_plan_host_prepare(fl_plan *p, fl_error *err);
FL_MUST_CHECK fl_status fl_plan_host_call(const fl_walk *w, const fl_plan_item *item,
                                          fl_error *err);

/* Fills kernels, named, on_host and state_on_host. */
FL_MUST_CHECK fl_status fl_plan_choose(fl_plan *p, const fl_plan_options *opts, fl_error *err);

/* join.c: finds the nodes that can be made in one go, which fills at and next, and counts them. */
FL_MUST_CHECK fl_status fl_plan_join(fl_plan *p, fl_error *err);

/* Places all computed values: place has one entry per value of the graph. */
FL_MUST_CHECK fl_status fl_plan_place(fl_plan *p, fl_place *place, fl_error *err);

/* Rounds up to FL_CACHE_LINE; false when it wraps. */
static inline bool fl_round_line(size_t n, size_t *out)
{
    return !__builtin_add_overflow(n, (size_t)FL_CACHE_LINE - 1, out) &&
           ((*out &= ~((size_t)FL_CACHE_LINE - 1)), true);
}

#endif
