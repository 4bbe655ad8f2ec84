/* Partial selection: the best candidates that reach a count (top-k) or a weight (top-p), without
 * sorting.  Quickselect whose measure is summed weight: each round splits the open range at a pivot
 * and keeps the side in which the target is reached, so the expected work is linear.  Ids make the
 * order total, so equal logits are no special case. */
#include "engine/sampler_internal.h"

static bool better(const fl_candidate *a, const fl_candidate *b)
{
    return a->x > b->x || (a->x == b->x && a->id < b->id);
}

static void swap(fl_candidate *a, fl_candidate *b)
{
    fl_candidate t = *a;
    *a = *b;
    *b = t;
}

int64_t fl_candidates_best(fl_candidate *c, int64_t n, double target, bool by_count)
{
    int64_t lo = 0, hi = n; /* [0, lo) is needed and not enough, [0, hi) is enough */
    double sum = 0;         /* of [0, lo) */
    uint32_t pick = 1;      /* a fixed scramble: no order of input is a bad one for long */
    while (hi - lo > 1) {
        pick = pick * 1664525u + 1013904223u;
        swap(&c[lo + (int64_t)((uint64_t)pick * (uint64_t)(hi - lo) >> 32)], &c[hi - 1]);
        fl_candidate pivot = c[hi - 1];
        int64_t mid = lo;
        double part = 0; /* of [lo, mid) */
        for (int64_t i = lo; i < hi - 1; i++) {
            if (better(&c[i], &pivot)) {
                part += by_count ? 1 : c[i].w;
                swap(&c[i], &c[mid++]);
            }
        }
        swap(&c[mid], &c[hi - 1]);
        if (mid > lo && sum + part >= target) {
            hi = mid;
            continue;
        }
        sum += part;
        lo = mid; /* the pivot is next in order */
        double with = sum + (by_count ? 1 : pivot.w);
        if (with >= target)
            return mid + 1;
        sum = with;
        lo = mid + 1;
    }
    return hi;
}
