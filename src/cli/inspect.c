/* firstlight inspect MODEL: what a checkpoint is, what it needs, and whether it can run here. */
#include "cli/cli.h"
#include "cli/survey.h"
#include "ops/device.h"

static struct inspect_args {
    cli_common common;
    const char *model, *new_model;
    bool all;
    char place[240]; /* where it would run, and why not elsewhere */
} args;

enum { OPT_ALL = 0x200, OPT_NEW_MODEL };

static const struct argp_option options[] = {
    {"all", OPT_ALL, 0, 0, "List every missing and unknown tensor, not the first ten", 0},
    {"new-model", OPT_NEW_MODEL, "FILE.lua", 0,
     "Begin a model definition for this checkpoint in a new file", 0},
    {0},
};

static error_t parse(int key, char *arg, struct argp_state *state)
{
    switch (key) {
    case OPT_ALL:
        args.all = true;
        return 0;
    case OPT_NEW_MODEL:
        args.new_model = arg;
        return 0;
    default:
        return cli_model_key(key, arg, state, "a model folder", &args.model);
    }
}

static const struct argp argp = {
    options,
    parse,
    "MODEL",
    "Reports layers, operators, parameters, state and tensors.  A folder with only config.json and "
    "the index is enough.",
    cli_children,
    0,
    0};

/* An operator as the graph uses it: how often, and the kernel for its first node; nodes of one
 * operator may use different kernels (weight types), so pairs are listed. */
typedef struct used {
    const char *op, *kernel, *isa;
    const char *on_host; /* why the processor runs it for a device; NULL: it does not */
    int nodes;
    bool supported;
} used;
typedef FL_VEC(used) used_list;

static fl_status list_operators(const fl_graph *g, const fl_plan *plan, used_list *list,
                                fl_error *err)
{
    for (int i = 0; i < fl_graph_nodes(g); i++) {
        fl_node_view n = fl_graph_node_view(g, i);
        const fl_kernel *k = fl_plan_kernel(plan, i);
        const char *kernel = k ? k->name : "(no work)", *on_host = fl_plan_on_host(plan, i);
        size_t at = 0;
        while (at < list->n &&
               (strcmp(list->data[at].op, n.op->name) != 0 ||
                strcmp(list->data[at].kernel, kernel) != 0 || list->data[at].on_host != on_host))
            at++;
        if (at == list->n &&
            !fl_vec_push(list, ((used){n.op->name, kernel, k ? fl_isa_name(k->isa) : "", on_host, 0,
                                       k || n.op->view})))
            return fl_fail(err, FL_NOMEM, "no memory for the report");
        list->data[at].nodes++;
    }
    return FL_OK;
}

/* Bytes that a sequence keeps: per token, and once. */
static void state_bytes(const fl_graph *g, int64_t *per_token, int64_t *per_sequence)
{
    *per_token = *per_sequence = 0;
    for (int i = 0; i < fl_graph_states(g); i++) {
        const fl_state_spec *s = fl_graph_state_spec(g, i);
        *(s->paged ? per_token : per_sequence) += fl_state_item_bytes(s);
    }
}

/* What lies in the checkpoint and no part uses: padding, recognised tensors of other towers. */
static int64_t unused_bytes(const cli_model *m)
{
    int64_t bytes = (int64_t)fl_checkpoint_bytes(m->ck);
    for (size_t i = 0; i < fl_model_parts(m->model); i++)
        bytes -= fl_model_part(m->model, i).bytes;
    return bytes;
}

/* Runs of equal layers: "0-2: kda + experts". */
static void print_layers(const fl_model *m)
{
    int n = fl_model_layers(m);
    for (int i = 0; i < n;) {
        const char *kind = fl_model_layer_kind(m, i);
        int j = i + 1;
        while (j < n && strcmp(fl_model_layer_kind(m, j), kind) == 0)
            j++;
        if (j - i > 1)
            printf("  %3d-%-3d  %s\n", i, j - 1, kind);
        else
            printf("  %3d      %s\n", i, kind);
        i = j;
    }
}

