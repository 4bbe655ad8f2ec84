/* One safetensors file, mapped read-only.  The mapping outlives the descriptor; tensors point into
 * it.  A file that shrinks while it is mapped ends the process with SIGBUS, as for every program
 * that maps files: checkpoints are replaced by renaming, not by writing over them. */
#define _GNU_SOURCE
#include "checkpoint/checkpoint_internal.h"
#include "checkpoint/lfs_internal.h"

#include "base/mem.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

static fl_status map_file(const char *path, fl_safetensors *st, fl_error *err)
{
    /* Without O_NONBLOCK a named pipe in the folder would block for ever. */
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0)
        return fl_fail(err, errno == ENOENT ? FL_NOTFOUND : FL_IO, "%s", strerror(errno));
    struct stat info;
    fl_status s = FL_OK;
    void *map = NULL;
    if (fstat(fd, &info) != 0)
        s = fl_fail(err, FL_IO, "%s", strerror(errno));
    else if (!S_ISREG(info.st_mode))
        s = fl_fail(err, FL_IO, "not a regular file");
    else if (info.st_size > 0) {
        map = mmap(NULL, (size_t)info.st_size, PROT_READ, MAP_PRIVATE, fd, 0);
        if (map == MAP_FAILED)
            s = fl_fail(err, errno == ENOMEM ? FL_NOMEM : FL_IO, "cannot be mapped: %s",
                        strerror(errno));
    }
    close(fd);
    if (s == FL_OK && map) {
        st->map = map;
        st->size = (uint64_t)info.st_size;
    }
    return s;
}

static fl_status load(const char *path, fl_safetensors *st, fl_error *err)
{
    FL_TRY(map_file(path, st, err));
    if (fl_is_lfs_pointer(st->map, st->size))
        return fl_fail(err, FL_NOTFOUND,
                       "a Git LFS pointer lies here instead of the data; fetch it with "
                       "`git lfs pull`");
    return fl_safetensors_header(st, err);
}

fl_status fl_safetensors_load(const char *path, const char *label, fl_safetensors **out,
                              fl_error *err)
{
    *out = NULL;
    fl_safetensors *st = fl_calloc(1, sizeof *st);
    if (!st)
        return fl_fail(err, FL_NOMEM, "%s: no memory to open it", label);
    fl_status s = load(path, st, err);
    if (s != FL_OK) {
        fl_error_prefix(err, "%s", label);
        fl_safetensors_close(st);
        return s;
    }
    *out = st;
    return FL_OK;
}

fl_status fl_safetensors_open(const char *path, fl_safetensors **out, fl_error *err)
{
    fl_safetensors *st;
    *out = NULL;
    FL_TRY(fl_safetensors_load(path, path, &st, err));
    for (size_t i = 0; i < st->n; i++) {
        /* The JSON reader has refused duplicates. */
        if (!fl_strmap_put(&st->names, st->entries[i].name, strlen(st->entries[i].name),
                           (uint32_t)i, NULL)) {
            fl_safetensors_close(st);
            return fl_fail(err, FL_NOMEM, "%s: no memory for the table of tensors", path);
        }
    }
    *out = st;
    return FL_OK;
}

void fl_safetensors_close(fl_safetensors *st)
{
    if (!st)
        return;
    if (st->map)
        munmap((void *)st->map, st->size);
    fl_free(st->entries);
    fl_strmap_free(&st->names);
    fl_arena_free(&st->arena);
    fl_free(st);
}

const fl_tensor *fl_safetensors_find(const fl_safetensors *st, const char *name)
{
    uint32_t i;
    return fl_strmap_get(&st->names, name, strlen(name), &i) ? &st->entries[i].tensor : NULL;
}

size_t fl_safetensors_count(const fl_safetensors *st)
{
    return st->n;
}

const char *fl_safetensors_name(const fl_safetensors *st, size_t i)
{
    return i < st->n ? st->entries[i].name : NULL;
}

const fl_tensor *fl_safetensors_at(const fl_safetensors *st, size_t i)
{
    return i < st->n ? &st->entries[i].tensor : NULL;
}
