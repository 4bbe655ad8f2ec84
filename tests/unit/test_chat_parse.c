/* Answers of Kimi K3 taken apart: what the format means, what broken streams mean, and that how a
 * stream was cut changes nothing. */
#include "support/cmocka_all.h"

#include "support/chat_support.h"

#include "base/mem.h"

#include <stdio.h>
#include <string.h>

static opened tiny;

static int set_up(void **state)
{
    (void)state;
    model_open(&tiny, FL_TINY_MODEL, NULL);
    return 0;
}

static int tear_down(void **state)
{
    (void)state;
    model_close(&tiny);
    return 0;
}

#define O "<|open|>"
#define C "<|close|>"
#define S "<|sep|>"
#define OPEN(tag) O tag S
#define CLOSE(tag) C tag S
#define CALL(name) O "call tool=\"" name "\" index=\"1\"" S
#define ARG(key, type, value)                                                                      \
    O "argument key=\"" key "\" type=\"" type "\"" S value CLOSE("argument")

typedef struct answer {
    const char *stream, *expected;
} answer;

/* thinking: the answer begins inside the reasoning. */
static void check(bool thinking, const answer *cases, size_t n)
{
    heard h = {0};
    for (size_t i = 0; i < n; i++) {
        fl_ids ids = {0};
        encode(tiny.m, cases[i].stream, &ids);
        parse_answer(tiny.m, thinking, &ids, CUT_SINGLE, NULL, &h);
        if (strcmp(h.log.data, cases[i].expected) != 0)
            fail_msg("%s\ngives    %s\nexpected %s", cases[i].stream, h.log.data,
                     cases[i].expected);
        fl_vec_free(&ids);
    }
    heard_free(&h);
}

#define CHECK(thinking, cases) check(thinking, cases, sizeof(cases) / sizeof *(cases))

static void test_whole_answers(void **state)
{
    (void)state;
    static const answer thinking[] = {
        {"", ""},
        {"why" CLOSE("think") OPEN("response") "because" CLOSE("response")
             CLOSE("message") "<|end_of_msg|>",
         "R[why]C[because]"},
        {CLOSE("think") OPEN("response") " a\n" CLOSE("response") CLOSE("message"), "C[ a\n]"},
        {"r" CLOSE("think") OPEN("response") CLOSE("response") OPEN("tools") CALL("f")
             ARG("s", "string", "x\"\\\n\t\u00e9") ARG("n", "number", "3") CLOSE("call") CALL("g")
                 CLOSE("call") CLOSE("tools") CLOSE("message") "<|end_of_msg|>",
         "R[r]T0[f]A0[{\"s\": \"x\\\"\\\\\\n\\t\u00e9\", \"n\": 3}]E0[]T1[g]A1[{}]E1[]"},
    };
    static const answer plain[] = {
        {"text" CLOSE("response") CLOSE("message"), "C[text]"},
        {"text<|end_of_msg|>[EOS]", "C[text]"},
    };
    CHECK(true, thinking);
    CHECK(false, plain);
}

static void test_arguments(void **state)
{
    (void)state;
    static const answer cases[] = {
        {CALL("f") ARG("a", "number", "1.50") ARG("b", "boolean", "true") ARG("c", "null", "null")
             ARG("d", "object", "{\"k\":[1,{}]}") ARG("e", "array", "[1,\"\u00e9\"]") CLOSE("call"),
         "T0[f]A0[{\"a\": 1.5, \"b\": true, \"c\": null, \"d\": {\"k\": [1, {}]}, "
         "\"e\": [1, \"\u00e9\"]}]E0[]"},
        /* not JSON: the text itself */
        {CALL("f") ARG("a", "number", "two") ARG("b", "object", "") CLOSE("call"),
         "T0[f]A0[{\"a\": \"two\", \"b\": \"\"}]E0[]"},
        {CALL("f") O "argument key=\"a\"" S "7" CLOSE("argument") CLOSE("call"),
         "T0[f]A0[{\"a\": 7}]E0[]"},
        {CALL("a&quot;b&amp;quot;") ARG("&lt;&amp;", "string", "&amp;") CLOSE("call"),
         "T0[a\"b&quot;]A0[{\"&lt;&\": \"&amp;\"}]E0[]"},
        /* a key comes once in an object */
        {CALL("f") ARG("a", "string", "1") ARG("a", "string", "2") ARG("b", "number", "3")
             CLOSE("call"),
         "T0[f]A0[{\"a\": \"1\", \"b\": 3}]E0[]"},
        {CALL("f") O "json type=\"object\"" S "{\"x\" 1" CLOSE("json") CLOSE("call"),
         "T0[f]A0[{\"x\" 1]E0[]"},
        {CALL("f") OPEN("json") "{}" CLOSE("json") ARG("a", "string", "x")
             OPEN("json") "1" CLOSE("json") CLOSE("call"),
         "T0[f]A0[{}]E0[]"},
    };
    CHECK(false, cases);
}

