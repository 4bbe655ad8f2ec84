/* Writing a request to /v1/chat/completions from a request in another dialect.  Members are copied
 * as JSON text; the result is then read like any chat request, so a parameter is checked in one
 * place whatever the dialect. */
#ifndef FL_SERVER_TRANSLATE_INTERNAL_H
#define FL_SERVER_TRANSLATE_INTERNAL_H

#include "server/put_internal.h"
#include "server/read_internal.h"

/* A chat request under construction.  What an assistant says in several pieces is gathered until
 * somebody else speaks. */
typedef struct fl_chat_text {
    fl_buf *out;
    bool any, failed; /* failed: memory ran out */
    bool open;        /* something of an assistant is gathered */
    fl_buf text, reasoning, calls;
} fl_chat_text;

void fl_chat_text_begin(fl_chat_text *t, fl_buf *out);
void fl_chat_text_message(fl_chat_text *t, const char *role, fl_bytes text);
void fl_chat_text_say(fl_chat_text *t, fl_bytes text);   /* the assistant: text */
void fl_chat_text_think(fl_chat_text *t, fl_bytes text); /* the assistant: reasoning */
/* The assistant calls a tool; arguments: JSON text. */
void fl_chat_text_call(fl_chat_text *t, fl_bytes id, fl_bytes name, fl_bytes arguments);
void fl_chat_text_result(fl_chat_text *t, fl_bytes id, fl_bytes text);
void fl_chat_text_flush(fl_chat_text *t);
/* Ends the messages and frees; false when memory ran out. */
bool fl_chat_text_end(fl_chat_text *t);

/* Appends , "to": VALUE when o has the member `from`. */
bool fl_copy(fl_buf *out, const fl_json *o, const char *from, const char *to);
/* Appends one function tool in chat form from a tool with its members beside each other; schema:
 * the name of the member with its parameters. */
bool fl_copy_tool(fl_buf *out, const fl_json *tool, const char *schema);
/* Appends the text of a list of parts (or of a string); the parts' types must be among `types`, a
 * list that ends with NULL; where names the place in refusals. */
bool fl_parts_text(const fl_json *content, const char *const *types, const char *where, fl_buf *out,
                   fl_refusal *r);
/* The string member, or empty. */
fl_bytes fl_text_of(const fl_json *o, const char *name);

#endif
