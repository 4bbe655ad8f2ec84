/* tokenizer.json: the vocabulary, its merges and the added tokens of a byte-level BPE.
 *
 * Tokens are written in letters that stand for bytes; they are read back to bytes here.  Ids of
 * merges are found by the written form, because a name that is not made of those letters may stand
 * in the vocabulary too.  Everything that could give an id two meanings is refused by its name. */
#include "text/text_internal.h"

typedef struct reader {
    const char *path;
    fl_tokenizer *t;
    fl_strmap written; /* token as written -> id; keys lie in the JSON */
    fl_buf joined;     /* the two halves of a merge */
    fl_error *err;
} reader;

static fl_status no_memory(const reader *r)
{
    return fl_fail(r->err, FL_NOMEM, "%s: no memory for the vocabulary", r->path);
}

/* How much of a name a message shows. */
static int shown(fl_bytes name)
{
    return (int)(name.len < 80 ? name.len : 80);
}

/* ---- bytes as letters ---- */

/* Whether byte stands for itself; the others are written U+0100 and on, in order. */
static bool is_letter(uint32_t byte)
{
    return (byte >= 0x21 && byte <= 0x7e) || (byte >= 0xa1 && byte <= 0xac) ||
           (byte >= 0xae && byte <= 0xff);
}

/* Reads `written` back to bytes: false when a character of it stands for no byte. */
static bool read_letters(fl_bytes written, const uint8_t others[256], char *out, size_t *n)
{
    size_t len;
    *n = 0;
    for (size_t i = 0; i < written.len; i += len) {
        uint32_t c = fl_utf8_decode(written.data + i, &len);
        if (c < 0x100 ? !is_letter(c) : c >= 0x144)
            return false;
        out[(*n)++] = (char)(c < 0x100 ? c : others[c - 0x100]);
    }
    return true;
}

/* ---- vocabulary ---- */

static fl_status read_token(reader *r, const uint8_t others[256], fl_bytes written,
                            const fl_json *value, char **store)
{
    fl_vocab *v = &r->t->vocab;
    int64_t id = fl_json_is(value, FL_JSON_INT) ? fl_json_int(value) : -1;
    if (id < 0 || id >= v->size)
        return fl_fail(r->err, FL_FORMAT,
                       "%s: model.vocab: \"%.*s\" needs an id below %d, the model's vocabulary",
                       r->path, shown(written), written.data, (int)v->size);
    if (!written.len || written.len > FL_MAX_TOKEN_BYTES)
        return fl_fail(r->err, FL_FORMAT, "%s: model.vocab: a token of %zu bytes; 1..%d are read",
                       r->path, written.len, FL_MAX_TOKEN_BYTES);
    if (v->tokens[id].len)
        return fl_fail(r->err, FL_FORMAT, "%s: model.vocab: \"%.*s\" and another token have id %d",
                       r->path, shown(written), written.data, (int)id);
    fl_bytes token = {*store, 0};
    bool letters = read_letters(written, others, *store, &token.len);
    if (!letters) {
        memcpy(*store, written.data, written.len);
        token.len = written.len;
    }
    *store += token.len;
    v->tokens[id] = token;
    if (!fl_strmap_put(&r->written, written.data, written.len, (uint32_t)id, NULL))
        return no_memory(r);
    if (!letters)
        return FL_OK;
    if (token.len == 1)
        v->byte_id[(unsigned char)*token.data] = (int32_t)id;
    if (!v->whole)
        return FL_OK;
    if (token.len > v->longest)
        v->longest = token.len;
    return fl_strmap_put(&v->ids, token.data, token.len, (uint32_t)id, NULL) ? FL_OK : no_memory(r);
}

/* Bytes of UTF-8 need a token each; C0, C1 and F5..FF are in no text. */
static fl_status check_bytes(const reader *r)
{
    for (int i = 0; i < 0xf5; i++) {
        if (i != 0xc0 && i != 0xc1 && r->t->vocab.byte_id[i] < 0)
            return fl_fail(r->err, FL_FORMAT,
                           "%s: model.vocab: the single byte 0x%02x is not among the tokens",
                           r->path, (unsigned)i);
    }
    return FL_OK;
}

static fl_status read_vocab(reader *r, const fl_json *vocab)
{
    fl_vocab *v = &r->t->vocab;
    size_t bytes = 1;
    uint8_t others[256];
    for (int i = 0, n = 0; i < 256; i++) {
        v->byte_id[i] = -1;
        if (!is_letter((uint32_t)i))
            others[n++] = (uint8_t)i;
    }
    for (void *it = fl_json_iter(vocab); it; it = fl_json_next(vocab, it))
        bytes += fl_json_iter_key(it).len;
    v->storage = fl_malloc(bytes);
    v->tokens = fl_calloc((size_t)v->size, sizeof *v->tokens);
    if (!v->storage || !v->tokens)
        return no_memory(r);
    for (int32_t i = 0; i < v->size; i++)
        v->tokens[i].data = "";
    char *store = v->storage;
    for (void *it = fl_json_iter(vocab); it; it = fl_json_next(vocab, it))
        FL_TRY(read_token(r, others, fl_json_iter_key(it), fl_json_iter_value(it), &store));
    return check_bytes(r);
}

