/* The operator contract.
 *
 * An operator (fl_op) has a name, typed attributes, a rule that checks its inputs and infers its
 * outputs, and a cost rule.  It has one or more kernels (fl_kernel): for every operator a plain-C
 * float32 kernel in src/ops/ref, which is its definition, and faster ones for a processor level,
 * weight type or precision.  The plan takes, among the kernels that fit, the one of highest
 * preference, or the one that the caller named.
 *
 * A device (device.h) brings kernels of its own, which follow the same contract with one worker.
 *
 * Kernels of one operator agree with the reference within float32 rounding (tests/unit/test_ops.c
 * holds them against it).  A CPU kernel fixes its order of summation per output element, so the
 * result for a row depends on nothing but that row and its sequence: not on the other rows, the
 * number of threads, or the cutting of a prompt along the chunk grid (step.h). */
#ifndef FL_GRAPH_OP_H
#define FL_GRAPH_OP_H

#include "base/arena.h"
#include "base/cpu.h"
#include "checkpoint/tensor.h"
#include "graph/step.h"

/* How many rows a value has: a symbol that each step gives a number. */
typedef enum fl_rows {
    FL_ROWS_CONST,  /* a weight or folded constant: no row axis */
    FL_ROWS_TOKENS, /* step->n_rows */
    FL_ROWS_LOGITS, /* step->n_logits */
    FL_ROWS_STATE   /* a state pool: no data of its own */
} fl_rows;

/* The type of a value: rows of dim[0] x ... x dim[ndim-1] elements.  For FL_ROWS_CONST the dims are
 * the tensor's whole shape.  Activations are F32 or I32. */
typedef struct fl_type {
    fl_rows rows;
    fl_dtype dtype;
    int ndim;
    int64_t dim[FL_MAX_DIMS];
    int32_t n_tensors; /* constants: 1, or the height of a stack of equal tensors (experts) */
    int32_t state;     /* FL_ROWS_STATE: index of the pool; else -1 */
    bool paged;        /* FL_ROWS_STATE: an item (of dims) per token; else one per sequence */
} fl_type;

/* Elements of one row (activations) or of one tensor (constants). */
static inline int64_t fl_type_width(const fl_type *t)
{
    int64_t n = 1;
    for (int i = 0; i < t->ndim; i++)
        n *= t->dim[i];
    return n;
}

typedef enum fl_attr_kind {
    FL_ATTR_INT,
    FL_ATTR_FLOAT,
    FL_ATTR_BOOL,
    FL_ATTR_TEXT,
    FL_ATTR_INTS
} fl_attr_kind;

typedef struct fl_attr {
    int64_t i;        /* INT, BOOL */
    double f;         /* FLOAT */
    const char *text; /* TEXT; owned by the graph */
    int n;            /* INTS */
    int64_t v[FL_MAX_DIMS];
    bool set; /* given by the model file (else the default applies) */
} fl_attr;

/* An attribute's name, kind and default.  required: there is no default. */
typedef struct fl_attr_spec {
    const char *name;
    fl_attr_kind kind;
    bool required;
    double number;    /* default of INT, FLOAT, BOOL */
    const char *text; /* default of TEXT */
} fl_attr_spec;

enum { FL_MAX_OUT = 16 };

/* One node as its rules see it.  in[i] is NULL for an optional input that was left out; those left
 * out at the end are not counted in n_in. */
typedef struct fl_node_view {
    const struct fl_op *op;
    int n_in, n_out;
    const fl_type *const *in;
    const fl_type *out;  /* [n_out]; cost rule only */
    const fl_attr *attr; /* in the order of op->attrs, defaults filled in */
    const void *prep;    /* what prepare() returned */
} fl_node_view;

/* Numbers for the symbols, for cost rules. */
typedef struct fl_sizes {
    int64_t rows, logits, context; /* context: cached tokens a row looks back on */
} fl_sizes;

typedef struct fl_cost {
    double flops;        /* multiply and add count as two */
    double weight_bytes; /* weights read once a step (of experts: those touched) */
    double state_bytes;  /* caches and recurrent records read and written */
} fl_cost;

typedef struct fl_op {
    const char *name;
    const char *doc; /* one line: the formula and where it comes from */
    int min_in, max_in;
    const fl_attr_spec *attrs;
    int n_attrs;
    bool effect; /* writes state: never removed, keeps its order among nodes of that state */
    bool view;   /* its output is its first input seen otherwise: no kernel, no memory (op "view").
                    Attributes: offset (INT, elements), then dims (INTS) */

    /* Checks inputs and attributes and writes the n_out output types; out[] has FL_MAX_OUT room.
     * Messages say what was expected and found ("input 1 (weight) is [4, 8], expected [*, 16]"). */
    fl_status (*infer)(const fl_node_view *node, fl_type *out, int *n_out, fl_error *err);

    /* Optional: compiles attributes once (an expression, say).  The result lives in the arena. */
    fl_status (*prepare)(const fl_node_view *node, fl_arena *arena, const void **prep,
                         fl_error *err);

    void (*cost)(const fl_node_view *node, const fl_sizes *sizes, fl_cost *out);
} fl_op;

