/* The interactive chat.
 *
 * Each turn renders the whole conversation and compares it with the tokens that the kept sequence
 * holds: what is common is not run again.  The model's own answer usually renders to the very
 * tokens it generated, so a turn costs its new tokens only; when it does not (an answer that was
 * stopped, say), the whole prompt runs again and the result is the same. */
#define _GNU_SOURCE
#include "cli/chat.h"

#include "base/file.h"

#include <editline/readline.h>
#include <signal.h>
#include <stdlib.h>
#include <unistd.h>

typedef struct chat {
    cli_model *m;
    const char *system;
    cli_think think;
    const fl_sampling *sampling;
    int64_t max_tokens;
    fl_buf messages; /* an open JSON array, prompt.h */
    fl_seq kept;     /* what the engine holds of the conversation, or FL_NONE */
    fl_ids held;     /* the tokens of kept */
    int64_t turns, prompt_tokens, reused_tokens, output_tokens;
    double prompt_seconds, output_seconds;
} chat;

static volatile sig_atomic_t interrupted;

static void on_interrupt(int sig)
{
    (void)sig;
    interrupted = 1;
}

static void forget(chat *c)
{
    if (c->kept != FL_NONE)
        fl_state_release(fl_engine_state(c->m->engine), c->kept);
    c->kept = FL_NONE;
    c->held.n = 0;
}

static fl_status reset(chat *c, fl_error *err)
{
    forget(c);
    c->messages.n = 0;
    if (c->system && !fl_chat_add_message(&c->messages, "system", c->system, strlen(c->system)))
        return fl_fail(err, FL_NOMEM, "no memory for the system message");
    return FL_OK;
}

/* Adds the answer to the conversation. */
static bool record(chat *c, const cli_answer *a)
{
    fl_buf *b = &c->messages;
#define PUT(text) fl_vec_append(b, text, strlen(text))
    bool ok = PUT(", {\"role\": \"assistant\", \"content\": ") &&
              fl_json_quote(a->content.data ? a->content.data : "", a->content.n, b);
    if (ok && a->reasoning.n)
        ok =
            PUT(", \"reasoning_content\": ") && fl_json_quote(a->reasoning.data, a->reasoning.n, b);
    return ok && PUT("}");
#undef PUT
}

/* The request of a turn: continues the kept sequence when the prompt begins with what it holds. */
static fl_status submit(chat *c, const fl_ids *prompt, cli_answer *a, size_t *reused, fl_error *err)
{
    size_t n = c->held.n;
    if (c->kept == FL_NONE || n >= prompt->n ||
        memcmp(c->held.data, prompt->data, n * sizeof *prompt->data) != 0) {
        forget(c);
        n = 0;
    }
    size_t n_stop;
    const int32_t *stop = fl_model_stop_ids(c->m->model, &n_stop);
    fl_request_params p = {.prompt = prompt->data + n,
                           .n_prompt = (int64_t)(prompt->n - n),
                           .max_tokens = c->max_tokens,
                           .stop_ids = stop,
                           .n_stop = n_stop,
                           .sampling = *c->sampling,
                           .on_token = cli_answer_token,
                           .ctx = a,
                           .keep_from = c->kept,
                           .keep = true};
    *reused = n;
    fl_status s = fl_engine_submit(c->m->engine, &p, &a->request, err);
    if (s == FL_OK)
        c->kept = FL_NONE; /* the request owns it now */
    return s;
}

/* After a turn the kept sequence holds the prompt and the answer but for its last token, which was
 * drawn and not run. */
static bool hold(chat *c, const fl_ids *prompt, const cli_answer *a)
{
    c->kept = a->kept;
    c->held.n = 0;
    if (c->kept == FL_NONE)
        return true;
    int64_t pos = fl_state_pos(fl_engine_state(c->m->engine), c->kept);
    return fl_vec_append(&c->held, prompt->data, prompt->n) &&
           fl_vec_append(&c->held, a->ids.data, (size_t)pos - prompt->n);
}

