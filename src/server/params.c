/* Reading a request's parameters: a value that is null is absent; a wrong type or range, and a
 * known parameter that is not supported, are refused by name; unknown names are ignored, because
 * clients send ever new ones. */
#define _GNU_SOURCE
#include "server/job_internal.h"
#include "server/read_internal.h"

/* Parameters that other servers know and this one does not do.  False, and the number that asks
 * for nothing, pass. */
static bool refuse_unsupported(const fl_json *o, fl_refusal *r)
{
    static const struct {
        const char *name;
        int64_t fine;
    } list[] = {{"best_of", 1},
                {"prompt_logprobs", -1},
                {"suffix", -1},
                {"echo", -1},
                {"functions", -1},
                {"function_call", -1},
                {"audio", -1},
                {"prediction", -1},
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
        const fl_json *v = fl_read(o, list[i].name);
        if (v && !(fl_json_is(v, FL_JSON_BOOL) && !fl_json_bool(v)) &&
            !(fl_json_is(v, FL_JSON_INT) && fl_json_int(v) == list[i].fine))
            return fl_refuse(r, 400, "unsupported_parameter", list[i].name,
                             "%s is not supported by this server", list[i].name);
    }
    return true;
}

/* The effort that stands for the one asked for, if the server's owner says so: clients send names
 * unasked that the model may not know.  The text is the owner's, its values end at a comma. */
static bool map_effort(const fl_server *s, fl_params *p)
{
    size_t n = strlen(p->effort);
    for (const char *at = s->options.efforts; at && *at;) {
        size_t len = strcspn(at, ",");
        if (len > n + 1 && strncmp(at, p->effort, n) == 0 && at[n] == '=') {
            p->mapped = fl_strndup(at + n + 1, len - n - 1);
            p->effort = p->mapped;
            return p->mapped != NULL;
        }
        at += len + (at[len] == ',');
    }
    return true;
}

/* The switches for reasoning: reasoning_effort, thinking and chat_template_kwargs. */
static bool read_thinking(const fl_json *o, const fl_server *s, fl_params *p, fl_refusal *r)
{
    const fl_json *kw = NULL, *thinking = NULL;
    const char *type = "enabled", *effort = NULL;
    if (!fl_read_typed(o, "thinking", FL_JSON_OBJECT, "an object with a type", &thinking, r) ||
        !fl_read_text(thinking, "type", &type, r) ||
        !fl_read_typed(o, "chat_template_kwargs", FL_JSON_OBJECT, "an object", &kw, r) ||
        !fl_read_text(thinking, "effort", &effort, r) ||
        !fl_read_text(o, "reasoning_effort", &effort, r))
        return false;
    p->thinking = strcmp(type, "disabled") != 0;
    if (!fl_read_flag(kw, "enable_thinking", &p->thinking, r) ||
        !fl_read_flag(kw, "thinking", &p->thinking, r))
        return false;
    p->effort = effort ? effort : s->options.effort;
    if (effort && (strcmp(effort, "none") == 0 || strcmp(effort, "minimal") == 0))
        p->thinking = false;
    if (!p->thinking)
        p->effort = NULL;
    return !effort || !p->effort || map_effort(s, p) || fl_refuse_nomem(r);
}

static bool read_format(const fl_json *o, fl_params *p, fl_refusal *r)
{
    const fl_json *format = NULL;
    const char *type = NULL;
    if (!fl_read_typed(o, "response_format", FL_JSON_OBJECT, "an object with a type", &format, r) ||
        !fl_read_text(format, "type", &type, r))
        return false;
    if (!format || (type && strcmp(type, "text") == 0))
        return true;
    if (!type || (strcmp(type, "json_object") != 0 && strcmp(type, "json_schema") != 0))
        return fl_refuse(r, 400, "invalid_value", "response_format",
                         "response_format.type must be \"text\", \"json_object\" or "
                         "\"json_schema\"");
    p->format = format;
    return true;
}

