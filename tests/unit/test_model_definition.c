/* What a model file can call to build a graph: a checkpoint of a few tensors, and small files, good
 * and bad. */
#include "support/cmocka_all.h"

#include "support/model_support.h"

#include "ops/ops.h"

#include <stdio.h>
#include <string.h>

static folder f;

/* 546 bytes in all kinds of shapes. */
static const char header[] =
    "{\"embed.weight\":{\"dtype\":\"F32\",\"shape\":[4,2],\"data_offsets\":[0,32]},"
    "\"half\":{\"dtype\":\"F16\",\"shape\":[1,2,1],\"data_offsets\":[32,36]},"
    "\"brain\":{\"dtype\":\"BF16\",\"shape\":[2],\"data_offsets\":[36,40]},"
    "\"q.weight_packed\":{\"dtype\":\"U8\",\"shape\":[2,16],\"data_offsets\":[40,72]},"
    "\"q.weight_scale\":{\"dtype\":\"U8\",\"shape\":[2,1],\"data_offsets\":[72,74]},"
    "\"e.0.weight\":{\"dtype\":\"BF16\",\"shape\":[2,2],\"data_offsets\":[74,82]},"
    "\"e.1.weight\":{\"dtype\":\"BF16\",\"shape\":[2,2],\"data_offsets\":[82,90]},"
    "\"e.2.weight\":{\"dtype\":\"F16\",\"shape\":[2,2],\"data_offsets\":[90,98]},"
    "\"half.weight_packed\":{\"dtype\":\"U8\",\"shape\":[2,16],\"data_offsets\":[98,130]},"
    "\"bytes\":{\"dtype\":\"U8\",\"shape\":[6],\"data_offsets\":[130,136]},"
    "\"extra.a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[136,140]},"
    "\"extra.b\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[140,144]},"
    "\"extra.f.weight_scale_inv\":{\"dtype\":\"F32\",\"shape\":[1,2],\"data_offsets\":[144,152]},"
    "\"extra.f.weight\":{\"dtype\":\"F8_E4M3\",\"shape\":[3,130],\"data_offsets\":[152,542]},"
    "\"extra.lone.weight\":{\"dtype\":\"F8_E4M3\",\"shape\":[2,2],\"data_offsets\":[542,546]}}";

static int set_up(void **state)
{
    (void)state;
    folder_make(&f);
    folder_text(&f, "config.json", "{\"size\": 2}");
    size_t pad = (8 - (sizeof header - 1) % 8) % 8;
    char padded[sizeof header + 8];
    snprintf(padded, sizeof padded, "%s%*s", header, (int)pad, "");
    folder_shard(&f, "model.safetensors", padded, 546);
    return 0;
}

static int tear_down(void **state)
{
    (void)state;
    folder_remove(&f);
    return 0;
}

/* A file whose build is `body`, with x the embedding and `out(v)` to end with. */
static fl_status build(const char *body, opened *o, fl_error *e)
{
    char text[4000];
    snprintf(text, sizeof text,
             "return { name = 'test', unused = {'extra.'}, stop = {}, build = function(g, config)\n"
             "local x = g.embed{ g:weight('embed.weight', {4, 2}) } "
             "local function out(v) g:output(g.gather_logits{v}) end g:at('here', 'part')\n"
             "%s\nend }",
             body);
    folder_text(&f, "test.lua", text);
    char path[400];
    snprintf(path, sizeof path, "%s", folder_file(&f, "test.lua"));
    fl_model_options options = {.definition = path, .models_dir = f.path};
    *e = (fl_error){0};
    fl_status status = fl_checkpoint_open(f.path, FL_OPEN_DATA, &o->ck, e);
    if (status != FL_OK)
        fail_msg("%s", e->message);
    return fl_model_open(o->ck, fl_ops_registry(), &options, &o->m, e);
}

static void good(const char *body, opened *o)
{
    fl_error e;
    if (build(body, o, &e) != FL_OK)
        fail_msg("%s: %s", body, e.message);
}

typedef struct bad_case {
    const char *body;
    fl_status status;
    const char *words;
} bad_case;

static void bad(const bad_case *cases, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        opened o;
        fl_error e;
        fl_status status = build(cases[i].body, &o, &e);
        if (status != cases[i].status || !strstr(e.message, cases[i].words))
            fail_msg("%s: status %d: %s", cases[i].body, (int)status, e.message);
        model_close(&o);
    }
}

#define BAD(cases) bad(cases, sizeof(cases) / sizeof *(cases))