static fl_status run_turn(chat *c, const fl_ids *prompt, cli_answer *a, fl_error *err)
{
    size_t reused;
    double start = cli_seconds();
    cli_progress progress;
    FL_TRY(submit(c, prompt, a, &reused, err));
    interrupted = 0;
    cli_progress_begin(&progress, "prompt", "tokens");
    for (bool busy = true; busy;) {
        if (interrupted && a->request)
            fl_engine_cancel(c->m->engine, a->request);
        if (a->request && a->ids.n == 0)
            cli_progress_at(&progress, (double)fl_request_done(a->request),
                            (double)(prompt->n - reused));
        else
            cli_progress_end(&progress), progress.last = 0;
        FL_TRY(fl_engine_step(c->m->engine, &busy, err));
    }
    cli_progress_end(&progress);
    c->turns++;
    c->prompt_tokens += (int64_t)(prompt->n - reused);
    c->reused_tokens += (int64_t)reused;
    c->output_tokens += (int64_t)a->ids.n;
    c->prompt_seconds += (a->ids.n ? a->first : cli_seconds()) - start;
    c->output_seconds += a->ids.n ? a->last - a->first : 0;
    if (!hold(c, prompt, a))
        return fl_fail(err, FL_NOMEM, "no memory to keep the conversation");
    return cli_answer_end(a, err);
}

static fl_status say(chat *c, const char *text, fl_error *err)
{
    fl_ids prompt = {0};
    cli_answer a = {.kept = FL_NONE};
    size_t mark = c->messages.n;
    fl_status s = FL_OK;
    if (!fl_chat_add_message(&c->messages, "user", text, strlen(text)))
        s = fl_fail(err, FL_NOMEM, "no memory for the message");
    if (s == FL_OK)
        s = cli_render(c->m->model, &c->messages, c->think, &prompt, err);
    if (s == FL_OK)
        s = cli_answer_init(&a, c->m->model, true, c->think.on, true, err);
    if (s == FL_OK)
        s = run_turn(c, &prompt, &a, err);
    if (s == FL_OK && !record(c, &a))
        s = fl_fail(err, FL_NOMEM, "no memory for the answer");
    if (a.ids.n)
        putchar('\n');
    if (a.finish == FL_FINISH_CANCEL)
        cli_note("[stopped]");
    if (s != FL_OK)
        c->messages.n = mark; /* the failed turn never happened */
    cli_answer_free(&a);
    fl_vec_free(&prompt);
    return s;
}

/* /save FILE writes the messages as JSON to FILE and the state of the sequence to FILE.state, so
 * that /load continues without running the conversation again. */
static fl_status save(chat *c, const char *path, fl_error *err)
{
    static const char before[] = "{\"messages\": ", after[] = "]}\n";
    fl_buf name = {0}, text = {0};
    fl_status s;
    if (!fl_vec_append(&name, path, strlen(path)) || !fl_vec_append(&name, ".state", 7) ||
        !fl_vec_append(&text, before, sizeof before - 1) ||
        !fl_vec_append(&text, c->messages.n ? c->messages.data : "[",
                       c->messages.n ? c->messages.n : 1) ||
        !fl_vec_append(&text, after, sizeof after - 1))
        s = fl_fail(err, FL_NOMEM, "no memory");
    else
        s = fl_file_write(path, 0666, text.data, text.n, err);
    if (s == FL_OK && c->kept != FL_NONE)
        s = fl_state_save(fl_engine_state(c->m->engine), c->kept, fl_model_fingerprint(c->m->model),
                          c->held.data, name.data, err);
    else if (s == FL_OK)
        remove(name.data); /* none, or one of an older conversation */
    fl_vec_free(&name);
    fl_vec_free(&text);
    return s;
}

static fl_status load_messages(chat *c, const char *path, fl_error *err)
{
    fl_json *root = NULL;
    fl_buf text = {0};
    FL_TRY(fl_json_read(path, (size_t)1 << 30, &root, err));
    const fl_json *list = fl_json_is(root, FL_JSON_OBJECT) ? fl_json_get(root, "messages") : NULL;
    fl_status s = FL_OK;
    if (!fl_json_is(list, FL_JSON_ARRAY))
        s = fl_fail(err, FL_FORMAT, "%s: not a saved conversation (no \"messages\" list)", path);
    if (s == FL_OK)
        s = fl_json_dump(list, true, false, &text);
    if (s == FL_OK) {
        forget(c);
        fl_vec_free(&c->messages);
        c->messages = text;
        /* The closing bracket goes: the array stays open.  An empty list is no list yet. */
        c->messages.n = fl_json_size(list) ? text.n - 1 : 0;
    } else {
        fl_vec_free(&text);
    }
    fl_json_free(root);
    return s;
}

