/* Distributions that logits stand for, in nats. */
#include "cli/eval.h"

#include <math.h>

double cli_log_sum(const float *row, int64_t n)
{
    double best = row[0], sum = 0;
    for (int64_t i = 1; i < n; i++)
        best = row[i] > best ? row[i] : best;
    for (int64_t i = 0; i < n; i++)
        sum += exp(row[i] - best);
    return best + log(sum);
}

double cli_divergence(const float *truth, const float *other, int64_t rows, int64_t vocab)
{
    double sum = 0;
    for (int64_t r = 0; r < rows; r++) {
        const float *a = truth + r * vocab, *b = other + r * vocab;
        double za = cli_log_sum(a, vocab), zb = cli_log_sum(b, vocab), kl = 0;
        for (int64_t i = 0; i < vocab; i++)
            kl += exp(a[i] - za) * ((a[i] - za) - (b[i] - zb));
        sum += kl;
    }
    return sum;
}
