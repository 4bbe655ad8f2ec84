/* Constrained output: whatever the model is like, what ends is valid, and nothing gets stuck. */
#include "engine/constraint.h"

#include "base/mem.h"
#include "support/cmocka_all.h"
#include "support/constraint_support.h"
#include "support/model_support.h"
#include "support/schema_check.h"
#include "support/text_support.h"

#include <string.h>

static fl_tokenizer *tokenizer;
static writer w;

static int set_up(void **state)
{
    (void)state;
    tokenizer = open_tiny(&k3);
    writer_open(&w, tokenizer, fl_tokenizer_special(tokenizer, "<|end_of_msg|>"));
    return 0;
}

static int tear_down(void **state)
{
    (void)state;
    writer_close(&w);
    fl_tokenizer_close(tokenizer);
    return 0;
}

static fl_grammar *compile(const char *schema)
{
    fl_error e = {0};
    fl_grammar *g;
    fl_json *s = schema ? parse(schema) : NULL;
    if (fl_grammar_of_schema(w.trie, s, &g, &e) != FL_OK)
        fail_msg("%s: %s", schema, e.message);
    fl_json_free(s);
    return g;
}

static void refused(const char *schema, const char *words)
{
    fl_error e = {0};
    fl_grammar *g;
    fl_json *s = parse(schema);
    assert_failed(fl_grammar_of_schema(w.trie, s, &g, &e), FL_ARGUMENT, &e, words);
    assert_null(g);
    fl_json_free(s);
}

/* Whether the text, token by token as the tokenizer cuts it, is a whole document of the grammar. */
static bool takes(fl_grammar *g, const char *text)
{
    fl_ids ids = {0};
    fl_error e = {0};
    fl_matcher *m;
    assert_int_equal(fl_tokenizer_encode(w.tokenizer, text, strlen(text), false, &ids, &e), FL_OK);
    assert_int_equal(fl_matcher_create(g, 1, &w.stop, 1, &m, &e), FL_OK);
    bool ok = true;
    for (size_t i = 0; ok && i <= ids.n; i++) {
        ok = fl_matcher_mask(m, 0, ids.data, (int64_t)i, w.allowed, &e) == FL_OK;
        ok = ok && writer_allows(&w, i < ids.n ? ids.data[i] : w.stop);
    }
    fl_matcher_destroy(m);
    fl_vec_free(&ids);
    return ok;
}

static void check_text(const char *schema, const char *text)
{
    json_error_t je;
    json_t *s = json_loads(schema, JSON_DECODE_ANY, &je);
    json_t *v = json_loads(text, JSON_DECODE_ANY, &je);
    if (!v)
        fail_msg("for %s: not JSON (%s): %s", schema, je.text, text);
    if (!schema_accepts(s, s, v))
        fail_msg("not valid: %s\nfor %s", text, schema);
    json_decref(s);
    json_decref(v);
}

/* Lets a random model write documents; returns how many ended. */
static int write_documents(const char *schema, rng *dice, int n, bool masks)
{
    fl_grammar *g = compile(schema);
    fl_ids ids = {0};
    fl_buf text = {0};
    int ended = 0;
    for (int i = 0; i < n; i++) {
        if (writer_run(&w, g, dice, rng_int(dice, 0, 30), 1500, &ids)) {
            writer_text(&w, &ids, &text);
            check_text(schema, text.data);
            ended++;
        }
        if (masks && ids.n)
            writer_check_mask(&w, g, &ids, rng_int(dice, 0, (int64_t)ids.n));
    }
    fl_vec_free(&ids);
    fl_vec_free(&text);
    fl_grammar_release(g);
    return ended;
}

