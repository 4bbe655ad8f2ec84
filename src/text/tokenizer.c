/* A tokenizer: text is cleaned, cut into chunks, the chunks at special tokens where those are
 * allowed, the rest normalised and split into pieces, and each piece is merged to ids. */
#include "text/text_internal.h"

/* A rank file and its names; the pattern comes from the model file. */
static fl_status open_ranks(fl_tokenizer *t, const char *file, const char *config,
                            const fl_tokenizer_spec *spec, fl_error *err)
{
    if (!spec->pattern)
        return fl_fail(err, FL_ARGUMENT, "a tokenizer of kind \"tiktoken\" needs a pattern");
    FL_TRY(fl_splitter_create(spec->pattern, &t->pipeline.stages[0].splitter, err));
    t->pipeline.n = 1;
    FL_TRY(fl_vocab_read(file, spec->vocab_size, &t->vocab, err));
    return fl_specials_read(config, spec->reserved, &t->vocab, &t->specials, err);
}

static fl_status open_parts(fl_tokenizer *t, const char *dir, const fl_tokenizer_spec *spec,
                            fl_error *err)
{
    bool ranks = spec->kind && strcmp(spec->kind, "tiktoken") == 0;
    if (!ranks && (!spec->kind || strcmp(spec->kind, "hf") != 0))
        return fl_fail(err, FL_UNSUPPORTED,
                       "tokenizer kind \"%s\"; \"tiktoken\" and \"hf\" are supported",
                       spec->kind ? spec->kind : "");
    if (!spec->file || spec->max_chars < 0 || spec->max_run < 0)
        return fl_fail(err, FL_ARGUMENT, "a tokenizer needs a file and limits >= 0");
    fl_arena paths = {0};
    const char *file = fl_arena_printf(&paths, "%s/%s", dir, spec->file);
    const char *config = fl_arena_printf(&paths, "%s/tokenizer_config.json", dir);
    fl_status s;
    if (!file || !config)
        s = fl_fail(err, FL_NOMEM, "no memory for a path");
    else if (ranks)
        s = open_ranks(t, file, config, spec, err);
    else
        s = fl_hf_read(file, spec->vocab_size, t, err);
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
    fl_specials_free(&t->normalized);
    fl_pipeline_free(&t->pipeline);
    fl_free(t);
}

/* What one call of fl_tokenizer_encode works with. */
typedef struct encoder {
    const fl_tokenizer *t;
    fl_split_scratch *scratch;
    fl_bpe bpe;
    fl_buf normal; /* a part of the text, normalised */
    bool specials;
    fl_ids *out;
    fl_error *err;
} encoder;

static fl_status no_memory(encoder *e)
{
    return fl_fail(e->err, FL_NOMEM, "no memory to encode a text");
}

static fl_status encode_piece(void *ctx, fl_bytes piece)
{
    encoder *e = ctx;
    return fl_bpe_encode(&e->bpe, &e->t->vocab, piece, e->out) ? FL_OK : no_memory(e);
}

static fl_status encode_plain(encoder *e, fl_bytes text)
{
    return fl_pipeline_run(&e->t->pipeline, e->scratch, text, encode_piece, e, e->err);
}

/* Widens begin .. end by the white space around it in text. */
static void strip(const fl_special *token, fl_bytes text, size_t *begin, size_t *end)
{
    size_t len;
    while (token->strip_right && *end < text.len &&
           fl_white_space(fl_utf8_decode(text.data + *end, &len)))
        *end += len;
    for (size_t at = *begin; token->strip_left && at > 0;) {
        do
            at--;
        while (((unsigned char)text.data[at] & 0xc0) == 0x80);
        if (!fl_white_space(fl_utf8_decode(text.data + at, &len)))
            break;
        *begin = at;
    }
}

/* Cuts text at the names of special tokens, as far as they are allowed; next takes what is left. */
static fl_status encode_named(encoder *e, const fl_specials *names, fl_bytes text,
                              fl_status (*next)(encoder *e, fl_bytes text))
{
    size_t begin, end;
    const fl_special *token;
    while (e->specials && (token = fl_specials_find(names, text, &begin, &end)) != NULL) {
        strip(token, text, &begin, &end);
        if (begin)
            FL_TRY(next(e, (fl_bytes){text.data, begin}));
        if (!fl_vec_push(e->out, token->id))
            return no_memory(e);
        text = (fl_bytes){text.data + end, text.len - end};
    }
    return text.len ? next(e, text) : FL_OK;
}

static fl_status encode_normalized(encoder *e, fl_bytes text)
{
    if (e->t->nfc && !fl_nfc(&text, &e->normal))
        return no_memory(e);
    return encode_named(e, &e->t->normalized, text, encode_plain);
}

static fl_status encode_chunk(encoder *e, fl_bytes text)
{
    return encode_named(e, &e->t->specials, text, encode_normalized);
}

/* Python's str.isspace, which a release's own chunking uses: White_Space and U+001C..1F. */
static bool is_space(uint32_t c)
{
    return fl_white_space(c) || (c >= 0x1c && c <= 0x1f);
}

/* Cuts text for the split: at every max_chars characters, and between those where a run of
 * space or of other characters is longer than max_run; counting starts anew at each cut. */
static fl_status encode_clean(encoder *e, fl_bytes text)
{
    const fl_tokenizer *t = e->t;
    if (!t->max_chars && !t->max_run)
        return encode_chunk(e, text);
    size_t start = 0, len;
    int64_t chars = 0, run = 0;
    bool run_is_space = false;
    for (size_t i = 0; i < text.len; i += len, chars++) {
        bool space = is_space(fl_utf8_decode(text.data + i, &len));
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
    e.scratch = fl_split_scratch_create(t->pipeline.stages[0].splitter);
    fl_status s;
    if (!e.scratch || !fl_utf8_feed(&utf8, text, len, &clean) || !fl_utf8_end(&utf8, &clean))
        s = no_memory(&e);
    else
        s = encode_clean(&e, (fl_bytes){clean.data, clean.n});
    if (s != FL_OK)
        out->n = before;
    fl_split_scratch_free(e.scratch);
    fl_bpe_free(&e.bpe);
    fl_vec_free(&e.normal);
    fl_vec_free(&clean);
    return s;
}

fl_bytes fl_tokenizer_bytes(const fl_tokenizer *t, int32_t id)
{
    return id >= 0 && id < t->vocab.size ? t->vocab.tokens[id] : (fl_bytes){NULL, 0};
}

static const fl_special *find_special(const fl_tokenizer *t, const char *name, size_t len)
{
    const fl_special *found = fl_specials_get(&t->specials, name, len);
    return found ? found : fl_specials_get(&t->normalized, name, len);
}

int32_t fl_tokenizer_special(const fl_tokenizer *t, const char *name)
{
    const fl_special *found = find_special(t, name, strlen(name));
    return found ? found->id : FL_NO_TOKEN;
}

bool fl_tokenizer_is_special(const fl_tokenizer *t, int32_t id)
{
    fl_bytes name = fl_tokenizer_bytes(t, id);
    const fl_special *found = name.len ? find_special(t, name.data, name.len) : NULL;
    return found && found->id == id;
}

int64_t fl_tokenizer_size(const fl_tokenizer *t)
{
    return t->vocab.size;
}
