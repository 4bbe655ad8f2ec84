/* Drawing the next token from a distribution over logits.
 *
 * A weight is exp((x - highest) / temperature) as a whole number of 2^-40, made by float operations
 * that every processor does alike.  Whole numbers add up to the same sum in any order, so whoever
 * draws, by whatever route, finds the same token for the same logits: the host here, a GPU in
 * ops/gpu/pick.cu.  What is below 2^-40 of the highest counts as nothing; all of that together is
 * less than float32 tells apart.
 *
 * Truncations keep the head of one order: higher logit first, then lower id.  So each comes down to
 * the last candidate that it keeps, and the token is the first, in order of ids, at which the sum
 * of the kept weights exceeds the target. */
#ifndef FL_OPS_DRAW_H
#define FL_OPS_DRAW_H

#include "graph/plan.h"

#include <float.h>

#ifdef __CUDACC__
#define FL_DRAW_FUNCTION static __device__ inline
#define FL_DRAW_PRODUCT(a, b) __fmul_rn(a, b)
#define FL_DRAW_SUM(a, b) __fadd_rn(a, b)
#else /* the compiler is told not to contract (-ffp-contract=off) */
#define FL_DRAW_FUNCTION static inline
#define FL_DRAW_PRODUCT(a, b) ((a) * (b))
#define FL_DRAW_SUM(a, b) ((a) + (b))
#endif

enum { FL_DRAW_BITS = 40, FL_DRAW_DEPTH = 41 }; /* weights from 2^-DEPTH on are 0 */

/* log2 of the weight of logit x, beside the highest. */
FL_DRAW_FUNCTION float fl_draw_log2(float x, float highest, float scale)
{
    return FL_DRAW_PRODUCT(x - highest, scale);
}

/* The weight for log2(w) = y <= 0. */
FL_DRAW_FUNCTION uint64_t fl_draw_weight(float y)
{
    if (!(y > -(float)FL_DRAW_DEPTH))
        return 0;
    int n = (int)y;
    n -= (float)n > y;
    float f = FL_DRAW_SUM(y, -(float)n), p = 0x1.e97886p-10f; /* 2^f for f in [0, 1] */
    p = FL_DRAW_SUM(FL_DRAW_PRODUCT(p, f), 0x1.277576p-7f);
    p = FL_DRAW_SUM(FL_DRAW_PRODUCT(p, f), 0x1.c91e04p-5f);
    p = FL_DRAW_SUM(FL_DRAW_PRODUCT(p, f), 0x1.ebdb30p-3f);
    p = FL_DRAW_SUM(FL_DRAW_PRODUCT(p, f), 0x1.62e4bcp-1f);
    p = FL_DRAW_SUM(FL_DRAW_PRODUCT(p, f), 1.0f);
    uint64_t digits = (uint32_t)FL_DRAW_PRODUCT(p, 8388608.0f); /* 24 bits */
    int shift = n + FL_DRAW_BITS - 23;
    return shift >= 0 ? digits << shift : digits >> -shift;
}

/* The last candidate that truncation keeps. */
typedef struct fl_draw_cut {
    float x;
    int32_t id;
} fl_draw_cut;

FL_DRAW_FUNCTION bool fl_draw_keeps(fl_draw_cut last, float x, int32_t id)
{
    return x > last.x || (x == last.x && id <= last.id);
}

/* What min-p, which keeps what is at least floor above the highest, makes of a cut. */
FL_DRAW_FUNCTION fl_draw_cut fl_draw_floor(fl_draw_cut last, float highest, float floor)
{
    float x = FL_DRAW_SUM(highest, floor);
    fl_draw_cut low = {x, INT32_MAX};
    return x > last.x ? low : last;
}

#ifndef __CUDACC__

/* temperature > 0, min_p and top_p in [0, 1]; top_k 0: off. */
fl_draw fl_draw_of(float temperature, int32_t top_k, float top_p, float min_p, uint64_t random);

typedef struct fl_candidate {
    float x;
    int32_t id;
    uint64_t weight;
} fl_candidate;

/* Draws from n finite logits; room is for n candidates. */
int32_t fl_draw_token(const fl_draw *d, const float *x, int64_t n, fl_candidate *room);

/* How many of the n >= 1 candidates, taken in falling order (higher x first, then lower id), it
 * needs for their weights to sum to `target` (at least 1); they are moved to the front, the last of
 * the order among them to the end of that front.  by_count: every weight counts as 1. */
int64_t fl_candidates_best(fl_candidate *c, int64_t n, uint64_t target, bool by_count);

#endif
#endif