static const char *const schemas[] = {
    "{}",
    "{\"type\": \"object\"}",
    "{\"type\": \"integer\"}",
    "{\"type\": [\"number\", \"null\"]}",
    "{\"type\": \"integer\", \"minimum\": -17, \"maximum\": 1205}",
    "{\"type\": \"integer\", \"exclusiveMinimum\": 9, \"exclusiveMaximum\": 11}",
    "{\"type\": \"integer\", \"minimum\": 12345}",
    "{\"type\": \"number\", \"minimum\": -0.5, \"exclusiveMaximum\": 0.25}",
    "{\"type\": \"number\", \"exclusiveMinimum\": 0, \"maximum\": 1}",
    "{\"type\": \"number\", \"minimum\": 1e-7, \"maximum\": 3e-7}",
    "{\"type\": \"number\", \"maximum\": -2.5}",
    "{\"type\": \"string\", \"maxLength\": 5}",
    "{\"type\": \"string\", \"minLength\": 3, \"maxLength\": 40}",
    "{\"type\": \"string\", \"minLength\": 12}",
    "{\"type\": \"string\", \"pattern\": \"^[A-Z]{2}-\\\\d{3,5}$\"}",
    "{\"type\": \"string\", \"pattern\": \"^(a|bc)*$\", \"minLength\": 4, \"maxLength\": 9}",
    "{\"type\": \"string\", \"pattern\": \"cat|^dog\", \"maxLength\": 12}",
    "{\"type\": \"string\", \"pattern\": \"^[^a-z\\\"]\\\\S+\\\\s.?$\"}",
    "{\"type\": \"array\", \"items\": {\"type\": \"boolean\"}, \"minItems\": 2, \"maxItems\": 4}",
    "{\"type\": \"array\", \"prefixItems\": [{\"type\": \"integer\"}, {\"const\": \"x\"}], "
    "\"items\": {\"type\": \"null\"}, \"minItems\": 1, \"maxItems\": 5}",
    "{\"type\": \"array\", \"prefixItems\": [{\"type\": \"integer\"}], \"items\": false}",
    "{\"enum\": [\"red\", \"green\", \"gr\", 12, 1.5, null, true, [1, {\"a\": \"\\u00e9\\n\"}]]}",
    "{\"type\": \"string\", \"enum\": [\"a\", \"ab\", 7]}",
    "{\"const\": {\"k\": [1, 2]}}",
    "{\"type\": \"object\", \"properties\": {\"name\": {\"type\": \"string\", \"maxLength\": 9}, "
    "\"age\": {\"type\": \"integer\", \"minimum\": 0, \"maximum\": 150}, \"tags\": {\"type\": "
    "\"array\", \"items\": {\"enum\": [\"a\", \"b\"]}, \"maxItems\": 3}}, \"required\": [\"name\", "
    "\"tags\"], \"additionalProperties\": false}",
    "{\"type\": \"object\", \"properties\": {\"a\": {\"type\": \"integer\"}, \"ab\": {\"type\": "
    "\"integer\"}, \"\\u00e9\\\"\": {\"type\": \"null\"}}, \"additionalProperties\": {\"type\": "
    "\"boolean\"}, \"required\": [\"zz\"]}",
    "{\"type\": \"object\", \"additionalProperties\": {\"type\": \"integer\"}, \"minProperties\": "
    "1, "
    "\"maxProperties\": 3}",
    "{\"$defs\": {\"node\": {\"type\": \"object\", \"properties\": {\"v\": {\"type\": "
    "\"integer\"}, "
    "\"next\": {\"anyOf\": [{\"$ref\": \"#/$defs/node\"}, {\"type\": \"null\"}]}}, \"required\": "
    "[\"v\", \"next\"], \"additionalProperties\": false}}, \"$ref\": \"#/$defs/node\"}",
    "{\"type\": \"array\", \"items\": {\"$ref\": \"#\"}, \"minItems\": 0, \"maxItems\": 3}",
    "{\"$defs\": {\"tree\": {\"anyOf\": [{\"type\": \"integer\"}, {\"type\": \"array\", \"items\": "
    "{\"$ref\": \"#/$defs/tree\"}, \"minItems\": 1, \"maxItems\": 3}]}}, \"$ref\": "
    "\"#/$defs/tree\"}",
    "{\"oneOf\": [{\"type\": \"object\", \"properties\": {\"kind\": {\"const\": \"dog\"}, "
    "\"bark\": "
    "{\"type\": \"boolean\"}}, \"required\": [\"kind\"]}, {\"type\": \"object\", \"properties\": "
    "{\"kind\": {\"const\": \"cat\"}}, \"required\": [\"kind\"], \"additionalProperties\": false}, "
    "{\"type\": \"string\"}]}",
    "{\"anyOf\": [{\"type\": \"string\", \"maxLength\": 2}, {\"type\": \"string\", \"pattern\": "
    "\"^xyz\"}], \"type\": \"string\"}",
};

