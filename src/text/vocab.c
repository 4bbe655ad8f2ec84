/* The rank file of a tiktoken vocabulary: text, "base64(bytes) rank" a line.
 *
 * All bytes are decoded into one block, which the map of tokens and the table of ids point into; it
 * never moves, because decoding makes a file shorter and so its size is enough.  The file comes
 * from outside: everything that could make an id mean two things or nothing is refused with the
 * line that says it. */
#include "text/text_internal.h"

#include "base/file.h"

typedef struct reader {
    const char *path;
    const char *at, *end;
    long line;
    char *store; /* where the next token's bytes go */
    fl_error *err;
} reader;

static int base64_value(char c)
{
    if (c >= 'A' && c <= 'Z')
        return c - 'A';
    if (c >= 'a' && c <= 'z')
        return c - 'a' + 26;
    if (c >= '0' && c <= '9')
        return c - '0' + 52;
    return c == '+' ? 62 : c == '/' ? 63 : -1;
}

/* Decodes len characters to out; the number of bytes, or -1 when they are not base64. */
static long base64_decode(const char *text, size_t len, char *out)
{
    if (len % 4)
        return -1;
    size_t padding = len && text[len - 1] == '=' ? 1 + (text[len - 2] == '=') : 0;
    uint32_t group = 0;
    char *o = out;
    for (size_t i = 0; i < len; i++) {
        int value = i < len - padding ? base64_value(text[i]) : 0;
        if (value < 0)
            return -1;
        group = group << 6 | (uint32_t)value;
        if (i % 4 == 3) {
            *o++ = (char)(group >> 16);
            *o++ = (char)(group >> 8);
            *o++ = (char)group;
        }
    }
    return (long)(o - out) - (long)padding;
}

/* Reads the token of the current line to r->store. */
static fl_status read_token(reader *r, const char *eol, fl_bytes *token)
{
    size_t room = (size_t)(eol - r->at);
    const char *space = memchr(r->at, ' ', room);
    size_t len = space ? (size_t)(space - r->at) : room;
    if (!space)
        return fl_fail(r->err, FL_FORMAT,
                       "%s: line %ld: no rank; a line is base64, a space and a number", r->path,
                       r->line);
    long bytes = base64_decode(r->at, len, r->store);
    if (bytes <= 0)
        return fl_fail(r->err, FL_FORMAT, "%s: line %ld: %s", r->path, r->line,
                       len ? "the token is not base64" : "the token is empty");
    if (bytes > FL_MAX_TOKEN_BYTES)
        return fl_fail(r->err, FL_FORMAT, "%s: line %ld: a token of %ld bytes, at most %d are read",
                       r->path, r->line, bytes, FL_MAX_TOKEN_BYTES);
    *token = (fl_bytes){r->store, (size_t)bytes};
    r->store += bytes;
    r->at = space + 1;
    return FL_OK;
}

static fl_status read_rank(reader *r, const char *eol, const fl_vocab *v, int32_t *rank)
{
    int64_t value = 0;
    const char *p = r->at;
    for (; p < eol && *p >= '0' && *p <= '9' && value < v->size; p++)
        value = value * 10 + (*p - '0');
    if (p == r->at || (p < eol && value < v->size))
        return fl_fail(r->err, FL_FORMAT, "%s: line %ld: the rank is not a decimal number", r->path,
                       r->line);
    if (value >= v->size)
        return fl_fail(r->err, FL_FORMAT,
                       "%s: line %ld: rank %.*s is outside the vocabulary of %d ids", r->path,
                       r->line, (int)(eol - r->at < 20 ? eol - r->at : 20), r->at, (int)v->size);
    *rank = (int32_t)value;
    return FL_OK;
}

static fl_status read_line(reader *r, const char *eol, fl_vocab *v)
{
    fl_bytes token;
    int32_t rank = 0;
    FL_TRY(read_token(r, eol, &token));
    FL_TRY(read_rank(r, eol, v, &rank));
    if (v->tokens[rank].data)
        return fl_fail(r->err, FL_FORMAT, "%s: line %ld: rank %d occurs twice", r->path, r->line,
                       (int)rank);
    bool existing;
    if (!fl_strmap_put(&v->ids, token.data, token.len, (uint32_t)rank, &existing))
        return fl_fail(r->err, FL_NOMEM, "%s: no memory for the vocabulary", r->path);
    if (existing) {
        uint32_t first = 0;
        fl_strmap_get(&v->ids, token.data, token.len, &first);
        return fl_fail(r->err, FL_FORMAT,
                       "%s: line %ld: the token of rank %d is that of rank %u again", r->path,
                       r->line, (int)rank, first);
    }
    v->tokens[rank] = token;
    v->n_ranks++;
    if (token.len > v->longest)
        v->longest = token.len;
    return FL_OK;
}

static fl_status read_lines(reader *r, fl_vocab *v)
{
    for (; r->at < r->end; r->line++) {
        const char *eol = memchr(r->at, '\n', (size_t)(r->end - r->at));
        const char *next = eol ? eol + 1 : r->end;
        if (!eol)
            eol = r->end;
        if (eol > r->at && eol[-1] == '\r')
            eol--;
        if (eol > r->at)
            FL_TRY(read_line(r, eol, v));
        r->at = next;
    }
    return FL_OK;
}

/* No id without bytes, no byte without an id. */
static fl_status check_whole(const char *path, fl_vocab *v, fl_error *err)
{
    for (int32_t i = 0; i < v->n_ranks; i++) {
        if (!v->tokens[i].data)
            return fl_fail(err, FL_FORMAT, "%s: rank %d is missing; %d tokens need the ranks 0..%d",
                           path, (int)i, (int)v->n_ranks, (int)v->n_ranks - 1);
    }
    for (int i = 0; i < 256; i++) {
        char byte = (char)i;
        uint32_t id;
        if (!fl_strmap_get(&v->ids, &byte, 1, &id))
            return fl_fail(err, FL_FORMAT, "%s: the single byte 0x%02x is not among the tokens",
                           path, (unsigned)i);
        v->byte_id[i] = (int32_t)id;
    }
    return FL_OK;
}

fl_status fl_vocab_read(const char *path, int64_t size, fl_vocab *v, fl_error *err)
{
    *v = (fl_vocab){.whole = true};
    if (size < 1 || size > FL_MAX_VOCAB)
        return fl_fail(err, FL_CONFIG, "vocab_size is %lld, expected 1..%d", (long long)size,
                       FL_MAX_VOCAB);
    v->size = (int32_t)size;
    fl_buf file = {0};
    fl_status s;
    FL_GOTO(s, done, fl_file_read(path, FL_MAX_VOCAB_FILE, &file, err));
    v->tokens = fl_calloc((size_t)size, sizeof *v->tokens);
    v->storage = fl_malloc(file.n);
    if (!v->tokens || !v->storage) {
        s = fl_fail(err, FL_NOMEM, "%s: no memory for %d tokens", path, (int)size);
        goto done;
    }
    reader r = {.path = path,
                .at = file.data,
                .end = file.data + file.n,
                .line = 1,
                .store = v->storage,
                .err = err};
    FL_GOTO(s, done, read_lines(&r, v));
    s = check_whole(path, v, err);
done:
    fl_vec_free(&file);
    return s;
}

void fl_vocab_free(fl_vocab *v)
{
    fl_free(v->tokens);
    fl_free(v->storage);
    fl_free(v->merges.slots);
    fl_strmap_free(&v->ids);
    *v = (fl_vocab){0};
}
