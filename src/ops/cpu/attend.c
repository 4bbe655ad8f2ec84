#include "ops/cpu/attend.h"

#include "base/mem.h"

#include "ops/cpu/matmul.h"
#include "ops/cpu/pairs.h"
#include "ops/cpu/vmath.h"

enum { KEYS = FL_ATTEND_KEYS, QUERIES = FL_ATTEND_QUERIES };
/* Keys whose scores are summed side by side; KEYS is a multiple.  The dot instruction needs more of
 * them in flight. */
#if defined(__AVX512F__)
enum { KEY_TILE = 8, PAIR_TILE = 16, STEP = 4 };
#else
enum { KEY_TILE = 4, PAIR_TILE = 4, STEP = 2 };
#endif

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

#if defined(__AVX512BF16__)
/* Adds keys [2 * from, n) of a block of pairs, the last one without its neighbour. */
static void add_rest(const fl_block *b, int m, int nv, int from, int n, const float *weights,
                     fl_runs r)
{
    fl_matmul_pairs(m, nv, n / 2 - from, weights + from, KEYS, 1, b->values + from * b->ld_values,
                    b->ld_values, NULL, r.value, r.ld, true);
    if (n % 2 == 0)
        return;
    const float *last = b->values + n / 2 * b->ld_values;
    for (int64_t l = 0; l < nv * FL_LANES; l += FL_LANES)
        vf_store(b->spare + l, vi_float(vi_and(vf_bits(vf_load(last + l)), vi_set1(0xffff))));
    fl_matmul_pairs(m, nv, 1, weights + n / 2, KEYS, 1, b->spare, 0, NULL, r.value, r.ld, true);
}

/* The values of a block of pairs, as add_values adds them. */
static void add_pairs(const fl_block *b, int m, int nv, const float *shrink, float *weights,
                      fl_runs r)
{
    for (int i = 0; i < m; i++)
        fl_pairs_round(weights + i * KEYS, KEYS, weights + i * KEYS);
    fl_matmul_pairs(m, nv, b->n / 2, weights, KEYS, 1, b->values, b->ld_values, shrink, r.value,
                    r.ld, false);
    if (!b->more)
        add_rest(b, m, nv, b->n / 2, b->n, weights, r);
    for (int i = 0; i < m && b->more; i++)
        add_rest(b, 1, nv, b->n / 2, b->n + b->more * i, weights + i * KEYS, fl_runs_at(r, i));
}
#endif

static void add_values(const fl_block *b, int m, int nv, const float *shrink, float *weights,
                       fl_runs r)
{
    fl_matmul_scaled(m, nv, b->n, weights, KEYS, 1, b->values, b->ld_values, shrink, r.value, r.ld);
    /* What not all see is added for each by itself: weight 0 times a value that is no number would
     * show. */
    for (int i = 1; i < m && b->more; i++)
        fl_matmul(1, nv, b->more * i, weights + i * KEYS + b->n, KEYS,
                  b->values + b->n * b->ld_values, b->ld_values, r.value + i * r.ld, r.ld, true);
}

void fl_attend(const fl_block *b, int m, const float *q, int64_t ldq, int nv, fl_runs r,
               float *weights)
{
    float max[QUERIES] = {0}, shrink[QUERIES];
    int n_scores = (b->n + b->more * (m - 1) + FL_LANES - 1) / FL_LANES;
#if defined(__AVX512BF16__)
    if (b->pairs)
        fl_matmul_pairs(m, n_scores, b->d, q, ldq, 1, b->keys, KEYS, NULL, weights, KEYS, false);
    else
#endif
        fl_matmul(m, n_scores, b->d, q, ldq, b->keys, KEYS, weights, KEYS, false);
    for (int i = 0; i < m; i++) {
        float *w = weights + i * KEYS;
        for (int j = b->n + b->more * i; j < n_scores * FL_LANES; j++)
            w[j] = -INFINITY; /* no key: weight 0 */
        max[i] = top(w, n_scores, r.max[i]);
    }
    exp_differences(r.max, max, m, shrink);
    for (int i = 0; i < m; i++) {
        r.sum[i] = r.sum[i] * shrink[i] + weigh(weights + i * KEYS, n_scores, max[i]);
        r.max[i] = max[i];
    }
#if defined(__AVX512BF16__)
    if (b->pairs) {
        add_pairs(b, m, nv, shrink, weights, r);
        return;
    }
#endif
    add_values(b, m, nv, shrink, weights, r);
}

/* ---- queries in lanes ---- */

/* Adds n elements of `keys` keys, ld apart, to their scores.  The way from key to key is hidden
 * from the compiler, which would keep a pointer for each of them, in memory. */
