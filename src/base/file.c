#define _GNU_SOURCE
#include "base/file.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

enum { STEP = 64 * 1024 };

static fl_status read_all(int fd, const char *path, size_t max_bytes, fl_buf *out, fl_error *err)
{
    struct stat st;
    if (fstat(fd, &st) != 0)
        return fl_fail(err, FL_IO, "%s: %s", path, strerror(errno));
    if (S_ISDIR(st.st_mode))
        return fl_fail(err, FL_IO, "%s: is a directory, a file was expected", path);
    size_t expect = S_ISREG(st.st_mode) && st.st_size > 0 ? (size_t)st.st_size : 0;
    if (expect > max_bytes)
        return fl_fail(err, FL_FORMAT, "%s: has %zu bytes, at most %zu are allowed", path, expect,
                       max_bytes);
    if (!fl_vec_reserve(out, expect + 1))
        return fl_fail(err, FL_NOMEM, "%s: no memory for %zu bytes", path, expect);
    /* The size is a hint only: the file may grow while it is read, a pipe has none. */
    size_t start = out->n;
    for (;;) {
        if (out->n == out->cap && !fl_vec_reserve(out, STEP))
            return fl_fail(err, FL_NOMEM, "%s: no memory after %zu bytes", path, out->n - start);
        ssize_t got = read(fd, out->data + out->n, out->cap - out->n);
        if (got < 0 && errno == EINTR)
            continue;
        if (got < 0)
            return fl_fail(err, FL_IO, "%s: %s", path, strerror(errno));
        if (got == 0)
            return FL_OK;
        out->n += (size_t)got;
        if (out->n - start > max_bytes)
            return fl_fail(err, FL_FORMAT, "%s: has more than the %zu bytes that are allowed", path,
                           max_bytes);
    }
}

fl_status fl_file_read(const char *path, size_t max_bytes, fl_buf *out, fl_error *err)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return fl_fail(err, errno == ENOENT ? FL_NOTFOUND : FL_IO, "%s: %s", path, strerror(errno));
    size_t start = out->n;
    fl_status s = read_all(fd, path, max_bytes, out, err);
    if (s != FL_OK)
        out->n = start;
    close(fd);
    return s;
}
