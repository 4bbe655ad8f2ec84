/* The sampler: what requests do to logits before a token is drawn (ops/draw.h), and what they want
 * to know of them.  The result depends on the logits, the settings and the seed alone. */
#include "engine/sampler_internal.h"

#include "base/mem.h"

#include <float.h>
#include <math.h>
#include <string.h>

/* Large enough for any use; small enough that sums of floats stay finite. */
static const float MAX_SETTING = 1e6f;

fl_sampling fl_sampling_default(void)
{
    return (fl_sampling){.top_p = 1, .repetition = 1, .n_top = -1};
}

static fl_status check_range(const char *name, float value, float low, float high, fl_error *err)
{
    if (value >= low && value <= high) /* false for NaN */
        return FL_OK;
    return fl_fail(err, FL_ARGUMENT, "%s is %g, allowed is %g to %g", name, (double)value,
                   (double)low, (double)high);
}

fl_status fl_sampling_check(const fl_sampling *s, fl_error *err)
{
    FL_TRY(check_range("temperature", s->temperature, 0, MAX_SETTING, err));
    FL_TRY(check_range("top_p", s->top_p, 0, 1, err));
    FL_TRY(check_range("min_p", s->min_p, 0, 1, err));
    FL_TRY(check_range("repetition penalty", s->repetition, 1 / MAX_SETTING, MAX_SETTING, err));
    FL_TRY(check_range("presence penalty", s->presence, -MAX_SETTING, MAX_SETTING, err));
    FL_TRY(check_range("frequency penalty", s->frequency, -MAX_SETTING, MAX_SETTING, err));
    if (s->top_k < 0)
        return fl_fail(err, FL_ARGUMENT, "top_k is %d, allowed is 0 (off) or more", s->top_k);
    if (s->n_top < -1 || s->n_top > FL_MAX_TOP)
        return fl_fail(err, FL_ARGUMENT, "%d log-probabilities asked for, allowed is -1 to %d",
                       s->n_top, FL_MAX_TOP);
    for (size_t i = 0; i < s->n_bias; i++)
        FL_TRY(check_range("logit bias", s->bias[i].bias, -MAX_SETTING, MAX_SETTING, err));
    return FL_OK;
}

int64_t fl_sample_scratch_bytes(int64_t vocab)
{
    return vocab * (int64_t)(sizeof(float) + sizeof(fl_candidate)) +
           fl_mask_words(vocab) * (int64_t)sizeof(uint32_t);
}

fl_status fl_sample_scratch_init(fl_sample_scratch *s, int64_t vocab, fl_error *err)
{
    s->edited = fl_calloc((size_t)vocab, sizeof *s->edited);
    s->candidates = fl_calloc((size_t)vocab, sizeof *s->candidates);
    s->allowed = fl_calloc((size_t)fl_mask_words(vocab), sizeof *s->allowed);
    if (s->edited && s->candidates && s->allowed)
        return FL_OK;
    return fl_fail(err, FL_NOMEM, "no memory to sample from %lld tokens", (long long)vocab);
}

void fl_sample_scratch_free(fl_sample_scratch *s)
{
    fl_free(s->edited);
    fl_free(s->candidates);
    fl_free(s->allowed);
}

fl_status fl_sampler_init(fl_sampler *sm, const fl_sampling *s, int64_t vocab, fl_error *err)
{
    *sm = (fl_sampler){.s = *s, .vocab = vocab, .rng = s->seed};
    sm->s.bias = NULL;
    FL_TRY(fl_sampling_check(s, err));
    for (size_t i = 0; i < s->n_bias; i++) {
        if (s->bias[i].id < 0 || s->bias[i].id >= vocab)
            return fl_fail(err, FL_ARGUMENT, "logit bias for token %d, the vocabulary has %lld",
                           s->bias[i].id, (long long)vocab);
    }
    if (s->n_bias) {
        fl_logit_bias *copy = fl_realloc_array(NULL, s->n_bias, sizeof *copy);
        if (!copy)
            return fl_fail(err, FL_NOMEM, "no memory for %zu logit biases", s->n_bias);
        memcpy(copy, s->bias, s->n_bias * sizeof *copy);
        sm->s.bias = copy;
    }
    if (s->repetition != 1 || s->presence != 0 || s->frequency != 0) {
        sm->marks = fl_calloc((size_t)vocab, sizeof *sm->marks);
        sm->seen = fl_calloc((size_t)vocab, sizeof *sm->seen);
        if (!sm->marks || !sm->seen) {
            fl_sampler_free(sm);
            return fl_fail(err, FL_NOMEM, "no memory for penalties over %lld tokens",
                           (long long)vocab);
        }
    }
    return FL_OK;
}

void fl_sampler_free(fl_sampler *sm)
{
    fl_free((void *)sm->s.bias);
    fl_free(sm->marks);
    fl_free(sm->seen);
    *sm = (fl_sampler){0};
}

void fl_sampler_note(fl_sampler *sm, int32_t id, bool answer)
{
    if (!sm->marks)
        return;
    if (sm->marks[id] == 0) {
        sm->seen[sm->n_seen++] = id;
        sm->marks[id] = 1;
    }
    if (answer && sm->marks[id] < UINT32_MAX)
        sm->marks[id]++;
}

