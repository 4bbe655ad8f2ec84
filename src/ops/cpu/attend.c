#include "ops/cpu/attend.h"

#include "ops/cpu/matmul.h"
#include "ops/cpu/vmath.h"

enum { KEYS = FL_ATTEND_KEYS, QUERIES = FL_ATTEND_QUERIES };

void fl_attend_begin(fl_runs r, int64_t n, int nv)
{
    for (int64_t i = 0; i < n; i++) {
        r.max[i] = -INFINITY;
        r.sum[i] = 0;
        memset(r.value + i * r.ld, 0, (size_t)nv * FL_LANES * sizeof(float));
    }
}

static void scale(float *x, float by, int nv)
{
    for (int v = 0; v < nv; v++)
        vf_store(x + v * FL_LANES, vf_mul(vf_set1(by), vf_load(x + v * FL_LANES)));
}

/* exp(a[i] - b[i]), i < m */
static void exp_differences(const float *a, const float *b, int m, float *out)
{
    for (int i = 0; i < m; i += FL_LANES) {
        int lanes = m - i < FL_LANES ? m - i : FL_LANES;
        vf d = vf_sub(vf_loadn(a + i, lanes), vf_loadn(b + i, lanes));
        vf_storen(out + i, vf_exp(d), lanes);
    }
}

/* The largest of old and nv vectors of scores. */
static float top(const float *s, int nv, float old)
{
    vf most = vf_set1(old);
    for (int v = 0; v < nv; v++)
        most = vf_max(most, vf_load(s + v * FL_LANES));
    return vf_hmax(most);
}

/* Scores become weights exp(s - max); returns their sum. */
static float weigh(float *s, int nv, float max)
{
    vf sum = vf_zero();
    for (int v = 0; v < nv; v++) {
        vf w = vf_exp(vf_sub(vf_load(s + v * FL_LANES), vf_set1(max)));
        sum = vf_add(sum, w);
        vf_store(s + v * FL_LANES, w);
    }
    return vf_sum(sum);
}

void fl_attend(const fl_block *b, int m, const float *q, int64_t ldq, int nv, fl_runs r,
               float *weights)
{
    float max[QUERIES] = {0}, shrink[QUERIES];
    int n_scores = (b->n + FL_LANES - 1) / FL_LANES;
    fl_matmul(m, n_scores, b->d, q, ldq, b->keys, KEYS, weights, KEYS, false);
    for (int i = 0; i < m; i++) {
        float *w = weights + i * KEYS;
        for (int j = b->n; j < n_scores * FL_LANES; j++)
            w[j] = -INFINITY; /* no key: weight 0 */
        max[i] = top(w, n_scores, r.max[i]);
    }
    exp_differences(r.max, max, m, shrink);
    for (int i = 0; i < m; i++) {
        r.sum[i] = r.sum[i] * shrink[i] + weigh(weights + i * KEYS, n_scores, max[i]);
        r.max[i] = max[i];
        scale(r.value + i * r.ld, shrink[i], nv);
    }
    fl_matmul(m, nv, b->n, weights, KEYS, b->values, b->ld_values, r.value, r.ld, true);
}

void fl_attend_merge(fl_runs into, fl_runs r, int m, int nv)
{
    float max[QUERIES] = {0}, a[QUERIES], b[QUERIES];
    for (int i = 0; i < m; i++)
        max[i] = into.max[i] > r.max[i] ? into.max[i] : r.max[i];
    exp_differences(into.max, max, m, a);
    exp_differences(r.max, max, m, b);
    for (int i = 0; i < m; i++) {
        if (r.sum[i] == 0) /* it has seen no key */
            continue;
        into.max[i] = max[i];
        into.sum[i] = into.sum[i] * a[i] + r.sum[i] * b[i];
        for (int64_t v = 0; v < nv * FL_LANES; v += FL_LANES) {
            float *x = into.value + i * into.ld + v;
            vf y = vf_mul(vf_set1(b[i]), vf_load(r.value + i * r.ld + v));
            vf_store(x, vf_fma(vf_set1(a[i]), vf_load(x), y));
        }
    }
}

void fl_attend_end(fl_runs r, int64_t n, int nv)
{
    for (int64_t i = 0; i < n; i++)
        scale(r.value + i * r.ld, r.sum[i] == 0 ? 0 : 1 / r.sum[i], nv);
}
