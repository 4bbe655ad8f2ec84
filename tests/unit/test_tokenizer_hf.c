/* tokenizer.json: small tokenizers built as releases build theirs, against the ids that the Python
 * package `tokenizers` gives (tools/make_tokenizer_tests.py), and hostile files. */
#include "support/cmocka_all.h"

#include "base/mem.h"
#include "checkpoint/json.h"
#include "support/folder.h"
#include "support/rng.h"
#include "text/text_internal.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char *const kinds[] = {"splits", "single", "sets", "nfc", "mixed"};
enum { N_KINDS = sizeof kinds / sizeof *kinds };

static fl_json *read_json(const char *kind, const char *name)
{
    char path[512];
    fl_json *root;
    fl_error e = {0};
    snprintf(path, sizeof path, "%s/tokenizers/%s/%s", FL_TEST_DATA, kind, name);
    if (fl_json_read(path, 64 << 20, &root, &e) != FL_OK)
        fail_msg("%s", e.message);
    return root;
}

static fl_status open_kind(const char *kind, int64_t size, fl_tokenizer **t, fl_error *e)
{
    char dir[512];
    snprintf(dir, sizeof dir, "%s/tokenizers/%s", FL_TEST_DATA, kind);
    fl_tokenizer_spec spec = {.kind = "hf", .file = "tokenizer.json", .vocab_size = size};
    return fl_tokenizer_open(dir, &spec, t, e);
}

static fl_tokenizer *must_open(const char *kind)
{
    fl_tokenizer *t;
    fl_error e = {0};
    if (open_kind(kind, 1500, &t, &e) != FL_OK)
        fail_msg("%s", e.message);
    return t;
}

static void check_ids(const char *kind, const fl_tokenizer *t, fl_bytes text, bool specials,
                      const fl_json *expected)
{
    fl_ids ids = {0};
    fl_error e = {0};
    if (fl_tokenizer_encode(t, text.data, text.len, specials, &ids, &e) != FL_OK)
        fail_msg("%s", e.message);
    bool same = ids.n == fl_json_size(expected);
    for (size_t i = 0; same && i < ids.n; i++)
        same = ids.data[i] == fl_json_int(fl_json_at(expected, i));
    if (!same)
        fail_msg("%s: other ids for \"%.*s\"", kind, (int)text.len, text.data);
    fl_vec_free(&ids);
}

static void test_against_tokenizers(void **state)
{
    (void)state;
    for (int k = 0; k < N_KINDS; k++) {
        fl_tokenizer *t = must_open(kinds[k]);
        fl_json *root = read_json(kinds[k], "expected.json");
        const fl_json *cases = fl_json_get(root, "cases");
        assert_true(fl_json_size(cases) >= 400);
        for (size_t i = 0; i < fl_json_size(cases); i++) {
            const fl_json *one = fl_json_at(cases, i);
            fl_bytes hex = fl_json_string(fl_json_at(one, 0));
            char text[8192];
            assert_true(hex.len <= 2 * sizeof text);
            for (size_t j = 0; j + 1 < hex.len; j += 2) {
                char pair[3] = {hex.data[j], hex.data[j + 1], 0};
                text[j / 2] = (char)strtol(pair, NULL, 16);
            }
            fl_bytes bytes = {text, hex.len / 2};
            check_ids(kinds[k], t, bytes, true, fl_json_at(one, 1));
            check_ids(kinds[k], t, bytes, false, fl_json_at(one, 2));
        }
        fl_json_free(root);
        fl_tokenizer_close(t);
    }
}

