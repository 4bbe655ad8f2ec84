/* Anthropic's /v1/messages as a chat request. */
#define _GNU_SOURCE
#include "server/messages_internal.h"
#include "server/translate_internal.h"

static const char *const TEXT[] = {"text", NULL};

static bool read_system(const fl_json *body, fl_chat_text *t, fl_refusal *r)
{
    const fl_json *v = fl_read(body, "system");
    fl_buf text = {0};
    bool ok = !v || fl_parts_text(v, TEXT, "system", &text, r);
    if (ok && v)
        fl_chat_text_message(t, "system", (fl_bytes){text.data, text.n});
    fl_vec_free(&text);
    return ok;
}

static bool read_use(const fl_json *block, fl_chat_text *t, fl_refusal *r)
{
    fl_buf arguments = {0};
    const fl_json *input = fl_read(block, "input");
    bool ok = input ? fl_put_json(&arguments, input) : fl_put(&arguments, "{}");
    if (ok)
        fl_chat_text_call(t, fl_text_of(block, "id"), fl_text_of(block, "name"),
                          (fl_bytes){arguments.data, arguments.n});
    fl_vec_free(&arguments);
    return ok || fl_refuse_nomem(r);
}

static bool read_result(const fl_json *block, fl_chat_text *t, fl_refusal *r)
{
    fl_buf text = {0};
    bool ok = fl_parts_text(fl_read(block, "content"), TEXT, "messages", &text, r);
    if (ok)
        fl_chat_text_result(t, fl_text_of(block, "tool_use_id"), (fl_bytes){text.data, text.n});
    fl_vec_free(&text);
    return ok;
}

/* What a user says between and after the results of tools. */
static void speak(fl_chat_text *t, fl_buf *said)
{
    if (said->n)
        fl_chat_text_message(t, "user", (fl_bytes){said->data, said->n});
    said->n = 0;
}

static bool read_block(const fl_json *block, bool user, fl_chat_text *t, fl_buf *said,
                       fl_refusal *r)
{
    const fl_json *type = fl_read(block, "type");
    fl_bytes text = fl_text_of(block, "text");
    if (fl_is_text(type, "text") && user)
        return fl_vec_append(said, text.data, text.len) || fl_refuse_nomem(r);
    if (fl_is_text(type, "tool_result") && user) {
        speak(t, said);
        return read_result(block, t, r);
    }
    if (fl_is_text(type, "text")) {
        fl_chat_text_say(t, text);
        return true;
    }
    if (fl_is_text(type, "thinking") && !user) {
        fl_chat_text_think(t, fl_text_of(block, "thinking"));
        return true;
    }
    if (fl_is_text(type, "tool_use") && !user)
        return read_use(block, t, r);
    return (fl_is_text(type, "redacted_thinking") && !user) ||
           fl_refuse(r, 400, "unsupported_parameter", "messages",
                     "messages: a content block of type '%.40s' is not supported",
                     fl_json_is(type, FL_JSON_STRING) ? fl_json_string(type).data : "none");
}

static bool read_message(const fl_json *m, fl_chat_text *t, fl_refusal *r)
{
    const fl_json *role = fl_read(m, "role"), *content = fl_read(m, "content");
    bool user = fl_is_text(role, "user"), ok = true;
    fl_buf said = {0};
    if (!user && !fl_is_text(role, "assistant"))
        return fl_refuse(r, 400, "invalid_value", "messages",
                         "messages: a role is \"user\" or \"assistant\"");
    if (fl_json_is(content, FL_JSON_STRING)) {
        if (user)
            fl_chat_text_message(t, "user", fl_json_string(content));
        else
            fl_chat_text_say(t, fl_json_string(content));
        return true;
    }
    if (!fl_json_is(content, FL_JSON_ARRAY))
        return fl_read_wrong(r, "messages", "a list of messages with content", content);
    for (size_t i = 0; ok && i < fl_json_size(content); i++)
        ok = read_block(fl_json_at(content, i), user, t, &said, r);
    speak(t, &said);
    fl_vec_free(&said);
    return ok;
}

