/* The index: finding, resuming, adding.
 *
 * Blocks form trees, one root per beginning and salt.  A block is looked up by the hash of all that
 * leads to it, and then compared in full: parent, salt and tokens, so hashes that collide are no
 * matter.  The block of a page has the number of the page; nothing else has to be allocated or
 * found. */
#include "state/prefix_internal.h"

#include "base/mem.h"

#include <string.h>
#include <xxhash.h>

static uint32_t buckets_for(int64_t pages)
{
    uint32_t n = 16;
    while (n < pages)
        n *= 2;
    return n;
}

int64_t fl_prefix_bytes(int64_t n_tokens, int32_t n_snaps)
{
    int64_t pages = fl_pages_for(n_tokens);
    return (int64_t)sizeof(fl_prefix) +
           pages * (int64_t)(sizeof(fl_block_info) + FL_PAGE_TOKENS * sizeof(int32_t)) +
           buckets_for(pages) * (int64_t)sizeof(fl_block) +
           n_snaps * (int64_t)(sizeof(int64_t) + sizeof(fl_block) + sizeof(bool));
}

fl_status fl_prefix_create(fl_state *st, int32_t max_snaps, fl_prefix **out, fl_error *err)
{
    *out = NULL;
    size_t pages = (size_t)st->n_pages, snaps = (size_t)st->limits.n_snaps;
    fl_prefix *px = fl_calloc(1, sizeof *px);
    if (!px)
        return fl_fail(err, FL_NOMEM, "no memory for a prefix index");
    *px = (fl_prefix){.st = st,
                      .n_buckets = buckets_for(st->n_pages),
                      .oldest = FL_NONE,
                      .newest = FL_NONE,
                      .max_snaps = max_snaps};
    px->blocks = fl_calloc(pages, sizeof *px->blocks);
    px->ids = fl_calloc(pages, FL_PAGE_TOKENS * sizeof *px->ids);
    px->buckets = fl_calloc(px->n_buckets, sizeof *px->buckets);
    px->worth = fl_calloc(snaps, sizeof *px->worth);
    px->snap_at = fl_calloc(snaps, sizeof *px->snap_at);
    px->stored = fl_calloc(snaps, sizeof *px->stored);
    if (!px->blocks || !px->ids || !px->buckets || !px->worth || !px->snap_at || !px->stored) {
        fl_prefix_destroy(px);
        return fl_fail(err, FL_NOMEM, "no memory for a prefix index of %d pages", st->n_pages);
    }
    memset(px->buckets, 0xff, px->n_buckets * sizeof *px->buckets); /* FL_NONE */
    *out = px;
    return FL_OK;
}

void fl_prefix_destroy(fl_prefix *px)
{
    if (!px)
        return;
    fl_free(px->blocks);
    fl_free(px->ids);
    fl_free(px->buckets);
    fl_free(px->worth);
    fl_free(px->snap_at);
    fl_free(px->stored);
    fl_free(px);
}

uint64_t fl_block_hash(uint64_t before, const int32_t *ids)
{
    return XXH3_64bits_withSeed(ids, FL_PAGE_TOKENS * sizeof *ids, before);
}

fl_block fl_block_find(const fl_prefix *px, uint64_t salt, fl_block parent, const int32_t *ids)
{
    uint64_t hash = fl_block_hash(parent == FL_NONE ? salt : px->blocks[parent].hash, ids);
    fl_block b = px->buckets[hash & (px->n_buckets - 1)];
    for (; b != FL_NONE; b = px->blocks[b].chain) {
        const fl_block_info *k = &px->blocks[b];
        if (k->hash == hash && k->parent == parent && k->salt == salt &&
            memcmp(fl_block_ids(px, b), ids, FL_PAGE_TOKENS * sizeof *ids) == 0)
            break;
    }
    return b;
}

fl_prefix_hit fl_prefix_find(const fl_prefix *px, uint64_t salt, const int32_t *ids, int64_t n)
{
    fl_prefix_hit hit = {.block = FL_NONE};
    fl_block b = FL_NONE;
    while (hit.known + FL_PAGE_TOKENS < n) {
        b = fl_block_find(px, salt, b, ids + hit.known);
        if (b == FL_NONE)
            break;
        hit.known += FL_PAGE_TOKENS;
        if (!px->st->recurrent || px->blocks[b].snap != FL_NONE) {
            hit.resume = hit.known;
            hit.block = b;
        }
    }
    return hit;
}

