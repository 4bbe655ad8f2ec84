/* Constrained output: answers that cannot break the form they were asked for.
 *
 * A form (model/chat.h) or a JSON schema is compiled into a grammar: an automaton over bytes and
 * control tokens, with a stack for what nests and a counter for what has a length.  A matcher
 * follows one request's answers through it and says before each token which ones may come next.
 * Every token that it lets through leaves a way to a complete document, and the ids that end an
 * answer are let through only when the document is complete; so an answer that ended by itself is
 * always valid, whatever the model is like.  docs/internals/constraint.md tells how.
 *
 * A trie belongs to one tokenizer and is shared; a grammar is shared by requests of one thread. */
#ifndef FL_ENGINE_CONSTRAINT_H
#define FL_ENGINE_CONSTRAINT_H

#include "engine/engine.h"
#include "model/chat.h"

/* The tokens of a vocabulary as a tree of bytes.  The tokenizer must outlive it. */
typedef struct fl_token_trie fl_token_trie;
FL_MUST_CHECK fl_status fl_token_trie_create(const fl_tokenizer *t, fl_token_trie **out,
                                             fl_error *err);
void fl_token_trie_destroy(fl_token_trie *t); /* NULL is allowed */

/* Compiles a form, or a schema (NULL: any object) for a bare JSON document.  Neither is needed
 * afterwards; the trie must outlive the grammar.  FL_ARGUMENT when a schema uses a keyword that is
 * not supported (which is named), contradicts itself, or is too large.  The caller holds one
 * reference. */
typedef struct fl_grammar fl_grammar;
FL_MUST_CHECK fl_status fl_grammar_of_form(const fl_token_trie *t, const fl_form *form,
                                           fl_grammar **out, fl_error *err);
FL_MUST_CHECK fl_status fl_grammar_of_schema(const fl_token_trie *t, const fl_json *schema,
                                             fl_grammar **out, fl_error *err);
fl_grammar *fl_grammar_hold(fl_grammar *g); /* one reference more */
void fl_grammar_release(fl_grammar *g);     /* NULL is allowed */
/* Memory of the automaton, about; the masks that it gathers come to that, a few MB at most. */
size_t fl_grammar_bytes_held(const fl_grammar *g);

/* Follows the answers of one request: `choices` of them.  stop_ids (copied) end an answer. */
typedef struct fl_matcher fl_matcher;
FL_MUST_CHECK fl_status fl_matcher_create(fl_grammar *g, int choices, const int32_t *stop_ids,
                                          size_t n_stop, fl_matcher **out, fl_error *err);
void fl_matcher_destroy(fl_matcher *m); /* NULL is allowed */

/* An fl_mask_fn: clears in `allowed` the bit of every token that may not follow the n tokens of
 * answer, which continue those of the call before.  ctx is the matcher. */
fl_status fl_matcher_mask(void *ctx, int choice, const int32_t *answer, int64_t n,
                          uint32_t *allowed, fl_error *err);

#endif
