/* Writing a chat request from another dialect's. */
#define _GNU_SOURCE
#include "server/translate_internal.h"

static void check(fl_chat_text *t, bool ok)
{
    t->failed |= !ok;
}

void fl_chat_text_begin(fl_chat_text *t, fl_buf *out)
{
    *t = (fl_chat_text){.out = out};
    check(t, fl_put(out, "{\"messages\": ["));
}

static bool quote(fl_buf *b, fl_bytes text)
{
    return fl_json_quote(text.data ? text.data : "", text.len, b);
}

void fl_chat_text_flush(fl_chat_text *t)
{
    fl_buf *b = t->out;
    if (!t->open)
        return;
    check(t, fl_put(b, "%s{\"role\": \"assistant\", \"content\": ", t->any ? ", " : "") &&
                 fl_put_buf(b, &t->text) &&
                 (!t->reasoning.n ||
                  (fl_put(b, ", \"reasoning_content\": ") && fl_put_buf(b, &t->reasoning))) &&
                 (!t->calls.n || (fl_put(b, ", \"tool_calls\": [") &&
                                  fl_vec_append(b, t->calls.data, t->calls.n) && fl_put(b, "]"))) &&
                 fl_put(b, "}"));
    t->any = true;
    t->open = false;
    t->text.n = t->reasoning.n = t->calls.n = 0;
}

void fl_chat_text_message(fl_chat_text *t, const char *role, fl_bytes text)
{
    fl_chat_text_flush(t);
    check(t, fl_put(t->out, "%s{\"role\": \"%s\", \"content\": ", t->any ? ", " : "", role) &&
                 quote(t->out, text) && fl_put(t->out, "}"));
    t->any = true;
}

void fl_chat_text_say(fl_chat_text *t, fl_bytes text)
{
    t->open = true;
    check(t, fl_vec_append(&t->text, text.data, text.len));
}

void fl_chat_text_think(fl_chat_text *t, fl_bytes text)
{
    t->open = true;
    check(t, fl_vec_append(&t->reasoning, text.data, text.len));
}

void fl_chat_text_call(fl_chat_text *t, fl_bytes id, fl_bytes name, fl_bytes arguments)
{
    fl_buf *b = &t->calls;
    t->open = true;
    check(t, fl_put(b, "%s{\"type\": \"function\", \"id\": ", b->n ? ", " : "") && quote(b, id) &&
                 fl_put(b, ", \"function\": {\"name\": ") && quote(b, name) &&
                 fl_put(b, ", \"arguments\": ") && quote(b, arguments) && fl_put(b, "}}"));
}

void fl_chat_text_result(fl_chat_text *t, fl_bytes id, fl_bytes text)
{
    fl_chat_text_flush(t);
    check(t, fl_put(t->out, "%s{\"role\": \"tool\", \"tool_call_id\": ", t->any ? ", " : "") &&
                 quote(t->out, id) && fl_put(t->out, ", \"content\": ") && quote(t->out, text) &&
                 fl_put(t->out, "}"));
    t->any = true;
}

bool fl_chat_text_end(fl_chat_text *t)
{
    fl_chat_text_flush(t);
    check(t, fl_put(t->out, "]"));
    fl_vec_free(&t->text);
    fl_vec_free(&t->reasoning);
    fl_vec_free(&t->calls);
    return !t->failed;
}

bool fl_copy(fl_buf *out, const fl_json *o, const char *from, const char *to)
{
    const fl_json *v = fl_read(o, from);
    return !v || (fl_put(out, ", \"%s\": ", to) && fl_put_json(out, v));
}

bool fl_copy_tool(fl_buf *out, const fl_json *tool, const char *schema)
{
    return fl_put(out, "{\"type\": \"function\", \"function\": {\"name\": ") &&
           fl_put_json(out, fl_read(tool, "name")) &&
           fl_copy(out, tool, "description", "description") &&
           fl_copy(out, tool, schema, "parameters") && fl_copy(out, tool, "strict", "strict") &&
           fl_put(out, "}}");
}

fl_bytes fl_text_of(const fl_json *o, const char *name)
{
    const fl_json *v = fl_read(o, name);
    return fl_json_is(v, FL_JSON_STRING) ? fl_json_string(v) : (fl_bytes){"", 0};
}

bool fl_parts_text(const fl_json *content, const char *const *types, const char *where, fl_buf *out,
                   fl_refusal *r)
{
    if (!content)
        return true;
    if (fl_json_is(content, FL_JSON_STRING)) {
        fl_bytes text = fl_json_string(content);
        return fl_vec_append(out, text.data, text.len) || fl_refuse_nomem(r);
    }
    if (!fl_json_is(content, FL_JSON_ARRAY))
        return fl_read_wrong(r, where, "a string or a list of parts", content);
    for (size_t i = 0; i < fl_json_size(content); i++) {
        const fl_json *part = fl_json_at(content, i), *type = fl_read(part, "type");
        const char *const *t = types;
        while (*t && !fl_is_text(type, *t))
            t++;
        if (!*t || !fl_json_is(fl_read(part, "text"), FL_JSON_STRING))
            return fl_refuse(r, 400, "unsupported_parameter", where,
                             "%s[%zu] is no text; only text is supported", where, i);
        fl_bytes text = fl_text_of(part, "text");
        if (!fl_vec_append(out, text.data, text.len))
            return fl_refuse_nomem(r);
    }
    return true;
}
