/* Writing JSON and events into a buffer.  All return false when memory ran out. */
#ifndef FL_SERVER_PUT_INTERNAL_H
#define FL_SERVER_PUT_INTERNAL_H

#include "checkpoint/json.h"

bool fl_put(fl_buf *b, const char *fmt, ...) FL_PRINTF(2, 3);
bool fl_put_string(fl_buf *b, const char *text); /* as a JSON string */
bool fl_put_bytes(fl_buf *b, fl_bytes text);     /* as a JSON string; broken UTF-8 is replaced */
bool fl_put_buf(fl_buf *b, const fl_buf *text);  /* as a JSON string */
/* v as JSON; null when it is NULL. */
bool fl_put_json(fl_buf *b, const fl_json *v);

/* {"error": {...}} in OpenAI's form; as an event of a stream: with "data: " before it. */
struct fl_refusal;
bool fl_put_error(const struct fl_refusal *r, bool event, fl_buf *b);

#endif
