#include "support/fake_model.h"

#include "ops/def/def_internal.h"
#include "ops/ref/ref_internal.h"

#include <math.h>
#include <string.h>

enum { D = FAKE_WIDTH, V = FAKE_VOCAB };

static float table[V][D], head[V][D];

static void fill(void)
{
    uint32_t x = 12345;
    for (int v = 0; v < V; v++) {
        for (int d = 0; d < D; d++) {
            x = x * 1664525u + 1013904223u;
            table[v][d] = (float)(int32_t)(x >> 16) / 65536.0f - 0.5f;
            x = x * 1664525u + 1013904223u;
            head[v][d] = (float)(int32_t)(x >> 16) / 65536.0f - 0.5f;
        }
    }
    table[FAKE_NAN][3] = NAN;
    memset(head[FAKE_NAN], 0, sizeof head[FAKE_NAN]); /* never the best of 96 */
}

/* ---- operators ---- */

static fl_type activation(fl_rows rows, int64_t width)
{
    return (fl_type){
        .rows = rows, .dtype = FL_F32, .ndim = 1, .dim = {width}, .n_tensors = 1, .state = -1};
}

static fl_status infer_tokens(const fl_node_view *n, fl_type *out, int *n_out, fl_error *err)
{
    (void)n;
    (void)err;
    out[0] = activation(FL_ROWS_TOKENS, D);
    *n_out = 1;
    return FL_OK;
}

static fl_status infer_head(const fl_node_view *n, fl_type *out, int *n_out, fl_error *err)
{
    (void)n;
    (void)err;
    out[0] = activation(FL_ROWS_LOGITS, V);
    *n_out = 1;
    return FL_OK;
}

static void no_cost(const fl_node_view *n, const fl_sizes *sizes, fl_cost *out)
{
    (void)n;
    (void)sizes;
    (void)out;
}

static const fl_op op_embed = {
    .name = "fake_embed", .min_in = 1, .max_in = 1, .infer = infer_tokens, .cost = no_cost};
static const fl_op op_decay = {.name = "fake_decay",
                               .min_in = 2,
                               .max_in = 2,
                               .effect = true,
                               .infer = infer_tokens,
                               .cost = no_cost};
static const fl_op op_recall = {.name = "fake_recall",
                                .min_in = 3,
                                .max_in = 3,
                                .effect = true,
                                .infer = infer_tokens,
                                .cost = no_cost};
static const fl_op op_head = {
    .name = "fake_head", .min_in = 2, .max_in = 2, .infer = infer_head, .cost = no_cost};

/* ---- kernels: one worker per sequence ---- */

static void run_embed(const fl_call *c, const fl_step *s, int phase, const fl_worker *w)
{
    (void)phase;
    for (int32_t r = w->thread; r < s->n_rows; r += w->n_threads)
        memcpy(fl_row_f32(&c->out[0], r), (const float *)c->in[0].data + s->ids[r] * D,
               D * sizeof(float));
}

static void run_decay(const fl_call *c, const fl_step *s, int phase, const fl_worker *w)
{
    (void)phase;
    for (int32_t i = w->thread; i < s->n_seqs; i += w->n_threads) {
        const fl_seq_rows *q = &s->seqs[i];
        float *state = fl_state_slot(&s->states[c->in[1].type.state], q);
        for (int32_t r = q->row0; r < q->row0 + q->n_rows; r++) {
            for (int d = 0; d < D; d++)
                state[d] = state[d] / 2 + fl_row_f32(&c->in[0], r)[d];
            memcpy(fl_row_f32(&c->out[0], r), state, D * sizeof(float));
        }
    }
}

static void run_recall(const fl_call *c, const fl_step *s, int phase, const fl_worker *w)
{
    (void)phase;
    for (int32_t i = w->thread; i < s->n_seqs; i += w->n_threads) {
        const fl_seq_rows *q = &s->seqs[i];
        const fl_state_pool *cache = &s->states[c->in[2].type.state];
        for (int32_t r = q->row0; r < q->row0 + q->n_rows; r++) {
            int64_t pos = fl_step_pos(s, r);
            float *out = fl_row_f32(&c->out[0], r);
            memcpy(fl_state_row(cache, q, pos), fl_row_f32(&c->in[1], r), D * sizeof(float));
            memcpy(out, fl_row_f32(&c->in[0], r), D * sizeof(float));
            for (int64_t j = 0; j <= pos; j++) {
                const float *row = fl_state_row(cache, q, j);
                for (int d = 0; d < D; d++)
                    out[d] += row[d] / (float)(1 + pos - j);
            }
        }
    }
}

