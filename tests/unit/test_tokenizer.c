/* The text room against the Python package tiktoken (tests/data/tokenizer_random.json), against a
 * plain quadratic merge, on long runs and without memory. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "base/pool.h"
#include "checkpoint/json.h"
#include "support/text_support.h"
#include "text/text_internal.h"

#include <stdio.h>
#include <stdlib.h>

static fl_json *read_json(const char *path)
{
    fl_json *root;
    fl_error e = {0};
    if (fl_json_read(path, 64 << 20, &root, &e) != FL_OK)
        fail_msg("%s", e.message);
    return root;
}

static void check_ids(const fl_tokenizer *t, const char *text, size_t len, bool specials,
                      const fl_json *expected)
{
    fl_ids ids = {0};
    fl_error e = {0};
    if (fl_tokenizer_encode(t, text, len, specials, &ids, &e) != FL_OK)
        fail_msg("%s", e.message);
    bool same = ids.n == fl_json_size(expected);
    for (size_t i = 0; same && i < ids.n; i++)
        same = ids.data[i] == fl_json_int(fl_json_at(expected, i));
    if (!same)
        fail_msg("other ids for \"%.*s\"", (int)len, text);
    fl_vec_free(&ids);
}

static void test_golden(void **state)
{
    (void)state;
    fl_tokenizer *t = open_tiny(&k3);
    fl_json *root = read_json(FL_TEST_DATA "/golden/tokenize.json");
    assert_true(fl_json_size(root) > 20);
    for (size_t i = 0; i < fl_json_size(root); i++) {
        const fl_json *one = fl_json_at(root, i);
        fl_bytes text = fl_json_string(fl_json_get(one, "text"));
        check_ids(t, text.data, text.len, false, fl_json_get(one, "ids"));
    }
    fl_json_free(root);
    fl_tokenizer_close(t);
}

static size_t unhex(fl_bytes hex, char *out)
{
    for (size_t i = 0; i + 1 < hex.len; i += 2) {
        char pair[3] = {hex.data[i], hex.data[i + 1], 0};
        out[i / 2] = (char)strtol(pair, NULL, 16);
    }
    return hex.len / 2;
}

static void check_list(const fl_tokenizer *t, const fl_json *list, bool specials, size_t at_least)
{
    assert_true(fl_json_size(list) >= at_least);
    for (size_t i = 0; i < fl_json_size(list); i++) {
        const fl_json *one = fl_json_at(list, i);
        char text[4096];
        fl_bytes hex = fl_json_string(fl_json_at(one, 0));
        assert_true(hex.len <= 2 * sizeof text);
        check_ids(t, text, unhex(hex, text), specials, fl_json_at(one, 1));
    }
}

/* Three ways to split, all with the ids of the Python package: machine code, PCRE2's interpreter,
 * and small limits for the cutting of long texts. */
static void test_against_tiktoken(void **state)
{
    (void)state;
    fl_json *root = read_json(FL_TEST_DATA "/tokenizer_random.json");
    fl_tokenizer_spec chunked = k3, interpreted = k3;
    chunked.max_chars = fl_json_int(fl_json_get(root, "max_chars"));
    chunked.max_run = fl_json_int(fl_json_get(root, "max_run"));
    interpreted.pattern = "(*NO_JIT)" PATTERN;
    fl_tokenizer *t[3] = {open_tiny(&k3), open_tiny(&interpreted), open_tiny(&chunked)};
    for (int i = 0; i < 2; i++) {
        check_list(t[i], fl_json_get(root, "plain"), false, 3000);
        check_list(t[i], fl_json_get(root, "special"), true, 200);
    }
    check_list(t[2], fl_json_get(root, "chunked"), false, 400);
    for (int i = 0; i < 3; i++)
        fl_tokenizer_close(t[i]);
    fl_json_free(root);
}