static void test_mistakes(void **state)
{
    (void)state;
    static const answer cases[] = {
        /* a channel that opens ends the reasoning */
        {"why" OPEN("response") "x", "R[why]C[x]"},
        {"why" OPEN("tools") CALL("f") CLOSE("call"), "R[why]T0[f]A0[{}]E0[]"},
        {OPEN("think") "why" CLOSE("think") "  \n" OPEN("response") "x", "R[why]C[x]"},
        /* text outside of channels is not lost */
        {"a" CLOSE("think") "\n b c \n" OPEN("response") "d" CLOSE("response") " e",
         "R[a]C[b c \nde]"},
        {"a" CLOSE("message") "b", "R[a]C[b]"},
        {CLOSE("think") OPEN("response") "a" CLOSE("response") OPEN("response") "b", "C[ab]"},
        /* what closes nothing is dropped, so are unknown tags and stray markers */
        {"a" CLOSE("response") "b" S "c" OPEN("what=\"1\"") "d[PAD]<|media_pad|>", "R[abcd]"},
        {CLOSE("argument") ARG("a", "string", "x"), "R[x]"},
        /* a missing sep before the next marker */
        {"a" C "think" O "response" S "b", "R[a]C[b]"},
        /* missing ends inside tool calls */
        {CALL("f") O "argument key=\"a\" type=\"string\"" S "x" CALL("g") O
         "argument key=\"b\" type=\"number\"" S "1" CLOSE("tools") "z",
         "T0[f]A0[{\"a\": \"x\"}]E0[]T1[g]A1[{\"b\": 1}]E1[]C[z]"},
        {OPEN("call") CLOSE("message"), "T0[]A0[{}]E0[]"},
        /* an answer cut short */
        {"a" O "resp", "R[a]"},
        {CALL("f") O "argument key=\"a\" type=\"string\"" S "x", "T0[f]A0[{\"a\": \"x]"},
        {CALL("f") O "argument key=\"a\" type=\"number\"" S "1", "T0[f]A0[{\"a\": ]"},
    };
    CHECK(true, cases);
}

static void test_markers_as_text_are_text(void **state)
{
    (void)state;
    const fl_tokenizer *t;
    static const char text[] = CLOSE("think") OPEN("response") "x<|end_of_msg|>";
    fl_ids ids = {0};
    heard h = {0};
    fl_error e;
    assert_int_equal(fl_model_tokenizer(tiny.m, &t, &e), FL_OK);
    assert_int_equal(fl_tokenizer_encode(t, text, strlen(text), false, &ids, &e), FL_OK);
    parse_answer(tiny.m, true, &ids, CUT_WHOLE, NULL, &h);
    assert_memory_equal(h.log.data, "R[", 2);
    assert_memory_equal(h.log.data + 2, text, strlen(text));
    fl_vec_free(&ids);
    heard_free(&h);
}

static void test_long_tag_is_text(void **state)
{
    (void)state;
    fl_ids ids = {0};
    heard h = {0};
    encode(tiny.m, "a" O, &ids);
    for (int i = 0; i < 5000; i++)
        encode(tiny.m, " word", &ids);
    parse_answer(tiny.m, true, &ids, CUT_WHOLE, NULL, &h);
    assert_memory_equal(h.log.data, "R[a word word", 13);
    assert_int_equal(strlen(h.log.data), 2 + 1 + 5 * 5000 + 1);
    fl_vec_free(&ids);
    heard_free(&h);
}

