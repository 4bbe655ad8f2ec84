/* firstlight plan MODEL|config.json: what a model will need, before anything is loaded. */
#include "cli/cli.h"
#include "ops/device.h"

static struct plan_args {
    cli_common common;
    const char *model;
    int sessions;
    double ram;
    char place[200]; /* with --device: where it would run, and why not elsewhere */
} args = {.sessions = 1};

enum { OPT_SESSIONS = 0x200, OPT_RAM };

static const struct argp_option options[] = {
    {"sessions", OPT_SESSIONS, "N", 0, "Sequences alive at once (default 1)", 0},
    {"ram", OPT_RAM, "G", 0, "Say whether it fits in G gigabytes (10^9 bytes)", 0},
    {0},
};

static error_t parse(int key, char *arg, struct argp_state *state)
{
    switch (key) {
    case OPT_SESSIONS:
        args.sessions = (int)cli_int(state, "--sessions", arg, 1, 65536);
        return 0;
    case OPT_RAM:
        args.ram = cli_real(state, "--ram", arg, 0.001, 1e9);
        return 0;
    default:
        return cli_model_key(key, arg, state, "a model folder or a config.json", &args.model);
    }
}

static const struct argp argp = {options,
                                 parse,
                                 "MODEL|config.json",
                                 "Predicts memory by part and bytes read per token.",
                                 cli_children,
                                 0,
                                 0};

static void print_json(const fl_model *m, const fl_engine_memory *mem, int64_t context,
                       const fl_cost *cost)
{
    printf("{\"family\": \"%s\", \"context\": %lld, \"sessions\": %d, \"kv\": \"%s\", \"memory\": "
           "{\"weights\": %lld, "
           "\"workspace\": %lld, \"state\": %lld, \"total\": %lld, \"device\": %lld}, "
           "\"bytes_per_token\": "
           "{\"weights\": %.0f, \"state\": %.0f}, \"flops_per_token\": %.0f",
           fl_model_family(m), (long long)context, args.sessions, cli_kv_name(args.common.kv),
           (long long)mem->weights, (long long)mem->workspace, (long long)mem->state,
           (long long)mem->total, (long long)mem->device, cost->weight_bytes, cost->state_bytes,
           cost->flops);
    if (args.ram > 0)
        printf(", \"fits\": %s", (double)mem->total <= args.ram * 1e9 ? "true" : "false");
    printf("}\n");
}

static void print_text(const fl_model *m, const fl_engine_memory *mem, int64_t context,
                       const fl_cost *cost)
{
    char b[32];
    printf("%s, %d layers; %d session%s of %lld tokens\n\nMemory\n", fl_model_family(m),
           fl_model_layers(m), args.sessions, args.sessions == 1 ? "" : "s", (long long)context);
    for (size_t i = 0; i < fl_model_parts(m); i++) {
        fl_part p = fl_model_part(m, i);
        printf("  %-22s %12s\n", p.name, cli_bytes((double)p.bytes, b));
    }
    printf("  %-22s %12s\n", "= weights (mapped)", cli_bytes((double)mem->weights, b));
    printf("  %-22s %12s\n", "workspace", cli_bytes((double)mem->workspace, b));
    printf("  %-22s %12s   cache %s\n", "state", cli_bytes((double)mem->state, b),
           cli_kv_name(args.common.kv));
    printf("  %-22s %12s\n", "total", cli_bytes((double)mem->total, b));
    if (mem->device)
        printf("  %-22s %12s\n", "on the device", cli_bytes((double)mem->device, b));
    if (*args.place)
        printf("\nDevice: %s\n", args.place);
    printf("\nOne token at the end of that context\n");
    printf("  %-22s %12s\n", "weights read", cli_bytes(cost->weight_bytes, b));
    printf("  %-22s %12s\n", "state read, written", cli_bytes(cost->state_bytes, b));
    printf("  %-22s %9.2f G\n", "operations", cost->flops * 1e-9);
    if (args.ram > 0)
        printf("\n%s\n", (double)mem->total <= args.ram * 1e9
                             ? "It fits."
                             : "It does not fit: lower --context or --sessions, or let the weights "
                               "stay on disk (they are mapped, pages come and go).");
}

int cmd_plan(int argc, char **argv)
{
    fl_error err = {0};
    cli_model m;
    fl_device *device = NULL;
    cli_parse(&argp, argc, argv, &args.common);
    fl_status s = cli_open(args.model, &args.common, FL_OPEN_SURVEY, NULL, &m, &err);
    if (s == FL_OK && args.common.device)
        s = fl_device_open(args.common.device, &device, args.place, &err);
    if (s == FL_OK) {
        int64_t context = args.common.context ? args.common.context : fl_model_max_context(m.model);
        fl_engine_options eo = {.max_seqs = args.sessions, .given_device = device};
        fl_engine_memory mem;
        cli_tuned_options(&args.common, &m, &eo);
        eo.max_context = context;
        s = fl_engine_predict(m.model, &eo, &mem, &err);
        if (s == FL_OK) {
            fl_sizes one = {.rows = 1, .logits = 1, .context = context};
            fl_cost cost = fl_graph_cost(fl_model_graph(m.model), &one);
            (args.common.json ? print_json : print_text)(m.model, &mem, context, &cost);
        }
    }
    if (device)
        device->fn->close(device);
    cli_close(&m);
    return s == FL_OK ? 0 : cli_report(&err);
}