static bool read_tools(const fl_json *o, fl_params *p, fl_refusal *r)
{
    bool parallel = true;
    p->tool_choice = fl_read(o, "tool_choice");
    if (!fl_read_typed(o, "tools", FL_JSON_ARRAY, "a list", &p->tools, r) ||
        !fl_read_flag(o, "parallel_tool_calls", &parallel, r))
        return false;
    p->one_call = !parallel;
    if (!p->tool_choice)
        return true;
    if (fl_json_is(p->tool_choice, FL_JSON_OBJECT)) /* the chat format looks for its function */
        return true;
    if (fl_is_text(p->tool_choice, "auto") || fl_is_text(p->tool_choice, "none"))
        return true;
    if (!fl_is_text(p->tool_choice, "required"))
        return fl_refuse(r, 400, "invalid_value", "tool_choice",
                         "tool_choice must be \"auto\", \"none\", \"required\" or name a function");
    return (p->tools && fl_json_size(p->tools)) ||
           fl_refuse(r, 400, "invalid_value", "tool_choice",
                     "tool_choice is \"required\" and there are no tools");
}

static bool read_chat(const fl_json *o, const fl_server *s, fl_params *p, fl_refusal *r)
{
    if (!fl_read_typed(o, "messages", FL_JSON_ARRAY, "a list", &p->messages, r))
        return false;
    if (!p->messages)
        return fl_refuse(r, 400, "missing_required_parameter", "messages", "messages is missing");
    if (fl_json_size(p->messages) == 0)
        return fl_refuse(r, 400, "invalid_value", "messages", "messages is empty");
    return read_thinking(o, s, p, r) && read_tools(o, p, r);
}

static bool read_prompt(const fl_json *o, fl_params *p, fl_refusal *r)
{
    p->prompt = fl_read(o, "prompt");
    if (!p->prompt)
        return fl_refuse(r, 400, "missing_required_parameter", "prompt", "prompt is missing");
    return fl_json_is(p->prompt, FL_JSON_STRING) || fl_json_is(p->prompt, FL_JSON_ARRAY) ||
           fl_read_wrong(r, "prompt", "a string, a list of token ids, or a list of these",
                         p->prompt);
}

/* needed: without it the request is refused. */
static bool read_model(const fl_json *o, const fl_server *s, bool needed, fl_refusal *r)
{
    const char *name = NULL;
    if (!fl_read_text(o, "model", &name, r))
        return false;
    if (!name)
        return !needed ||
               fl_refuse(r, 400, "missing_required_parameter", "model", "model is missing");
    fl_bytes ours = fl_server_alias(s);
    return fl_server_is_alias(s, name) ||
           fl_refuse(r, 404, "model_not_found", "model",
                     "the model '%.100s' does not exist here; '%.*s' does", name,
                     (int)(ours.len < 100 ? ours.len : 100), ours.data);
}

bool fl_params_read(const fl_json *o, const fl_dialect *d, const fl_server *s, fl_params *p,
                    fl_refusal *r)
{
    *p = (fl_params){.max_tokens = d->chat ? -1 : 16, .n = 1};
    if (!fl_json_is(o, FL_JSON_OBJECT))
        return fl_refuse(r, 400, "invalid_json", "", "the body must be a JSON object");
    if (!read_model(o, s, !d->act, r))
        return false;
    if (d->act) /* nothing is generated */
        return !fl_read(o, "messages") || (read_format(o, p, r) && read_chat(o, s, p, r));
    const fl_json *so = NULL;
    if (!refuse_unsupported(o, r) ||
        !fl_read_typed(o, "stream_options", FL_JSON_OBJECT, "an object", &so, r) ||
        !fl_read_flag(o, "stream", &p->stream, r) ||
        !fl_read_flag(so, "include_usage", &p->include_usage, r) ||
        !fl_read_flag(o, "ignore_eos", &p->ignore_eos, r) ||
        !fl_read_flag(o, "include_stop_str_in_output", &p->show_stop, r) ||
        !fl_read_int(o, "n", 1, FL_MAX_CHOICES, &p->n, r) ||
        !fl_read_int(o, "priority", INT32_MIN, INT32_MAX, &p->priority, r) ||
        !fl_read_int(o, "min_tokens", 0, INT32_MAX, &p->min_tokens, r) ||
        !fl_read_int(o, "max_tokens", 1, INT32_MAX, &p->max_tokens, r) ||
        !fl_read_int(o, "max_completion_tokens", 1, INT32_MAX, &p->max_tokens, r) ||
        !fl_sampling_read(o, d->chat, p, r))
        return false;
    return read_format(o, p, r) && (d->chat ? read_chat(o, s, p, r) : read_prompt(o, p, r));
}

void fl_params_free(fl_params *p)
{
    fl_free(p->mapped);
    fl_vec_free(&p->bias);
    fl_vec_free(&p->stop_ids);
}
