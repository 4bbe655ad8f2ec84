/* The scores of index_select: blocks of cached keys brought into lanes, and the scores of a row for
 * the keys of a block.  With keys in signed bytes queries are rounded in the same way, each head by
 * itself, and dot products are sums of whole numbers. */
#ifndef FL_OPS_CPU_INDEX_SCORE_H
#define FL_OPS_CPU_INDEX_SCORE_H

#include "ops/cpu/cpu_internal.h"
#include "ops/cpu/room.h"

enum { FL_INDEX_BLOCK = FL_PAGE_TOKENS };

typedef struct fl_index {
    const fl_step *step;
    const fl_arg *q, *w, *out;
    const fl_state_pool *pool;
    int64_t heads, d;
    int32_t topk;
    float scale;
    fl_dtype type; /* of the keys */
} fl_index;

/* A row of the step made ready. */
typedef struct fl_index_query {
    const float *q; /* [heads][d], as they are */
    int32_t *words; /* [heads] their codes instead (index_codes.h); I8 */
    int32_t *start; /* [heads] */
    float *weights; /* [heads] w times the scale, and times that of the codes */
} fl_index_query;

/* A block of keys: 64 keys side by side. */
typedef struct fl_index_keys {
    float *lanes;       /* [d][64] elements; I8: [][64] words of the rows */
    const float *scale; /* [64], the word that is the scale; I8 */
    float *pairs;       /* [][64] words of the rows; BF16 */
} fl_index_keys;

#define fl_index_cut_keys FL_CPU_NAME(fl_index_cut_keys)
#define fl_index_cut_query FL_CPU_NAME(fl_index_cut_query)
#define fl_index_ready FL_CPU_NAME(fl_index_ready)
#define fl_index_load FL_CPU_NAME(fl_index_load)
#define fl_index_score FL_CPU_NAME(fl_index_score)

/* Room for a block of keys, and for a row; q is the type of the queries, type that of the keys. */
void fl_index_cut_keys(fl_room *r, const fl_type *q, fl_dtype type, fl_index_keys *out);
void fl_index_cut_query(fl_room *r, const fl_type *q, fl_dtype type, fl_index_query *out);

void fl_index_ready(const fl_index *x, int32_t row, fl_index_query *out);

/* Brings n keys (at most FL_INDEX_BLOCK) from position pos on, of one page, into lanes. */
void fl_index_load(const fl_index *x, const fl_seq_rows *seq, int64_t pos, int n,
                   const fl_index_keys *keys);

/* scores[0..n) of the keys of a block, NaN as -inf; what follows up to the next multiple of 16 may
 * be anything.  A score depends on its row and its key alone: the dot product runs over d in
 * ascending order, the sum over the heads likewise, and the scale of a coded key comes last. */
void fl_index_score(const fl_index *x, const fl_index_query *query, const fl_index_keys *keys,
                    int n, float *scores);

#endif
