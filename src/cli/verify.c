/* firstlight verify MODEL [GOLDEN...]: the files are whole, and the results are what a reference
 * computed.  Exit status 1 when something is outside tolerance. */
#include "cli/capture.h"

#include <math.h>

static struct verify_args {
    cli_common common;
    const char *model;
    FL_VEC(const char *) golden;
    double tolerance;
    bool by_layer;
} args;

enum { OPT_TOLERANCE = 0x200, OPT_BY_LAYER };

static const struct argp_option options[] = {
    {"tolerance", OPT_TOLERANCE, "X", 0,
     "Largest relative difference: of logits and layers 2e-5 (exact), of logits 0.1 (fast, which "
     "may "
     "choose other experts and positions on the way)",
     0},
    {"by-layer", OPT_BY_LAYER, 0, 0, "Print the difference of every layer", 0},
    {0},
};

static error_t parse(int key, char *arg, struct argp_state *state)
{
    switch (key) {
    case OPT_TOLERANCE:
        args.tolerance = cli_real(state, "--tolerance", arg, 0, 1);
        return 0;
    case OPT_BY_LAYER:
        args.by_layer = true;
        return 0;
    case ARGP_KEY_ARG:
        if (state->arg_num == 0)
            args.model = arg;
        else if (!fl_vec_push(&args.golden, (const char *)arg))
            argp_failure(state, 1, 0, "no memory");
        return 0;
    case ARGP_KEY_END:
        if (!args.model)
            argp_error(state, "a model folder is needed");
        return 0;
    default:
        return cli_other_key(key, state);
    }
}

static const struct argp argp = {
    options,
    parse,
    "MODEL [GOLDEN.safetensors...]",
    "Checks every shard, then runs the prompt of each golden file and compares.",
    cli_children,
    0,
    0};

/* How far got is from want. */
typedef struct difference {
    double max, relative, cosine;
} difference;

static difference compare(const float *got, const float *want, int64_t n)
{
    double max = 0, diff = 0, gg = 0, ww = 0, gw = 0;
    for (int64_t i = 0; i < n; i++) {
        double g = got[i], w = want[i], d = fabs(g - w);
        max = d > max || d != d ? d : max;
        diff += d * d;
        gg += g * g;
        ww += w * w;
        gw += g * w;
    }
    return (difference){max, ww > 0 ? sqrt(diff / ww) : sqrt(diff),
                        gg > 0 && ww > 0 ? gw / sqrt(gg * ww) : 1};
}

/* What one golden file said. */
typedef struct verdict {
    difference logits, layers, logprob;
    int64_t rows, argmax_rows, argmax_equal, select_rows, select_equal;
    int n_layers, first_bad; /* -1: every layer is within tolerance */
    difference *by_layer;    /* [n_layers] */
    bool has_layers, has_logprob, ok;
    bool cut; /* only the first layers were built: nothing behind them can be compared */
} verdict;

static fl_status bad_shape(const char *path, const char *name, fl_error *err)
{
    return fl_fail(err, FL_FORMAT, "%s: %s does not have the type or shape that this model needs",
                   path, name);
}

/* Rows of a kept capture that a golden tensor of `rows` last rows covers. */
static const float *last_rows(const float *kept, int64_t keep, int64_t rows, int64_t width)
{
    return kept + (keep - rows) * width;
}

static fl_status judge_select(const fl_safetensors *st, const char *path, const cli_capture *c,
                              verdict *v, fl_error *err)
{
    for (int j = 0; j < c->n_select; j++) {
        char name[64];
        snprintf(name, sizeof name, "indexer%d_top_last4", j);
        const fl_tensor *t = fl_safetensors_find(st, name);
        if (!t)
            continue; /* a short text: everything is selected */
        if (t->dtype != FL_I32 || t->ndim != 2 || t->shape[1] != c->topk || t->shape[0] > c->keep)
            return bad_shape(path, name, err);
        for (int64_t r = 0; r < t->shape[0]; r++) {
            int64_t at = ((int64_t)j * c->keep + c->keep - t->shape[0] + r) * c->topk;
            v->select_rows++;
            v->select_equal += memcmp(c->select + at, (const int32_t *)t->data + r * c->topk,
                                      (size_t)c->topk * sizeof *c->select) == 0;
        }
    }
    return FL_OK;
}

/* Whether results are not meant to be those of exact computation. */
static bool rounded(void)
{
    const cli_common *o = &args.common;
    return o->fast || o->trunk_q8 || o->kv != FL_KV_F32;
}

