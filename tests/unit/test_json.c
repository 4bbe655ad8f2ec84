/* JSON: strict reading with limits, and writing exactly as Python does. */
#define _GNU_SOURCE
#include "support/cmocka_all.h"

#include "base/file.h"
#include "checkpoint/json.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void test_access(void **state)
{
    (void)state;
    static const char text[] =
        "{\"z\": 1, \"a\": [true, null, 2.5, \"h\\u00e9\\u0000\"], \"m\": {}}";
    fl_json *v;
    fl_error e;
    assert_int_equal(fl_json_parse(text, sizeof text - 1, "t", &v, &e), FL_OK);
    assert_int_equal(fl_json_size(v), 3);
    char order[4] = "";
    size_t n = 0;
    for (void *it = fl_json_iter(v); it; it = fl_json_next(v, it)) {
        assert_int_equal(fl_json_iter_key(it).len, 1);
        order[n++] = fl_json_iter_key(it).data[0];
        assert_non_null(fl_json_iter_value(it));
    }
    assert_string_equal(order, "zam");
    assert_int_equal(fl_json_int(fl_json_get(v, "z")), 1);
    const fl_json *a = fl_json_get(v, "a");
    assert_int_equal(fl_json_size(a), 4);
    assert_true(fl_json_bool(fl_json_at(a, 0)));
    assert_true(fl_json_is(fl_json_at(a, 1), FL_JSON_NULL));
    assert_true(fl_json_number(fl_json_at(a, 2)) == 2.5);
    fl_bytes s = fl_json_string(fl_json_at(a, 3));
    assert_int_equal(s.len, 4);
    assert_memory_equal(s.data, "h\xc3\xa9", 4);
    assert_null(fl_json_at(a, 4));
    assert_null(fl_json_get(v, "none"));
    assert_false(fl_json_is(NULL, FL_JSON_NULL));
    assert_string_equal(fl_json_type_name(fl_json_get(v, "z")), "an integer");
    fl_json_free(v);
}

/* Parses what must be refused; the message must name the document and hold `cause`. */
static void refuse(const char *text, size_t len, const char *cause)
{
    fl_json *v = NULL;
    fl_error e = {0};
    if (fl_json_parse(text, len, "doc.json", &v, &e) != FL_FORMAT || v)
        fail_msg("accepted: %.60s", text);
    if (strncmp(e.message, "doc.json: ", 10) != 0 || !strstr(e.message, cause))
        fail_msg("message '%s' lacks '%s'", e.message, cause);
}