static void test_every_document_is_valid(void **state)
{
    (void)state;
    rng dice = {20261129};
    print_message("seed %llu\n", (unsigned long long)dice.state);
    for (size_t i = 0; i < sizeof schemas / sizeof *schemas; i++) {
        int ended = write_documents(schemas[i], &dice, 12, false);
        if (ended == 0)
            fail_msg("no document of %s came to an end", schemas[i]);
    }
}

static void test_a_mask_is_what_following_says(void **state)
{
    (void)state;
    rng dice = {7};
    static const size_t some[] = {0, 4, 7, 12, 15, 17, 19, 21, 25, 27};
    for (size_t i = 0; i < sizeof some / sizeof *some; i++)
        write_documents(schemas[some[i]], &dice, 1, true);
}

/* ---- random schemas ---- */

static bool put(fl_buf *b, const char *text)
{
    return fl_vec_append(b, text, strlen(text));
}

static void put_number(fl_buf *b, int64_t x)
{
    char text[32];
    snprintf(text, sizeof text, "%lld", (long long)x);
    assert_true(put(b, text));
}

static void random_schema(rng *dice, fl_buf *b, int depth)
{
    static const char *const simple[] = {"{\"type\": \"boolean\"}",
                                         "{\"type\": \"null\"}",
                                         "{\"type\": \"integer\"}",
                                         "{\"type\": \"number\"}",
                                         "true",
                                         "{\"enum\": [\"x\", \"yy\", 3, null]}"};
    int64_t low = rng_int(dice, -2000, 2000), n = rng_int(dice, 0, 3);
    switch (depth > 3 ? rng_int(dice, 0, 3) : rng_int(dice, 0, 8)) {
    case 0:
    case 1:
        assert_true(put(b, simple[rng_int(dice, 0, 5)]));
        return;
    case 2:
        assert_true(put(b, rng_one_in(dice, 2) ? "{\"type\": \"integer\", \"minimum\": "
                                               : "{\"type\": \"number\", \"exclusiveMinimum\": "));
        put_number(b, low);
        assert_true(put(b, ", \"maximum\": "));
        put_number(b, low + rng_int(dice, 1, 3000));
        break;
    case 3:
        assert_true(put(b, "{\"type\": \"string\", \"minLength\": "));
        put_number(b, n);
        assert_true(put(b, ", \"maxLength\": "));
        put_number(b, n + rng_int(dice, 0, 20));
        if (rng_one_in(dice, 3))
            assert_true(put(b, ", \"pattern\": \"^[a-f]*\\u00e9?.?.?.?$\""));
        break;
    case 4:
        assert_true(put(b, "{\"type\": \"array\", \"items\": "));
        random_schema(dice, b, depth + 1);
        assert_true(put(b, ", \"minItems\": "));
        put_number(b, n);
        assert_true(put(b, ", \"maxItems\": "));
        put_number(b, n + 2);
        break;
    case 5:
        assert_true(put(b, "{\"anyOf\": ["));
        random_schema(dice, b, depth + 1);
        assert_true(put(b, ", "));
        random_schema(dice, b, depth + 1);
        assert_true(put(b, "]"));
        break;
    default:
        assert_true(put(b, "{\"type\": \"object\", \"properties\": {\"a\": "));
        random_schema(dice, b, depth + 1);
        assert_true(put(b, ", \"bb\": "));
        random_schema(dice, b, depth + 1);
        assert_true(put(b, "}, \"required\": ["));
        assert_true(put(b, n == 0 ? "" : n == 1 ? "\"bb\"" : "\"bb\", \"a\""));
        assert_true(put(b, "], \"additionalProperties\": "));
        if (rng_one_in(dice, 2))
            assert_true(put(b, "false"));
        else
            random_schema(dice, b, depth + 1);
        break;
    }
    assert_true(put(b, "}"));
}

