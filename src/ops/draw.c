#include "ops/draw.h"

#include <math.h>

/* ---- partial selection ----
 *
 * The best candidates that reach a count (top-k) or a weight (top-p), without sorting: quickselect
 * whose measure is summed weight.  Each round splits the open range at a pivot and keeps the side
 * in which the target is reached, so the expected work is linear.  Ids make the order total, so
 * equal logits are no special case. */

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

int64_t fl_candidates_best(fl_candidate *c, int64_t n, uint64_t target, bool by_count)
{
    int64_t lo = 0, hi = n; /* [0, lo) is needed and not enough, [0, hi) is enough */
    uint64_t sum = 0;       /* of [0, lo) */
    uint32_t pick = 1;      /* a fixed scramble: no order of input is a bad one for long */
    while (hi - lo > 1) {
        pick = pick * 1664525u + 1013904223u;
        swap(&c[lo + (int64_t)((uint64_t)pick * (uint64_t)(hi - lo) >> 32)], &c[hi - 1]);
        fl_candidate pivot = c[hi - 1];
        int64_t mid = lo;
        uint64_t part = 0; /* of [lo, mid) */
        for (int64_t i = lo; i < hi - 1; i++) {
            if (better(&c[i], &pivot)) {
                part += by_count ? 1 : c[i].weight;
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
        uint64_t with = sum + (by_count ? 1 : pivot.weight);
        if (with >= target)
            return mid + 1;
        sum = with;
        lo = mid + 1;
    }
    return hi;
}

/* ---- the draw ---- */

fl_draw fl_draw_of(float temperature, int32_t top_k, float top_p, float min_p, uint64_t random)
{
    double scale = 1.4426950408889634 / (double)temperature, p = (double)top_p * 0x1p32;
    fl_draw d = {.top_k = top_k, .random = random, .floor = -INFINITY};
    d.scale = scale < FLT_MAX ? (float)scale : FLT_MAX;
    d.top_p = p < 0x1p32 ? (uint32_t)p : FL_DRAW_ALL;
    if (min_p > 0)
        d.floor = (float)((double)temperature * log((double)min_p));
    return d;
}

static int64_t highest(const float *x, int64_t n)
{
    int64_t best = 0;
    for (int64_t i = 1; i < n; i++)
        best = x[i] > x[best] ? i : best;
    return best;
}

static fl_draw_cut truncate(const fl_draw *d, const float *x, float max, int64_t n, fl_candidate *c)
{
    for (int64_t i = 0; i < n; i++)
        c[i] = (fl_candidate){.x = x[i], .id = (int32_t)i};
    if (d->top_k > 0 && d->top_k < n)
        n = fl_candidates_best(c, n, (uint64_t)d->top_k, true);
    if (d->top_p != FL_DRAW_ALL) {
        uint64_t sum = 0;
        for (int64_t i = 0; i < n; i++)
            sum += c[i].weight = fl_draw_weight(fl_draw_log2(c[i].x, max, d->scale));
        n = fl_candidates_best(c, n, (uint64_t)((unsigned __int128)sum * d->top_p >> 32), false);
    }
    return (fl_draw_cut){c[n - 1].x, c[n - 1].id};
}

enum { RUN = 256 }; /* ids whose weights are summed apart, so that few are looked at again */

typedef struct kept_row {
    const float *x;
    float highest, scale;
    fl_draw_cut last;
} kept_row;

static uint64_t kept_weight(const kept_row *k, int32_t id)
{
    bool kept = fl_draw_keeps(k->last, k->x[id], id);
    return kept ? fl_draw_weight(fl_draw_log2(k->x[id], k->highest, k->scale)) : 0;
}

int32_t fl_draw_token(const fl_draw *d, const float *x, int64_t n, fl_candidate *room)
{
    int64_t best = highest(x, n);
    kept_row k = {x, x[best], d->scale, {-INFINITY, INT32_MAX}};
    if ((d->top_k > 0 && d->top_k < n) || d->top_p != FL_DRAW_ALL)
        k.last = truncate(d, x, x[best], n, room);
    k.last = fl_draw_floor(k.last, x[best], d->floor);
    uint64_t sum = 0;
    for (int32_t i = 0; i < n;) {
        fl_candidate *run = &room[i / RUN];
        int32_t end = n - i < RUN ? (int32_t)n : i + RUN;
        for (run->weight = 0; i < end; i++)
            run->weight += kept_weight(&k, i);
        sum += run->weight;
    }
    uint64_t target = (uint64_t)((unsigned __int128)sum * d->random >> 64);
    int32_t id = 0;
    for (; target >= room[id / RUN].weight; id += RUN)
        target -= room[id / RUN].weight;
    for (uint64_t w; target >= (w = kept_weight(&k, id)); id++)
        target -= w;
    return id;
}
