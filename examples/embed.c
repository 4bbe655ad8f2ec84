/* Embedding the library: open a checkpoint folder, ask, show the answer as it comes.
 *
 *     embed MODEL [QUESTION]
 */
#include <firstlight.h>

#include <stdio.h>
#include <string.h>

/* Gets each piece of the answer; true: go on. */
static bool show(void *ctx, fl_piece_kind kind, const char *text, size_t len)
{
    size_t *shown = ctx;
    if (kind == FL_PIECE_CONTENT) {
        fwrite(text, 1, len, stdout);
        fflush(stdout);
        *shown += len;
    }
    return true;
}

static int fail(const fl_error *err)
{
    fprintf(stderr, "embed: %s (%s)\n", err->message, fl_status_text(err->status));
    return 1;
}

int main(int argc, char **argv)
{
    if (argc < 2) {
        fprintf(stderr, "usage: embed MODEL [QUESTION]\n");
        return 64;
    }
    fl_error err = {0};
    fl_context *context;
    fl_open_options options = {.context = 4096};
    if (fl_open(argv[1], &options, &context, &err) != FL_OK)
        return fail(&err);

    fl_prompt prompt = fl_prompt_default();
    prompt.user = argc > 2 ? argv[2] : "Good morning!";
    prompt.max_tokens = 100;
    fl_usage usage;
    size_t shown = 0;
    fl_status status = fl_generate(context, &prompt, show, &shown, &usage, &err);
    fl_close(context);
    if (status != FL_OK)
        return fail(&err);
    printf("\n[%lld prompt tokens, %lld generated]\n", (long long)usage.prompt_tokens,
           (long long)usage.completion_tokens);
    return shown > 0 ? 0 : 1;
}