static void test_specials(void **state)
{
    (void)state;
    fl_tokenizer *t = open_tiny(&k3);
    assert_int_equal(fl_tokenizer_size(t), 4096);
    assert_int_equal(fl_tokenizer_special(t, "<|open|>"), 3843);
    assert_int_equal(fl_tokenizer_special(t, "<|reserved_token_3999|>"), 3999);
    assert_int_equal(fl_tokenizer_special(t, "the"), FL_NO_TOKEN);
    assert_false(fl_tokenizer_is_special(t, 3839));
    assert_true(fl_tokenizer_is_special(t, 3840));
    assert_true(fl_tokenizer_is_special(t, 4095));
    assert_false(fl_tokenizer_is_special(t, 4096));
    assert_false(fl_tokenizer_is_special(t, -1));
    assert_null(fl_tokenizer_bytes(t, -1).data);
    assert_null(fl_tokenizer_bytes(t, 4096).data);
    fl_bytes pad = fl_tokenizer_bytes(t, 4095);
    assert_int_equal(pad.len, 5);
    assert_memory_equal(pad.data, "[PAD]", 5);

    /* A name in a text is a control token only where it is allowed. */
    const char *text = "a<|open|>b[PAD]<|reserved_token_4000|>";
    fl_ids ids = {0};
    assert_int_equal(fl_tokenizer_encode(t, text, strlen(text), false, &ids, NULL), FL_OK);
    for (size_t i = 0; i < ids.n; i++)
        assert_true(ids.data[i] < 3840);
    ids.n = 0;
    assert_int_equal(fl_tokenizer_encode(t, text, strlen(text), true, &ids, NULL), FL_OK);
    assert_int_equal(ids.n, 5);
    assert_int_equal(ids.data[1], 3843);
    assert_int_equal(ids.data[3], 4095);
    assert_int_equal(ids.data[4], 4000);
    ids.n = 0;
    assert_int_equal(fl_tokenizer_encode(t, NULL, 0, true, &ids, NULL), FL_OK);
    assert_int_equal(ids.n, 0);
    fl_vec_free(&ids);
    fl_tokenizer_close(t);
}

/* What the ids say is the text, with what is not UTF-8 replaced. */
static void check_round_trip(const fl_tokenizer *t, const char *text, size_t len)
{
    fl_ids ids = {0};
    fl_buf back = {0}, clean = {0};
    fl_utf8_stream s = {0};
    assert_int_equal(fl_tokenizer_encode(t, text, len, false, &ids, NULL), FL_OK);
    for (size_t i = 0; i < ids.n; i++) {
        fl_bytes b = fl_tokenizer_bytes(t, ids.data[i]);
        assert_true(fl_vec_append(&back, b.data, b.len));
    }
    assert_true(fl_utf8_feed(&s, text, len, &clean) && fl_utf8_end(&s, &clean));
    assert_int_equal(back.n, clean.n);
    if (clean.n)
        assert_memory_equal(back.data, clean.data, clean.n);
    fl_vec_free(&ids);
    fl_vec_free(&back);
    fl_vec_free(&clean);
}

static void test_round_trip(void **state)
{
    (void)state;
    uint64_t start = 0x1234567, seed = start;
    fl_tokenizer_spec gaps = k3; /* a pattern that leaves text out: nothing may be lost */
    gaps.pattern = "[a-m]+|(?=\\d)|x*";
    gaps.max_run = 5;
    fl_tokenizer *t[2] = {open_tiny(&k3), open_tiny(&gaps)};
    fl_buf text = {0};
    print_message("seed 0x%llx\n", (unsigned long long)start);
    for (int i = 0; i < 2000; i++) {
        random_text(&seed, &text, (int)(random_next(&seed) % 40));
        check_round_trip(t[i % 2], text.data, text.n);
    }
    fl_vec_free(&text);
    fl_tokenizer_close(t[0]);
    fl_tokenizer_close(t[1]);
}

/* The merge rule as a sentence: again and again the lowest rank, the leftmost of equals. */
static void merge_slowly(const fl_vocab *v, fl_bytes piece, fl_ids *out)
{
    FL_VEC(uint32_t) ends = {0};
    for (uint32_t i = 1; i <= piece.len; i++)
        assert_true(fl_vec_push(&ends, i));
    for (;;) {
        uint32_t best = UINT32_MAX, rank;
        size_t where = 0;
        for (size_t i = 0; i + 1 < ends.n; i++) {
            uint32_t from = i ? ends.data[i - 1] : 0;
            if (fl_strmap_get(&v->ids, piece.data + from, ends.data[i + 1] - from, &rank) &&
                rank < best) {
                best = rank;
                where = i;
            }
        }
        if (best == UINT32_MAX)
            break;
        memmove(ends.data + where, ends.data + where + 1, (--ends.n - where) * sizeof *ends.data);
    }
    for (size_t i = 0; i < ends.n; i++) {
        uint32_t from = i ? ends.data[i - 1] : 0, id = UINT32_MAX;
        assert_true(fl_strmap_get(&v->ids, piece.data + from, ends.data[i] - from, &id));
        assert_true(fl_vec_push(out, (int32_t)id));
    }
    fl_vec_free(&ends);
}

