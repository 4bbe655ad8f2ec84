#include "ops/topk.h"

/* The k-th greatest of v, or a number between it and the next lower one: the digits of the answer
 * from the highest byte down, looking each time only at the numbers that begin with those found. */
static uint64_t kth(const uint64_t *v, int32_t n, int32_t k, uint64_t *spare)
{
    uint64_t found = 0;
    for (int shift = 56; shift >= 0; shift -= 8) {
        int32_t count[256] = {0}, above = 0;
        for (int32_t i = 0; i < n; i++)
            count[v[i] >> shift & 255]++;
        int digit = 255;
        while (above + count[digit] < k)
            above += count[digit--];
        found |= (uint64_t)digit << shift;
        k -= above;
        if (count[digit] == k)
            break; /* all of them belong to the k greatest */
        int32_t m = 0;
        for (int32_t i = 0; i < n; i++) {
            spare[m] = v[i];
            m += (int)(v[i] >> shift & 255) == digit;
        }
        v = spare;
        n = m;
    }
    return found;
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
