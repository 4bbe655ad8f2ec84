/* The state room: one manager owns everything that a sequence leaves behind.
 *
 * Two kinds live side by side (graph.h, fl_state_spec): pages of token rows (latent KV, index
 * keys), found through one page table per sequence, and one recurrent record per sequence
 * (delta-rule state, convolution tails), the slot.  Both advance together or not at all.  Pages are
 * shared between forks and copied on write; slots are copied at the fork.  Sizes are fixed at
 * creation; a request that does not fit gets FL_BUSY and nothing changes.  After a step that failed
 * half-way a slot may be torn: such a sequence can only be rolled back or released.  A sequence
 * that is not alive gives FL_ARGUMENT.  Not thread-safe: the engine's thread owns it. */
#ifndef FL_STATE_H
#define FL_STATE_H

#include "graph/device.h"
#include "graph/graph.h"

typedef struct fl_state fl_state;
typedef int32_t fl_seq; /* a live sequence; FL_NONE: none */
typedef int32_t fl_snap;

typedef struct fl_state_limits {
    int32_t n_seqs;      /* sequences alive at once */
    int32_t n_snaps;     /* recurrent records kept for roll-back and branching */
    int64_t n_tokens;    /* token rows over all sequences (rounded up to pages) */
    int64_t max_context; /* tokens of one sequence */
    fl_device *device;   /* the pools lie in its memory; NULL: in the host's.  Not owned. */
    const bool *on_host; /* [n] those that lie in the host's all the same; NULL: none.  Read at
                            creation only. */
} fl_state_limits;

/* Bytes that a manager with these limits will hold; needs no memory itself.  The pools are touched
 * only as they are used.  -1 when the limits are out of range. */
int64_t fl_state_bytes(const fl_state_spec *specs, int n, const fl_state_limits *limits);

/* Of these, what creation takes of a device's reserve; 0 without one. */
int64_t fl_state_device_bytes(const fl_state_spec *specs, int n, const fl_state_limits *limits);

FL_MUST_CHECK fl_status fl_state_create(const fl_state_spec *specs, int n,
                                        const fl_state_limits *limits, fl_state **out,
                                        fl_error *err);
void fl_state_destroy(fl_state *st); /* NULL is allowed */
const fl_state_pool *fl_state_pools(const fl_state *st);

/* A new empty sequence: position 0, a zeroed slot. */
FL_MUST_CHECK fl_status fl_state_admit(fl_state *st, fl_seq *out, fl_error *err);
void fl_state_release(fl_state *st, fl_seq seq); /* with its snapshots; FL_NONE is allowed */
/* Reserves pages for positions [pos, pos + n) and unshares those of them that a fork still uses.
 * Needed before rows are written, and again after a fork.  FL_ARGUMENT past max_context. */
FL_MUST_CHECK fl_status fl_state_extend(fl_state *st, fl_seq seq, int64_t n, fl_error *err);
/* Gives back the pages reserved beyond the position. */
void fl_state_trim(fl_state *st, fl_seq seq);
/* After the step that wrote them: the position moves on by n reserved rows. */
void fl_state_advance(fl_state *st, fl_seq seq, int64_t n);
int64_t fl_state_pos(const fl_state *st, fl_seq seq);      /* -1: not alive */
int64_t fl_state_reserved(const fl_state *st, fl_seq seq); /* end of its pages; -1: not alive */
/* Fills pos0, pages and slot of a step's sequence. */
void fl_state_rows(const fl_state *st, fl_seq seq, fl_seq_rows *out);

/* A second sequence that continues from the same point.  Snapshots stay with the first. */
FL_MUST_CHECK fl_status fl_state_fork(fl_state *st, fl_seq seq, fl_seq *out, fl_error *err);
/* Keeps the recurrent record of this point.  Belongs to the sequence and dies with it. */
FL_MUST_CHECK fl_status fl_state_snapshot(fl_state *st, fl_seq seq, fl_snap *out, fl_error *err);
void fl_state_snapshot_free(fl_state *st, fl_snap snap);
/* Goes back at least n tokens: to the deepest snapshot at or before pos - n, or to position 0 (a
 * model without recurrent state: to pos - n itself).  *pos is where the sequence stands now; the
 * caller replays from there.  Snapshots of later positions are dropped; reserved pages stay. */
FL_MUST_CHECK fl_status fl_state_rollback(fl_state *st, fl_seq seq, int64_t n, int64_t *pos,
                                          fl_error *err);

/* A sequence on disk: format version, model fingerprint, the specs, token ids, pages and slot, and
 * a checksum (docs/internals/state.md).  ids[pos] are the tokens that were run.  Written to
 * a file beside path, synced and renamed.  load refuses a damaged or foreign file with a reason;
 * *ids is allocated (fl_free). */
FL_MUST_CHECK fl_status fl_state_save(const fl_state *st, fl_seq seq, uint64_t fingerprint,
                                      const int32_t *ids, const char *path, fl_error *err);
FL_MUST_CHECK fl_status fl_state_load(fl_state *st, const char *path, uint64_t fingerprint,
                                      fl_seq *out, int32_t **ids, int64_t *n_ids, fl_error *err);

/* Free capacity, for admission and reports. */
int64_t fl_state_free_tokens(const fl_state *st);
int32_t fl_state_free_seqs(const fl_state *st);

#endif
