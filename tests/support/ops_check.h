/* The checker of kernels: one random case of an operator, made by its generator, run by the
 * reference and by the kernel under test.  What is demanded of a kernel:
 *
 *   - each float result within `tolerance` times its magnitude of the reference, NaN where it is
 *     NaN; integers and copied states exactly; items of a state that the reference leaves alone
 *     untouched;
 *   - nothing written outside rows, items and scratch, no input changed, nothing left out;
 *   - the same bits with 1, 2 and 3 workers in either order, with every sequence alone in the step,
 *     and with the step cut into single rows (or, when the operator works on the chunk grid, cut at
 *     positions that are multiples of FL_PAGE_TOKENS). */
#ifndef FL_TEST_OPS_CHECK_H
#define FL_TEST_OPS_CHECK_H

#include "support/call.h"

/* How much a result may be off, in units of the tolerance: per element of the outputs (rows x
 * width, without gaps) and of the states (items x elements).  Before a generator sees it, every
 * entry is the absolute value of the reference result.  INFINITY: anything will do. */
typedef struct ops_magnitude {
    float *out[FL_MAX_OUT], *state[TC_MAX_STATES];
} ops_magnitude;

typedef struct ops_gen {
    const char *op;
    /* Between tc_begin and tc_finish: step, inputs with their special values, attributes. */
    void (*make)(tc *c);
    /* Optional.  fast: for a kernel with 8-bit activations.  c->out holds the reference results. */
    void (*magnitude)(tc *c, bool fast, ops_magnitude *m);
    double tolerance; /* 0: the same bits */
    bool grid;        /* equal bits are demanded of cuts on the chunk grid only */
} ops_gen;

enum { OPS_MAX_KERNELS = 64 }; /* of one operator */

/* One case: those kernels that fit it are checked, of a list that a NULL ends, or of all kernels up
 * to this machine's level when the list is NULL.  Returns NULL, or what is wrong: valid until the
 * next call.  ran (may be NULL) is told every kernel that was checked; a case that none fits costs
 * little, so that one can draw until enough did. */
const char *ops_check(const ops_gen *g, uint64_t seed, const fl_kernel *const *list,
                      void (*ran)(void *ctx, const fl_kernel *k), void *ctx);

/* ---- for generators ---- */

/* Some rows of input i get special values: zeros of both signs, numbers so large or small that
 * their squares still fit a float, denormals; with `nan` also a NaN in a row now and then. */
void ops_special(tc *c, int i, bool nan);
/* The scale of tiny rows: 1e-40, so that they are denormal.  A test of kernels that do not hold
 * every bit of those sets a greater one. */
extern float ops_tiny;
/* A row symbol for an input: mostly tokens. */
fl_rows ops_row_symbol(tc *c);
/* A type of cache: float32 half the time. */
fl_dtype ops_cache_type(tc *c);
/* All of a weight as floats, in memory of the case. */
float *ops_decode(tc *c, const fl_tensor *t);

struct fl_expr;
/* Runs an expression in double, with the rounding error of every operation followed to the result:
 * error[i] is the error of input i in units of the tolerance on entry; returns that of the result,
 * INFINITY where it cannot be told. */
double ops_expr_error(const struct fl_expr *e, const double *value, const double *error,
                      double *result);

#endif
