/* Opening models in tests: a failure ends the cmocka test with the message. */
#ifndef FL_TEST_MODEL_SUPPORT_H
#define FL_TEST_MODEL_SUPPORT_H

#include "model/chat.h"
#include "support/folder.h"

typedef struct opened {
    fl_checkpoint *ck;
    fl_model *m;
} opened;

/* Opens a checkpoint folder and its model; options may be NULL. */
void model_open(opened *o, const char *dir, const fl_model_options *options);
void model_close(opened *o);

/* Makes a folder with links to the files of another, to be changed one by one. */
void model_links(folder *f, const char *dir);
/* Puts dir/name into f with the first `from` replaced by `to`; fails if there is none. */
void model_edit(const folder *f, const char *dir, const char *name, const char *from,
                const char *to);
/* Links to the random Kimi-Linear, with the tool tokens of the release named. */
void model_links_with_tools(folder *f);

fl_json *parse(const char *text); /* JSON that must be good; fl_json_free */

/* Fails unless status is `expected` and the message holds `words`. */
void assert_failed(fl_status status, fl_status expected, const fl_error *e, const char *words);

#endif
