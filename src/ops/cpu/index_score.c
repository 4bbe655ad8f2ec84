/* Scores of index_select in register tiles: the dot products of HEADS heads with PARTS vectors of
 * keys stay in registers, and so do the sums over the heads that take them in. */
#include "ops/cpu/index_score.h"

#include "graph/cache_row.h"
#include "ops/cpu/index_codes.h"
#include "ops/cpu/matmul.h"

#if defined(__AVX512F__)
enum { HEADS = 4, PARTS = 4 };
#else
enum { HEADS = 4, PARTS = 2 };
#endif
enum { BLOCK = FL_INDEX_BLOCK };

/* A cached row in words of 32 bits. */
static int64_t words_of_row(fl_dtype t, int64_t d)
{
    return fl_cache_row_bytes(t, d) / (int64_t)sizeof(float);
}

/* The words that hold its codes. */
static int64_t words_of_codes(int64_t d)
{
    return (d + 3) / 4;
}

void fl_index_cut_keys(fl_room *r, const fl_type *q, fl_dtype type, fl_index_keys *out)
{
    int64_t d = q->dim[1], words = words_of_row(type, d);
    *out = (fl_index_keys){0};
    if (type == FL_BF16)
        out->pairs = fl_room_floats(r, words * BLOCK);
    out->lanes = fl_room_floats(r, (type == FL_BF16 ? 2 * words : words) * BLOCK);
    if (type == FL_I8 && out->lanes)
        out->scale = out->lanes + fl_cache_scales_at(d) / (int64_t)sizeof(float) * BLOCK;
}

void fl_index_cut_query(fl_room *r, const fl_type *q, fl_dtype type, fl_index_query *out)
{
    *out = (fl_index_query){.weights = fl_room_floats(r, q->dim[0])};
    if (type != FL_I8)
        return;
    out->start = fl_room_take(r, q->dim[0], sizeof *out->start);
    out->words =
        fl_room_take(r, q->dim[0] * words_of_codes(q->dim[1]) * FL_CODE_WORDS, sizeof *out->words);
}

/* Rounds the queries of head h to codes. */
static void round_query(const fl_index *x, int64_t h, fl_index_query *out)
{
    union {
        int8_t code[FL_CACHE_GROUP + FL_CACHE_ALIGN];
        float scale[1];
    } row;
    int64_t n = words_of_codes(x->d);
    int32_t sum = 0;
    fl_cache_encode(FL_I8, x->d, out->q + h * x->d, &row);
    for (int64_t i = 0; i < n; i++)
        fl_code_words(row.code + 4 * i, out->words + (h * n + i) * FL_CODE_WORDS);
    for (int64_t i = 0; i < x->d; i++)
        sum += row.code[i];
    out->start[h] = fl_code_start(sum);
    out->weights[h] *= fl_cache_scales(&row, x->d)[0];
}

void fl_index_ready(const fl_index *x, int32_t row, fl_index_query *out)
{
    const float *w = fl_row_f32(x->w, row);
    out->q = fl_row_f32(x->q, row);
    for (int64_t h = 0; h < x->heads; h++) {
        out->weights[h] = x->scale * w[h];
        if (x->type == FL_I8)
            round_query(x, h, out);
    }
}

/* Pairs of halves become elements; the lower half is the even one. */
static void widen(int64_t words, const fl_index_keys *keys)
{
    for (int64_t w = 0; w < words; w++) {
        for (int i = 0; i < BLOCK; i += FL_LANES) {
            vi pair = vf_bits(vf_load(keys->pairs + w * BLOCK + i));
            float *even = keys->lanes + 2 * w * BLOCK + i;
            vf_store(even, vi_float(vi_shl(pair, 16)));
            vf_store(even + BLOCK, vi_float(vi_and(pair, vi_set1((int32_t)0xffff0000))));
        }
    }
}

/* Fetches the block after the one at pos: the processor's own prefetch ends with its page of memory
 * and begins too late after it. */
