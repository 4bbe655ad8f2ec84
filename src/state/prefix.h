/* The prefix index: beginnings of texts that have been run, found again by their content.
 *
 * Text is cut into blocks of FL_PAGE_TOKENS.  A block that a prompt has run as a whole lies in one
 * page, and its rows depend only on the tokens up to its end; the index keeps such pages after
 * their sequences are gone and gives them to new sequences that begin alike.  A recurrent record
 * cannot be cut out of later ones, so it is kept at few points, the snapshots; a sequence resumes
 * at the deepest one on its way.  What is missing costs time and never changes a result.
 *
 * Salts keep tenants apart: a block is found only under the salt it was added with.  Everything in
 * the index may be dropped at any moment unless a live sequence holds it. */
#ifndef FL_STATE_PREFIX_H
#define FL_STATE_PREFIX_H

#include "state/state.h"

typedef struct fl_prefix fl_prefix;
typedef int32_t fl_block; /* a block of the index; FL_NONE: before the first */

typedef struct fl_prefix_hit {
    int64_t resume; /* tokens that need not run: pages and, if there is such state, a record */
    int64_t known;  /* tokens whose pages are in the index; >= resume */
    fl_block block; /* the last one of resume */
} fl_prefix_hit;

/* Takes at most max_snaps of the manager's snapshots.  The manager must outlive the index. */
FL_MUST_CHECK fl_status fl_prefix_create(fl_state *st, int32_t max_snaps, fl_prefix **out,
                                         fl_error *err);
void fl_prefix_destroy(fl_prefix *px); /* NULL is allowed; the pages stay with the manager */
int64_t fl_prefix_bytes(int64_t n_tokens, int32_t n_snaps);

/* The longest known beginning of ids[n] that leaves at least one token to run. */
fl_prefix_hit fl_prefix_find(const fl_prefix *px, uint64_t salt, const int32_t *ids, int64_t n);
/* An empty sequence moves to the point of a hit, which was found since the index last changed. */
void fl_prefix_resume(fl_prefix *px, fl_seq seq, const fl_prefix_hit *hit);

/* The sequence has run ids[n], n a multiple of FL_PAGE_TOKENS, each block of them whole and after
 * *last, the block that an earlier call or hit ended with.  Where the index has a block already,
 * the sequence goes on with that page instead of its own.  *last becomes the block that ends at n.
 */
void fl_prefix_add(fl_prefix *px, uint64_t salt, fl_seq seq, const int32_t *ids, int64_t n,
                   fl_block *last);
/* The sequence stands at the end of block `at`: keeps its record there.  When all snapshots are in
 * use the one goes that saves the least work. */
void fl_prefix_snapshot(fl_prefix *px, fl_seq seq, fl_block at);

/* Drops blocks, least recently used first, until n tokens are free; false when that cannot
 * be. */
bool fl_prefix_make_room(fl_prefix *px, int64_t n);

typedef struct fl_prefix_stats {
    int64_t tokens; /* in the index */
    int64_t idle;   /* of these, held by no live sequence: as good as free */
    int32_t snapshots;
    int64_t evicted_tokens, evicted_snapshots; /* so far */
} fl_prefix_stats;
void fl_prefix_get_stats(const fl_prefix *px, fl_prefix_stats *out);

#endif
