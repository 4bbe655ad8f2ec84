/* Inside the state room: what its source files share. */
#ifndef FL_STATE_INTERNAL_H
#define FL_STATE_INTERNAL_H

#include "state/state.h"

/* One pool as laid out: its spec (a hash stands for the name, which is borrowed) and its sizes. */
typedef struct fl_pool_info {
    uint64_t name_hash;
    int64_t elements, item_bytes, items;
    fl_dtype dtype;
    bool paged;
    fl_device *device; /* NULL: in host memory */
    void *raw;         /* there: the allocation that the pool's aligned base lies in */
} fl_pool_info;

typedef struct fl_seq_state {
    bool live;
    int64_t pos;
    int32_t n_pages; /* reserved, from position 0 on; at least what pos needs */
    int32_t *pages;  /* [max_pages] */
} fl_seq_state;

typedef struct fl_snap_state {
    fl_seq owner; /* FL_NONE: free; below that: not a sequence's (prefix_internal.h) */
    int64_t pos;
} fl_snap_state;

/* Recurrent records: sequence s has record s, snapshot k has record n_seqs + k. */
struct fl_state {
    fl_state_limits limits;
    int n_pools;
    fl_pool_info *info;   /* [n_pools] */
    fl_state_pool *pools; /* [n_pools] */
    bool recurrent;       /* some pool is */

    int32_t n_pages, n_free;
    int32_t *free_pages; /* [n_pages], a stack of n_free */
    int32_t *refs;       /* [n_pages] sequences that hold the page, and the prefix index */

    int32_t max_pages;    /* of one sequence */
    int32_t *tables;      /* [n_seqs][max_pages] */
    fl_seq_state *seqs;   /* [n_seqs] */
    fl_snap_state *snaps; /* [n_snaps] */
};

static inline int64_t fl_pages_for(int64_t tokens)
{
    return tokens / FL_PAGE_TOKENS + (tokens % FL_PAGE_TOKENS != 0);
}

/* The live sequence, or NULL. */
fl_seq_state *fl_state_find(const fl_state *st, fl_seq seq);
FL_MUST_CHECK fl_status fl_state_dead(fl_seq seq, fl_error *err); /* FL_ARGUMENT, in words */

/* state.c */
void fl_record_copy(fl_state *st, int64_t to, int64_t from);
void fl_page_drop(fl_state *st, int32_t page); /* one holder less */

/* state_file.c: save and load of state.h with a salt beside the fingerprint; and what the head of a
 * file says, without reading the rest. */
FL_MUST_CHECK fl_status fl_saved_write(const fl_state *st, fl_seq seq, uint64_t fingerprint,
                                       uint64_t salt, const int32_t *ids, const char *path,
                                       fl_error *err);
FL_MUST_CHECK fl_status fl_saved_read(fl_state *st, const char *path, uint64_t fingerprint,
                                      uint64_t *salt, fl_seq *out, int32_t **ids, int64_t *n_ids,
                                      fl_error *err);
FL_MUST_CHECK fl_status fl_saved_peek(const fl_state *st, const char *path, uint64_t fingerprint,
                                      int64_t *n_tokens, fl_error *err);

/* pool.c: the memory of the pools, wherever it is; d: fl_pool_info.device of the pool. */
FL_MUST_CHECK fl_status fl_pools_alloc(fl_state *st, fl_error *err);
void fl_pool_copy(fl_device *d, void *to, const void *from, int64_t bytes);
void fl_pool_zero(fl_device *d, void *at, int64_t bytes);
FL_MUST_CHECK fl_status fl_pool_read(fl_device *d, void *to, const void *from, int64_t bytes,
                                     fl_error *err);
FL_MUST_CHECK fl_status fl_pool_write(fl_device *d, void *to, const void *from, int64_t bytes,
                                      fl_error *err);

#endif
