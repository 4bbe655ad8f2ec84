/* Hostile vocabularies, names and specifications: each is refused with its cause. */
#define _GNU_SOURCE
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "support/text_support.h"

#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

/* A folder with the 256 single bytes as ranks 0..255, then extra; and a tokenizer_config.json. */
typedef struct folder {
    char dir[64];
    fl_buf ranks;
} folder;

static void write_file(const folder *f, const char *name, const char *data, size_t len)
{
    char path[200];
    snprintf(path, sizeof path, "%s/%s", f->dir, name);
    FILE *file = fopen(path, "wb");
    assert_non_null(file);
    assert_int_equal(fwrite(data, 1, len, file), len);
    assert_int_equal(fclose(file), 0);
}

static void put_byte(fl_buf *b, int byte, int rank)
{
    static const char digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    char line[32];
    int n = snprintf(line, sizeof line, "%c%c== %d\n", digits[byte >> 2], digits[(byte & 3) << 4],
                     rank);
    assert_true(fl_vec_append(b, line, (size_t)n));
}

static void folder_open(folder *f)
{
    *f = (folder){.dir = "test_tokenizer.XXXXXX"};
    assert_non_null(mkdtemp(f->dir));
    for (int i = 0; i < 256; i++)
        put_byte(&f->ranks, i, i);
}

static void folder_close(folder *f)
{
    char path[200];
    static const char *const names[] = {"tiktoken.model", "tokenizer_config.json"};
    for (int i = 0; i < 2; i++) {
        snprintf(path, sizeof path, "%s/%s", f->dir, names[i]);
        unlink(path);
    }
    assert_int_equal(rmdir(f->dir), 0);
    fl_vec_free(&f->ranks);
}

static void expect_open(const folder *f, const fl_tokenizer_spec *spec, fl_status status,
                        const char *message)
{
    fl_tokenizer *t;
    fl_error e = {0};
    fl_status s = fl_tokenizer_open(f->dir, spec, &t, &e);
    if (s != status || (message && !strstr(e.message, message)))
        fail_msg("status %d, message \"%s\"; expected %d, \"%s\"", s, e.message, status,
                 message ? message : "");
    assert_true((t != NULL) == (s == FL_OK));
    fl_tokenizer_close(t);
}

#define NO_NAMES "{\"added_tokens_decoder\": {}}"

