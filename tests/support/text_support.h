/* What the tests of the text room share: K3's tokenizer on the tiny vocabulary, random texts. */
#ifndef FL_TEST_TEXT_SUPPORT_H
#define FL_TEST_TEXT_SUPPORT_H

#include "text/tokenizer.h"

/* The K2/K3 pattern with the set intersections written out. */
#define UPPER "[^\\p{Ll}\\p{N}\\p{P}\\p{S}\\p{Z}\\p{C}\\p{sc:Han}]"
#define LOWER "[^\\p{Lu}\\p{Lt}\\p{N}\\p{P}\\p{S}\\p{Z}\\p{C}\\p{sc:Han}]"
#define SUFFIX "(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
#define PATTERN                                                                                    \
    "\\p{sc:Han}+|[^\\r\\n\\p{L}\\p{N}]?" UPPER "*" LOWER "+" SUFFIX                               \
    "|[^\\r\\n\\p{L}\\p{N}]?" UPPER "+" LOWER "*" SUFFIX                                           \
    "|\\p{N}{1,3}| ?[^\\p{wspace}\\p{L}\\p{N}]+[\\r\\n]*"                                          \
    "|\\p{wspace}*[\\r\\n]+|\\p{wspace}+(?!\\P{wspace})|\\p{wspace}+"

extern const fl_tokenizer_spec k3;

fl_tokenizer *open_tiny(const fl_tokenizer_spec *spec); /* fails the test when it cannot */
uint64_t random_next(uint64_t *state);
/* Some `pieces` scraps of many kinds, markers and broken UTF-8 among them, replace *out. */
void random_text(uint64_t *seed, fl_buf *out, int pieces);

#endif
