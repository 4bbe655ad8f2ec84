/* Log-probabilities in OpenAI's two forms. */
#ifndef FL_SERVER_MARKS_INTERNAL_H
#define FL_SERVER_MARKS_INTERNAL_H

#include "server/job_internal.h"

/* Chat: {"content": [...], "refusal": null} of marks [from, from + n); null when nobody asked. */
bool fl_marks_chat(const fl_choice *c, size_t from, size_t n, fl_buf *b);
/* Only the list, for the responses dialect; [] when nobody asked. */
bool fl_marks_list(const fl_choice *c, size_t from, size_t n, fl_buf *b);
/* Completions: {"tokens": [...], "token_logprobs": ..., "top_logprobs": ..., "text_offset": ...} */
bool fl_marks_completion(const fl_choice *c, size_t from, size_t n, fl_buf *b);

#endif
