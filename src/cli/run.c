/* firstlight run MODEL: one prompt, one answer; without a prompt, a chat (chat.c). */
#include "cli/capture.h"
#include "cli/chat.h"
#include "cli/prompt.h"

static struct run_args {
    cli_common common;
    const char *model, *text, *file, *ids, *system, *dump;
    bool raw;
    cli_think think;
    int64_t n;
    fl_sampling sampling;
} args;

enum {
    OPT_IDS = 0x200,
    OPT_RAW,
    OPT_SYSTEM,
    OPT_THINK,
    OPT_TEMP,
    OPT_TOP_P,
    OPT_TOP_K,
    OPT_MIN_P,
    OPT_SEED,
    OPT_DUMP,
    OPT_REPEAT,
    OPT_PRESENCE,
    OPT_FREQUENCY
};

static const struct argp_option options[] = {
    {0, 0, 0, 0, "Prompt:", 1},
    {"prompt", 'p', "TEXT", 0, "The user's message; without -p, -f or --ids a chat starts", 0},
    {"file", 'f', "FILE", 0, "The user's message from FILE ('-': standard input)", 0},
    {"ids", OPT_IDS, "FILE", 0, "The whole prompt as whitespace-separated token ids", 0},
    {"raw", OPT_RAW, 0, 0, "The text is the whole prompt, markers included: no chat format", 0},
    {"system", OPT_SYSTEM, "TEXT", 0, "A system message before it", 0},
    {"think", OPT_THINK, "low|high|max|off", 0, "Thinking effort (default max)", 0},
    {0, 0, 0, 0, "Answer:", 2},
    {0, 'n', "N", 0, "Tokens at most (default 2048); 0 runs the prompt only", 0},
    {"temp", OPT_TEMP, "T", 0, "Temperature; 0, the default, takes the most probable token", 0},
    {"top-p", OPT_TOP_P, "P", 0, "Draw from the smallest set of probability P", 0},
    {"top-k", OPT_TOP_K, "K", 0, "Draw from the K most probable", 0},
    {"min-p", OPT_MIN_P, "P", 0, "Drop tokens below P times the best", 0},
    {"repetition-penalty", OPT_REPEAT, "R", 0, "Penalty for what prompt or answer contain", 0},
    {"presence-penalty", OPT_PRESENCE, "R", 0, "Penalty for what the answer contains", 0},
    {"frequency-penalty", OPT_FREQUENCY, "R", 0, "The same, per occurrence", 0},
    {"seed", OPT_SEED, "S", 0, "Seed of the draw (default 0)", 0},
    {"dump", OPT_DUMP, "FILE", 0, "Write logits and layers of the prompt as float32 safetensors",
     0},
    {0},
};

static void parse_think(struct argp_state *state, const char *arg)
{
    static const char *const efforts[] = {"low", "high", "max"};
    args.think = (cli_think){.on = strcmp(arg, "off") != 0};
    for (int i = 0; i < 3; i++) {
        if (strcmp(arg, efforts[i]) == 0)
            args.think.effort = efforts[i];
    }
    if (args.think.on && !args.think.effort)
        argp_error(state, "--think is low, high, max or off, not '%s'", arg);
}

static error_t parse_sampling(int key, char *arg, struct argp_state *state)
{
    fl_sampling *s = &args.sampling;
    switch (key) {
    case OPT_TEMP:
        s->temperature = (float)cli_real(state, "--temp", arg, 0, 100);
        return 0;
    case OPT_TOP_P:
        s->top_p = (float)cli_real(state, "--top-p", arg, 0, 1);
        return 0;
    case OPT_TOP_K:
        s->top_k = (int32_t)cli_int(state, "--top-k", arg, 0, INT32_MAX);
        return 0;
    case OPT_MIN_P:
        s->min_p = (float)cli_real(state, "--min-p", arg, 0, 1);
        return 0;
    case OPT_REPEAT:
        s->repetition = (float)cli_real(state, "--repetition-penalty", arg, 0.01, 100);
        return 0;
    case OPT_PRESENCE:
        s->presence = (float)cli_real(state, "--presence-penalty", arg, -100, 100);
        return 0;
    case OPT_FREQUENCY:
        s->frequency = (float)cli_real(state, "--frequency-penalty", arg, -100, 100);
        return 0;
    case OPT_SEED:
        s->seed = (uint64_t)cli_int(state, "--seed", arg, 0, INT64_MAX);
        return 0;
    default:
        return cli_other_key(key, state);
    }
}