static void test_weights(void **state)
{
    (void)state;
    opened o;
    good("assert(g:has('half') and g:has('q.weight') and not g:has('q') and g:has('bytes'))\n"
         "assert(g:size('half') == 2 and g:size('none') == nil and not g:has('half.weight'))\n"
         "local n = g.expr{'a*b + c', a = g:vector('half', 2), b = g:vector('brain', {2, 1}), c = "
         "1}\n"
         "g:at('there', 'second') g:weight('q.weight', {2, 32}) g:weight('q.weight', {2, 32})\n"
         "g:weight('half', 2)\n"
         "g:stack('e.%d.weight', 2, {2, 2}) out(x)\n"
         "g:at('else', 'third') g:weight('extra.f.weight', {3, 130})\n"
         "g:unused('by') g:layer(0, 'a') g:layer(1, 'b') g:context(77)",
         &o);
    assert_int_equal(fl_model_parts(o.m), 3);
    fl_part here = fl_model_part(o.m, 0), there = fl_model_part(o.m, 1),
            third = fl_model_part(o.m, 2);
    assert_string_equal(here.name, "part");
    assert_int_equal(here.tensors, 2);
    assert_int_equal(here.bytes, 8);
    assert_string_equal(there.name, "second");
    assert_int_equal(there.tensors, 2 + 2);
    assert_int_equal(there.parameters, 64 + 8);
    assert_int_equal(there.bytes, 34 + 16);
    assert_int_equal(third.tensors, 2);
    assert_int_equal(third.parameters, 390);
    assert_int_equal(third.bytes, 390 + 8);
    assert_int_equal(fl_model_unknown(o.m), 2);
    assert_string_equal(fl_model_unknown_name(o.m, 0), "e.2.weight");
    assert_string_equal(fl_model_unknown_name(o.m, 1), "half.weight_packed");
    assert_int_equal(fl_model_layers(o.m), 2);
    assert_string_equal(fl_model_layer_kind(o.m, 1), "b");
    assert_int_equal(fl_model_max_context(o.m), 77);
    assert_string_equal(fl_model_family(o.m), "test");
    model_close(&o);
}

static void test_settings(void **state)
{
    (void)state;
    opened o;
    good("assert(g.dense == false and g.layers == math.maxinteger and config:int('size') == 2)\n"
         "assert(config:int('none', nil) == nil and config:int('none', 3) == 3)\n"
         "assert(not pcall(config.int, x, 'size') and not pcall(function() config.size = 3 end))\n"
         "assert(config:float('size') == 2.0 and not config:has('none') and config:has('size'))\n"
         "out(x)",
         &o);
    model_close(&o);
}

static void test_wrong_weights(void **state)
{
    (void)state;
    static const bad_case cases[] = {
        {"out(x) g:weight('a', 2) g:weight('b.weight', 2) g:stack('e.%d.weight', 5, {2, 2})",
         FL_NOTFOUND, "4 tensors missing: a, b.weight, e.3.weight, e.4.weight"},
        {"out(x) g:weight('a', 2) g:stack('n.%d', 100, {2, 2})", FL_NOTFOUND,
         "101 tensors missing: a, n.0, n.1, n.2, ..."},
        {"out(x) g:weight('half.weight', {2, 32})", FL_NOTFOUND, "half.weight_scale"},
        {"out(x) g:weight('half', 3) g:weight('none', 1)", FL_FORMAT,
         "1 tensor of another type or shape than config.json says: half in model.safetensors is "
         "F16 "
         "[1, 2, 1], expected F32, BF16 or F16 [3]"},
        {"out(x) g:vector('bytes', 6)", FL_FORMAT, "bytes in model.safetensors is U8 [6]"},
        {"out(x) g:weight('embed.weight', {2, 4})", FL_MODEL, "embed.weight"},
        {"out(x) g:weight('q.weight', {2, 64})", FL_FORMAT, "q.weight_packed"},
        {"out(x) g:weight('q.weight', {4, 16})", FL_FORMAT, "q.weight_packed"},
        {"out(x) g:weight('extra.lone.weight', {2, 2})", FL_NOTFOUND,
         "1 tensor missing: extra.lone.weight_scale_inv"},
        {"out(x) g:weight('extra.f.weight', 390)", FL_FORMAT,
         "extra.f.weight in model.safetensors is F8_E4M3 [3, 130], expected F8_E4M3 [390]"},
        {"out(x) g:weight('extra.f.weight', {129, 130})", FL_FORMAT, "expected F8_E4M3 [129, 130]"},
        {"out(x) g:stack('e.%d.weight', 3, {2, 2})", FL_MODEL, "e.%d.weight"},
        {"g:weight('half')", FL_MODEL, "test.lua:3: bad argument #2 to 'weight' (not a shape)"},
        {"g:weight('half', {})", FL_MODEL, "not a shape"},
        {"g:weight('half', {1, 2, 3, 4, 5, 6, 7})", FL_MODEL, "not a shape"},
        {"g:weight('half', {1 << 40, 1 << 40})", FL_MODEL, "not a shape"},
        {"g:weight('half', {-1, -2})", FL_MODEL, "not a shape"},
        {"g:weight('half', {1.5})", FL_MODEL, "not a shape"},
        {"g:weight('half', 2, 'F31')", FL_MODEL, "not a type of tensors"},
        {"g:weight(('x'):rep(1000), 2)", FL_MODEL, "not the name of a tensor"},
        {"g:weight('a\\0b', 2)", FL_MODEL, "not the name of a tensor"},
        {"g:stack('e.weight', 2, {2, 2})", FL_MODEL, "needs one %d"},
        {"g:stack('e.%d.%d', 2, {2, 2})", FL_MODEL, "needs one %d"},
        {"g:stack('e.%d.%s', 2, {2, 2})", FL_MODEL, "needs one %d"},
        {"g:stack('%s%d', 2, {2, 2})", FL_MODEL, "needs one %d"},
        {"g:stack('e.%d', 0, {2, 2})", FL_MODEL, "out of range"},
        {"g:stack('e.%d', 1 << 40, {2, 2})", FL_MODEL, "out of range"},
    };
    BAD(cases);
}