/* ---- running ---- */

/* An operand at run time. */
typedef struct fl_arg {
    fl_type type;
    void *data;               /* activations: row 0.  Constants: tensors[0].data.  NULL: left out */
    int64_t stride;           /* activations: elements from one row to the next */
    const fl_tensor *tensors; /* constants: type.n_tensors of them */
} fl_arg;

typedef struct fl_call {
    const struct fl_kernel *kernel;
    int n_in, n_out;
    const fl_arg *in, *out;
    const fl_attr *attr;
    const void *prep;
} fl_call;

/* Upper bounds a plan is made for. */
typedef struct fl_limits {
    int32_t max_rows, max_logits, n_threads;
    int64_t max_context;
    int32_t max_seqs; /* sequences of a step; 0: as many as rows */
} fl_limits;

typedef struct fl_worker {
    int thread, n_threads;
    void *scratch;          /* this worker's own, 64-aligned, as large as the kernel asked for */
    void *shared;           /* one for all workers; survives from phase to phase of one call */
    void *queue;            /* kernels of a device: where to put their work (device.h); else NULL */
    struct fl_taken *taken; /* [n_threads] of the pool (base/taken.h); NULL: shares are kept */
} fl_worker;

/* A worker that is done before the others takes over parts of their shares, where a kernel offers
 * that: it goes round the owners of shares, itself first, and takes their parts in order until
 * fl_take gives a number past the last.  Who computes an output never changes its bits.
 * fl_owner: the j-th owner that a worker looks at, j < n_threads. */
static inline int fl_owner(const fl_worker *w, int j)
{
    return (w->thread + j) % w->n_threads;
}

/* Runs phase `phase` of a call.  All workers enter every phase and are joined between phases; a
 * worker does its part of the work (fl_split, fl_take) and must not wait for another. */
typedef void (*fl_kernel_fn)(const fl_call *call, const fl_step *step, int phase,
                             const fl_worker *worker);

typedef struct fl_kernel {
    const char *op, *name; /* "linear", "rows16-avx512" */
    fl_isa isa;            /* lowest processor level */
    bool fast;             /* only for precision "fast" (rounded activations) */
    bool bf16_dots;        /* made of BF16 dot products: not preferred where these are slow */
    int preference;        /* higher wins; the reference kernels have 0, twins less */
    int n_phases;
    fl_kernel_fn run;
    bool (*fits)(const fl_node_view *node); /* dtypes and shapes it can do; NULL: all */
    /* Bytes it needs per worker and shared; NULL: none. */
    void (*scratch)(const fl_node_view *node, const fl_limits *limits, size_t *per_worker,
                    size_t *shared);
} fl_kernel;

/* The kernels of one source file (at one processor level). */
typedef struct fl_kernel_list {
    const fl_kernel *kernels;
    int n;
} fl_kernel_list;

#define FL_KERNEL_LIST(array)                                                                      \
    {                                                                                              \
        (array), (int)(sizeof(array) / sizeof *(array))                                            \
    }

/* All operators and kernels that exist; src/ops/registry.c has the one instance. */
typedef struct fl_registry {
    const fl_op *const *ops;
    int n_ops;
    const fl_kernel_list *const *lists;
    int n_lists;
} fl_registry;

const fl_op *fl_registry_op(const fl_registry *r, const char *name); /* or NULL */

/* The i-th kernel, counted through all lists; NULL past the last:
 * for (int i = 0; (k = fl_registry_kernel(r, i)) != NULL; i++) */
static inline const fl_kernel *fl_registry_kernel(const fl_registry *r, int i)
{
    for (int l = 0; l < r->n_lists; i -= r->lists[l++]->n) {
        if (i < r->lists[l]->n)
            return &r->lists[l]->kernels[i];
    }
    return NULL;
}

static inline int32_t fl_rows_now(const fl_step *s, fl_rows rows)
{
    return rows == FL_ROWS_TOKENS ? s->n_rows : rows == FL_ROWS_LOGITS ? s->n_logits : 1;
}

/* Row r of an activation, as float. */
static inline float *fl_row_f32(const fl_arg *a, int64_t r)
{
    return (float *)a->data + r * a->stride;
}

#endif
