/* OpenAI's /v1/responses as a chat request.  Nothing is stored: what refers to an earlier response
 * is refused, and the client sends the whole conversation. */
#define _GNU_SOURCE
#include "server/responses_internal.h"
#include "server/translate_internal.h"

static const char *const TEXT[] = {"input_text",     "output_text",  "text",
                                   "reasoning_text", "summary_text", NULL};

static bool read_message(const fl_json *item, fl_chat_text *t, fl_refusal *r)
{
    const fl_json *role = fl_read(item, "role");
    fl_buf text = {0};
    bool ok = fl_parts_text(fl_read(item, "content"), TEXT, "input", &text, r);
    fl_bytes said = {text.data, text.n};
    if (ok && fl_is_text(role, "assistant"))
        fl_chat_text_say(t, said);
    else if (ok && fl_is_text(role, "user"))
        fl_chat_text_message(t, "user", said);
    else if (ok && (fl_is_text(role, "system") || fl_is_text(role, "developer")))
        fl_chat_text_message(t, "system", said);
    else if (ok)
        ok = fl_refuse(r, 400, "invalid_value", "input",
                       "input: a role is user, assistant, system or developer");
    fl_vec_free(&text);
    return ok;
}

static bool read_reasoning(const fl_json *item, fl_chat_text *t, fl_refusal *r)
{
    fl_buf text = {0};
    const fl_json *content = fl_read(item, "content");
    if (!content)
        content = fl_read(item, "summary");
    bool ok = fl_parts_text(content, TEXT, "input", &text, r);
    if (ok)
        fl_chat_text_think(t, (fl_bytes){text.data, text.n});
    fl_vec_free(&text);
    return ok;
}

static bool read_output(const fl_json *item, fl_chat_text *t, fl_refusal *r)
{
    fl_buf text = {0};
    bool ok = fl_parts_text(fl_read(item, "output"), TEXT, "input", &text, r);
    if (ok)
        fl_chat_text_result(t, fl_text_of(item, "call_id"), (fl_bytes){text.data, text.n});
    fl_vec_free(&text);
    return ok;
}

static bool read_item(const fl_json *item, fl_chat_text *t, fl_refusal *r)
{
    const fl_json *type = fl_read(item, "type");
    if (!type || fl_is_text(type, "message"))
        return read_message(item, t, r);
    if (fl_is_text(type, "reasoning"))
        return read_reasoning(item, t, r);
    if (fl_is_text(type, "function_call_output"))
        return read_output(item, t, r);
    if (!fl_is_text(type, "function_call"))
        return fl_refuse(r, 400, "unsupported_parameter", "input",
                         "input: an item of type '%.40s' is not supported",
                         fl_json_is(type, FL_JSON_STRING) ? fl_json_string(type).data : "?");
    fl_chat_text_call(t, fl_text_of(item, "call_id"), fl_text_of(item, "name"),
                      fl_text_of(item, "arguments"));
    return true;
}

static bool read_input(const fl_json *body, fl_chat_text *t, fl_refusal *r)
{
    const fl_json *input = fl_read(body, "input"), *instructions = fl_read(body, "instructions");
    if (fl_json_is(instructions, FL_JSON_STRING))
        fl_chat_text_message(t, "system", fl_json_string(instructions));
    else if (instructions)
        return fl_read_wrong(r, "instructions", "a string", instructions);
    if (!input)
        return fl_refuse(r, 400, "missing_required_parameter", "input", "input is missing");
    if (fl_json_is(input, FL_JSON_STRING)) {
        fl_chat_text_message(t, "user", fl_json_string(input));
        return true;
    }
    if (!fl_json_is(input, FL_JSON_ARRAY))
        return fl_read_wrong(r, "input", "a string or a list of items", input);
    bool ok = true;
    for (size_t i = 0; ok && i < fl_json_size(input); i++)
        ok = read_item(fl_json_at(input, i), t, r);
    return ok;
}

