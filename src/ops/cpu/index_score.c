/* Scores of index_select in register tiles: the dot products of HEADS heads with PARTS vectors of
 * keys stay in registers, and so do the sums over the heads that take them in. */
#include "ops/cpu/index_score.h"

#include "ops/cpu/cache.h"
#include "ops/cpu/matmul.h"
#include "ops/cpu/simd.h"

#if defined(__AVX512F__)
enum { HEADS = 4, PARTS = 4 };
#else
enum { HEADS = 4, PARTS = 2 };
#endif

void fl_index_cut_keys(fl_room *r, const fl_type *q, fl_dtype type, fl_index_keys *out)
{
    *out = (fl_index_keys){.lanes = fl_room_floats(r, q->dim[1] * FL_INDEX_BLOCK)};
    if (type != FL_F32)
        out->rows = fl_room_floats(r, q->dim[1] * FL_INDEX_BLOCK);
    if (type == FL_I8)
        out->scale = fl_room_floats(r, FL_INDEX_BLOCK);
}

void fl_index_cut_query(fl_room *r, const fl_type *q, fl_dtype type, fl_index_query *out)
{
    *out = (fl_index_query){.weights = fl_room_floats(r, q->dim[0])};
    if (type == FL_I8)
        out->codes = fl_room_floats(r, q->dim[0] * q->dim[1]);
}

/* The codes of all heads, and their scales into the weights. */
static void encode(const fl_index *x, fl_index_query *out)
{
    union {
        int8_t code[2 * FL_CACHE_GROUP];
        float align;
    } row;
    for (int64_t h = 0; h < x->heads; h++) {
        fl_cache_encode(FL_I8, x->d, out->q + h * x->d, row.code);
        fl_cache_codes(x->d, row.code, out->codes + h * x->d);
        out->weights[h] *= fl_cache_scales(row.code, x->d)[0];
    }
    out->q = out->codes;
}

void fl_index_ready(const fl_index *x, int32_t row, fl_index_query *out)
{
    const float *w = fl_row_f32(x->w, row);
    out->q = fl_row_f32(x->q, row);
    for (int64_t h = 0; h < x->heads; h++)
        out->weights[h] = x->scale * w[h];
    if (x->type == FL_I8)
        encode(x, out);
}

void fl_index_load(const fl_index *x, const fl_seq_rows *seq, int64_t pos, int n,
                   const fl_index_keys *keys)
{
    const unsigned char *key = fl_state_row(x->pool, seq, pos);
    int64_t size = x->pool->item_bytes;
    if (x->type == FL_F32) {
        fl_transpose(n, x->d, (const float *)key, size / (int64_t)sizeof(float), keys->lanes,
                     FL_INDEX_BLOCK);
        return;
    }
    for (int i = 0; i < n; i++, key += size) {
        if (x->type == FL_I8) {
            fl_cache_codes(x->d, (const int8_t *)key, keys->rows + i * x->d);
            keys->scale[i] = fl_cache_scales(key, x->d)[0];
        } else {
            fl_cache_load(x->type, x->d, key, keys->rows + i * x->d);
        }
    }
    fl_transpose(n, x->d, keys->rows, x->d, keys->lanes, FL_INDEX_BLOCK);
}

/* Takes n_heads heads from q on into the sums of n vectors of keys. */
FL_INLINE void tile(int n_heads, int n, int64_t d, const float *q, const float *weights,
                    const float *keys, vp *sum)
{
    vp dot[HEADS][PARTS];
    FL_UNROLL
    for (int h = 0; h < n_heads; h++) {
        FL_UNROLL
        for (int p = 0; p < n; p++)
            dot[h][p] = vp_zero();
    }
    for (int64_t i = 0; i < d; i++, keys += FL_INDEX_BLOCK) {
        vp key[PARTS];
        FL_UNROLL
        for (int p = 0; p < n; p++)
            key[p] = vp_load(keys + p * FL_PART);
        FL_UNROLL
        for (int h = 0; h < n_heads; h++) {
            vp a = vp_set1(q[h * d + i]);
            FL_UNROLL
            for (int p = 0; p < n; p++)
                dot[h][p] = vp_fma(a, key[p], dot[h][p]);
        }
    }
    FL_UNROLL
    for (int h = 0; h < n_heads; h++) {
        vp w = vp_set1(weights[h]);
        FL_UNROLL
        for (int p = 0; p < n; p++)
            sum[p] = vp_fma(w, vp_max(vp_zero(), dot[h][p]), sum[p]);
    }
}

/* All heads for n vectors of keys. */
FL_INLINE void column(const fl_index *x, const fl_index_query *query, int n, const float *keys,
                      float *scores)
{
    vp sum[PARTS];
    int64_t h = 0;
    FL_UNROLL
    for (int p = 0; p < n; p++)
        sum[p] = vp_zero();
    for (; h + HEADS <= x->heads; h += HEADS)
        tile(HEADS, n, x->d, query->q + h * x->d, query->weights + h, keys, sum);
    for (; h < x->heads; h++)
        tile(1, n, x->d, query->q + h * x->d, query->weights + h, keys, sum);
    FL_UNROLL
    for (int p = 0; p < n; p++)
        vp_store(scores + p * FL_PART, sum[p]);
}

void fl_index_score(const fl_index *x, const fl_index_query *query, const fl_index_keys *keys,
                    int n, float *scores)
{
    int i = 0, end = (n + FL_LANES - 1) / FL_LANES * FL_LANES;
    for (; i + PARTS * FL_PART <= end; i += PARTS * FL_PART)
        column(x, query, PARTS, keys->lanes + i, scores + i);
    for (; i < end; i += FL_PART)
        column(x, query, 1, keys->lanes + i, scores + i);
    for (i = 0; i < end; i += FL_LANES) {
        vf s = vf_load(scores + i);
        if (x->type == FL_I8)
            s = vf_mul(s, vf_load(keys->scale + i));
        vf_store(scores + i, vf_select(vf_eq(s, s), s, vf_set1(-INFINITY)));
    }
}