static void test_ended_parsers(void **state)
{
    (void)state;
    fl_chat_parser *p;
    heard h = {.kind = -1};
    fl_error e = {0};
    assert_int_equal(fl_chat_parser_create(tiny.m, true, hear, &h, &p, &e), FL_OK);
    assert_failed(fl_chat_parser_feed(p, (int32_t[]){-7}, 1, &e), FL_MODEL, &e, "token -7");
    assert_failed(fl_chat_parser_feed(p, (int32_t[]){7}, 1, &e), FL_ARGUMENT, &e, "has ended");
    fl_chat_parser_destroy(p);
    assert_int_equal(fl_chat_parser_create(tiny.m, true, hear, &h, &p, &e), FL_OK);
    assert_int_equal(fl_chat_parser_end(p, &e), FL_OK);
    assert_failed(fl_chat_parser_end(p, &e), FL_ARGUMENT, &e, "has ended");
    fl_chat_parser_destroy(p);
    fl_chat_parser_destroy(NULL);
    heard_free(&h);
}

/* ---- random streams ---- */

static const char *const scraps[] = {OPEN("think"),
                                     CLOSE("think"),
                                     OPEN("response"),
                                     CLOSE("response"),
                                     OPEN("tools"),
                                     CLOSE("tools"),
                                     OPEN("message"),
                                     CLOSE("message"),
                                     CLOSE("call"),
                                     CLOSE("argument"),
                                     CALL("f"),
                                     CALL("g&quot;h"),
                                     OPEN("json"),
                                     CLOSE("json"),
                                     OPEN("other"),
                                     CLOSE("other"),
                                     O "argument key=\"a\" type=\"string\"" S,
                                     O "argument key=\"b\" type=\"object\"" S,
                                     O "argument key=\"c&quot;\" type=\"number\"" S,
                                     O,
                                     C,
                                     S,
                                     "<|end_of_msg|>",
                                     "[PAD]",
                                     "word",
                                     " and more",
                                     "\n",
                                     "  ",
                                     "{\"k\": [1, 2.50]}",
                                     "\"q\"\\",
                                     "\u65e5\u672c\u8a9e",
                                     "\U0001f389",
                                     "\u00e9",
                                     "12",
                                     "null",
                                     "&amp;\"",
                                     "=\"",
                                     "key",
                                     "<|open|"};

/* Some scraps; then tokens deleted, doubled, swapped or replaced at random. */
static void random_stream(rng *r, fl_ids *ids)
{
    ids->n = 0;
    for (int64_t n = rng_int(r, 0, 25); n > 0; n--)
        encode(tiny.m, scraps[rng_int(r, 0, sizeof scraps / sizeof *scraps - 1)], ids);
    for (int64_t n = rng_int(r, 0, 6); n > 0 && ids->n > 1; n--) {
        size_t i = (size_t)rng_int(r, 0, (int64_t)ids->n - 1);
        size_t k = (size_t)rng_int(r, 0, (int64_t)ids->n - 1);
        int32_t id = ids->data[i];
        switch (rng_int(r, 0, 3)) {
        case 0:
            ids->data[i] = ids->data[--ids->n];
            break;
        case 1:
            assert_true(fl_vec_push(ids, id));
            break;
        case 2:
            ids->data[i] = ids->data[k];
            ids->data[k] = id;
            break;
        default:
            ids->data[i] = (int32_t)rng_int(r, 0, 4095);
        }
    }
}

static bool is_utf8(const char *text, size_t n)
{
    fl_utf8_stream s = {0};
    fl_buf out = {0};
    assert_true(fl_utf8_feed(&s, text, n, &out) && s.n == 0);
    bool same = out.n == n && (n == 0 || memcmp(out.data, text, n) == 0);
    fl_vec_free(&out);
    return same;
}

/* Checks every event as it comes: whole characters, calls in order, arguments that parse. */
typedef struct guard {
    int calls;
    bool in_call;
    fl_buf args;
} guard;

static void watch(void *ctx, const fl_chat_event *e)
{
    guard *g = ctx;
    assert_true(is_utf8(e->text.data, e->text.len));
    switch (e->kind) {
    case FL_CHAT_REASONING:
    case FL_CHAT_CONTENT:
        assert_true(e->text.len > 0 && e->index == 0);
        break;
    case FL_CHAT_TOOL_BEGIN:
        assert_true(!g->in_call && e->index == g->calls);
        g->in_call = true;
        g->calls++;
        g->args.n = 0;
        break;
    case FL_CHAT_TOOL_ARGS:
        assert_true(g->in_call && e->index == g->calls - 1);
        assert_true(fl_vec_append(&g->args, e->text.data, e->text.len));
        break;
    case FL_CHAT_TOOL_END:
        assert_true(g->in_call && e->index == g->calls - 1);
        g->in_call = false;
    }
}