bool fl_all_finite(const float *x, int64_t n)
{
    uint32_t worst = 0; /* the largest exponent and mantissa, sign shifted out */
    for (int64_t i = 0; i < n; i++) {
        uint32_t bits;
        memcpy(&bits, &x[i], sizeof bits);
        bits <<= 1;
        worst = bits > worst ? bits : worst;
    }
    return worst < 0xff000000u;
}

/* splitmix64, from its definition (Steele, Lea and Flood, 2014). */
static const uint64_t GAMMA = 0x9e3779b97f4a7c15u;

fl_draw fl_sampler_asks(const fl_sampler *sm)
{
    const fl_sampling *s = &sm->s;
    uint64_t z = sm->rng + GAMMA;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    z ^= z >> 31;
    if (s->temperature == 0)
        return (fl_draw){0};
    return fl_draw_of(s->temperature, s->top_k, s->top_p, s->min_p, z);
}

void fl_sampler_drew(fl_sampler *sm)
{
    sm->rng += sm->s.temperature == 0 ? 0 : GAMMA;
}

static float clamp(float x)
{
    return x > FLT_MAX ? FLT_MAX : x < -FLT_MAX ? -FLT_MAX : x;
}

static bool is_allowed(const uint32_t *allowed, int64_t id)
{
    return !allowed || (allowed[id / 32] >> (id % 32) & 1);
}

/* Logits after bias, penalties and mask: the model's own when there are none. */
static const float *edit(const fl_sampler *sm, const float *logits, const uint32_t *allowed,
                         float *edited)
{
    if (!sm->s.n_bias && !sm->n_seen && !allowed)
        return logits;
    memcpy(edited, logits, (size_t)sm->vocab * sizeof *edited);
    for (size_t i = 0; i < sm->s.n_bias; i++) {
        float *x = &edited[sm->s.bias[i].id];
        *x = clamp(*x + sm->s.bias[i].bias);
    }
    for (int64_t i = 0; i < sm->n_seen; i++) {
        float *x = &edited[sm->seen[i]];
        uint32_t count = sm->marks[sm->seen[i]] - 1;
        float y = *x > 0 ? *x / sm->s.repetition : *x * sm->s.repetition;
        if (count)
            y -= sm->s.presence + (float)count * sm->s.frequency;
        *x = clamp(y);
    }
    for (int64_t i = 0; allowed && i < sm->vocab; i++)
        edited[i] = is_allowed(allowed, i) ? edited[i] : -FLT_MAX;
    return edited;
}

static int32_t arg_max(const float *x, int64_t n)
{
    int64_t best = 0;
    for (int64_t i = 1; i < n; i++) {
        if (x[i] > x[best])
            best = i;
    }
    return (int32_t)best;
}

static int32_t draw(fl_sampler *sm, const float *x, fl_sample_scratch *scratch)
{
    if (sm->s.temperature == 0)
        return arg_max(x, sm->vocab);
    fl_draw d = fl_sampler_asks(sm);
    fl_sampler_drew(sm);
    return fl_draw_token(&d, x, sm->vocab, scratch->candidates);
}

/* The n most probable of the model's own logits, most probable first. */
static void list_top(const float *x, int64_t vocab, int n, fl_logprob *top)
{
    int have = 0;
    for (int64_t i = 0; i < vocab; i++) {
        if (have == n && !(x[i] > top[n - 1].logprob))
            continue;
        int at = have < n ? have++ : n - 1;
        for (; at > 0 && x[i] > top[at - 1].logprob; at--)
            top[at] = top[at - 1];
        top[at] = (fl_logprob){(int32_t)i, x[i]};
    }
}

static void report(const fl_sampler *sm, const float *logits, fl_sample_scratch *scratch,
                   fl_sample *out)
{
    float max = logits[arg_max(logits, sm->vocab)];
    double sum = 0;
    for (int64_t i = 0; i < sm->vocab; i++)
        sum += expf(logits[i] - max);
    double norm = max + log(sum);
    out->logprob = (float)(logits[out->id] - norm);
    out->n_top = sm->s.n_top < sm->vocab ? sm->s.n_top : (int)sm->vocab;
    out->top = scratch->top;
    if (out->n_top > 0)
        list_top(logits, sm->vocab, out->n_top, scratch->top);
    for (int i = 0; i < out->n_top; i++)
        scratch->top[i].logprob = (float)(scratch->top[i].logprob - norm);
}

fl_status fl_sampler_not_finite(fl_error *err)
{
    return fl_fail(err, FL_NUMERIC, "the logits hold NaN or infinity");
}

fl_status fl_sampler_draw(fl_sampler *sm, const float *logits, const uint32_t *allowed,
                          fl_sample_scratch *scratch, fl_sample *out, fl_error *err)
{
    *out = (fl_sample){0};
    if (!fl_all_finite(logits, sm->vocab))
        return fl_sampler_not_finite(err);
    out->id = draw(sm, edit(sm, logits, allowed, scratch->edited), scratch);
    if (!is_allowed(allowed, out->id))
        return fl_fail(err, FL_ARGUMENT, "the mask of the request allows no token");
    if (sm->s.n_top >= 0)
        report(sm, logits, scratch, out);
    return FL_OK;
}
