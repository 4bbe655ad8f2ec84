/* Integrity of the data itself: every byte is read, and no weight or scale may be NaN.
 *
 * Opening has proved already that tensors cover their shards exactly.  Here the bytes come by
 * pread and not from the mapping, so that a failing disk is an error message and not a signal. */
#define _GNU_SOURCE
#include "checkpoint/checkpoint_internal.h"

#include "base/mem.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { CHUNK = 4 << 20 }; /* a multiple of every element size */

typedef struct reader {
    const char *file;
    int fd;
    uint8_t *buf; /* [CHUNK] */
    void (*progress)(void *ctx, uint64_t done, uint64_t total);
    void *ctx;
    uint64_t done, total;
} reader;

/* The bits of an element without its sign, and the largest value of them that is no NaN; mask 0
 * when the type has none.  MX scales are plain bytes in K3 and known by their name. */
static void nan_rule(const char *name, fl_dtype dtype, uint32_t *mask, uint32_t *max)
{
    static const char suffix[] = ".weight_scale";
    size_t len = strlen(name), n = sizeof suffix - 1;
    bool scale =
        dtype == FL_F8_E8M0 || (dtype == FL_U8 && len > n && strcmp(name + len - n, suffix) == 0);
    *mask = *max = 0;
    if (scale)
        *mask = 0xff, *max = 0xfe;
    else if (dtype == FL_F32)
        *mask = 0x7fffffff, *max = 0x7f800000;
    else if (dtype == FL_BF16)
        *mask = 0x7fff, *max = 0x7f80;
    else if (dtype == FL_F16)
        *mask = 0x7fff, *max = 0x7c00;
    else if (dtype == FL_F8_E4M3)
        *mask = 0x7f, *max = 0x7e;
    else if (dtype == FL_F8_E5M2)
        *mask = 0x7f, *max = 0x7c;
}

/* The index of the first NaN among n elements of `size` bytes, or n.  The first loop has no way
 * out so that it becomes vector code: a clean chunk is the rule. */
static inline size_t scan(const uint8_t *p, size_t n, size_t size, uint32_t mask, uint32_t max)
{
    uint32_t x = 0, bad = 0;
    for (size_t i = 0; i < n; i++) {
        memcpy(&x, p + i * size, size);
        bad |= (x & mask) > max;
    }
    if (!bad)
        return n;
    for (size_t i = 0;; i++) {
        memcpy(&x, p + i * size, size);
        if ((x & mask) > max)
            return i;
    }
}

static size_t find_nan(const uint8_t *p, size_t n, size_t size, uint32_t mask, uint32_t max)
{
    switch (size) {
    case 1:
        return scan(p, n, 1, mask, max);
    case 2:
        return scan(p, n, 2, mask, max);
    default:
        return scan(p, n, 4, mask, max);
    }
}

static fl_status read_at(const reader *r, uint64_t offset, size_t n, fl_error *err)
{
    for (size_t got = 0; got < n;) {
        ssize_t k = pread(r->fd, r->buf + got, n - got, (off_t)(offset + got));
        if (k < 0 && errno == EINTR)
            continue;
        if (k <= 0)
            return fl_fail(err, FL_IO, "byte %llu cannot be read: %s",
                           (unsigned long long)(offset + got),
                           k < 0 ? strerror(errno) : "the file has shrunk since it was opened");
        got += (size_t)k;
    }
    return FL_OK;
}

static fl_status verify_tensor(reader *r, const fl_safetensors *st, const fl_st_entry *e,
                               fl_error *err)
{
    uint32_t mask, max;
    nan_rule(e->name, e->tensor.dtype, &mask, &max);
    size_t size = (size_t)fl_dtype_bits(e->tensor.dtype) / 8;
    for (uint64_t at = e->begin; at < e->end;) {
        size_t n = e->end - at < CHUNK ? (size_t)(e->end - at) : CHUNK;
        FL_TRY(read_at(r, st->data_start + at, n, err));
        size_t bad = mask ? find_nan(r->buf, n / size, size, mask, max) : n / size;
        if (bad < n / size)
            return fl_fail(err, FL_FORMAT, "element %llu is NaN: the file is damaged",
                           (unsigned long long)((at - e->begin) / size + bad));
        at += n;
        r->done += n;
        if (r->progress)
            r->progress(r->ctx, r->done, r->total);
    }
    return FL_OK;
}

static fl_status verify_shard(reader *r, const fl_shard *s, fl_error *err)
{
    for (size_t i = 0; i < s->st->n; i++) {
        fl_status status = verify_tensor(r, s->st, &s->st->entries[i], err);
        if (status != FL_OK) {
            fl_error_prefix(err, "%s: tensor %.200s", s->file, s->st->entries[i].name);
            return status;
        }
    }
    return FL_OK;
}

static fl_status open_and_verify(reader *r, const char *dir, const fl_shard *s, fl_error *err)
{
    fl_arena paths = {0};
    const char *path = fl_arena_printf(&paths, "%s/%s", dir, s->file);
    if (!path)
        return fl_fail(err, FL_NOMEM, "%s: no memory to open it", s->file);
    r->fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    int cause = errno;
    fl_arena_free(&paths);
    if (r->fd < 0)
        return fl_fail(err, FL_IO, "%s: %s", s->file, strerror(cause));
    (void)posix_fadvise(r->fd, 0, 0, POSIX_FADV_SEQUENTIAL);
    fl_status status = verify_shard(r, s, err);
    close(r->fd);
    return status;
}

fl_status fl_checkpoint_verify(const fl_checkpoint *ck,
                               void (*progress)(void *ctx, uint64_t done, uint64_t total),
                               void *ctx, fl_error *err)
{
    if (!fl_checkpoint_has_data(ck))
        return fl_fail(err, FL_NOTFOUND, "%s: not every shard is here", ck->dir);
    if (ck->total_size >= 0 && (uint64_t)ck->total_size != ck->bytes)
        return fl_fail(err, FL_FORMAT,
                       "%s: the shards hold %llu bytes of tensors, metadata.total_size of the "
                       "index says %lld",
                       ck->dir, (unsigned long long)ck->bytes, (long long)ck->total_size);
    reader r = {.progress = progress, .ctx = ctx, .total = ck->bytes};
    r.buf = fl_malloc(CHUNK);
    if (!r.buf)
        return fl_fail(err, FL_NOMEM, "%s: no memory for a read buffer", ck->dir);
    fl_status s = FL_OK;
    for (size_t i = 0; s == FL_OK && i < ck->shards.n; i++)
        s = open_and_verify(&r, ck->dir, &ck->shards.data[i], err);
    fl_free(r.buf);
    return s;
}
