/* Reading a command's arguments: the common options, numbers, the model. */
#define _GNU_SOURCE
#include "cli/cli.h"

#include <errno.h>
#include <stdlib.h>

enum {
    OPT_CONTEXT = 0x100,
    OPT_LAYERS,
    OPT_PRECISION,
    OPT_TRUNK,
    OPT_KV,
    OPT_DENSE,
    OPT_DEF,
    OPT_KERNELS,
    OPT_TUNED,
    OPT_DEVICE,
    OPT_GPU_MEMORY,
    OPT_JSON
};

static const struct argp_option common_options[] = {
    {0, 0, 0, 0, "Options of every command:", 50},
    {"threads", 't', "N", 0, "Processors to use (default: all)", 0},
    {"context", OPT_CONTEXT, "N", 0, "Tokens of context per sequence", 0},
    {"layers", OPT_LAYERS, "N", 0, "Build the first N layers only", 0},
    {"precision", OPT_PRECISION, "exact|fast", 0,
     "exact: float32 activations; fast: 8-bit ones in the routed experts, BF16 elsewhere", 0},
    {"trunk", OPT_TRUNK, "bf16|q8", 0,
     "Weights outside the routed experts: as stored, or in 8 bits", 0},
    {"kv", OPT_KV, "f32|bf16|fp8|int8", 0,
     "Attention cache: exact (f32, the default), or rounded to 16 or 8 bits", 0},
    {"dense", OPT_DENSE, 0, 0, "Attend to everything: ignore sparse-attention selectors", 0},
    {"model-def", OPT_DEF, "FILE", 0, "Use this model definition (Lua)", 0},
    {"kernel", OPT_KERNELS, "OP=NAME,...", 0, "Use the named kernels", 0},
    {"tuned", OPT_TUNED, "DIR|off", 0,
     "Use what `tune` measured and kept in DIR (default ~/.cache/firstlight), or nothing of it", 0},
    {"device", OPT_DEVICE, "auto|cpu|cuda|musa", 0,
     "Where to run; auto, the default, takes a GPU if there is one that can", 0},
    {"gpu-memory", OPT_GPU_MEMORY, "G", 0, "Gigabytes of the GPU to use at most", 0},
    {"json", OPT_JSON, 0, 0, "Print JSON", 0},
    {0},
};

static const char *const kv_names[] = {
    [FL_KV_F32] = "f32", [FL_KV_BF16] = "bf16", [FL_KV_FP8] = "fp8", [FL_KV_INT8] = "int8"};

const char *cli_kv_name(fl_kv kv)
{
    return kv_names[kv];
}

static bool parse_kv(const char *arg, fl_kv *out)
{
    for (int i = 0; i <= FL_KV_INT8; i++) {
        if (strcmp(arg, kv_names[i]) == 0) {
            *out = (fl_kv)i;
            return true;
        }
    }
    return false;
}

static error_t common_parse(int key, char *arg, struct argp_state *state)
{
    cli_common *o = state->input;
    switch (key) {
    case 't':
        o->threads = (int)cli_int(state, "--threads", arg, 1, 4096);
        return 0;
    case OPT_CONTEXT:
        o->context = cli_int(state, "--context", arg, 1, INT32_MAX);
        return 0;
    case OPT_LAYERS:
        o->layers = (int)cli_int(state, "--layers", arg, 1, 100000);
        return 0;
    case OPT_PRECISION:
        if (strcmp(arg, "exact") != 0 && strcmp(arg, "fast") != 0)
            argp_error(state, "--precision is exact or fast, not '%s'", arg);
        o->fast = strcmp(arg, "fast") == 0;
        return 0;
    case OPT_TRUNK:
        if (strcmp(arg, "bf16") != 0 && strcmp(arg, "q8") != 0)
            argp_error(state, "--trunk is bf16 or q8, not '%s'", arg);
        o->trunk_q8 = strcmp(arg, "q8") == 0;
        return 0;
    case OPT_KV:
        if (!parse_kv(arg, &o->kv))
            argp_error(state, "--kv is f32, bf16, fp8 or int8, not '%s'", arg);
        return 0;
    case OPT_DENSE:
        o->dense = true;
        return 0;
    case OPT_DEF:
        o->definition = arg;
        return 0;
    case OPT_KERNELS:
        o->kernels = arg;
        return 0;
    case OPT_TUNED:
        o->tuned = arg;
        return 0;
    case OPT_DEVICE:
        o->device = arg;
        return 0;
    case OPT_GPU_MEMORY:
        o->gpu_memory = cli_real(state, "--gpu-memory", arg, 0.001, 1e6);
        return 0;
    case OPT_JSON:
        o->json = true;
        return 0;
    default:
        return ARGP_ERR_UNKNOWN;
    }
}

static const struct argp common_argp = {common_options, common_parse, 0, 0, 0, 0, 0};
const struct argp_child cli_children[] = {{&common_argp, 0, "", 0}, {0}};

void cli_parse(const struct argp *argp, int argc, char **argv, cli_common *common)
{
    argp_err_exit_status = 64;
    if (argp_parse(argp, argc, argv, 0, 0, common) != 0)
        exit(64);
}

error_t cli_other_key(int key, struct argp_state *state)
{
    if (key == ARGP_KEY_INIT && state->input)
        state->child_inputs[0] = state->input;
    return key == ARGP_KEY_INIT ? 0 : ARGP_ERR_UNKNOWN;
}

int64_t cli_int(struct argp_state *state, const char *what, const char *arg, int64_t low,
                int64_t high)
{
    char *end;
    errno = 0;
    long long v = strtoll(arg, &end, 10);
    if (errno || end == arg || *end || v < low || v > high)
        argp_error(state, "%s wants a whole number from %lld to %lld, not '%s'", what,
                   (long long)low, (long long)high, arg);
    return v;
}

double cli_real(struct argp_state *state, const char *what, const char *arg, double low,
                double high)
{
    char *end;
    errno = 0;
    double v = strtod(arg, &end);
    if (errno || end == arg || *end || !(v >= low && v <= high))
        argp_error(state, "%s wants a number from %g to %g, not '%s'", what, low, high, arg);
    return v;
}

error_t cli_model_key(int key, char *arg, struct argp_state *state, const char *what,
                      const char **model)
{
    switch (key) {
    case ARGP_KEY_ARG:
        if (state->arg_num > 0)
            argp_error(state, "one model only");
        *model = arg;
        return 0;
    case ARGP_KEY_END:
        if (!*model)
            argp_error(state, "%s is needed", what);
        return 0;
    default:
        return cli_other_key(key, state);
    }
}