/* ---- merges ---- */

static fl_status bad_merge(const reader *r, size_t i, const char *what)
{
    return fl_fail(r->err, FL_FORMAT, "%s: model.merges[%zu] %s", r->path, i, what);
}

/* A merge is "left right" or ["left", "right"]. */
static fl_status read_halves(const reader *r, const fl_json *merge, size_t i, fl_bytes half[2])
{
    if (fl_json_is(merge, FL_JSON_STRING)) {
        fl_bytes text = fl_json_string(merge);
        const char *space = memchr(text.data, ' ', text.len);
        size_t left = space ? (size_t)(space - text.data) : text.len;
        half[0] = (fl_bytes){text.data, left};
        half[1] = (fl_bytes){text.data + left + 1, space ? text.len - left - 1 : 0};
        if (half[1].len && memchr(half[1].data, ' ', half[1].len))
            return bad_merge(r, i, "has more than one space");
    } else if (fl_json_is(merge, FL_JSON_ARRAY) && fl_json_size(merge) == 2 &&
               fl_json_is(fl_json_at(merge, 0), FL_JSON_STRING) &&
               fl_json_is(fl_json_at(merge, 1), FL_JSON_STRING)) {
        half[0] = fl_json_string(fl_json_at(merge, 0));
        half[1] = fl_json_string(fl_json_at(merge, 1));
    } else {
        return bad_merge(r, i, "is neither \"left right\" nor [\"left\", \"right\"]");
    }
    return half[0].len && half[1].len ? FL_OK : bad_merge(r, i, "has an empty half");
}

static fl_status read_merge(reader *r, const fl_json *merge, size_t i)
{
    fl_bytes half[2] = {{NULL, 0}, {NULL, 0}};
    uint32_t left, right, id;
    FL_TRY(read_halves(r, merge, i, half));
    r->joined.n = 0;
    if (!fl_vec_append(&r->joined, half[0].data, half[0].len) ||
        !fl_vec_append(&r->joined, half[1].data, half[1].len))
        return no_memory(r);
    if (!fl_strmap_get(&r->written, half[0].data, half[0].len, &left) ||
        !fl_strmap_get(&r->written, half[1].data, half[1].len, &right))
        return bad_merge(r, i, "joins something that is not in model.vocab");
    if (!fl_strmap_get(&r->written, r->joined.data, r->joined.n, &id))
        return bad_merge(r, i, "makes something that is not in model.vocab");
    fl_merges_put(&r->t->vocab.merges,
                  (fl_merge){(int32_t)left, (int32_t)right, (int32_t)i + 1, (int32_t)id});
    return FL_OK;
}

static fl_status read_merges(reader *r, const fl_json *merges)
{
    size_t n = fl_json_size(merges);
    if (n > FL_MAX_VOCAB)
        return fl_fail(r->err, FL_FORMAT, "%s: model.merges has %zu entries; %d are read", r->path,
                       n, FL_MAX_VOCAB);
    if (!fl_merges_create(&r->t->vocab.merges, n))
        return no_memory(r);
    for (size_t i = 0; i < n; i++)
        FL_TRY(read_merge(r, fl_json_at(merges, i), i));
    return FL_OK;
}

/* Members of model that would change the ids if they were set.  Nothing is unknown to a byte-level
 * vocabulary, so unk_token, fuse_unk and byte_fallback change nothing. */
static fl_status check_unset(const reader *r, const fl_json *model)
{
    static const char *const names[] = {"dropout", "continuing_subword_prefix",
                                        "end_of_word_suffix"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        const fl_json *v = fl_json_get(model, names[i]);
        bool empty = !v || fl_json_is(v, FL_JSON_NULL) ||
                     (fl_json_is(v, FL_JSON_STRING) && !fl_json_string(v).len);
        if (!empty)
            return fl_fail(r->err, FL_UNSUPPORTED, "%s: model.%s is not supported", r->path,
                           names[i]);
    }
    return FL_OK;
}