static void guarded(const fl_ids *ids, bool json_blocks)
{
    guard g = {0};
    fl_chat_parser *p;
    fl_error e = {0};
    assert_int_equal(fl_chat_parser_create(tiny.m, true, watch, &g, &p, &e), FL_OK);
    for (size_t i = 0; i < ids->n; i++) {
        bool before = g.in_call;
        assert_int_equal(fl_chat_parser_feed(p, ids->data + i, 1, &e), FL_OK);
        if (!before || g.in_call || json_blocks)
            continue;
        fl_json *v;
        if (fl_json_parse(g.args.data, g.args.n, "arguments", &v, &e) != FL_OK)
            fail_msg("%s: %.*s", e.message, (int)g.args.n, g.args.data);
        assert_true(fl_json_is(v, FL_JSON_OBJECT));
        fl_json_free(v);
    }
    fl_chat_parser_destroy(p);
    fl_vec_free(&g.args);
}

static void test_any_cut_gives_the_same(void **state)
{
    (void)state;
    heard one = {0}, other = {0};
    fl_ids ids = {0}, json = {0};
    encode(tiny.m, "json", &json);
    for (uint64_t seed = 1; seed <= 400; seed++) {
        rng r = {seed};
        bool thinking = rng_one_in(&r, 2);
        random_stream(&r, &ids);
        parse_answer(tiny.m, thinking, &ids, CUT_WHOLE, NULL, &one);
        for (int cut = CUT_SINGLE; cut <= CUT_RANDOM; cut++) {
            parse_answer(tiny.m, thinking, &ids, cut, &r, &other);
            if (strcmp(one.log.data, other.log.data) != 0)
                fail_msg("seed %d: %s\n%s", (int)seed, one.log.data, other.log.data);
        }
        bool json_blocks = false;
        for (size_t i = 0; i < ids.n; i++)
            json_blocks |= ids.data[i] == json.data[0];
        guarded(&ids, json_blocks);
    }
    fl_vec_free(&ids);
    fl_vec_free(&json);
    heard_free(&one);
    heard_free(&other);
}

/* ---- there and back ---- */

static const char *random_text(rng *r)
{
    static const char *const texts[] = {"",
                                        "a",
                                        "Hi there.",
                                        "\n\n x",
                                        "\u65e5\u672c \U0001f389",
                                        "<|open|>tools<|sep|>",
                                        "q\"\\&amp;&",
                                        "{\"a\": 1}",
                                        "7"};
    return texts[rng_int(r, 0, sizeof texts / sizeof *texts - 1)];
}

static void quote(fl_buf *out, const char *head, const char *text)
{
    assert_true(fl_vec_append(out, head, strlen(head)) && fl_json_quote(text, strlen(text), out));
}

static void put(fl_buf *out, const char *text)
{
    assert_true(fl_vec_append(out, text, strlen(text)));
}

/* A random turn of the assistant: the message as JSON, and what its parser should report. */
static void random_turn(rng *r, fl_buf *message, fl_buf *expected)
{
    const char *reasoning = random_text(r), *content = random_text(r);
    message->n = expected->n = 0;
    quote(message, "[{\"role\": \"assistant\", \"reasoning_content\": ", reasoning);
    quote(message, ", \"content\": ", content);
    if (*reasoning)
        put(expected, "R["), put(expected, reasoning), put(expected, "]");
    if (*content)
        put(expected, "C["), put(expected, content), put(expected, "]");
    put(message, ", \"tool_calls\": [");
    for (int64_t i = 0, n = rng_int(r, 0, 3); i < n; i++) {
        fl_buf args = {0};
        char head[32];
        const char *name = random_text(r);
        static const char *const values[] = {"1",    "-2.5", "true",
                                             "null", "[]",   "{\"x\": [1, \"y\"]}"};
        for (int64_t k = 0, n_args = rng_int(r, 0, 3); k < n_args; k++) {
            snprintf(head, sizeof head, "%s\"k%d\\\"\": ", k ? ", " : "", (int)k);
            if (rng_one_in(r, 2))
                quote(&args, head, random_text(r));
            else
                put(&args, head), put(&args, values[rng_int(r, 0, 5)]);
        }
        assert_true(fl_vec_push(&args, 0));
        quote(message, i ? ", {\"function\": {\"name\": " : "{\"function\": {\"name\": ", name);
        put(message, ", \"arguments\": {"), put(message, args.data), put(message, "}}}");
        snprintf(head, sizeof head, "T%d[", (int)i);
        put(expected, head), put(expected, name);
        snprintf(head, sizeof head, "]A%d[{", (int)i);
        put(expected, head), put(expected, args.data);
        snprintf(head, sizeof head, "}]E%d[]", (int)i);
        put(expected, head);
        fl_vec_free(&args);
    }
    put(message, "]}]");
    assert_true(fl_vec_push(message, 0) && fl_vec_push(expected, 0));
}

