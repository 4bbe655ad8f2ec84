/* Answers bound by tools and response formats: a random model, made to keep to the form that the
 * chat format gives, is understood by the chat format's own parser. */
#include "engine/constraint.h"

#include "support/chat_support.h"
#include "support/cmocka_all.h"
#include "support/constraint_support.h"
#include "support/schema_check.h"

#include <string.h>

#define WEATHER                                                                                    \
    "{\"type\": \"function\", \"function\": {\"name\": \"get_weather\", \"strict\": true, "        \
    "\"parameters\": {\"type\": \"object\", \"properties\": {\"city\": {\"type\": \"string\", "    \
    "\"maxLength\": 12}, \"days\": {\"type\": [\"integer\", \"null\"], \"minimum\": 1, "           \
    "\"maximum\": 14}, \"unit\": {\"enum\": [\"C\", \"F&\\\"\"]}}, \"required\": [\"city\", "      \
    "\"unit\"], \"additionalProperties\": false}}}"
#define PLACE                                                                                      \
    "{\"type\": \"function\", \"function\": {\"name\": \"place\", \"parameters\": {\"type\": "     \
    "\"object\", \"properties\": {\"at\": {\"$ref\": \"#/$defs/p\"}}, \"required\": [\"at\"], "    \
    "\"$defs\": {\"p\": {\"type\": \"object\", \"properties\": {\"x\": {\"type\": \"number\"}}, "  \
    "\"required\": [\"x\"], \"additionalProperties\": false}}}}}"
#define ANY_OF                                                                                     \
    "{\"type\": \"function\", \"function\": {\"name\": \"either\", \"strict\": true, "             \
    "\"parameters\": {\"anyOf\": [{\"type\": \"object\", \"properties\": {\"a\": {\"const\": "     \
    "1}}, "                                                                                        \
    "\"required\": [\"a\"], \"additionalProperties\": false}]}}}"
#define ODD                                                                                        \
    "{\"type\": \"function\", \"function\": {\"name\": \"odd\", \"parameters\": {\"type\": "       \
    "\"object\", \"properties\": {\"n\": {\"type\": \"integer\", \"multipleOf\": 7}}, "            \
    "\"required\": [\"n\"]}}}"
#define SCHEMA                                                                                     \
    "{\"type\": \"object\", \"properties\": {\"answer\": {\"type\": \"string\", \"maxLength\": "   \
    "20}, \"sure\": {\"type\": \"boolean\"}}, \"required\": [\"answer\", \"sure\"], "              \
    "\"additionalProperties\": false}"

typedef struct answer {
    fl_buf content, reasoning, args, name;
    int calls, ended;
    json_t *tools;
} answer;

/* The parameters of the tool that is called. */
static json_t *parameters_of(const answer *a)
{
    for (size_t i = 0; i < json_array_size(a->tools); i++) {
        json_t *f = json_object_get(json_array_get(a->tools, i), "function");
        const char *name = json_string_value(json_object_get(f, "name"));
        if (strlen(name) == a->name.n && memcmp(name, a->name.data, a->name.n) == 0)
            return json_object_get(f, "parameters");
    }
    return NULL;
}

static void check_call(answer *a)
{
    json_error_t je;
    json_t *schema = parameters_of(a);
    json_t *v = json_loadb(a->args.data, a->args.n, 0, &je);
    if (!schema)
        fail_msg("a call of %.*s", (int)a->name.n, a->name.data);
    if (!v || !schema_accepts(schema, schema, v))
        fail_msg("arguments %.*s", (int)a->args.n, a->args.data);
    json_decref(v);
}

static void listen(void *ctx, const fl_chat_event *e)
{
    answer *a = ctx;
    fl_buf *to[] = {&a->reasoning, &a->content, &a->name, &a->args, NULL};
    if (e->kind == FL_CHAT_TOOL_BEGIN) {
        a->calls++;
        a->name.n = a->args.n = 0;
    }
    if (to[e->kind])
        assert_true(fl_vec_append(to[e->kind], e->text.data, e->text.len));
    if (e->kind == FL_CHAT_TOOL_END) {
        a->ended++;
        check_call(a);
    }
}

typedef struct bench {
    opened o;
    const fl_tokenizer *tokenizer;
    writer w;
} bench;

