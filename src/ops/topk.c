#include "ops/topk.h"

/* The highest bit in which the numbers differ. */
static int top_bit(const uint64_t *v, int32_t n)
{
    uint64_t differ = 1;
    for (int32_t i = 1; i < n; i++)
        differ |= v[i] ^ v[0];
    return 63 - __builtin_clzll(differ);
}

/* The k-th greatest of v, or a number between it and the next lower one: the digits of the answer
 * from the highest that differs down, looking each time only at the numbers that begin with those
 * found. */
static uint64_t kth(const uint64_t *v, int32_t n, int32_t k, uint64_t *spare)
{
    int top = top_bit(v, n), shift = top > 7 ? top - 7 : 0;
    uint64_t found = v[0] >> shift >> 8 << 8 << shift; /* what they have in common */
    for (;; shift = shift > 8 ? shift - 8 : 0) {
        int32_t count[256] = {0}, above = 0;
        for (int32_t i = 0; i < n; i++)
            count[v[i] >> shift & 255]++;
        int digit = 255;
        while (above + count[digit] < k)
            above += count[digit--];
        found |= (uint64_t)digit << shift;
        k -= above;
        if (count[digit] == k || shift == 0)
            return found; /* all of them belong to the k greatest */
        int32_t m = 0;
        for (int32_t i = 0; i < n; i++) {
            spare[m] = v[i];
            m += (int)(v[i] >> shift & 255) == digit;
        }
        v = spare;
        n = m;
    }
}

int32_t fl_topk_keep(uint64_t *v, int32_t n, int32_t k, uint64_t *spare)
{
    if (n <= k)
        return n;
    uint64_t least = kth(v, n, k, spare);
    int32_t kept = 0;
    for (int32_t i = 0; i < n; i++) {
        v[kept] = v[i];
        kept += v[i] >= least;
    }
    return kept;
}

void fl_topk_cut(fl_topk *t)
{
    t->n = fl_topk_keep(t->best, t->n, t->k, t->spare);
    if (t->n < t->k)
        return;
    uint64_t least = UINT64_MAX;
    for (int32_t i = 0; i < t->n; i++)
        least = t->best[i] < least ? t->best[i] : least;
    uint32_t bits = (uint32_t)(least >> 32);
    bits ^= bits >> 31 ? 0x80000000u : 0xffffffffu;
    memcpy(&t->floor, &bits, sizeof bits);
}

void fl_topk_write(fl_topk *t, int32_t *out)
{
    t->n = fl_topk_keep(t->best, t->n, t->k, t->spare);
    for (int32_t i = 0; i < t->k; i++)
        out[i] = i < t->n ? fl_topk_pos(t->best[i]) : -1;
}
