/* A tokenizer: text is cleaned, cut into chunks, the chunks at special tokens where those are
 * allowed, the rest by the split pattern into pieces, and each piece is merged to ids. */
#include "text/text_internal.h"

struct fl_tokenizer {
    fl_vocab vocab;
    fl_specials specials;
    fl_splitter *splitter;
    int64_t max_chars, max_run;
};

static fl_status open_parts(fl_tokenizer *t, const char *dir, const fl_tokenizer_spec *spec,
                            fl_error *err)
{
    if (!spec->kind || strcmp(spec->kind, "tiktoken") != 0)
        return fl_fail(err, FL_UNSUPPORTED, "tokenizer kind \"%s\"; \"tiktoken\" is supported",
                       spec->kind ? spec->kind : "");
    if (!spec->file || !spec->pattern || spec->max_chars < 0 || spec->max_run < 0)
        return fl_fail(err, FL_ARGUMENT, "a tokenizer needs a file, a pattern and limits >= 0");
    FL_TRY(fl_splitter_create(spec->pattern, &t->splitter, err));
    fl_arena paths = {0};
    const char *ranks = fl_arena_printf(&paths, "%s/%s", dir, spec->file);
    const char *config = fl_arena_printf(&paths, "%s/tokenizer_config.json", dir);
    fl_status s = ranks && config ? fl_vocab_read(ranks, spec->vocab_size, &t->vocab, err)
                                  : fl_fail(err, FL_NOMEM, "no memory for a path");
    if (s == FL_OK)
        s = fl_specials_read(config, spec->reserved, &t->vocab, &t->specials, err);
    fl_arena_free(&paths);
    t->max_chars = spec->max_chars;
    t->max_run = spec->max_run;
    return s;
}

fl_status fl_tokenizer_open(const char *dir, const fl_tokenizer_spec *spec, fl_tokenizer **out,
                            fl_error *err)
{
    *out = NULL;
    fl_tokenizer *t = fl_calloc(1, sizeof *t);
    if (!t)
        return fl_fail(err, FL_NOMEM, "no memory for the tokenizer");
    fl_status s = open_parts(t, dir, spec, err);
    if (s != FL_OK) {
        fl_tokenizer_close(t);
        return s;
    }
    *out = t;
    return FL_OK;
}

void fl_tokenizer_close(fl_tokenizer *t)
{
    if (!t)
        return;
    fl_vocab_free(&t->vocab);
    fl_specials_free(&t->specials);
    fl_splitter_free(t->splitter);
    fl_free(t);
}

/* What one call of fl_tokenizer_encode works with. */
typedef struct encoder {
    const fl_tokenizer *t;
    fl_split_scratch *scratch;
    fl_bpe bpe;
    bool specials;
    fl_ids *out;
    fl_error *err;
} encoder;

static fl_status no_memory(encoder *e)
{
    return fl_fail(e->err, FL_NOMEM, "no memory to encode a text");
}

static fl_status encode_plain(encoder *e, fl_bytes text)
{
    for (size_t at = 0; at < text.len;) {
        fl_bytes piece;
        FL_TRY(fl_split_next(e->t->splitter, e->scratch, text, &at, &piece, e->err));
        if (!fl_bpe_encode(&e->bpe, &e->t->vocab, piece, e->out))
            return no_memory(e);
    }
    return FL_OK;
}

static fl_status encode_chunk(encoder *e, fl_bytes text)
{
    size_t begin, end;
    int32_t id;
    while (e->specials && fl_specials_find(&e->t->specials, text, &begin, &end, &id)) {
        FL_TRY(encode_plain(e, (fl_bytes){text.data, begin}));
        if (!fl_vec_push(e->out, id))
            return no_memory(e);
        text = (fl_bytes){text.data + end, text.len - end};
    }
    return encode_plain(e, text);
}

