/* A sequence on disk.
 *
 * The file is a head, one entry per state spec, the token ids, then for every spec in order its
 * rows (paged) or its record, and last a checksum of all that.  Numbers are in the byte order of
 * the machine; on another one the version is not recognised.  The size of the file follows from the
 * head and must be met exactly.  The checksum is XXH3 over each block as it is written, seeded with
 * the checksum so far. */
#define _GNU_SOURCE
#include "state/state_internal.h"

#include "base/file.h"
#include "base/mem.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <xxhash.h>

static const char MAGIC[8] = {'F', 'L', 'S', 'T', 'A', 'T', 'E', '\n'};
enum { VERSION = 2 };

typedef struct file_head {
    char magic[8];
    uint32_t version;
    uint32_t n_specs;
    uint64_t fingerprint;
    int64_t n_tokens;
    uint64_t salt; /* of the prefix index; 0 */
} file_head;

typedef struct file_spec {
    uint64_t name_hash;
    int64_t elements;
    char dtype[12];
    uint32_t paged;
} file_spec;

_Static_assert(sizeof(file_head) == 40 && sizeof(file_spec) == 32, "no padding on disk");

/* An open file, its direction, and the checksum of what went through it. */
typedef struct stream {
    int fd;
    bool writing;
    uint64_t sum;
    const char *path;
} stream;

/* Writes or reads one block. */
static fl_status move(stream *f, void *data, size_t n, fl_error *err)
{
    for (size_t done = 0; done < n;) {
        char *at = (char *)data + done;
        ssize_t k = f->writing ? write(f->fd, at, n - done) : read(f->fd, at, n - done);
        if (k < 0 && errno == EINTR)
            continue;
        if (k < 0)
            return fl_fail(err, FL_IO, "%s: cannot %s: %s", f->path, f->writing ? "write" : "read",
                           strerror(errno));
        if (k == 0)
            return fl_fail(err, FL_FORMAT, "%s: the file ends too early", f->path);
        done += (size_t)k;
    }
    f->sum = XXH3_64bits_withSeed(data, n, f->sum);
    return FL_OK;
}

static file_spec describe(const fl_pool_info *info)
{
    file_spec s = {.name_hash = info->name_hash, .elements = info->elements, .paged = info->paged};
    snprintf(s.dtype, sizeof s.dtype, "%s", fl_dtype_name(info->dtype));
    return s;
}

/* Items of a pool.  Those on a device pass through memory of the host. */
static fl_status move_items(fl_device *d, unsigned char *items, int64_t bytes, stream *f,
                            fl_error *err)
{
    if (!d)
        return move(f, items, (size_t)bytes, err);
    void *host = fl_malloc((size_t)bytes);
    if (!host)
        return fl_fail(err, FL_NOMEM, "%s: no memory for %lld bytes", f->path, (long long)bytes);
    fl_status s = f->writing ? fl_pool_read(d, host, items, bytes, err) : FL_OK;
    if (s == FL_OK)
        s = move(f, host, (size_t)bytes, err);
    if (s == FL_OK && !f->writing)
        s = fl_pool_write(d, items, host, bytes, err);
    fl_free(host);
    return s;
}

/* Every row and record of a sequence, in the order of the specs. */
static fl_status move_contents(const fl_state *st, fl_seq seq, int64_t n_tokens, stream *f,
                               fl_error *err)
{
    const fl_seq_state *q = &st->seqs[seq];
    for (int i = 0; i < st->n_pools; i++) {
        const fl_state_pool *p = &st->pools[i];
        fl_device *d = st->info[i].device;
        if (!st->info[i].paged) {
            FL_TRY(move_items(d, p->base + seq * p->item_bytes, p->item_bytes, f, err));
            continue;
        }
        for (int64_t pos = 0; pos < n_tokens; pos += FL_PAGE_TOKENS) {
            int64_t rows = n_tokens - pos < FL_PAGE_TOKENS ? n_tokens - pos : FL_PAGE_TOKENS;
            int64_t item = (int64_t)q->pages[pos / FL_PAGE_TOKENS] * FL_PAGE_TOKENS;
            FL_TRY(move_items(d, p->base + item * p->item_bytes, rows * p->item_bytes, f, err));
        }
    }
    return FL_OK;
}

static fl_status write_all(const fl_state *st, fl_seq seq, uint64_t fingerprint, uint64_t salt,
                           const int32_t *ids, stream *f, fl_error *err)
{
    int64_t n = st->seqs[seq].pos;
    file_head head = {.version = VERSION,
                      .n_specs = (uint32_t)st->n_pools,
                      .fingerprint = fingerprint,
                      .n_tokens = n,
                      .salt = salt};
    memcpy(head.magic, MAGIC, sizeof MAGIC);
    FL_TRY(move(f, &head, sizeof head, err));
    for (int i = 0; i < st->n_pools; i++) {
        file_spec spec = describe(&st->info[i]);
        FL_TRY(move(f, &spec, sizeof spec, err));
    }
    FL_TRY(move(f, (void *)ids, (size_t)n * sizeof *ids, err)); /* written only */
    FL_TRY(move_contents(st, seq, n, f, err));
    uint64_t sum = f->sum;
    return move(f, &sum, sizeof sum, err);
}

