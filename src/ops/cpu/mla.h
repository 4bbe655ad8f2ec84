/* What the two forms of mla share: the geometry of a call, the weights, the blocks of cached rows,
 * and the absorbed form itself, which the expanded form uses for the rows that it does not take.
 *
 * Precision fast, where the processor has BF16 dot products: queries, cached rows, weights of the
 * softmax, and of the expanded form also keys and values, are rounded to BF16 and multiplied in
 * pairs (pairs.h); the rest is float32 as in exact. */
#ifndef FL_OPS_CPU_MLA_H
#define FL_OPS_CPU_MLA_H

#include "ops/cpu/attend.h"
#include "ops/cpu/room.h"

typedef struct fl_mla {
    const fl_step *step;
    const fl_arg *q, *select, *out; /* select: NULL when left out */
    const fl_tensor *kv_b;
    const fl_state_pool *pool;
    fl_dtype cache; /* its type (graph/cache_row.h) */
    int64_t heads, nope, pe, dv, latent;
    float scale;
    bool fast;
    int64_t width; /* of a cached row: latent + pe */
    int64_t d;     /* the same in what is multiplied: floats, or words of two elements */
    int64_t ldq;   /* an absorbed query: width, and room for whole vectors of the latent */
    int64_t ldc;   /* a latent in whole vectors */
    int nv;        /* these vectors */
    int64_t group; /* heads that are worked on together, at most FL_ATTEND_QUERIES */
} fl_mla;

#define fl_mla_shape FL_CPU_NAME(fl_mla_shape)
#define fl_mla_of FL_CPU_NAME(fl_mla_of)
#define fl_mla_absorbed FL_CPU_NAME(fl_mla_absorbed)
#define fl_mla_weights FL_CPU_NAME(fl_mla_weights)
#define fl_mla_absorb FL_CPU_NAME(fl_mla_absorb)
#define fl_mla_project FL_CPU_NAME(fl_mla_project)
#define fl_mla_place FL_CPU_NAME(fl_mla_place)
#define fl_mla_load FL_CPU_NAME(fl_mla_load)
#define fl_mla_cut_block FL_CPU_NAME(fl_mla_cut_block)
#define fl_mla_cut_head FL_CPU_NAME(fl_mla_cut_head)
#define fl_mla_ready_head FL_CPU_NAME(fl_mla_ready_head)
#define fl_mla_expand FL_CPU_NAME(fl_mla_expand)
#define fl_mla_rows FL_CPU_NAME(fl_mla_rows)
#define fl_mla_few_rows FL_CPU_NAME(fl_mla_few_rows)
#define fl_mla_scratch FL_CPU_NAME(fl_mla_scratch)

/* The sizes alone, of a node; all of a call. */
fl_mla fl_mla_shape(const fl_node_view *node, bool fast);
fl_mla fl_mla_of(const fl_call *call, const fl_step *step);
/* What the absorbed form works with in a call of precision fast: pairs, but not for float32 rows of
 * up to 16 heads.  Those are bound by their bytes, and rounding them first only takes longer. */
fl_mla fl_mla_absorbed(const fl_mla *m);

/* ---- weights (mla_weights.c) ---- */

enum { FL_MLA_PANEL = 16 }; /* weight rows that are decoded together */

/* The height of the panel that begins at row i of rows [0, end). */
static inline int fl_mla_panel(int64_t i, int64_t end)
{
    return end - i < FL_MLA_PANEL ? (int)(end - i) : FL_MLA_PANEL;
}

/* Decodes n rows (at most FL_MLA_PANEL) of kv_b from `row` on, ldc apart, padded with zeros. */
void fl_mla_weights(const fl_mla *m, int64_t row, int n, float *panel);

/* Absorbed queries, scale * (UK_h^T q_nope, q_pe), of rows [row, row + n) and heads [h0, h1): a row
 * of out has those heads, ldq floats each (fast: d words at the beginning of these); ld from row to
 * row.  panel: FL_MLA_PANEL rows of ldc. */
void fl_mla_absorb(const fl_mla *m, int32_t row, int n, int64_t h0, int64_t h1, float *out,
                   int64_t ld, float *panel);

/* Outputs of head h of rows [row, row + n): UV_h times the latent of each, ld floats apart.
 * scratch: FL_WEIGHTS_SCRATCH bytes. */
void fl_mla_project(const fl_mla *m, int32_t row, int n, int64_t h, float *latent, int64_t ld,
                    void *scratch);

/* ---- cached rows (mla_block.c) ---- */

typedef struct fl_mla_block {
    float *keys;   /* [d][64] */
    float *rows;   /* [64][ldq]: rows that cannot be used where they lie */
    float *values; /* fast: [32][ldc] */
    float *spare;  /* fast: [ldc] */
} fl_mla_block;

void fl_mla_cut_block(const fl_mla *m, fl_room *r, fl_mla_block *b);

/* Brings n rows into a block: positions pos[0..n), or first, first + 1, ... when pos is NULL (of
 * one page then, from its beginning).  fl_mla_place leaves the keys out: a row is its value and, as
 * a whole, its key (fl_attend_lanes). */
fl_block fl_mla_place(const fl_mla *m, const fl_mla_block *b, const fl_seq_rows *seq,
                      const int32_t *pos, int64_t first, int n);
fl_block fl_mla_load(const fl_mla *m, const fl_mla_block *b, const fl_seq_rows *seq,
                     const int32_t *pos, int64_t first, int n);

/* ---- keys and values of a head (mla_expand.c) ---- */

typedef struct fl_mla_head {
    float *panel;  /* [16][ldc] */
    float *keys;   /* [nope + pe][64]; fast: half as many words */
    float *values; /* [64][dv, padded]; fast: [32][] */
    float *part;   /* [16][64] or [16][dv, padded] before it is turned or put in pairs */
    float *uk;     /* fast: [nope][latent / 2, padded] */
    float *uv;     /* fast: [latent / 2][dv, padded] */
    float *spare;  /* fast: [dv, padded] */
} fl_mla_head;

void fl_mla_cut_head(const fl_mla *m, fl_room *r, fl_mla_head *w);

/* Before the blocks of head h. */
void fl_mla_ready_head(const fl_mla *m, const fl_mla_head *w, int64_t h);

/* Of a block that fl_mla_load has brought.  fast: nope and latent are even. */
fl_block fl_mla_expand(const fl_mla *m, const fl_mla_head *w, int64_t h, const fl_block *cached);

/* ---- the absorbed form (mla.c) ---- */

/* Rows [row, row + n) in one phase, as a share of *turn units that workers take in turn. */
void fl_mla_rows(const fl_mla *m, int32_t row, int32_t n, const fl_worker *worker, int32_t *turn);
/* A step of few rows, in three phases; false when fl_mla_rows has to do it. */
bool fl_mla_few_rows(const fl_mla *m, int phase, const fl_worker *worker);
/* fl_kernel.scratch of the absorbed form. */
void fl_mla_scratch(const fl_node_view *node, bool fast, const fl_limits *limits,
                    size_t *per_worker, size_t *shared);

#endif