static void test_wrong_nodes(void **state)
{
    (void)state;
    static const bad_case cases[] = {
        {"g.what{x}", FL_MODEL, "test.lua:3: here: there is no operator \"what\""},
        {"\n\ng.linear{x}", FL_MODEL, "test.lua:5: here: linear(): 1 inputs, expected"},
        {"g.linear{x, g:weight('embed.weight', {4, 2}), x}", FL_MODEL, "test.lua:3: here: linear"},
        {"g.rmsnorm{x, epsilon = 1}", FL_MODEL, "unknown attribute \"epsilon\"; it has eps"},
        {"g.rmsnorm{x}", FL_MODEL, "attribute eps is missing"},
        {"g.rmsnorm{x, eps = 'small'}", FL_MODEL, "attribute eps is a text"},
        {"g.rmsnorm{x, eps = print}", FL_MODEL, "attribute eps is missing"},
        {"g.rmsnorm{x, eps = x}", FL_MODEL, "rmsnorm: attribute eps is a userdata"},
        {"g.view{x, dims = {1, 2, 3, 4, 5, 6, 7}}", FL_MODEL, "more than 6 entries"},
        {"g.view{x, dims = {1.5}}", FL_MODEL, "not a list of integers"},
        {"g.view{x, dims = {3}}", FL_MODEL, "do not lie within"},
        {"g.rmsnorm{1, eps = 1}", FL_MODEL, "input 1 is a number, expected a value"},
        {"g.rmsnorm{g, eps = 1}", FL_MODEL, "input 1 is a userdata"},
        {"g.rmsnorm{[0] = x, eps = 1}", FL_MODEL, "at most 64 inputs"},
        {"g.rmsnorm{[1 << 40] = x, eps = 1}", FL_MODEL, "at most 64 inputs"},
        {"g.rmsnorm{[1.5] = x, eps = 1}", FL_MODEL, "at most 64 inputs"},
        {"g.rmsnorm(x)", FL_MODEL, "table expected"},
        {"g.expr{'x +', x = x}", FL_MODEL, "here: expr(tokens [2]): expression \"x +\": column"},
        {"g.expr{x = x}", FL_MODEL, "entry 1 is a nil, expected the text"},
        {"g.expr{'x', x = {}}", FL_MODEL, "x is a table, expected a value or a number"},
        {"g.expr{'x*y', x = x, y = 1/0}", FL_MODEL, "y is not a finite number"},
        {"local t = {'x'} for i = 1, 40 do t['a' .. i] = 1 end g.expr(t)", FL_MODEL, "32 names"},
        {"local t = {'x'} for i = 1, 20 do t['a' .. i] = x end g.expr(t)", FL_MODEL, "12 inputs"},
        {"g.expr{'x', [('n'):rep(40)] = x}", FL_MODEL, "name too long"},
        {"g.expr{'x', x = x, [('n'):rep(40)] = 1}", FL_MODEL, "longer than 31"},
        {"g:state{name = 's', width = 0}", FL_MODEL, "state s"},
        {"g:state{name = 's', width = 1} g:state{name = 's', width = 1}", FL_MODEL, "twice"},
        {"g:state{width = 1}", FL_MODEL, "string expected"},
        {"g:tap('layer', -1, x)", FL_MODEL, "out of range"},
        {"g:tap('layer', 0, g:weight('half', 2))", FL_MODEL, "constant"},
        {"g:output(x)", FL_MODEL, "gather_logits"},
        {"g:layer(1, 'a')", FL_MODEL, "declared in order"},
        {"g:context(0)", FL_MODEL, "out of range"},
        {"", FL_MODEL, "no output"},
        {"g.linear = 3", FL_MODEL, "attempt to index a firstlight.graph"},
        {"g:at()", FL_MODEL, "string expected"},
        {"local t = nil + 1", FL_MODEL, "while building here: test.lua:3: attempt to perform"},
        {"error({})", FL_MODEL, "while building here"},
        {"refuse('size %d', config:int('size'))", FL_CONFIG, "size 2"},
        {"config:int('none')", FL_CONFIG, "test.lua:3: none is missing"},
        {"config:strings('size')", FL_CONFIG, "size is an integer"},
        {"include('../config')", FL_MODEL, "\"../config\" is not the name of a model file"},
        {"include('/etc/passwd')", FL_MODEL, "is not the name"},
        {"include('')", FL_MODEL, "is not the name"},
        {"include('test\\0')", FL_MODEL, "is not the name"},
        {"include('missing')", FL_NOTFOUND, "test.lua:3: "},
    };
    BAD(cases);
}