/* Where nothing is normalised and nothing removed, the ids say the text. */
static void test_round_trip(void **state)
{
    (void)state;
    rng random = {0x5eed};
    print_message("seed 0x5eed\n");
    for (int k = 0; k < 3; k++) {
        fl_tokenizer *t = must_open(kinds[k]);
        for (int i = 0; i < 300; i++) {
            fl_buf clean = {0}, back = {0};
            fl_ids ids = {0};
            for (int64_t n = rng_int(&random, 0, 60); n > 0; n--) {
                int64_t most[] = {0x7f, 0x7ff, 0xd7ff, 0x10ffff};
                int64_t c = rng_int(&random, 0, most[rng_int(&random, 0, 3)]);
                assert_true(fl_utf8_put(&clean, c >= 0xd800 && c < 0xe000 ? ' ' : (uint32_t)c));
            }
            assert_int_equal(fl_tokenizer_encode(t, clean.data, clean.n, false, &ids, NULL), FL_OK);
            for (size_t j = 0; j < ids.n; j++) {
                fl_bytes b = fl_tokenizer_bytes(t, ids.data[j]);
                assert_true(b.len && fl_vec_append(&back, b.data, b.len));
            }
            assert_int_equal(back.n, clean.n);
            if (clean.n)
                assert_memory_equal(back.data, clean.data, clean.n);
            fl_vec_free(&clean);
            fl_vec_free(&back);
            fl_vec_free(&ids);
        }
        fl_tokenizer_close(t);
    }
}

static void test_names(void **state)
{
    (void)state;
    fl_tokenizer *t = must_open("single");
    int32_t think = fl_tokenizer_special(t, "<think>");
    assert_true(think > 0 && fl_tokenizer_is_special(t, think));
    assert_int_equal(fl_tokenizer_special(t, "the"), FL_NO_TOKEN);
    assert_false(fl_tokenizer_is_special(t, 300));
    assert_int_equal(fl_tokenizer_size(t), 1500);
    /* Rows of the embedding that no file gives a token: no text, no name, but ids. */
    fl_bytes none = fl_tokenizer_bytes(t, 1499);
    assert_true(none.data && !none.len);
    assert_false(fl_tokenizer_is_special(t, 1499));
    assert_null(fl_tokenizer_bytes(t, 1500).data);
    fl_tokenizer_close(t);
}

/* A piece of a million bytes: would take hours if merging were quadratic. */
static void test_long_pieces(void **state)
{
    (void)state;
    enum { LONG = 1 << 20 };
    char *text = malloc(LONG);
    assert_non_null(text);
    static const char *const units[] = {
        "a", "the",          " ",        "\n",        "=",
        "7", "\xe5\xad\x97", "\xcc\x81", "e\xcc\x81", "\xcc\x81\xcc\xa7",
        "<"};
    for (int k = 0; k < N_KINDS; k++) {
        fl_tokenizer *t = must_open(kinds[k]);
        for (size_t u = 0; u < sizeof units / sizeof *units; u++) {
            fl_ids ids = {0};
            for (size_t i = 0; i < LONG; i++)
                text[i] = units[u][i % strlen(units[u])];
            fl_error e = {0};
            if (fl_tokenizer_encode(t, text, LONG, true, &ids, &e) != FL_OK)
                fail_msg("%s: \"%s\": %s", kinds[k], units[u], e.message);
            fl_vec_free(&ids);
        }
        fl_tokenizer_close(t);
    }
    free(text);
}

/* ---- patterns ---- */

