/* Inside the state room: the prefix index. */
#ifndef FL_STATE_PREFIX_INTERNAL_H
#define FL_STATE_PREFIX_INTERNAL_H

#include "state/prefix.h"
#include "state/state_internal.h"

/* A block has the number of its page. */
typedef struct fl_block_info {
    uint64_t hash;      /* of the salt and all tokens up to its end */
    uint64_t salt;      /* of the block and all before it */
    int32_t depth;      /* blocks up to and with this one; 0: the page is not in the index */
    int32_t n_children; /* blocks in the index that follow this one */
    fl_block parent;
    fl_block chain;        /* the next in its bucket */
    fl_block older, newer; /* in order of use */
    fl_snap snap;          /* FL_NONE without one */
} fl_block_info;

/* In order of use a block comes before (is older than) its parent, except where sequences that
 * hold both have made them equal; so the oldest is a leaf, or held. */
struct fl_prefix {
    fl_state *st;
    fl_block_info *blocks; /* [n_pages] */
    int32_t *ids;          /* [n_pages][FL_PAGE_TOKENS] */
    fl_block *buckets;     /* [n_buckets], a power of two */
    uint32_t n_buckets;
    int32_t n_blocks;
    fl_block oldest, newest;

    int32_t max_snaps, n_snaps;
    int64_t *worth;    /* [st->limits.n_snaps] the work a snapshot saves, on top of `floor` then */
    bool *stored;      /* [st->limits.n_snaps] has been on disk since it was taken */
    fl_block *snap_at; /* [st->limits.n_snaps] */
    int64_t floor;     /* worth of the last one that was dropped: older worth fades against it */
    int64_t evicted_blocks, evicted_snaps;
};

/* A snapshot that belongs to the index, not to a sequence. */
enum { FL_OWNER_PREFIX = -2 };

static inline const int32_t *fl_block_ids(const fl_prefix *px, fl_block b)
{
    return px->ids + (int64_t)b * FL_PAGE_TOKENS;
}

uint64_t fl_block_hash(uint64_t before, const int32_t *ids);
fl_block fl_block_find(const fl_prefix *px, uint64_t salt, fl_block parent, const int32_t *ids);

/* prefix_evict.c */
void fl_block_use(fl_prefix *px, fl_block b); /* it and all before it are the newest now */
void fl_block_enlist(fl_prefix *px, fl_block b);
void fl_snap_use(fl_prefix *px, fl_block b); /* its snapshot, if any, has been useful */
/* A free snapshot for block b, which has none; made free if need be.  FL_NONE when there are none
 * at all. */
fl_snap fl_snap_take(fl_prefix *px, fl_block b);

#endif
