/* The parts of a tokenizer, each in its own file: the vocabulary (vocab.c, hf.c), its merges
 * (merges.c, bpe.c), the special tokens (special.c), the way from text to pieces (nfc.c,
 * pipeline.c, split.c, ruby.c).  For this room and its tests. */
#ifndef FL_TEXT_INTERNAL_H
#define FL_TEXT_INTERNAL_H

#include "base/arena.h"
#include "base/strmap.h"
#include "checkpoint/json.h"
#include "text/tokenizer.h"

/* Limits on what a vocabulary file may ask for. */
enum {
    FL_MAX_VOCAB = 1 << 22,        /* ids */
    FL_MAX_TOKEN_BYTES = 4096,     /* bytes of one token: bounds the work of one merge */
    FL_MAX_VOCAB_FILE = 256 << 20, /* bytes of the rank file */
    FL_MAX_CONFIG_FILE = 16 << 20, /* bytes of tokenizer_config.json */
    FL_MAX_NAME_BYTES = 256,       /* bytes of the name of a special token */
    FL_MAX_STAGES = 16,            /* splits one after the other */
    FL_MAX_TEXT_BYTES = 1 << 30    /* bytes of one text; below 4 GiB when cleaned */
};

/* ---- characters ---- */

/* The character that begins at p (valid UTF-8) and its length. */
uint32_t fl_utf8_decode(const char *p, size_t *len);
bool fl_utf8_put(fl_buf *out, uint32_t c); /* c <= 0x10ffff; false: no memory */
bool fl_white_space(uint32_t c);           /* Unicode's White_Space */

/* *text in Unicode's Normalization Form C: itself when it is that already at first sight, else the
 * bytes put into scratch, which replace what it held.  False when memory ran out. */
bool fl_nfc(fl_bytes *text, fl_buf *scratch);

/* ---- vocabulary ---- */

/* An explicit list of merges: two adjacent ids become one.  {0} is empty. */
typedef struct fl_merge {
    int32_t left, right, rank, id; /* rank: from 1, the lower goes first; 0 is a free slot */
} fl_merge;
typedef struct fl_merges {
    fl_merge *slots;
    size_t cap;
} fl_merges;
bool fl_merges_create(fl_merges *m, size_t most); /* room for `most`; false: no memory */
void fl_merges_put(fl_merges *m, fl_merge merge); /* of two with one pair the later counts */
const fl_merge *fl_merges_get(const fl_merges *m, int32_t left, int32_t right); /* or NULL */

/* Ids and their bytes.  In a rank file the id of a token is also the order in which merges are
 * made; another vocabulary lists its merges. */
typedef struct fl_vocab {
    fl_bytes *tokens; /* [size]; special tokens have their names; {"", 0}: an id without a token */
    int32_t size, n_ranks; /* n_ranks: of a rank file, where the other slots are special tokens */
    bool listed;           /* merges, not ranks, say what is merged */
    bool whole;     /* a piece that is a token is that token, whatever the merges make of it */
    size_t longest; /* bytes of the longest token of ids */
    int32_t byte_id[256]; /* the id of every single byte that UTF-8 has */
    fl_strmap ids;        /* bytes of a token -> id; only if whole; keys lie in storage */
    fl_merges merges;
    char *storage;
} fl_vocab;

/* Reads a tiktoken rank file: one "base64(bytes) rank" a line, in any order, ranks 0 .. n - 1
 * without a gap, all 256 single bytes among them.  size: ids of the whole vocabulary, n <= size.
 * Special slots are left {NULL, 0}.  v is freed with fl_vocab_free after failure too. */
FL_MUST_CHECK fl_status fl_vocab_read(const char *path, int64_t size, fl_vocab *v, fl_error *err);
void fl_vocab_free(fl_vocab *v);

/* A set of special tokens that are looked for in one pass. */
typedef struct fl_special {
    int32_t id;
    bool strip_left, strip_right; /* white space beside it in a text is part of it */
} fl_special;
typedef struct fl_specials {
    fl_arena arena;  /* names */
    fl_strmap names; /* name -> entry */
    FL_VEC(fl_special) entries;
    bool starts[256];
    FL_VEC(uint32_t) lengths; /* of names, descending, without repetition */
} fl_specials;

/* Adds a token, whose name (1 .. FL_MAX_NAME_BYTES) is copied and becomes the bytes of its id; path
 * is for messages. */
FL_MUST_CHECK fl_status fl_specials_add(fl_specials *s, const char *path, fl_special token,
                                        fl_bytes name, fl_vocab *v, fl_error *err);