static void test_random_schemas(void **state)
{
    (void)state;
    rng dice = {99};
    int ended = 0;
    print_message("seed %llu\n", (unsigned long long)dice.state);
    for (int i = 0; i < 60; i++) {
        fl_buf schema = {0};
        random_schema(&dice, &schema, 0);
        assert_true(fl_vec_push(&schema, 0));
        ended += write_documents(schema.data, &dice, 3, i % 20 == 0);
        fl_vec_free(&schema);
    }
    assert_true(ended > 100);
}

/* ---- what is taken and what is not ---- */

static void check_takes(const char *schema, const char *yes, const char *no)
{
    fl_grammar *g = compile(schema);
    if (yes && !takes(g, yes))
        fail_msg("%s does not take %s", schema, yes);
    if (no && takes(g, no))
        fail_msg("%s takes %s", schema, no);
    fl_grammar_release(g);
}

static void test_examples(void **state)
{
    (void)state;
    check_takes("{}", "{\"a\": [1, -2.5e+3, \"\\u001f\\n\xc3\xa9\xf0\x9f\x98\x80\"], \"b\":{}}",
                "{\"a\": }");
    check_takes("{}", "{\n  \"a\": null\n}", "[1,]");
    check_takes("{}", "0", "01");
    check_takes("{}", "\"\xe2\x82\xac\"", "\"\n\"");
    check_takes("{}", "\"\"", "\"\\q\"");
    check_takes(NULL, "{}", "[]");
    check_takes("{\"type\": \"integer\", \"minimum\": 5, \"maximum\": 120}", "17", "4");
    check_takes("{\"type\": \"integer\", \"minimum\": 5, \"maximum\": 120}", "120", "121");
    check_takes("{\"type\": \"number\", \"minimum\": 0.5, \"maximum\": 10}", "0.5", "0.49");
    check_takes("{\"type\": \"number\", \"minimum\": 0.5, \"maximum\": 10}", "10.0", "10.1");
    check_takes("{\"type\": \"string\", \"format\": \"date\"}", "\"2024-02-29\"", "\"2023-02-29\"");
    check_takes("{\"type\": \"string\", \"format\": \"date-time\"}", "\"2024-12-31T23:59:59.5Z\"",
                "\"2024-12-31\"");
    check_takes("{\"type\": \"string\", \"format\": \"uuid\"}",
                "\"123e4567-e89b-12d3-a456-426614174000\"", "\"123e4567\"");
    check_takes("{\"type\": \"string\", \"format\": \"ipv4\"}", "\"192.168.0.255\"",
                "\"192.168.0.256\"");
    check_takes("{\"type\": \"string\", \"format\": \"email\"}", "\"a.b@example.org\"", "\"a.b\"");
    check_takes("{\"type\": \"string\", \"format\": \"uri\"}", "\"https://example.org/a?b=c#d\"",
                "\"example\"");
    check_takes("{\"type\": \"string\", \"nullable\": true}", "null", "1");
    check_takes("{\"allOf\": [{\"type\": \"boolean\"}], \"description\": \"x\"}", "true", "1");
    check_takes("{\"properties\": {\"a\": {}}, \"required\": [\"a\"]}", "{\"a\": 1, \"b\": 2}",
                "{\"b\": 2}");
}

