/* A file is named by the hash of its last block, which covers the salt and every token, so looking
 * for a text is looking for the hashes of its beginnings.  What a name promises is checked when the
 * file is read. */
#define _GNU_SOURCE
#include "state/prefix_store.h"

#include "base/mem.h"
#include "base/vec.h"
#include "state/prefix_internal.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static const char SUFFIX[] = ".prefix";
enum { NAME = 16 + sizeof SUFFIX }; /* with its end */

typedef struct entry {
    uint64_t hash;
    int64_t n_tokens, bytes;
    int64_t used; /* time of the file in nanoseconds */
} entry;

struct fl_prefix_store {
    fl_prefix *px;
    fl_store_options o;    /* dir is the store's own copy */
    FL_VEC(entry) entries; /* in order of hash */
    int64_t bytes;
    char *path; /* [room] enough for the name of any file */
    size_t room;
};

static void note(const fl_prefix_store *s, const fl_error *why)
{
    if (s->o.note)
        s->o.note(s->o.note_ctx, why->message);
}

static const char *path_of(fl_prefix_store *s, uint64_t hash)
{
    snprintf(s->path, s->room, "%s/%016llx%s", s->o.dir, (unsigned long long)hash, SUFFIX);
    return s->path;
}

/* ---- entries ---- */

/* The place of a hash: of its entry, or of the first with a greater one. */
static size_t place(const fl_prefix_store *s, uint64_t hash)
{
    size_t lo = 0, hi = s->entries.n;
    while (lo < hi) {
        size_t mid = lo + (hi - lo) / 2;
        if (s->entries.data[mid].hash < hash)
            lo = mid + 1;
        else
            hi = mid;
    }
    return lo;
}

static entry *get(const fl_prefix_store *s, uint64_t hash)
{
    size_t at = place(s, hash);
    return at < s->entries.n && s->entries.data[at].hash == hash ? &s->entries.data[at] : NULL;
}

static fl_status put(fl_prefix_store *s, entry e, fl_error *err)
{
    if (!fl_vec_reserve(&s->entries, 1))
        return fl_fail(err, FL_NOMEM, "%s: no memory for its list of files", s->o.dir);
    size_t at = place(s, e.hash);
    memmove(&s->entries.data[at + 1], &s->entries.data[at], (s->entries.n++ - at) * sizeof e);
    s->entries.data[at] = e;
    s->bytes += e.bytes;
    return FL_OK;
}

static void forget(fl_prefix_store *s, uint64_t hash)
{
    size_t at = place(s, hash);
    s->bytes -= s->entries.data[at].bytes;
    memmove(&s->entries.data[at], &s->entries.data[at + 1],
            (--s->entries.n - at) * sizeof *s->entries.data);
}

static void drop_file(fl_prefix_store *s, uint64_t hash)
{
    unlink(path_of(s, hash));
    forget(s, hash);
}

static void keep_limit(fl_prefix_store *s)
{
    while (s->o.max_bytes && s->bytes > s->o.max_bytes && s->entries.n > 0) {
        size_t oldest = 0;
        for (size_t i = 1; i < s->entries.n; i++) {
            if (s->entries.data[i].used < s->entries.data[oldest].used)
                oldest = i;
        }
        drop_file(s, s->entries.data[oldest].hash);
    }
}

/* ---- opening ---- */

