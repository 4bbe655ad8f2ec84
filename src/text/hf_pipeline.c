/* The parts of a tokenizer.json that lead from text to pieces and back: normalizer, pre_tokenizer
 * and decoder.  They become a flag and a row of splits.
 *
 * A byte-level vocabulary is the one kind that is read: its pre_tokenizer ends with ByteLevel,
 * which writes every byte as a letter.  Here the vocabulary is read back to bytes instead (hf.c),
 * so that step costs nothing when text is encoded. */
#include "text/text_internal.h"

/* The pattern of ByteLevel's own split. */
#define BYTE_LEVEL                                                                                 \
    "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+"

typedef struct reader {
    const char *path;
    fl_tokenizer *t;
    bool bytes; /* ByteLevel was seen */
    fl_error *err;
} reader;

static fl_bytes string_of(const fl_json *object, const char *key)
{
    const fl_json *v = fl_json_is(object, FL_JSON_OBJECT) ? fl_json_get(object, key) : NULL;
    return fl_json_is(v, FL_JSON_STRING) ? fl_json_string(v) : (fl_bytes){"", 0};
}

static bool is(fl_bytes text, const char *word)
{
    return text.len == strlen(word) && memcmp(text.data, word, text.len) == 0;
}

static fl_status refuse(const reader *r, const char *part, const fl_json *node)
{
    fl_bytes type = string_of(node, "type");
    return fl_fail(r->err, FL_UNSUPPORTED, "%s: %s: \"%.*s\" is not supported", r->path, part,
                   (int)(type.len < 60 ? type.len : 60), type.data);
}

/* A member that is true, or false when absent and not `unset`. */
static fl_status read_bool(const reader *r, const fl_json *node, const char *key, bool unset,
                           bool *out)
{
    const fl_json *v = fl_json_get(node, key);
    if (v && !fl_json_is(v, FL_JSON_BOOL))
        return fl_fail(r->err, FL_FORMAT, "%s: pre_tokenizer: %s is %s", r->path, key,
                       fl_json_type_name(v));
    *out = v ? fl_json_bool(v) : unset;
    return FL_OK;
}

/* ---- splits ---- */

static fl_status add_stage(reader *r, fl_bytes pattern, fl_split_how how, bool invert)
{
    fl_pipeline *p = &r->t->pipeline;
    if (p->n == FL_MAX_STAGES)
        return fl_fail(r->err, FL_UNSUPPORTED, "%s: pre_tokenizer: more than %d splits", r->path,
                       FL_MAX_STAGES);
    fl_buf translated = {0};
    fl_splitter *splitter = NULL;
    fl_status s = fl_ruby_pattern(pattern, &translated, r->err);
    if (s == FL_OK)
        s = fl_splitter_create(translated.data, &splitter, r->err);
    fl_vec_free(&translated);
    if (s != FL_OK) {
        fl_error_prefix(r->err, "%s: pre_tokenizer", r->path);
        return s;
    }
    p->stages[p->n++] = (fl_stage){splitter, how, invert};
    if (fl_splitter_matches_nothing(splitter))
        return fl_fail(r->err, FL_UNSUPPORTED, "%s: pre_tokenizer: a pattern that matches nothing",
                       r->path);
    return FL_OK;
}

static fl_status add_literal(reader *r, fl_bytes text, fl_split_how how, bool invert)
{
    fl_buf escaped = {0};
    bool ok = true;
    for (size_t i = 0; ok && i < text.len; i++) {
        unsigned char c = (unsigned char)text.data[i];
        bool plain =
            c >= 0x80 || c <= ' ' || (c >= '0' && c <= '9') || ((c | 32) >= 'a' && (c | 32) <= 'z');
        ok = (plain || fl_vec_push(&escaped, '\\')) && fl_vec_push(&escaped, (char)c);
    }
    fl_status s = ok ? add_stage(r, (fl_bytes){escaped.data, escaped.n}, how, invert)
                     : fl_fail(r->err, FL_NOMEM, "%s: no memory for a pattern", r->path);
    fl_vec_free(&escaped);
    return s;
}