static void test_refused(void **state)
{
    (void)state;
    static const struct {
        const char *text, *cause;
    } cases[] = {
        {"", "line 1"},
        {"{\n \"a\": 1,\n}", "line 3 column 1"},
        {"[1] 2", "line 1 column"},
        {"[01]", "line 1"},
        {"[1,]", "line 1"},
        {"[NaN]", "line 1"},
        {"[Infinity]", "line 1"},
        {"['a']", "line 1"},
        {"[1] // c", "line 1"},
        {"{\"a\":1,\"b\":2,\"a\":3}", "duplicate"},
        {"[9223372036854775808]", "too big integer"},
        {"[1e999]", "overflow"},
        {"[\"\xff\"]", "UTF-8"},
        {"[\"\xc0\x80\"]", "UTF-8"},
        {"[\"\xed\xa0\x80\"]", "UTF-8"},
        {"[\"\\ud800\"]", "Unicode"},
        {"[\"a\nb\"]", "line 1"},
        {"\xef\xbb\xbf[]", "line 1"},
        {"{\"a\\u0000\":1}", "NUL"},
        {"[\"", "line 1"},
        {"[\"\\", "line 1"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        refuse(cases[i].text, strlen(cases[i].text), cases[i].cause);
}

static void test_depth(void **state)
{
    (void)state;
    char text[4000];
    memset(text, '[', 2000);
    memset(text + 2000, ']', 2000);
    refuse(text, 4000, "nested more than 128 deep");
    refuse(text, 2000, "nested more than 128 deep");
    refuse(text + 2000 - 129, 2 * 129, "nested more than 128 deep");
    fl_json *v;
    fl_error e;
    assert_int_equal(fl_json_parse(text + 2000 - 128, 2 * 128, "t", &v, &e), FL_OK);
    fl_json_free(v);
    /* Brackets in a string, even behind an escaped quote, do not count. */
    char quoted[300] = "\"\\\"";
    memset(quoted + 3, '[', 200);
    quoted[203] = '"';
    assert_int_equal(fl_json_parse(quoted, 204, "t", &v, &e), FL_OK);
    fl_json_free(v);
}

static void test_too_many_values(void **state)
{
    (void)state;
    size_t n = (size_t)17 << 20;
    char *text = malloc(n);
    assert_non_null(text);
    for (size_t i = 0; i < n; i++)
        text[i] = i % 2 ? ',' : '1';
    text[0] = '[';
    refuse(text, n, "more than 8388608 values");
    free(text);
}

static void test_read(void **state)
{
    (void)state;
    char path[] = "/tmp/fl_json_XXXXXX";
    int fd = mkstemp(path);
    assert_true(fd >= 0);
    FILE *f = fdopen(fd, "w");
    fputs("{\"a\": [1, 2]}", f);
    fflush(f);
    fl_json *v;
    fl_error e;
    assert_int_equal(fl_json_read(path, 100, &v, &e), FL_OK);
    fl_json_free(v);
    assert_int_equal(fl_json_read(path, 12, &v, &e), FL_FORMAT);
    assert_non_null(strstr(e.message, path));
    assert_null(v);
    rewind(f);
    fputs("version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 9\n", f);
    fclose(f);
    assert_int_equal(fl_json_read(path, 100, &v, &e), FL_NOTFOUND);
    assert_non_null(strstr(e.message, "Git LFS pointer"));
    remove(path);
    assert_int_equal(fl_json_read(path, 100, &v, &e), FL_NOTFOUND);
    assert_non_null(strstr(e.message, path));
}

static void test_floats_as_python(void **state)
{
    (void)state;
    FILE *f = fopen(FL_TEST_DATA "/json/floats.txt", "r");
    assert_non_null(f);
    unsigned long long bits;
    char want[64];
    int n = 0;
    while (fscanf(f, "%llx %63s", &bits, want) == 2) {
        double x;
        uint64_t b = bits;
        memcpy(&x, &b, sizeof x);
        fl_buf out = {0};
        assert_true(fl_json_real(x, &out) && fl_vec_push(&out, 0));
        assert_string_equal(out.data, want);
        fl_vec_free(&out);
        n++;
    }
    fclose(f);
    assert_int_equal(n, 1500);
}

static void test_dump_as_python(void **state)
{
    (void)state;
    FILE *f = fopen(FL_TEST_DATA "/json/dumps.txt", "r");
    assert_non_null(f);
    char *line = NULL;
    size_t cap = 0;
    ssize_t len;
    int cases = 0;
    while ((len = getline(&line, &cap, f)) > 0) {
        fl_json *v;
        fl_error e;
        assert_int_equal(fl_json_parse(line, (size_t)len, "case", &v, &e), FL_OK);
        for (int form = 0; form < 3; form++) {
            assert_true((len = getline(&line, &cap, f)) > 0);
            line[len - 1] = 0;
            fl_buf out = {0};
            assert_int_equal(fl_json_dump(v, form == 1, form == 2, &out), FL_OK);
            assert_true(fl_vec_push(&out, 0));
            assert_string_equal(out.data, line);
            fl_vec_free(&out);
        }
        fl_json_free(v);
        cases++;
    }
    free(line);
    fclose(f);
    assert_int_equal(cases, 16);
}

static void test_allocation_failures(void **state)
{
    (void)state;
    static const char text[] = "{\"k\": [1, 2.5, \"three\", {\"x\": null, \"w\": [[]]}], \"j\": 0, "
                               "\"l\": 1, \"m\": 2, \"n\": 3, \"o\": 4, \"p\": 5, \"q\": 6, "
                               "\"r\": \"a string that outgrows the parser's first buffers\"}";
    for (long n = 0, made = 0; n <= made; n++) {
        fl_json *v = NULL;
        fl_error e;
        fl_buf out = {0};
        long before = fl_mem_count();
        fl_mem_fail_at(n);
        fl_status s = fl_json_parse(text, sizeof text - 1, "t", &v, &e);
        if (s == FL_OK)
            s = fl_json_dump(v, true, true, &out);
        fl_mem_fail_at(0);
        fl_vec_free(&out);
        fl_json_free(v);
        if (n == 0)
            made = fl_mem_count() - before; /* the first round fails nothing */
        assert_int_equal(s, n == 0 ? FL_OK : FL_NOMEM);
        assert_true(made > 20);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_access),         cmocka_unit_test(test_refused),
        cmocka_unit_test(test_depth),          cmocka_unit_test(test_too_many_values),
        cmocka_unit_test(test_read),           cmocka_unit_test(test_floats_as_python),
        cmocka_unit_test(test_dump_as_python), cmocka_unit_test(test_allocation_failures),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
