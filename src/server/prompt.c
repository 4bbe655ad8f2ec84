/* The prompt of a job: messages rendered in the model's chat format, text encoded, or token ids as
 * they are; and whether it fits. */
#define _GNU_SOURCE
#include "server/job_internal.h"

#include <stdio.h>

static bool prompt_ids(fl_job *j, const fl_json *list, fl_refusal *r)
{
    for (size_t i = 0; i < fl_json_size(list); i++) {
        const fl_json *v = fl_json_at(list, i);
        if (!fl_json_is(v, FL_JSON_INT) || fl_json_int(v) < 0 || fl_json_int(v) > INT32_MAX)
            return fl_refuse(r, 400, "invalid_value", "prompt",
                             "prompt must be one string or one list of token ids; element %zu is "
                             "%s",
                             i, fl_json_type_name(v));
        if (!fl_vec_push(&j->prompt, (int32_t)fl_json_int(v)))
            return fl_refuse_nomem(r);
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
        return s == FL_OK || refuse_chat(r, &err);
    }
    const fl_json *prompt = p->prompt;
    if (fl_json_is(prompt, FL_JSON_ARRAY) && fl_json_size(prompt) == 1 &&
        fl_json_is(fl_json_at(prompt, 0), FL_JSON_STRING))
        prompt = fl_json_at(prompt, 0);
    if (fl_json_is(prompt, FL_JSON_ARRAY))
        return prompt_ids(j, prompt, r);
    fl_bytes b = fl_json_string(prompt);
    return fl_tokenizer_encode(j->server->tokenizer, b.data, b.len, false, &j->prompt, &err) ==
               FL_OK ||
           fl_refuse_error(r, &err);
}

static bool check_fit(fl_job *j, fl_refusal *r)
{
    int64_t context = j->server->options.context, n = (int64_t)j->prompt.n;
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
    if (*max < 0)
        *max = context - n;
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
    fl_error err = {0};
    const fl_params *p = &j->params;
    fl_chat_options o = chat_options(p);
    if (!fl_prompt_make(j, NULL, r) || !check_fit(j, r) || !fl_form_prepare(j, &o, r))
        return false;
    j->choices = fl_calloc((size_t)p->n, sizeof *j->choices);
    if (!j->choices)
        return fl_refuse_nomem(r);
    for (int i = 0; i < p->n; i++) {
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
