/* A prompt as the command line gives it, and an answer as it is shown. */
#ifndef FL_CLI_PROMPT_H
#define FL_CLI_PROMPT_H

#include "cli/cli.h"
#include "model/chat.h"

/* How to think: --think. */
typedef struct cli_think {
    bool on;
    const char *effort; /* NULL: say nothing about it */
} cli_think;

/* Renders messages (from fl_chat_add_message, still open) to ids. */
FL_MUST_CHECK fl_status cli_render(fl_model *m, const fl_buf *array, cli_think think, fl_ids *ids,
                                   fl_error *err);
/* Reads whitespace-separated token ids. */
FL_MUST_CHECK fl_status cli_read_ids(const char *path, fl_ids *ids, fl_error *err);

/* What came out of one request, collected and (live) shown as it comes. */
typedef struct cli_answer {
    const fl_tokenizer *tokenizer; /* NULL: only ids */
    fl_chat_parser *parser;        /* NULL: plain text */
    fl_utf8_stream utf8;
    fl_ids ids; /* the stop id included */
    fl_buf content, reasoning;
    fl_buf tools;     /* JSON: {"name": ..., "arguments": "..."}, ... */
    fl_buf arguments; /* of the tool call being read */
    bool live;        /* write content to stdout, reasoning to stderr as it comes */
    bool dim;         /* reasoning is being shown dimmed right now */
    fl_finish finish;
    fl_seq kept;
    fl_request *request; /* NULL when it has ended */
    fl_status status;
    fl_error error;
    double first, last; /* time of the first and the last token */
} cli_answer;

/* chat: parse the answer as the model's chat format does. */
FL_MUST_CHECK fl_status cli_answer_init(cli_answer *a, fl_model *m, bool chat, bool thinking,
                                        bool live, fl_error *err);
void cli_answer_free(cli_answer *a);
void cli_answer_token(void *ctx, const fl_token_event *e); /* an fl_token_fn; ctx: cli_answer */
FL_MUST_CHECK fl_status cli_answer_end(cli_answer *a, fl_error *err);

#endif
