/* Prefixes on disk: a folder with one file (state.h, fl_state_save) for each text whose record the
 * index has kept, so that a conversation is found again after a restart.  A file is written to a
 * temporary name, synced and renamed: when save returns, the text survives whatever happens to the
 * program.  Files that are damaged, or another model's, are refused with a reason and left alone.
 */
#ifndef FL_STATE_PREFIX_STORE_H
#define FL_STATE_PREFIX_STORE_H

#include "state/prefix.h"

typedef struct fl_prefix_store fl_prefix_store;

/* Told what an operator should know: a file that was refused, a disk that is full. */
typedef void (*fl_note_fn)(void *ctx, const char *message);

typedef struct fl_store_options {
    const char *dir;      /* made if it is not there (copied) */
    uint64_t fingerprint; /* of all that the rows depend on besides the tokens */
    int64_t max_bytes;    /* the longest unused files go when there are more; 0: no limit */
    fl_note_fn note;      /* may be NULL */
    void *note_ctx;
} fl_store_options;

/* The index must outlive the store.  One program at a time uses a folder. */
FL_MUST_CHECK fl_status fl_prefix_store_open(fl_prefix *px, const fl_store_options *o,
                                             fl_prefix_store **out, fl_error *err);
void fl_prefix_store_close(fl_prefix_store *s); /* NULL is allowed */

/* Tokens of the longest file that begins ids[n] and leaves at least one to run; 0: none. */
int64_t fl_prefix_store_find(const fl_prefix_store *s, uint64_t salt, const int32_t *ids,
                             int64_t n);
/* Brings that file into the index.  Needs a free sequence for the time of the call, and makes room.
 * False when it did not work out. */
bool fl_prefix_store_load(fl_prefix_store *s, uint64_t salt, const int32_t *ids, int64_t n);

/* Writes one kept record, with its text, that is not on disk yet and that no longer text goes
 * through alone.  *saved is false when there is none.  Needs a free sequence. */
FL_MUST_CHECK fl_status fl_prefix_store_save(fl_prefix_store *s, bool *saved, fl_error *err);

#endif
