/* Cases of the operators that look across rows: delta_rule, mla, index_select. */
#include "support/ops_gen.h"

#include "graph/cache_row.h"
#include "ops/def/def_internal.h"

#include <math.h>

/* A step whose sequences often hold whole blocks of the chunk grid. */
static void blocky_step(tc *c)
{
    rng *r = c->random;
    if (rng_one_in(r, 2)) {
        tc_step_random(c, rng_one_in(r, 3) ? 60 : 12, 200);
        return;
    }
    int rows[2] = {(int)rng_int(r, 60, 90), 1};
    int64_t pos0[2] = {FL_PAGE_TOKENS * rng_int(r, 0, 2) + rng_int(r, 0, 2), rng_int(r, 0, 200)};
    tc_step(c, (int)rng_int(r, 1, 2), rows, pos0);
}

static float largest(const float *x, int64_t n)
{
    float high = 0;
    for (int64_t i = 0; i < n; i++)
        high = fmaxf(high, fabsf(x[i])); /* NaN is passed over */
    return high;
}

static void fill(float *x, int64_t n, float value)
{
    for (int64_t i = 0; i < n; i++)
        x[i] = value;
}

/* ---- delta_rule ---- */

static void make_delta(tc *c)
{
    rng *r = c->random;
    blocky_step(c);
    int64_t heads = rng_int(r, 1, 3), dk = rng_int(r, 1, 40), dv = rng_int(r, 1, 100);
    if (rng_one_in(r, 10)) { /* sizes for which there are kernels of their own */
        dk = 64;
        dv = 16 * rng_int(r, 1, 3);
    }
    const int64_t keys[2] = {heads, dk}, values[2] = {heads, dv};
    tc_rows(c, FL_ROWS_TOKENS, FL_F32, 2, keys);
    tc_rows(c, FL_ROWS_TOKENS, FL_F32, 2, keys);
    tc_rows(c, FL_ROWS_TOKENS, FL_F32, 2, values);
    tc_rows(c, FL_ROWS_TOKENS, FL_F32, 2, keys);
    tc_rows(c, FL_ROWS_TOKENS, FL_F32, 1, &heads);
    tc_state_in(c, false, heads * dk * dv);
    static const float bounds[] = {-0.01f, -1, -5, -60};
    float bound = bounds[rng_int(r, 0, 3)];
    for (int32_t i = 0; i < c->step.n_rows; i++) {
        float *k = tc_f32(c, FL_DELTA_K, i), *g = tc_f32(c, FL_DELTA_G, i);
        for (int64_t j = 0; j < heads * dk; j++)
            g[j] = bound * rng_float(r, 0, 1);
        for (int64_t h = 0; h < heads; h++) {
            float square = 0;
            for (int64_t j = 0; j < dk; j++)
                square += k[h * dk + j] * k[h * dk + j];
            for (int64_t j = 0; j < dk; j++)
                k[h * dk + j] /= sqrtf(square);
            tc_f32(c, FL_DELTA_BETA, i)[h] = rng_float(r, 0, 1);
        }
    }
    if (rng_one_in(r, 5))
        tc_f32(c, (int)rng_int(r, 0, 3), c->step.n_rows / 2)[0] = NAN;
}

/* Errors of a head mix in its state: the largest number that was there. */
static void delta_magnitude(tc *c, bool fast, ops_magnitude *m)
{
    (void)fast;
    int64_t heads = c->in_type[FL_DELTA_Q].dim[0], dk = c->in_type[FL_DELTA_Q].dim[1];
    int64_t dv = c->in_type[FL_DELTA_V].dim[1], size = dk * dv;
    for (int s = 0; s < c->step.n_seqs; s++) {
        const fl_seq_rows *q = &c->step.seqs[s];
        fl_state_pool before = {c->states[0].initial, c->pools[0].item_bytes};
        for (int64_t h = 0; h < heads; h++) {
            float *after = m->state[0] + (q->slot * heads + h) * size;
            float high = largest((float *)fl_state_slot(&before, q) + h * size, size);
            for (int64_t r = q->row0; r < q->row0 + q->n_rows; r++)
                high = fmaxf(high, largest(tc_f32(c, FL_DELTA_V, r) + h * dv, dv));
            fill(after, size, high);
            for (int64_t r = q->row0; r < q->row0 + q->n_rows; r++) {
                float read = 0;
                for (int64_t i = 0; i < dk; i++)
                    read += fabsf(tc_f32(c, FL_DELTA_Q, r)[h * dk + i]);
                fill(m->out[0] + (r * heads + h) * dv, dv, high * read);
            }
        }
    }
}

