#include "cli/capture.h"

#include <math.h>

/* The sizes of taps are learnt from the first rows that arrive; their number has a bound. */
enum { MAX_TAPS = 4096 };

fl_status cli_capture_init(cli_capture *c, const cli_model *m, const int32_t *ids, int64_t n,
                           int64_t keep, fl_error *err)
{
    *c = (cli_capture){.n_prompt = n, .keep = keep < n ? keep : n, .ids = ids};
    c->vocab = fl_graph_vocab(fl_model_graph(m->model));
    int64_t elements;
    if (__builtin_mul_overflow(c->keep, c->vocab, &elements) || elements > INT64_MAX / 4)
        return fl_fail(err, FL_ARGUMENT, "%lld rows of logits are too many", (long long)keep);
    c->logits = fl_realloc_array(NULL, (size_t)elements, sizeof *c->logits);
    c->argmax = fl_calloc((size_t)n, sizeof *c->argmax);
    c->logprob_next = fl_calloc((size_t)n, sizeof *c->logprob_next);
    c->layer_rows = fl_calloc(MAX_TAPS, sizeof *c->layer_rows);
    c->select_rows = fl_calloc(MAX_TAPS, sizeof *c->select_rows);
    if (!c->logits || !c->argmax || !c->logprob_next || !c->layer_rows || !c->select_rows) {
        cli_capture_free(c);
        return fl_fail(err, FL_NOMEM, "no memory to keep %lld rows of logits", (long long)c->keep);
    }
    return FL_OK;
}

void cli_capture_free(cli_capture *c)
{
    fl_free(c->logits);
    fl_free(c->layers);
    fl_free(c->select);
    fl_free(c->argmax);
    fl_free(c->logprob_next);
    fl_free(c->layer_rows);
    fl_free(c->select_rows);
    *c = (cli_capture){0};
}

void cli_capture_rows(void *ctx, int64_t pos, int32_t n, const float *logits)
{
    cli_capture *c = ctx;
    for (int32_t r = 0; r < n; r++) {
        const float *row = logits + r * c->vocab;
        int64_t best = 0;
        for (int64_t i = 1; i < c->vocab; i++) {
            if (row[i] > row[best])
                best = i;
        }
        c->argmax[pos + r] = (int32_t)best;
        if (pos + r + 1 < c->n_prompt) {
            double sum = 0;
            for (int64_t i = 0; i < c->vocab; i++)
                sum += exp((double)row[i] - row[best]);
            c->logprob_next[pos + r] = (float)(row[c->ids[pos + r + 1]] - row[best] - log(sum));
        }
        int64_t at = pos + r - (c->n_prompt - c->keep);
        if (at >= 0)
            memcpy(c->logits + at * c->vocab, row, (size_t)c->vocab * sizeof *row);
    }
}

/* Grows *data to n_taps blocks of keep rows; a tap that cannot be kept is left out, and the caller
 * sees fewer taps. */
static bool grow(void **data, int *n_taps, int index, size_t block)
{
    if (index < *n_taps)
        return true;
    void *p = index < MAX_TAPS ? fl_realloc_array(*data, (size_t)index + 1, block) : NULL;
    if (!p)
        return false;
    *data = p;
    memset((char *)p + (size_t)*n_taps * block, 0, (size_t)(index + 1 - *n_taps) * block);
    *n_taps = index + 1;
    return true;
}

void cli_capture_tap(void *ctx, const char *kind, int index, const fl_arg *value, int32_t rows)
{
    cli_capture *c = ctx;
    bool layer = strcmp(kind, "layer") == 0;
    if (!layer && strcmp(kind, "select") != 0)
        return;
    int64_t width = fl_type_width(&value->type);
    size_t block = (size_t)(c->keep * width) * 4; /* float or int32 */
    if (layer ? !grow((void **)&c->layers, &c->n_layers, index, block)
              : !grow((void **)&c->select, &c->n_select, index, block))
        return;
    *(layer ? &c->hidden : &c->topk) = width;
    int64_t *seen = layer ? &c->layer_rows[index] : &c->select_rows[index];
    char *out = (layer ? (char *)c->layers : (char *)c->select) + (size_t)index * block;
    for (int32_t r = 0; r < rows; r++) {
        int64_t at = *seen + r - (c->n_prompt - c->keep);
        if (at >= 0 && at < c->keep)
            memcpy(out + at * width * 4, (const char *)value->data + r * value->stride * 4,
                   (size_t)width * 4);
    }
    *seen += rows;
}

typedef struct outcome {
    fl_status status;
    fl_error error;
} outcome;

static void on_token(void *ctx, const fl_token_event *e)
{
    outcome *o = ctx;
    if (e->finish == FL_FINISH_ERROR) {
        o->status = e->error.status;
        o->error = e->error;
    }
}

fl_status cli_capture_run(cli_capture *c, const cli_model *m, fl_error *err)
{
    outcome o = {0};
    fl_request *r;
    fl_request_params p = {.prompt = c->ids,
                           .n_prompt = c->n_prompt,
                           .sampling = fl_sampling_default(),
                           .on_token = on_token,
                           .ctx = &o,
                           .on_rows = cli_capture_rows,
                           .rows_ctx = c,
                           .tap = cli_capture_tap,
                           .tap_ctx = c,
                           .keep_from = FL_NONE};
    FL_TRY(fl_engine_submit(m->engine, &p, &r, err));
    FL_TRY(cli_run_all(m->engine, err));
    if (o.status != FL_OK && err)
        *err = o.error;
    return o.status;
}

fl_status cli_capture_write(const cli_capture *c, const char *path, fl_error *err)
{
    const char *names[2] = {"logits", "layers"};
    fl_tensor t[2] = {
        {.dtype = FL_F32, .ndim = 2, .shape = {c->keep, c->vocab}, .data = c->logits},
        {.dtype = FL_F32, .ndim = 3, .shape = {c->n_layers, c->keep, c->hidden}, .data = c->layers},
    };
    return fl_safetensors_write(path, names, t, c->layers ? 2 : 1, err);
}
