/* What the files of `firstlight eval` share. */
#ifndef FL_CLI_EVAL_H
#define FL_CLI_EVAL_H

#include "cli/cli.h"

/* The logarithm of the sum of exp(row[i]). */
double cli_log_sum(const float *row, int64_t n);
/* Sum over `rows` rows of logits of KL(truth || other), in nats. */
double cli_divergence(const float *truth, const float *other, int64_t rows, int64_t vocab);

/* eval --kv-cost: for every form of cache, how far the logits of the text (windows of `size`
 * tokens) are from those with a float32 cache, all else as in o, and how many rows select other
 * positions.  Prints the table. */
FL_MUST_CHECK fl_status cli_eval_kv(const char *model, const cli_common *o, const fl_ids *ids,
                                    int64_t size, fl_error *err);

#endif
