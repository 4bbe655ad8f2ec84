/* The chat formats whose releases render a whole string: prompts against the releases' own
 * renderers (tools/make_chat_tests.py), answers taken apart at every cut. */
#include "support/cmocka_all.h"

#include "support/chat_support.h"

#include <stdio.h>
#include <string.h>

static chat_format deepseek, glm, later;

static int set_up(void **state)
{
    (void)state;
    chat_format_open(&deepseek, "splits", "include('deepseek_chat')", "{}");
    chat_format_open(&glm, "single", "include('glm_chat')", "{\"index_topk_freq\": 1}");
    chat_format_open(&later, "single", "include('glm_chat')",
                     "{\"indexer_types\": [\"full\", \"shared\"]}");
    return 0;
}

static int tear_down(void **state)
{
    (void)state;
    chat_format *all[] = {&deepseek, &glm, &later};
    for (int i = 0; i < 3; i++) {
        chat_format_close(all[i]);
    }
    return 0;
}

/* ---- prompts ---- */

static const fl_json *member(const fl_json *object, const char *name)
{
    const fl_json *v = fl_json_get(object, name);
    return fl_json_is(v, FL_JSON_NULL) ? NULL : v;
}

static void check_prompt(chat_format *t, const fl_chat_options *options, const char *expected)
{
    fl_buf text = {0};
    fl_ids ids = {0}, whole = {0};
    fl_error e = {0};
    if (fl_chat_render(t->o.m, options, &text, &ids, &e) != FL_OK)
        fail_msg("%s", e.message);
    assert_true(fl_vec_push(&text, 0));
    assert_string_equal(text.data, expected);
    /* The release tokenises the string; no name of a token is in the texts of these cases. */
    encode(t->o.m, expected, &whole);
    assert_int_equal(ids.n, whole.n);
    assert_memory_equal(ids.data, whole.data, ids.n * sizeof *ids.data);
    fl_vec_free(&text);
    fl_vec_free(&ids);
    fl_vec_free(&whole);
}

static void check_file(chat_format *t, const char *name, size_t at_least)
{
    char path[512];
    fl_json *cases;
    fl_error e = {0};
    snprintf(path, sizeof path, "%s/chat/%s.json", FL_TEST_DATA, name);
    if (fl_json_read(path, 1 << 20, &cases, &e) != FL_OK)
        fail_msg("%s", e.message);
    assert_true(fl_json_size(cases) >= at_least);
    for (size_t i = 0; i < fl_json_size(cases); i++) {
        const fl_json *one = fl_json_at(cases, i), *effort = member(one, "effort");
        fl_chat_options options = {.messages = fl_json_get(one, "messages"),
                                   .tools = member(one, "tools"),
                                   .effort = effort ? fl_json_string(effort).data : NULL,
                                   .thinking = fl_json_bool(fl_json_get(one, "thinking")),
                                   .generation_prompt = true};
        check_prompt(t, &options, fl_json_string(fl_json_get(one, "prompt")).data);
    }
    fl_json_free(cases);
}

static void test_prompts_of_releases(void **state)
{
    (void)state;
    check_file(&deepseek, "deepseek", 18);
    check_file(&glm, "glm", 18);
    check_file(&later, "glm_later", 10);
}

