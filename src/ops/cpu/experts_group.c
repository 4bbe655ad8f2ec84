#include "ops/cpu/experts.h"

#include "ops/cpu/simd.h"

void fl_exp_find_groups(const fl_call *call, const fl_exp_sizes *s, fl_exp_groups *g)
{
    memset(g->count, 0, (size_t)s->n_experts * sizeof *g->count);
    for (int64_t r = 0; r < s->rows; r++) {
        const int32_t *ids = (const int32_t *)fl_row_f32(&call->in[FL_EXP_IDS], r);
        for (int64_t j = 0; j < s->k; j++) {
            if (ids[j] >= 0 && ids[j] < s->n_experts)
                g->count[ids[j]]++;
        }
    }
    int32_t at = 0;
    g->n = 0;
    for (int32_t e = 0; e < s->n_experts; e++) {
        if (g->count[e])
            g->group[g->n++] = (fl_exp_group){e, at, g->count[e]};
        at += g->count[e];
        g->count[e] = at - g->count[e]; /* from here on: where its next pair goes */
    }
    for (int64_t r = 0; r < s->rows; r++) {
        const int32_t *ids = (const int32_t *)fl_row_f32(&call->in[FL_EXP_IDS], r);
        for (int64_t j = 0; j < s->k; j++) {
            if (ids[j] >= 0 && ids[j] < s->n_experts) {
                int32_t to = g->count[ids[j]]++;
                g->pair[to] = (int32_t)(r * s->k + j);
                g->row[to] = (int32_t)r;
            }
        }
    }
}

void fl_exp_mix(const fl_call *call, const fl_exp_sizes *s, const float *parts, int64_t from,
                int64_t n)
{
    for (int64_t r = 0; r < s->rows; r++, parts += s->k * n) {
        const int32_t *ids = (const int32_t *)fl_row_f32(&call->in[FL_EXP_IDS], r);
        const float *weights = fl_row_f32(&call->in[FL_EXP_WEIGHTS], r);
        float *y = fl_row_f32(&call->out[0], r) + from;
        for (int64_t c = 0; c < n; c += FL_LANES) {
            int len = n - c < FL_LANES ? (int)(n - c) : FL_LANES;
            vf sum = vf_zero();
            for (int64_t j = 0; j < s->k; j++) {
                if (ids[j] >= 0 && ids[j] < s->n_experts)
                    sum = vf_fma(vf_set1(weights[j]), vf_loadn(parts + j * n + c, len), sum);
            }
            vf_storen(y + c, sum, len);
        }
    }
}
