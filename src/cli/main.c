/* firstlight: finds the subcommand and hands over. */
#include "cli/cli.h"

#include <signal.h>
#include <string.h>

static const struct command {
    const char *name;
    int (*run)(int argc, char **argv);
    const char *what;
} commands[] = {
    {"run", cmd_run, "answer one prompt, or chat when there is none"},
    {"serve", cmd_serve, "answer many users over HTTP"},
    {"inspect", cmd_inspect, "report what a checkpoint is and whether it can run"},
    {"verify", cmd_verify, "check a checkpoint, and its results against golden files"},
    {"tokenize", cmd_tokenize, "turn text into token ids"},
    {"eval", cmd_eval, "perplexity of a text, and what a precision costs"},
    {"bench", cmd_bench, "measure prompt and generation speed"},
    {"plan", cmd_plan, "predict memory and bytes read per token"},
    {"tune", cmd_tune, "measure which kernels are the fastest here, and keep the answer"},
};
enum { N_COMMANDS = sizeof commands / sizeof *commands };

static void usage(FILE *out)
{
    fprintf(out, "Usage: firstlight COMMAND MODEL [OPTION...]\n"
                 "Runs a checkpoint folder as it was downloaded.\n\nCommands:\n");
    for (int i = 0; i < N_COMMANDS; i++)
        fprintf(out, "  %-9s %s\n", commands[i].name, commands[i].what);
    fprintf(out, "\n`firstlight COMMAND --help` lists the options of a command.\n");
}

int main(int argc, char **argv)
{
    signal(SIGPIPE, SIG_IGN); /* a closed pipe is a write error, not the end of the program */
    if (argc < 2) {
        usage(stderr);
        return 64;
    }
    if (strcmp(argv[1], "--help") == 0 || strcmp(argv[1], "-h") == 0 ||
        strcmp(argv[1], "help") == 0) {
        usage(stdout);
        return 0;
    }
    if (strcmp(argv[1], "--version") == 0 || strcmp(argv[1], "-V") == 0) {
        printf("firstlight %s\n", fl_version());
        return 0;
    }
    for (int i = 0; i < N_COMMANDS; i++) {
        if (strcmp(argv[1], commands[i].name) == 0) {
            static char name[64];
            snprintf(name, sizeof name, "firstlight %s", commands[i].name);
            argv[1] = name;
            int status = commands[i].run(argc - 1, argv + 1);
            if (fflush(stdout) != 0 || ferror(stdout)) {
                perror("firstlight: standard output");
                return 1;
            }
            return status;
        }
    }
    fprintf(stderr, "firstlight: no command '%s'\n", argv[1]);
    usage(stderr);
    return 64;
}
