#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "support/text_support.h"

const fl_tokenizer_spec k3 = {.kind = "tiktoken",
                              .file = "tiktoken.model",
                              .pattern = PATTERN,
                              .max_chars = 400000,
                              .max_run = 25000,
                              .vocab_size = 4096,
                              .reserved = "<|reserved_token_%d|>"};

fl_tokenizer *open_tiny(const fl_tokenizer_spec *spec)
{
    fl_tokenizer *t;
    fl_error e = {0};
    if (fl_tokenizer_open(FL_TINY_MODEL, spec, &t, &e) != FL_OK)
        fail_msg("%s", e.message);
    return t;
}

uint64_t random_next(uint64_t *state)
{
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    return *state * 0x2545f4914f6cdd1du >> 11;
}

static const char *const scraps[] = {"a",
                                     "Zq",
                                     " ",
                                     "\n",
                                     "  ",
                                     "12",
                                     "\xe5\xad\x97",
                                     "'s",
                                     "\t",
                                     "\xcc\x81",
                                     "\xe2\x80",
                                     "\xf0\x9f\x98\x80",
                                     "\xff",
                                     "&&",
                                     "\xc3\xa9",
                                     "<|open|>"};

void random_text(uint64_t *seed, fl_buf *out, int pieces)
{
    out->n = 0;
    for (int i = 0; i < pieces; i++) {
        uint64_t r = random_next(seed);
        const char *scrap = scraps[r % (sizeof scraps / sizeof *scraps)];
        assert_true(fl_vec_append(out, scrap, strlen(scrap)));
        if (r >> 8 & 1)
            assert_true(fl_vec_push(out, (char)(r >> 16)));
    }
}
