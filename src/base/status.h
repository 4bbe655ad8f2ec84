/* The one way a failure is reported inside the library: `return fl_fail(err, FL_IO, "...")`. */
#ifndef FL_BASE_STATUS_H
#define FL_BASE_STATUS_H

#include "firstlight.h"

/* Writes status and message to err (which may be NULL) and returns status.
 * A message says what, where and, when there is one, the way out.  Control characters and broken
 * UTF-8 in it become '?', so names from files may be quoted as they are. */
fl_status fl_fail(fl_error *err, fl_status status, const char *fmt, ...) FL_PRINTF(3, 4);

/* Puts "prefix: " before the message of err, if any: how a caller adds its file or layer name. */
void fl_error_prefix(fl_error *err, const char *fmt, ...) FL_PRINTF(2, 3);

/* Returns the status of expr from the enclosing function unless it is FL_OK. */
#define FL_TRY(expr)                                                                               \
    do {                                                                                           \
        fl_status fl_try_status_ = (expr);                                                         \
        if (fl_try_status_ != FL_OK)                                                               \
            return fl_try_status_;                                                                 \
    } while (0)

/* The same for functions that release what they hold behind a label: sets status and jumps. */
#define FL_GOTO(status, label, expr)                                                               \
    do {                                                                                           \
        (status) = (expr);                                                                         \
        if ((status) != FL_OK)                                                                     \
            goto label;                                                                            \
    } while (0)

#endif
