/* firstlight tune MODEL: measures the kernels that could do the same work, in whole steps of the
 * model, and keeps which to use on this machine. */
#include "cli/cli.h"

#include <string.h>

static struct tune_args {
    cli_common common;
    const char *model;
    int prompt, steps;
} args = {.prompt = 256, .steps = 16};

static const struct argp_option options[] = {
    {"prompt", 'p', "N", 0, "Tokens of the prompt that is timed (default 256)", 0},
    {"generate", 'n', "N", 0, "Steps of generation that are timed (default 16)", 0},
    {0},
};

static error_t parse(int key, char *arg, struct argp_state *state)
{
    switch (key) {
    case 'p':
        args.prompt = (int)cli_int(state, "--prompt", arg, 1, 1 << 20);
        return 0;
    case 'n':
        args.steps = (int)cli_int(state, "--generate", arg, 1, 1 << 20);
        return 0;
    default:
        return cli_model_key(key, arg, state, "a model folder", &args.model);
    }
}

static const struct argp argp = {
    options,
    parse,
    "MODEL",
    "Measures which kernels are the fastest here for this model with these options (--precision, "
    "--threads, ...) and keeps the answer in the folder of --tuned; later runs use it.",
    cli_children,
    0,
    0};

static void told(void *ctx, int round, int n_rounds)
{
    (void)ctx;
    cli_note("round %d of %d", round + 1, n_rounds);
}

static fl_status tune(const cli_model *m, const char *dir, fl_error *err)
{
    fl_tuning *t;
    char path[512];
    fl_engine_options eo = {.max_seqs = 1};
    cli_engine_options(&args.common, &eo);
    if (!eo.max_context)
        eo.max_context = args.prompt + args.steps + 1;
    FL_TRY(fl_tune(m->model, &eo, args.prompt, args.steps, told, NULL, &t, err));
    fl_status s = fl_tuning_save(t, dir, path, err);
    if (s == FL_OK && args.common.json) {
        cli_tuning_json(t);
        printf("\n");
    } else if (s == FL_OK) {
        cli_tuning_text(t);
        printf("Kept in %s\n", path);
    }
    fl_tuning_destroy(t);
    return s;
}

int cmd_tune(int argc, char **argv)
{
    fl_error err = {0};
    cli_model m = {0};
    char home[480];
    cli_parse(&argp, argc, argv, &args.common);
    const char *dir = args.common.tuned ? args.common.tuned : cli_tuned_folder(home);
    fl_status s = FL_OK;
    if (!*dir || strcmp(dir, "off") == 0)
        s = fl_fail(&err, FL_ARGUMENT, "no folder to keep the answer in: --tuned DIR names one");
    if (s == FL_OK)
        s = cli_open(args.model, &args.common, FL_OPEN_DATA, NULL, &m, &err);
    if (s == FL_OK)
        s = tune(&m, dir, &err);
    cli_close(&m);
    return s == FL_OK ? 0 : cli_report(&err);
}