static int64_t nanoseconds(struct timespec t)
{
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

/* One file of the folder: an entry, a remainder to be removed, or none of ours. */
static fl_status look_at(fl_prefix_store *s, DIR *d, const char *name, fl_error *err)
{
    static const char cut[] = ".part";
    size_t len = strlen(name);
    char *end;
    if (len < NAME - 1 || strspn(name, "0123456789abcdef") != 16 ||
        strncmp(name + 16, SUFFIX, sizeof SUFFIX - 1) != 0)
        return FL_OK;
    uint64_t hash = strtoull(name, &end, 16);
    const char *path = path_of(s, hash);
    if (len >= NAME - 1 + sizeof cut && strcmp(name + len - (sizeof cut - 1), cut) == 0) {
        (void)unlinkat(dirfd(d), name, 0); /* a save that was cut off */
        return FL_OK;
    }
    if (name[NAME - 1])
        return FL_OK;
    struct stat info;
    fl_error why;
    entry e = {.hash = hash};
    if (fl_saved_peek(s->px->st, path, s->o.fingerprint, &e.n_tokens, &why) != FL_OK) {
        note(s, &why);
        return FL_OK;
    }
    if (stat(path, &info) != 0) /* gone since */
        return FL_OK;
    e.bytes = info.st_size;
    e.used = nanoseconds(info.st_mtim);
    return put(s, e, err);
}

static fl_status scan(fl_prefix_store *s, fl_error *err)
{
    if (mkdir(s->o.dir, 0700) != 0 && errno != EEXIST)
        return fl_fail(err, FL_IO, "%s: cannot make the folder: %s", s->o.dir, strerror(errno));
    DIR *d = opendir(s->o.dir);
    if (!d)
        return fl_fail(err, FL_IO, "%s: cannot list: %s", s->o.dir, strerror(errno));
    fl_status status = FL_OK;
    for (struct dirent *f; status == FL_OK && (f = readdir(d));)
        status = look_at(s, d, f->d_name, err);
    closedir(d);
    keep_limit(s);
    return status;
}

fl_status fl_prefix_store_open(fl_prefix *px, const fl_store_options *o, fl_prefix_store **out,
                               fl_error *err)
{
    *out = NULL;
    fl_prefix_store *s = fl_calloc(1, sizeof *s);
    if (!s)
        return fl_fail(err, FL_NOMEM, "%s: no memory for a store", o->dir);
    s->px = px;
    s->o = *o;
    s->o.dir = fl_strdup(o->dir);
    s->room = strlen(o->dir) + NAME + sizeof "/";
    s->path = fl_malloc(s->room);
    fl_status status = FL_NOMEM;
    if (s->o.dir && s->path)
        status = scan(s, err);
    else
        fl_fail(err, FL_NOMEM, "%s: no memory for a store", o->dir);
    if (status == FL_OK)
        *out = s;
    else
        fl_prefix_store_close(s);
    return status;
}

void fl_prefix_store_close(fl_prefix_store *s)
{
    if (!s)
        return;
    fl_free((void *)s->o.dir);
    fl_free(s->path);
    fl_vec_free(&s->entries);
    fl_free(s);
}

/* ---- finding and loading ---- */

static entry *longest(const fl_prefix_store *s, uint64_t salt, const int32_t *ids, int64_t n)
{
    entry *found = NULL;
    uint64_t hash = salt;
    if (s->entries.n == 0)
        return NULL;
    for (int64_t at = 0; at + FL_PAGE_TOKENS < n; at += FL_PAGE_TOKENS) {
        hash = fl_block_hash(hash, ids + at);
        entry *e = get(s, hash);
        if (e && e->n_tokens == at + FL_PAGE_TOKENS)
            found = e;
    }
    return found;
}

int64_t fl_prefix_store_find(const fl_prefix_store *s, uint64_t salt, const int32_t *ids, int64_t n)
{
    const entry *e = longest(s, salt, ids, n);
    return e ? e->n_tokens : 0;
}

/* From now on the file may go, if there are too many, without being written again. */
static void mark_stored(fl_prefix *px, fl_block b)
{
    if (px->blocks[b].snap != FL_NONE)
        px->stored[px->blocks[b].snap] = true;
}

/* Reads a file into a sequence of its own and enters it; the file must hold what is asked for. */
static fl_status enter_file(fl_prefix_store *s, const char *path, uint64_t salt, const int32_t *ids,
                            int64_t n, fl_error *err)
{
    fl_state *st = s->px->st;
    int32_t *read;
    int64_t n_read;
    uint64_t salt_read;
    fl_seq seq;
    FL_TRY(fl_saved_read(st, path, s->o.fingerprint, &salt_read, &seq, &read, &n_read, err));
    fl_status status = FL_OK;
    if (n_read != n || salt_read != salt || memcmp(read, ids, (size_t)n * sizeof *ids) != 0)
        status = fl_fail(err, FL_FORMAT, "%s: holds another text than its name says", path);
    fl_block last = FL_NONE;
    if (status == FL_OK) {
        fl_prefix_add(s->px, salt, seq, ids, n, &last);
        fl_prefix_snapshot(s->px, seq, last);
        mark_stored(s->px, last);
    }
    fl_free(read);
    fl_state_release(st, seq);
    return status;
}

bool fl_prefix_store_load(fl_prefix_store *s, uint64_t salt, const int32_t *ids, int64_t n)
{
    entry *e = longest(s, salt, ids, n);
    if (!e || fl_state_free_seqs(s->px->st) == 0 || !fl_prefix_make_room(s->px, e->n_tokens))
        return false;
    fl_error why;
    const char *path = path_of(s, e->hash);
    fl_status status = enter_file(s, path, salt, ids, e->n_tokens, &why);
    if (status != FL_OK) {
        note(s, &why);
        forget(s, e->hash);
        return false;
    }
    struct timespec now[2] = {{.tv_nsec = UTIME_NOW}, {.tv_nsec = UTIME_NOW}};
    struct stat info;
    if (utimensat(AT_FDCWD, path, now, 0) == 0 && stat(path, &info) == 0)
        e->used = nanoseconds(info.st_mtim);
    return true;
}

/* ---- saving ---- */

/* The next record to write: at the end of a text, or where texts part. */
static fl_block unsaved(const fl_prefix_store *s)
{
    const fl_prefix *px = s->px;
    for (fl_snap k = 0; k < px->st->limits.n_snaps; k++) {
        if (px->st->snaps[k].owner != FL_OWNER_PREFIX || px->stored[k])
            continue;
        const fl_block_info *b = &px->blocks[px->snap_at[k]];
        if (b->n_children != 1 && !get(s, b->hash)) /* a file may be older than the record */
            return px->snap_at[k];
    }
    return FL_NONE;
}

/* Files of the way to b at which no other text branches off: b's own has all of them. */
static void drop_passed(fl_prefix_store *s, fl_block b)
{
    const fl_prefix *px = s->px;
    for (fl_block a = px->blocks[b].parent; a != FL_NONE; a = px->blocks[a].parent) {
        if (px->blocks[a].n_children == 1 && get(s, px->blocks[a].hash))
            drop_file(s, px->blocks[a].hash);
    }
}

static fl_status write_block(fl_prefix_store *s, fl_block b, int32_t *ids, fl_seq seq,
                             fl_error *err)
{
    fl_prefix *px = s->px;
    const fl_block_info *k = &px->blocks[b];
    int64_t n = (int64_t)k->depth * FL_PAGE_TOKENS;
    for (fl_block a = b; a != FL_NONE; a = px->blocks[a].parent)
        memcpy(ids + (int64_t)(px->blocks[a].depth - 1) * FL_PAGE_TOKENS, fl_block_ids(px, a),
               FL_PAGE_TOKENS * sizeof *ids);
    fl_prefix_resume(px, seq, &(fl_prefix_hit){.resume = n, .known = n, .block = b});
    const char *path = path_of(s, k->hash);
    struct stat info;
    FL_TRY(fl_saved_write(px->st, seq, s->o.fingerprint, k->salt, ids, path, err));
    if (stat(path, &info) != 0)
        return fl_fail(err, FL_IO, "%s: cannot find what was just written: %s", path,
                       strerror(errno));
    return put(s, (entry){k->hash, n, info.st_size, nanoseconds(info.st_mtim)}, err);
}

fl_status fl_prefix_store_save(fl_prefix_store *s, bool *saved, fl_error *err)
{
    *saved = false;
    fl_block b = unsaved(s);
    if (b == FL_NONE)
        return FL_OK;
    fl_state *st = s->px->st;
    fl_seq seq;
    FL_TRY(fl_state_admit(st, &seq, err));
    size_t n = (size_t)s->px->blocks[b].depth * FL_PAGE_TOKENS;
    int32_t *ids = fl_realloc_array(NULL, n, sizeof *ids);
    fl_status status = ids ? write_block(s, b, ids, seq, err)
                           : fl_fail(err, FL_NOMEM, "%s: no memory for %zu ids", s->o.dir, n);
    fl_free(ids);
    fl_state_release(st, seq);
    if (status != FL_OK)
        return status;
    *saved = true;
    mark_stored(s->px, b);
    drop_passed(s, b);
    keep_limit(s);
    return FL_OK;
}