void fl_prefix_resume(fl_prefix *px, fl_seq seq, const fl_prefix_hit *hit)
{
    fl_state *st = px->st;
    fl_seq_state *q = fl_state_find(st, seq);
    if (!q || hit->block == FL_NONE)
        return;
    q->pos = hit->resume;
    q->n_pages = px->blocks[hit->block].depth;
    for (fl_block b = hit->block; b != FL_NONE; b = px->blocks[b].parent) {
        q->pages[px->blocks[b].depth - 1] = b;
        st->refs[b]++;
    }
    fl_block_use(px, hit->block);
    fl_snap_use(px, hit->block);
    if (st->recurrent)
        fl_record_copy(st, seq, (int64_t)st->limits.n_seqs + px->blocks[hit->block].snap);
}

/* The page becomes a block; it has the contents already. */
static void enter(fl_prefix *px, uint64_t salt, fl_block parent, int32_t page, const int32_t *ids)
{
    fl_block_info *k = &px->blocks[page];
    uint64_t before = parent == FL_NONE ? salt : px->blocks[parent].hash;
    *k = (fl_block_info){.hash = fl_block_hash(before, ids),
                         .salt = salt,
                         .depth = parent == FL_NONE ? 1 : px->blocks[parent].depth + 1,
                         .parent = parent,
                         .snap = FL_NONE};
    memcpy(px->ids + (int64_t)page * FL_PAGE_TOKENS, ids, FL_PAGE_TOKENS * sizeof *ids);
    fl_block *bucket = &px->buckets[k->hash & (px->n_buckets - 1)];
    k->chain = *bucket;
    *bucket = page;
    if (parent != FL_NONE)
        px->blocks[parent].n_children++;
    px->st->refs[page]++;
    px->n_blocks++;
    fl_block_enlist(px, page);
}

void fl_prefix_add(fl_prefix *px, uint64_t salt, fl_seq seq, const int32_t *ids, int64_t n,
                   fl_block *last)
{
    fl_seq_state *q = fl_state_find(px->st, seq);
    if (!q || n > q->pos)
        return;
    fl_block b = *last;
    for (int64_t i = b == FL_NONE ? 0 : px->blocks[b].depth; i < n / FL_PAGE_TOKENS; i++) {
        const int32_t *block = ids + i * FL_PAGE_TOKENS;
        int32_t own = q->pages[i];
        fl_block known = fl_block_find(px, salt, b, block);
        if (known == FL_NONE) {
            enter(px, salt, b, own, block);
            known = own;
        } else if (known != own) { /* the same rows: one copy is enough */
            px->st->refs[known]++;
            fl_page_drop(px->st, own);
            q->pages[i] = known;
        }
        b = known;
    }
    *last = b;
    fl_block_use(px, b);
}

void fl_prefix_snapshot(fl_prefix *px, fl_seq seq, fl_block at)
{
    fl_state *st = px->st;
    if (at == FL_NONE)
        return;
    fl_block_info *k = &px->blocks[at];
    if (k->snap == FL_NONE) {
        fl_snap snap = fl_snap_take(px, at);
        if (snap == FL_NONE)
            return;
        k->snap = snap;
        fl_record_copy(st, (int64_t)st->limits.n_seqs + snap, seq);
    }
    fl_snap_use(px, at);
}

void fl_prefix_get_stats(const fl_prefix *px, fl_prefix_stats *out)
{
    int64_t idle = 0;
    for (int32_t p = 0; p < px->st->n_pages; p++)
        idle += px->blocks[p].depth > 0 && px->st->refs[p] == 1;
    *out = (fl_prefix_stats){.tokens = (int64_t)px->n_blocks * FL_PAGE_TOKENS,
                             .idle = idle * FL_PAGE_TOKENS,
                             .snapshots = px->n_snaps,
                             .evicted_tokens = px->evicted_blocks * FL_PAGE_TOKENS,
                             .evicted_snapshots = px->evicted_snaps};
}
