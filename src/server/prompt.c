/* The prompts of a job: messages rendered in the model's chat format, or texts encoded and token
 * ids as they are; and whether they fit. */
#define _GNU_SOURCE
#include "server/job_internal.h"

#include <stdio.h>

/* What was appended to the tokens from `at` on is a prompt. */
static bool add_prompt(fl_job *j, size_t at, fl_refusal *r)
{
    int choice = (int)j->prompts.n * (int)j->params.n;
    fl_job_prompt p = {.job = j, .at = at, .n = j->prompt.n - at, .choice = choice};
    return fl_vec_push(&j->prompts, p) || fl_refuse_nomem(r);
}

static bool append_ids(fl_job *j, const fl_json *list, fl_refusal *r)
{
    for (size_t i = 0; i < fl_json_size(list); i++) {
        const fl_json *v = fl_json_at(list, i);
        if (!fl_json_is(v, FL_JSON_INT) || fl_json_int(v) < 0 || fl_json_int(v) > INT32_MAX)
            return fl_refuse(r, 400, "invalid_value", "prompt",
                             "prompt must be a string, a list of token ids, or a list of these; "
                             "element %zu of a list of token ids is %s",
                             i, fl_json_type_name(v));
        if (!fl_vec_push(&j->prompt, (int32_t)fl_json_int(v)))
            return fl_refuse_nomem(r);
    }
    return true;
}

/* A text, or a list of token ids. */
static bool make_one(fl_job *j, const fl_json *prompt, fl_refusal *r)
{
    fl_error err = {0};
    size_t at = j->prompt.n;
    if (fl_json_is(prompt, FL_JSON_STRING)) {
        fl_bytes b = fl_json_string(prompt);
        if (fl_tokenizer_encode(j->server->tokenizer, b.data, b.len, false, &j->prompt, &err) !=
            FL_OK)
            return fl_refuse_error(r, &err);
    } else if (!append_ids(j, prompt, r)) {
        return false;
    }
    return add_prompt(j, at, r);
}

static bool make_all(fl_job *j, const fl_json *list, fl_refusal *r)
{
    size_t n = fl_json_size(list);
    if (n * (size_t)j->params.n > FL_MAX_ANSWERS)
        return fl_refuse(r, 400, "invalid_value", "prompt",
                         "%zu prompts with n = %lld make more than %d answers", n,
                         (long long)j->params.n, FL_MAX_ANSWERS);
    for (size_t i = 0; i < n; i++) {
        const fl_json *v = fl_json_at(list, i);
        if (!fl_json_is(v, FL_JSON_STRING) && !fl_json_is(v, FL_JSON_ARRAY))
            return fl_refuse(r, 400, "invalid_value", "prompt", "prompt %zu of the list is %s", i,
                             fl_json_type_name(v));
        if (!make_one(j, v, r))
            return false;
    }
    return true;
}

/* A refused conversation: what the message begins with is the parameter. */
static bool refuse_chat(fl_refusal *r, const fl_error *err)
{
    static const struct {
        const char *begin, *param;
    } list[] = {{"messages", "messages"},
                {"tools", "tools"},
                {"tool_choice", "tool_choice"},
                {"response_format", "response_format"},
                {"the thinking effort", "reasoning_effort"}};
    fl_refuse_error(r, err);
    for (size_t i = 0; r->http == 400 && i < sizeof list / sizeof *list; i++) {
        if (strncmp(err->message, list[i].begin, strlen(list[i].begin)) == 0)
            snprintf(r->param, sizeof r->param, "%s", list[i].param);
    }
    return false;
}

static fl_chat_options chat_options(const fl_params *p)
{
    return (fl_chat_options){.messages = p->messages,
                             .tools = p->tools,
                             .tool_choice = p->tool_choice,
                             .response_format = p->format,
                             .effort = p->effort,
                             .thinking = p->thinking,
                             .generation_prompt = true,
                             .one_call = p->one_call};
}

bool fl_prompt_make(fl_job *j, fl_buf *text, fl_refusal *r)
{
    const fl_params *p = &j->params;
    fl_error err = {0};
    if (p->messages) {
        fl_chat_options o = chat_options(p);
        fl_status s = fl_chat_render(j->server->model, &o, text, text ? NULL : &j->prompt, &err);
        return s == FL_OK ? add_prompt(j, 0, r) : refuse_chat(r, &err);
    }
    const fl_json *prompt = p->prompt;
    bool one = fl_json_is(prompt, FL_JSON_STRING) || fl_json_size(prompt) == 0 ||
               fl_json_is(fl_json_at(prompt, 0), FL_JSON_INT);
    return one ? make_one(j, prompt, r) : make_all(j, prompt, r);
}

static bool check_fit(fl_job *j, int64_t n, fl_refusal *r)
{
    int64_t context = j->server->options.context;
    int64_t *max = &j->params.max_tokens;
    if (j->key && j->key->context && j->key->context < context)
        context = j->key->context;
    if (n == 0)
        return fl_refuse(r, 400, "invalid_value", "prompt", "the prompt is empty");
    if (n >= context || (*max >= 0 && n + *max > context))
        return fl_refuse(r, 400, "context_length_exceeded",
                         j->dialect->chat ? "messages" : "prompt",
                         "the context is %lld tokens; the prompt has %lld and max_tokens asks for "
                         "%lld",
                         (long long)context, (long long)n, (long long)(*max < 0 ? 1 : *max));
    if (*max < 0) /* of a chat, which is one prompt */
        *max = context - n;
    return true;
}

static bool check_bias(fl_job *j, fl_refusal *r)
{
    for (size_t i = 0; i < j->params.bias.n; i++) {
        if (j->params.bias.data[i].id >= fl_tokenizer_size(j->server->tokenizer))
            return fl_refuse(r, 400, "invalid_value", "logit_bias",
                             "logit_bias: the vocabulary has %lld tokens; there is no %d",
                             (long long)fl_tokenizer_size(j->server->tokenizer),
                             j->params.bias.data[i].id);
    }
    return true;
}

bool fl_prompt_prepare(fl_job *j, fl_refusal *r)
{
    enum { LONG = 16384 }; /* tokens: what rendering so many took is worth the time to give back */
    fl_error err = {0};
    const fl_params *p = &j->params;
    fl_chat_options o = chat_options(p);
    if (!fl_prompt_make(j, NULL, r))
        return false;
    if (j->prompt.n >= LONG)
        fl_mem_trim();
    for (size_t i = 0; i < j->prompts.n; i++) {
        if (!check_fit(j, (int64_t)j->prompts.data[i].n, r))
            return false;
    }
    j->n_choices = (int)j->prompts.n * (int)p->n;
    if (!check_bias(j, r) || !fl_form_prepare(j, &o, r))
        return false;
    j->choices = fl_calloc((size_t)j->n_choices, sizeof *j->choices);
    if (!j->choices)
        return fl_refuse_nomem(r);
    for (int i = 0; i < j->n_choices; i++) {
        fl_choice *c = &j->choices[i];
        *c = (fl_choice){.job = j, .index = i, .stop = -1};
        if (j->dialect->chat &&
            (fl_chat_parser_create(j->server->model, p->thinking, fl_answer_sink, c, &c->parser,
                                   &err) != FL_OK ||
             fl_chat_parser_tools(c->parser, p->tools, &err) != FL_OK))
            return fl_refuse_error(r, &err);
    }
    return true;
}
