/* Firstlight: one C library that opens a checkpoint folder as it was downloaded and runs it.
 *
 * This first page is the part that every room of the library shares: the status codes and the
 * error detail.  A function that can fail returns fl_status (FL_OK is 0) and, when the caller
 * passes an fl_error, writes there what went wrong and what to do about it.  The library never
 * prints, never exits and never aborts.
 */
#ifndef FIRSTLIGHT_H
#define FIRSTLIGHT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Every status the library returns, with the words fl_status_text gives for it. */
#define FL_STATUS_MAP(X)                                                                           \
    X(OK, "success")                                                                               \
    X(NOMEM, "out of memory")                                                                      \
    X(IO, "input or output error")                                                                 \
    X(FORMAT, "malformed input")                                                                   \
    X(CONFIG, "bad model configuration")                                                           \
    X(MODEL, "error in a model definition")                                                        \
    X(UNSUPPORTED, "not supported")                                                                \
    X(NOTFOUND, "not found")                                                                       \
    X(ARGUMENT, "bad argument")                                                                    \
    X(BUSY, "no room at this moment")                                                              \
    X(CANCELLED, "cancelled")                                                                      \
    X(NUMERIC, "a result is not a finite number")                                                  \
    X(MISMATCH, "results differ")                                                                  \
    X(INTERNAL, "internal error")

typedef enum fl_status {
#define FL_STATUS_ENUM(name, text) FL_##name,
    FL_STATUS_MAP(FL_STATUS_ENUM)
#undef FL_STATUS_ENUM
} fl_status;

#if defined(__GNUC__)
#define FL_MUST_CHECK __attribute__((warn_unused_result))
#define FL_PRINTF(fmt, args) __attribute__((format(printf, fmt, args)))
#else
#define FL_MUST_CHECK
#define FL_PRINTF(fmt, args)
#endif

/* Where a failing function writes the detail: one sentence that names the file, tensor, key or
 * argument, the cause, and a hint.  Owned by the caller; never needs freeing. */
typedef struct fl_error {
    fl_status status;
    char message[496];
} fl_error;

/* "malformed input" for FL_FORMAT; never NULL. */
const char *fl_status_text(fl_status status);

/* "0.1.0" */
const char *fl_version(void);

#ifdef __cplusplus
}
#endif
#endif