static void test_merges(void **state)
{
    (void)state;
    uint64_t start = 0x77aa, seed = start;
    print_message("seed 0x%llx\n", (unsigned long long)start);
    fl_vocab v;
    assert_int_equal(fl_vocab_read(FL_TINY_MODEL "/tiktoken.model", 4096, &v, NULL), FL_OK);
    fl_bpe bpe = {0};
    for (int i = 0; i < 1500; i++) {
        const char *letters = i % 3 ? "esaronti " : "=- \n";
        char piece[300];
        size_t n = 1 + random_next(&seed) % (i % 10 ? 30 : sizeof piece);
        for (size_t j = 0; j < n; j++)
            piece[j] = letters[random_next(&seed) % strlen(letters)];
        fl_ids fast = {0}, slow = {0};
        assert_true(fl_bpe_encode(&bpe, &v, (fl_bytes){piece, n}, &fast));
        uint32_t whole;
        if (fl_strmap_get(&v.ids, piece, n, &whole))
            assert_true(fl_vec_push(&slow, (int32_t)whole));
        else
            merge_slowly(&v, (fl_bytes){piece, n}, &slow);
        assert_int_equal(fast.n, slow.n);
        assert_memory_equal(fast.data, slow.data, fast.n * sizeof *fast.data);
        fl_vec_free(&fast);
        fl_vec_free(&slow);
    }
    fl_bpe_free(&bpe);
    fl_vocab_free(&v);
}

/* Long runs of one class as a single piece: would take hours if any step were quadratic. */
static void test_long_runs(void **state)
{
    (void)state;
    fl_tokenizer_spec whole = k3, interpreted = k3;
    whole.max_chars = whole.max_run = 0;
    interpreted.pattern = "(*NO_JIT)" PATTERN;
    fl_tokenizer *t[3] = {open_tiny(&k3), open_tiny(&whole), open_tiny(&interpreted)};
    enum { LONG = 1 << 20 };
    char *text = malloc(LONG);
    assert_non_null(text);
    static const char *const units[] = {
        "a", "A", " ", "\n", "=", "7", "\xe0\xb8\x81", "\xe5\xad\x97", "\xcc\x81", "\xff", "a "};
    for (size_t u = 0; u < sizeof units / sizeof *units; u++) {
        size_t unit = strlen(units[u]);
        for (size_t i = 0; i < LONG; i++)
            text[i] = units[u][i % unit];
        for (int i = 0; i < 3; i++)
            check_round_trip(t[i], text, LONG);
    }
    free(text);
    for (int i = 0; i < 3; i++)
        fl_tokenizer_close(t[i]);
}

static void test_patterns(void **state)
{
    (void)state;
    static const struct {
        const char *pattern, *message;
    } bad[] = {
        {"[\\p{Lu}\\p{M}&&[^\\p{Han}]]+", "&& in a set"},
        {"x|[[a-z]&&[^aeiou]]", "&& in a set"},
        {"a(b", "at byte 3: missing closing parenthesis"},
        {"\\p{NoSuchScript}", "split pattern: at byte"},
        {"\xff", "split pattern: at byte"},
        {"\\C", "split pattern: at byte"},
    };
    static const char *const good[] = {"[&]&&[&]", "[\\&&]+", "\\[&&", "[a-z]+|."};
    fl_error e = {0};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        fl_splitter *s;
        assert_int_equal(fl_splitter_create(bad[i].pattern, &s, &e), FL_MODEL);
        assert_non_null(strstr(e.message, bad[i].message));
        assert_null(s);
    }
    for (size_t i = 0; i < sizeof good / sizeof *good; i++) {
        fl_splitter *s;
        assert_int_equal(fl_splitter_create(good[i], &s, &e), FL_OK);
        fl_splitter_free(s);
    }
    /* A pattern that explodes is an error, not a hang. */
    fl_tokenizer_spec spec = k3;
    spec.pattern = "(a+)+$|(a|aa)+$|b";
    fl_tokenizer *t = open_tiny(&spec);
    const char *text = "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaac";
    fl_ids ids = {0};
    assert_int_equal(fl_tokenizer_encode(t, text, strlen(text), false, &ids, &e), FL_UNSUPPORTED);
    assert_int_equal(ids.n, 0);
    fl_vec_free(&ids);
    fl_tokenizer_close(t);
}