static error_t parse(int key, char *arg, struct argp_state *state)
{
    switch (key) {
    case 'p':
        args.text = arg;
        return 0;
    case 'f':
        args.file = arg;
        return 0;
    case OPT_IDS:
        args.ids = arg;
        return 0;
    case OPT_RAW:
        args.raw = true;
        return 0;
    case OPT_SYSTEM:
        args.system = arg;
        return 0;
    case OPT_THINK:
        parse_think(state, arg);
        return 0;
    case 'n':
        args.n = cli_int(state, "-n", arg, 0, INT32_MAX);
        return 0;
    case OPT_DUMP:
        args.dump = arg;
        return 0;
    case ARGP_KEY_ARG:
        if (state->arg_num > 0)
            argp_error(state, "'%s': give the prompt with -p", arg);
        args.model = arg;
        return 0;
    case ARGP_KEY_END:
        if (!args.model)
            argp_error(state, "a model folder is needed");
        if (!!args.text + !!args.file + !!args.ids > 1)
            argp_error(state, "give one of -p, -f and --ids");
        if (args.system && (args.raw || args.ids))
            argp_error(state, "--system belongs to the chat format; --raw and --ids have none");
        return 0;
    default:
        return parse_sampling(key, arg, state);
    }
}

static const struct argp argp = {options,      parse, "MODEL", "Answers one prompt, or chats.",
                                 cli_children, 0,     0};

/* The prompt as ids, from whichever source was given. */
static fl_status make_prompt(fl_model *m, fl_ids *ids, fl_error *err)
{
    fl_buf text = {0}, messages = {0};
    fl_status s = FL_OK;
    if (args.ids)
        return cli_read_ids(args.ids, ids, err);
    if (args.file)
        s = cli_read_file(args.file, &text, err);
    else if (!fl_vec_append(&text, args.text, strlen(args.text)))
        s = fl_fail(err, FL_NOMEM, "no memory for the prompt");
    if (s == FL_OK && args.raw) {
        const fl_tokenizer *t;
        s = fl_model_tokenizer(m, &t, err);
        if (s == FL_OK)
            s = fl_tokenizer_encode(t, text.data, text.n, true, ids, err);
    } else if (s == FL_OK) {
        if ((args.system &&
             !fl_chat_add_message(&messages, "system", args.system, strlen(args.system))) ||
            !fl_chat_add_message(&messages, "user", text.data, text.n))
            s = fl_fail(err, FL_NOMEM, "no memory for the prompt");
        if (s == FL_OK)
            s = cli_render(m, &messages, args.think, ids, err);
    }
    fl_vec_free(&text);
    fl_vec_free(&messages);
    fl_mem_trim(); /* what a long text took to render is given back before the caches fill */
    return s;
}

static void print_ids(const char *name, const fl_ids *ids)
{
    printf("\"%s\": [", name);
    for (size_t i = 0; i < ids->n; i++)
        printf("%s%d", i ? ", " : "", ids->data[i]);
    printf("], ");
}

static fl_status print_text(const char *name, const fl_buf *text, fl_error *err)
{
    fl_buf quoted = {0};
    if (!fl_json_quote(text->data ? text->data : "", text->n, &quoted)) {
        fl_vec_free(&quoted);
        return fl_fail(err, FL_NOMEM, "no memory to print the answer");
    }
    printf("\"%s\": %.*s, ", name, (int)quoted.n, quoted.data);
    fl_vec_free(&quoted);
    return FL_OK;
}

