/* The command line: one file per subcommand, thin.  This header is what they share: options that
 * mean the same everywhere, opening a model, and how to report.
 *
 * Results go to standard output; progress, notes and errors go to standard error.  Exit status: 0,
 * 1 when something failed (verify: when results differ), 64 for wrong usage. */
#ifndef FL_CLI_H
#define FL_CLI_H

#include "engine/engine.h"
#include "engine/tuning.h"
#include "ops/limits.h"
#include "ops/ops.h"

#include <argp.h>
#include <stdio.h>

/* Options that several subcommands take. */
typedef struct cli_common {
    int threads, layers;
    int64_t context;
    bool dense, fast, trunk_q8, json;
    fl_kv kv;
    const char *definition, *kernels;
    const char *tuned;  /* folder of what `tune` measured; NULL: cli_tuned_folder(); "off" */
    const char *device; /* NULL: not given, as "auto" */
    double gpu_memory;  /* 10^9 bytes; 0: all that are free */
} cli_common;

extern const struct argp_child cli_children[]; /* of a command's parser: the common options */

/* Parses argv for a subcommand; prints usage and exits on wrong usage, as argp does.  common: NULL
 * for a command that takes none of the common options. */
void cli_parse(const struct argp *argp, int argc, char **argv, cli_common *common);
/* What a command's parser does with a key that is none of its own. */
error_t cli_other_key(int key, struct argp_state *state);
/* The value of a numeric option; wrong usage when it is not a number within [low, high]. */
int64_t cli_int(struct argp_state *state, const char *what, const char *arg, int64_t low,
                int64_t high);
double cli_real(struct argp_state *state, const char *what, const char *arg, double low,
                double high);

const char *cli_kv_name(fl_kv kv); /* "bf16", as --kv takes it */

/* The same for a command that takes one model and nothing else; what: "a model folder". */
error_t cli_model_key(int key, char *arg, struct argp_state *state, const char *what,
                      const char **model);

/* A model opened for running. */
typedef struct cli_model {
    fl_checkpoint *ck;
    fl_model *model;
    fl_engine *engine;
    fl_tuning *tuning; /* what was measured for it, in use; NULL: nothing */
} cli_model;

/* Opens checkpoint and model, and with `engine` not NULL an engine with those options (threads,
 * context, precision and kernels are filled in from o). */
FL_MUST_CHECK fl_status cli_open(const char *path, const cli_common *o, fl_open_mode mode,
                                 fl_engine_options *engine, cli_model *out, fl_error *err);
void cli_close(cli_model *m);
/* The two steps of the latter: options, with what was measured for the model, and the engine. */
void cli_tuned_options(const cli_common *o, cli_model *m, fl_engine_options *engine);
FL_MUST_CHECK fl_status cli_start(const cli_common *o, const fl_engine_options *engine,
                                  cli_model *m, fl_error *err);

/* Where `tune` keeps what it measured unless --tuned says otherwise: ~/.cache/firstlight.  Returns
 * out; "" when there is no home. */
const char *cli_tuned_folder(char out[480]);
/* Looks for what was measured for this model with these options, and puts it into them. *out is
 * NULL when there is nothing, or a device is asked for; a damaged file is noted and left aside. */
void cli_load_tuning(const fl_model *m, const cli_common *o, fl_engine_options *engine,
                     fl_tuning **out);
/* Prints the record: for each kind of node the kernels, their times, the chosen (*). */
void cli_tuning_text(const fl_tuning *t);
void cli_tuning_json(const fl_tuning *t);
/* What the common options say about an engine. */
void cli_engine_options(const cli_common *o, fl_engine_options *engine);

/* Runs the engine until it has no work; *stop (may be NULL) is looked at between steps. */
FL_MUST_CHECK fl_status cli_run_all(fl_engine *e, fl_error *err);

/* Prints "firstlight: message" and returns exit status 1. */
int cli_report(const fl_error *err);
void cli_note(const char *fmt, ...) FL_PRINTF(1, 2);

/* Progress on standard error, silent for the first second and for what takes no longer. */
typedef struct cli_progress {
    const char *what; /* "prompt" */
    const char *unit; /* "tokens" */
    double start, last;
} cli_progress;
void cli_progress_begin(cli_progress *p, const char *what, const char *unit);
void cli_progress_at(cli_progress *p, double done, double total);
void cli_progress_end(cli_progress *p);

/* Measures this machine with so many threads (0: all): a second or two. */
FL_MUST_CHECK fl_status cli_machine(int threads, fl_machine *out, fl_error *err);

double cli_seconds(void);
/* "1.23 GB" (powers of ten), for people. */
const char *cli_bytes(double bytes, char out[32]);
void cli_json_text(const char *text); /* a JSON string on standard output */
FL_MUST_CHECK fl_status cli_read_file(const char *path, fl_buf *out, fl_error *err);

int cmd_run(int argc, char **argv);
int cmd_inspect(int argc, char **argv);
int cmd_verify(int argc, char **argv);
int cmd_tokenize(int argc, char **argv);
int cmd_eval(int argc, char **argv);
int cmd_bench(int argc, char **argv);
int cmd_bench_machine(int argc, char **argv);
int cmd_bench_serve(int argc, char **argv);
int cmd_plan(int argc, char **argv);
int cmd_serve(int argc, char **argv);
int cmd_tune(int argc, char **argv);

#endif
