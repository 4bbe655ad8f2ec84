/* Steps for tests of the graph room, without a state manager. */
#ifndef FL_TEST_FAKE_STEP_H
#define FL_TEST_FAKE_STEP_H

#include "graph/step.h"

enum { FAKE_ROWS = 64, FAKE_SEQS = 8, FAKE_POOLS = 4 };

typedef struct fake_step {
    fl_step step;
    int32_t ids[FAKE_ROWS], row_seq[FAKE_ROWS], logit_rows[FAKE_ROWS];
    fl_seq_rows seqs[FAKE_SEQS];
    fl_state_pool pools[FAKE_POOLS];
} fake_step;

/* A step of n_seqs fresh sequences with so many rows each, ids 11, 12, ..., slot i for sequence i,
 * and logits of the last n_logits rows.  s must not be moved. */
void fake_step_make(fake_step *s, int n_seqs, const int32_t *rows, int n_logits);

#endif
