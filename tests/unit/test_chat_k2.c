/* The K2 envelope of Kimi-Linear: prompts and answers. */
#include "support/cmocka_all.h"

#include "support/chat_support.h"

#include <string.h>

static folder f;
static opened o;

static int set_up(void **state)
{
    (void)state;
    model_links_with_tools(&f);
    model_open(&o, f.path, NULL);
    return 0;
}

static int tear_down(void **state)
{
    (void)state;
    model_close(&o);
    folder_remove(&f);
    return 0;
}

static void check(const char *messages, const char *tools, const char *expected)
{
    fl_json *m = parse(messages), *t = parse(tools);
    fl_chat_options options = {
        .messages = m, .tools = t, .thinking = true, .effort = "max", .generation_prompt = true};
    fl_buf text = {0};
    fl_ids ids = {0}, whole = {0};
    fl_error e = {0};
    if (fl_chat_render(o.m, &options, &text, &ids, &e) != FL_OK)
        fail_msg("%s", e.message);
    assert_true(fl_vec_push(&text, 0));
    assert_string_equal(text.data, expected);
    /* Every marker of this text is one of the format, so the ids are those of the whole text. */
    encode(o.m, expected, &whole);
    const fl_tokenizer *tk;
    size_t markers = 0, specials = 0;
    assert_int_equal(fl_model_tokenizer(o.m, &tk, &e), FL_OK);
    for (size_t i = 0; i < whole.n; i++)
        markers += fl_tokenizer_is_special(tk, whole.data[i]);
    for (size_t i = 0; i < ids.n; i++)
        specials += fl_tokenizer_is_special(tk, ids.data[i]);
    assert_int_equal(specials, markers);
    fl_vec_free(&text);
    fl_vec_free(&ids);
    fl_vec_free(&whole);
    fl_json_free(m);
    fl_json_free(t);
}

static void test_prompts(void **state)
{
    (void)state;
    check("[{\"role\":\"user\",\"content\":\"Hi\"}]", "[]",
          "<|im_user|>user<|im_middle|>Hi<|im_end|><|im_assistant|>assistant<|im_middle|>");
    check("[{\"role\":\"system\",\"content\":\"S\"},{\"role\":\"user\",\"name\":\"Eve\","
          "\"content\":[{\"type\":\"text\",\"text\":\"a\"},{\"type\":\"text\",\"text\":\"b\"}]},"
          "{\"role\":\"assistant\",\"content\":null,\"tool_calls\":[{\"id\":\"functions.f:0\","
          "\"function\":{\"name\":\"f\",\"arguments\":\"{\\\"x\\\":1}\"}},{\"function\":{"
          "\"name\":\"g\",\"arguments\":{\"y\": [2]}}},{\"function\":{\"name\":\"h\"}}]},"
          "{\"role\":\"tool\",\"tool_call_id\":\"functions.f:0\",\"content\":\"7\"}]",
          "[{\"b\": 1, \"a\": 2}]",
          "<|im_system|>tool_declare<|im_middle|>[{\"b\":1,\"a\":2}]<|im_end|>"
          "<|im_system|>system<|im_middle|>S<|im_end|>"
          "<|im_user|>Eve<|im_middle|>ab<|im_end|>"
          "<|im_assistant|>assistant<|im_middle|><|tool_calls_section_begin|>"
          "<|tool_call_begin|>functions.f:0<|tool_call_argument_begin|>{\"x\":1}<|tool_call_end|>"
          "<|tool_call_begin|>functions.g:1<|tool_call_argument_begin|>{\"y\": [2]}"
          "<|tool_call_end|><|tool_call_begin|>functions.h:2<|tool_call_argument_begin|>{}"
          "<|tool_call_end|><|tool_calls_section_end|><|im_end|>"
          "<|im_system|>tool<|im_middle|>## Return of functions.f:0\n7<|im_end|>"
          "<|im_assistant|>assistant<|im_middle|>");
}

static void test_refusals(void **state)
{
    (void)state;
    fl_json *bad = parse("[{\"role\":\"robot\"}]");
    fl_buf text = {0};
    fl_error e = {0};
    fl_chat_options a = {.messages = bad};
    assert_failed(fl_chat_render(o.m, &a, &text, NULL, &e), FL_ARGUMENT, &e, "messages[0].role");
    fl_vec_free(&text);
    fl_json_free(bad);
}

#define CALL(id, args)                                                                             \
    "<|tool_call_begin|>" id "<|tool_call_argument_begin|>" args "<|tool_call_end|>"

static void test_answers(void **state)
{
    (void)state;
    static const struct {
        const char *stream, *expected;
    } cases[] = {
        {"Hello\u00e9<|im_end|>", "C[Hello\u00e9]"},
        {"a<|tool_calls_section_begin|>\n" CALL("functions.get:x:0", "{\"a\": 1}")
             CALL("plain", "{}") "<|tool_calls_section_end|>b<|im_end|>",
         "C[a]T0[get:x]A0[{\"a\": 1}]E0[]T1[plain]A1[{}]E1[]C[b]"},
        {"<|tool_call_argument_begin|>x<|tool_call_end|>y", "C[x]"},
        {"<|tool_call_begin|>f<|tool_call_argument_begin|>{<|tool_call_begin|>g"
         "<|tool_call_argument_begin|>{}",
         "T0[f]A0[{]E0[]T1[g]A1[{}]"},
        {"<|tool_call_begin|>f<|tool_call_argument_begin|>{}[PAD]z", "T0[f]A0[{}]E0[]C[z]"},
    };
    heard whole = {0}, single = {0};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        fl_ids ids = {0};
        encode(o.m, cases[i].stream, &ids);
        parse_answer(o.m, true, &ids, CUT_WHOLE, NULL, &whole);
        parse_answer(o.m, false, &ids, CUT_SINGLE, NULL, &single);
        assert_string_equal(whole.log.data, cases[i].expected);
        assert_string_equal(single.log.data, cases[i].expected);
        fl_vec_free(&ids);
    }
    heard_free(&whole);
    heard_free(&single);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_prompts),
        cmocka_unit_test(test_refusals),
        cmocka_unit_test(test_answers),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