/* ---- mla ---- */

static void make_mla(tc *c)
{
    static const fl_dtype types[] = {FL_F32, FL_BF16, FL_F16, FL_F8_BLOCK, FL_MXFP4};
    rng *r = c->random;
    blocky_step(c);
    fl_dtype type = types[rng_int(r, 0, 4)];
    bool crowd = rng_one_in(r, 10); /* more heads than are worked on together */
    int64_t heads = crowd ? 35 : rng_int(r, 1, 4), nope = rng_int(r, 1, crowd ? 2 : 20);
    int64_t dv = rng_int(r, 1, crowd ? 2 : 18), pe = rng_int(r, 0, 12);
    int64_t latent = type == FL_MXFP4 ? 32 : rng_int(r, 1, crowd ? 3 : 40);
    if (type != FL_MXFP4 && rng_one_in(r, 10)) /* several groups of a cache in 8 bits */
        latent = rng_int(r, 100, 300);
    if (!crowd && rng_one_in(r, 6)) { /* the same */
        latent = 32;
        pe = 16 * rng_int(r, 0, 1);
    }
    if (rng_one_in(r, 60)) { /* the sizes of large models */
        type = FL_BF16;
        latent = 512;
        pe = 64;
        heads = rng_one_in(r, 3) ? 18 : rng_int(r, 1, 3);
        nope = rng_int(r, 1, 3);
        dv = rng_int(r, 1, 3);
    }
    tc_rows(c, FL_ROWS_TOKENS, FL_F32, 2, (int64_t[]){heads, nope + pe});
    tc_const(c, type, 1, 2, (int64_t[]){heads * (nope + dv), latent});
    tc_cache_in(c, ops_cache_type(c), latent + pe);
    if (rng_one_in(r, 2)) {
        int64_t topk = rng_int(r, 1, 200);
        int in = tc_rows(c, FL_ROWS_TOKENS, FL_I32, 1, &topk);
        for (int32_t i = 0; i < c->step.n_rows; i++) {
            /* All while they fit; then any, ascending. */
            int64_t visible = fl_step_pos(&c->step, i) + 1, p = 0;
            for (int64_t j = 0; j < topk; j++) {
                if (visible > topk)
                    p += rng_int(r, 0, 2 * (visible - p) / (topk - j) - 2);
                tc_i32(c, in, i)[j] = p < visible ? (int32_t)p++ : -1;
            }
        }
    } else if (rng_one_in(r, 2)) {
        tc_none(c);
    }
    tc_number(c, "v_dim", (double)dv);
    tc_number(c, "scale", 1 / (sqrt((double)(nope + pe)) * sqrt((double)latent)));
    if (rng_one_in(r, 5))
        tc_f32(c, FL_MLA_Q, 0)[0] = NAN;
}

/* Errors of the weights: of a head's values, the largest that there could be.  Fast: queries, keys,
 * weights and values rounded to BF16, which moves a weight by half a step and by what its score
 * moves: four steps of 2^-8 in all, scores being of order one here. */