static void test_patterns(void **state)
{
    (void)state;
    static const struct {
        const char *ruby, *pcre; /* NULL: refused, with the message */
        const char *message;
    } cases[] = {
        {"\\s+(?!\\S)|\\d", "\\p{wspace}+(?!\\P{wspace})|\\p{Nd}", NULL},
        {"[^\\s\\p{Han}a-z\\-]?", "[^\\p{wspace}\\p{sc:Han}a-z\\-]?", NULL},
        {"[a&&[^b]]*", "(?:(?=[a])[^b])*", NULL},
        {"[a&&b&&[c]]", "(?:(?=(?:(?=[a])[b]))[c])", NULL},
        {"[a[bc]]{1,3}", "[abc]{1,3}", NULL},
        {"(?i:'s)|.|\\u4e00|\\v", "(?i:'s)|[^\\n]|\\x{4e00}|\\x0b", NULL},
        {"[a[^b]]", NULL, "a set inside of a set"},
        {"[[:alpha:]]", NULL, "a set inside of a set"},
        {"[a&&[b]c]", NULL, "more than one set after &&"},
        {"[^a&&[b]]", NULL, "an intersection that is negated"},
        {"[&&a]", NULL, "empty side"},
        {"[abc", NULL, "a set without its end"},
        {"[]", NULL, "an empty set"},
        {"\\w", NULL, "at byte 0: this escape"},
        {"a\\h", NULL, "at byte 1: this escape"},
        {"\\1", NULL, "this escape"},
        {"\\", NULL, "nothing follows"},
        {"\\p{", NULL, "\\p{Name}"},
        {"\\pL", NULL, "\\p{Name}"},
        {"\\u12", NULL, "four hexadecimal digits"},
        {"a{1,3}+", NULL, "another thing"},
        {"a{,3}", NULL, "a brace"},
        {"a$", NULL, "end of a line"},
        {"(?m:a)", NULL, "this kind of group"},
        {"(*NO_JIT)a", NULL, "this kind of group"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        fl_buf out = {0};
        fl_error e = {0};
        fl_status s = fl_ruby_pattern((fl_bytes){cases[i].ruby, strlen(cases[i].ruby)}, &out, &e);
        if (cases[i].pcre) {
            assert_int_equal(s, FL_OK);
            assert_string_equal(out.data, cases[i].pcre);
        } else {
            assert_int_equal(s, FL_UNSUPPORTED);
            if (!strstr(e.message, cases[i].message))
                fail_msg("%s: \"%s\", expected \"%s\"", cases[i].ruby, e.message, cases[i].message);
        }
        fl_vec_free(&out);
    }
}

/* ---- hostile files ---- */

static folder f;

/* The committed file as text, with one part replaced; from must be there. */
static void write_edited(const char *kind, const char *from, const char *to)
{
    char path[512];
    fl_buf whole = {0}, edited = {0};
    snprintf(path, sizeof path, "%s/tokenizers/%s/tokenizer.json", FL_TEST_DATA, kind);
    FILE *file = fopen(path, "rb");
    assert_non_null(file);
    for (int c; (c = fgetc(file)) != EOF;)
        assert_true(fl_vec_push(&whole, (char)c));
    fclose(file);
    assert_true(fl_vec_push(&whole, 0));
    const char *at = strstr(whole.data, from);
    if (!at)
        fail_msg("%s: no %s", kind, from);
    size_t before = (size_t)(at - whole.data), after = before + strlen(from);
    assert_true(fl_vec_append(&edited, whole.data, before) &&
                fl_vec_append(&edited, to, strlen(to)) &&
                fl_vec_append(&edited, whole.data + after, whole.n - 1 - after));
    folder_write(&f, "tokenizer.json", edited.data, edited.n);
    fl_vec_free(&whole);
    fl_vec_free(&edited);
}

static void expect(fl_status status, int64_t size, const char *message)
{
    fl_tokenizer *t;
    fl_error e = {0};
    fl_tokenizer_spec spec = {.kind = "hf", .file = "tokenizer.json", .vocab_size = size};
    fl_status s = fl_tokenizer_open(f.path, &spec, &t, &e);
    if (s != status || (message && !strstr(e.message, message)))
        fail_msg("status %d, \"%s\"; expected %d, \"%s\"", s, e.message, status, message);
    assert_true((t != NULL) == (s == FL_OK));
    fl_tokenizer_close(t);
}

static void test_edited_files(void **state)
{
    (void)state;
    static const struct {
        const char *kind, *from, *to;
        fl_status status;
        const char *message;
    } cases[] = {
        {"nfc", "\"type\":\"NFC\"", "\"type\":\"NFKC\"", FL_UNSUPPORTED, "normalizer: \"NFKC\""},
        {"nfc", "\"type\":\"Digits\"", "\"type\":\"Metaspace\"", FL_UNSUPPORTED,
         "pre_tokenizer: \"Metaspace\""},
        {"nfc", "\"individual_digits\":true", "\"individual_digits\":1", FL_FORMAT,
         "individual_digits is an integer"},
        {"splits", "\"behavior\":\"Isolated\"", "\"behavior\":\"Sideways\"", FL_UNSUPPORTED,
         "behavior \"Sideways\""},
        {"splits", "\"Regex\":\"\\\\p{N}{1,3}\"", "\"Regex\":\"\\\\p{N}{1,3}\\\\w\"",
         FL_UNSUPPORTED, "pre_tokenizer: pattern, at byte 10"},
        {"splits", "\"Regex\":\"\\\\p{N}{1,3}\"", "\"Regex\":\"\\\\p{Nx}\"", FL_MODEL,
         "pre_tokenizer: split pattern"},
        {"splits", "\"Regex\":\"\\\\p{N}{1,3}\"", "\"Regex\":\"\\\\p{N}{0,3}\"", FL_UNSUPPORTED,
         "matches nothing"},
        {"splits", "\"pattern\":{\"Regex\":\"\\\\p{N}{1,3}\"}", "\"pattern\":{}", FL_FORMAT,
         "needs a pattern"},
        {"splits", "\"add_prefix_space\":false", "\"add_prefix_space\":true", FL_UNSUPPORTED,
         "add_prefix_space"},
        {"splits", "\"type\":\"ByteLevel\"", "\"type\":\"ByteLevels\"", FL_UNSUPPORTED,
         "\"ByteLevels\""},
        {"splits", "\"decoder\":{\"type\":\"ByteLevel\"", "\"decoder\":{\"type\":\"Fuse\"",
         FL_UNSUPPORTED, "decoder: \"Fuse\""},
        {"splits", "\"type\":\"BPE\"", "\"type\":\"Unigram\"", FL_UNSUPPORTED, "\"Unigram\""},
        {"splits", "\"dropout\":null", "\"dropout\":0.1", FL_UNSUPPORTED, "model.dropout"},
        {"splits", "\"end_of_word_suffix\":null", "\"end_of_word_suffix\":\"</w>\"", FL_UNSUPPORTED,
         "model.end_of_word_suffix"},
        {"single", "\"ignore_merges\":true", "\"ignore_merges\":3", FL_FORMAT, "ignore_merges"},
        {"splits", "\"single_word\":false", "\"single_word\":true", FL_UNSUPPORTED,
         "added_tokens[0]: single_word"},
        {"splits", "\"lstrip\":false", "\"lstrip\":null", FL_FORMAT, "added_tokens[0].lstrip"},
        {"splits", "\"id\":1401", "\"id\":1400", FL_FORMAT, "do not belong together"},
        {"splits", "\"id\":1401", "\"id\":-1", FL_FORMAT, "added_tokens[1] needs an id"},
        {"splits", "\"content\":\"<think>\"", "\"content\":\"\"", FL_FORMAT, "added_tokens[4]"},
        {"splits", "\"content\":\"<think>\"", "\"content\":\"</think>\"", FL_FORMAT,
         "two special tokens are named"},
        {"splits", "\"content\":\"<think>\"", "\"content\":\"a\"", FL_FORMAT,
         "do not belong together"},
        {"splits", "\"!\":0", "\"!\":1", FL_FORMAT, "and another token have id 1"},
        {"splits", "\"!\":0", "\"!\":-1", FL_FORMAT, "\"!\" needs an id"},
        {"splits", "\"!\":0", "\"!\":2147483648", FL_FORMAT, "\"!\" needs an id"},
        {"splits", "\"!\":0", "\"! \":0", FL_FORMAT, "the single byte 0x21"},
        {"splits", "\"merges\":[", "\"merges\":[\"a\",", FL_FORMAT, "merges[0] has an empty half"},
        {"splits", "\"merges\":[", "\"merges\":[\"a b c\",", FL_FORMAT, "more than one space"},
        {"splits", "\"merges\":[", "\"merges\":[7,", FL_FORMAT, "merges[0] is neither"},
        {"splits", "\"merges\":[", "\"merges\":[[\"a\"],", FL_FORMAT, "merges[0] is neither"},
        {"splits", "\"merges\":[", "\"merges\":[\"a \xe2\x98\x83\",", FL_FORMAT,
         "joins something that is not"},
        {"splits", "\"merges\":[", "\"merges\":[\"z Q\",", FL_FORMAT,
         "makes something that is not"},
        {"splits", "\"merges\":[", "\"merges\":{},\"x\":[", FL_FORMAT, "a list of merges"},
        {"splits", "\"vocab\":{", "\"vocab\":[],\"x\":{", FL_FORMAT, "an object vocab"},
        {"splits", "\"added_tokens\":[", "\"added_tokens\":{},\"x\":[", FL_FORMAT,
         "added_tokens is"},
        {"splits", "\"model\":{", "\"modell\":{", FL_FORMAT, "model is missing"},
        {"splits", "\"version\"", "\"version", FL_FORMAT, "tokenizer.json"},
        {"splits", "\"version\":\"1.0\"", "\"version\":\"2\"", FL_OK, NULL},
    };
    folder_make(&f);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        write_edited(cases[i].kind, cases[i].from, cases[i].to);
        expect(cases[i].status, 1500, cases[i].message);
    }
    expect(FL_FORMAT, 1406, "below 1406"); /* one row less than the tokens need */
    expect(FL_OK, 1407, NULL);
    expect(FL_CONFIG, 0, "vocab_size is 0");
    folder_text(&f, "tokenizer.json", "[]");
    expect(FL_FORMAT, 1500, "not a tokenizer.json");
    folder_remove(&f);
}

