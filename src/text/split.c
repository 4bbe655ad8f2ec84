/* The split pattern of a vocabulary, run by PCRE2.
 *
 * Patterns of tiktoken vocabularies are written for Rust's regex engine, and PCRE2 10.42 reads one
 * construct of theirs differently without saying so: the set intersection A&&B.  A wrong split is
 * silent, so such a pattern is refused; it has to be rewritten, as docs/internals/text.md shows.
 *
 * Text is known to be UTF-8 here, and PCRE2 is told so: checking it at each match would make a long
 * text quadratic.  Matching is compiled to machine code where that works; where it does not (no
 * executable memory, its stack too small for one match) the interpreter gives the same answer. */
#define PCRE2_CODE_UNIT_WIDTH 8

#include "text/text_internal.h"

#include <pcre2.h>

struct fl_splitter {
    pcre2_general_context *memory;
    pcre2_code *code;
};

static void *pcre_malloc(size_t bytes, void *unused)
{
    (void)unused;
    return fl_malloc(bytes);
}

static void pcre_free(void *p, void *unused)
{
    (void)unused;
    fl_free(p);
}

/* Whether the pattern has && in a set, counting nested sets as Rust does.  \& is a plain &. */
static bool has_intersection(const char *p)
{
    int depth = 0;
    for (; *p; p++) {
        if (*p == '\\' && p[1])
            p++;
        else if (*p == '[')
            depth++;
        else if (*p == ']' && depth)
            depth--;
        else if (depth && p[0] == '&' && p[1] == '&')
            return true;
    }
    return false;
}

static fl_status compile(fl_splitter *s, const char *pattern, fl_error *err)
{
    pcre2_compile_context *context = pcre2_compile_context_create(s->memory);
    if (!context)
        return fl_fail(err, FL_NOMEM, "no memory for the split pattern");
    int code;
    PCRE2_SIZE offset;
    s->code =
        pcre2_compile((PCRE2_SPTR)pattern, PCRE2_ZERO_TERMINATED,
                      PCRE2_UTF | PCRE2_UCP | PCRE2_NEVER_BACKSLASH_C, &code, &offset, context);
    pcre2_compile_context_free(context);
    if (!s->code && code == PCRE2_ERROR_HEAP_FAILED)
        return fl_fail(err, FL_NOMEM, "no memory for the split pattern");
    if (!s->code) {
        PCRE2_UCHAR why[160];
        pcre2_get_error_message(code, why, sizeof why);
        return fl_fail(err, FL_MODEL, "split pattern: at byte %zu: %s", (size_t)offset,
                       (const char *)why);
    }
    /* A failure only means that the interpreter is used. */
    pcre2_jit_compile(s->code, PCRE2_JIT_COMPLETE);
    return FL_OK;
}

fl_status fl_splitter_create(const char *pattern, fl_splitter **out, fl_error *err)
{
    *out = NULL;
    if (has_intersection(pattern))
        return fl_fail(err, FL_MODEL,
                       "split pattern: && in a set is read wrongly by PCRE2; write the "
                       "intersection as one negated set, or \\& for the character");
    fl_splitter *s = fl_calloc(1, sizeof *s);
    if (s)
        s->memory = pcre2_general_context_create(pcre_malloc, pcre_free, NULL);
    if (!s || !s->memory) {
        fl_splitter_free(s);
        return fl_fail(err, FL_NOMEM, "no memory for the split pattern");
    }
    fl_status status = compile(s, pattern, err);
    if (status != FL_OK) {
        fl_splitter_free(s);
        return status;
    }
    *out = s;
    return FL_OK;
}

void fl_splitter_free(fl_splitter *s)
{
    if (!s)
        return;
    pcre2_code_free(s->code);
    pcre2_general_context_free(s->memory);
    fl_free(s);
}

bool fl_splitter_matches_nothing(const fl_splitter *s)
{
    uint32_t may = 0;
    pcre2_pattern_info(s->code, PCRE2_INFO_MATCHEMPTY, &may);
    return may != 0;
}

fl_split_scratch *fl_split_scratch_create(const fl_splitter *s)
{
    return (fl_split_scratch *)pcre2_match_data_create(1, s->memory);
}

void fl_split_scratch_free(fl_split_scratch *scratch)
{
    pcre2_match_data_free((pcre2_match_data *)scratch);
}

/* The first match at or after begin; *end == *begin == text.len when there is none. */
static fl_status match(const fl_splitter *s, pcre2_match_data *data, fl_bytes text, size_t from,
                       size_t *begin, size_t *end, fl_error *err)
{
    uint32_t options = PCRE2_NO_UTF_CHECK | PCRE2_NOTEMPTY;
    PCRE2_SPTR subject = (PCRE2_SPTR)text.data;
    int rc = pcre2_match(s->code, subject, text.len, from, options, data, NULL);
    if (rc == PCRE2_ERROR_JIT_STACKLIMIT)
        rc = pcre2_match(s->code, subject, text.len, from, options | PCRE2_NO_JIT, data, NULL);
    if (rc == PCRE2_ERROR_NOMATCH) {
        *begin = *end = text.len;
        return FL_OK;
    }
    const PCRE2_SIZE *range = pcre2_get_ovector_pointer(data);
    *begin = range[0];
    *end = range[1];
    if (rc == PCRE2_ERROR_NOMEMORY)
        return fl_fail(err, FL_NOMEM, "no memory to split the text");
    if (rc < 0 || *begin < from || *end <= *begin) {
        PCRE2_UCHAR why[160] = "a match that goes backwards";
        if (rc < 0)
            pcre2_get_error_message(rc, why, sizeof why);
        return fl_fail(err, FL_UNSUPPORTED, "split pattern: at byte %zu of a text: %s", from,
                       (const char *)why);
    }
    return FL_OK;
}

fl_status fl_split_next(const fl_splitter *s, fl_split_scratch *scratch, fl_bytes text, size_t *at,
                        fl_bytes *piece, bool *matched, fl_error *err)
{
    size_t from = *at, begin, end;
    FL_TRY(match(s, (pcre2_match_data *)scratch, text, from, &begin, &end, err));
    /* Text before the match: a piece of its own; the match is found again at the next call. */
    *matched = begin == from && end > begin;
    *at = *matched ? end : begin;
    *piece = (fl_bytes){text.data + from, *at - from};
    return FL_OK;
}
