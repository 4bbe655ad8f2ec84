/* Reading a request's parameters: a value that is null is absent; a wrong type or range, and a
 * known parameter that is not supported, are refused by name; unknown names are ignored, because
 * clients send ever new ones. */
#define _GNU_SOURCE
#include "server/server_internal.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <sys/random.h>

/* A member that is there and not null. */
static const fl_json *member(const fl_json *o, const char *name)
{
    const fl_json *v = fl_json_get(o, name);
    return fl_json_is(v, FL_JSON_NULL) ? NULL : v;
}

static bool wrong(fl_refusal *r, const char *name, const char *wanted, const fl_json *v)
{
    return fl_refuse(r, 400, "invalid_type", name, "%s must be %s, not %s", name, wanted,
                     fl_json_type_name(v));
}

static bool read_flag(const fl_json *o, const char *name, bool *out, fl_refusal *r)
{
    const fl_json *v = member(o, name);
    if (!v)
        return true;
    if (!fl_json_is(v, FL_JSON_BOOL))
        return wrong(r, name, "true or false", v);
    *out = fl_json_bool(v);
    return true;
}

static bool read_real(const fl_json *o, const char *name, double low, double high, float *out,
                      fl_refusal *r)
{
    const fl_json *v = member(o, name);
    if (!v)
        return true;
    if (!fl_json_is(v, FL_JSON_INT) && !fl_json_is(v, FL_JSON_REAL))
        return wrong(r, name, "a number", v);
    double x = fl_json_number(v);
    if (!(x >= low && x <= high))
        return fl_refuse(r, 400, "invalid_value", name, "%s must be from %g to %g", name, low,
                         high);
    *out = (float)x;
    return true;
}

static bool read_int(const fl_json *o, const char *name, int64_t low, int64_t high, int64_t *out,
                     fl_refusal *r)
{
    const fl_json *v = member(o, name);
    if (!v)
        return true;
    if (!fl_json_is(v, FL_JSON_INT))
        return wrong(r, name, "an integer", v);
    int64_t x = fl_json_int(v);
    if (x < low || x > high)
        return fl_refuse(r, 400, "invalid_value", name, "%s must be from %lld to %lld, not %lld",
                         name, (long long)low, (long long)high, (long long)x);
    *out = x;
    return true;
}

static bool read_stop(const fl_json *o, fl_params *p, fl_refusal *r)
{
    const fl_json *v = member(o, "stop");
    if (!v)
        return true;
    bool one = fl_json_is(v, FL_JSON_STRING);
    if (!one && !fl_json_is(v, FL_JSON_ARRAY))
        return wrong(r, "stop", "a string or a list of strings", v);
    size_t n = one ? 1 : fl_json_size(v);
    if (n > FL_MAX_STOPS)
        return fl_refuse(r, 400, "invalid_value", "stop", "stop has %zu strings; %d at most", n,
                         FL_MAX_STOPS);
    for (size_t i = 0; i < n; i++) {
        const fl_json *s = one ? v : fl_json_at(v, i);
        if (!fl_json_is(s, FL_JSON_STRING))
            return wrong(r, "stop", "a string or a list of strings", s);
        fl_bytes text = fl_json_string(s);
        if (text.len == 0 || text.len > FL_MAX_STOP_BYTES)
            return fl_refuse(r, 400, "invalid_value", "stop",
                             "a stop string has from 1 to %d bytes", FL_MAX_STOP_BYTES);
        p->stop[p->n_stop++] = text;
    }
    return true;
}

static bool read_bias(const fl_json *o, fl_params *p, fl_refusal *r)
{
    const fl_json *v = member(o, "logit_bias");
    if (!v)
        return true;
    if (!fl_json_is(v, FL_JSON_OBJECT))
        return wrong(r, "logit_bias", "an object of token ids and numbers", v);
    for (void *it = fl_json_iter(v); it; it = fl_json_next(v, it)) {
        const char *key = fl_json_iter_key(it).data;
        const fl_json *x = fl_json_iter_value(it);
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
        if (!fl_vec_push(&p->bias, ((fl_logit_bias){(int32_t)id, (float)fl_json_number(x)})))
            return fl_refuse(r, 500, "internal_error", "", "no memory for logit_bias");
    }
    p->sampling.bias = p->bias.data;
    p->sampling.n_bias = p->bias.n;
    return true;
}

