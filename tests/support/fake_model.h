/* A tiny network of its own operators to test the engine with, apart from models and kernels.
 *
 *   embed   e = table row of the token (FAKE_NAN has NaN in its row)
 *   decay   s = s / 2 + e                             recurrent state
 *   recall  h = s + sum over positions j <= p of e_j / (1 + p - j)      paged cache
 *   head    logits = W h, for the rows that are wanted
 *
 * Every sum has a fixed order, and fake_logits does the same in the plainest way, so results are
 * compared bit for bit.  Tap ("sum", 0) shows h. */
#ifndef FL_TEST_FAKE_MODEL_H
#define FL_TEST_FAKE_MODEL_H

#include "graph/graph.h"

enum { FAKE_VOCAB = 96, FAKE_WIDTH = 8, FAKE_CONTEXT = 1024, FAKE_NAN = 95 };

/* NULL when memory ran out. */
fl_graph *fake_model_graph(fl_error *err);
/* The logits and h after the last of n ids. */
void fake_logits(const int32_t *ids, int64_t n, float *logits, float *h);
/* The greedy next token; -1 when the logits are not finite. */
int32_t fake_next(const int32_t *ids, int64_t n);

#endif