static void print_names(const char *what, const fl_model *m, size_t n,
                        const char *(*name)(const fl_model *, size_t))
{
    size_t shown = args.all || n < 10 ? n : 10;
    printf("%s tensors: %zu\n", what, n);
    for (size_t i = 0; i < shown; i++)
        printf("  %s\n", name(m, i));
    if (shown < n)
        printf("  ... and %zu more (--all lists them)\n", n - shown);
}

static void print_text(const cli_model *m, const used_list *ops)
{
    const fl_graph *g = fl_model_graph(m->model);
    char b[32], c[32];
    int64_t per_token, per_sequence, parameters = 0, bytes = 0;
    state_bytes(g, &per_token, &per_sequence);
    printf("%s: family %s, %d layers, vocabulary %lld, context up to %lld tokens\n", args.model,
           fl_model_family(m->model), fl_model_layers(m->model), (long long)fl_graph_vocab(g),
           (long long)fl_model_max_context(m->model));
    if (!fl_checkpoint_has_tensors(m->ck))
        printf(
            "No index and no shards here: shapes and types are what the configuration implies.\n");
    printf("\nLayers\n");
    print_layers(m->model);
    printf("\nDevice: %s\n", args.place);
    printf("\nOperators (processor: %s)\n", fl_isa_name(fl_cpu_isa()));
    for (size_t i = 0; i < ops->n; i++)
        printf("  %-14s %5d nodes  %s%s%s%s%s%s\n", ops->data[i].op, ops->data[i].nodes,
               ops->data[i].kernel, *ops->data[i].isa ? " (" : "", ops->data[i].isa,
               *ops->data[i].isa ? ")" : "", ops->data[i].on_host ? " on the processor: " : "",
               ops->data[i].on_host ? ops->data[i].on_host : "");
    if (m->tuning) {
        printf("\n");
        cli_tuning_text(m->tuning);
    }
    printf("\nWeights\n");
    for (size_t i = 0; i < fl_model_parts(m->model); i++) {
        fl_part p = fl_model_part(m->model, i);
        printf("  %-22s %8lld tensors %18lld parameters %12s\n", p.name, (long long)p.tensors,
               (long long)p.parameters, cli_bytes((double)p.bytes, b));
        parameters += p.parameters;
        bytes += p.bytes;
    }
    printf("  %-22s %8s         %18lld            %12s\n", "sum", "", (long long)parameters,
           cli_bytes((double)bytes, b));
    if (fl_checkpoint_has_tensors(m->ck))
        printf("  %-22s %8s         %18s            %12s\n", "not used", "", "",
               cli_bytes((double)unused_bytes(m), b));
    printf("\nState: %s per token, %s per sequence\n", cli_bytes((double)per_token, b),
           cli_bytes((double)per_sequence, c));
    print_names("Missing", m->model, fl_model_missing(m->model), fl_model_missing_name);
    print_names("Unknown", m->model, fl_model_unknown(m->model), fl_model_unknown_name);
}

static void json_names(const char *key, const fl_model *m, size_t n,
                       const char *(*name)(const fl_model *, size_t))
{
    printf(", \"%s\": [", key);
    for (size_t i = 0; i < n; i++) {
        fputs(i ? ", " : "", stdout);
        cli_json_text(name(m, i));
    }
    printf("]");
}