FL_INLINE void score_step(bool pairs, int keys, int n, const float *row, int64_t ld, const float *q,
                          vf *sum)
{
    vf x[STEP];
    FL_UNROLL
    for (int p = 0; p < n; p++)
        x[p] = vf_load(q + p * FL_LANES);
    FL_UNROLL
    for (int i = 0; i < keys; i++) {
        FL_UNROLL
        for (int p = 0; p < n; p++) {
            vf k = vf_set1(row[p]);
#if defined(__AVX512BF16__)
            sum[i] = pairs ? vf_dot(sum[i], vf_bits(k), vf_bits(x[p])) : vf_fma(x[p], k, sum[i]);
#else
            (void)pairs;
            sum[i] = vf_fma(x[p], k, sum[i]);
#endif
        }
        row += ld;
        __asm__("" : "+r"(row));
    }
}

/* Scores of `keys` keys, q [d][16]: out [keys][16].  The same rows of the block that is looked at
 * next are fetched meanwhile. */
FL_INLINE void score_keys(bool pairs, int keys, const fl_block *b, int first, const float *q,
                          float *out)
{
    vf sum[PAIR_TILE];
    const float *row = b->rows + first * b->ld_rows;
    const unsigned char *next = b->next ? b->next + first * b->next_bytes : NULL;
    int64_t fetched = 0;
    FL_UNROLL
    for (int i = 0; i < keys; i++)
        sum[i] = vf_zero();
    for (int64_t at = 0; at < b->d; at += STEP) {
        for (; next && fetched * b->d < b->next_bytes * (at + STEP); fetched += FL_CACHE_LINE) {
            for (int i = 0; i < keys; i++)
                __builtin_prefetch(next + i * b->next_bytes + fetched, 0, 2);
        }
        if (b->d - at >= STEP)
            score_step(pairs, keys, STEP, row + at, b->ld_rows, q + at * FL_LANES, sum);
        else
            for (int64_t p = at; p < b->d; p++)
                score_step(pairs, keys, 1, row + p, b->ld_rows, q + p * FL_LANES, sum);
    }
    FL_UNROLL
    for (int i = 0; i < keys; i++)
        vf_store(out + (first + i) * FL_LANES, sum[i]);
}

/* The 16 vectors of x, `by` adding or comparing, in the tree of vf_sum and vf_hmax. */
#define FOLD(x, by)                                                                                \
    for (int half = FL_LANES / 2; half; half /= 2) {                                               \
        for (int i = 0; i < half; i++)                                                             \
            (x)[i] = by((x)[i], (x)[i + half]);                                                    \
    }

void fl_attend_lanes(const fl_block *b, int m, const float *q, int nv, fl_runs r, float *weights)
{
    int n = (b->n + FL_LANES - 1) / FL_LANES * FL_LANES;
    vf part[FL_LANES], old = vf_loadn(r.max, m);
    float shrink[FL_LANES];
    for (int i = 0; i < b->n && !b->pairs; i += KEY_TILE)
        score_keys(false, KEY_TILE, b, i, q, weights);
    for (int i = 0; i < b->n && b->pairs; i += PAIR_TILE)
        score_keys(true, PAIR_TILE, b, i, q, weights);
    for (int i = b->n; i < n; i++)
        vf_store(weights + i * FL_LANES, vf_set1(-INFINITY)); /* no key: weight 0 */
    for (int i = 0; i < FL_LANES; i++) {
        part[i] = old;
        for (int k = i; k < n; k += FL_LANES)
            part[i] = vf_max(part[i], vf_load(weights + k * FL_LANES));
    }
    FOLD(part, vf_max)
    vf max = part[0], less = vf_exp(vf_sub(old, max));
    for (int i = 0; i < FL_LANES; i++) {
        part[i] = vf_zero();
        for (int k = i; k < n; k += FL_LANES) {
            vf w = vf_exp(vf_sub(vf_load(weights + k * FL_LANES), max));
            part[i] = vf_add(part[i], w);
            vf_store(weights + k * FL_LANES, w);
        }
    }
    FOLD(part, vf_add)
    vf_storen(r.sum, vf_add(vf_mul(vf_loadn(r.sum, m), less), part[0]), m);
    vf_storen(r.max, max, m);
    vf_store(shrink, less);
#if defined(__AVX512BF16__)
    if (b->pairs) {
        for (int i = 0; 2 * i < b->n; i++) {
            float *w = weights + 2 * i * FL_LANES;
            vf_store(weights + i * FL_LANES, vf_zip(vf_load(w), vf_load(w + FL_LANES)));
        }
        fl_matmul_pairs(m, nv, fl_pairs_words(b->n), weights, 1, FL_LANES, b->values, b->ld_values,
                        shrink, r.value, r.ld, false);
        return;
    }
#endif
    fl_matmul_scaled(m, nv, b->n, weights, 1, FL_LANES, b->values, b->ld_values, shrink, r.value,
                     r.ld);
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
