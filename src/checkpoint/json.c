/* The wall around jansson: parsing with limits, and read access.
 *
 * jansson is strict about syntax, UTF-8, duplicate keys and number ranges.  What it lacks is added
 * before it sees the text: a limit on depth (trees are walked and freed by recursion) and on the
 * number of values (three bytes of text may cost it a quarter of a kilobyte). */
#include "checkpoint/json.h"

#include "base/file.h"
#include "base/mem.h"
#include "checkpoint/lfs_internal.h"

#include <jansson.h>
#include <pthread.h>
#include <setjmp.h>
#include <string.h>

enum { MAX_DEPTH = 128, MAX_VALUES = 8 << 20, MAX_BYTES = 512 << 20 };

/* jansson 2.14 does not survive a failed allocation: a string that outgrows its buffer goes on
 * without the character, and the lexer asserts later.  So while it parses every block is kept in a
 * list, and an allocation that fails leaves jansson by longjmp; the list is then freed. */
typedef struct block {
    struct block *before, *after;
} block; /* 16 bytes, so what follows is aligned for anything */

typedef struct guard {
    jmp_buf leave;
    block list; /* a ring */
} guard;

static _Thread_local guard *parsing; /* NULL: not in the parser */

static void *allocate(size_t bytes)
{
    block *b = bytes < SIZE_MAX - sizeof *b ? fl_malloc(bytes + sizeof *b) : NULL;
    if (!b && parsing)
        longjmp(parsing->leave, 1);
    if (!b)
        return NULL;
    if (parsing) {
        *b = (block){parsing->list.before, &parsing->list};
        b->before->after = b->after->before = b;
    }
    return b + 1;
}

static void release(void *p)
{
    if (!p)
        return;
    block *b = (block *)p - 1;
    if (parsing) { /* the parser frees only what it made */
        b->before->after = b->after;
        b->after->before = b->before;
    }
    fl_free(b);
}

static void set_up(void)
{
    json_set_alloc_funcs(allocate, release);
    json_object_seed(0);
}

/* Counts brackets and separators outside strings.  On text that is not JSON the counts mean
 * nothing beyond the first error, but then the answer is an error either way. */
static fl_status check_limits(const char *text, size_t len, const char *what, fl_error *err)
{
    int depth = 0, line = 1;
    size_t values = 1;
    bool quoted = false;
    for (size_t i = 0; i < len; i++) {
        char c = text[i];
        if (quoted) {
            if (c == '\\')
                i++;
            else if (c == '"')
                quoted = false;
            continue;
        }
        switch (c) {
        case '"':
            quoted = true;
            break;
        case '\n':
            line++;
            break;
        case '[':
        case '{':
            values++;
            if (++depth > MAX_DEPTH)
                return fl_fail(err, FL_FORMAT, "%s: line %d: JSON is nested more than %d deep",
                               what, line, MAX_DEPTH);
            break;
        case ']':
        case '}':
            depth--;
            break;
        case ',':
            values++;
            break;
        default:
            break;
        }
    }
    if (values > MAX_VALUES)
        return fl_fail(err, FL_FORMAT, "%s: JSON holds more than %d values", what, MAX_VALUES);
    return FL_OK;
}

/* False when memory ran out.  g is the caller's, because a jump leaves this function's own
 * variables uncertain. */
static bool parse_guarded(guard *g, const char *text, size_t len, fl_json **root, json_error_t *e)
{
    g->list = (block){&g->list, &g->list};
    if (setjmp(g->leave) != 0) {
        parsing = NULL;
        for (block *b = g->list.after; b != &g->list;) {
            block *after = b->after;
            fl_free(b);
            b = after;
        }
        return false;
    }
    parsing = g;
    *root = json_loadb(text, len, JSON_REJECT_DUPLICATES | JSON_DECODE_ANY | JSON_ALLOW_NUL, e);
    parsing = NULL;
    return true;
}