static void test_refusals(void **state)
{
    (void)state;
    refused("{\"not\": {}}", "\"not\" is not supported (#)");
    refused("{\"properties\": {\"a\": {\"if\": {}}}}", "\"if\" is not supported (#/a)");
    refused("{\"type\": \"array\", \"uniqueItems\": true}", "uniqueItems");
    refused("{\"type\": \"integer\", \"multipleOf\": 3}", "multipleOf");
    refused("{\"type\": \"string\", \"format\": \"iri\"}", "format \"iri\" is not supported");
    refused("{\"type\": \"strin\"}", "not the name of a type");
    refused("{\"$ref\": \"#/$defs/x\"}", "there is no");
    refused("{\"$ref\": \"http://x/\"}", "only references into the schema");
    refused("{\"$ref\": \"#\"}", "no document");
    refused("{\"anyOf\": [{\"$ref\": \"#\"}, {\"type\": \"null\"}]}", "refers to itself");
    refused("{\"type\": \"array\", \"items\": {\"$ref\": \"#\"}, \"minItems\": 1}", "no document");
    refused("{\"properties\": {\"a\": {\"$ref\": \"#\"}}, \"required\": [\"a\"]}", "no document");
    refused("false", "no document");
    refused("{\"enum\": []}", "no document");
    refused("{\"type\": \"string\", \"minLength\": 3, \"maxLength\": 2}", "no document");
    refused("{\"type\": \"string\", \"pattern\": \"^ab$\", \"minLength\": 3}", "no document");
    refused("{\"type\": \"integer\", \"minimum\": 5, \"maximum\": 4}", "no document");
    refused("{\"type\": \"array\", \"minItems\": 3, \"maxItems\": 2}", "no document");
    refused("{\"required\": [\"a\"], \"additionalProperties\": false}",
            "is required, not declared");
    refused("{\"oneOf\": [{\"type\": \"integer\"}, {\"type\": \"number\"}]}",
            "may hold for one value");
    refused("{\"type\": \"string\", \"pattern\": \"(?=a)\"}", "groups of this kind");
    refused("{\"type\": \"string\", \"pattern\": \"\\\\bx\"}", "escape is not supported");
    refused("{\"type\": \"string\", \"pattern\": \"(a\"}", ") is missing");
    refused("{\"type\": \"string\", \"pattern\": \"[z-a]\"}", "out of order");
    refused("{\"anyOf\": [{}], \"pattern\": \"x\"}", "beside \"anyOf\"");
}

static void repeat_text(fl_buf *b, const char *text, int n)
{
    while (n-- > 0)
        assert_true(put(b, text));
}