/* The character that begins at p (valid UTF-8) and its length. */
static uint32_t decode(const char *p, size_t *len)
{
    const unsigned char *b = (const unsigned char *)p;
    if (b[0] < 0x80)
        return *len = 1, b[0];
    if (b[0] < 0xe0)
        return *len = 2, (b[0] & 0x1fu) << 6 | (b[1] & 0x3fu);
    if (b[0] < 0xf0)
        return *len = 3, (b[0] & 0xfu) << 12 | (b[1] & 0x3fu) << 6 | (b[2] & 0x3fu);
    *len = 4;
    return (b[0] & 7u) << 18 | (b[1] & 0x3fu) << 12 | (b[2] & 0x3fu) << 6 | (b[3] & 0x3fu);
}

/* Python's str.isspace, which the release's own chunking uses: White_Space and U+001C..1F. */
static bool is_space(uint32_t c)
{
    return (c >= 0x09 && c <= 0x0d) || (c >= 0x1c && c <= 0x20) || c == 0x85 || c == 0xa0 ||
           c == 0x1680 || (c >= 0x2000 && c <= 0x200a) || c == 0x2028 || c == 0x2029 ||
           c == 0x202f || c == 0x205f || c == 0x3000;
}

/* Cuts text for the split: at every max_chars characters, and between those where a run of
 * space or of other characters is longer than max_run; counting starts anew at each cut. */
static fl_status encode_clean(encoder *e, fl_bytes text)
{
    const fl_tokenizer *t = e->t;
    size_t start = 0, len;
    int64_t chars = 0, run = 0;
    bool run_is_space = false;
    for (size_t i = 0; i < text.len; i += len, chars++) {
        bool space = is_space(decode(text.data + i, &len));
        bool full = t->max_chars && chars == t->max_chars;
        run = full || space != run_is_space ? 1 : run + 1;
        run_is_space = space;
        if (full)
            chars = 0;
        if (!full && !(t->max_run && run > t->max_run))
            continue;
        FL_TRY(encode_chunk(e, (fl_bytes){text.data + start, i - start}));
        start = i;
        run = 1;
    }
    return encode_chunk(e, (fl_bytes){text.data + start, text.len - start});
}

fl_status fl_tokenizer_encode(const fl_tokenizer *t, const char *text, size_t len, bool specials,
                              fl_ids *out, fl_error *err)
{
    if (len > FL_MAX_TEXT_BYTES)
        return fl_fail(err, FL_ARGUMENT, "a text of %zu bytes; at most %d are encoded at once", len,
                       FL_MAX_TEXT_BYTES);
    if (!len)
        return FL_OK;
    encoder e = {.t = t, .specials = specials, .out = out, .err = err};
    size_t before = out->n;
    fl_buf clean = {0};
    fl_utf8_stream utf8 = {0};
    e.scratch = fl_split_scratch_create(t->splitter);
    fl_status s;
    if (!e.scratch || !fl_utf8_feed(&utf8, text, len, &clean) || !fl_utf8_end(&utf8, &clean))
        s = no_memory(&e);
    else
        s = encode_clean(&e, (fl_bytes){clean.data, clean.n});
    if (s != FL_OK)
        out->n = before;
    fl_split_scratch_free(e.scratch);
    fl_bpe_free(&e.bpe);
    fl_vec_free(&clean);
    return s;
}

fl_bytes fl_tokenizer_bytes(const fl_tokenizer *t, int32_t id)
{
    return id >= 0 && id < t->vocab.size ? t->vocab.tokens[id] : (fl_bytes){NULL, 0};
}

int32_t fl_tokenizer_special(const fl_tokenizer *t, const char *name)
{
    uint32_t id;
    return fl_strmap_get(&t->specials.ids, name, strlen(name), &id) ? (int32_t)id : FL_NO_TOKEN;
}

bool fl_tokenizer_is_special(const fl_tokenizer *t, int32_t id)
{
    return id >= t->vocab.n_ranks && id < t->vocab.size;
}

int64_t fl_tokenizer_size(const fl_tokenizer *t)
{
    return t->vocab.size;
}
