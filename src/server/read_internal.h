/* Reading members of a request.  A member that is null is absent and leaves *out as it is; a wrong
 * type or range fills r and gives false. */
#ifndef FL_SERVER_READ_INTERNAL_H
#define FL_SERVER_READ_INTERNAL_H

#include "checkpoint/json.h"
#include "server/server_internal.h"

/* The member, or NULL when it is absent or null; o may be NULL. */
const fl_json *fl_read(const fl_json *o, const char *name);
/* "name must be WANTED, not an object" */
bool fl_read_wrong(fl_refusal *r, const char *name, const char *wanted, const fl_json *v);
bool fl_read_flag(const fl_json *o, const char *name, bool *out, fl_refusal *r);
bool fl_read_real(const fl_json *o, const char *name, double low, double high, float *out,
                  fl_refusal *r);
bool fl_read_int(const fl_json *o, const char *name, int64_t low, int64_t high, int64_t *out,
                 fl_refusal *r);
bool fl_read_text(const fl_json *o, const char *name, const char **out, fl_refusal *r);
/* A member of the type, with `wanted` in words. */
bool fl_read_typed(const fl_json *o, const char *name, fl_json_type type, const char *wanted,
                   const fl_json **out, fl_refusal *r);
/* Whether v is this string. */
bool fl_is_text(const fl_json *v, const char *text);

#endif
