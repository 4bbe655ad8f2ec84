/* The server without HTTP: stop strings, API keys, requests of other dialects as chat requests. */
#include "server/job_internal.h"
#include "server/messages_internal.h"
#include "server/put_internal.h"
#include "server/responses_internal.h"
#include "support/cmocka_all.h"
#include "support/rng.h"

/* ---- stop strings ---- */

/* The definition, one byte at a time: the answer ends where a stop string first ends. */
static size_t slow_stop(const fl_stops *s, const char *text, size_t len, int *found)
{
    *found = -1;
    for (size_t end = 1; end <= len; end++) {
        size_t begin = end;
        for (int i = 0; i < s->n; i++) {
            size_t n = s->text[i].len;
            if (n <= end && memcmp(text + end - n, s->text[i].data, n) == 0 && end - n < begin) {
                begin = end - n;
                *found = i;
            }
        }
        if (*found >= 0)
            return begin;
    }
    return len;
}

/* Feeds text in random parts, as the server does; shows what passes. */
static size_t feed(rng *r, const fl_stops *s, const char *text, size_t len, int *found)
{
    char hold[64];
    size_t held = 0, shown = 0, at = 0;
    *found = -1;
    while (at < len && *found < 0) {
        size_t n = 1 + rng_next(r) % 5;
        n = n < len - at ? n : len - at;
        memcpy(hold + held, text + at, n);
        at += n;
        held += n;
        size_t safe = fl_stops_scan(s, hold, held, found);
        shown += safe;
        held -= safe;
        memmove(hold, hold + safe, held);
    }
    return *found < 0 ? shown + held : shown; /* at the end nothing is held back */
}

static void test_stops_whatever_the_parts(void **state)
{
    (void)state;
    rng r = {1234};
    int stopped = 0;
    for (int round = 0; round < 20000; round++) {
        char text[24], stops[3][6];
        fl_stops s = {.n = 1 + (int)(rng_next(&r) % 3)};
        for (size_t i = 0; i < sizeof text; i++)
            text[i] = "aab"[rng_next(&r) % 3];
        for (int i = 0; i < s.n; i++) {
            s.text[i] = (fl_bytes){stops[i], 1 + rng_next(&r) % sizeof stops[i]};
            for (size_t k = 0; k < s.text[i].len; k++)
                stops[i][k] = "abc"[rng_next(&r) % (round % 2 ? 2 : 3)];
        }
        int want, got;
        size_t a = slow_stop(&s, text, sizeof text, &want);
        size_t b = feed(&r, &s, text, sizeof text, &got);
        if (a != b || (want < 0) != (got < 0))
            fail_msg("round %d: %zu (%d), expected %zu (%d)", round, b, got, a, want);
        stopped += want >= 0;
    }
    assert_in_range(stopped, 5000, 19000);
}

/* ---- keys ---- */

static fl_status parse(fl_server *s, const char *text, fl_error *err)
{
    *s = (fl_server){0};
    return fl_keys_parse(s, text, strlen(text), "keys", err);
}

static void test_keys(void **state)
{
    (void)state;
    fl_server s;
    fl_error err = {0};
    fl_refusal r;
    assert_int_equal(parse(&s,
                           "# c\n\n  k1\nk2 name=bob concurrent=1 tokens-per-minute=60 "
                           "context=9 shared\r\n",
                           &err),
                     FL_OK);
    assert_int_equal(s.keys.n, 2);
    fl_key *a = fl_keys_find(&s, "k1"), *b = fl_keys_find(&s, "k2");
    assert_ptr_not_equal(a, b);
    assert_null(fl_keys_find(&s, "k"));
    assert_null(fl_keys_find(&s, "k22"));
    assert_null(fl_keys_find(&s, ""));
    assert_string_equal(b->name, "bob");
    assert_true(b->context == 9 && b->shared && !a->shared);
    double now = b->filled;
    assert_true(fl_key_enter_locked(b, now, &r));
    assert_false(fl_key_enter_locked(b, now, &r)); /* one at once */
    assert_int_equal(r.http, 429);
    fl_key_leave_locked(b);
    fl_key_charge_locked(b, 90); /* half a minute in debt */
    assert_false(fl_key_enter_locked(b, now, &r));
    assert_int_equal(r.retry, 31);
    assert_false(fl_key_enter_locked(b, now + 29, &r));
    assert_true(fl_key_enter_locked(b, now + 31, &r));
    assert_true(fl_key_enter_locked(a, now, &r) && fl_key_enter_locked(NULL, now, &r));
    fl_keys_free(&s);
    static const char *const bad[] = {"",
                                      "# nothing\n",
                                      "k many=1\n",
                                      "k concurrent=0\n",
                                      "k context=x\n",
                                      "k tokens-per-minute=9999999999999999999\n"};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        assert_int_equal(parse(&s, bad[i], &err), FL_CONFIG);
        fl_keys_free(&s);
    }
}