static void print_json(const cli_model *m, const used_list *ops)
{
    const fl_graph *g = fl_model_graph(m->model);
    int64_t per_token, per_sequence;
    state_bytes(g, &per_token, &per_sequence);
    printf("{\"device\": ");
    cli_json_text(args.place);
    printf(", \"family\": ");
    cli_json_text(fl_model_family(m->model));
    printf(", \"vocabulary\": %lld, \"max_context\": %lld, \"layers\": [",
           (long long)fl_graph_vocab(g), (long long)fl_model_max_context(m->model));
    for (int i = 0; i < fl_model_layers(m->model); i++) {
        fputs(i ? ", " : "", stdout);
        cli_json_text(fl_model_layer_kind(m->model, i));
    }
    printf("], \"operators\": [");
    for (size_t i = 0; i < ops->n; i++) {
        const used *o = &ops->data[i];
        printf("%s{\"op\": \"%s\", \"nodes\": %d, \"supported\": %s, \"kernel\": \"%s\"",
               i ? ", " : "", o->op, o->nodes, o->supported ? "true" : "false", o->kernel);
        if (o->on_host)
            printf(", \"on_processor\": \"%s\"", o->on_host);
        printf("}");
    }
    printf("], \"tuned\": ");
    if (m->tuning)
        cli_tuning_json(m->tuning);
    else
        printf("null");
    printf(", \"parts\": [");
    for (size_t i = 0; i < fl_model_parts(m->model); i++) {
        fl_part p = fl_model_part(m->model, i);
        printf("%s{\"name\": \"%s\", \"tensors\": %lld, \"parameters\": %lld, \"bytes\": %lld}",
               i ? ", " : "", p.name, (long long)p.tensors, (long long)p.parameters,
               (long long)p.bytes);
    }
    printf("]");
    if (fl_checkpoint_has_tensors(m->ck))
        printf(", \"unused_bytes\": %lld", (long long)unused_bytes(m));
    printf(", \"state_bytes_per_token\": %lld, \"state_bytes_per_sequence\": %lld",
           (long long)per_token, (long long)per_sequence);
    json_names("missing", m->model, fl_model_missing(m->model), fl_model_missing_name);
    json_names("unknown", m->model, fl_model_unknown(m->model), fl_model_unknown_name);
    printf("}\n");
}

/* The plan of the model where it would run; why: that place, as fl_device_open says it. */
static fl_status make_plan(cli_model *m, fl_device **device, char why[200], fl_plan **out,
                           fl_error *err)
{
    const fl_graph *g = fl_model_graph(m->model);
    fl_engine_options eo = fl_engine_options_default();
    const char *name = args.common.device ? args.common.device : "auto";
    fl_plan_options po = {
        .limits = {.max_rows = 64, .max_logits = 1, .n_threads = 1, .max_context = FL_PAGE_TOKENS},
        .isa = fl_cpu_isa(),
        .fast = args.common.fast,
        .kernels = args.common.kernels};
    cli_tuned_options(&args.common, m, &eo);
    po.choices = eo.choices;
    FL_TRY(fl_device_open(name, device, why, err));
    po.device = *device;
    fl_status s = fl_plan_create(g, &po, out, err);
    if (s == FL_OK || !po.device || strcmp(name, "auto") != 0)
        return s;
    snprintf(why, 200, "%.199s", err->message);
    (*device)->fn->close(*device);
    po.device = *device = NULL;
    return fl_plan_create(g, &po, out, err);
}

int cmd_inspect(int argc, char **argv)
{
    fl_error err = {0};
    cli_model m = {0};
    bool known = true;
    used_list ops = {0};
    fl_plan *plan = NULL;
    fl_device *device = NULL;
    char why[200];
    cli_parse(&argp, argc, argv, &args.common);
    if (args.new_model)
        return cli_survey(args.model, args.new_model, false, &err) == FL_OK ? 0 : cli_report(&err);
    fl_status s = args.common.definition ? FL_OK : cli_is_known(args.model, &known, &err);
    if (s == FL_OK && !known)
        return cli_survey(args.model, NULL, args.common.json, &err) == FL_OK ? 0 : cli_report(&err);
    if (s == FL_OK)
        s = cli_open(args.model, &args.common, FL_OPEN_SURVEY, NULL, &m, &err);
    if (s == FL_OK)
        s = make_plan(&m, &device, why, &plan, &err);
    if (s == FL_OK)
        s = list_operators(fl_model_graph(m.model), plan, &ops, &err);
    if (s == FL_OK) {
        snprintf(args.place, sizeof args.place, device ? "%s" : "cpu (%s)", why);
        (args.common.json ? print_json : print_text)(&m, &ops);
    }
    fl_vec_free(&ops);
    fl_plan_destroy(plan);
    if (device)
        device->fn->close(device);
    cli_close(&m);
    return s == FL_OK ? 0 : cli_report(&err);
}