static void mla_magnitude(tc *c, bool fast, ops_magnitude *m)
{
    const float *w = ops_decode(c, c->in[FL_MLA_KV_B].tensors);
    int64_t heads = c->in_type[FL_MLA_Q].dim[0], latent = c->in_type[FL_MLA_KV_B].dim[1];
    int64_t dv = c->out_type[0].dim[1], rows = c->in_type[FL_MLA_KV_B].dim[0] / heads;
    float *row = tc_alloc(c, (size_t)c->states[0].elements * sizeof *row, sizeof *row);
    fl_state_pool cache = {c->states[0].initial, c->pools[0].item_bytes};
    for (int32_t r = 0; r < c->step.n_rows; r++) {
        const fl_seq_rows *q = &c->step.seqs[c->step.row_seq[r]];
        float high = 0;
        for (int64_t p = 0; p <= fl_step_pos(&c->step, r); p++) {
            fl_cache_decode(c->in_type[FL_MLA_CACHE].dtype, c->states[0].elements,
                            fl_state_row(&cache, q, p), row);
            high = fmaxf(high, largest(row, latent));
        }
        for (int64_t h = 0; h < heads; h++) {
            for (int64_t d = 0; d < dv; d++) {
                double sum = 0;
                for (int64_t i = 0; i < latent; i++)
                    sum += fabsf(w[(h * rows + rows - dv + d) * latent + i]);
                if (fast)
                    sum *= 0x1p-6 / ops_gen_mla.tolerance;
                m->out[0][(r * heads + h) * dv + d] = (float)(sum * high);
            }
        }
    }
}

/* ---- index_select ---- */

static void whole_numbers(rng *r, float *x, int64_t n, int most)
{
    for (int64_t i = 0; i < n; i++)
        x[i] = (float)rng_int(r, -most, most);
}

/* Whole numbers that are their own codes in signed bytes, times a power of two. */
static void put_coded(rng *r, float *x, int64_t n)
{
    float scale = (float)(1 << rng_int(r, 0, 3));
    whole_numbers(r, x, n, 2);
    x[rng_int(r, 0, n - 1)] = rng_one_in(r, 2) ? 127 : -127;
    for (int64_t i = 0; i < n; i++)
        x[i] *= scale;
}

/* Whole numbers: every sum is exact and ties are everywhere. */
static void make_index(tc *c)
{
    static const fl_dtype types[] = {FL_F32, FL_BF16, FL_I8};
    rng *r = c->random;
    tc_step_random(c, rng_one_in(r, 3) ? 70 : 8, 600);
    fl_dtype type = types[rng_int(r, 0, 2)];
    int64_t heads = rng_int(r, 1, 6), d = rng_one_in(r, 6) ? 32 : rng_int(r, 1, 40);
    if (rng_one_in(r, 6)) {
        heads = rng_one_in(r, 2) ? 32 : 16;
        d = 128;
    }
    tc_rows(c, FL_ROWS_TOKENS, FL_F32, 2, (int64_t[]){heads, d});
    tc_rows(c, FL_ROWS_TOKENS, FL_F32, 1, &heads);
    tc_cache_in(c, type, d);
    tc_number(c, "topk", (double)rng_int(r, 1, rng_one_in(r, 2) ? 20 : 300));
    tc_number(c, "scale", rng_one_in(r, 2) ? 1 : 0.125);
    for (int32_t i = 0; i < c->step.n_rows; i++) {
        whole_numbers(r, tc_f32(c, FL_INDEX_Q, i), heads * d, 2);
        for (int64_t h = 0; h < heads && type == FL_I8; h++)
            put_coded(r, tc_f32(c, FL_INDEX_Q, i) + h * d, d);
        whole_numbers(r, tc_f32(c, FL_INDEX_W, i), heads, 3);
        if (rng_one_in(r, 20))
            tc_f32(c, FL_INDEX_W, i)[0] = NAN;
    }
    float *key = tc_alloc(c, (size_t)d * sizeof *key, sizeof *key);
    fl_state_pool keys = {c->states[0].initial, c->pools[0].item_bytes};
    for (int s = 0; s < c->step.n_seqs; s++) {
        const fl_seq_rows *q = &c->step.seqs[s];
        for (int64_t p = 0; p < q->pos0 + q->n_rows; p++) {
            whole_numbers(r, key, d, 2);
            if (type == FL_I8)
                put_coded(r, key, d);
            if (rng_one_in(r, 200))
                key[d / 2] = rng_one_in(r, 2) ? NAN : INFINITY;
            fl_cache_encode(type, d, key, fl_state_row(&keys, q, p));
        }
    }
}

const ops_gen ops_gen_delta_rule = {"delta_rule", make_delta, delta_magnitude, 1e-5, true};
const ops_gen ops_gen_mla = {"mla", make_mla, mla_magnitude, 5e-6, true};
const ops_gen ops_gen_index_select = {"index_select", make_index, NULL, 0, false};
