/* Sampling: logits to one token.  Order: logit bias, penalties, the mask, then greedy (temperature
 * 0), or temperature, top-k, top-p, min-p and a draw from a per-request generator.  Ties: lower id.
 * Log-probabilities are the model's own: before bias, penalties, mask and temperature. */
#ifndef FL_ENGINE_SAMPLER_H
#define FL_ENGINE_SAMPLER_H

#include "base/status.h"

typedef struct fl_logit_bias {
    int32_t id;
    float bias;
} fl_logit_bias;

typedef struct fl_logprob {
    int32_t id;
    float logprob; /* natural logarithm */
} fl_logprob;

typedef struct fl_sampling {
    float temperature; /* 0: greedy */
    int32_t top_k;     /* 0: off */
    float top_p;       /* 1: off; 0: the most probable token */
    float min_p;       /* 0: off; of the most probable token's probability */
    float repetition;  /* 1: off; over prompt and answer, divides positive logits, multiplies
                          negative */
    float presence, frequency; /* 0: off; over the answer */
    uint64_t seed;
    const fl_logit_bias *bias; /* copied at submit; entries of one id add up */
    size_t n_bias;
    int n_top; /* log-probabilities to report, at most FL_MAX_TOP; -1: none, 0: of the token only */
} fl_sampling;
enum { FL_MAX_TOP = 128 };

fl_sampling fl_sampling_default(void); /* greedy, no log-probabilities, nothing else */
/* FL_ARGUMENT for a number out of its range or not finite. */
FL_MUST_CHECK fl_status fl_sampling_check(const fl_sampling *s, fl_error *err);

#endif
