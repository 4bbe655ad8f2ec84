/* What the subcommands share: common options, opening a model, progress, reporting. */
#define _GNU_SOURCE
#include "cli/cli.h"

#include <errno.h>
#include <math.h>
#include <stdarg.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

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

void cli_engine_options(const cli_common *o, fl_engine_options *engine)
{
    engine->threads = o->threads;
    engine->max_context = o->context;
    engine->fast = o->fast;
    engine->isa = FL_ISA_COUNT;
    engine->kernels = o->kernels;
    engine->device = o->device ? o->device : "auto";
    engine->device_memory = (int64_t)(o->gpu_memory * 1e9);
}

fl_status cli_open(const char *path, const cli_common *o, fl_open_mode mode,
                   fl_engine_options *engine, cli_model *out, fl_error *err)
{
    *out = (cli_model){0};
    fl_model_options mo = {.definition = o->definition,
                           .layers = o->layers,
                           .dense = o->dense,
                           .trunk_q8 = o->trunk_q8,
                           .kv = o->kv};
    fl_status s = fl_checkpoint_open(path, mode, &out->ck, err);
    if (s == FL_OK)
        s = fl_model_open(out->ck, fl_ops_registry(), &mo, &out->model, err);
    if (s == FL_OK && engine) {
        cli_engine_options(o, engine);
        cli_load_tuning(out->model, o, engine, &out->tuning);
        s = fl_engine_create(out->model, engine, &out->engine, err);
        if (s == FL_OK && (o->device || strncmp(fl_engine_device(out->engine), "cpu", 3) != 0))
            cli_note("device: %s", fl_engine_device(out->engine));
    }
    if (s != FL_OK)
        cli_close(out);
    return s;
}

void cli_close(cli_model *m)
{
    fl_engine_destroy(m->engine);
    fl_tuning_destroy(m->tuning);
    fl_model_close(m->model);
    fl_checkpoint_close(m->ck);
    *m = (cli_model){0};
}

fl_status cli_run_all(fl_engine *e, fl_error *err)
{
    bool busy = true;
    while (busy)
        FL_TRY(fl_engine_step(e, &busy, err));
    return FL_OK;
}

int cli_report(const fl_error *err)
{
    fprintf(stderr, "firstlight: %s\n",
            err->message[0] ? err->message : fl_status_text(err->status));
    return 1;
}

void cli_note(const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    vfprintf(stderr, fmt, ap);
    va_end(ap);
    fputc('\n', stderr);
}

double cli_seconds(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

void cli_progress_begin(cli_progress *p, const char *what, const char *unit)
{
    *p = (cli_progress){what, unit, cli_seconds(), 0};
}

void cli_progress_at(cli_progress *p, double done, double total)
{
    double now = cli_seconds(), spent = now - p->start;
    bool tty = isatty(2);
    if (spent < 1 || now - p->last < (tty ? 0.2 : 10))
        return;
    p->last = now;
    fprintf(stderr,
            tty ? "\r%s: %.0f of %.0f %s, %.0f per second   "
                : "%s: %.0f of %.0f %s, %.0f per second\n",
            p->what, done, total, p->unit, done / spent);
}

void cli_progress_end(cli_progress *p)
{
    if (p->last > 0 && isatty(2))
        fprintf(stderr, "\r\033[K");
}

const char *cli_bytes(double bytes, char out[32])
{
    static const char *const units[] = {"B", "kB", "MB", "GB", "TB", "PB"};
    int u = 0;
    while (bytes >= 1000 && u < 5) {
        bytes /= 1000;
        u++;
    }
    snprintf(out, 32, u ? "%.2f %s" : "%.0f %s", bytes, units[u]);
    return out;
}

void cli_json_text(const char *text)
{
    fl_buf b = {0};
    if (fl_json_quote(text, strlen(text), &b))
        fwrite(b.data, 1, b.n, stdout);
    else
        fputs("null", stdout);
    fl_vec_free(&b);
}

fl_status cli_read_file(const char *path, fl_buf *out, fl_error *err)
{
    FILE *f = strcmp(path, "-") == 0 ? stdin : fopen(path, "rb");
    if (!f)
        return fl_fail(err, FL_IO, "%s: %s", path, strerror(errno));
    fl_status s = FL_OK;
    for (;;) {
        if (!fl_vec_reserve(out, 65536)) {
            s = fl_fail(err, FL_NOMEM, "%s: no memory to read the file", path);
            break;
        }
        size_t n = fread(out->data + out->n, 1, out->cap - out->n, f);
        out->n += n;
        if (n == 0) {
            if (ferror(f))
                s = fl_fail(err, FL_IO, "%s: %s", path, strerror(errno));
            break;
        }
    }
    if (f != stdin)
        fclose(f);
    return s;
}
