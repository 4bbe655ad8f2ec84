/* Anthropic's /v1/messages. */
#ifndef FL_SERVER_MESSAGES_INTERNAL_H
#define FL_SERVER_MESSAGES_INTERNAL_H

#include "server/job_internal.h"

/* messages_read.c: the request in chat form; `needed` asks for max_tokens. */
bool fl_messages_translate(const fl_json *body, fl_buf *out, fl_refusal *r);
bool fl_messages_translate_needed(const fl_json *body, fl_buf *out, fl_refusal *r);

#endif
