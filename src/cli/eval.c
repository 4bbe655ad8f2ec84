/* firstlight eval MODEL TEXTFILE: nats per token and perplexity of a text, and with --kl what the
 * chosen precision and attention cost against exact, dense ones; with --kv-cost what each form of
 * cache costs. */
#include "cli/eval.h"

#include <math.h>

static struct eval_args {
    cli_common common;
    const char *model, *file;
    bool kl, kv_cost;
} args;

enum { OPT_KL = 0x200, OPT_KV_COST };

static const struct argp_option options[] = {
    {"kl", OPT_KL, 0, 0, "Also the mean Kullback-Leibler divergence from --precision exact --dense",
     0},
    {"kv-cost", OPT_KV_COST, 0, 0,
     "Instead: the divergence of every form of cache (--kv) from f32, and how many selections "
     "change",
     0},
    {0},
};

static error_t parse(int key, char *arg, struct argp_state *state)
{
    switch (key) {
    case OPT_KL:
        args.kl = true;
        return 0;
    case OPT_KV_COST:
        args.kv_cost = true;
        return 0;
    case ARGP_KEY_ARG:
        if (state->arg_num == 0)
            args.model = arg;
        else if (state->arg_num == 1)
            args.file = arg;
        else
            argp_error(state, "one text file only");
        return 0;
    case ARGP_KEY_END:
        if (!args.model || !args.file)
            argp_error(state, "a model and a text file are needed");
        return 0;
    default:
        return cli_other_key(key, state);
    }
}

static const struct argp argp = {options,
                                 parse,
                                 "MODEL TEXTFILE",
                                 "Perplexity of a text, in windows of --context tokens (default "
                                 "2048, with --kl or --kv-cost 512).",
                                 cli_children,
                                 0,
                                 0};

/* One window under one engine. */
typedef struct window {
    const int32_t *ids;
    int64_t n, vocab;
    float *logits; /* [n, vocab] to keep them; or NULL */
    double nats;   /* sum over the n - 1 predicted tokens */
    fl_status status;
    fl_error error;
} window;

static void on_rows(void *ctx, int64_t pos, int32_t n, const float *logits)
{
    window *w = ctx;
    for (int32_t r = 0; r < n; r++) {
        const float *row = logits + r * w->vocab;
        if (pos + r + 1 < w->n)
            w->nats += cli_log_sum(row, w->vocab) - row[w->ids[pos + r + 1]];
    }
    if (w->logits)
        memcpy(w->logits + pos * w->vocab, logits, (size_t)(n * w->vocab) * sizeof *logits);
}

static void on_token(void *ctx, const fl_token_event *e)
{
    window *w = ctx;
    if (e->finish == FL_FINISH_ERROR) {
        w->status = e->error.status;
        w->error = e->error;
    }
}

static fl_status run_window(fl_engine *e, window *w, fl_error *err)
{
    fl_request *r;
    fl_request_params p = {.prompt = w->ids,
                           .n_prompt = w->n,
                           .sampling = fl_sampling_default(),
                           .on_token = on_token,
                           .ctx = w,
                           .on_rows = on_rows,
                           .rows_ctx = w,
                           .keep_from = FL_NONE};
    w->nats = 0;
    FL_TRY(fl_engine_submit(e, &p, &r, err));
    FL_TRY(cli_run_all(e, err));
    if (w->status != FL_OK)
        *err = w->error;
    return w->status;
}

typedef struct totals {
    double nats, kl;
    int64_t predicted, rows;
} totals;