static fl_status read_model(reader *r, const fl_json *model)
{
    if (!fl_json_is(model, FL_JSON_OBJECT))
        return fl_fail(r->err, FL_FORMAT, "%s: model is missing or no object", r->path);
    const fl_json *type = fl_json_get(model, "type"), *vocab = fl_json_get(model, "vocab"),
                  *merges = fl_json_get(model, "merges"),
                  *whole = fl_json_get(model, "ignore_merges");
    fl_bytes name = fl_json_is(type, FL_JSON_STRING) ? fl_json_string(type) : (fl_bytes){"", 0};
    if (name.len != 3 || memcmp(name.data, "BPE", 3) != 0)
        return fl_fail(r->err, FL_UNSUPPORTED, "%s: model: \"%.*s\" is not supported", r->path,
                       shown(name), name.data);
    FL_TRY(check_unset(r, model));
    if (!fl_json_is(vocab, FL_JSON_OBJECT) || !fl_json_is(merges, FL_JSON_ARRAY))
        return fl_fail(r->err, FL_FORMAT, "%s: model needs an object vocab and a list of merges",
                       r->path);
    if (whole && !fl_json_is(whole, FL_JSON_BOOL))
        return fl_fail(r->err, FL_FORMAT, "%s: model.ignore_merges is %s", r->path,
                       fl_json_type_name(whole));
    r->t->vocab.listed = true;
    r->t->vocab.whole = whole && fl_json_bool(whole);
    FL_TRY(read_vocab(r, vocab));
    return read_merges(r, merges);
}

/* ---- added tokens ---- */

static fl_status read_flag(const reader *r, const fl_json *token, size_t i, const char *key,
                           bool *out)
{
    const fl_json *v = fl_json_get(token, key);
    if (!fl_json_is(v, FL_JSON_BOOL))
        return fl_fail(r->err, FL_FORMAT, "%s: added_tokens[%zu].%s is %s, expected a boolean",
                       r->path, i, key, v ? fl_json_type_name(v) : "missing");
    *out = fl_json_bool(v);
    return FL_OK;
}

static fl_status read_added(reader *r, const fl_json *token, size_t i)
{
    fl_vocab *v = &r->t->vocab;
    const fl_json *number = NULL, *content = NULL;
    if (fl_json_is(token, FL_JSON_OBJECT)) {
        number = fl_json_get(token, "id");
        content = fl_json_get(token, "content");
    }
    int64_t id = fl_json_is(number, FL_JSON_INT) ? fl_json_int(number) : -1;
    fl_bytes name =
        fl_json_is(content, FL_JSON_STRING) ? fl_json_string(content) : (fl_bytes){"", 0};
    if (id < 0 || id >= v->size || !name.len || name.len > FL_MAX_NAME_BYTES)
        return fl_fail(r->err, FL_FORMAT,
                       "%s: added_tokens[%zu] needs an id below %d, the model's vocabulary, and a "
                       "content of 1..%d bytes",
                       r->path, i, (int)v->size, FL_MAX_NAME_BYTES);
    fl_special special = {.id = (int32_t)id};
    bool word, normalized;
    FL_TRY(read_flag(r, token, i, "lstrip", &special.strip_left));
    FL_TRY(read_flag(r, token, i, "rstrip", &special.strip_right));
    FL_TRY(read_flag(r, token, i, "single_word", &word));
    FL_TRY(read_flag(r, token, i, "normalized", &normalized));
    if (word)
        return fl_fail(r->err, FL_UNSUPPORTED,
                       "%s: added_tokens[%zu]: single_word is not supported", r->path, i);
    uint32_t known;
    bool in_vocab = fl_strmap_get(&r->written, name.data, name.len, &known);
    if (in_vocab ? known != id : v->tokens[id].len != 0)
        return fl_fail(r->err, FL_FORMAT,
                       "%s: added_tokens[%zu]: \"%.*s\" and id %d do not belong together in "
                       "model.vocab or the tokens before",
                       r->path, i, shown(name), name.data, (int)id);
    return fl_specials_add(normalized ? &r->t->normalized : &r->t->specials, r->path, special, name,
                           v, r->err);
}

static fl_status read_all(reader *r, const fl_json *root)
{
    if (!fl_json_is(root, FL_JSON_OBJECT))
        return fl_fail(r->err, FL_FORMAT, "%s: not a tokenizer.json", r->path);
    FL_TRY(fl_hf_read_pipeline(r->path, root, r->t, r->err));
    FL_TRY(read_model(r, fl_json_get(root, "model")));
    const fl_json *added = fl_json_get(root, "added_tokens");
    if (added && !fl_json_is(added, FL_JSON_ARRAY))
        return fl_fail(r->err, FL_FORMAT, "%s: added_tokens is %s", r->path,
                       fl_json_type_name(added));
    for (size_t i = 0; added && i < fl_json_size(added); i++)
        FL_TRY(read_added(r, fl_json_at(added, i), i));
    return FL_OK;
}

fl_status fl_hf_read(const char *path, int64_t size, fl_tokenizer *t, fl_error *err)
{
    reader r = {.path = path, .t = t, .err = err};
    fl_json *root;
    if (size < 1 || size > FL_MAX_VOCAB)
        return fl_fail(err, FL_CONFIG, "vocab_size is %lld, expected 1..%d", (long long)size,
                       FL_MAX_VOCAB);
    t->vocab.size = (int32_t)size;
    FL_TRY(fl_json_read(path, FL_MAX_VOCAB_FILE, &root, err));
    fl_status s = read_all(&r, root);
    fl_json_free(root);
    fl_strmap_free(&r.written);
    fl_vec_free(&r.joined);
    return s;
}