/* Names every special slot of v: by added_tokens_decoder of tokenizer_config.json, the others by
 * reserved (see fl_tokenizer_spec).  s is freed with fl_specials_free after failure too. */
FL_MUST_CHECK fl_status fl_specials_read(const char *path, const char *reserved, fl_vocab *v,
                                         fl_specials *s, fl_error *err);
void fl_specials_free(fl_specials *s);
const fl_special *fl_specials_get(const fl_specials *s, const char *name, size_t len); /* or NULL */
/* The first name in text, the longest of those that begin there: its place, or NULL. */
const fl_special *fl_specials_find(const fl_specials *s, fl_bytes text, size_t *begin, size_t *end);

/* ---- pieces ---- */

/* A compiled split pattern.  Nothing outside split.c names PCRE2. */
typedef struct fl_splitter fl_splitter;
typedef struct fl_split_scratch fl_split_scratch; /* of one thread */
FL_MUST_CHECK fl_status fl_splitter_create(const char *pattern, fl_splitter **out, fl_error *err);
void fl_splitter_free(fl_splitter *s);                           /* NULL is allowed */
fl_split_scratch *fl_split_scratch_create(const fl_splitter *s); /* NULL: no memory */
void fl_split_scratch_free(fl_split_scratch *scratch);           /* NULL is allowed */
bool fl_splitter_matches_nothing(const fl_splitter *s);          /* an empty text may match */
/* The next piece of text (valid UTF-8, not looked at again) from *at on, which moves to its end.
 * Pieces cover the text: what the pattern does not match is a piece too, with *matched false.
 * *at < text.len. */
FL_MUST_CHECK fl_status fl_split_next(const fl_splitter *s, fl_split_scratch *scratch,
                                      fl_bytes text, size_t *at, fl_bytes *piece, bool *matched,
                                      fl_error *err);

/* Rewrites a pattern in Oniguruma's Ruby syntax, which tokenizer.json has, for fl_splitter_create:
 * appends it to out, terminated.  What means something else there and is not rewritten is
 * FL_UNSUPPORTED, with the place. */
FL_MUST_CHECK fl_status fl_ruby_pattern(fl_bytes pattern, fl_buf *out, fl_error *err);

/* What becomes of matches: pieces of their own, nothing, a part of the piece before or after, or
 * one piece with the matches beside them. */
typedef enum fl_split_how {
    FL_SPLIT_ISOLATED,
    FL_SPLIT_REMOVED,
    FL_SPLIT_WITH_PREVIOUS,
    FL_SPLIT_WITH_NEXT,
    FL_SPLIT_CONTIGUOUS
} fl_split_how;
typedef struct fl_stage {
    fl_splitter *splitter;
    fl_split_how how;
    bool invert; /* what the pattern leaves out counts as match */
} fl_stage;
typedef struct fl_pipeline {
    fl_stage stages[FL_MAX_STAGES];
    int n;
} fl_pipeline;
/* Splits text by every stage in turn, each piece of one being the text of the next, and calls put
 * with each of the last, in order. */
typedef fl_status (*fl_piece_put)(void *ctx, fl_bytes piece);
FL_MUST_CHECK fl_status fl_pipeline_run(const fl_pipeline *p, fl_split_scratch *scratch,
                                        fl_bytes text, fl_piece_put put, void *ctx, fl_error *err);
void fl_pipeline_free(fl_pipeline *p);

/* Scratch of the merge loop, reused from piece to piece; {0} is empty. */
typedef struct fl_bpe {
    struct fl_bpe_part *parts;
    size_t cap;
    FL_VEC(uint64_t) heap;
} fl_bpe;

/* Appends the ids of one piece (1 .. UINT32_MAX bytes).  False when memory ran out. */
bool fl_bpe_encode(fl_bpe *b, const fl_vocab *v, fl_bytes piece, fl_ids *out);
void fl_bpe_free(fl_bpe *b);

/* ---- the whole ---- */

struct fl_tokenizer {
    fl_vocab vocab;
    fl_specials specials;   /* found in the text as it is */
    fl_specials normalized; /* found in what is left of it, once that is normalised */
    bool nfc;               /* text is brought to Normalization Form C */
    fl_pipeline pipeline;
    int64_t max_chars, max_run;
};

/* Reads a tokenizer.json into the empty t, which is closed by the caller after failure too.  size:
 * ids of the whole vocabulary.  hf_pipeline.c reads what leads from text to pieces. */
FL_MUST_CHECK fl_status fl_hf_read(const char *path, int64_t size, fl_tokenizer *t, fl_error *err);
FL_MUST_CHECK fl_status fl_hf_read_pipeline(const char *path, const fl_json *root, fl_tokenizer *t,
                                            fl_error *err);

#endif
