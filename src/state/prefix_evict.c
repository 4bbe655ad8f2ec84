/* What goes when there is no room.
 *
 * Pages all save the same work per byte, so the least recently used go first, from the ends of
 * texts backwards.  Snapshots are few and differ: one is worth the tokens between it and the
 * snapshot before it, which would have to run again without it.  Among equals in size this is worth
 * per byte; age enters as in GreedyDual: a snapshot is rated when it is used, on top of the worth
 * of what was dropped last, so what is not used falls behind. */
#include "state/prefix_internal.h"

/* ---- order of use ---- */

static void delist(fl_prefix *px, fl_block b)
{
    const fl_block_info *k = &px->blocks[b];
    *(k->older == FL_NONE ? &px->oldest : &px->blocks[k->older].newer) = k->newer;
    *(k->newer == FL_NONE ? &px->newest : &px->blocks[k->newer].older) = k->older;
}

void fl_block_enlist(fl_prefix *px, fl_block b)
{
    fl_block_info *k = &px->blocks[b];
    k->older = px->newest;
    k->newer = FL_NONE;
    *(px->newest == FL_NONE ? &px->oldest : &px->blocks[px->newest].newer) = b;
    px->newest = b;
}

void fl_block_use(fl_prefix *px, fl_block b)
{
    for (; b != FL_NONE; b = px->blocks[b].parent) {
        delist(px, b);
        fl_block_enlist(px, b);
    }
}

/* ---- snapshots ---- */

static void drop_snap(fl_prefix *px, fl_block b)
{
    fl_snap snap = px->blocks[b].snap;
    if (snap == FL_NONE)
        return;
    px->st->snaps[snap].owner = FL_NONE;
    px->blocks[b].snap = FL_NONE;
    px->n_snaps--;
    px->evicted_snaps++;
}

void fl_snap_use(fl_prefix *px, fl_block b)
{
    const fl_block_info *k = &px->blocks[b];
    if (k->snap == FL_NONE)
        return;
    int32_t before = 0;
    for (fl_block a = k->parent; a != FL_NONE && before == 0; a = px->blocks[a].parent)
        before = px->blocks[a].snap != FL_NONE ? px->blocks[a].depth : 0;
    px->worth[k->snap] = px->floor + k->depth - before;
}

fl_snap fl_snap_take(fl_prefix *px, fl_block b)
{
    fl_state *st = px->st;
    fl_snap empty = FL_NONE, least = FL_NONE;
    for (fl_snap s = 0; s < st->limits.n_snaps; s++) {
        if (st->snaps[s].owner == FL_NONE)
            empty = empty == FL_NONE ? s : empty;
        else if (st->snaps[s].owner == FL_OWNER_PREFIX &&
                 (least == FL_NONE || px->worth[s] < px->worth[least]))
            least = s;
    }
    if (empty == FL_NONE || px->n_snaps >= px->max_snaps) {
        if (least == FL_NONE)
            return FL_NONE;
        px->floor = px->worth[least];
        drop_snap(px, px->snap_at[least]);
        empty = least;
    }
    st->snaps[empty].owner = FL_OWNER_PREFIX;
    px->snap_at[empty] = b;
    px->stored[empty] = false;
    px->n_snaps++;
    return empty;
}

/* ---- pages ---- */

static void drop_block(fl_prefix *px, fl_block b)
{
    fl_block_info *k = &px->blocks[b];
    drop_snap(px, b);
    delist(px, b);
    fl_block *at = &px->buckets[k->hash & (px->n_buckets - 1)];
    while (*at != b)
        at = &px->blocks[*at].chain;
    *at = k->chain;
    if (k->parent != FL_NONE)
        px->blocks[k->parent].n_children--;
    k->depth = 0;
    px->n_blocks--;
    px->evicted_blocks++;
    fl_page_drop(px->st, b);
}

bool fl_prefix_make_room(fl_prefix *px, int64_t n)
{
    fl_state *st = px->st;
    int64_t need = fl_pages_for(n);
    if (need <= st->n_free)
        return true;
    fl_prefix_stats have;
    fl_prefix_get_stats(px, &have);
    if (need > st->n_free + have.idle / FL_PAGE_TOKENS)
        return false;
    for (int32_t turns = 0; need > st->n_free && turns <= px->n_blocks; turns++) {
        fl_block b = px->oldest;
        if (st->refs[b] == 1 && px->blocks[b].n_children == 0) {
            drop_block(px, b);
            turns = 0;
        } else { /* in use */
            delist(px, b);
            fl_block_enlist(px, b);
        }
    }
    return need <= st->n_free;
}
