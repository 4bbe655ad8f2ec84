/* Exact selection of the k best of a stream of scores, in memory of about 2k entries whatever the
 * length of the stream.
 *
 * A candidate is one 64-bit number: the score as an order-preserving integer above, the complement
 * of the position below.  Comparing two numbers compares (score descending, position ascending), so
 * all candidates differ and the k best are one definite set: -0 and +0 are equal, NaN counts as
 * -inf.  Candidates gather in a buffer; when it is full, the k best are kept (fl_topk_keep: a radix
 * search for the k-th, then a filter that leaves the order alone) and the k-th score becomes the
 * floor.  Positions come in ascending order, so what does not beat the floor has lost, ties
 * included, and costs one comparison. */
#ifndef FL_OPS_TOPK_H
#define FL_OPS_TOPK_H

#include <math.h>
#include <stdint.h>
#include <string.h>

typedef struct fl_topk {
    uint64_t *best;  /* [cap] candidates, position ascending */
    uint64_t *spare; /* [cap] */
    int32_t k, cap, n;
    float floor; /* scores up to this one have lost; NaN while everything is taken */
} fl_topk;

/* Entries of `best` and of `spare` for a selection of k. */
static inline int64_t fl_topk_room(int64_t k)
{
    return 2 * k + 256;
}

static inline uint64_t fl_topk_candidate(float score, int32_t pos)
{
    uint32_t bits;
    score = isnan(score) ? -INFINITY : score + 0.0f; /* -0 + 0 is +0 */
    memcpy(&bits, &score, sizeof bits);
    bits ^= bits >> 31 ? 0xffffffffu : 0x80000000u;
    return (uint64_t)bits << 32 | (uint32_t)~pos;
}

static inline int32_t fl_topk_pos(uint64_t candidate)
{
    return (int32_t) ~(uint32_t)candidate;
}

/* best and spare have fl_topk_room(k) entries. */
static inline void fl_topk_begin(fl_topk *t, int32_t k, uint64_t *best, uint64_t *spare)
{
    *t = (fl_topk){best, spare, k, (int32_t)fl_topk_room(k), 0, NAN};
}

/* Keeps the k greatest of n different numbers, in the order in which they stood, and returns how
 * many there are now.  spare has room for n. */
int32_t fl_topk_keep(uint64_t *v, int32_t n, int32_t k, uint64_t *spare);

/* Keeps the k best and sets the floor: called when there is no room in best for more. */
void fl_topk_cut(fl_topk *t);

/* Writes the k best positions, ascending, and -1 where there are fewer. */
void fl_topk_write(fl_topk *t, int32_t *out);

#endif
