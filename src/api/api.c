/* The public C API (include/firstlight.h) over the rooms: a context is a checkpoint, its model and
 * an engine that runs one request at a time. */
#include "engine/engine.h"
#include "model/chat.h"
#include "ops/ops.h"

#include <string.h>

struct fl_context {
    fl_checkpoint *checkpoint;
    fl_model *model;
    fl_engine *engine;
};

fl_status fl_open(const char *path, const fl_open_options *options, fl_context **out, fl_error *err)
{
    fl_open_options o = options ? *options : (fl_open_options){0};
    fl_model_options mo = {.definition = o.definition,
                           .layers = o.layers,
                           .dense = o.dense,
                           .trunk_q8 = o.trunk_q8,
                           .kv = o.kv};
    fl_engine_options eo = {.threads = o.threads,
                            .max_seqs = 1,
                            .max_context = o.context,
                            .fast = o.fast,
                            .isa = FL_ISA_COUNT};
    fl_context *c = fl_calloc(1, sizeof *c);
    *out = NULL;
    if (!c)
        return fl_fail(err, FL_NOMEM, "%s: no memory for a context", path);
    fl_status s = fl_checkpoint_open(path, FL_OPEN_DATA, &c->checkpoint, err);
    if (s == FL_OK)
        s = fl_model_open(c->checkpoint, fl_ops_registry(), &mo, &c->model, err);
    if (s == FL_OK)
        s = fl_engine_create(c->model, &eo, &c->engine, err);
    if (s != FL_OK) {
        fl_close(c);
        return s;
    }
    *out = c;
    return FL_OK;
}

void fl_close(fl_context *c)
{
    if (!c)
        return;
    fl_engine_destroy(c->engine);
    fl_model_close(c->model);
    fl_checkpoint_close(c->checkpoint);
    fl_free(c);
}

fl_prompt fl_prompt_default(void)
{
    return (fl_prompt){.max_tokens = 512, .top_p = 1};
}

/* ---- one request ---- */

typedef struct run {
    fl_context *c;
    fl_piece_fn piece;
    void *ctx;
    fl_chat_parser *parser;        /* NULL: plain text */
    const fl_tokenizer *tokenizer; /* plain text only */
    fl_utf8_stream utf8;
    fl_buf text; /* plain text: the piece in hand; tool calls: the call in hand */
    int64_t completion_tokens;
    fl_finish finish;
    bool stop; /* the callback has had enough */
    fl_status status;
    fl_error error;
} run;

static void give(run *r, fl_piece_kind kind, const char *text, size_t len)
{
    if (len && r->piece && !r->stop)
        r->stop = !r->piece(r->ctx, kind, text, len);
}

static bool put(fl_buf *b, const char *text)
{
    return fl_vec_append(b, text, strlen(text));
}

static bool take_tool(run *r, const fl_chat_event *e)
{
    switch (e->kind) {
    case FL_CHAT_TOOL_BEGIN:
        r->text.n = 0;
        return put(&r->text, "{\"name\": ") && fl_json_quote(e->text.data, e->text.len, &r->text) &&
               put(&r->text, ", \"arguments\": ");
    case FL_CHAT_TOOL_ARGS:
        return fl_vec_append(&r->text, e->text.data, e->text.len);
    default:
        if (!put(&r->text, "}"))
            return false;
        give(r, FL_PIECE_TOOL_CALL, r->text.data, r->text.n);
        return true;
    }
}

static void on_event(void *ctx, const fl_chat_event *e)
{
    run *r = ctx;
    if (e->kind == FL_CHAT_CONTENT)
        give(r, FL_PIECE_CONTENT, e->text.data, e->text.len);
    else if (e->kind == FL_CHAT_REASONING)
        give(r, FL_PIECE_REASONING, e->text.data, e->text.len);
    else if (!take_tool(r, e) && r->status == FL_OK)
        r->status = fl_fail(&r->error, FL_NOMEM, "no memory for a tool call");
}

static fl_status take(run *r, int32_t id, bool stops)
{
    r->completion_tokens++;
    if (r->parser)
        return fl_chat_parser_feed(r->parser, &id, 1, &r->error);
    if (!r->tokenizer || stops)
        return FL_OK;
    fl_bytes b = fl_tokenizer_bytes(r->tokenizer, id);
    r->text.n = 0;
    if (!fl_utf8_feed(&r->utf8, b.data, b.len, &r->text))
        return fl_fail(&r->error, FL_NOMEM, "no memory for the answer");
    give(r, FL_PIECE_CONTENT, r->text.data, r->text.n);
    return FL_OK;
}

static void on_token(void *ctx, const fl_token_event *e)
{
    run *r = ctx;
    if (e->finish != FL_FINISH_NONE)
        r->finish = e->finish;
    if (e->id != FL_NO_TOKEN && r->status == FL_OK)
        r->status = take(r, e->id, e->finish == FL_FINISH_STOP);
    if (e->finish == FL_FINISH_ERROR && r->status == FL_OK) {
        r->status = e->error.status;
        r->error = e->error;
    }
}

static fl_status user_messages(const fl_prompt *p, fl_buf *out, fl_error *err)
{
    bool ok = !p->system || fl_chat_add_message(out, "system", p->system, strlen(p->system));
    ok = ok && fl_chat_add_message(out, "user", p->user, strlen(p->user)) && put(out, "]");
    return ok ? FL_OK : fl_fail(err, FL_NOMEM, "no memory for the prompt");
}