static fl_status judge_layers(const fl_tensor *layers, const char *path, const cli_capture *c,
                              double tolerance, verdict *v, fl_error *err)
{
    if (layers->dtype != FL_F32 || layers->ndim != 3 || layers->shape[0] < c->n_layers ||
        layers->shape[2] != c->hidden || layers->shape[1] > c->keep)
        return bad_shape(path, "layers", err);
    v->has_layers = true;
    v->cut = layers->shape[0] > c->n_layers;
    v->n_layers = c->n_layers;
    v->by_layer = fl_calloc((size_t)c->n_layers, sizeof *v->by_layer);
    if (!v->by_layer)
        return fl_fail(err, FL_NOMEM, "no memory to compare layers");
    for (int i = 0; i < c->n_layers; i++) {
        int64_t rows = layers->shape[1], n = rows * c->hidden;
        difference d = compare(
            last_rows(c->layers + (int64_t)i * c->keep * c->hidden, c->keep, rows, c->hidden),
            (const float *)layers->data + i * n, n);
        v->by_layer[i] = d;
        if (!(d.relative <= v->layers.relative))
            v->layers = d;
        if (!(d.relative <= tolerance) && v->first_bad < 0)
            v->first_bad = i;
    }
    return FL_OK;
}

static fl_status judge(const fl_safetensors *st, const char *path, const cli_capture *c,
                       double tolerance, verdict *v, fl_error *err)
{
    const fl_tensor *logits = fl_safetensors_find(st, "logits");
    const fl_tensor *layers = fl_safetensors_find(st, "layers");
    const fl_tensor *argmax = fl_safetensors_find(st, "argmax");
    const fl_tensor *next = fl_safetensors_find(st, "logprob_next");
    v->first_bad = -1;
    if (logits->shape[1] != c->vocab)
        return bad_shape(path, "logits", err);
    v->rows = logits->shape[0];
    v->logits =
        compare(last_rows(c->logits, c->keep, v->rows, c->vocab), logits->data, v->rows * c->vocab);
    if (layers && c->layers)
        FL_TRY(judge_layers(layers, path, c, tolerance, v, err));
    if (v->cut) {
        v->ok = v->first_bad < 0;
        return judge_select(st, path, c, v, err);
    }
    if (argmax) {
        if (argmax->dtype != FL_I32 || fl_tensor_elements(argmax) != c->n_prompt)
            return bad_shape(path, "argmax", err);
        v->argmax_rows = c->n_prompt;
        for (int64_t i = 0; i < c->n_prompt; i++)
            v->argmax_equal += c->argmax[i] == ((const int32_t *)argmax->data)[i];
    }
    if (next && c->n_prompt > 1) {
        if (next->dtype != FL_F32 || fl_tensor_elements(next) != c->n_prompt - 1)
            return bad_shape(path, "logprob_next", err);
        v->has_logprob = true;
        v->logprob = compare(c->logprob_next, next->data, c->n_prompt - 1);
    }
    FL_TRY(judge_select(st, path, c, v, err));
    v->ok = v->logits.relative <= tolerance &&
            (rounded() || ((!v->has_layers || v->layers.relative <= tolerance) &&
                           v->argmax_equal == v->argmax_rows && v->select_equal == v->select_rows));
    return FL_OK;
}

static fl_status run_golden(const cli_model *m, const fl_safetensors *st, const char *path,
                            double tolerance, verdict *v, fl_error *err)
{
    const fl_tensor *ids = fl_safetensors_find(st, "ids");
    const fl_tensor *logits = fl_safetensors_find(st, "logits");
    if (!ids || ids->dtype != FL_I32 || ids->ndim != 1 || ids->shape[0] < 1 || !logits ||
        logits->dtype != FL_F32 || logits->ndim != 2 || logits->shape[0] > ids->shape[0])
        return fl_fail(err, FL_FORMAT,
                       "%s: not a golden file (needs ids [n] I32 and logits [rows, vocab] F32)",
                       path);
    const fl_tensor *layers = fl_safetensors_find(st, "layers");
    int64_t keep = logits->shape[0] > 4 ? logits->shape[0] : 4;
    if (layers && layers->ndim == 3 && layers->shape[1] > keep)
        keep = layers->shape[1];
    cli_capture c;
    FL_TRY(cli_capture_init(&c, m, ids->data, ids->shape[0], keep, err));
    fl_status s = cli_capture_run(&c, m, err);
    if (s == FL_OK)
        s = judge(st, path, &c, tolerance, v, err);
    cli_capture_free(&c);
    return s;
}

