/* Writing documents with a grammar and a random model. */
#ifndef FL_TEST_CONSTRAINT_SUPPORT_H
#define FL_TEST_CONSTRAINT_SUPPORT_H

#include "engine/constraint.h"
#include "support/rng.h"

typedef struct writer {
    const fl_tokenizer *tokenizer;
    fl_token_trie *trie;
    uint32_t *allowed;
    int32_t stop;
} writer;

void writer_open(writer *w, const fl_tokenizer *t, int32_t stop);
void writer_close(writer *w);
bool writer_allows(const writer *w, int32_t id);
/* Writes one answer with tokens drawn at random from those allowed; from `hurry` tokens on it
 * prefers what closes.  True when it ended by itself within `limit` tokens; fails the test when no
 * token is allowed or the matcher fails.  ids gets the tokens without the stop. */
bool writer_run(writer *w, fl_grammar *g, rng *dice, int64_t hurry, int64_t limit, fl_ids *ids);
/* The bytes of ids, terminated. */
void writer_text(const writer *w, const fl_ids *ids, fl_buf *text);
/* Fails the test unless the mask behind the first n ids says of every token what following it says.
 */
void writer_check_mask(writer *w, fl_grammar *g, const fl_ids *ids, int64_t n);

#endif
