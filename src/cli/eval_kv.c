/* firstlight eval --kv-cost: what each form of cache costs against a float32 one. */
#include "cli/capture.h"
#include "cli/eval.h"

#include <string.h>

enum { FORMS = FL_KV_INT8 }; /* besides float32 */

typedef struct cost {
    double kl;
    int64_t rows;              /* of logits */
    int64_t chosen, other;     /* rows with a choice, those of them that chose differently */
    int64_t places, displaced; /* positions chosen, those that the float32 cache did not choose */
} cost;

/* Entries of a that are not in b; both ascending, ended by -1 or by topk. */
static int64_t missing(const int32_t *a, const int32_t *b, int64_t topk)
{
    int64_t n = 0;
    for (int64_t i = 0, k = 0; i < topk && a[i] >= 0; i++) {
        while (k < topk && b[k] >= 0 && b[k] < a[i])
            k++;
        n += k == topk || b[k] != a[i];
    }
    return n;
}

static void compare(const cli_capture *truth, const cli_capture *c, cost *out)
{
    out->kl += cli_divergence(truth->logits, c->logits, truth->n_prompt, truth->vocab);
    out->rows += truth->n_prompt;
    int64_t topk = truth->topk;
    for (int s = 0; s < truth->n_select && s < c->n_select; s++) {
        for (int64_t r = topk; r < truth->n_prompt; r++) { /* rows that see more than topk */
            int64_t at = (s * truth->n_prompt + r) * topk;
            int64_t n = missing(c->select + at, truth->select + at, topk);
            out->chosen++;
            out->other += n > 0;
            out->places += topk;
            out->displaced += n;
        }
    }
}

static fl_status run_window(const cli_model *m, const int32_t *ids, int64_t n, cli_capture *c,
                            fl_error *err)
{
    FL_TRY(cli_capture_init(c, m, ids, n, n, err));
    fl_status s = cli_capture_run(c, m, err);
    if (s != FL_OK)
        cli_capture_free(c);
    return s;
}

static fl_status run_text(const cli_model *m, const fl_ids *ids, int64_t size, cost *costs,
                          fl_error *err)
{
    cli_progress progress;
    fl_status s = FL_OK;
    cli_progress_begin(&progress, "text", "tokens");
    for (size_t at = 0; at + 1 < ids->n && s == FL_OK; at += (size_t)size) {
        int64_t n = (int64_t)(ids->n - at) < size ? (int64_t)(ids->n - at) : size;
        cli_capture truth, c;
        s = run_window(&m[0], ids->data + at, n, &truth, err);
        if (s != FL_OK)
            break;
        for (int f = 0; f < FORMS && s == FL_OK; f++) {
            s = run_window(&m[f + 1], ids->data + at, n, &c, err);
            if (s != FL_OK)
                break;
            compare(&truth, &c, &costs[f]);
            cli_capture_free(&c);
        }
        cli_capture_free(&truth);
        cli_progress_at(&progress, (double)at, (double)ids->n);
    }
    cli_progress_end(&progress);
    return s;
}

static double share(int64_t part, int64_t whole)
{
    return whole ? (double)part / (double)whole : 0;
}

static void print(const cost *costs, bool json)
{
    if (!json)
        printf("cache   KL, nats per token   rows that select otherwise   positions\n");
    for (int f = 0; f < FORMS; f++) {
        const cost *c = &costs[f];
        double kl = c->kl / (double)c->rows, rows = share(c->other, c->chosen);
        double places = share(c->displaced, c->places);
        if (json)
            printf("%s{\"kv\": \"%s\", \"kl\": %.9f, \"rows\": %lld, \"rows_changed\": %.6f, "
                   "\"positions_changed\": %.6f}%s",
                   f ? ", " : "[", cli_kv_name((fl_kv)(f + 1)), kl, (long long)c->chosen, rows,
                   places, f == FORMS - 1 ? "]\n" : "");
        else
            printf("%-4s    %18.3e   %18.2f %% of %lld   %7.3f %%\n", cli_kv_name((fl_kv)(f + 1)),
                   kl, 100 * rows, (long long)c->chosen, 100 * places);
    }
}

fl_status cli_eval_kv(const char *model, const cli_common *o, const fl_ids *ids, int64_t size,
                      fl_error *err)
{
    cli_model m[FORMS + 1] = {0};
    cost costs[FORMS] = {0};
    fl_status s = FL_OK;
    for (int f = 0; f <= FORMS && s == FL_OK; f++) {
        cli_common own = *o;
        fl_engine_options eo = {.max_seqs = 1};
        own.kv = (fl_kv)f;
        s = cli_open(model, &own, FL_OPEN_DATA, &eo, &m[f], err);
    }
    if (s == FL_OK)
        s = run_text(m, ids, size, costs, err);
    if (s == FL_OK)
        print(costs, o->json);
    for (int f = 0; f <= FORMS; f++)
        cli_close(&m[f]);
    return s;
}
