/* Writing a file so that no reader ever sees half of one, and a crash leaves the old one. */
#define _GNU_SOURCE
#include "base/file.h"
#include "base/mem.h"

#include <errno.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

static fl_status failed(const char *path, fl_error *err)
{
    return fl_fail(err, FL_IO, "%s: cannot be written: %s", path, strerror(errno));
}

fl_status fl_new_file_begin(const char *path, unsigned mode, fl_new_file *f, fl_error *err)
{
    static atomic_uint serial; /* two threads may write the same path: each to its own file */
    size_t room = strlen(path) + 48;
    *f = (fl_new_file){.fd = -1, .path = fl_strdup(path), .part = fl_malloc(room)};
    fl_status s = FL_OK;
    if (!f->path || !f->part) {
        s = fl_fail(err, FL_NOMEM, "%s: no memory for a file name", path);
    } else {
        snprintf(f->part, room, "%s.%ld-%u.part", path, (long)getpid(),
                 atomic_fetch_add(&serial, 1));
        f->fd = open(f->part, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, mode);
        if (f->fd < 0)
            s = failed(f->part, err);
    }
    if (s != FL_OK) {
        fl_free(f->path);
        fl_free(f->part);
    }
    return s;
}

fl_status fl_new_file_write(fl_new_file *f, const void *bytes, size_t n, fl_error *err)
{
    for (const char *at = bytes; n > 0;) {
        ssize_t k = write(f->fd, at, n);
        if (k < 0 && errno != EINTR)
            return failed(f->path, err);
        if (k > 0) {
            at += k;
            n -= (size_t)k;
        }
    }
    return FL_OK;
}

/* Makes the new name itself durable.  A folder that cannot be opened or synced is no failure. */
static void sync_folder(const char *path)
{
    const char *slash = strrchr(path, '/');
    char *dir = slash ? fl_strndup(path, (size_t)(slash - path) + 1) : fl_strdup(".");
    int fd = dir ? open(dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC) : -1;
    if (fd >= 0) {
        (void)fsync(fd);
        close(fd);
    }
    fl_free(dir);
}

fl_status fl_new_file_end(fl_new_file *f, fl_status status, fl_error *err)
{
    if (status == FL_OK && fsync(f->fd) != 0)
        status = failed(f->path, err);
    if (close(f->fd) != 0 && status == FL_OK)
        status = failed(f->path, err);
    if (status == FL_OK && rename(f->part, f->path) != 0)
        status = failed(f->path, err);
    if (status == FL_OK)
        sync_folder(f->path);
    else
        (void)unlink(f->part);
    fl_free(f->path);
    fl_free(f->part);
    return status;
}

fl_status fl_file_write(const char *path, unsigned mode, const void *bytes, size_t n, fl_error *err)
{
    fl_new_file f;
    FL_TRY(fl_new_file_begin(path, mode, &f, err));
    return fl_new_file_end(&f, fl_new_file_write(&f, bytes, n, err), err);
}
