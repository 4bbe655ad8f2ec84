/* Softmax attention over keys that come in blocks: a running maximum, sum of weights and weighted
 * sum of values per query, and the merging of two such runs.  Both forms of mla are made of it. */
#ifndef FL_OPS_CPU_ATTEND_H
#define FL_OPS_CPU_ATTEND_H

#include "ops/cpu/cpu_internal.h"

enum { FL_ATTEND_KEYS = FL_PAGE_TOKENS, FL_ATTEND_QUERIES = 32 };

/* The runs of consecutive queries: of query i, max[i], sum[i] and value + i * ld. */
typedef struct fl_runs {
    float *max, *sum, *value;
    int64_t ld;
} fl_runs;

static inline fl_runs fl_runs_at(fl_runs r, int64_t i)
{
    return (fl_runs){r.max + i, r.sum + i, r.value + i * r.ld, r.ld};
}

/* A block of up to 64 keys and their values.  Lanes beyond the width of the values may hold
 * anything that is readable: they end up in lanes of the sums that nobody reads.
 *
 * pairs (precision fast, where fl_matmul_pairs is): queries and keys are words of two elements
 * (pairs.h), d counts these; values are words of two keys, 2 i and 2 i + 1. */
typedef struct fl_block {
    int n;
    int more; /* keys that fl_attend shows each further query beyond those of the one before */
    bool pairs;
    const float *keys; /* [d][64]: keys in lanes, for fl_attend */
    const float *rows; /* [64][d], ld_rows apart: keys as rows, for fl_attend_lanes */
    int64_t d, ld_rows;
    const float *values; /* [n], ld_values apart; pairs: [(n + 1) / 2] */
    int64_t ld_values;
    float *spare;              /* pairs: room for one row of values, for fl_attend */
    const unsigned char *next; /* row 0 of the block that will be looked at next; NULL: not told */
    int64_t next_bytes;        /* of each of its 64 rows, side by side */
} fl_block;

#define fl_attend_begin FL_CPU_NAME(fl_attend_begin)
#define fl_attend FL_CPU_NAME(fl_attend)
#define fl_attend_lanes FL_CPU_NAME(fl_attend_lanes)
#define fl_attend_merge FL_CPU_NAME(fl_attend_merge)
#define fl_attend_end FL_CPU_NAME(fl_attend_end)

/* n runs that have seen nothing; a value has nv vectors. */
void fl_attend_begin(fl_runs r, int64_t n, int nv);

/* m queries (at most FL_ATTEND_QUERIES), scaled, ldq apart, look at all keys of the block: scores
 * in ascending order of d, then, with the new maximum, sum and value in ascending order of keys.
 * In pairs a key that is not shown may share a word with one that is: it is kept out of the sums.
 * weights: room for m * 64 floats. */
void fl_attend(const fl_block *b, int m, const float *q, int64_t ldq, int nv, fl_runs r,
               float *weights);

/* The same, bit for bit, for up to 16 queries in lanes, q [d][16], of which m are there.  Memory of
 * 64 rows is readable; in pairs the values of an odd last key stand beside zeros.  Worth it for few
 * queries, which do not repay bringing the keys into lanes.  weights: 64 * 16. */
void fl_attend_lanes(const fl_block *b, int m, const float *q, int nv, fl_runs r, float *weights);

/* Takes the keys that m queries have seen in r, later ones, into the runs `into`. */
void fl_attend_merge(fl_runs into, fl_runs r, int m, int nv);

/* Divides by the sum of weights; a run that has seen nothing gives zeros. */
void fl_attend_end(fl_runs r, int64_t n, int nv);

#endif
