/* Inside the engine room: the sampler of one request and the scratch that all share. */
#ifndef FL_ENGINE_SAMPLER_INTERNAL_H
#define FL_ENGINE_SAMPLER_INTERNAL_H

#include "engine/sampler.h"
#include "ops/draw.h"

/* One per engine; a draw leaves nothing in it but the reported log-probabilities. */
typedef struct fl_sample_scratch {
    float *edited;            /* [vocab] logits with bias and penalties */
    fl_candidate *candidates; /* [vocab] */
    uint32_t *allowed;        /* [fl_mask_words(vocab)] for the caller of a draw */
    fl_logprob top[FL_MAX_TOP];
} fl_sample_scratch;

static inline int64_t fl_mask_words(int64_t vocab)
{
    return (vocab + 31) / 32;
}

int64_t fl_sample_scratch_bytes(int64_t vocab);
FL_MUST_CHECK fl_status fl_sample_scratch_init(fl_sample_scratch *s, int64_t vocab, fl_error *err);
void fl_sample_scratch_free(fl_sample_scratch *s); /* zeroed memory is allowed */

typedef struct fl_sampler {
    fl_sampling s; /* its bias is the sampler's own copy */
    int64_t vocab;
    uint64_t rng;
    uint32_t *marks; /* [vocab] 0: not seen, else 1 + times in the answer; NULL: no penalties */
    int32_t *seen;   /* [vocab] the ids whose mark is not 0 */
    int64_t n_seen;
} fl_sampler;

FL_MUST_CHECK fl_status fl_sampler_init(fl_sampler *sm, const fl_sampling *s, int64_t vocab,
                                        fl_error *err);
void fl_sampler_free(fl_sampler *sm); /* zeroed memory is allowed */
/* Tells the penalties of one more token of the prompt or the answer. */
void fl_sampler_note(fl_sampler *sm, int32_t id, bool answer);

/* Whether the next token comes from the model's own logits, and nothing else of them is looked at.
 */
static inline bool fl_sampler_is_plain(const fl_sampler *sm)
{
    return !sm->s.n_bias && !sm->marks && sm->s.n_top < 0;
}

/* How somebody else is to take the next token of a plain sampler, who then tells it that he did.
 * All zero: the highest. */
fl_draw fl_sampler_asks(const fl_sampler *sm);
void fl_sampler_drew(fl_sampler *sm);

typedef struct fl_sample {
    int32_t id;
    float logprob;         /* 0 unless n_top >= 0 */
    const fl_logprob *top; /* in the scratch: most probable first; [n_top] */
    int n_top;
} fl_sample;

/* Picks the next token among those whose bit in allowed is set (engine.h, fl_mask_fn; NULL: all).
 * FL_NUMERIC when a logit is NaN or infinite, FL_ARGUMENT when no token is allowed. */
FL_MUST_CHECK fl_status fl_sampler_draw(fl_sampler *sm, const float *logits,
                                        const uint32_t *allowed, fl_sample_scratch *scratch,
                                        fl_sample *out, fl_error *err);

fl_status fl_sampler_not_finite(fl_error *err); /* FL_NUMERIC, in words */
bool fl_all_finite(const float *x, int64_t n);

#endif