enum { THREADS = 3 };

struct shared {
    const fl_tokenizer *t;
    fl_bytes text;
    fl_ids ids[THREADS];
};

static void encode_often(void *ctx, int thread, int n_threads)
{
    (void)n_threads;
    struct shared *s = ctx;
    for (int i = 0; i < 30; i++) {
        s->ids[thread].n = 0;
        if (fl_tokenizer_encode(s->t, s->text.data, s->text.len, true, &s->ids[thread], NULL) !=
            FL_OK)
            s->ids[thread].n = 0;
    }
}

/* One tokenizer, several threads. */
static void test_threads(void **state)
{
    (void)state;
    fl_tokenizer *t = open_tiny(&k3);
    fl_buf text = {0};
    uint64_t seed = 42;
    random_text(&seed, &text, 500);
    struct shared s = {.t = t, .text = {text.data, text.n}};
    fl_pool *pool;
    assert_int_equal(fl_pool_create(THREADS, &pool, NULL), FL_OK);
    fl_pool_run(pool, encode_often, &s);
    fl_pool_destroy(pool);
    assert_true(s.ids[0].n > 500);
    for (int i = 0; i < THREADS; i++) {
        assert_int_equal(s.ids[i].n, s.ids[0].n);
        assert_memory_equal(s.ids[i].data, s.ids[0].data, s.ids[0].n * sizeof(int32_t));
        if (i)
            fl_vec_free(&s.ids[i]);
    }
    fl_vec_free(&s.ids[0]);
    fl_vec_free(&text);
    fl_tokenizer_close(t);
}

/* Everything that allocates: open, encode text with a marker and a broken byte, stream it back. */
static fl_status whole_life(fl_ids *ids, fl_buf *back)
{
    const char text[] =
        "Hello <|open|>\xff vault of 1234567 things, said the antidisestablishmentarian";
    fl_tokenizer *t;
    FL_TRY(fl_tokenizer_open(FL_TINY_MODEL, &k3, &t, NULL));
    fl_status s = fl_tokenizer_encode(t, text, sizeof text - 1, true, ids, NULL);
    fl_utf8_stream stream = {0};
    for (size_t i = 0; s == FL_OK && i < ids->n; i++) {
        fl_bytes b = fl_tokenizer_bytes(t, ids->data[i]);
        if (!fl_utf8_feed(&stream, b.data, b.len, back))
            s = FL_NOMEM;
    }
    if (s == FL_OK && !fl_utf8_end(&stream, back))
        s = FL_NOMEM;
    fl_tokenizer_close(t);
    return s;
}

static void test_no_memory(void **state)
{
    (void)state;
    fl_ids good = {0}, ids = {0};
    fl_buf text = {0}, back = {0};
    long before = fl_mem_count();
    assert_int_equal(whole_life(&good, &text), FL_OK);
    long n = fl_mem_count() - before;
    assert_true(n > 10);
    int failures = 0;
    for (long i = 1; i <= n; i++) {
        fl_vec_free(&ids);
        fl_vec_free(&back);
        fl_mem_fail_at(i);
        fl_status s = whole_life(&ids, &back);
        fl_mem_fail_at(0);
        if (s != FL_OK) {
            assert_int_equal(s, FL_NOMEM);
            failures++;
            continue;
        }
        /* PCRE2 without machine code: slower, the same. */
        assert_int_equal(ids.n, good.n);
        assert_memory_equal(ids.data, good.data, good.n * sizeof *good.data);
        assert_memory_equal(back.data, text.data, text.n);
    }
    assert_true(failures > n / 2);
    fl_vec_free(&good);
    fl_vec_free(&ids);
    fl_vec_free(&text);
    fl_vec_free(&back);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_golden),    cmocka_unit_test(test_against_tiktoken),
        cmocka_unit_test(test_specials),  cmocka_unit_test(test_round_trip),
        cmocka_unit_test(test_merges),    cmocka_unit_test(test_long_runs),
        cmocka_unit_test(test_patterns),  cmocka_unit_test(test_threads),
        cmocka_unit_test(test_no_memory),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