static void test_rendered_turns_parse_back(void **state)
{
    (void)state;
    fl_buf message = {0}, expected = {0};
    heard h = {0};
    for (uint64_t seed = 1; seed <= 300; seed++) {
        rng r = {seed};
        fl_ids ids = {0}, opening = {0};
        fl_error e = {0};
        random_turn(&r, &message, &expected);
        fl_json *v = parse(message.data);
        fl_chat_options o = {.messages = v, .thinking = true};
        if (fl_chat_render(tiny.m, &o, NULL, &ids, &e) != FL_OK)
            fail_msg("%s", e.message);
        encode(tiny.m, "<|open|>message role=\"assistant\"<|sep|><|open|>think<|sep|>", &opening);
        fl_ids rest = {.data = ids.data + opening.n, .n = ids.n - opening.n};
        parse_answer(tiny.m, true, &rest, CUT_RANDOM, &r, &h);
        if (strcmp(h.log.data, expected.data) != 0)
            fail_msg("seed %d: %s\ngives    %s\nexpected %s", (int)seed, message.data, h.log.data,
                     expected.data);
        fl_json_free(v);
        fl_vec_free(&ids);
        fl_vec_free(&opening);
    }
    fl_vec_free(&message);
    fl_vec_free(&expected);
    heard_free(&h);
}

/* ---- memory ---- */

static void count_event(void *ctx, const fl_chat_event *event)
{
    (void)event;
    ++*(int *)ctx;
}

/* Renders and parses once; whatever fails, all is released. */
static fl_status talk(const fl_json *messages, const fl_ids *reply, fl_error *e)
{
    fl_chat_options o = {.messages = messages, .thinking = true, .effort = "low"};
    fl_buf text = {0};
    fl_ids ids = {0};
    fl_chat_parser *p = NULL;
    int events = 0;
    fl_status status = fl_chat_render(tiny.m, &o, &text, &ids, e);
    if (status == FL_OK)
        status = fl_chat_parser_create(tiny.m, true, count_event, &events, &p, e);
    if (status == FL_OK)
        status = fl_chat_parser_feed(p, reply->data, reply->n, e);
    if (status == FL_OK)
        status = fl_chat_parser_end(p, e);
    fl_chat_parser_destroy(p);
    fl_vec_free(&text);
    fl_vec_free(&ids);
    return status;
}

static void test_failed_allocations(void **state)
{
    (void)state;
    fl_ids reply = {0};
    fl_error e = {0};
    fl_json *messages =
        parse("[{\"role\": \"assistant\", \"content\": \"x\", \"tool_calls\": [{"
              "\"function\": {\"name\": \"f\", \"arguments\": \"{\\\"a\\\": [1]}\"}}]}]");
    encode(tiny.m, "why" CLOSE("think") CALL("f") ARG("a", "object", "{\"k\": 1}") CLOSE("call"),
           &reply);
    assert_int_equal(talk(messages, &reply, &e), FL_OK);
    long before = fl_mem_count();
    assert_int_equal(talk(messages, &reply, &e), FL_OK);
    long n = fl_mem_count() - before;
    assert_true(n > 50);
    for (long i = 1; i <= n; i++) {
        fl_mem_fail_at(i);
        fl_status status = talk(messages, &reply, &e);
        fl_mem_fail_at(0);
        if (status != FL_OK && status != FL_NOMEM)
            fail_msg("allocation %ld: status %d: %s", i, (int)status, e.message);
        assert_int_equal(talk(messages, &reply, &e), FL_OK);
    }
    fl_vec_free(&reply);
    fl_json_free(messages);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_whole_answers),
        cmocka_unit_test(test_arguments),
        cmocka_unit_test(test_mistakes),
        cmocka_unit_test(test_markers_as_text_are_text),
        cmocka_unit_test(test_long_tag_is_text),
        cmocka_unit_test(test_ended_parsers),
        cmocka_unit_test(test_any_cut_gives_the_same),
        cmocka_unit_test(test_rendered_turns_parse_back),
        cmocka_unit_test(test_failed_allocations),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
