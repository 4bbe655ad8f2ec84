/* What was measured for a model on this machine: where it lies, whether it is used, and the report
 * of it. */
#define _GNU_SOURCE
#include "cli/cli.h"

#include <pwd.h>
#include <string.h>
#include <unistd.h>

const char *cli_tuned_folder(char out[480])
{
    const struct passwd *me = getpwuid(getuid());
    int n = me && me->pw_dir ? snprintf(out, 480, "%s/.cache/firstlight", me->pw_dir) : 480;
    if (n >= 480)
        out[0] = 0;
    return out;
}

void cli_load_tuning(const fl_model *m, const cli_common *o, fl_engine_options *engine,
                     fl_tuning **out)
{
    char home[480];
    fl_error err = {0};
    const char *dir = o->tuned ? o->tuned : cli_tuned_folder(home);
    *out = NULL;
    if (strcmp(dir, "off") == 0 || !*dir)
        return;
    fl_status s = fl_tuning_load(m, engine, dir, out, &err);
    if (s != FL_OK && (s != FL_NOTFOUND || o->tuned))
        cli_note("not tuned: %s", err.message);
    engine->choices = *out ? fl_tuning_choices(*out) : NULL;
}

void cli_tuning_text(const fl_tuning *t)
{
    printf("Measured: %s\n", fl_tuning_key(t));
    for (int i = 0; i < fl_tuning_nodes(t); i++) {
        const fl_tuned_node *n = fl_tuning_node(t, i);
        printf("  %d x %.100s\n", n->nodes, n->signature);
        for (int k = 0; k < n->n_kernels; k++)
            printf("    %c %-20s %10.1f us in the prompt %9.1f us in a step%s\n",
                   k == n->chosen ? '*' : ' ', n->kernels[k].name, n->kernels[k].prompt_us,
                   n->kernels[k].step_us, k == n->usual ? "  (usual)" : "");
    }
}

void cli_tuning_json(const fl_tuning *t)
{
    printf("{\"key\": ");
    cli_json_text(fl_tuning_key(t));
    printf(", \"nodes\": [");
    for (int i = 0; i < fl_tuning_nodes(t); i++) {
        const fl_tuned_node *n = fl_tuning_node(t, i);
        printf("%s{\"node\": ", i ? ", " : "");
        cli_json_text(n->signature);
        printf(", \"count\": %d, \"usual\": \"%s\", \"chosen\": \"%s\", \"measured\": [", n->nodes,
               n->kernels[n->usual].name, n->kernels[n->chosen].name);
        for (int k = 0; k < n->n_kernels; k++)
            printf("%s{\"kernel\": \"%s\", \"prompt_us\": %.1f, \"step_us\": %.2f}", k ? ", " : "",
                   n->kernels[k].name, n->kernels[k].prompt_us, n->kernels[k].step_us);
        printf("]}");
    }
    printf("]}");
}
