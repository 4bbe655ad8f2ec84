/* Reading a whole small file: configurations, vocabularies, texts.  Weights are mapped instead. */
#ifndef FL_BASE_FILE_H
#define FL_BASE_FILE_H

#include "base/status.h"
#include "base/vec.h"

/* Appends the contents of the regular file (or pipe) at path to out.  FL_NOTFOUND when there is
 * none, FL_FORMAT when it holds more than max_bytes; every message begins with the path.  On
 * failure out keeps what it held and is still the caller's to free. */
FL_MUST_CHECK fl_status fl_file_read(const char *path, size_t max_bytes, fl_buf *out,
                                     fl_error *err);

#endif
