/* route: the selection of experts for one row.
 *
 * A score is sigmoid(logit), or the softmax over all experts; the choice goes by score plus bias,
 * where NaN counts as -inf.  Both are doubles: in float32 experts that are a few 1e-8 apart round
 * to ties.  With topk_groups < groups only the experts of the best groups may be chosen; a group is
 * worth the sum of its two best.  Ties: lower index, of experts and groups. */
#include "ops/ref/ref_internal.h"

#include "base/pool.h"
#include "ops/def/def_internal.h"

#include <math.h>
#include <string.h>

static void scores(const float *logits, int64_t n, bool softmax, double *score)
{
    float high = -INFINITY;
    double sum = 0;
    for (int64_t e = 0; e < n; e++)
        high = logits[e] > high ? logits[e] : high;
    for (int64_t e = 0; e < n; e++) {
        score[e] = softmax ? exp((double)logits[e] - high) : 1 / (1 + exp(-(double)logits[e]));
        sum += score[e];
    }
    for (int64_t e = 0; softmax && e < n; e++)
        score[e] /= sum;
}

/* The best entry that is not out yet, lowest index first; it is then out. */
static int64_t take_best(const double *value, bool *out, int64_t n)
{
    int64_t best = -1;
    for (int64_t i = 0; i < n; i++) {
        if (!out[i] && (best < 0 || value[i] > value[best]))
            best = i;
    }
    out[best] = true;
    return best;
}

static double group_value(const double *choice, int64_t n)
{
    double first = -INFINITY, second = -INFINITY;
    for (int64_t i = 0; i < n; i++) {
        if (choice[i] > first) {
            second = first;
            first = choice[i];
        } else if (choice[i] > second) {
            second = choice[i];
        }
    }
    return n > 1 ? first + second : first;
}

typedef struct room { /* per worker: [E] each; groups are at most as many as experts */
    double *score, *choice, *group;
    bool *out, *group_out;
} room;

static room room_at(void *scratch, int64_t n)
{
    double *d = scratch;
    bool *b = (bool *)(d + 3 * n);
    return (room){d, d + n, d + 2 * n, b, b + n};
}

static void keep_best_groups(const room *m, int64_t n, int64_t groups, int64_t keep)
{
    int64_t size = n / groups;
    for (int64_t g = 0; g < groups; g++)
        m->group[g] = group_value(m->choice + g * size, size);
    memset(m->group_out, 0, (size_t)groups * sizeof *m->group_out);
    memset(m->out, true, (size_t)n * sizeof *m->out);
    for (int64_t i = 0; i < keep; i++) {
        int64_t g = take_best(m->group, m->group_out, groups);
        memset(m->out + g * size, false, (size_t)size * sizeof *m->out);
    }
}

static void one_row(const fl_call *call, const room *m, int64_t r)
{
    const float *logits = fl_row_f32(&call->in[0], r);
    const float *bias = call->n_in > 1 ? call->in[1].data : NULL;
    int64_t n = call->in[0].type.dim[0], topk = call->attr[FL_ROUTE_TOPK].i;
    int64_t groups = call->attr[FL_ROUTE_GROUPS].i, keep = call->attr[FL_ROUTE_TOPK_GROUPS].i;
    scores(logits, n, strcmp(call->attr[FL_ROUTE_FUNC].text, "softmax") == 0, m->score);
    for (int64_t e = 0; e < n; e++) {
        double c = m->score[e] + (bias ? bias[e] : 0);
        m->choice[e] = isnan(c) ? -INFINITY : c;
    }
    memset(m->out, false, (size_t)n * sizeof *m->out);
    if (keep < groups)
        keep_best_groups(m, n, groups, keep);

    int32_t *ids = (int32_t *)fl_row_f32(&call->out[0], r);
    float *weights = fl_row_f32(&call->out[1], r);
    double sum = 0, scale = call->attr[FL_ROUTE_SCALE].f;
    for (int64_t j = 0; j < topk; j++) {
        ids[j] = (int32_t)take_best(m->choice, m->out, n);
        sum += m->score[ids[j]];
    }
    double divide = call->attr[FL_ROUTE_RENORMALIZE].i ? sum + 1e-20 : 1;
    for (int64_t j = 0; j < topk; j++)
        weights[j] = (float)(m->score[ids[j]] / divide * scale);
}

static void run(const fl_call *call, const fl_step *step, int phase, const fl_worker *worker)
{
    (void)phase;
    room m = room_at(worker->scratch, call->in[0].type.dim[0]);
    int64_t begin, end, rows = fl_rows_now(step, call->in[0].type.rows);
    fl_split(rows, 1, worker->thread, worker->n_threads, &begin, &end);
    for (int64_t r = begin; r < end; r++)
        one_row(call, &m, r);
}

static void scratch(const fl_node_view *node, const fl_limits *limits, size_t *per_worker,
                    size_t *shared)
{
    (void)limits;
    *per_worker = (size_t)node->in[0]->dim[0] * (3 * sizeof(double) + 2 * sizeof(bool));
    *shared = 0;
}

static const fl_kernel kernels[] = {
    {.op = "route", .name = "ref", .n_phases = 1, .run = run, .scratch = scratch}};
const fl_kernel_list fl_ref_kernels_route = FL_KERNEL_LIST(kernels);
