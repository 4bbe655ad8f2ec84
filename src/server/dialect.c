/* The dialects by path. */
#include "server/job_internal.h"

const fl_dialect *fl_dialect_find(const char *path)
{
    static const fl_dialect *const all[] = {
        &fl_dialect_chat,  &fl_dialect_completions, &fl_dialect_responses,  &fl_dialect_messages,
        &fl_dialect_count, &fl_dialect_tokenize,    &fl_dialect_detokenize, &fl_dialect_template};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        if (strcmp(all[i]->path, path) == 0)
            return all[i];
    }
    return NULL;
}
