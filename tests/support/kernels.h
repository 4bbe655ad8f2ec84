/* Comparing the kernels of one operator: over processor levels, threads and cuttings, bit for bit,
 * and with the reference, within a tolerance. */
#ifndef FL_TEST_KERNELS_H
#define FL_TEST_KERNELS_H

#include "support/call.h"

/* The i-th kernel of op that this machine can run and whose name is `family` or begins with
 * "family-"; NULL past the last. */
const fl_kernel *tk_kernel(const char *op, const char *family, int i);

/* What a run left behind: all output rows, without gaps, then all states. */
typedef struct tk_result {
    unsigned char *data;
    size_t bytes, output_bytes;
} tk_result;

/* Resets the call, runs the kernel on the whole step, and takes the result. */
tk_result tk_run(tc *c, const fl_kernel *k, int n_threads);
/* The same in several steps, cut at random rows; `grid`: only where a block of the chunk grid or a
 * sequence begins. */
tk_result tk_run_cut(tc *c, const fl_kernel *k, int n_threads, bool grid);
void tk_free(tk_result *r);

void tk_same(const tc *c, const tk_result *a, const tk_result *b, const char *what);
/* Outputs and states as float: the distance is at most tolerance times the largest value of the
 * output row (of the state: of the whole). */
void tk_close(const tc *c, const tk_result *got, const tk_result *want, double tolerance,
              const char *what);

#endif
