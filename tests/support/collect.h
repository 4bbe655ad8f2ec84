/* Records what a request reports: tokens, log-probabilities, rows of logits, the end. */
#ifndef FL_TEST_COLLECT_H
#define FL_TEST_COLLECT_H

#include "engine/engine.h"

typedef struct collector {
    fl_ids ids; /* tokens given */
    FL_VEC(float) logprobs;
    FL_VEC(float) rows; /* logits shown, if rows_vocab is set */
    int64_t rows_vocab, first_row, n_rows;
    bool ended;
    fl_finish finish;
    fl_error error;
    fl_seq kept;
} collector;

/* Sets the callbacks of p to record into c (zeroed before); with vocab > 0 also the prompt's rows
 * of logits. */
void collect(collector *c, fl_request_params *p, int64_t vocab);
void collector_free(collector *c); /* zeroes it */
/* fl_engine_submit; fails the test when that fails. */
fl_request *submit(fl_engine *e, const fl_request_params *p);
/* Both ended in the same way with the same tokens, log-probabilities and rows, bit for bit. */
void assert_same(const collector *a, const collector *b);
/* Steps until nothing is left; fails the test when a step fails. */
void run_all(fl_engine *e);

#endif
