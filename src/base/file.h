/* Reading a whole small file (configurations, vocabularies, texts; weights are mapped instead), and
 * writing one that no reader ever sees half of. */
#ifndef FL_BASE_FILE_H
#define FL_BASE_FILE_H

#include "base/status.h"
#include "base/vec.h"

/* Appends the contents of the regular file (or pipe) at path to out.  FL_NOTFOUND when there is
 * none, FL_FORMAT when it holds more than max_bytes; every message begins with the path.  On
 * failure out keeps what it held and is still the caller's to free. */
FL_MUST_CHECK fl_status fl_file_read(const char *path, size_t max_bytes, fl_buf *out,
                                     fl_error *err);

/* A file that is being written: its bytes go to a new file beside it, path.PID-N.part, reach the
 * disk, and only then take the name path.  fd is open for writing at any place; owned by the pair
 * of calls below. */
typedef struct fl_new_file {
    int fd;
    char *path, *part;
} fl_new_file;

/* Makes the file beside path with the given mode (less the umask).  On success fl_new_file_end must
 * follow. */
FL_MUST_CHECK fl_status fl_new_file_begin(const char *path, unsigned mode, fl_new_file *f,
                                          fl_error *err);
FL_MUST_CHECK fl_status fl_new_file_write(fl_new_file *f, const void *bytes, size_t n,
                                          fl_error *err);

/* status: of all that was done between.  FL_OK gives the file its name, once it is on the disk;
 * anything else removes what was written, and is returned. */
FL_MUST_CHECK fl_status fl_new_file_end(fl_new_file *f, fl_status status, fl_error *err);

/* A whole file of n bytes. */
FL_MUST_CHECK fl_status fl_file_write(const char *path, unsigned mode, const void *bytes, size_t n,
                                      fl_error *err);

#endif