fl_status fl_saved_write(const fl_state *st, fl_seq seq, uint64_t fingerprint, uint64_t salt,
                         const int32_t *ids, const char *path, fl_error *err)
{
    const fl_seq_state *q = fl_state_find(st, seq);
    if (!q)
        return fl_state_dead(seq, err);
    if (q->pos == 0)
        return fl_fail(err, FL_ARGUMENT, "%s: the sequence is empty, nothing to save", path);
    /* A conversation is private: readable by its owner only. */
    fl_new_file f;
    FL_TRY(fl_new_file_begin(path, 0600, &f, err));
    stream out = {.fd = f.fd, .writing = true, .path = path};
    return fl_new_file_end(&f, write_all(st, seq, fingerprint, salt, ids, &out, err), err);
}

static fl_status other_model(const stream *f, uint64_t theirs, uint64_t own, fl_error *err)
{
    return fl_fail(err, FL_MISMATCH,
                   "%s: saved with another model (fingerprint %016llx, this one has %016llx)",
                   f->path, (unsigned long long)theirs, (unsigned long long)own);
}

/* Reads the specs and holds them against this manager's.  Those that differ in nothing but the
 * types of caches are another form of the same model, whose fingerprint differs too. */
static fl_status read_specs(const fl_state *st, stream *f, uint64_t theirs, uint64_t own_print,
                            fl_error *err)
{
    int differs = -1, typed = -1; /* the last spec that differs, and in its type only */
    char type[sizeof((file_spec *)0)->dtype + 1] = "";
    for (int i = 0; i < st->n_pools; i++) {
        file_spec spec, own = describe(&st->info[i]);
        FL_TRY(move(f, &spec, sizeof spec, err));
        if (memcmp(&spec, &own, sizeof spec) == 0)
            continue;
        memcpy(type, spec.dtype, sizeof spec.dtype);
        memcpy(spec.dtype, own.dtype, sizeof spec.dtype);
        if (memcmp(&spec, &own, sizeof spec) == 0)
            typed = i;
        else
            differs = i;
    }
    if (differs < 0 && typed >= 0)
        return fl_fail(err, FL_MISMATCH,
                       "%s: the cache was kept as %s, here it is %s: open the model with the form "
                       "of cache (kv) that it was saved with",
                       f->path, type, fl_dtype_name(st->info[typed].dtype));
    if (theirs != own_print)
        return other_model(f, theirs, own_print, err);
    if (differs >= 0)
        return fl_fail(err, FL_MISMATCH, "%s: state %d differs from this model's", f->path,
                       differs);
    return FL_OK;
}

/* Reads head and specs and holds them, and the size of the file, against this manager. */
static fl_status read_head(const fl_state *st, stream *f, uint64_t fingerprint, uint64_t *salt,
                           int64_t *n_tokens, fl_error *err)
{
    struct stat info;
    if (fstat(f->fd, &info) != 0)
        return fl_fail(err, FL_IO, "%s: cannot read: %s", f->path, strerror(errno));
    if (!S_ISREG(info.st_mode))
        return fl_fail(err, FL_FORMAT, "%s: not a regular file", f->path);
    file_head head;
    if (info.st_size < (off_t)sizeof head)
        return fl_fail(err, FL_FORMAT, "%s: %lld bytes are too few for a saved sequence", f->path,
                       (long long)info.st_size);
    FL_TRY(move(f, &head, sizeof head, err));
    if (memcmp(head.magic, MAGIC, sizeof MAGIC) != 0)
        return fl_fail(err, FL_FORMAT, "%s: not a saved sequence", f->path);
    if (head.version != VERSION)
        return fl_fail(err, FL_UNSUPPORTED, "%s: format version %u, this program reads version %d",
                       f->path, head.version, VERSION);
    if (head.n_specs != (uint32_t)st->n_pools && head.fingerprint != fingerprint)
        return other_model(f, head.fingerprint, fingerprint, err);
    if (head.n_specs != (uint32_t)st->n_pools)
        return fl_fail(err, FL_MISMATCH, "%s: holds %u states, this model has %d", f->path,
                       head.n_specs, st->n_pools);
    FL_TRY(read_specs(st, f, head.fingerprint, fingerprint, err));
    if (head.n_tokens < 1)
        return fl_fail(err, FL_FORMAT, "%s: a length of %lld tokens is impossible", f->path,
                       (long long)head.n_tokens);
    if (head.n_tokens > st->limits.max_context)
        return fl_fail(err, FL_ARGUMENT,
                       "%s: holds %lld tokens, the context here is %lld: use a larger one", f->path,
                       (long long)head.n_tokens, (long long)st->limits.max_context);
    int64_t size = (int64_t)(sizeof head + sizeof(uint64_t)) +
                   st->n_pools * (int64_t)sizeof(file_spec) +
                   head.n_tokens * (int64_t)sizeof(int32_t);
    for (int i = 0; i < st->n_pools; i++) {
        const fl_pool_info *p = &st->info[i];
        int64_t bytes;
        if (__builtin_mul_overflow(p->item_bytes, p->paged ? head.n_tokens : 1, &bytes) ||
            __builtin_add_overflow(size, bytes, &size))
            return fl_fail(err, FL_FORMAT, "%s: sizes overflow", f->path);
    }
    if (size != info.st_size)
        return fl_fail(err, FL_FORMAT, "%s: has %lld bytes, its head asks for %lld: truncated?",
                       f->path, (long long)info.st_size, (long long)size);
    *n_tokens = head.n_tokens;
    *salt = head.salt;
    return FL_OK;
}

