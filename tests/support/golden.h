/* Holds a run of the engine against a golden file: the outputs of an implementation that is not
 * this one for a text.
 *
 *     ids [n] I32            the text
 *     argmax [n] I32         the most probable next token at each position
 *     logprob_next [n-1]     the log-probability of the token that follows; left out when n is 1
 *     logits [r, vocab]      of the last r positions
 *     layers [l, r, width]   the running sum after each layer, of the last r positions
 *     indexerJ_selected [n, ceil(n / 8)] U8   bit p % 8 of byte p / 8: layer J looks at position p
 *     indexerJ_top_last4 [4, topk] I32        the same of the last four, ascending
 *
 * Floats are F32.  What a file lacks beyond the first line of J is not looked at. */
#ifndef FL_TEST_GOLDEN_H
#define FL_TEST_GOLDEN_H

#include "engine/engine.h"

typedef enum golden_way {
    GOLDEN_WHOLE,   /* one request; the engine's chunk cuts it */
    GOLDEN_BY_TOKEN /* a request for each token, continuing the sequence of the one before */
} golden_way;

/* How far a run was from the file.  Differences of logits and layers (the worst of them) are
 * relative, of log-probabilities absolute. */
typedef struct golden_result {
    int64_t n, argmax_wrong;
    double logits, layers, logprob_worst, logprob_mean;
    int64_t select_rows, select_wrong; /* rows of selections compared, rows that differ */
} golden_result;

/* Runs the file's text.  Fails the test when the run or the file does not have what it should. */
golden_result golden_run(fl_engine *e, const char *path, golden_way way);

/* The same, and fails the test where a result is off: floats by more than rounding, everything else
 * at all. */
void golden_check(fl_engine *e, const char *path, golden_way way);

#endif
