#include "cli/prompt.h"

#include <ctype.h>
#include <errno.h>
#include <stdlib.h>
#include <unistd.h>

static bool put(fl_buf *b, const char *text)
{
    return fl_vec_append(b, text, strlen(text));
}

fl_status cli_render(fl_model *m, const fl_buf *array, cli_think think, fl_ids *ids, fl_error *err)
{
    fl_buf text = {0};
    fl_json *messages = NULL;
    fl_status s = FL_OK;
    if (!fl_vec_append(&text, array->data, array->n) || !put(&text, "]"))
        s = fl_fail(err, FL_NOMEM, "no memory for the messages");
    if (s == FL_OK)
        s = fl_json_parse(text.data, text.n, "messages", &messages, err);
    if (s == FL_OK) {
        fl_chat_options o = {.messages = messages,
                             .effort = think.effort,
                             .thinking = think.on,
                             .generation_prompt = true};
        s = fl_chat_render(m, &o, NULL, ids, err);
    }
    fl_json_free(messages);
    fl_vec_free(&text);
    return s;
}

fl_status cli_read_ids(const char *path, fl_ids *ids, fl_error *err)
{
    fl_buf text = {0};
    fl_status s = cli_read_file(path, &text, err);
    if (s == FL_OK && !fl_vec_push(&text, '\0'))
        s = fl_fail(err, FL_NOMEM, "%s: no memory", path);
    if (s == FL_OK && strlen(text.data) + 1 != text.n)
        s = fl_fail(err, FL_FORMAT, "%s: has a zero byte; expected token ids", path);
    for (char *at = text.data; s == FL_OK;) {
        while (isspace((unsigned char)*at))
            at++;
        if (!*at)
            break;
        char *end;
        errno = 0;
        long v = strtol(at, &end, 10);
        if (errno || end == at || (*end && !isspace((unsigned char)*end)) || v < 0 || v > INT32_MAX)
            s = fl_fail(err, FL_FORMAT,
                        "%s: byte %zu is not a token id; expected whole numbers between spaces",
                        path, (size_t)(at - text.data));
        else if (!fl_vec_push(ids, (int32_t)v))
            s = fl_fail(err, FL_NOMEM, "%s: no memory", path);
        at = end;
    }
    fl_vec_free(&text);
    return s;
}

static void show(cli_answer *a, fl_bytes text, bool reasoning)
{
    if (!a->live)
        return;
    if (!reasoning) {
        if (a->dim)
            fputs(isatty(2) ? "\033[0m\n" : "\n", stderr);
        a->dim = false;
        fwrite(text.data, 1, text.len, stdout);
        fflush(stdout);
    } else {
        if (!a->dim && isatty(2))
            fputs("\033[2m", stderr);
        a->dim = true;
        fwrite(text.data, 1, text.len, stderr);
    }
}

static bool on_event(cli_answer *a, const fl_chat_event *e)
{
    switch (e->kind) {
    case FL_CHAT_REASONING:
        show(a, e->text, true);
        return fl_vec_append(&a->reasoning, e->text.data, e->text.len);
    case FL_CHAT_CONTENT:
        show(a, e->text, false);
        return fl_vec_append(&a->content, e->text.data, e->text.len);
    case FL_CHAT_TOOL_BEGIN:
        a->arguments.n = 0;
        if (a->live)
            printf("[tool call] %.*s ", (int)e->text.len, e->text.data);
        return put(&a->tools, a->tools.n ? ", {\"name\": " : "{\"name\": ") &&
               fl_json_quote(e->text.data, e->text.len, &a->tools);
    case FL_CHAT_TOOL_ARGS:
        if (a->live)
            fwrite(e->text.data, 1, e->text.len, stdout);
        return fl_vec_append(&a->arguments, e->text.data, e->text.len);
    case FL_CHAT_TOOL_END:
        if (a->live)
            putchar('\n');
        return put(&a->tools, ", \"arguments\": ") &&
               fl_json_quote(a->arguments.data, a->arguments.n, &a->tools) && put(&a->tools, "}");
    }
    return true;
}

static void sink(void *ctx, const fl_chat_event *e)
{
    cli_answer *a = ctx;
    if (!on_event(a, e) && a->status == FL_OK)
        a->status = fl_fail(&a->error, FL_NOMEM, "no memory for the answer");
}

fl_status cli_answer_init(cli_answer *a, fl_model *m, bool chat, bool thinking, bool live,
                          fl_error *err)
{
    *a = (cli_answer){.live = live, .kept = FL_NONE};
    fl_error ignored;
    if (chat)
        FL_TRY(fl_model_tokenizer(m, &a->tokenizer, err));
    else if (fl_model_tokenizer(m, &a->tokenizer, &ignored) != FL_OK)
        a->tokenizer = NULL; /* a folder without a tokenizer still runs from ids */
    return chat ? fl_chat_parser_create(m, thinking, sink, a, &a->parser, err) : FL_OK;
}

void cli_answer_free(cli_answer *a)
{
    fl_chat_parser_destroy(a->parser);
    fl_vec_free(&a->ids);
    fl_vec_free(&a->content);
    fl_vec_free(&a->reasoning);
    fl_vec_free(&a->tools);
    fl_vec_free(&a->arguments);
}

static fl_status take(cli_answer *a, int32_t id, bool stops)
{
    if (!fl_vec_push(&a->ids, id))
        return fl_fail(&a->error, FL_NOMEM, "no memory for the answer");
    if (a->parser)
        return fl_chat_parser_feed(a->parser, &id, 1, &a->error);
    if (stops || !a->tokenizer)
        return FL_OK;
    fl_bytes b = fl_tokenizer_bytes(a->tokenizer, id);
    size_t before = a->content.n;
    if (!fl_utf8_feed(&a->utf8, b.data, b.len, &a->content))
        return fl_fail(&a->error, FL_NOMEM, "no memory for the answer");
    show(a, (fl_bytes){a->content.data + before, a->content.n - before}, false);
    return FL_OK;
}

void cli_answer_token(void *ctx, const fl_token_event *e)
{
    cli_answer *a = ctx;
    if (e->id != FL_NO_TOKEN) {
        a->last = cli_seconds();
        if (a->ids.n == 0)
            a->first = a->last;
        fl_status s = take(a, e->id, e->finish == FL_FINISH_STOP);
        if (a->status == FL_OK)
            a->status = s;
    }
    if (e->finish != FL_FINISH_NONE) {
        a->finish = e->finish;
        a->kept = fl_request_kept(e->request);
        a->request = NULL;
        if (e->finish == FL_FINISH_ERROR && a->status == FL_OK) {
            a->status = e->error.status;
            a->error = e->error;
        }
    }
}

fl_status cli_answer_end(cli_answer *a, fl_error *err)
{
    fl_status s = a->status;
    if (s != FL_OK && err)
        *err = a->error;
    if (s == FL_OK && a->parser)
        s = fl_chat_parser_end(a->parser, err);
    size_t before = a->content.n;
    if (s == FL_OK && !a->parser && !fl_utf8_end(&a->utf8, &a->content))
        s = fl_fail(err, FL_NOMEM, "no memory for the answer");
    if (!a->parser && a->content.n > before)
        show(a, (fl_bytes){a->content.data + before, a->content.n - before}, false);
    if (a->live && a->dim)
        fputs(isatty(2) ? "\033[0m\n" : "\n", stderr);
    return s;
}