static fl_status render(fl_context *c, const fl_prompt *p, fl_ids *ids, fl_error *err)
{
    fl_buf built = {0};
    fl_json *messages = NULL;
    fl_status s = p->user ? user_messages(p, &built, err) : FL_OK;
    const char *text = p->user ? built.data : p->messages;
    size_t len = p->user ? built.n : strlen(p->messages);
    if (s == FL_OK)
        s = fl_json_parse(text, len, "messages", &messages, err);
    if (s == FL_OK) {
        fl_chat_options o = {.messages = messages,
                             .effort = p->effort,
                             .thinking = p->effort != NULL,
                             .generation_prompt = true};
        s = fl_chat_render(c->model, &o, NULL, ids, err);
    }
    fl_json_free(messages);
    fl_vec_free(&built);
    return s;
}

static fl_status make_prompt(run *r, const fl_prompt *p, fl_ids *ids, fl_error *err)
{
    fl_context *c = r->c;
    if (!!p->user + !!p->messages + !!p->raw + !!p->ids != 1)
        return fl_fail(err, FL_ARGUMENT, "a prompt is exactly one of user, messages, raw and ids");
    if (p->user || p->messages) {
        FL_TRY(render(c, p, ids, err));
        return fl_chat_parser_create(c->model, p->effort != NULL, on_event, r, &r->parser, err);
    }
    fl_error none;
    if (p->raw) {
        FL_TRY(fl_model_tokenizer(c->model, &r->tokenizer, err));
        return fl_tokenizer_encode(r->tokenizer, p->raw, strlen(p->raw), true, ids, err);
    }
    if (p->n_ids < 1 || !fl_vec_append(ids, p->ids, (size_t)p->n_ids))
        return p->n_ids < 1 ? fl_fail(err, FL_ARGUMENT, "the prompt has no ids")
                            : fl_fail(err, FL_NOMEM, "no memory for the prompt");
    if (fl_model_tokenizer(c->model, &r->tokenizer, &none) != FL_OK)
        r->tokenizer = NULL; /* ids run without a tokenizer; there is no text to show then */
    return FL_OK;
}

static fl_status finish_text(run *r, fl_error *err)
{
    if (r->parser)
        return fl_chat_parser_end(r->parser, err);
    r->text.n = 0;
    if (!fl_utf8_end(&r->utf8, &r->text))
        return fl_fail(err, FL_NOMEM, "no memory for the answer");
    give(r, FL_PIECE_CONTENT, r->text.data, r->text.n);
    return FL_OK;
}

static fl_status generate(run *r, const fl_prompt *p, const fl_ids *ids, fl_error *err)
{
    fl_engine *e = r->c->engine;
    fl_sampling sampling = fl_sampling_default();
    sampling.temperature = p->temperature;
    sampling.top_p = p->top_p;
    sampling.top_k = p->top_k;
    sampling.seed = p->seed;
    size_t n_stop;
    const int32_t *stop = fl_model_stop_ids(r->c->model, &n_stop);
    fl_request *request;
    fl_request_params rp = {.prompt = ids->data,
                            .n_prompt = (int64_t)ids->n,
                            .max_tokens = p->max_tokens,
                            .stop_ids = stop,
                            .n_stop = n_stop,
                            .sampling = sampling,
                            .on_token = on_token,
                            .ctx = r,
                            .keep_from = FL_NONE};
    FL_TRY(fl_engine_submit(e, &rp, &request, err));
    for (bool busy = true; busy;) {
        if ((r->stop || r->status != FL_OK) && r->finish == FL_FINISH_NONE)
            fl_engine_cancel(e, request);
        FL_TRY(fl_engine_step(e, &busy, err));
    }
    if (r->status != FL_OK) {
        if (err)
            *err = r->error;
        return r->status;
    }
    return finish_text(r, err);
}

fl_status fl_generate(fl_context *c, const fl_prompt *prompt, fl_piece_fn piece, void *ctx,
                      fl_usage *usage, fl_error *err)
{
    run r = {.c = c, .piece = piece, .ctx = ctx};
    fl_ids ids = {0};
    fl_status s = make_prompt(&r, prompt, &ids, err);
    if (s == FL_OK)
        s = generate(&r, prompt, &ids, err);
    if (usage)
        *usage = (fl_usage){(int64_t)ids.n, r.completion_tokens, r.finish == FL_FINISH_STOP};
    fl_chat_parser_destroy(r.parser);
    fl_vec_free(&r.text);
    fl_vec_free(&ids);
    return s;
}

/* ---- tokens ---- */

fl_status fl_tokenize(fl_context *c, const char *text, size_t len, bool specials, int32_t **ids,
                      size_t *n, fl_error *err)
{
    const fl_tokenizer *t;
    fl_ids out = {0};
    *ids = NULL;
    *n = 0;
    FL_TRY(fl_model_tokenizer(c->model, &t, err));
    fl_status s = fl_tokenizer_encode(t, text, len, specials, &out, err);
    if (s != FL_OK) {
        fl_vec_free(&out);
        return s;
    }
    *ids = out.data;
    *n = out.n;
    return FL_OK;
}

void fl_ids_free(int32_t *ids)
{
    fl_free(ids);
}

const char *fl_token_bytes(fl_context *c, int32_t id, size_t *len)
{
    const fl_tokenizer *t;
    fl_error none;
    *len = 0;
    if (fl_model_tokenizer(c->model, &t, &none) != FL_OK)
        return NULL;
    fl_bytes b = fl_tokenizer_bytes(t, id);
    *len = b.len;
    return b.data;
}