/* ---- memory ---- */

static fl_status whole_life(const char *kind, fl_ids *ids)
{
    static const char text[] =
        "Hello <think> \xff of 1234567 things,\n\ne\xcc\xa7\xcc\x81 <|im_start|>";
    fl_tokenizer *t;
    FL_TRY(open_kind(kind, 1500, &t, NULL));
    fl_status s = fl_tokenizer_encode(t, text, sizeof text - 1, true, ids, NULL);
    fl_tokenizer_close(t);
    return s;
}

/* Allocations are too many to fail each; every 23rd and the last ones are. */
static void test_no_memory(void **state)
{
    (void)state;
    for (int k = 0; k < N_KINDS; k++) {
        fl_ids good = {0}, ids = {0};
        long before = fl_mem_count();
        assert_int_equal(whole_life(kinds[k], &good), FL_OK);
        long n = fl_mem_count() - before;
        int failures = 0;
        for (long i = 1 + k; i <= n; i += i + 120 < n ? n / 60 + 1 : 1) {
            ids.n = 0;
            fl_mem_fail_at(i);
            fl_status s = whole_life(kinds[k], &ids);
            fl_mem_fail_at(0);
            if (s != FL_OK) {
                assert_int_equal(s, FL_NOMEM);
                failures++;
            } else { /* PCRE2 without machine code */
                assert_int_equal(ids.n, good.n);
            }
        }
        if (failures < 60)
            fail_msg("%s: %d failures of %ld allocations", kinds[k], failures, n);
        fl_vec_free(&good);
        fl_vec_free(&ids);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_against_tokenizers),
        cmocka_unit_test(test_round_trip),
        cmocka_unit_test(test_names),
        cmocka_unit_test(test_long_pieces),
        cmocka_unit_test(test_patterns),
        cmocka_unit_test(test_edited_files),
        cmocka_unit_test(test_no_memory),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