static fl_status read_split(reader *r, const fl_json *node)
{
    static const char *const names[] = {"Isolated", "Removed", "MergedWithPrevious",
                                        "MergedWithNext", "Contiguous"};
    fl_bytes behavior = string_of(node, "behavior");
    size_t how = 0;
    while (how < sizeof names / sizeof *names && !is(behavior, names[how]))
        how++;
    if (how == sizeof names / sizeof *names)
        return fl_fail(r->err, FL_UNSUPPORTED, "%s: pre_tokenizer: Split has behavior \"%.*s\"",
                       r->path, (int)(behavior.len < 60 ? behavior.len : 60), behavior.data);
    bool invert;
    FL_TRY(read_bool(r, node, "invert", false, &invert));
    const fl_json *pattern = fl_json_get(node, "pattern");
    fl_bytes regex = string_of(pattern, "Regex"), literal = string_of(pattern, "String");
    if (!regex.len == !literal.len)
        return fl_fail(r->err, FL_FORMAT, "%s: pre_tokenizer: Split needs a pattern", r->path);
    return regex.len ? add_stage(r, regex, (fl_split_how)how, invert)
                     : add_literal(r, literal, (fl_split_how)how, invert);
}

static fl_status read_byte_level(reader *r, const fl_json *node)
{
    bool prefix, regex;
    FL_TRY(read_bool(r, node, "add_prefix_space", true, &prefix));
    FL_TRY(read_bool(r, node, "use_regex", true, &regex));
    if (prefix)
        return fl_fail(r->err, FL_UNSUPPORTED,
                       "%s: pre_tokenizer: ByteLevel with add_prefix_space is not supported",
                       r->path);
    r->bytes = true;
    return regex ? add_stage(r, (fl_bytes){BYTE_LEVEL, sizeof BYTE_LEVEL - 1}, FL_SPLIT_ISOLATED,
                             false)
                 : FL_OK;
}

static fl_status read_pre_tokenizer(reader *r, const fl_json *node)
{
    fl_bytes type = string_of(node, "type");
    const fl_json *list = is(type, "Sequence") ? fl_json_get(node, "pretokenizers") : NULL;
    if (fl_json_is(list, FL_JSON_ARRAY)) {
        for (size_t i = 0; i < fl_json_size(list); i++)
            FL_TRY(read_pre_tokenizer(r, fl_json_at(list, i)));
        return FL_OK;
    }
    if (r->bytes)
        return fl_fail(r->err, FL_UNSUPPORTED,
                       "%s: pre_tokenizer: \"%.*s\" after ByteLevel is not supported", r->path,
                       (int)(type.len < 60 ? type.len : 60), type.data);
    if (is(type, "Split"))
        return read_split(r, node);
    if (is(type, "ByteLevel"))
        return read_byte_level(r, node);
    if (is(type, "Digits")) {
        bool single;
        FL_TRY(read_bool(r, node, "individual_digits", false, &single));
        return add_stage(r, (fl_bytes){"\\p{N}", 5},
                         single ? FL_SPLIT_ISOLATED : FL_SPLIT_CONTIGUOUS, false);
    }
    return refuse(r, "pre_tokenizer", node);
}

/* ---- normalizer and decoder ---- */

static fl_status read_normalizer(reader *r, const fl_json *node)
{
    fl_bytes type = string_of(node, "type");
    const fl_json *list = is(type, "Sequence") ? fl_json_get(node, "normalizers") : NULL;
    if (!node || fl_json_is(node, FL_JSON_NULL))
        return FL_OK;
    if (is(type, "NFC")) {
        r->t->nfc = true;
        return FL_OK;
    }
    if (!fl_json_is(list, FL_JSON_ARRAY))
        return refuse(r, "normalizer", node);
    for (size_t i = 0; i < fl_json_size(list); i++)
        FL_TRY(read_normalizer(r, fl_json_at(list, i)));
    return FL_OK;
}

static fl_status read_decoder(reader *r, const fl_json *node)
{
    fl_bytes type = string_of(node, "type");
    const fl_json *list = is(type, "Sequence") ? fl_json_get(node, "decoders") : NULL;
    if (fl_json_is(list, FL_JSON_ARRAY) && fl_json_size(list) == 1)
        return read_decoder(r, fl_json_at(list, 0));
    return is(type, "ByteLevel") ? FL_OK : refuse(r, "decoder", node);
}

fl_status fl_hf_read_pipeline(const char *path, const fl_json *root, fl_tokenizer *t, fl_error *err)
{
    reader r = {.path = path, .t = t, .err = err};
    FL_TRY(read_normalizer(&r, fl_json_get(root, "normalizer")));
    FL_TRY(read_pre_tokenizer(&r, fl_json_get(root, "pre_tokenizer")));
    if (!r.bytes)
        return fl_fail(
            err, FL_UNSUPPORTED,
            "%s: pre_tokenizer: no ByteLevel; only byte-level vocabularies are supported", path);
    FL_TRY(read_decoder(&r, fl_json_get(root, "decoder")));
    /* ByteLevel alone: one split that cuts nothing off. */
    return t->pipeline.n ? FL_OK
                         : add_stage(&r, (fl_bytes){"[\\s\\S]+", 7}, FL_SPLIT_ISOLATED, false);
}