/* ---- dialects ---- */

typedef bool (*translate_fn)(const fl_json *body, fl_buf *out, fl_refusal *r);

/* Translates and compares as JSON; or expects the refusal to name `param`. */
static void check(translate_fn f, const char *body, const char *want, const char *param)
{
    fl_error err = {0};
    fl_json *in, *a, *b;
    fl_buf out = {0}, one = {0}, two = {0};
    fl_refusal r = {0};
    assert_int_equal(fl_json_parse(body, strlen(body), "body", &in, &err), FL_OK);
    bool ok = f(in, &out, &r);
    if (ok != (want != NULL))
        fail_msg("%s: %s", body, ok ? "was taken" : r.message);
    if (ok) {
        assert_int_equal(fl_json_parse(out.data, out.n, "out", &a, &err), FL_OK);
        assert_int_equal(fl_json_parse(want, strlen(want), "want", &b, &err), FL_OK);
        assert_int_equal(fl_json_dump(a, false, true, &one), FL_OK);
        assert_int_equal(fl_json_dump(b, false, true, &two), FL_OK);
        assert_true(fl_vec_push(&one, '\0') && fl_vec_push(&two, '\0'));
        assert_string_equal(one.data, two.data);
        fl_json_free(a);
        fl_json_free(b);
    } else {
        assert_int_equal(r.http, 400);
        assert_string_equal(r.param, param);
    }
    fl_json_free(in);
    fl_vec_free(&out);
    fl_vec_free(&one);
    fl_vec_free(&two);
}

static void test_messages_as_chat(void **state)
{
    (void)state;
    check(fl_messages_translate,
          "{\"model\":\"m\",\"max_tokens\":5,\"top_k\":3,\"stop_sequences\":[\"x\"],\"system\":"
          "[{\"type\":\"text\",\"text\":\"a\"},{\"type\":\"text\",\"text\":\"b\"}],\"messages\":["
          "{\"role\":\"user\",\"content\":\"q\"},"
          "{\"role\":\"assistant\",\"content\":[{\"type\":\"thinking\",\"thinking\":\"t\"},"
          "{\"type\":\"text\",\"text\":\"s\"},"
          "{\"type\":\"tool_use\",\"id\":\"i\",\"name\":\"f\",\"input\":{\"k\":1}}]},"
          "{\"role\":\"user\",\"content\":[{\"type\":\"tool_result\",\"tool_use_id\":\"i\","
          "\"content\":[{\"type\":\"text\",\"text\":\"r\"}]},{\"type\":\"text\",\"text\":\"u\"}]}],"
          "\"tools\":[{\"name\":\"f\",\"description\":\"d\",\"input_schema\":{\"type\":\"object\"}}"
          "],\"tool_choice\":{\"type\":\"any\",\"disable_parallel_tool_use\":true}}",
          "{\"model\":\"m\",\"max_tokens\":5,\"top_k\":3,\"stop\":[\"x\"],\"messages\":["
          "{\"role\":\"system\",\"content\":\"ab\"},{\"role\":\"user\",\"content\":\"q\"},"
          "{\"role\":\"assistant\",\"content\":\"s\",\"reasoning_content\":\"t\",\"tool_calls\":["
          "{\"type\":\"function\",\"id\":\"i\",\"function\":{\"name\":\"f\",\"arguments\":"
          "\"{\\\"k\\\": 1}\"}}]},{\"role\":\"tool\",\"tool_call_id\":\"i\",\"content\":\"r\"},"
          "{\"role\":\"user\",\"content\":\"u\"}],\"tools\":[{\"type\":\"function\",\"function\":"
          "{\"name\":\"f\",\"description\":\"d\",\"parameters\":{\"type\":\"object\"}}}],"
          "\"tool_choice\":\"required\",\"parallel_tool_calls\":false,"
          "\"thinking\":{\"type\":\"disabled\"}}",
          NULL);
    check(fl_messages_translate, "{\"system\":5,\"messages\":[]}", NULL, "system");
    check(fl_messages_translate, "{\"messages\":[5]}", NULL, "messages");
    check(fl_messages_translate, "{\"messages\":[{\"role\":\"user\",\"content\":[5]}]}", NULL,
          "messages");
    check(fl_messages_translate, "{\"messages\":[],\"tools\":[{\"type\":\"web_search\"}]}", NULL,
          "tools");
    check(fl_messages_translate_needed, "{\"messages\":[]}", NULL, "max_tokens");
}