static void test_values_die_with_their_build(void **state)
{
    (void)state;
    /* render is called later: what build left behind must not work any more. */
    folder_text(&f, "late.lua",
                "local g, v\n"
                "return { name = 'late', stop = {},\n"
                "  build = function(graph, config)\n"
                "    g, v = graph, graph.embed{ graph:weight('embed.weight', {4, 2}) }\n"
                "    g:output(g.gather_logits{v}) end,\n"
                "  chat = { render = function(o, out)\n"
                "    assert(not pcall(function() return g:has('half') end))\n"
                "    assert(not pcall(function() return g.linear end))\n"
                "    late = out\n"
                "    if o.generation_prompt then out.marker('<nothing>') else out.text('x') end\n"
                "  end, parser = function() late.text('y') end } }");
    char path[400];
    opened o;
    fl_error e = {0};
    fl_buf text = {0};
    fl_json *messages = parse("[]");
    snprintf(path, sizeof path, "%s", folder_file(&f, "late.lua"));
    model_open(&o, f.path, &(fl_model_options){.definition = path, .models_dir = f.path});
    fl_chat_options options = {.messages = messages};
    if (fl_chat_render(o.m, &options, &text, NULL, &e) != FL_OK)
        fail_msg("%s", e.message);
    assert_int_equal(text.n, 1);
    fl_ids ids = {0};
    assert_failed(fl_chat_render(o.m, &options, NULL, &ids, &e), FL_MODEL, &e, "tokenizer");
    fl_chat_parser *p;
    assert_failed(fl_chat_parser_create(o.m, true, NULL, NULL, &p, &e), FL_MODEL, &e, "tokenizer");
    fl_vec_free(&text);
    fl_json_free(messages);
    model_close(&o);
}

static void test_no_chat(void **state)
{
    (void)state;
    opened o;
    fl_error e = {0};
    fl_buf text = {0};
    fl_json *messages = parse("[]");
    good("out(x)", &o);
    fl_chat_options options = {.messages = messages};
    assert_failed(fl_chat_render(o.m, &options, &text, NULL, &e), FL_MODEL, &e, "no chat format");
    fl_json_free(messages);
    model_close(&o);
}

static void test_includes(void **state)
{
    (void)state;
    opened o;
    folder_text(&f, "part.lua", "return { answer = 42, again = include }");
    folder_text(&f, "loop.lua", "return include('loop')");
    folder_text(&f, "broken.lua", "return {\n\n}}");
    good("assert(include('part').answer == 42 and include('part').again == include) out(x)", &o);
    uint64_t with = fl_model_fingerprint(o.m);
    model_close(&o);
    folder_text(&f, "part.lua", "return { answer = 42, again = include } ");
    good("assert(include('part').answer == 42 and include('part').again == include) out(x)", &o);
    assert_true(fl_model_fingerprint(o.m) != with);
    model_close(&o);
    static const bad_case cases[] = {{"include('loop')", FL_MODEL, "stack overflow"},
                                     {"include('broken')", FL_MODEL, "broken.lua:3:"}};
    BAD(cases);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_weights),
        cmocka_unit_test(test_settings),
        cmocka_unit_test(test_wrong_weights),
        cmocka_unit_test(test_wrong_nodes),
        cmocka_unit_test(test_values_die_with_their_build),
        cmocka_unit_test(test_no_chat),
        cmocka_unit_test(test_includes),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