static void test_hostile_ranks(void **state)
{
    (void)state;
    static const struct {
        const char *extra, *message; /* NULL: is read */
    } cases[] = {
        {"", NULL},
        {"\n\r\n", NULL},
        {"YWI= 256\r\nYWJj 257", NULL},
        {"YWI= 257\nYWJj 256\n", NULL},
        {"YWI 256\n", "line 257: the token is not base64"},
        {"YW*= 256\n", "line 257: the token is not base64"},
        {"Y=I= 256\n", "line 257: the token is not base64"},
        {"==== 256\n", "line 257: the token is not base64"},
        {" 256\n", "line 257: the token is empty"},
        {"YWI=\n", "line 257: no rank"},
        {"YWI= \n", "the rank is not a decimal number"},
        {"YWI= -1\n", "the rank is not a decimal number"},
        {"YWI= 25x\n", "the rank is not a decimal number"},
        {"YWI= 256 7\n", "the rank is not a decimal number"},
        {"YWI= 255\n", "line 257: rank 255 occurs twice"},
        {"YWI= 256\nYWI= 257\n", "line 258: the token of rank 257 is that of rank 256 again"},
        {"QQ== 256\n", "is that of rank 65 again"},
        {"YWI= 257\n", "rank 256 is missing"},
        {"YWI= 300\n", "rank 300 is outside the vocabulary of 300 ids"},
        {"YWI= 99999999999999999999999999999999999\n", "is outside the vocabulary"},
    };
    folder f;
    folder_open(&f);
    size_t base = f.ranks.n;
    fl_tokenizer_spec spec = k3;
    spec.vocab_size = 300;
    write_file(&f, "tokenizer_config.json", NO_NAMES, strlen(NO_NAMES));
    expect_open(&f, &spec, FL_NOTFOUND, "tiktoken.model");
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        f.ranks.n = base;
        assert_true(fl_vec_append(&f.ranks, cases[i].extra, strlen(cases[i].extra)));
        write_file(&f, "tiktoken.model", f.ranks.data, f.ranks.n);
        expect_open(&f, &spec, cases[i].message ? FL_FORMAT : FL_OK, cases[i].message);
    }
    /* A byte is missing. */
    f.ranks.n = 0;
    for (int i = 0; i < 255; i++)
        put_byte(&f.ranks, i + (i >= 0x41), i);
    write_file(&f, "tiktoken.model", f.ranks.data, f.ranks.n);
    expect_open(&f, &spec, FL_FORMAT, "the single byte 0x41 is not among the tokens");
    /* Lines without an end. */
    char *line = malloc(1 << 20);
    assert_non_null(line);
    memset(line, 'A', 1 << 20);
    write_file(&f, "tiktoken.model", line, 1 << 20);
    expect_open(&f, &spec, FL_FORMAT, "line 1: no rank");
    memcpy(line + (1 << 20) - 2, " 0", 2);
    write_file(&f, "tiktoken.model", line + 2, (1 << 20) - 2);
    expect_open(&f, &spec, FL_FORMAT, "at most 4096 are read");
    free(line);
    write_file(&f, "tiktoken.model", "", 0);
    expect_open(&f, &spec, FL_FORMAT, "the single byte 0x00");
    folder_close(&f);
}

static void test_hostile_names(void **state)
{
    (void)state;
    static const struct {
        const char *config, *message;
    } cases[] = {
        {"{\"added_tokens_decoder\": {\"257\": {\"content\": \"<x>\"}}}", NULL},
        {"{", "tokenizer_config.json"},
        {"[]", "added_tokens_decoder is missing"},
        {"{}", "added_tokens_decoder is missing"},
        {"{\"added_tokens_decoder\": []}", "an object was expected"},
        {"{\"added_tokens_decoder\": {\"x\": {\"content\": \"<x>\"}}}", "\"x\" is not the id"},
        {"{\"added_tokens_decoder\": {\"\": {\"content\": \"<x>\"}}}", "\"\" is not the id"},
        {"{\"added_tokens_decoder\": {\"-1\": {\"content\": \"<x>\"}}}", "is not the id"},
        {"{\"added_tokens_decoder\": {\"255\": {\"content\": \"<x>\"}}}", "(256..259)"},
        {"{\"added_tokens_decoder\": {\"260\": {\"content\": \"<x>\"}}}", "(256..259)"},
        {"{\"added_tokens_decoder\": {\"99999999999999999999999\": {\"content\": \"<x>\"}}}",
         "is not the id"},
        {"{\"added_tokens_decoder\": {\"257\": {\"content\": \"a\"}, \"0257\": {\"content\": "
         "\"b\"}}}",
         "id 257 is named twice"},
        {"{\"added_tokens_decoder\": {\"257\": \"<x>\"}}", "257.content must be a string"},
        {"{\"added_tokens_decoder\": {\"257\": {}}}", "257.content must be a string"},
        {"{\"added_tokens_decoder\": {\"257\": {\"content\": 7}}}", "257.content must be a string"},
        {"{\"added_tokens_decoder\": {\"257\": {\"content\": \"\"}}}",
         "257.content must be a string"},
        {"{\"added_tokens_decoder\": {\"257\": {\"content\": \"a\"}, \"258\": {\"content\": "
         "\"a\"}}}",
         "two special tokens are named \"a\""},
        {"{\"added_tokens_decoder\": {\"257\": {\"content\": \"<|reserved_token_258|>\"}}}",
         "two special tokens are named \"<|reserved_token_258|>\""},
    };
    folder f;
    folder_open(&f);
    fl_tokenizer_spec spec = k3;
    spec.vocab_size = 260;
    write_file(&f, "tiktoken.model", f.ranks.data, f.ranks.n);
    expect_open(&f, &spec, FL_NOTFOUND, "tokenizer_config.json");
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        write_file(&f, "tokenizer_config.json", cases[i].config, strlen(cases[i].config));
        expect_open(&f, &spec, cases[i].message ? FL_FORMAT : FL_OK, cases[i].message);
    }
    char big[1000];
    int n = snprintf(big, sizeof big,
                     "{\"added_tokens_decoder\": {\"257\": {\"content\": \"%0300d\"}}}", 0);
    write_file(&f, "tokenizer_config.json", big, (size_t)n);
    expect_open(&f, &spec, FL_FORMAT, "a string of 1..256 bytes");
    folder_close(&f);
}

