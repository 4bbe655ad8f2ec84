/* Chat format: messages in, prompt segments out; generated tokens in, deltas out.  The rules are in
 * the model's Lua file; this is the wall in front of it.
 *
 * A prompt is a list of segments.  Only segments marked `special` may produce control tokens; text
 * that came from a caller is always plain. */
#ifndef FL_MODEL_CHAT_H
#define FL_MODEL_CHAT_H

#include "model/model.h"

typedef struct fl_chat_options {
    const fl_json *messages;        /* OpenAI chat messages */
    const fl_json *tools;           /* OpenAI tools array or NULL */
    const fl_json *tool_choice;     /* or NULL */
    const fl_json *response_format; /* or NULL */
    const char *effort;             /* thinking effort or NULL */
    bool thinking;                  /* thinking mode */
    bool generation_prompt;         /* end with the opening of the assistant's turn */
} fl_chat_options;

/* Renders to text (for showing and tests) and to ids; either may be NULL. */
FL_MUST_CHECK fl_status fl_chat_render(fl_model *m, const fl_chat_options *o, fl_buf *text,
                                       fl_ids *ids, fl_error *err);

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
FL_MUST_CHECK fl_status fl_chat_parser_feed(fl_chat_parser *p, const int32_t *ids, size_t n,
                                            fl_error *err);
FL_MUST_CHECK fl_status fl_chat_parser_end(fl_chat_parser *p, fl_error *err);
void fl_chat_parser_destroy(fl_chat_parser *p);

#endif
