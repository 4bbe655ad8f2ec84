/* OpenAI's /v1/responses. */
#ifndef FL_SERVER_RESPONSES_INTERNAL_H
#define FL_SERVER_RESPONSES_INTERNAL_H

#include "server/job_internal.h"

/* responses_read.c: the request in chat form. */
bool fl_responses_translate(const fl_json *body, fl_buf *out, fl_refusal *r);

#endif