static bool copy_tools(const fl_json *body, fl_buf *out, fl_refusal *r)
{
    const fl_json *tools = NULL, *choice = fl_read(body, "tool_choice");
    if (!fl_read_typed(body, "tools", FL_JSON_ARRAY, "a list", &tools, r))
        return false;
    bool ok = !tools || fl_put(out, ", \"tools\": [");
    for (size_t i = 0; ok && tools && i < fl_json_size(tools); i++) {
        const fl_json *tool = fl_json_at(tools, i);
        if (!fl_is_text(fl_read(tool, "type"), "function"))
            return fl_refuse(r, 400, "unsupported_parameter", "tools",
                             "tools[%zu] is no function; only functions are supported", i);
        ok = fl_put(out, i ? ", " : "") && fl_copy_tool(out, tool, "parameters");
    }
    ok = ok && (!tools || fl_put(out, "]"));
    if (fl_json_is(choice, FL_JSON_OBJECT))
        ok = ok &&
             fl_put(out, ", \"tool_choice\": {\"type\": \"function\", \"function\": {\"name\": ") &&
             fl_put_json(out, fl_read(choice, "name")) && fl_put(out, "}}");
    else
        ok = ok && fl_copy(out, body, "tool_choice", "tool_choice");
    return ok || fl_refuse_nomem(r);
}

static bool copy_format(const fl_json *body, fl_buf *out, fl_refusal *r)
{
    const fl_json *text = NULL, *format = NULL;
    if (!fl_read_typed(body, "text", FL_JSON_OBJECT, "an object", &text, r) ||
        !fl_read_typed(text, "format", FL_JSON_OBJECT, "an object with a type", &format, r))
        return false;
    if (!fl_is_text(fl_read(format, "type"), "json_schema"))
        return fl_copy(out, text, "format", "response_format") || fl_refuse_nomem(r);
    return (fl_put(out, ", \"response_format\": {\"type\": \"json_schema\", \"json_schema\": "
                        "{\"name\": ") &&
            fl_put_json(out, fl_read(format, "name")) && fl_copy(out, format, "schema", "schema") &&
            fl_copy(out, format, "strict", "strict") && fl_put(out, "}}")) ||
           fl_refuse_nomem(r);
}

static bool refuse_stored(const fl_json *body, fl_refusal *r)
{
    static const char *const names[] = {"previous_response_id", "conversation", "prompt"};
    bool background = false;
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        if (fl_read(body, names[i]))
            return fl_refuse(r, 400, "unsupported_parameter", names[i],
                             "%s is not supported: nothing is stored here", names[i]);
    }
    if (!fl_read_flag(body, "background", &background, r))
        return false;
    return !background || fl_refuse(r, 400, "unsupported_parameter", "background",
                                    "background is not supported by this server");
}

bool fl_responses_translate(const fl_json *body, fl_buf *out, fl_refusal *r)
{
    fl_chat_text t;
    int64_t top = 0;
    if (!refuse_stored(body, r) || !fl_read_int(body, "top_logprobs", 0, 20, &top, r))
        return false;
    fl_chat_text_begin(&t, out);
    bool ok = read_input(body, &t, r);
    bool enough = fl_chat_text_end(&t);
    if (!ok || !copy_tools(body, out, r) || !copy_format(body, out, r))
        return false;
    static const char *const same[][2] = {{"model", "model"},
                                          {"max_output_tokens", "max_completion_tokens"},
                                          {"stream", "stream"},
                                          {"temperature", "temperature"},
                                          {"top_p", "top_p"},
                                          {"parallel_tool_calls", "parallel_tool_calls"},
                                          {"seed", "seed"},
                                          {"priority", "priority"},
                                          {"chat_template_kwargs", "chat_template_kwargs"}};
    for (size_t i = 0; enough && i < sizeof same / sizeof *same; i++)
        enough = fl_copy(out, body, same[i][0], same[i][1]);
    enough = enough && fl_copy(out, fl_read(body, "reasoning"), "effort", "reasoning_effort") &&
             (top == 0 || fl_put(out, ", \"logprobs\": true, \"top_logprobs\": %d", (int)top));
    return (enough && fl_put(out, "}")) || fl_refuse_nomem(r);
}
