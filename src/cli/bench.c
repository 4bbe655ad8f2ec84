/* firstlight bench MODEL: prompt and generation speed, the bytes a token reads and the operations
 * it takes, and what share of this machine's limits that is. */
#include "cli/cli.h"
#include "cli/profile.h"

#include <stdlib.h>
#include <string.h>

static struct bench_args {
    cli_common common;
    const char *model;
    int64_t prompt, generate;
    int batch, repeats;
    bool profile;
} args = {.prompt = 512, .generate = 128, .batch = 1, .repeats = 3};

enum { WARM_UP = 4096 }; /* tokens of a prompt that warm up at most */
enum { MAX_BATCH = 1024 };
enum { OPT_BATCH = 0x200, OPT_PROFILE };

static const struct argp_option options[] = {
    {"prompt", 'p', "N", 0, "Tokens of the prompt (default 512)", 0},
    {"generate", 'n', "N", 0, "Tokens to generate (default 128)", 0},
    {"batch", OPT_BATCH, "B", 0, "Sequences at once (default 1)", 0},
    {"repeats", 'r', "R", 0, "Runs; the median is printed (default 3)", 0},
    {"profile", OPT_PROFILE, 0, 0, "Print the time of each operator, too", 0},
    {0},
};

static error_t parse(int key, char *arg, struct argp_state *state)
{
    switch (key) {
    case 'p':
        args.prompt = cli_int(state, "--prompt", arg, 1, INT32_MAX / 2);
        return 0;
    case 'n':
        args.generate = cli_int(state, "--generate", arg, 2, INT32_MAX / 2);
        return 0;
    case OPT_BATCH:
        args.batch = (int)cli_int(state, "--batch", arg, 1, MAX_BATCH);
        return 0;
    case 'r':
        args.repeats = (int)cli_int(state, "--repeats", arg, 1, 100);
        return 0;
    case OPT_PROFILE:
        args.profile = true;
        return 0;
    default:
        return cli_model_key(key, arg, state, "a model folder", &args.model);
    }
}

static const struct argp argp = {
    options,
    parse,
    "MODEL\nmachine\nserve URL",
    "Measures prompt and generation speed, the machine alone, or a running server.",
    cli_children,
    0,
    0};

/* Seen by all requests of a run: when the last prompt was done and when the last token came. */
typedef struct run_clock {
    fl_request *alive[MAX_BATCH]; /* NULL: over */
    bool began[MAX_BATCH];        /* has given a token */
    int64_t tokens;
    int n_began;
    double prompts_done, last;
    fl_status status;
    fl_error error;
} run_clock;

static void on_token(void *ctx, const fl_token_event *e)
{
    run_clock *c = ctx;
    if (e->finish == FL_FINISH_ERROR) {
        c->status = e->error.status;
        c->error = e->error;
    }
    int b = 0;
    while (c->alive[b] != e->request)
        b++;
    if (e->finish != FL_FINISH_NONE)
        c->alive[b] = NULL;
    if (e->id == FL_NO_TOKEN)
        return;
    c->tokens++;
    c->last = cli_seconds();
    if (!c->began[b] && ++c->n_began == args.batch)
        c->prompts_done = c->last;
    c->began[b] = true;
}

/* Tokens that a request may give while the prompts of others still run, at a page a step. */
static int64_t head_start(void)
{
    return (args.batch - 1) * ((args.prompt + FL_PAGE_TOKENS - 1) / FL_PAGE_TOKENS);
}

/* Generation speed counts what comes after every prompt is done and before any request ends, so
 * that it measures pure decode steps of the whole batch. */
static fl_status one_run(const cli_model *m, cli_profile *profile, int32_t *ids, int64_t n,
                         int64_t vocab, double *prompt_speed, double *generate_speed, fl_error *err)
{
    run_clock clock = {0};
    double start = cli_seconds();
    for (int b = 0; b < args.batch; b++) {
        uint64_t x = (uint64_t)b + 1;
        for (int64_t i = 0; i < n; i++) {
            x = x * 6364136223846793005u + 1442695040888963407u;
            ids[i] = (int32_t)((x >> 33) % (uint64_t)vocab);
        }
        fl_request_params p = {.prompt = ids,
                               .n_prompt = n,
                               .max_tokens = args.generate + head_start(),
                               .sampling = fl_sampling_default(),
                               .on_token = on_token,
                               .ctx = &clock,
                               .keep_from = FL_NONE};
        FL_TRY(fl_engine_submit(m->engine, &p, &clock.alive[b], err));
    }
    int64_t before = 0, wanted = (args.generate - 1) * args.batch;
    for (bool busy = true; busy && (!before || clock.tokens < before + wanted);) {
        FL_TRY(fl_engine_step(m->engine, &busy, err));
        if (!before && clock.n_began == args.batch) {
            before = clock.tokens;
            cli_profile_take(profile, CLI_PROFILE_PROMPT);
        }
    }
    cli_profile_take(profile, CLI_PROFILE_GENERATION);
    if (clock.status != FL_OK) {
        *err = clock.error;
        return clock.status;
    }
    for (int b = 0; b < args.batch; b++) {
        if (clock.alive[b])
            fl_engine_cancel(m->engine, clock.alive[b]);
    }
    *prompt_speed = (double)(n * args.batch) / (clock.prompts_done - start);
    *generate_speed = (double)(clock.tokens - before) / (clock.last - clock.prompts_done);
    return FL_OK;
}

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double median(double *v, int n)
{
    qsort(v, (size_t)n, sizeof *v, by_value);
    return n % 2 ? v[n / 2] : (v[n / 2 - 1] + v[n / 2]) / 2;
}