static bool read_sampling(const fl_json *o, fl_params *p, fl_refusal *r)
{
    fl_sampling *s = &p->sampling;
    *s = fl_sampling_default();
    s->temperature = 1;
    int64_t top_k = 0, seed = -1;
    if (!read_real(o, "temperature", 0, 2, &s->temperature, r) ||
        !read_real(o, "top_p", 0, 1, &s->top_p, r) || !read_real(o, "min_p", 0, 1, &s->min_p, r) ||
        !read_real(o, "repetition_penalty", 0.01, 100, &s->repetition, r) ||
        !read_real(o, "presence_penalty", -2, 2, &s->presence, r) ||
        !read_real(o, "frequency_penalty", -2, 2, &s->frequency, r) ||
        !read_int(o, "top_k", -1, INT32_MAX, &top_k, r) ||
        !read_int(o, "seed", INT64_MIN, INT64_MAX, &seed, r) || !read_bias(o, p, r))
        return false;
    s->top_k = top_k < 0 ? 0 : (int32_t)top_k;
    s->seed = (uint64_t)seed;
    if (!member(o, "seed") && getrandom(&s->seed, sizeof s->seed, 0) != sizeof s->seed)
        return fl_refuse(r, 500, "internal_error", "", "no random seed");
    return true;
}

/* Parameters that other servers know and this one does not do.  False, and the number that asks
 * for nothing, pass. */
static bool refuse_unsupported(const fl_json *o, fl_refusal *r)
{
    static const struct {
        const char *name;
        int64_t fine;
    } list[] = {{"n", 1},
                {"best_of", 1},
                {"top_logprobs", 0},
                {"min_tokens", 0},
                {"logprobs", -1},
                {"prompt_logprobs", -1},
                {"suffix", -1},
                {"echo", -1},
                {"functions", -1},
                {"function_call", -1},
                {"audio", -1},
                {"prediction", -1},
                {"stop_token_ids", -1},
                {"guided_json", -1},
                {"guided_regex", -1},
                {"guided_choice", -1},
                {"guided_grammar", -1},
                {"structured_outputs", -1},
                {"grammar", -1},
                {"json_schema", -1},
                {"partial", -1},
                {"continue_final_message", -1},
                {"web_search_options", -1}};
    for (size_t i = 0; i < sizeof list / sizeof *list; i++) {
        const fl_json *v = member(o, list[i].name);
        if (v && !(fl_json_is(v, FL_JSON_BOOL) && !fl_json_bool(v)) &&
            !(fl_json_is(v, FL_JSON_INT) && fl_json_int(v) == list[i].fine))
            return fl_refuse(r, 400, "unsupported_parameter", list[i].name,
                             "%s is not supported by this server", list[i].name);
    }
    const fl_json *format = member(o, "response_format"), *type = format;
    if (fl_json_is(format, FL_JSON_OBJECT))
        type = fl_json_get(format, "type");
    if (format &&
        (!fl_json_is(type, FL_JSON_STRING) || strcmp(fl_json_string(type).data, "text") != 0))
        return fl_refuse(r, 400, "unsupported_parameter", "response_format",
                         "response_format other than {\"type\": \"text\"} is not supported");
    bool parallel = true;
    if (!read_flag(o, "parallel_tool_calls", &parallel, r))
        return false;
    return parallel || fl_refuse(r, 400, "unsupported_parameter", "parallel_tool_calls",
                                 "parallel_tool_calls: false is not supported");
}

