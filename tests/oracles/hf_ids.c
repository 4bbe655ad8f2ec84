/* For hf_ids.py: texts in hexadecimal, one a line, become ids, one line each.
 *
 *     oracle_hf_ids FOLDER SIZE [--specials]
 *
 * reads the tokenizer.json of FOLDER for a model of SIZE ids. */
#include "text/tokenizer.h"

#include <stdio.h>
#include <stdlib.h>

static int digit(int c)
{
    return c <= '9' ? c - '0' : c - 'a' + 10;
}

/* Encodes and prints one text; false when it cannot. */
static bool answer(const fl_tokenizer *t, const fl_buf *text, bool specials, fl_error *err)
{
    fl_ids ids = {0};
    bool ok = fl_tokenizer_encode(t, text->data, text->n, specials, &ids, err) == FL_OK;
    for (size_t i = 0; ok && i < ids.n; i++)
        printf(i ? " %d" : "%d", ids.data[i]);
    printf("\n");
    fl_vec_free(&ids);
    return ok;
}

int main(int argc, char **argv)
{
    fl_tokenizer *t = NULL;
    fl_error err = {0};
    fl_tokenizer_spec spec = {.kind = "hf", .file = "tokenizer.json"};
    if (argc < 3)
        return 64;
    spec.vocab_size = atoi(argv[2]);
    bool ok = fl_tokenizer_open(argv[1], &spec, &t, &err) == FL_OK;
    fl_buf text = {0};
    for (int c; ok && (c = getchar()) != EOF;) {
        if (c == '\n') {
            ok = answer(t, &text, argc > 3, &err);
            text.n = 0;
        } else {
            int low = getchar();
            ok = fl_vec_push(&text, (char)(digit(c) << 4 | digit(low)));
        }
    }
    fl_vec_free(&text);
    fl_tokenizer_close(t);
    if (!ok)
        fprintf(stderr, "oracle_hf_ids: %s\n", err.message);
    return ok ? 0 : 1;
}
