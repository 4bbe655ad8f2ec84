/* One operator call under test: the step, the inputs, the attributes, the states and the outputs,
 * built by hand or at random, and run phase by phase over any number of workers, as the plan does.
 *
 *     tc c;
 *     tc_begin(&c, "rmsnorm", &random);
 *     tc_step(&c, 2, (int[]){3, 1}, (int64_t[]){0, 70});
 *     tc_rows(&c, FL_ROWS_TOKENS, FL_F32, 1, (int64_t[]){64});
 *     tc_const(&c, FL_F32, 1, 1, (int64_t[]){64});
 *     tc_number(&c, "eps", 1e-5);
 *     tc_finish(&c);                          infer, prepare, outputs
 *     tc_run(&c, kernel, 2, 0, c.step.n_rows);
 *     ... c.out[0] ...
 *     tc_end(&c);
 *
 * Every buffer is exactly as long as it has to be, rows are strided with gaps, weights are aligned
 * to their elements only, outputs and states lie between guard zones and are filled with a pattern
 * before a run, and page tables are shuffled.  A failure to build a case ends the cmocka test. */
#ifndef FL_TEST_CALL_H
#define FL_TEST_CALL_H

#include "graph/op.h"
#include "support/rng.h"

enum { TC_MAX_IN = 34, TC_MAX_ATTR = 8, TC_MAX_STATES = 2, TC_GUARD = 64 };

/* What outputs, gaps between rows and unwritten cache rows hold: a NaN that no kernel makes. */
#define TC_POISON 0x7fc0deadu

typedef struct tc_state {
    unsigned char *initial; /* what tc_reset puts into the pool */
    int64_t items, elements;
    int64_t used; /* bytes of an item that hold it; the rest of item_bytes is a gap */
} tc_state;

typedef struct tc {
    const fl_op *op;
    rng *random;
    struct tc_block *blocks; /* all memory of the case */

    fl_step step;
    fl_limits limits; /* those of the whole step */
    int64_t n_pages;  /* in a pool; several are never used */
    int32_t n_slots;

    int n_in, n_out;
    fl_type in_type[TC_MAX_IN], out_type[FL_MAX_OUT];
    const fl_type *in_types[TC_MAX_IN]; /* NULL: left out */
    fl_arg in[TC_MAX_IN], out[FL_MAX_OUT];
    fl_attr attr[TC_MAX_ATTR];
    fl_arena prep_arena;
    const void *prep;
    tc_state states[TC_MAX_STATES];
    fl_state_pool pools[TC_MAX_STATES];
    int n_states;
    char damage[160]; /* what tc_run found around scratch; empty: nothing */
} tc;

/* Memory of the case, exactly this long and no more aligned than `align`; filled with poison. */
void *tc_alloc(tc *c, size_t bytes, size_t align);

void tc_begin(tc *c, const char *op, rng *random);
void tc_end(tc *c);

/* The rows of a step: n_rows[i] rows from position pos0[i] for each sequence, every logit wanted;
 * or all at random, with at most max_rows rows, any of whose logits may be wanted. */
void tc_step(tc *c, int n_seqs, const int *n_rows, const int64_t *pos0);
void tc_step_random(tc *c, int max_rows, int64_t max_pos);

/* Each adds one input and returns its index.
 * tc_rows: an activation of random normal numbers (I32: zeros).  tc_const: one tensor or a stack,
 * of random numbers.  tc_state_in: a pool; a sequence at position 0 has a zero slot, others random
 * ones; cached rows of all positions of the step and before it are random, the others poison. */
int tc_rows(tc *c, fl_rows rows, fl_dtype dtype, int ndim, const int64_t *dim);
int tc_const(tc *c, fl_dtype dtype, int32_t n_tensors, int ndim, const int64_t *dim);
int tc_state_in(tc *c, bool paged, int64_t elements);
/* A paged pool of this type (graph/cache_row.h): its rows are encoded random numbers. */
int tc_cache_in(tc *c, fl_dtype dtype, int64_t elements);
int tc_none(tc *c); /* an optional input left out */

int32_t tc_n_rows(const tc *c, fl_rows rows);
float *tc_f32(const tc *c, int in, int64_t row); /* a row of input `in`; of a constant: its data */
int32_t *tc_i32(const tc *c, int in, int64_t row);

/* Attributes; those not given get their defaults. */
void tc_number(tc *c, const char *name, double value); /* INT, FLOAT, BOOL */
void tc_text(tc *c, const char *name, const char *text);
void tc_ints(tc *c, const char *name, int n, const int64_t *v);

/* Infers, prepares and makes the outputs.  tc_try_infer gives the refusal of a bad case. */
void tc_finish(tc *c);
fl_status tc_try_infer(tc *c, fl_error *err);
fl_node_view tc_view(const tc *c);

/* The kernel of this name; NULL: there is none.  "ref" is the reference. */
const fl_kernel *tc_kernel(const char *op, const char *name);

/* Outputs and states as they are before a run. */
void tc_reset(tc *c);
/* Runs the kernel on rows [row0, row1) of the step, as if they were a step of their own.  Workers
 * of a phase run one after the other, or last first when n_threads is negative. */
void tc_run(tc *c, const fl_kernel *k, int n_threads, int32_t row0, int32_t row1);
/* NULL, or what was written that must not be: between and around output rows, around states and
 * scratch, to an input; or an output element that was left unwritten.  After runs that together
 * covered the whole step. */
const char *tc_damage(tc *c);

#endif