static void fetch_next(const fl_index *x, const fl_seq_rows *seq, int64_t pos)
{
    if (pos + BLOCK >= seq->pos0 + seq->n_rows)
        return;
    const char *next = fl_state_row(x->pool, seq, pos + BLOCK);
    for (int64_t at = 0; at < BLOCK * x->pool->item_bytes; at += FL_CACHE_LINE)
        __builtin_prefetch(next + at, 0, 2);
}

void fl_index_load(const fl_index *x, const fl_seq_rows *seq, int64_t pos, int n,
                   const fl_index_keys *keys)
{
    int64_t words = words_of_row(x->type, x->d);
    fetch_next(x, seq, pos);
    fl_transpose(n, words, fl_state_row(x->pool, seq, pos),
                 x->pool->item_bytes / (int64_t)sizeof(float),
                 x->type == FL_BF16 ? keys->pairs : keys->lanes, BLOCK);
    if (x->type == FL_BF16)
        widen(words, keys);
    else if (x->type == FL_I8)
        fl_code_keys((int32_t *)keys->lanes, words_of_codes(x->d) * BLOCK);
}

/* Dot products of n_heads heads from q on with n vectors of keys. */
FL_INLINE void dot_floats(int n_heads, int n, int64_t d, const float *q, const float *keys,
                          vp dot[HEADS][PARTS])
{
    FL_UNROLL
    for (int h = 0; h < n_heads; h++) {
        FL_UNROLL
        for (int p = 0; p < n; p++)
            dot[h][p] = vp_zero();
    }
    for (int64_t i = 0; i < d; i++, keys += BLOCK) {
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
}

/* The same of codes. */
FL_INLINE void dot_codes(int n_heads, int n, int64_t n_words, const int32_t *words,
                         const int32_t *start, const int32_t *keys, vp dot[HEADS][PARTS])
{
    vn sum[HEADS][PARTS];
    FL_UNROLL
    for (int h = 0; h < n_heads; h++) {
        FL_UNROLL
        for (int p = 0; p < n; p++)
            sum[h][p] = vn_set1(start[h]);
    }
    for (int64_t i = 0; i < n_words; i++, keys += BLOCK) {
        vn_pairs key[PARTS];
        FL_UNROLL
        for (int p = 0; p < n; p++)
            key[p] = vn_codes(vn_load(keys + p * FL_PART));
        FL_UNROLL
        for (int h = 0; h < n_heads; h++) {
            const int32_t *q = words + (h * n_words + i) * FL_CODE_WORDS;
            FL_UNROLL
            for (int p = 0; p < n; p++)
                sum[h][p] = vn_dot(sum[h][p], key[p], q);
        }
    }
    FL_UNROLL
    for (int h = 0; h < n_heads; h++) {
        FL_UNROLL
        for (int p = 0; p < n; p++)
            dot[h][p] = vn_float(sum[h][p]);
    }
}

/* Takes heads [h, h + n_heads) into the sums of n vectors of keys. */
FL_INLINE void tile(const fl_index *x, const fl_index_query *query, int64_t h, int n_heads, int n,
                    const float *keys, vp *sum)
{
    vp dot[HEADS][PARTS];
    int64_t n_words = words_of_codes(x->d);
    if (x->type == FL_I8)
        dot_codes(n_heads, n, n_words, query->words + h * n_words * FL_CODE_WORDS, query->start + h,
                  (const int32_t *)keys, dot);
    else
        dot_floats(n_heads, n, x->d, query->q + h * x->d, keys, dot);
    FL_UNROLL
    for (int i = 0; i < n_heads; i++) {
        vp w = vp_set1(query->weights[h + i]);
        FL_UNROLL
        for (int p = 0; p < n; p++)
            sum[p] = vp_fma(w, vp_max(vp_zero(), dot[i][p]), sum[p]);
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
        tile(x, query, h, HEADS, n, keys, sum);
    for (; h < x->heads; h++)
        tile(x, query, h, 1, n, keys, sum);
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