static fl_status print_json(const fl_ids *prompt, const cli_answer *a, double prompt_seconds,
                            fl_error *err)
{
    size_t n = a->ids.n;
    printf("{");
    print_ids("prompt_ids", prompt);
    print_ids("output_ids", &a->ids);
    FL_TRY(print_text("text", &a->content, err));
    if (a->parser) {
        FL_TRY(print_text("reasoning", &a->reasoning, err));
        printf("\"tool_calls\": [%.*s], ", (int)a->tools.n, a->tools.data ? a->tools.data : "");
    }
    printf("\"finish_reason\": \"%s\", \"usage\": {\"prompt_tokens\": %zu, \"completion_tokens\": "
           "%zu, \"total_tokens\": %zu}, \"timing\": {\"prompt_seconds\": %.6f, "
           "\"generation_seconds\": %.6f}}\n",
           a->finish == FL_FINISH_STOP ? "stop" : "length", prompt->n, n, prompt->n + n,
           prompt_seconds, n > 1 ? a->last - a->first : 0.0);
    return FL_OK;
}

static fl_status answer(cli_model *m, fl_error *err)
{
    bool chat = !args.raw && !args.ids;
    fl_ids prompt = {0};
    cli_answer a = {.kept = FL_NONE};
    cli_capture capture = {0};
    cli_progress progress;
    size_t n_stop;
    const int32_t *stop = fl_model_stop_ids(m->model, &n_stop);
    fl_request_params p = {.max_tokens = args.n,
                           .stop_ids = stop,
                           .n_stop = n_stop,
                           .sampling = args.sampling,
                           .on_token = cli_answer_token,
                           .ctx = &a,
                           .keep_from = FL_NONE};
    double start = 0;
    fl_status s;
    FL_GOTO(s, end, make_prompt(m->model, &prompt, err));
    if (prompt.n == 0)
        FL_GOTO(s, end, fl_fail(err, FL_ARGUMENT, "the prompt is empty; give some text or ids"));
    FL_GOTO(s, end, cli_answer_init(&a, m->model, chat, args.think.on, !args.common.json, err));
    p.prompt = prompt.data;
    p.n_prompt = (int64_t)prompt.n;
    if (args.dump) {
        FL_GOTO(
            s, end,
            cli_capture_init(&capture, m, prompt.data, (int64_t)prompt.n, (int64_t)prompt.n, err));
        p.on_rows = cli_capture_rows;
        p.rows_ctx = &capture;
        p.tap = cli_capture_tap;
        p.tap_ctx = &capture;
    }
    start = cli_seconds();
    cli_progress_begin(&progress, "prompt", "tokens");
    FL_GOTO(s, end, fl_engine_submit(m->engine, &p, &a.request, err));
    for (bool busy = true; busy && s == FL_OK;) {
        if (a.request && a.ids.n == 0)
            cli_progress_at(&progress, (double)fl_request_done(a.request), (double)prompt.n);
        else
            cli_progress_end(&progress), progress.last = 0;
        s = fl_engine_step(m->engine, &busy, err);
    }
    cli_progress_end(&progress);
    if (s == FL_OK)
        s = cli_answer_end(&a, err);
    if (s == FL_OK && args.dump)
        s = cli_capture_write(&capture, args.dump, err);
    if (s == FL_OK && args.common.json)
        s = print_json(&prompt, &a, a.ids.n ? a.first - start : cli_seconds() - start, err);
    else if (!args.common.json && (a.content.n || a.tools.n))
        putchar('\n');
end:
    cli_capture_free(&capture);
    cli_answer_free(&a);
    fl_vec_free(&prompt);
    return s;
}

int cmd_run(int argc, char **argv)
{
    fl_error err = {0};
    cli_model m;
    args.sampling = fl_sampling_default();
    args.n = 2048;
    args.think = (cli_think){true, "max"};
    cli_parse(&argp, argc, argv, &args.common);
    bool chat = !args.text && !args.file && !args.ids;
    fl_engine_options eo = {.max_seqs = 1};
    fl_status s = cli_open(args.model, &args.common, FL_OPEN_DATA, &eo, &m, &err);
    if (s == FL_OK)
        s = chat ? cli_chat(&m, args.system, args.think, &args.sampling, args.n, &err)
                 : answer(&m, &err);
    cli_close(&m);
    return s == FL_OK ? 0 : cli_report(&err);
}