/* What the releases' renderers do not say. */
static void test_own_prompts(void **state)
{
    (void)state;
    static const struct {
        chat_format *t;
        const char *messages, *tools, *choice, *response_format;
        bool thinking, opens;
        const char *expected;
    } cases[] = {
        {&deepseek,
         "[{\"role\":\"user\",\"content\":[{\"type\":\"text\",\"text\":\"a\"},"
         "{\"type\":\"text\",\"text\":\"<think>\"}]}]",
         "[]", "\"auto\"", "{\"type\":\"text\"}", true, false,
         "<｜begin▁of▁sentence｜><｜User｜>a<think>"},
        {&deepseek, "[{\"role\":\"user\",\"content\":\"a\"}]", "[{\"function\":{\"name\":\"f\"}}]",
         "\"none\"",
         "{\"type\":\"json_schema\",\"json_schema\":{\"schema\":{\"type\":\"object\"}}}", false,
         true,
         "<｜begin▁of▁sentence｜>\n\n## Response Format:\n\nYou MUST strictly adhere to the "
         "following "
         "schema to reply:\n{\"type\": \"object\"}<｜User｜>a<｜Assistant｜></think>"},
        {&glm,
         "[{\"role\":\"user\",\"content\":\"a\"},{\"role\":\"assistant\",\"content\":"
         "\"<think>why</think>\\u3000b \"}]",
         "[]", "\"auto\"", "null", true, false,
         "[gMASK]<sop><|user|>a<|assistant|><think>why</think>b"},
        {&later, "[{\"role\":\"user\",\"content\":\"a\"}]", "[]", "null", "null", false, true,
         "[gMASK]<sop><|user|>a<|assistant|><think></think>"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        fl_json *messages = parse(cases[i].messages), *tools = parse(cases[i].tools),
                *choice = parse(cases[i].choice), *wanted = parse(cases[i].response_format);
        fl_chat_options options = {.messages = messages,
                                   .tools = tools,
                                   .tool_choice = choice,
                                   .response_format = wanted,
                                   .thinking = cases[i].thinking,
                                   .generation_prompt = cases[i].opens};
        fl_buf text = {0};
        fl_ids ids = {0};
        fl_error e = {0};
        if (fl_chat_render(cases[i].t->o.m, &options, &text, &ids, &e) != FL_OK)
            fail_msg("%s", e.message);
        assert_true(fl_vec_push(&text, 0));
        assert_string_equal(text.data, cases[i].expected);
        /* A name that a user types is text: in the first case the ids hold two markers only. */
        const fl_tokenizer *tokens;
        int markers = 0;
        assert_int_equal(fl_model_tokenizer(cases[i].t->o.m, &tokens, &e), FL_OK);
        for (size_t j = 0; j < ids.n; j++)
            markers += fl_tokenizer_is_special(tokens, ids.data[j]);
        if (i == 0)
            assert_int_equal(markers, 2);
        fl_vec_free(&text);
        fl_vec_free(&ids);
        fl_json_free(messages);
        fl_json_free(tools);
        fl_json_free(choice);
        fl_json_free(wanted);
    }
}

static void test_refusals(void **state)
{
    (void)state;
    static const struct {
        chat_format *t;
        const char *messages, *tools, *choice, *response_format, *message;
    } cases[] = {
        {&deepseek, "[{\"role\":\"robot\"}]", "[]", "null", "null", "messages[0].role"},
        {&deepseek, "[{\"role\":\"user\",\"content\":\"\"},{\"role\":\"tool\",\"content\":\"\"}]",
         "[]", "null", "null", "messages[1] answers no tool call"},
        {&deepseek, "[]", "[{\"name\":\"f\"}]", "null", "null", "tools[0].function"},
        {&deepseek, "[]", "[]", "null", "{\"type\":\"json_schema\"}", "response_format"},
        {&glm,
         "[{\"role\":\"assistant\",\"tool_calls\":[{\"function\":{\"name\":\"f\","
         "\"arguments\":\"[1]\"}}]}]",
         "[]", "null", "null", "arguments is of type array"},
        {&glm,
         "[{\"role\":\"assistant\",\"tool_calls\":[{\"function\":{\"name\":\"f\","
         "\"arguments\":\"{\"}}]}]",
         "[]", "null", "null", "arguments is not JSON"},
        {&later, "[{\"role\":\"robot\"}]", "[]", "null", "null", "messages[0].role"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        fl_json *messages = parse(cases[i].messages), *tools = parse(cases[i].tools),
                *choice = parse(cases[i].choice), *wanted = parse(cases[i].response_format);
        fl_chat_options options = {
            .messages = messages, .tools = tools, .tool_choice = choice, .response_format = wanted};
        fl_buf text = {0};
        fl_error e = {0};
        assert_failed(fl_chat_render(cases[i].t->o.m, &options, &text, NULL, &e), FL_ARGUMENT, &e,
                      cases[i].message);
        fl_vec_free(&text);
        fl_json_free(messages);
        fl_json_free(tools);
        fl_json_free(choice);
        fl_json_free(wanted);
    }
}

/* ---- answers ---- */

typedef struct answer {
    bool thinking;
    const char *stream, *expected;
} answer;

static void check_answers(chat_format *t, const char *tools, const answer *cases, size_t n)
{
    fl_json *known = parse(tools);
    heard h = {.tools = known};
    rng random = {42};
    print_message("seed 42\n");
    for (size_t i = 0; i < n; i++) {
        fl_ids ids = {0};
        encode(t->o.m, cases[i].stream, &ids);
        for (int cut = 0; cut < 12; cut++) {
            parse_answer(t->o.m, cases[i].thinking, &ids, cut < CUT_RANDOM ? cut : CUT_RANDOM,
                         &random, &h);
            if (strcmp(h.log.data, cases[i].expected) != 0)
                fail_msg("%s\ngives    %s\nexpected %s", cases[i].stream, h.log.data,
                         cases[i].expected);
        }
        fl_vec_free(&ids);
    }
    heard_free(&h);
    fl_json_free(known);
}

#define CHECK(t, tools, cases) check_answers(t, tools, cases, sizeof(cases) / sizeof *(cases))

#define D "｜DSML｜"
#define BLOCK(calls) "\n\n<" D "function_calls>\n" calls "</" D "function_calls>"
#define INVOKE(name, args) "<" D "invoke name=\"" name "\">\n" args "</" D "invoke>\n"
#define PARAMETER(name, string, value)                                                             \
    "<" D "parameter name=\"" name "\" string=\"" string "\">" value "</" D "parameter>\n"

static void test_deepseek_answers(void **state)
{
    (void)state;
    static const answer cases[] = {
        {true, "why\n\n</think>because<｜end▁of▁sentence｜>", "R[why\n\n]C[because]"},
        {true, "a < b\n<c" D "</think>\n", "R[a < b\n<c" D "]C[\n]"},
        {false, "x\n\n\n<y> < \n\n", "C[x\n\n\n<y> < \n\n]"},
        {false,
         "I look." BLOCK(INVOKE("f", PARAMETER("s", "true", "a\n\n\"<b>\"\n\n")
                                         PARAMETER("n", "false", " [1, 2.50]")) INVOKE("g", "\n")),
         "C[I look.]T0[f]A0[{\"s\": \"a\\n\\n\\\"<b>\\\"\\n\\n\", \"n\":  [1, 2.50]}]E0[]T1[g]"
         "A1[{}]E1[]"},
        {true, "</think>" BLOCK(INVOKE("f", PARAMETER("n", "false", "not json"))),
         "T0[f]A0[{\"n\": \"not json\"}]E0[]"},
        /* the same name twice; a call without its end; a tag that nobody knows */
        {false, BLOCK(INVOKE("f", PARAMETER("a", "true", "1") PARAMETER("a", "true", "2"))),
         "T0[f]A0[{\"a\": \"1\"}]E0[]"},
        {false,
         "\n\n<" D "function_calls>\n<" D "invoke name=\"f\">\n<" D
         "parameter name=\"a\" string=\"true\">x<" D "invoke name=\"g\">\n",
         "T0[f]A0[{\"a\": \"x\"}]E0[]T1[g]"},
        {false, BLOCK(INVOKE("f", PARAMETER("a", "true", "x\n<" D "b>\n"))),
         "T0[f]A0[{\"a\": \"x\\n<" D "b>\\n\"}]E0[]"},
        {false, "a\n<" D "thing>b</" D "invoke>c" D "d", "C[a\nbc" D "d]"},
        {false, "a\n\n<" D "function_calls", "C[a]"},
        {false, BLOCK("") "\nmore", "C[\nmore]"},
    };
    CHECK(&deepseek, "null", cases);
}

#define TC(name, args) "<tool_call>" name args "</tool_call>"
#define ARG(key, value) "<arg_key>" key "</arg_key><arg_value>" value "</arg_value>"

static void test_glm_answers(void **state)
{
    (void)state;
    static const answer typed[] = {
        {true, "why</think>because<|user|>", "R[why]C[because]"},
        {false, "a < b\n", "C[a < b\n]"},
        {true, "</think>x" TC("f", ARG("s", "12") ARG("n", "12") ARG("o", "12") ARG("u", "null")),
         "C[x]T0[f]A0[{\"s\": \"12\", \"n\": 12, \"o\": 12, \"u\": null}]E0[]"},
        {false, TC("f\n", ARG("n", "twelve") ARG("u", "12") ARG("s", "a\"\n")) TC("g", ""),
         "T0[f]A0[{\"n\": \"twelve\", \"u\": \"12\", \"s\": \"a\\\"\\n\"}]E0[]T1[g]A1[{}]E1[]"},
        {false, TC("f", ARG("i", "7") ARG("b", "true") ARG("l", "[1]")),
         "T0[f]A0[{\"i\": 7, \"b\": true, \"l\": [1]}]E0[]"},
    };
    static const answer loose[] = {
        {false, TC("f", ARG("a", "12") ARG("b", "\"q\"") ARG("c", "{\"x\": [1]}") ARG("d", "1 2")),
         "T0[f]A0[{\"a\": 12, \"b\": \"\\\"q\\\"\", \"c\": {\"x\": [1]}, \"d\": \"1 2\"}]E0[]"},
        {false, "<arg_key>k</arg_key><arg_value>v</arg_value></tool_call>x", "C[kvx]"},
        {false, "<tool_call>f<arg_value>1</arg_value>" ARG("a", "1") ARG("a", "2") "<tool_call>g",
         "T0[f]A0[{\"a\": 1}]E0[]"},
        {false, "<tool_call>f<arg_key>a</arg_key><arg_value>x", "T0[f]A0[{\"a\": ]"},
    };
    static const char tools[] =
        "[{\"function\":{\"name\":\"f\",\"parameters\":{\"properties\":{\"s\":{\"type\":\"string\"}"
        ","
        "\"n\":{\"type\":\"number\"},\"i\":{\"type\":\"integer\"},\"b\":{\"type\":\"boolean\"},"
        "\"o\":{},\"u\":{\"type\":[\"string\",\"null\"]}}}}},{\"function\":{\"name\":\"g\"}}]";
    CHECK(&glm, tools, typed);
    CHECK(&later, "null", loose);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_prompts_of_releases),
        cmocka_unit_test(test_own_prompts),
        cmocka_unit_test(test_refusals),
        cmocka_unit_test(test_deepseek_answers),
        cmocka_unit_test(test_glm_answers),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
