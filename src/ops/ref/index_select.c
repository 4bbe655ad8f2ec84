/* index_select: every visible position is scored, all scores are sorted, the first topk are taken
 * (docs/internals/operators.md).
 */
#include "ops/ref/ref_internal.h"

#include "base/pool.h"
#include "graph/cache_row.h"
#include "ops/def/def_internal.h"

#include <math.h>
#include <stdlib.h>

typedef struct scored {
    float score;
    int32_t pos;
} scored;

/* relu(q . key) of one head, by the type of the key. */
static double dot_of(const float *q, const float *key, int64_t d)
{
    double dot = fl_ref_dot(q, key, d);
    return dot < 0 ? 0 : dot;
}

static double dot_of_halves(const float *q, const uint16_t *key, int64_t d)
{
    double dot = 0;
    for (int64_t i = 0; i < d; i++)
        dot += (double)q[i] * fl_bf16_to_f32(key[i]);
    return dot < 0 ? 0 : dot;
}

/* Keys in signed bytes: the head is rounded as they are, so that their product is one of integers,
 * and its scale goes to its weight.  That of the key is applied by the caller. */
static double dot_of_codes(const float *q, const int8_t *key, int64_t d)
{
    union {
        int8_t code[2 * FL_CACHE_GROUP];
        float align;
    } row;
    int32_t dot = 0;
    fl_cache_encode(FL_I8, d, q, row.code);
    for (int64_t i = 0; i < d; i++)
        dot += row.code[i] * key[i];
    return (double)fl_cache_scales(row.code, d)[0] * (dot < 0 ? 0 : dot);
}

float fl_ref_index_score(const fl_call *call, const fl_step *step, int32_t row, int64_t pos)
{
    const fl_arg *q = &call->in[FL_INDEX_Q];
    const fl_type *keys = &call->in[FL_INDEX_KEYS].type;
    int64_t heads = q->type.dim[0], d = q->type.dim[1];
    const float *w = fl_row_f32(&call->in[FL_INDEX_W], row);
    const void *key =
        fl_state_row(&step->states[keys->state], &step->seqs[step->row_seq[row]], pos);
    bool codes = keys->dtype == FL_I8;
    double score = 0;
    for (int64_t h = 0; h < heads; h++) {
        const float *head = fl_row_f32(q, row) + h * d;
        double dot = codes                    ? dot_of_codes(head, key, d)
                     : keys->dtype == FL_BF16 ? dot_of_halves(head, key, d)
                                              : dot_of(head, key, d);
        score += call->attr[FL_INDEX_SELECT_SCALE].f * w[h] * dot;
    }
    return (float)(codes ? score * fl_cache_scales(key, d)[0] : score);
}

/* Higher score first; on equal scores the lower position. */
static int by_score(const void *a, const void *b)
{
    const scored *x = a, *y = b;
    if (x->score != y->score)
        return x->score > y->score ? -1 : 1;
    return x->pos < y->pos ? -1 : 1;
}

static int by_position(const void *a, const void *b)
{
    return ((const scored *)a)->pos < ((const scored *)b)->pos ? -1 : 1;
}

static void run(const fl_call *call, const fl_step *step, int phase, const fl_worker *worker)
{
    (void)phase;
    int64_t topk = call->attr[FL_INDEX_SELECT_TOPK].i, begin, end;
    scored *s = worker->scratch;
    fl_split(step->n_rows, 1, worker->thread, worker->n_threads, &begin, &end);
    for (int32_t r = (int32_t)begin; r < end; r++) {
        int64_t n = fl_step_pos(step, r) + 1, kept = n < topk ? n : topk;
        for (int64_t p = 0; p < n; p++) {
            s[p] = (scored){fl_ref_index_score(call, step, r, p), (int32_t)p};
            if (isnan(s[p].score))
                s[p].score = -INFINITY;
        }
        qsort(s, (size_t)n, sizeof *s, by_score);
        qsort(s, (size_t)kept, sizeof *s, by_position);
        int32_t *out = (int32_t *)call->out[0].data + r * call->out[0].stride;
        for (int64_t i = 0; i < topk; i++)
            out[i] = i < kept ? s[i].pos : -1;
    }
}

static void scratch(const fl_node_view *node, const fl_limits *limits, size_t *per_worker,
                    size_t *shared)
{
    (void)node;
    *per_worker = (size_t)limits->max_context * sizeof(scored);
    *shared = 0;
}

static const fl_kernel kernels[] = {
    {.op = "index_select", .name = "ref", .n_phases = 1, .run = run, .scratch = scratch}};
const fl_kernel_list fl_ref_kernels_index_select = FL_KERNEL_LIST(kernels);