/* All runs, after one that warms up with the beginning of the prompt. */
static fl_status all_runs(const cli_model *m, cli_profile *profile, double *prompt,
                          double *generate, fl_error *err)
{
    int32_t *ids = fl_calloc((size_t)args.prompt, sizeof *ids);
    int64_t vocab = fl_graph_vocab(fl_model_graph(m->model));
    fl_status s = ids ? FL_OK : fl_fail(err, FL_NOMEM, "no memory for the prompt");
    for (int r = -1; r < args.repeats && s == FL_OK; r++) {
        int to = r < 0 ? 0 : r;
        int64_t n = r < 0 && args.prompt > WARM_UP ? WARM_UP : args.prompt;
        s = one_run(m, profile, ids, n, vocab, &prompt[to], &generate[to], err);
        if (r < 0 && args.profile && s == FL_OK)
            s = cli_profile_begin(profile, m->engine, fl_model_graph(m->model), err);
    }
    fl_free(ids);
    return s;
}

static fl_status bench(const cli_model *m, cli_profile *profile, fl_error *err)
{
    const fl_graph *g = fl_model_graph(m->model);
    double prompt[100], generate[100];
    FL_TRY(all_runs(m, profile, prompt, generate, err));
    bool here = strncmp(fl_engine_device(m->engine), "cpu", 3) == 0;
    fl_machine machine = {0}; /* of the processor: no measure of a device */
    if (here)
        FL_TRY(cli_machine(args.common.threads, &machine, err));
    fl_sizes decoded = {
        .rows = args.batch, .logits = args.batch, .context = args.prompt + args.generate / 2};
    fl_sizes prompts = {.rows = args.prompt, .logits = 1, .context = args.prompt / 2 + 1};
    fl_cost cost = fl_graph_cost(g, &decoded);
    double bytes = (cost.weight_bytes + cost.state_bytes) / args.batch;
    double flops = fl_graph_cost(g, &prompts).flops / (double)args.prompt;
    double p = median(prompt, args.repeats), n = median(generate, args.repeats);
    if (args.common.json) {
        printf("{\"prompt_tokens\": %lld, \"generated_tokens\": %lld, \"batch\": %d, "
               "\"prompt_tokens_per_second\": %.2f, \"generation_tokens_per_second\": %.2f, "
               "\"bytes_per_token\": %.0f, \"bytes_per_second\": %.0f, "
               "\"prompt_flops_per_token\": %.0f",
               (long long)args.prompt, (long long)args.generate, args.batch, p, n, bytes, bytes * n,
               flops);
        if (here)
            printf(", \"machine\": {\"memory\": %.0f, \"f32\": %.0f, \"bf16\": %.0f, "
                   "\"int8\": %.0f}",
                   machine.memory, machine.f32, machine.bf16, machine.int8);
        printf("}\n");
        return FL_OK;
    }
    char a[32], b[32];
    printf("prompt      %lld x %d tokens: %10.1f tokens/s (%.1f .. %.1f)\n", (long long)args.prompt,
           args.batch, p, prompt[0], prompt[args.repeats - 1]);
    printf("generation  %lld x %d tokens: %10.1f tokens/s (%.1f .. %.1f)\n",
           (long long)args.generate, args.batch, n, generate[0], generate[args.repeats - 1]);
    printf("a generated token reads %s: %s per second", cli_bytes(bytes, a),
           cli_bytes(bytes * n, b));
    if (here)
        printf(", %.0f %% of what memory gives", 100 * bytes * n / machine.memory);
    printf("\na token of the prompt takes %.3g GFLOP: %.0f GFLOP/s", flops / 1e9, flops * p / 1e9);
    if (here)
        printf(", %.0f %% of the float32 peak", 100 * flops * p / machine.f32);
    if (machine.bf16 > 0)
        printf(", %.0f %% of BF16's", 100 * flops * p / machine.bf16);
    printf("\n");
    if (!args.profile)
        return FL_OK;
    double runs = args.repeats, steps = runs * (double)(args.generate - 1);
    printf("\nA prompt\n");
    FL_TRY(cli_profile_print(profile, CLI_PROFILE_PROMPT, runs * args.batch, &prompts, err));
    printf("\nA step of generation\n");
    return cli_profile_print(profile, CLI_PROFILE_GENERATION, steps, &decoded, err);
}

int cmd_bench(int argc, char **argv)
{
    fl_error err = {0};
    cli_model m;
    cli_profile profile = {0};
    if (argc > 1 && strcmp(argv[1], "machine") == 0)
        return cmd_bench_machine(argc - 1, argv + 1);
    if (argc > 1 && strcmp(argv[1], "serve") == 0)
        return cmd_bench_serve(argc - 1, argv + 1);
    cli_parse(&argp, argc, argv, &args.common);
    if (!args.common.context)
        args.common.context = args.prompt + args.generate + head_start();
    fl_engine_options eo = {.max_seqs = args.batch};
    fl_status s = cli_open(args.model, &args.common, FL_OPEN_DATA, &eo, &m, &err);
    if (s == FL_OK)
        s = bench(&m, &profile, &err);
    cli_profile_end(&profile);
    cli_close(&m);
    return s == FL_OK ? 0 : cli_report(&err);
}
