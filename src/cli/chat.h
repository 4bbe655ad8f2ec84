/* The interactive chat of `firstlight run`. */
#ifndef FL_CLI_CHAT_H
#define FL_CLI_CHAT_H

#include "cli/prompt.h"

/* Reads messages until the end of input.  Commands: /reset, /save FILE, /load FILE, /stats, /help.
 * Ctrl-C stops the answer, not the program. */
FL_MUST_CHECK fl_status cli_chat(cli_model *m, const char *system, cli_think think,
                                 const fl_sampling *sampling, int64_t max_tokens, fl_error *err);

#endif
