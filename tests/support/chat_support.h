/* What an answer's parser reported, as one text: "R[reasoning]C[content]T0[name]A0[args]E0", where
 * neighbours of one kind are joined. */
#ifndef FL_TEST_CHAT_SUPPORT_H
#define FL_TEST_CHAT_SUPPORT_H

#include "support/model_support.h"
#include "support/rng.h"

typedef struct heard {
    fl_buf log;           /* terminated */
    int kind, index;      /* of the last event; -1: none */
    const fl_json *tools; /* what the parser is told; NULL: nothing */
} heard;

void heard_free(heard *h);
void hear(void *heard, const fl_chat_event *event); /* a sink */

/* Feeds ids whole (cut 0), one by one (cut 1) or in random pieces (random), ends, and fills h. */
enum { CUT_WHOLE, CUT_SINGLE, CUT_RANDOM };
void parse_answer(fl_model *m, bool thinking, const fl_ids *ids, int cut, rng *random, heard *h);

/* Appends the ids of text, with the names of special tokens as those. */
void encode(fl_model *m, const char *text, fl_ids *ids);

/* A model of one table with a chat format: the tokenizer is tests/data/tokenizers/`kind`, the
 * format what `chat` evaluates to in Lua, config the text of config.json. */
typedef struct chat_format {
    folder f;
    opened o;
} chat_format;
void chat_format_open(chat_format *t, const char *kind, const char *chat, const char *config);
void chat_format_close(chat_format *t);

#endif