static fl_status run_text(const cli_model *m, const cli_model *truth, const fl_ids *ids,
                          int64_t size, totals *t, fl_error *err)
{
    int64_t vocab = fl_graph_vocab(fl_model_graph(m->model));
    window w = {.vocab = vocab}, v = {.vocab = vocab};
    cli_progress progress;
    fl_status s = FL_OK;
    if (truth) {
        w.logits = fl_realloc_array(NULL, (size_t)(size * vocab), sizeof(float));
        v.logits = fl_realloc_array(NULL, (size_t)(size * vocab), sizeof(float));
        if (!w.logits || !v.logits)
            s = fl_fail(err, FL_NOMEM, "no memory to compare %lld rows of logits; lower --context",
                        (long long)size);
    }
    cli_progress_begin(&progress, "text", "tokens");
    for (size_t at = 0; at + 1 < ids->n && s == FL_OK; at += (size_t)size) {
        w.ids = v.ids = ids->data + at;
        w.n = v.n = (int64_t)(ids->n - at) < size ? (int64_t)(ids->n - at) : size;
        s = run_window(m->engine, &w, err);
        if (s == FL_OK && truth)
            s = run_window(truth->engine, &v, err);
        if (s == FL_OK && truth)
            t->kl += cli_divergence(v.logits, w.logits, w.n, vocab);
        t->nats += w.nats;
        t->predicted += w.n - 1;
        t->rows += w.n;
        cli_progress_at(&progress, (double)at, (double)ids->n);
    }
    cli_progress_end(&progress);
    fl_free(w.logits);
    fl_free(v.logits);
    return s;
}

static void print_totals(const totals *t, size_t tokens)
{
    double nats = t->nats / (double)t->predicted;
    if (args.common.json) {
        printf("{\"tokens\": %zu, \"predicted\": %lld, \"nats_per_token\": %.6f, \"perplexity\": "
               "%.6f",
               tokens, (long long)t->predicted, nats, exp(nats));
        if (args.kl)
            printf(", \"kl\": %.9f", t->kl / (double)t->rows);
        printf("}\n");
        return;
    }
    printf("%zu tokens, %lld predicted: %.4f nats per token, perplexity %.4f\n", tokens,
           (long long)t->predicted, nats, exp(nats));
    if (args.kl)
        printf("KL from exact, dense: %.3e nats per token\n", t->kl / (double)t->rows);
}

int cmd_eval(int argc, char **argv)
{
    fl_error err = {0};
    cli_model m = {0}, truth = {0};
    fl_buf text = {0};
    fl_ids ids = {0};
    totals t = {0};
    const fl_tokenizer *tokenizer;
    cli_parse(&argp, argc, argv, &args.common);
    if (!args.common.context)
        args.common.context = args.kl || args.kv_cost ? 512 : 2048;
    cli_common exact = args.common;
    exact.fast = false;
    exact.trunk_q8 = false;
    exact.kv = FL_KV_F32;
    exact.dense = true;
    exact.kernels = NULL;
    exact.tuned = "off";
    fl_engine_options eo = {.max_seqs = 1}, to = {.max_seqs = 1};
    fl_status s = cli_open(args.model, &args.common, FL_OPEN_DATA, &eo, &m, &err);
    if (s == FL_OK && args.kl && !args.kv_cost)
        s = cli_open(args.model, &exact, FL_OPEN_DATA, &to, &truth, &err);
    if (s == FL_OK)
        s = cli_read_file(args.file, &text, &err);
    if (s == FL_OK)
        s = fl_model_tokenizer(m.model, &tokenizer, &err);
    if (s == FL_OK)
        s = fl_tokenizer_encode(tokenizer, text.data, text.n, false, &ids, &err);
    fl_vec_free(&text);
    fl_mem_trim();
    if (s == FL_OK && ids.n < 2)
        s = fl_fail(&err, FL_ARGUMENT, "%s: a text of two tokens or more is needed", args.file);
    if (s == FL_OK && args.kv_cost)
        s = cli_eval_kv(args.model, &args.common, &ids, args.common.context, &err);
    else if (s == FL_OK)
        s = run_text(&m, args.kl ? &truth : NULL, &ids, args.common.context, &t, &err);
    if (s == FL_OK && !args.kv_cost)
        print_totals(&t, ids.n);
    fl_vec_free(&ids);
    cli_close(&truth);
    cli_close(&m);
    return s == FL_OK ? 0 : cli_report(&err);
}