static void print_layers(const verdict *v)
{
    printf("  layers: largest relative difference %.2e", v->layers.relative);
    if (v->first_bad >= 0)
        printf("; layer %d is the first outside tolerance", v->first_bad);
    printf("\n");
    for (int i = 0; args.by_layer && i < v->n_layers; i++)
        printf("    layer %3d: max difference %.2e, relative %.2e, cosine %.9f\n", i,
               v->by_layer[i].max, v->by_layer[i].relative, v->by_layer[i].cosine);
}

static void print_verdict(const char *path, const verdict *v)
{
    double agree = v->argmax_rows ? (double)v->argmax_equal / (double)v->argmax_rows : 1;
    if (args.common.json) {
        fl_buf name = {0};
        if (!fl_json_quote(path, strlen(path), &name))
            name.n = 0;
        printf("{\"file\": %.*s, \"ok\": %s, \"max_difference\": %.3e, \"relative_difference\": "
               "%.3e, \"cosine\": %.9f, \"argmax_agreement\": %.6f, \"layers_relative\": %.3e, "
               "\"layers_first_bad\": %d, \"logits_compared\": %s, \"logprob_max\": %.3e, "
               "\"selections\": %lld, \"selections_equal\": %lld}\n",
               (int)name.n, name.data, v->ok ? "true" : "false", v->logits.max, v->logits.relative,
               v->logits.cosine, agree, v->layers.relative, v->first_bad, v->cut ? "false" : "true",
               v->logprob.max, (long long)v->select_rows, (long long)v->select_equal);
        fl_vec_free(&name);
        return;
    }
    printf("%s: %s\n", path, v->ok ? "ok" : "OUTSIDE TOLERANCE");
    if (v->cut)
        printf("  logits: not compared, only the first %d layers are built\n", v->n_layers);
    else
        printf("  logits (%lld rows): max difference %.2e, relative %.2e, cosine %.9f\n",
               (long long)v->rows, v->logits.max, v->logits.relative, v->logits.cosine);
    if (v->argmax_rows)
        printf("  arg-max agreement: %.4f of %lld positions\n", agree, (long long)v->argmax_rows);
    if (v->has_layers)
        print_layers(v);
    if (v->has_logprob)
        printf("  next-token log-probabilities: max difference %.2e\n", v->logprob.max);
    if (v->select_rows)
        printf("  indexer selections equal: %lld of %lld rows\n", (long long)v->select_equal,
               (long long)v->select_rows);
}

static void progress(void *ctx, uint64_t done, uint64_t total)
{
    cli_progress_at(ctx, (double)done * 1e-6, (double)total * 1e-6);
}

static fl_status check_files(const cli_model *m, fl_error *err)
{
    cli_progress p;
    cli_progress_begin(&p, "checking shards", "MB");
    fl_status s = fl_checkpoint_verify(m->ck, progress, &p, err);
    cli_progress_end(&p);
    if (s == FL_OK && !args.common.json) {
        char b[32];
        printf("%zu shards, %zu tensors, %s: whole\n", fl_checkpoint_shards(m->ck),
               fl_checkpoint_count(m->ck), cli_bytes((double)fl_checkpoint_bytes(m->ck), b));
    }
    return s;
}

int cmd_verify(int argc, char **argv)
{
    fl_error err = {0};
    cli_model m;
    bool ok = true;
    cli_parse(&argp, argc, argv, &args.common);
    if (!args.common.tuned)
        args.common.tuned = "off"; /* golden files are held against what everybody gets */
    double tolerance = args.tolerance > 0 ? args.tolerance : rounded() ? 0.1 : 2e-5;
    fl_engine_options eo = {.max_seqs = 1};
    fl_status s = cli_open(args.model, &args.common, FL_OPEN_DATA, &eo, &m, &err);
    if (s == FL_OK)
        s = check_files(&m, &err);
    for (size_t i = 0; i < args.golden.n && s == FL_OK; i++) {
        fl_safetensors *st;
        verdict v = {0};
        s = fl_safetensors_open(args.golden.data[i], &st, &err);
        if (s != FL_OK)
            break;
        s = run_golden(&m, st, args.golden.data[i], tolerance, &v, &err);
        fl_safetensors_close(st);
        if (s == FL_OK)
            print_verdict(args.golden.data[i], &v);
        fl_free(v.by_layer);
        ok = ok && v.ok;
    }
    fl_vec_free(&args.golden);
    cli_close(&m);
    if (s != FL_OK)
        return cli_report(&err);
    return ok ? 0 : 1;
}
