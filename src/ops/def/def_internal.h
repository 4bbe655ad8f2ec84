/* What the operator definitions share, and what kernels need to know of them: the fl_op of every
 * operator, the indices of its attributes, and the check of an input against what is wanted of it,
 * which writes the message (the graph puts the layer, the operator and all shapes before it). */
#ifndef FL_OPS_DEF_INTERNAL_H
#define FL_OPS_DEF_INTERNAL_H

#include "graph/cache_row.h"
#include "graph/op.h"

/* Every operator, in the order of docs/internals/operators.md. */
#define FL_OP_MAP(X)                                                                               \
    X(embed)                                                                                       \
    X(rmsnorm)                                                                                     \
    X(l2norm)                                                                                      \
    X(layernorm)                                                                                   \
    X(rope)                                                                                        \
    X(linear)                                                                                      \
    X(conv1d)                                                                                      \
    X(delta_rule)                                                                                  \
    X(cache_write)                                                                                 \
    X(mla)                                                                                         \
    X(index_select)                                                                                \
    X(route)                                                                                       \
    X(experts)                                                                                     \
    X(residual_mix)                                                                                \
    X(expr)                                                                                        \
    X(gather_logits)                                                                               \
    X(pick)                                                                                        \
    X(view)                                                                                        \
    X(cast)

#define FL_OP_DECLARE(name) extern const fl_op fl_op_##name;
FL_OP_MAP(FL_OP_DECLARE)
#undef FL_OP_DECLARE

/* Indices into fl_call.attr and fl_node_view.attr. */
enum { FL_RMSNORM_EPS };
enum { FL_L2NORM_EPS, FL_L2NORM_SCALE };
enum { FL_LAYERNORM_EPS };
enum {
    FL_ROPE_OFFSET,
    FL_ROPE_WIDTH,
    FL_ROPE_PAIRING,
    FL_ROPE_THETA,
    FL_ROPE_FACTOR,
    FL_ROPE_CONTEXT,
    FL_ROPE_BETA_FAST,
    FL_ROPE_BETA_SLOW
};
enum { FL_MLA_V_DIM, FL_MLA_SCALE };
enum { FL_INDEX_SELECT_TOPK, FL_INDEX_SELECT_SCALE };
enum {
    FL_ROUTE_TOPK,
    FL_ROUTE_FUNC,
    FL_ROUTE_RENORMALIZE,
    FL_ROUTE_SCALE,
    FL_ROUTE_GROUPS,
    FL_ROUTE_TOPK_GROUPS
};
enum { FL_EXPERTS_ACT, FL_EXPERTS_CONSTS };
enum { FL_RESIDUAL_MIX_EPS };
enum { FL_EXPR_TEXT, FL_EXPR_NAMES, FL_EXPR_CONSTS };
enum { FL_VIEW_OFFSET, FL_VIEW_DIMS };

/* Inputs of the operators that look across rows. */
enum { FL_DELTA_Q, FL_DELTA_K, FL_DELTA_V, FL_DELTA_G, FL_DELTA_BETA, FL_DELTA_STATE };
enum { FL_MLA_Q, FL_MLA_KV_B, FL_MLA_CACHE, FL_MLA_SELECT };
enum { FL_INDEX_Q, FL_INDEX_W, FL_INDEX_KEYS };

enum { FL_MIX_SOURCES = 32 }; /* most sources of one residual_mix */

/* What rope prepares: pair j is the elements first + j * step and that + gap of the last dim, and
 * turns by position * freq[j]. */
typedef struct fl_rope {
    int64_t first, step, gap, pairs;
    const double *freq; /* [pairs], radians per position */
} fl_rope;

/* ---- what an input has to be ---- */

typedef enum fl_want_kind {
    FL_WANT_ACTIVATION, /* token or logit rows */
    FL_WANT_CONST,      /* one tensor */
    FL_WANT_STACK,      /* one or more equal tensors */
    FL_WANT_PAGED,      /* state with an item per token */
    FL_WANT_RECURRENT   /* state with an item per sequence */
} fl_want_kind;

#define FL_DTYPE_BIT(t) (1u << (t))
enum {
    FL_WANT_F32 = FL_DTYPE_BIT(FL_F32),
    FL_WANT_I32 = FL_DTYPE_BIT(FL_I32),
    FL_WANT_FLOAT = FL_DTYPE_BIT(FL_F32) | FL_DTYPE_BIT(FL_BF16) | FL_DTYPE_BIT(FL_F16),
    FL_WANT_MATRIX =
        FL_WANT_FLOAT | FL_DTYPE_BIT(FL_MXFP4) | FL_DTYPE_BIT(FL_F8_BLOCK) | FL_DTYPE_BIT(FL_Q8),
    FL_WANT_CACHE = FL_DTYPE_BIT(FL_F32) | FL_DTYPE_BIT(FL_BF16) | FL_DTYPE_BIT(FL_F8_E4M3) |
                    FL_DTYPE_BIT(FL_I8)
};

/* Keys in 8 bits have one scale each, so no more elements than share one. */
static inline unsigned fl_index_key_types(int64_t d)
{
    return FL_DTYPE_BIT(FL_F32) | FL_DTYPE_BIT(FL_BF16) |
           (d <= FL_CACHE_GROUP ? FL_DTYPE_BIT(FL_I8) : 0);
}

enum { FL_ANY = -1 }; /* a dim that may be anything */

typedef struct fl_want {
    const char *what; /* "weight" */
    fl_want_kind kind;
    unsigned dtypes; /* set of FL_DTYPE_BIT */
    bool lead;       /* any dims may stand before the ones given */
    int ndim;
    int64_t dim[FL_MAX_DIMS];
} fl_want;

/* Checks input i.  On failure the message names the input, shows its type and the wanted one:
 * "input 1 (weight) is a constant F32 [4, 8], expected a constant BF16, F16 or F32 [*, 16]". */
FL_MUST_CHECK fl_status fl_def_want(const fl_node_view *node, int i, const fl_want *want,
                                    fl_error *err);
/* Activations must have the row symbol of input `as`. */
FL_MUST_CHECK fl_status fl_def_same_rows(const fl_node_view *node, int i, int as, fl_error *err);
/* Attribute i must be a finite number in [low, high]. */
FL_MUST_CHECK fl_status fl_def_number(const fl_node_view *node, int i, double low, double high,
                                      fl_error *err);

/* An F32 activation (or constant) with the rows of `like` and the dims given. */
fl_type fl_def_type(fl_rows rows, fl_dtype dtype, int ndim, const int64_t *dim);

/* ---- for cost rules ---- */

double fl_def_rows(const fl_type *t, const fl_sizes *sizes); /* how many rows now */
double fl_def_bytes(const fl_type *t);                       /* one row, or one tensor */

#endif