static fl_status read_contents(fl_state *st, stream *f, int64_t n, fl_seq seq, int32_t *ids,
                               fl_error *err)
{
    FL_TRY(move(f, ids, (size_t)n * sizeof *ids, err));
    FL_TRY(move_contents(st, seq, n, f, err));
    uint64_t sum = f->sum, written;
    FL_TRY(move(f, &written, sizeof written, err));
    if (sum != written)
        return fl_fail(err, FL_FORMAT, "%s: the checksum does not match: the file is damaged",
                       f->path);
    for (int64_t i = 0; i < n; i++) {
        if (ids[i] < 0)
            return fl_fail(err, FL_FORMAT, "%s: token %lld is %d", f->path, (long long)i, ids[i]);
    }
    fl_state_advance(st, seq, n);
    return FL_OK;
}

fl_status fl_state_save(const fl_state *st, fl_seq seq, uint64_t fingerprint, const int32_t *ids,
                        const char *path, fl_error *err)
{
    return fl_saved_write(st, seq, fingerprint, 0, ids, path, err);
}

fl_status fl_state_load(fl_state *st, const char *path, uint64_t fingerprint, fl_seq *out,
                        int32_t **ids, int64_t *n_ids, fl_error *err)
{
    uint64_t salt;
    return fl_saved_read(st, path, fingerprint, &salt, out, ids, n_ids, err);
}

static fl_status open_file(const char *path, stream *f, fl_error *err)
{
    *f = (stream){.fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK), .path = path};
    if (f->fd < 0)
        return fl_fail(err, errno == ENOENT ? FL_NOTFOUND : FL_IO, "%s: cannot open: %s", path,
                       strerror(errno));
    return FL_OK;
}

fl_status fl_saved_peek(const fl_state *st, const char *path, uint64_t fingerprint,
                        int64_t *n_tokens, fl_error *err)
{
    stream f;
    uint64_t salt;
    FL_TRY(open_file(path, &f, err));
    fl_status status = read_head(st, &f, fingerprint, &salt, n_tokens, err);
    close(f.fd);
    return status;
}

fl_status fl_saved_read(fl_state *st, const char *path, uint64_t fingerprint, uint64_t *salt,
                        fl_seq *out, int32_t **ids, int64_t *n_ids, fl_error *err)
{
    *out = FL_NONE;
    *ids = NULL;
    *n_ids = 0;
    stream f;
    FL_TRY(open_file(path, &f, err));
    int64_t n = 0;
    fl_seq seq = FL_NONE;
    int32_t *read_ids = NULL;
    fl_status status;
    FL_GOTO(status, done, read_head(st, &f, fingerprint, salt, &n, err));
    read_ids = fl_realloc_array(NULL, (size_t)n, sizeof *read_ids);
    if (!read_ids) {
        status = fl_fail(err, FL_NOMEM, "%s: no memory for %lld token ids", path, (long long)n);
        goto done;
    }
    status = fl_state_admit(st, &seq, err);
    if (status == FL_OK)
        status = fl_state_extend(st, seq, n, err);
    if (status != FL_OK) {
        fl_error_prefix(err, "%s", path);
        goto done;
    }
    FL_GOTO(status, done, read_contents(st, &f, n, seq, read_ids, err));
    *out = seq;
    *ids = read_ids;
    *n_ids = n;
done:
    close(f.fd);
    if (status != FL_OK) {
        fl_state_release(st, seq);
        fl_free(read_ids);
    }
    return status;
}
