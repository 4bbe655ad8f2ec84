/* Byte-pair merging: a piece starts as single bytes, and the adjacent pair of the lowest rank is
 * merged, the leftmost on equal ranks, until no pair has one.  The rank of a pair is that of its
 * bytes together in a rank file, or its place in the list of merges.
 *
 * The parts are a doubly linked list over byte positions, the candidate pairs a binary heap of
 * (rank, position): n log n for n bytes, where looking through all pairs for the lowest would be
 * quadratic.  A merge changes the pairs on its two sides; their old heap entries stay behind and
 * are recognised by a rank that is no longer the one of that position. */
#include "text/text_internal.h"

enum { NO_RANK = -1 };

/* The part that begins at this byte of the piece. */
struct fl_bpe_part {
    uint32_t prev, next; /* where the neighbours begin; next is the piece's length at the end */
    int32_t id;          /* of the part itself */
    int32_t pair;        /* rank of the part with its right neighbour; NO_RANK also when merged */
    int32_t merged;      /* the id that the pair becomes */
};

/* The id of a piece that is one token, or NO_RANK. */
static int32_t id_of(const fl_vocab *v, const char *bytes, size_t len)
{
    uint32_t id;
    if (len > v->longest || !fl_strmap_get(&v->ids, bytes, len, &id))
        return NO_RANK;
    return (int32_t)id;
}

static bool heap_push(fl_bpe *b, uint64_t entry)
{
    if (!fl_vec_push(&b->heap, entry))
        return false;
    uint64_t *h = b->heap.data;
    size_t i = b->heap.n - 1;
    for (; i && h[(i - 1) / 2] > entry; i = (i - 1) / 2)
        h[i] = h[(i - 1) / 2];
    h[i] = entry;
    return true;
}

static uint64_t heap_pop(fl_bpe *b)
{
    uint64_t *h = b->heap.data, top = h[0], last = h[--b->heap.n];
    size_t n = b->heap.n, i = 0;
    for (size_t child; (child = 2 * i + 1) < n; i = child) {
        if (child + 1 < n && h[child + 1] < h[child])
            child++;
        if (h[child] >= last)
            break;
        h[i] = h[child];
    }
    h[i] = last;
    return top;
}

/* Looks up the pair that begins at position i and makes it a candidate. */
static bool consider(fl_bpe *b, const fl_vocab *v, fl_bytes piece, uint32_t i)
{
    struct fl_bpe_part *p = &b->parts[i];
    p->pair = NO_RANK;
    if (p->next == piece.len)
        return true;
    const struct fl_bpe_part *right = &b->parts[p->next];
    if (v->listed) {
        const fl_merge *m = fl_merges_get(&v->merges, p->id, right->id);
        if (!m)
            return true;
        p->pair = m->rank;
        p->merged = m->id;
    } else {
        p->pair = p->merged = id_of(v, piece.data + i, right->next - i);
    }
    return p->pair == NO_RANK || heap_push(b, (uint64_t)p->pair << 32 | i);
}

static bool merge_all(fl_bpe *b, const fl_vocab *v, fl_bytes piece)
{
    struct fl_bpe_part *parts = b->parts;
    while (b->heap.n) {
        uint64_t entry = heap_pop(b);
        uint32_t i = (uint32_t)entry;
        struct fl_bpe_part *left = &parts[i];
        if (left->pair != (int32_t)(entry >> 32))
            continue;
        struct fl_bpe_part *right = &parts[left->next];
        left->id = left->merged;
        right->pair = NO_RANK;
        left->next = right->next;
        if (left->next < piece.len)
            parts[left->next].prev = i;
        if (!consider(b, v, piece, i) || (i && !consider(b, v, piece, left->prev)))
            return false;
    }
    return true;
}

bool fl_bpe_encode(fl_bpe *b, const fl_vocab *v, fl_bytes piece, fl_ids *out)
{
    int32_t whole = v->whole ? id_of(v, piece.data, piece.len) : NO_RANK;
    if (whole != NO_RANK)
        return fl_vec_push(out, whole);
    uint32_t n = (uint32_t)piece.len;
    if (n > b->cap) {
        struct fl_bpe_part *parts = fl_realloc_array(b->parts, n, sizeof *parts);
        if (!parts)
            return false;
        b->parts = parts;
        b->cap = n;
    }
    b->heap.n = 0;
    for (uint32_t i = 0; i < n; i++)
        b->parts[i] = (struct fl_bpe_part){
            .prev = i - 1, .next = i + 1, .id = v->byte_id[(unsigned char)piece.data[i]]};
    for (uint32_t i = 0; i < n; i++) {
        if (!consider(b, v, piece, i))
            return false;
    }
    if (!merge_all(b, v, piece))
        return false;
    for (uint32_t i = 0; i < n; i = b->parts[i].next) {
        if (!fl_vec_push(out, b->parts[i].id))
            return false;
    }
    return true;
}

void fl_bpe_free(fl_bpe *b)
{
    fl_free(b->parts);
    fl_vec_free(&b->heap);
    *b = (fl_bpe){0};
}