fl_status fl_json_parse(const char *text, size_t len, const char *what, fl_json **out,
                        fl_error *err)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    *out = NULL;
    pthread_once(&once, set_up);
    if (len > MAX_BYTES)
        return fl_fail(err, FL_FORMAT, "%s: JSON has %zu bytes, at most %d are allowed", what, len,
                       MAX_BYTES);
    FL_TRY(check_limits(text, len, what, err));
    json_error_t e;
    guard g;
    fl_json *root = NULL;
    if (!parse_guarded(&g, text, len, &root, &e))
        return fl_fail(err, FL_NOMEM, "%s: no memory for %zu bytes of JSON", what, len);
    if (!root)
        return fl_fail(err, FL_FORMAT, "%s: line %d column %d: %s%s", what, e.line, e.column,
                       json_error_code(&e) == json_error_invalid_utf8 ? "invalid UTF-8: " : "",
                       e.text);
    *out = root;
    return FL_OK;
}

fl_status fl_json_read(const char *path, size_t max_bytes, fl_json **out, fl_error *err)
{
    *out = NULL;
    fl_buf text = {0};
    fl_status s = fl_file_read(path, max_bytes, &text, err);
    if (s == FL_OK && fl_is_lfs_pointer(text.data, text.n))
        s = fl_fail(err, FL_NOTFOUND,
                    "%s: a Git LFS pointer lies here instead of the file; fetch it with "
                    "`git lfs pull`",
                    path);
    if (s == FL_OK)
        s = fl_json_parse(text.data, text.n, path, out, err);
    fl_vec_free(&text);
    return s;
}

void fl_json_free(fl_json *root)
{
    json_decref(root);
}

fl_json_type fl_json_typeof(const fl_json *v)
{
    switch (json_typeof(v)) {
    case JSON_OBJECT:
        return FL_JSON_OBJECT;
    case JSON_ARRAY:
        return FL_JSON_ARRAY;
    case JSON_STRING:
        return FL_JSON_STRING;
    case JSON_INTEGER:
        return FL_JSON_INT;
    case JSON_REAL:
        return FL_JSON_REAL;
    case JSON_TRUE:
    case JSON_FALSE:
        return FL_JSON_BOOL;
    default:
        return FL_JSON_NULL;
    }
}

const char *fl_json_type_name(const fl_json *v)
{
    static const char *const names[] = {
        [FL_JSON_NULL] = "null",       [FL_JSON_BOOL] = "a boolean",  [FL_JSON_INT] = "an integer",
        [FL_JSON_REAL] = "a fraction", [FL_JSON_STRING] = "a string", [FL_JSON_ARRAY] = "an array",
        [FL_JSON_OBJECT] = "an object"};
    return v ? names[fl_json_typeof(v)] : "missing";
}

bool fl_json_is(const fl_json *v, fl_json_type type)
{
    return v && fl_json_typeof(v) == type;
}

bool fl_json_bool(const fl_json *v)
{
    return json_is_true(v);
}

int64_t fl_json_int(const fl_json *v)
{
    return json_integer_value(v);
}

double fl_json_number(const fl_json *v)
{
    return json_number_value(v);
}

fl_bytes fl_json_string(const fl_json *v)
{
    return (fl_bytes){json_string_value(v), json_string_length(v)};
}

size_t fl_json_size(const fl_json *v)
{
    return json_is_array(v) ? json_array_size(v) : json_object_size(v);
}

const fl_json *fl_json_at(const fl_json *array, size_t i)
{
    return json_array_get(array, i);
}

const fl_json *fl_json_get(const fl_json *object, const char *key)
{
    return json_object_get(object, key);
}

/* jansson's iterators take a plain json_t although they only read. */
void *fl_json_iter(const fl_json *object)
{
    return json_object_iter((json_t *)object);
}

void *fl_json_next(const fl_json *object, void *it)
{
    return json_object_iter_next((json_t *)object, it);
}

fl_bytes fl_json_iter_key(void *it)
{
    return (fl_bytes){json_object_iter_key(it), json_object_iter_key_len(it)};
}

const fl_json *fl_json_iter_value(void *it)
{
    return json_object_iter_value(it);
}
