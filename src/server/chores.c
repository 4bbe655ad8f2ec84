/* What the scheduler answers by itself, without the engine: tokens of a text or a conversation,
 * text of tokens, a conversation rendered. */
#define _GNU_SOURCE
#include "server/job_internal.h"
#include "server/put_internal.h"
#include "server/read_internal.h"

/* The prompt is messages, or text under either of two names that clients use. */
static bool make(fl_job *j, fl_buf *text, fl_refusal *r)
{
    fl_params *p = &j->params;
    bool special = false;
    if (p->messages)
        return fl_prompt_make(j, text, r);
    p->prompt = fl_read(j->body, "prompt");
    if (!p->prompt)
        p->prompt = fl_read(j->body, "content");
    if (!fl_read_flag(j->body, "parse_special", &special, r))
        return false;
    if (!fl_json_is(p->prompt, FL_JSON_STRING))
        return fl_refuse(r, 400, "missing_required_parameter", "prompt",
                         "prompt (a string) or messages is needed");
    fl_bytes b = fl_json_string(p->prompt);
    fl_error err = {0};
    return fl_tokenizer_encode(j->server->tokenizer, b.data, b.len, special, &j->prompt, &err) ==
               FL_OK ||
           fl_refuse_error(r, &err);
}

static bool tokenize(fl_job *j, fl_buf *out, fl_refusal *r)
{
    bool texts = false;
    if (!make(j, NULL, r) || !fl_read_flag(j->body, "return_token_strs", &texts, r))
        return false;
    bool ok = fl_put(out, "{\"count\": %zu, \"max_model_len\": %lld, \"tokens\": [", j->prompt.n,
                     (long long)j->server->options.context);
    for (size_t i = 0; ok && i < j->prompt.n; i++)
        ok = fl_put(out, "%s%d", i ? ", " : "", j->prompt.data[i]);
    ok = ok && fl_put(out, "]");
    if (texts)
        ok = ok && fl_put(out, ", \"token_strs\": [");
    for (size_t i = 0; ok && texts && i < j->prompt.n; i++)
        ok = fl_put(out, i ? ", " : "") &&
             fl_put_bytes(out, fl_tokenizer_bytes(j->server->tokenizer, j->prompt.data[i]));
    ok = ok && (!texts || fl_put(out, "]")) && fl_put(out, "}");
    return ok || fl_refuse_nomem(r);
}

static bool detokenize(fl_job *j, fl_buf *out, fl_refusal *r)
{
    const fl_json *list = NULL;
    fl_buf text = {0};
    bool ok = true;
    if (!fl_read_typed(j->body, "tokens", FL_JSON_ARRAY, "a list of token ids", &list, r))
        return false;
    if (!list)
        return fl_refuse(r, 400, "missing_required_parameter", "tokens", "tokens is missing");
    for (size_t i = 0; ok && i < fl_json_size(list); i++) {
        const fl_json *v = fl_json_at(list, i);
        int64_t id = fl_json_is(v, FL_JSON_INT) ? fl_json_int(v) : -1;
        if (id < 0 || id >= fl_tokenizer_size(j->server->tokenizer)) {
            fl_vec_free(&text);
            return fl_refuse(r, 400, "invalid_value", "tokens", "tokens[%zu] is no token id", i);
        }
        fl_bytes b = fl_tokenizer_bytes(j->server->tokenizer, (int32_t)id);
        ok = fl_vec_append(&text, b.data, b.len);
    }
    ok = ok && fl_put(out, "{\"prompt\": ") && fl_put_bytes(out, (fl_bytes){text.data, text.n}) &&
         fl_put(out, "}");
    fl_vec_free(&text);
    return ok || fl_refuse_nomem(r);
}

static bool apply_template(fl_job *j, fl_buf *out, fl_refusal *r)
{
    fl_buf text = {0};
    if (!j->params.messages)
        return fl_refuse(r, 400, "missing_required_parameter", "messages", "messages is missing");
    bool ok = make(j, &text, r);
    if (ok && !(fl_put(out, "{\"prompt\": ") && fl_put_buf(out, &text) && fl_put(out, "}")))
        ok = fl_refuse_nomem(r);
    fl_vec_free(&text);
    return ok;
}

bool fl_chore_count(fl_job *j, fl_buf *out, fl_refusal *r)
{
    return make(j, NULL, r) &&
           (fl_put(out, "{\"input_tokens\": %zu}", j->prompt.n) || fl_refuse_nomem(r));
}

const fl_dialect fl_dialect_tokenize = {
    .path = "/tokenize", .prefix = "tokenize", .act = tokenize, .error = fl_put_error};
const fl_dialect fl_dialect_detokenize = {
    .path = "/detokenize", .prefix = "detokenize", .act = detokenize, .error = fl_put_error};
const fl_dialect fl_dialect_template = {
    .path = "/apply-template", .prefix = "template", .act = apply_template, .error = fl_put_error};