static void bench_open(bench *b, const char *dir, const char *stop)
{
    fl_error e = {0};
    model_open(&b->o, dir, NULL);
    assert_int_equal(fl_model_tokenizer(b->o.m, &b->tokenizer, &e), FL_OK);
    writer_open(&b->w, b->tokenizer, fl_tokenizer_special(b->tokenizer, stop));
}

static void bench_close(bench *b)
{
    writer_close(&b->w);
    model_close(&b->o);
}

/* What answers must have. */
enum { TEXT, DOCUMENT, ONE_CALL, CALLS, CALLS_OR_DOCUMENT };

/* Writes answers to the options in "tools", "choice", "format", each JSON or NULL. */
static void check_answers(bench *b, bool thinking, const char *tools, const char *choice,
                          const char *format, bool one_call, int expect)
{
    static rng dice = {5};
    fl_json *m = parse("[]"), *t = tools ? parse(tools) : NULL, *c = choice ? parse(choice) : NULL;
    fl_json *f = format ? parse(format) : NULL, *schema = parse(SCHEMA);
    fl_chat_options options = {.messages = m,
                               .tools = t,
                               .tool_choice = c,
                               .response_format = f,
                               .thinking = thinking,
                               .one_call = one_call,
                               .generation_prompt = true};
    fl_form *form;
    fl_grammar *g;
    fl_error e = {0};
    fl_ids ids = {0};
    int ended = 0;
    if (fl_chat_form(b->o.m, &options, &form, &e) != FL_OK ||
        fl_grammar_of_form(b->w.trie, form, &g, &e) != FL_OK)
        fail_msg("%s", e.message);
    fl_form_free(form);
    for (int i = 0; i < 15; i++) {
        if (!writer_run(&b->w, g, &dice, rng_int(&dice, 0, 25), 1500, &ids))
            continue;
        answer a = {.tools = t};
        fl_chat_parser *p;
        assert_int_equal(fl_chat_parser_create(b->o.m, thinking, listen, &a, &p, &e), FL_OK);
        assert_int_equal(fl_chat_parser_tools(p, t, &e), FL_OK);
        assert_int_equal(fl_chat_parser_feed(p, ids.data, ids.n, &e), FL_OK);
        assert_int_equal(fl_chat_parser_end(p, &e), FL_OK);
        fl_chat_parser_destroy(p);
        assert_int_equal(a.calls, a.ended);
        bool document = expect == DOCUMENT || (expect == CALLS_OR_DOCUMENT && a.calls == 0);
        if (document) {
            json_t *v = json_loadb(a.content.data, a.content.n, 0, NULL);
            if (!v || (strstr(format, "json_schema") && !schema_accepts(schema, schema, v)))
                fail_msg("content %.*s", (int)a.content.n, a.content.data);
            json_decref(v);
        }
        if (expect == ONE_CALL)
            assert_int_equal(a.calls, 1);
        if (expect == CALLS)
            assert_true(a.calls >= 1);
        if (expect == DOCUMENT || expect == TEXT)
            assert_true(expect == TEXT || a.calls == 0);
        ended++;
        fl_vec_free(&a.content);
        fl_vec_free(&a.reasoning);
        fl_vec_free(&a.args);
        fl_vec_free(&a.name);
    }
    assert_true(ended > 3);
    fl_grammar_release(g);
    fl_vec_free(&ids);
    fl_json_free(m);
    fl_json_free(t);
    fl_json_free(c);
    fl_json_free(f);
    fl_json_free(schema);
}

#define FORMAT                                                                                     \
    "{\"type\": \"json_schema\", \"json_schema\": {\"name\": \"x\", \"schema\": " SCHEMA "}}"

/* all: the tools, WEATHER and PLACE among them. */
static void check_format(bench *b, bool thinking, const char *all)
{
    static const char named[] = "{\"type\": \"function\", \"function\": {\"name\": \"place\"}}";
    check_answers(b, thinking, NULL, NULL, "{\"type\": \"json_object\"}", false, DOCUMENT);
    check_answers(b, thinking, NULL, NULL, FORMAT, false, DOCUMENT);
    check_answers(b, thinking, all, "\"none\"", FORMAT, false, DOCUMENT);
    check_answers(b, thinking, all, "\"required\"", NULL, false, CALLS);
    check_answers(b, thinking, all, "\"required\"", NULL, true, ONE_CALL);
    check_answers(b, thinking, all, named, NULL, false, ONE_CALL);
    check_answers(b, thinking, all, "\"auto\"", NULL, false, TEXT);
    check_answers(b, thinking, all, NULL, FORMAT, false, CALLS_OR_DOCUMENT);
}