static void test_hostile_schemas(void **state)
{
    (void)state;
    fl_buf b = {0};
    /* Deep. */
    repeat_text(&b, "{\"type\": \"array\", \"minItems\": 1, \"items\": ", 60);
    assert_true(put(&b, "{}"));
    repeat_text(&b, "}", 60);
    assert_true(fl_vec_push(&b, 0));
    fl_grammar_release(compile(b.data));
    b.n = 0;
    repeat_text(&b, "{\"type\": \"array\", \"minItems\": 1, \"items\": ", 120);
    assert_true(put(&b, "{}"));
    repeat_text(&b, "}", 120);
    assert_true(fl_vec_push(&b, 0));
    refused(b.data, "no document of at most");
    /* Many values. */
    b.n = 0;
    assert_true(put(&b, "{\"enum\": [\"\""));
    for (int i = 0; i < 120000; i++) {
        char text[40];
        snprintf(text, sizeof text, ", \"%d-%08x-value\"", i % 977, (unsigned)i * 2654435761u);
        assert_true(put(&b, text));
    }
    assert_true(put(&b, "]}"));
    assert_true(fl_vec_push(&b, 0));
    refused(b.data, "too large");
    /* Patterns that explode. */
    refused("{\"type\": \"string\", \"pattern\": \"(a|b)*a(a|b){14}$\"}", "too complex");
    refused("{\"type\": \"string\", \"pattern\": \"((((a{100}){100}){100}){100})\"}",
            "too complex");
    refused("{\"type\": \"string\", \"pattern\": \"a{2000}\"}", "repetitions");
    refused("{\"type\": \"string\", \"pattern\": \"^(a|ab)+$\", \"maxLength\": 900000000}",
            "too large");
    /* Ways that multiply: refused when it is compiled, or when it is followed; never slow. */
    b.n = 0;
    assert_true(put(&b, "{\"$ref\": \"#/$defs/d0\", \"$defs\": {"));
    for (int i = 0; i < 40; i++) {
        char text[200];
        snprintf(text, sizeof text,
                 "\"d%d\": {\"anyOf\": [{\"$ref\": \"#/$defs/d%d\", \"title\": \"a\"}, {\"$ref\": "
                 "\"#/$defs/d%d\"}]}, ",
                 i, i + 1, i + 1);
        assert_true(put(&b, text));
    }
    assert_true(put(&b, "\"d40\": {\"type\": \"boolean\"}}}"));
    assert_true(fl_vec_push(&b, 0));
    fl_grammar *g = compile(b.data);
    fl_matcher *m;
    fl_error e = {0};
    assert_int_equal(fl_matcher_create(g, 1, &w.stop, 1, &m, &e), FL_OK);
    assert_int_equal(fl_matcher_mask(m, 0, NULL, 0, w.allowed, &e), FL_ARGUMENT);
    assert_non_null(strstr(e.message, "too many alternatives"));
    fl_matcher_destroy(m);
    fl_grammar_release(g);
    fl_vec_free(&b);
}

static void test_nesting_ends(void **state)
{
    (void)state;
    /* A model that only ever opens brackets is made to close them. */
    fl_grammar *g = compile("{\"type\": \"array\", \"items\": {\"$ref\": \"#\"}}");
    fl_matcher *m;
    fl_ids ids = {0}, open = {0};
    fl_error e = {0};
    assert_int_equal(fl_tokenizer_encode(w.tokenizer, "[", 1, false, &open, &e), FL_OK);
    assert_int_equal(fl_matcher_create(g, 1, &w.stop, 1, &m, &e), FL_OK);
    for (;;) {
        assert_int_equal(fl_matcher_mask(m, 0, ids.data, (int64_t)ids.n, w.allowed, &e), FL_OK);
        if (!writer_allows(&w, open.data[0]))
            break;
        assert_true(fl_vec_push(&ids, open.data[0]));
    }
    assert_in_range(ids.n, 50, 100);
    fl_matcher_destroy(m);
    fl_grammar_release(g);
    fl_vec_free(&ids);
    fl_vec_free(&open);
}

static void test_allocation_failures(void **state)
{
    (void)state;
    const char *text = schemas[25];
    fl_json *s = parse(text);
    for (long at = 1;; at++) {
        fl_grammar *g = NULL;
        fl_matcher *m = NULL;
        fl_error e = {0};
        fl_mem_fail_at(at);
        fl_status status = fl_grammar_of_schema(w.trie, s, &g, &e);
        if (status == FL_OK)
            status = fl_matcher_create(g, 1, &w.stop, 1, &m, &e);
        if (status == FL_OK)
            status = fl_matcher_mask(m, 0, NULL, 0, w.allowed, &e);
        fl_mem_fail_at(0);
        fl_matcher_destroy(m);
        fl_grammar_release(g);
        if (status == FL_OK)
            break;
        assert_int_equal(status, FL_NOMEM);
        at += at / 16;
    }
    fl_json_free(s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_examples),
        cmocka_unit_test(test_every_document_is_valid),
        cmocka_unit_test(test_a_mask_is_what_following_says),
        cmocka_unit_test(test_random_schemas),
        cmocka_unit_test(test_refusals),
        cmocka_unit_test(test_hostile_schemas),
        cmocka_unit_test(test_nesting_ends),
        cmocka_unit_test(test_allocation_failures),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
