/* The list of merges of a vocabulary, by pair of ids: open addressing, at most half full.
 *
 * A list from outside can be made so that its pairs collide; its length is bounded by the reader,
 * and the cost is a slow start and slow merges, not a wrong result. */
#include "text/text_internal.h"

static size_t hash(int32_t left, int32_t right)
{
    uint64_t h = ((uint64_t)(uint32_t)left << 32 | (uint32_t)right) * 0x9e3779b97f4a7c15u;
    return (size_t)(h ^ h >> 29);
}

bool fl_merges_create(fl_merges *m, size_t most)
{
    m->cap = 16;
    while (m->cap < 2 * most)
        m->cap *= 2;
    m->slots = fl_calloc(m->cap, sizeof *m->slots);
    return m->slots != NULL;
}

static fl_merge *probe(const fl_merges *m, int32_t left, int32_t right)
{
    size_t i = hash(left, right) & (m->cap - 1);
    while (m->slots[i].rank && (m->slots[i].left != left || m->slots[i].right != right))
        i = (i + 1) & (m->cap - 1);
    return &m->slots[i];
}

void fl_merges_put(fl_merges *m, fl_merge merge)
{
    *probe(m, merge.left, merge.right) = merge;
}

const fl_merge *fl_merges_get(const fl_merges *m, int32_t left, int32_t right)
{
    const fl_merge *found = probe(m, left, right);
    return found->rank ? found : NULL;
}