static fl_status load(chat *c, const char *path, fl_error *err)
{
    fl_buf name = {0};
    FL_TRY(load_messages(c, path, err));
    if (!fl_vec_append(&name, path, strlen(path)) || !fl_vec_append(&name, ".state", 7)) {
        fl_vec_free(&name);
        return fl_fail(err, FL_NOMEM, "no memory");
    }
    int32_t *ids;
    int64_t n;
    fl_error why;
    if (fl_state_load(fl_engine_state(c->m->engine), name.data, fl_model_fingerprint(c->m->model),
                      &c->kept, &ids, &n, &why) == FL_OK) {
        if (!fl_vec_append(&c->held, ids, (size_t)n))
            forget(c);
        fl_free(ids);
    } else {
        cli_note("The messages are loaded; they will run again (%s).", why.message);
    }
    fl_vec_free(&name);
    return FL_OK;
}

static void stats(const chat *c)
{
    char b[32];
    const fl_state *st = fl_engine_state(c->m->engine);
    printf("turns %lld; prompt tokens %lld run (%.0f per second), %lld reused; answer tokens %lld "
           "(%.0f per second)\n",
           (long long)c->turns, (long long)c->prompt_tokens,
           c->prompt_seconds > 0 ? (double)c->prompt_tokens / c->prompt_seconds : 0.0,
           (long long)c->reused_tokens, (long long)c->output_tokens,
           c->output_seconds > 0 ? (double)(c->output_tokens - c->turns) / c->output_seconds : 0.0);
    printf("context %zu tokens held, %lld free; workspace %s\n", c->held.n,
           (long long)fl_state_free_tokens(st),
           cli_bytes((double)fl_plan_workspace_bytes(fl_engine_plan(c->m->engine)), b));
}

static const char help[] =
    "/reset       start over\n/save FILE   keep the conversation (and FILE.state)\n"
    "/load FILE   continue a kept one\n/stats       tokens, speed, memory\n"
    "/quit        leave (also Ctrl-D); Ctrl-C stops an answer\n";

/* A line that starts with a slash.  False: leave. */
static bool command(chat *c, const char *line)
{
    fl_error err = {0};
    fl_status s = FL_OK;
    if (strcmp(line, "/quit") == 0)
        return false;
    if (strcmp(line, "/reset") == 0)
        s = reset(c, &err);
    else if (strncmp(line, "/save ", 6) == 0)
        s = save(c, line + 6, &err);
    else if (strncmp(line, "/load ", 6) == 0)
        s = load(c, line + 6, &err);
    else if (strcmp(line, "/stats") == 0)
        stats(c);
    else
        fputs(help, stdout);
    if (s != FL_OK)
        cli_report(&err);
    return true;
}

/* The next line, allocated by malloc; NULL at the end of input. */
static char *next_line(bool tty)
{
    while (tty) {
        interrupted = 0;
        char *typed = readline("> ");
        if (typed || !interrupted) /* Ctrl-C on an unfinished line: a fresh one */
            return typed;
        putchar('\n');
    }
    char *line = NULL;
    size_t cap = 0;
    ssize_t n = getline(&line, &cap, stdin);
    if (n < 0) {
        free(line);
        return NULL;
    }
    if (n && line[n - 1] == '\n')
        line[n - 1] = 0;
    return line;
}

fl_status cli_chat(cli_model *m, const char *system, cli_think think, const fl_sampling *sampling,
                   int64_t max_tokens, fl_error *err)
{
    chat c = {.m = m,
              .system = system,
              .think = think,
              .sampling = sampling,
              .max_tokens = max_tokens,
              .kept = FL_NONE};
    struct sigaction quiet = {.sa_handler = on_interrupt, .sa_flags = SA_RESTART}, old;
    bool tty = isatty(0);
    FL_TRY(reset(&c, err));
    sigaction(SIGINT, &quiet, &old);
    if (tty)
        cli_note("%s. /help lists the commands.", fl_model_family(m->model));
    char *line;
    bool on = true;
    while (on && (line = next_line(tty)) != NULL) {
        fl_error turn = {0};
        if (*line && tty)
            add_history(line);
        if (*line == '/')
            on = command(&c, line);
        else if (*line && say(&c, line, &turn) != FL_OK)
            cli_report(&turn); /* one failed turn does not end the chat */
        free(line);
        fflush(stdout);
    }
    sigaction(SIGINT, &old, NULL);
    forget(&c);
    fl_vec_free(&c.messages);
    fl_vec_free(&c.held);
    return FL_OK;
}