#define ALL "[" WEATHER ", " PLACE ", " ANY_OF "]"

static void test_tags(void **state)
{
    (void)state;
    bench b;
    bench_open(&b, FL_TINY_MODEL, "<|end_of_msg|>");
    check_format(&b, true, ALL);
    check_format(&b, false, ALL);
    bench_close(&b);
}

static void test_sections(void **state)
{
    (void)state;
    folder f;
    bench b;
    model_links_with_tools(&f);
    bench_open(&b, f.path, "<|im_end|>");
    check_format(&b, false, ALL);
    bench_close(&b);
    folder_remove(&f);
}

/* Formats that write arguments one by one, and have no other way. */
static void test_whole_strings(void **state)
{
    (void)state;
    static const struct {
        const char *kind, *chat, *stop;
    } formats[] = {{"splits", "include('deepseek_chat')", "<｜end▁of▁sentence｜>"},
                   {"single", "include('glm_chat')", "<|user|>"}};
    for (int i = 0; i < 2; i++) {
        chat_format t;
        bench b;
        fl_error e = {0};
        chat_format_open(&t, formats[i].kind, formats[i].chat, "{}");
        b.o = t.o;
        assert_int_equal(fl_model_tokenizer(b.o.m, &b.tokenizer, &e), FL_OK);
        writer_open(&b.w, b.tokenizer, fl_tokenizer_special(b.tokenizer, formats[i].stop));
        check_format(&b, true, "[" WEATHER ", " PLACE "]");
        check_format(&b, false, "[" WEATHER ", " PLACE "]");
        fl_json *m = parse("[]"), *tools = parse("[" ANY_OF "]"), *must = parse("\"required\"");
        fl_chat_options o = {.messages = m, .tools = tools, .tool_choice = must};
        fl_form *form;
        assert_failed(fl_chat_form(b.o.m, &o, &form, &e), FL_ARGUMENT, &e, "no plain list");
        fl_json_free(m);
        fl_json_free(tools);
        fl_json_free(must);
        writer_close(&b.w);
        chat_format_close(&t);
    }
}

static void test_free_and_refused(void **state)
{
    (void)state;
    bench b;
    fl_form *form = NULL;
    fl_grammar *g = NULL;
    fl_error e = {0};
    fl_json *m = parse("[]"), *t = parse("[" PLACE ", " ODD "]"), *choice = parse("\"required\"");
    fl_json *strict =
        parse("[{\"type\": \"function\", \"function\": {\"name\": \"f\", \"strict\": true, "
              "\"parameters\": {\"type\": \"object\", \"properties\": {\"a\": {\"type\": "
              "\"integer\", \"multipleOf\": 2}}}}}]");
    fl_chat_options o = {.messages = m, .tools = t, .generation_prompt = true};
    bench_open(&b, FL_TINY_MODEL, "<|end_of_msg|>");
    assert_int_equal(fl_chat_form(b.o.m, &o, &form, &e), FL_OK);
    assert_null(form);      /* nothing is asked for */
    o.tool_choice = choice; /* not strict: what is not supported leaves the value free */
    assert_int_equal(fl_chat_form(b.o.m, &o, &form, &e), FL_OK);
    assert_int_equal(fl_grammar_of_form(b.w.trie, form, &g, &e), FL_OK);
    fl_grammar_release(g);
    fl_form_free(form);
    o.tools = strict;
    assert_int_equal(fl_chat_form(b.o.m, &o, &form, &e), FL_OK);
    assert_failed(fl_grammar_of_form(b.w.trie, form, &g, &e), FL_ARGUMENT, &e, "multipleOf");
    fl_form_free(form);
    o.tools = NULL;
    assert_failed(fl_chat_form(b.o.m, &o, &form, &e), FL_ARGUMENT, &e, "there are no tools");
    assert_null(form);
    bench_close(&b);
    fl_json_free(m);
    fl_json_free(t);
    fl_json_free(strict);
    fl_json_free(choice);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_tags),
        cmocka_unit_test(test_sections),
        cmocka_unit_test(test_whole_strings),
        cmocka_unit_test(test_free_and_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