/* The switches for reasoning: reasoning_effort, thinking and chat_template_kwargs. */
static bool read_thinking(const fl_json *o, const fl_server_options *so, fl_params *p,
                          fl_refusal *r)
{
    const fl_json *kw = member(o, "chat_template_kwargs"), *effort = member(o, "reasoning_effort");
    const fl_json *thinking = member(o, "thinking"), *type = NULL;
    p->thinking = true;
    p->effort = so->effort;
    if (thinking && (!fl_json_is(thinking, FL_JSON_OBJECT) ||
                     !fl_json_is(type = fl_json_get(thinking, "type"), FL_JSON_STRING)))
        return wrong(r, "thinking", "an object with a type", thinking);
    if (type)
        p->thinking = strcmp(fl_json_string(type).data, "disabled") != 0;
    if (kw && !fl_json_is(kw, FL_JSON_OBJECT))
        return wrong(r, "chat_template_kwargs", "an object", kw);
    if (kw && (!read_flag(kw, "enable_thinking", &p->thinking, r) ||
               !read_flag(kw, "thinking", &p->thinking, r)))
        return false;
    if (effort && !fl_json_is(effort, FL_JSON_STRING))
        return wrong(r, "reasoning_effort", "a string", effort);
    if (effort) {
        p->effort = fl_json_string(effort).data;
        if (strcmp(p->effort, "none") == 0 || strcmp(p->effort, "minimal") == 0)
            p->thinking = false;
    }
    return true;
}

static bool read_chat(const fl_json *o, const fl_server_options *so, fl_params *p, fl_refusal *r)
{
    p->messages = member(o, "messages");
    p->tools = member(o, "tools");
    p->tool_choice = member(o, "tool_choice");
    if (!p->messages)
        return fl_refuse(r, 400, "missing_required_parameter", "messages", "messages is missing");
    if (!fl_json_is(p->messages, FL_JSON_ARRAY))
        return wrong(r, "messages", "a list", p->messages);
    if (fl_json_size(p->messages) == 0)
        return fl_refuse(r, 400, "invalid_value", "messages", "messages is empty");
    if (p->tools && !fl_json_is(p->tools, FL_JSON_ARRAY))
        return wrong(r, "tools", "a list", p->tools);
    if (p->tool_choice && !fl_json_is(p->tool_choice, FL_JSON_STRING))
        return fl_refuse(r, 400, "unsupported_parameter", "tool_choice",
                         "tool_choice must be \"auto\", \"none\" or \"required\"; a named "
                         "function is not supported");
    return read_thinking(o, so, p, r);
}

static bool read_model(const fl_json *o, const fl_server_options *so, fl_refusal *r)
{
    const fl_json *v = member(o, "model");
    if (!v)
        return fl_refuse(r, 400, "missing_required_parameter", "model", "model is missing");
    if (!fl_json_is(v, FL_JSON_STRING))
        return wrong(r, "model", "a string", v);
    if (strcmp(fl_json_string(v).data, so->alias) != 0)
        return fl_refuse(r, 404, "model_not_found", "model",
                         "the model '%.100s' does not exist here; '%.100s' does",
                         fl_json_string(v).data, so->alias);
    return true;
}

bool fl_params_read(const fl_json *o, bool chat, const fl_server_options *so, fl_params *p,
                    fl_refusal *r)
{
    *p = (fl_params){.chat = chat, .max_tokens = chat ? -1 : 16};
    if (!fl_json_is(o, FL_JSON_OBJECT))
        return fl_refuse(r, 400, "invalid_json", "", "the body must be a JSON object");
    const fl_json *so_json = member(o, "stream_options");
    if (so_json && !fl_json_is(so_json, FL_JSON_OBJECT))
        return wrong(r, "stream_options", "an object", so_json);
    if (!read_model(o, so, r) || !refuse_unsupported(o, r) ||
        !read_flag(o, "stream", &p->stream, r) || !read_flag(o, "ignore_eos", &p->ignore_eos, r) ||
        (so_json && !read_flag(so_json, "include_usage", &p->include_usage, r)) ||
        !read_int(o, "max_tokens", 1, INT32_MAX, &p->max_tokens, r) ||
        !read_int(o, "max_completion_tokens", 1, INT32_MAX, &p->max_tokens, r) ||
        !read_sampling(o, p, r) || !read_stop(o, p, r))
        return false;
    if (chat)
        return read_chat(o, so, p, r);
    p->prompt = member(o, "prompt");
    if (!p->prompt)
        return fl_refuse(r, 400, "missing_required_parameter", "prompt", "prompt is missing");
    if (!fl_json_is(p->prompt, FL_JSON_STRING) && !fl_json_is(p->prompt, FL_JSON_ARRAY))
        return wrong(r, "prompt", "a string or a list of token ids", p->prompt);
    return true;
}