static void project(const float *w, const float *h, float *logits)
{
    for (int v = 0; v < V; v++) {
        float sum = 0;
        for (int d = 0; d < D; d++)
            sum += w[v * D + d] * h[d];
        logits[v] = sum;
    }
}

static void run_head(const fl_call *c, const fl_step *s, int phase, const fl_worker *w)
{
    (void)phase;
    for (int32_t i = w->thread; i < s->n_logits; i += w->n_threads)
        project(c->in[1].data, fl_row_f32(&c->in[0], s->logit_rows[i]), fl_row_f32(&c->out[0], i));
}

static const fl_kernel kernels[] = {
    {.op = "fake_embed", .name = "ref", .n_phases = 1, .run = run_embed},
    {.op = "fake_decay", .name = "ref", .n_phases = 1, .run = run_decay},
    {.op = "fake_recall", .name = "ref", .n_phases = 1, .run = run_recall},
    {.op = "fake_head", .name = "ref", .n_phases = 1, .run = run_head},
};
static const fl_kernel_list list = FL_KERNEL_LIST(kernels);
static const fl_kernel_list *const lists[] = {&list, &fl_ref_kernels_pick};
static const fl_op *const ops[] = {&op_embed, &op_decay, &op_recall, &op_head, &fl_op_pick};
static const fl_registry registry = {.ops = ops, .n_ops = 5, .lists = lists, .n_lists = 2};

/* ---- the graph ---- */

static fl_status build(fl_graph *g, fl_error *err)
{
    const fl_tensor weights[2] = {
        {.dtype = FL_F32, .ndim = 2, .shape = {V, D}, .data = table},
        {.dtype = FL_F32, .ndim = 2, .shape = {V, D}, .data = head},
    };
    const fl_state_spec decay = {"decay", false, FL_F32, D}, cache = {"cache", true, FL_F32, D};
    fl_val t, w, s, k, e[FL_MAX_OUT], a[FL_MAX_OUT], h[FL_MAX_OUT], y[FL_MAX_OUT];
    int n;
    FL_TRY(fl_graph_const(g, "table", &weights[0], 1, &t, err));
    FL_TRY(fl_graph_const(g, "head", &weights[1], 1, &w, err));
    FL_TRY(fl_graph_state(g, &decay, &s, err));
    FL_TRY(fl_graph_state(g, &cache, &k, err));
    FL_TRY(fl_graph_node(g, "fake_embed", "embed", &t, 1, NULL, 0, e, &n, err));
    const fl_val in_decay[] = {e[0], s};
    FL_TRY(fl_graph_node(g, "fake_decay", "decay", in_decay, 2, NULL, 0, a, &n, err));
    const fl_val in_recall[] = {a[0], e[0], k};
    FL_TRY(fl_graph_node(g, "fake_recall", "recall", in_recall, 3, NULL, 0, h, &n, err));
    FL_TRY(fl_graph_tap(g, "sum", 0, h[0], err));
    const fl_val in_head[] = {h[0], w};
    FL_TRY(fl_graph_node(g, "fake_head", "head", in_head, 2, NULL, 0, y, &n, err));
    FL_TRY(fl_graph_output(g, y[0], err));
    return fl_graph_finish(g, err);
}

fl_graph *fake_model_graph(fl_error *err)
{
    fl_graph *g;
    fill();
    if (fl_graph_create(&registry, &g, err) != FL_OK)
        return NULL;
    if (build(g, err) == FL_OK)
        return g;
    fl_graph_destroy(g);
    return NULL;
}

void fake_logits(const int32_t *ids, int64_t n, float *logits, float *h)
{
    float s[D] = {0};
    for (int64_t j = 0; j < n; j++) {
        for (int d = 0; d < D; d++)
            s[d] = s[d] / 2 + table[ids[j]][d];
    }
    memcpy(h, s, sizeof s);
    for (int64_t j = 0; j < n; j++) {
        for (int d = 0; d < D; d++)
            h[d] += table[ids[j]][d] / (float)(n - j);
    }
    project(&head[0][0], h, logits);
}

int32_t fake_next(const int32_t *ids, int64_t n)
{
    float logits[V], h[D];
    fake_logits(ids, n, logits, h);
    int32_t best = 0;
    for (int v = 0; v < V; v++) {
        if (!isfinite(logits[v]))
            return -1;
        best = logits[v] > logits[best] ? v : best;
    }
    return best;
}
