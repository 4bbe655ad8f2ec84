/* JSON, read strictly.  A thin wall around jansson so that another parser can take its place:
 * nothing outside this file names jansson.  Input is hostile: depth, size, duplicate keys, invalid
 * UTF-8 and numbers out of range are errors that say where (line, column). */
#ifndef FL_CHECKPOINT_JSON_H
#define FL_CHECKPOINT_JSON_H

#include "base/status.h"
#include "base/vec.h"

typedef struct json_t fl_json; /* a node; borrowed unless the function says otherwise */

typedef enum fl_json_type {
    FL_JSON_NULL,
    FL_JSON_BOOL,
    FL_JSON_INT,
    FL_JSON_REAL,
    FL_JSON_STRING,
    FL_JSON_ARRAY,
    FL_JSON_OBJECT
} fl_json_type;

/* Parses one document (of at most 512 MiB, 128 levels and 8 Mi values; fl_json_read:
 * of at most max_bytes); what names it in messages.  *out is owned:
 * fl_json_free.  Objects keep the order of their keys. */
FL_MUST_CHECK fl_status fl_json_parse(const char *text, size_t len, const char *what, fl_json **out,
                                      fl_error *err);
FL_MUST_CHECK fl_status fl_json_read(const char *path, size_t max_bytes, fl_json **out,
                                     fl_error *err);
void fl_json_free(fl_json *root);

fl_json_type fl_json_typeof(const fl_json *v);
const char *fl_json_type_name(const fl_json *v);      /* "an integer" */
bool fl_json_is(const fl_json *v, fl_json_type type); /* false for NULL */
bool fl_json_bool(const fl_json *v);
int64_t fl_json_int(const fl_json *v);
double fl_json_number(const fl_json *v); /* integers too */
fl_bytes fl_json_string(const fl_json *v);
size_t fl_json_size(const fl_json *v); /* of an array or object */
const fl_json *fl_json_at(const fl_json *array, size_t i);
const fl_json *fl_json_get(const fl_json *object, const char *key); /* NULL when absent */

/* for (void *it = fl_json_iter(o); it; it = fl_json_next(o, it)) ... in file order */
void *fl_json_iter(const fl_json *object);
void *fl_json_next(const fl_json *object, void *it);
fl_bytes fl_json_iter_key(void *it);
const fl_json *fl_json_iter_value(void *it);

/* Writing.  Appends v to out exactly as Python's json.dumps(ensure_ascii=False) prints it: spaced
 * is ", " and ": ", otherwise "," and ":"; sorted orders keys recursively. */
FL_MUST_CHECK fl_status fl_json_dump(const fl_json *v, bool spaced, bool sorted, fl_buf *out);
/* Appends the JSON string literal of text (quotes included, non-ASCII kept). */
bool fl_json_quote(const char *text, size_t len, fl_buf *out);
/* Appends a float as json.dumps does (shortest that round-trips: "1e+16", "0.1", "2.0"; NaN and
 * the infinities are "NaN", "Infinity", "-Infinity", which fl_json_parse refuses). */
bool fl_json_real(double x, fl_buf *out);

#endif