static void test_hostile_spec(void **state)
{
    (void)state;
    folder f;
    folder_open(&f);
    write_file(&f, "tiktoken.model", f.ranks.data, f.ranks.n);
    write_file(&f, "tokenizer_config.json", NO_NAMES, strlen(NO_NAMES));
    fl_tokenizer_spec spec = k3;
    static const int64_t sizes[] = {0, -1, INT64_MIN, INT64_MAX, (int64_t)1 << 32};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        spec.vocab_size = sizes[i];
        expect_open(&f, &spec, FL_CONFIG, "vocab_size is");
    }
    spec.vocab_size = 255;
    expect_open(&f, &spec, FL_FORMAT, "rank 255 is outside the vocabulary of 255 ids");
    spec.vocab_size = 256; /* no special slot at all */
    expect_open(&f, &spec, FL_OK, NULL);
    static const char *const names[] = {"<%s>", "<%d%d>", "<%%d>", "%n%d", "none", ""};
    spec.vocab_size = 300;
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        spec.reserved = names[i];
        expect_open(&f, &spec, FL_ARGUMENT, "must hold %d once");
    }
    spec.reserved = NULL;
    expect_open(&f, &spec, FL_ARGUMENT, "must hold %d once");
    spec = k3;
    spec.kind = "unigram";
    expect_open(&f, &spec, FL_UNSUPPORTED, "\"unigram\"");
    spec = k3;
    spec.max_run = -1;
    expect_open(&f, &spec, FL_ARGUMENT, NULL);
    spec = k3;
    spec.pattern = NULL;
    expect_open(&f, &spec, FL_ARGUMENT, NULL);
    folder_close(&f);
}

/* The vocabularies of the random test models. */
static void test_small_models(void **state)
{
    (void)state;
    static const char *const models[][2] = {
        {"second", "<|open|>"}, {"sharing", "<|open|>"}, {"linear", "<|im_user|>"}};
    fl_tokenizer_spec spec = k3;
    spec.vocab_size = 300;
    for (size_t i = 0; i < sizeof models / sizeof *models; i++) {
        char dir[300];
        snprintf(dir, sizeof dir, "%s/%s", FL_TEST_DATA, models[i][0]);
        fl_tokenizer *t;
        fl_error e;
        if (fl_tokenizer_open(dir, &spec, &t, &e) != FL_OK)
            fail_msg("%s", e.message);
        assert_int_equal(fl_tokenizer_special(t, models[i][1]), 283);
        assert_int_equal(fl_tokenizer_special(t, "[PAD]"), 299);
        fl_ids ids = {0};
        assert_int_equal(fl_tokenizer_encode(t, "the message", 11, false, &ids, NULL), FL_OK);
        assert_int_equal(ids.n, 2); /* "the", " message" */
        fl_vec_free(&ids);
        fl_tokenizer_close(t);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_hostile_ranks),
        cmocka_unit_test(test_hostile_names),
        cmocka_unit_test(test_hostile_spec),
        cmocka_unit_test(test_small_models),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
