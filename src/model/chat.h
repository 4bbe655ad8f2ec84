/* Chat format: messages in, prompt segments out; generated tokens in, deltas out.  The rules are in
 * the model's Lua file; this is the wall in front of it.
 *
 * A prompt is a list of segments.  Only segments marked `special` may produce control tokens; text
 * that came from a caller is always plain. */
#ifndef FL_MODEL_CHAT_H
#define FL_MODEL_CHAT_H

#include "base/arena.h"
#include "model/model.h"

typedef struct fl_chat_options {
    const fl_json *messages;        /* OpenAI chat messages */
    const fl_json *tools;           /* OpenAI tools array or NULL */
    const fl_json *tool_choice;     /* or NULL */
    const fl_json *response_format; /* or NULL */
    const char *effort;             /* thinking effort or NULL */
    bool thinking;                  /* thinking mode */
    bool generation_prompt;         /* end with the opening of the assistant's turn */
    bool one_call;                  /* at most one tool call (parallel_tool_calls: false) */
} fl_chat_options;

/* Renders to text (for showing and tests) and to ids; either may be NULL. */
FL_MUST_CHECK fl_status fl_chat_render(fl_model *m, const fl_chat_options *o, fl_buf *text,
                                       fl_ids *ids, fl_error *err);

/* ---- the form of an answer ---- */

/* What an answer must look like: parts built of parts.  The chat format makes it from the tools and
 * the response format, so whoever constrains an answer (engine/constraint.h) knows no model. */
typedef enum fl_form_kind {
    FL_FORM_TEXT,   /* text, as it is */
    FL_FORM_MARKER, /* one control token */
    FL_FORM_ANY,    /* any tokens but control tokens, any number */
    FL_FORM_JSON,   /* a JSON value that satisfies a schema, of some types only */
    FL_FORM_RAW,    /* a string that satisfies a schema, without quotes and escapes */
    FL_FORM_MATCH,  /* a text that matches the pattern in text */
    FL_FORM_SEQ,    /* kids, one after the other */
    FL_FORM_ALT,    /* one of the kids */
    FL_FORM_MANY    /* the kid, any number of times; it must not be empty */
} fl_form_kind;

/* Types of JSON values, as a set.  An integer is also a number. */
enum {
    FL_KIND_NULL = 1,
    FL_KIND_BOOL = 2,
    FL_KIND_INTEGER = 4,
    FL_KIND_NUMBER = 8,
    FL_KIND_STRING = 16,
    FL_KIND_ARRAY = 32,
    FL_KIND_OBJECT = 64,
    FL_KIND_ALL = 127
};

typedef struct fl_form_part {
    fl_form_kind kind;
    fl_bytes text;         /* TEXT, MATCH; JSON, RAW: what names the schema in messages */
    int32_t marker;        /* MARKER */
    const fl_json *schema; /* JSON, RAW: borrowed from the options; NULL: anything */
    const fl_json *root;   /* where its references lead into; NULL: the schema itself */
    unsigned types;        /* JSON */
    bool lenient;          /* JSON, RAW: a schema that is not supported allows anything */
    int32_t first, n;      /* SEQ, ALT, MANY: kids[first .. first + n) */
} fl_form_part;

typedef struct fl_form {
    FL_VEC(fl_form_part) parts;
    FL_VEC(int32_t) kids;
    int32_t root;
    fl_arena arena; /* texts */
} fl_form;

/* The form of the answer to the prompt that o renders to, beginning where the prompt ends; *out is
 * owned (fl_form_free) and lives no longer than the JSON of o.  It is NULL when the options leave
 * the answer free: no response_format but text, tool_choice auto or none, no strict tool.
 * FL_ARGUMENT when the chat format cannot do what they ask. */
FL_MUST_CHECK fl_status fl_chat_form(fl_model *m, const fl_chat_options *o, fl_form **out,
                                     fl_error *err);
void fl_form_free(fl_form *f); /* NULL is allowed */

/* Appends {"role", "content"} to the JSON text of an array that is being written: the first call
 * opens it, the caller closes it with "]".  False when memory ran out. */
bool fl_chat_add_message(fl_buf *array, const char *role, const char *text, size_t len);

/* What the parser of an answer reports. */
typedef enum fl_chat_event_kind {
    FL_CHAT_REASONING,  /* text: more of the reasoning */
    FL_CHAT_CONTENT,    /* text: more of the answer */
    FL_CHAT_TOOL_BEGIN, /* index, text: the tool's name */
    FL_CHAT_TOOL_ARGS,  /* index, text: more of the arguments' JSON text */
    FL_CHAT_TOOL_END    /* index */
} fl_chat_event_kind;

typedef struct fl_chat_event {
    fl_chat_event_kind kind;
    int index;
    fl_bytes text;
} fl_chat_event;

/* Called in order; the event is valid during the call. */
typedef void (*fl_chat_sink)(void *ctx, const fl_chat_event *event);

/* One parser per answer.  Feed token ids as they come (specials included; stop ids are ignored);
 * any split of the stream gives the same concatenated events, and every text is whole UTF-8
 * characters.  A call that is cut short has no TOOL_END.  A parser is destroyed before its model.
 * `thinking` as the prompt was rendered: whether the answer starts inside the reasoning. */
typedef struct fl_chat_parser fl_chat_parser;
FL_MUST_CHECK fl_status fl_chat_parser_create(fl_model *m, bool thinking, fl_chat_sink sink,
                                              void *ctx, fl_chat_parser **out, fl_error *err);
/* Tells the parser the tools of the request, before it is fed: a format that writes arguments
 * without their types needs the schemas.  tools: an OpenAI tools array, or NULL; not kept. */
FL_MUST_CHECK fl_status fl_chat_parser_tools(fl_chat_parser *p, const fl_json *tools,
                                             fl_error *err);
FL_MUST_CHECK fl_status fl_chat_parser_feed(fl_chat_parser *p, const int32_t *ids, size_t n,
                                            fl_error *err);
FL_MUST_CHECK fl_status fl_chat_parser_end(fl_chat_parser *p, fl_error *err);
void fl_chat_parser_destroy(fl_chat_parser *p);

#endif
