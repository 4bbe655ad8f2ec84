/* Opening models in tests: a failure ends the cmocka test with the message. */
#ifndef FL_TEST_MODEL_SUPPORT_H
#define FL_TEST_MODEL_SUPPORT_H

#include "model/chat.h"

typedef struct opened {
    fl_checkpoint *ck;
    fl_model *m;
} opened;

/* Opens a checkpoint folder and its model; options may be NULL. */
void model_open(opened *o, const char *dir, const fl_model_options *options);
void model_close(opened *o);

fl_json *parse(const char *text); /* JSON that must be good; fl_json_free */

/* Fails unless status is `expected` and the message holds `words`. */
void assert_failed(fl_status status, fl_status expected, const fl_error *e, const char *words);

#endif
