/* What lua_chat.c gives to chat.render and chat.parser to write to. */
#ifndef FL_MODEL_CHAT_INTERNAL_H
#define FL_MODEL_CHAT_INTERNAL_H

#include "model/chat.h"
#include "model/model_internal.h"

/* Where a rendered prompt goes. */
typedef struct fl_chat_writer {
    const fl_tokenizer *tokenizer; /* NULL: no ids are wanted */
    fl_buf *text;                  /* or NULL */
    fl_ids *ids;                   /* or NULL */
} fl_chat_writer;

/* Where chat.form builds. */
typedef struct fl_chat_former {
    const fl_tokenizer *tokenizer;
    fl_form *form;
} fl_chat_former;

struct fl_chat_parser {
    fl_model *m;
    const fl_tokenizer *tokenizer;
    fl_chat_sink sink;
    void *ctx;
    int state;           /* registry reference of what chat.parser returned */
    bool broken;         /* an error ended it */
    fl_utf8_stream utf8; /* the bytes of an unfinished character */
    fl_buf whole;        /* finished characters of one token */
    int n_calls;         /* tool calls begun */
    bool in_call;        /* the last of them is not ended */
};

/* Pushes the tables `out` (marker, text) and `emit` (reasoning, content, tool_begin, tool_args,
 * tool_end).  They write to the running task's writer and parser. */
void fl_lua_push_out(lua_State *L);
void fl_lua_push_emit(lua_State *L);
/* lua_form.c: pushes the table of functions that make the parts of a form, and reads a part. */
void fl_lua_push_form(lua_State *L);
int32_t fl_lua_form_part(lua_State *L, int index);

#endif
