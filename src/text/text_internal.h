/* The parts of a tokenizer, each in its own file: the vocabulary (vocab.c), the special tokens
 * (special.c), the split pattern (split.c) and the merges (bpe.c).  For this room and its tests. */
#ifndef FL_TEXT_INTERNAL_H
#define FL_TEXT_INTERNAL_H

#include "base/arena.h"
#include "base/strmap.h"
#include "text/tokenizer.h"

/* Limits on what a vocabulary file may ask for. */
enum {
    FL_MAX_VOCAB = 1 << 22,        /* ids */
    FL_MAX_TOKEN_BYTES = 4096,     /* bytes of one token: bounds the work of one merge */
    FL_MAX_VOCAB_FILE = 256 << 20, /* bytes of the rank file */
    FL_MAX_CONFIG_FILE = 16 << 20, /* bytes of tokenizer_config.json */
    FL_MAX_NAME_BYTES = 256,       /* bytes of the name of a special token */
    FL_MAX_TEXT_BYTES = 1 << 30    /* bytes of one text; below 4 GiB when cleaned */
};

/* Ids and their bytes.  An id below n_ranks is a line of the rank file, where the id is also the
 * order in which merges are made; the ids from there to size are special slots, whose bytes are
 * their names. */
typedef struct fl_vocab {
    fl_bytes *tokens; /* [size] */
    int32_t size, n_ranks;
    size_t longest;       /* bytes of the longest ranked token */
    int32_t byte_id[256]; /* the id of every single byte */
    fl_strmap ids;        /* bytes of a ranked token -> id; keys lie in storage */
    char *storage;
} fl_vocab;

/* Reads a tiktoken rank file: one "base64(bytes) rank" a line, in any order, ranks 0 .. n - 1
 * without a gap, all 256 single bytes among them.  size: ids of the whole vocabulary, n <= size.
 * Special slots are left {NULL, 0}.  v is freed with fl_vocab_free after failure too. */
FL_MUST_CHECK fl_status fl_vocab_read(const char *path, int64_t size, fl_vocab *v, fl_error *err);
void fl_vocab_free(fl_vocab *v);

typedef struct fl_specials {
    fl_arena arena; /* names */
    fl_strmap ids;  /* name -> id */
    bool starts[256];
    FL_VEC(uint32_t) lengths; /* of names, descending, without repetition */
} fl_specials;

/* Names every special slot of v: by added_tokens_decoder of tokenizer_config.json, the others by
 * reserved (see fl_tokenizer_spec).  s is freed with fl_specials_free after failure too. */
FL_MUST_CHECK fl_status fl_specials_read(const char *path, const char *reserved, fl_vocab *v,
                                         fl_specials *s, fl_error *err);
void fl_specials_free(fl_specials *s);
/* The first name in text, the longest of those that begin there: its place and id, or false. */
bool fl_specials_find(const fl_specials *s, fl_bytes text, size_t *begin, size_t *end, int32_t *id);

/* A compiled split pattern.  Nothing outside split.c names PCRE2. */
typedef struct fl_splitter fl_splitter;
typedef struct fl_split_scratch fl_split_scratch; /* of one thread */
FL_MUST_CHECK fl_status fl_splitter_create(const char *pattern, fl_splitter **out, fl_error *err);
void fl_splitter_free(fl_splitter *s);                           /* NULL is allowed */
fl_split_scratch *fl_split_scratch_create(const fl_splitter *s); /* NULL: no memory */
void fl_split_scratch_free(fl_split_scratch *scratch);           /* NULL is allowed */
/* The next piece of text (valid UTF-8, not looked at again) from *at on, which moves to its end.
 * Pieces cover the text: what the pattern does not match is a piece too.  *at < text.len. */
FL_MUST_CHECK fl_status fl_split_next(const fl_splitter *s, fl_split_scratch *scratch,
                                      fl_bytes text, size_t *at, fl_bytes *piece, fl_error *err);

/* Scratch of the merge loop, reused from piece to piece; {0} is empty. */
typedef struct fl_bpe {
    struct fl_bpe_part *parts;
    size_t cap;
    FL_VEC(uint64_t) heap;
} fl_bpe;

/* Appends the ids of one piece (1 .. UINT32_MAX bytes).  False when memory ran out. */
bool fl_bpe_encode(fl_bpe *b, const fl_vocab *v, fl_bytes piece, fl_ids *out);
void fl_bpe_free(fl_bpe *b);

#endif
