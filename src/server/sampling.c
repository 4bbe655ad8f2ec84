/* The parameters of sampling: numbers, biases, stop strings and ids, log-probabilities. */
#define _GNU_SOURCE
#include "server/job_internal.h"
#include "server/read_internal.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <sys/random.h>

static bool add_stop(const fl_json *v, fl_params *p, fl_refusal *r)
{
    if (!fl_json_is(v, FL_JSON_STRING))
        return fl_read_wrong(r, "stop", "a string or a list of strings", v);
    fl_bytes text = fl_json_string(v);
    if (text.len == 0 || text.len > FL_MAX_STOP_BYTES)
        return fl_refuse(r, 400, "invalid_value", "stop", "a stop string has from 1 to %d bytes",
                         FL_MAX_STOP_BYTES);
    p->stops.text[p->stops.n++] = text;
    return true;
}

static bool read_stop(const fl_json *o, fl_params *p, fl_refusal *r)
{
    const fl_json *v = fl_read(o, "stop");
    if (!v)
        return true;
    if (!fl_json_is(v, FL_JSON_ARRAY))
        return add_stop(v, p, r);
    if (fl_json_size(v) > FL_MAX_STOPS)
        return fl_refuse(r, 400, "invalid_value", "stop", "stop has %zu strings; %d at most",
                         fl_json_size(v), FL_MAX_STOPS);
    for (size_t i = 0; i < fl_json_size(v); i++) {
        if (!add_stop(fl_json_at(v, i), p, r))
            return false;
    }
    return true;
}

static bool read_stop_ids(const fl_json *o, fl_params *p, fl_refusal *r)
{
    const fl_json *v = NULL;
    if (!fl_read_typed(o, "stop_token_ids", FL_JSON_ARRAY, "a list of token ids", &v, r))
        return false;
    for (size_t i = 0; v && i < fl_json_size(v); i++) {
        const fl_json *x = fl_json_at(v, i);
        if (!fl_json_is(x, FL_JSON_INT) || fl_json_int(x) < 0 || fl_json_int(x) > INT32_MAX)
            return fl_refuse(r, 400, "invalid_value", "stop_token_ids",
                             "stop_token_ids[%zu] is no token id", i);
        if (!fl_vec_push(&p->stop_ids, (int32_t)fl_json_int(x)))
            return fl_refuse_nomem(r);
    }
    return true;
}

static bool add_bias(const char *key, const fl_json *x, fl_params *p, fl_refusal *r)
{
    char *end;
    errno = 0;
    long long id = strtoll(key, &end, 10);
    if (errno || *key < '0' || *key > '9' || *end || id > INT32_MAX)
        return fl_refuse(r, 400, "invalid_value", "logit_bias",
                         "logit_bias: '%.32s' is not a token id", key);
    if ((!fl_json_is(x, FL_JSON_INT) && !fl_json_is(x, FL_JSON_REAL)) ||
        !(fabs(fl_json_number(x)) <= 100))
        return fl_refuse(r, 400, "invalid_value", "logit_bias",
                         "logit_bias: the bias of %s must be a number from -100 to 100", key);
    return fl_vec_push(&p->bias, ((fl_logit_bias){(int32_t)id, (float)fl_json_number(x)})) ||
           fl_refuse_nomem(r);
}

static bool read_bias(const fl_json *o, fl_params *p, fl_refusal *r)
{
    const fl_json *v = NULL;
    if (!fl_read_typed(o, "logit_bias", FL_JSON_OBJECT, "an object of token ids and numbers", &v,
                       r))
        return false;
    for (void *it = v ? fl_json_iter(v) : NULL; it; it = fl_json_next(v, it)) {
        if (!add_bias(fl_json_iter_key(it).data, fl_json_iter_value(it), p, r))
            return false;
    }
    p->sampling.bias = p->bias.data;
    p->sampling.n_bias = p->bias.n;
    return true;
}

/* Chat: logprobs is a switch and top_logprobs a number; completions: logprobs is the number. */
static bool read_logprobs(const fl_json *o, bool chat, fl_params *p, fl_refusal *r)
{
    int64_t top = 0;
    bool on = false;
    if (chat) {
        if (!fl_read_flag(o, "logprobs", &on, r) || !fl_read_int(o, "top_logprobs", 0, 20, &top, r))
            return false;
        if (!on && top > 0)
            return fl_refuse(r, 400, "invalid_value", "top_logprobs",
                             "top_logprobs needs logprobs: true");
    } else {
        const fl_json *v = fl_read(o, "logprobs");
        on = v && !(fl_json_is(v, FL_JSON_BOOL) && !fl_json_bool(v));
        if (on && !fl_read_int(o, "logprobs", 0, 20, &top, r))
            return false;
    }
    p->sampling.n_top = on ? (int)top : -1;
    return true;
}

bool fl_sampling_read(const fl_json *o, bool chat, fl_params *p, fl_refusal *r)
{
    fl_sampling *s = &p->sampling;
    *s = fl_sampling_default();
    s->temperature = 1;
    int64_t top_k = 0, seed = -1;
    if (!fl_read_real(o, "temperature", 0, 2, &s->temperature, r) ||
        !fl_read_real(o, "top_p", 0, 1, &s->top_p, r) ||
        !fl_read_real(o, "min_p", 0, 1, &s->min_p, r) ||
        !fl_read_real(o, "repetition_penalty", 0.01, 100, &s->repetition, r) ||
        !fl_read_real(o, "presence_penalty", -2, 2, &s->presence, r) ||
        !fl_read_real(o, "frequency_penalty", -2, 2, &s->frequency, r) ||
        !fl_read_int(o, "top_k", -1, INT32_MAX, &top_k, r) ||
        !fl_read_int(o, "seed", INT64_MIN, INT64_MAX, &seed, r) || !read_bias(o, p, r) ||
        !read_stop(o, p, r) || !read_stop_ids(o, p, r) || !read_logprobs(o, chat, p, r))
        return false;
    s->top_k = top_k < 0 ? 0 : (int32_t)top_k;
    s->seed = (uint64_t)seed;
    if (!fl_read(o, "seed") && getrandom(&s->seed, sizeof s->seed, 0) != sizeof s->seed)
        return fl_refuse(r, 500, "internal_error", "", "no random seed");
    return true;
}