static void test_responses_as_chat(void **state)
{
    (void)state;
    check(fl_responses_translate,
          "{\"model\":\"m\",\"instructions\":\"i\",\"input\":[{\"role\":\"user\",\"content\":["
          "{\"type\":\"input_text\",\"text\":\"q\"}]},{\"type\":\"reasoning\",\"summary\":[],"
          "\"content\":[{\"type\":\"reasoning_text\",\"text\":\"t\"}]},{\"type\":\"function_call\","
          "\"call_id\":\"c\",\"name\":\"f\",\"arguments\":\"{}\"},"
          "{\"type\":\"function_call_output\",\"call_id\":\"c\",\"output\":\"r\"}],"
          "\"max_output_tokens\":7,\"reasoning\":{\"effort\":\"low\"},\"text\":{\"format\":"
          "{\"type\":\"json_schema\",\"name\":\"n\",\"schema\":{}}},\"tool_choice\":"
          "{\"type\":\"function\",\"name\":\"f\"},\"tools\":[{\"type\":\"function\",\"name\":\"f\"}"
          "]}",
          "{\"model\":\"m\",\"messages\":[{\"role\":\"system\",\"content\":\"i\"},{\"role\":"
          "\"user\",\"content\":\"q\"},{\"role\":\"assistant\",\"content\":\"\","
          "\"reasoning_content\":\"t\",\"tool_calls\":[{\"type\":\"function\",\"id\":\"c\","
          "\"function\":{\"name\":\"f\",\"arguments\":\"{}\"}}]},{\"role\":\"tool\","
          "\"tool_call_id\":\"c\",\"content\":\"r\"}],\"max_completion_tokens\":7,"
          "\"reasoning_effort\":\"low\",\"response_format\":{\"type\":\"json_schema\","
          "\"json_schema\":{\"name\":\"n\",\"schema\":{}}},\"tool_choice\":{\"type\":\"function\","
          "\"function\":{\"name\":\"f\"}},\"tools\":[{\"type\":\"function\",\"function\":"
          "{\"name\":\"f\"}}]}",
          NULL);
    check(fl_responses_translate, "{}", NULL, "input");
    check(fl_responses_translate, "{\"input\":[{\"type\":\"item_reference\"}]}", NULL, "input");
    check(fl_responses_translate, "{\"input\":\"x\",\"background\":true}", NULL, "background");
    check(fl_responses_translate, "{\"input\":\"x\",\"tools\":[{\"type\":\"mcp\"}]}", NULL,
          "tools");
}

/* ---- memory ---- */

static bool translate_once(translate_fn f, const fl_json *in)
{
    fl_buf out = {0};
    fl_refusal r = {0};
    bool ok = f(in, &out, &r);
    if (!ok)
        assert_int_equal(r.http, 500);
    fl_vec_free(&out);
    return ok;
}

static void test_without_memory(void **state)
{
    (void)state;
    static const char messages[] =
        "{\"max_tokens\":1,\"system\":\"s\",\"messages\":[{\"role\":\"user\",\"content\":\"q\"},"
        "{\"role\":\"assistant\",\"content\":[{\"type\":\"text\",\"text\":\"t\"},{\"type\":"
        "\"tool_use\",\"id\":\"i\",\"name\":\"f\",\"input\":{}}]}],\"tools\":[{\"name\":\"f\"}]}";
    static const char responses[] =
        "{\"input\":[{\"role\":\"user\",\"content\":\"q\"},{\"type\":\"function_call\",\"name\":"
        "\"f\"},{\"type\":\"function_call_output\",\"output\":\"o\"}]}";
    static const struct {
        translate_fn f;
        const char *body;
    } cases[] = {{fl_messages_translate, messages}, {fl_responses_translate, responses}};
    fl_error err = {0};
    for (int i = 0; i < 2; i++) {
        fl_json *in;
        long n = 1;
        assert_int_equal(fl_json_parse(cases[i].body, strlen(cases[i].body), "b", &in, &err),
                         FL_OK);
        for (bool ok = false; !ok; n++) {
            fl_mem_fail_at(n);
            ok = translate_once(cases[i].f, in);
            fl_mem_fail_at(0);
        }
        assert_true(n > 5);
        fl_json_free(in);
    }
    fl_server s;
    long n = 1;
    for (fl_status status = FL_NOMEM; status != FL_OK; n++) {
        fl_mem_fail_at(n);
        status = parse(&s, "a name=x\nb shared\n", &err);
        fl_mem_fail_at(0);
        assert_true(status == FL_OK || status == FL_NOMEM);
        fl_keys_free(&s);
    }
    assert_true(n > 4);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_stops_whatever_the_parts), cmocka_unit_test(test_keys),
        cmocka_unit_test(test_messages_as_chat), cmocka_unit_test(test_responses_as_chat),
        cmocka_unit_test(test_without_memory)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
