/* Streams of UTF-8: what is replaced, and every split of a stream. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "support/text_support.h"

static void clean_text(const char *bytes, size_t len, fl_buf *out)
{
    fl_utf8_stream s = {0};
    out->n = 0;
    assert_true(fl_utf8_feed(&s, bytes, len, out));
    assert_true(fl_utf8_end(&s, out));
}

static void test_replacement(void **state)
{
    (void)state;
#define R "\xef\xbf\xbd"
    static const char *const cases[][2] = {
        {"abc", "abc"},
        {"\xc3\xa9\xe2\x82\xac\xf0\x9f\x98\x80", "\xc3\xa9\xe2\x82\xac\xf0\x9f\x98\x80"},
        {"\x80", R},
        {"\xff\xfe", R R},
        {"\xc0\xaf", R R},             /* overlong */
        {"\xe0\x80\xaf", R R R},       /* overlong */
        {"\xf0\x80\x80\xaf", R R R R}, /* overlong */
        {"\xed\xa0\x80", R R R},       /* surrogate */
        {"\xf4\x90\x80\x80", R R R R}, /* above U+10FFFF */
        {"\xf5\x80", R R},
        {"\xf0\x9f\x98", R}, /* cut short: one character, one mark */
        {"\xe2\x82", R},
        {"\xf0\x9f\x98"
         "A",
         R "A"},
        {"\xe2\xc3\xa9", R "\xc3\xa9"},
        {"\xe2\x82\xe2\x82\xac", R "\xe2\x82\xac"},
        {"\xf0\x90\x80\xff\x80", R R R},
    };
    fl_buf out = {0};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        clean_text(cases[i][0], strlen(cases[i][0]), &out);
        assert_int_equal(out.n, strlen(cases[i][1]));
        assert_memory_equal(out.data, cases[i][1], out.n);
    }
    fl_vec_free(&out);
#undef R
}

/* No character of text is cut off at its end. */
static bool ends_whole(const char *text, size_t n)
{
    size_t back = 0;
    while (back < n && ((unsigned char)text[n - 1 - back] & 0xc0) == 0x80)
        back++;
    if (back == n)
        return n == 0;
    unsigned char lead = (unsigned char)text[n - 1 - back];
    return back == (lead < 0x80 ? 0u : lead < 0xe0 ? 1u : lead < 0xf0 ? 2u : 3u);
}

static void test_stream_splits(void **state)
{
    (void)state;
    uint64_t start = 0xfeed, seed = start;
    print_message("seed 0x%llx\n", (unsigned long long)start);
    fl_buf text = {0}, whole = {0}, parts = {0};
    for (int round = 0; round < 300; round++) {
        random_text(&seed, &text, 8);
        clean_text(text.data, text.n, &whole);
        /* Every split in two, then single bytes. */
        for (size_t cut = 0; cut <= text.n + 1; cut++) {
            fl_utf8_stream s = {0};
            parts.n = 0;
            for (size_t i = 0; i < text.n;) {
                size_t n = cut > text.n ? 1 : i < cut ? cut - i : text.n - i;
                assert_true(fl_utf8_feed(&s, text.data + i, n, &parts));
                assert_true(ends_whole(parts.data, parts.n));
                i += n;
            }
            assert_true(fl_utf8_end(&s, &parts));
            assert_int_equal(parts.n, whole.n);
            if (whole.n)
                assert_memory_equal(parts.data, whole.data, whole.n);
        }
    }
    /* No memory: nothing happened, and it can be tried again. */
    fl_utf8_stream s = {0};
    parts.n = 0;
    assert_true(fl_utf8_feed(&s, "\xe2\x82", 2, &parts));
    fl_vec_free(&parts);
    fl_mem_fail_at(1);
    assert_false(fl_utf8_feed(&s, "\xac", 1, &parts));
    assert_int_equal(s.n, 2);
    assert_true(fl_utf8_feed(&s, "\xac", 1, &parts));
    assert_memory_equal(parts.data, "\xe2\x82\xac", 3);
    fl_vec_free(&text);
    fl_vec_free(&whole);
    fl_vec_free(&parts);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_replacement),
        cmocka_unit_test(test_stream_splits),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