static bool copy_tools(const fl_json *body, fl_buf *out, fl_refusal *r)
{
    const fl_json *tools = NULL;
    if (!fl_read_typed(body, "tools", FL_JSON_ARRAY, "a list", &tools, r))
        return false;
    if (!tools)
        return true;
    bool ok = fl_put(out, ", \"tools\": [");
    for (size_t i = 0; ok && i < fl_json_size(tools); i++) {
        const fl_json *tool = fl_json_at(tools, i), *type = fl_read(tool, "type");
        if (type && !fl_is_text(type, "custom"))
            return fl_refuse(r, 400, "unsupported_parameter", "tools",
                             "tools[%zu] is a tool of the server; only tools of the client are "
                             "supported",
                             i);
        ok = fl_put(out, i ? ", " : "") && fl_copy_tool(out, tool, "input_schema");
    }
    return (ok && fl_put(out, "]")) || fl_refuse_nomem(r);
}

static bool copy_choice(const fl_json *body, fl_buf *out, fl_refusal *r)
{
    const fl_json *choice = NULL;
    const char *type = "auto";
    bool one = false;
    if (!fl_read_typed(body, "tool_choice", FL_JSON_OBJECT, "an object with a type", &choice, r) ||
        !fl_read_text(choice, "type", &type, r) ||
        !fl_read_flag(choice, "disable_parallel_tool_use", &one, r))
        return false;
    if (!choice)
        return true;
    bool ok =
        fl_put(out, ", \"parallel_tool_calls\": %s, \"tool_choice\": ", one ? "false" : "true");
    if (strcmp(type, "tool") == 0)
        ok = ok && fl_put(out, "{\"type\": \"function\", \"function\": {\"name\": ") &&
             fl_put_json(out, fl_read(choice, "name")) && fl_put(out, "}}");
    else
        ok = ok && fl_put_string(out, strcmp(type, "any") == 0 ? "required" : type);
    return ok || fl_refuse_nomem(r);
}

/* Without `thinking` Anthropic's models do not think. */
static bool copy_thinking(const fl_json *body, fl_buf *out, fl_refusal *r)
{
    const fl_json *v = NULL;
    if (!fl_read_typed(body, "thinking", FL_JSON_OBJECT, "an object with a type", &v, r))
        return false;
    return (v ? fl_copy(out, body, "thinking", "thinking")
              : fl_put(out, ", \"thinking\": {\"type\": \"disabled\"}")) ||
           fl_refuse_nomem(r);
}

bool fl_messages_translate(const fl_json *body, fl_buf *out, fl_refusal *r)
{
    const fl_json *messages = NULL;
    fl_chat_text t;
    if (!fl_read_typed(body, "messages", FL_JSON_ARRAY, "a list", &messages, r))
        return false;
    fl_chat_text_begin(&t, out);
    bool ok = read_system(body, &t, r);
    for (size_t i = 0; ok && messages && i < fl_json_size(messages); i++)
        ok = read_message(fl_json_at(messages, i), &t, r);
    bool enough = fl_chat_text_end(&t);
    if (!ok || !copy_tools(body, out, r) || !copy_choice(body, out, r) ||
        !copy_thinking(body, out, r))
        return false;
    static const char *const same[][2] = {
        {"model", "model"},         {"max_tokens", "max_tokens"},
        {"stream", "stream"},       {"temperature", "temperature"},
        {"top_p", "top_p"},         {"top_k", "top_k"},
        {"stop_sequences", "stop"}, {"reasoning_effort", "reasoning_effort"}};
    for (size_t i = 0; enough && i < sizeof same / sizeof *same; i++)
        enough = fl_copy(out, body, same[i][0], same[i][1]);
    const fl_json *config = fl_read(body, "output_config"), *format = fl_read(config, "format");
    enough = enough && fl_copy(out, config, "effort", "reasoning_effort") &&
             (!format || (fl_put(out, ", \"response_format\": {\"type\": \"json_schema\", "
                                      "\"json_schema\": {\"name\": \"answer\"") &&
                          fl_copy(out, format, "schema", "schema") && fl_put(out, "}}")));
    return (enough && fl_put(out, "}")) || fl_refuse_nomem(r);
}

bool fl_messages_translate_needed(const fl_json *body, fl_buf *out, fl_refusal *r)
{
    if (!fl_read(body, "max_tokens"))
        return fl_refuse(r, 400, "missing_required_parameter", "max_tokens",
                         "max_tokens is missing");
    return fl_messages_translate(body, out, r);
}
