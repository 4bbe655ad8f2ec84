/* The text room: token ids and bytes.
 *
 * A tokenizer is read from the checkpoint's own files.  What those files do not say (the split
 * pattern of a tiktoken vocabulary, the chunking rule for long input) comes from the model file as
 * an fl_tokenizer_spec.  Special tokens come out of encoding only where the caller allows them, so
 * text from a user can never become a control token. */
#ifndef FL_TEXT_TOKENIZER_H
#define FL_TEXT_TOKENIZER_H

#include "base/status.h"
#include "base/vec.h"

typedef struct fl_tokenizer fl_tokenizer;
typedef FL_VEC(int32_t) fl_ids;

typedef struct fl_tokenizer_spec {
    const char *kind;    /* "tiktoken": a rank file; "hf": a tokenizer.json */
    const char *file;    /* "tiktoken.model", "tokenizer.json" */
    const char *pattern; /* PCRE2, UTF and UCP on; a set operation (&&) is refused; for a rank
                            file, while a tokenizer.json has its own */
    int64_t max_chars;   /* longer text is cut into pieces of this many characters; 0: no limit */
    int64_t max_run;     /* and where a run of one class (space or not) exceeds this; 0: no limit */
    int64_t vocab_size;  /* rows of the embedding: ids above the ranks are special slots */
    const char *reserved; /* name of unnamed special slots, with one %d: "<|reserved_token_%d|>";
                             for a rank file */
} fl_tokenizer_spec;

/* Reads spec->file of dir, and beside a rank file tokenizer_config.json (added_tokens_decoder).
 * spec is not kept.  Errors: FL_MODEL for the pattern, FL_FORMAT for the files, with line or key,
 * FL_UNSUPPORTED for a part of a tokenizer.json that has no counterpart here, with its name. */
FL_MUST_CHECK fl_status fl_tokenizer_open(const char *dir, const fl_tokenizer_spec *spec,
                                          fl_tokenizer **out, fl_error *err);
void fl_tokenizer_close(fl_tokenizer *t); /* NULL is allowed */

/* Appends the ids of text (any bytes up to 1 GiB; broken UTF-8 is replaced as Python's
 * errors="replace" would).  specials: names of special tokens in the text, those of reserved slots
 * too, become their ids.  On failure out is as before.  Any number of threads may encode with one
 * tokenizer. */
FL_MUST_CHECK fl_status fl_tokenizer_encode(const fl_tokenizer *t, const char *text, size_t len,
                                            bool specials, fl_ids *out, fl_error *err);
/* The bytes of one id, for a special token its name ({NULL, 0} for an id outside the vocabulary,
 * {"", 0} for one that no file gives a token).
 * Borrowed from t. */
fl_bytes fl_tokenizer_bytes(const fl_tokenizer *t, int32_t id);
/* The id of a special token by its name, or FL_NO_TOKEN. */
enum { FL_NO_TOKEN = -1 };
int32_t fl_tokenizer_special(const fl_tokenizer *t, const char *name);
bool fl_tokenizer_is_special(const fl_tokenizer *t, int32_t id); /* has a name */
int64_t fl_tokenizer_size(const fl_tokenizer *t);                /* ids are 0 .. size - 1 */

/* Streaming: feed bytes of tokens, take out whole characters only.  Invalid bytes become U+FFFD;
 * at the end a dangling partial character does too.  False when memory ran out: then s and out are
 * as before. */
typedef struct fl_utf8_stream {
    unsigned char held[4];
    int n;
} fl_utf8_stream;
bool fl_utf8_feed(fl_utf8_stream *s, const char *bytes, size_t len, fl_buf *out);
bool fl_utf8_end(fl_utf8_stream *s, fl_buf *out);

#endif
