#include "support/model_support.h"

#include "support/cmocka_all.h"

#include "ops/ops.h"

#include <string.h>

void model_open(opened *o, const char *dir, const fl_model_options *options)
{
    fl_error e = {0};
    if (fl_checkpoint_open(dir, FL_OPEN_DATA, &o->ck, &e) != FL_OK ||
        fl_model_open(o->ck, fl_ops_registry(), options, &o->m, &e) != FL_OK)
        fail_msg("%s", e.message);
}

void model_close(opened *o)
{
    fl_model_close(o->m);
    fl_checkpoint_close(o->ck);
}

fl_json *parse(const char *text)
{
    fl_json *v = NULL;
    fl_error e = {0};
    if (fl_json_parse(text, strlen(text), "test", &v, &e) != FL_OK)
        fail_msg("%s: %s", text, e.message);
    return v;
}

void assert_failed(fl_status status, fl_status expected, const fl_error *e, const char *words)
{
    if (status != expected || !strstr(e->message, words))
        fail_msg("status %d (%s), expected %d and \"%s\"", (int)status, e->message, (int)expected,
                 words);
}
