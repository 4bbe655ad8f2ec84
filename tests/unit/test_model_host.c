/* The sandbox against model files that mean harm: whatever a file does, the call ends in a status,
 * in bounded time and memory, and reaches nothing outside. */
#include "support/cmocka_all.h"

#include "support/model_support.h"

#include "base/mem.h"
#include "model/lua_internal.h"

#include <stdio.h>
#include <string.h>

static fl_host_limits limits = {.memory = 8 << 20, .work = 3000000, .seconds = 60};

typedef struct chunk {
    const char *text;
    size_t len;
    const fl_json *json; /* passed as the only argument when the chunk returns a function */
} chunk;

static int run_chunk(lua_State *L)
{
    const chunk *c = lua_touserdata(L, 1);
    fl_host_load(L, "test.lua", c->text, c->len);
    if (lua_isfunction(L, -1)) {
        fl_lua_push_loan(L);
        fl_lua_push_json(L, c->json, -1);
        lua_remove(L, -2);
        lua_call(L, 1, 0);
    }
    return 0;
}

static fl_status run_in(fl_host *h, const chunk *c, fl_error *e)
{
    fl_host_task task = {.refusal = FL_CONFIG};
    return fl_host_run(h, &task, run_chunk, (void *)c, e);
}

static fl_status run(const char *text, fl_error *e)
{
    fl_host *h;
    chunk c = {.text = text, .len = strlen(text)};
    fl_status status = fl_host_create(&limits, &h, e);
    if (status != FL_OK)
        return status;
    status = run_in(h, &c, e);
    fl_host_destroy(h);
    return status;
}

static void test_what_is_there(void **state)
{
    (void)state;
    fl_error e = {0};
    static const char *const good[] = {
        "assert(('x'):rep(3, ',') == 'x,x,x' and ('').rep('', 1 << 62) == '')",
        "assert(('a.b.c'):find('.', 3) == 4 and not ('abc'):find('%a') and ('ab'):find('', 3) == "
        "3)",
        "assert(('a.b.a'):replace('a', '%1') == '%1.b.%1' and ('aaa'):replace('aa', 'b') == 'ba')",
        "local t = {} table.insert(t, 1) table.insert(t, 2) assert(#t == 2 and table.remove(t) == "
        "2)",
        "assert(table.remove{} == nil and table.concat({1, 2}, '-') == '1-2')",
        "assert(math.type(1) == 'integer' and math.huge > 1 and utf8.char(228) == '\\u{e4}')",
        "assert(select('#', pcall(error)) == 2 and pcall(function() return 1, 2 end))",
        "local ok, e = pcall(error, {1}) assert(not ok and e[1] == 1)",
        "local ok, e = pcall(refuse, 'a %d', 7) assert(not ok and tostring(e) == 'a 7')",
        "assert(json.encode('a\"\\n\\u{e9}') == '\"a\\\\\"\\\\n\\u{e9}\"' and json.encode(2.0) == "
        "'2.0')",
        "assert(json.encode() == 'null' and json.encode(true) == 'true' and json.encode(-3) == "
        "'-3')",
    };
    for (size_t i = 0; i < sizeof good / sizeof *good; i++) {
        if (run(good[i], &e) != FL_OK)
            fail_msg("%s: %s", good[i], e.message);
    }
}

static void test_what_is_not_there(void **state)
{
    (void)state;
    static const char *const names[] = {"load",
                                        "loadstring",
                                        "loadfile",
                                        "dofile",
                                        "require",
                                        "package",
                                        "io",
                                        "os",
                                        "debug",
                                        "print",
                                        "warn",
                                        "collectgarbage",
                                        "coroutine",
                                        "setmetatable",
                                        "getmetatable",
                                        "rawset",
                                        "rawget",
                                        "xpcall",
                                        "_G",
                                        "include",
                                        "string.dump",
                                        "string.rep == string.gsub and load",
                                        "string.gsub",
                                        "string.gmatch",
                                        "string.match",
                                        "string.pack",
                                        "string.unpack",
                                        "table.move",
                                        "math.random",
                                        "math.randomseed",
                                        "('').match",
                                        "('').dump",
                                        "('').gsub"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        char text[160];
        fl_error e = {0};
        snprintf(text, sizeof text, "assert(not (%s))", names[i]);
        if (run(text, &e) != FL_OK)
            fail_msg("%s: %s", names[i], e.message);
    }
}

static void test_hostile(void **state)
{
    (void)state;
    static const struct {
        const char *text, *words;
    } cases[] = {
        {"while true do end", "test.lua:1: it used its whole budget of 3000000 steps"},
        {"local x = 0\nrepeat x = x + 1 until false", "test.lua:2: it used its whole budget"},
        {"::a:: goto a", "budget"},
        {"for i = 1, math.maxinteger do end", "budget"},
        {"pcall(function() while true do end end) error('caught')", "budget"},
        {"while true do pcall(function() while true do end end) end", "budget"},
        {"local function f() return pcall(f) end f() error('end')", ""},
        {"local function f() f() end f()", "more than 8 MiB"},
        {"local function f() return 1 + f() end pcall(f) error('after')", "more than 8 MiB"},
        {"local function f() return f() end f()", "budget"},
        {"local t = {} while true do t[#t + 1] = {} end",
         "the model definition needs more than 8 MiB"},
        {"local s = 'x' while true do s = s .. s end", "more than 8 MiB"},
        {"('x'):rep(1 << 30)", "more than 8 MiB"},
        {"('x'):rep(1 << 62, 'yy')", "test.lua:1: the string is too long"},
        {"pcall(string.rep, 'x', 1 << 30) error('caught')", "more than 8 MiB"},
        {"while true do local s = ('x'):rep(1 << 20) end", "budget"},
        {"local s = ('a'):rep(1000000) while true do s:find('b') ; s:upper() end", "budget"},
        {"('a'):rep(100000):find(('.-'):rep(1000) .. 'b') error('plain')", "test.lua:1: plain"},
        {"local t = {} for i = 0, 62 do t[1 << i] = i end table.insert(t, 1, 1)",
         "at its end only"},
        {"local t = {} for i = 0, 62 do t[1 << i] = i end table.remove(t, 1)", "last element only"},
        {"local t = {} for i = 0, 62 do t[1 << i] = i end table.concat(t)", "invalid value"},
        {"local t = {} for i = 0, 62 do t[1 << i] = i end table.sort(t)", "attempt to compare"},
        {"local t = {} for i = 0, 29 do t[1 << i] = i end table.sort(t)", "attempt to compare"},
        {"table.unpack({}, 1, 1e8)", "too many results"},
        {"table.sort({3, 1, 2, 5, 4}, function() return true end) error('x')", "test.lua:1: "},
        {"error({})", "raised an error that is a table"},
        {"error()", "raised an error that is a nil"},
        {"error(function() end)", "raised an error that is a function"},
        {"error(setmetatable)", "raised an error that is a nil"},
        {"io.open('/etc/passwd')", "global 'io'"},
        {"os.execute('true')", "global 'os'"},
        {"getmetatable('').__index.rep = nil", "global 'getmetatable'"},
        {"string.format('%d', 'x')", "bad argument #2 to 'format'"},
        {"string.format(('%99d'):rep(1e6), 1)", ""},
        {"local x <close> = {}", "non-closable value"},
        {"x = = 1", "test.lua:1: unexpected symbol"},
        {"refuse('no %s', 'thanks')", "no thanks"},
        {"refuse('%d')", "bad argument #2"},
        {"json.decode(('['):rep(100000), function() end) error('bad')", "test.lua:1: bad"},
        {"json.decode('{}', function(v) keep = v end) return keep.x", "used after the call"},
        {"json.decode('[1]', function(v) error('inside') end)", "test.lua:1: inside"},
        {"json.decode('1', function(v) while true do end end)", "budget"},
        {"json.encode({})", "JSON value"},
        {"json.encode('x', 3)", "bad argument #2"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        fl_error e = {0};
        fl_status status = run(cases[i].text, &e);
        if (status == FL_OK || !strstr(e.message, cases[i].words))
            fail_msg("%s: status %d: %s", cases[i].text, (int)status, e.message);
        fl_status expected = strstr(cases[i].words, "thanks") ? FL_CONFIG : FL_MODEL;
        assert_int_equal(status, expected);
    }
}

static void test_bytecode_is_refused(void **state)
{
    (void)state;
    static const char code[] = LUA_SIGNATURE "\x54\x00\x19\x93\r\n\x1a\n\x04\x08\x08";
    fl_host *h;
    fl_error e = {0};
    chunk c = {.text = code, .len = sizeof code};
    assert_int_equal(fl_host_create(&limits, &h, &e), FL_OK);
    assert_failed(run_in(h, &c, &e), FL_MODEL, &e, "attempt to load a binary chunk");
    fl_host_destroy(h);
}

static void test_seconds(void **state)
{
    (void)state;
    fl_error e = {0};
    limits.seconds = 0;
    assert_failed(run("while true do end", &e), FL_MODEL, &e, "test.lua:1: it ran longer than 0 s");
    assert_failed(run("pcall(function() while true do end end) error('x')", &e), FL_MODEL, &e,
                  "it ran longer");
    limits.seconds = 60;
}

static void test_deep_recursion(void **state)
{
    (void)state;
    fl_host_limits small = limits;
    fl_error e = {0};
    limits = fl_host_limits_default();
    assert_failed(run("local function f() f() end f()", &e), FL_MODEL, &e, "stack overflow");
    assert_failed(run("local function f() return 1 + f() end pcall(f) error('after')", &e),
                  FL_MODEL, &e, "test.lua:1: after");
    limits = small;
}

static void test_a_host_outlives_its_errors(void **state)
{
    (void)state;
    fl_host *h;
    fl_error e = {0};
    static const char *const bad[] = {"while true do end", "('x'):rep(1 << 30)", "error({})",
                                      "local function f() f() end f()"};
    assert_int_equal(fl_host_create(&limits, &h, &e), FL_OK);
    for (int i = 0; i < 20; i++) {
        chunk wrong = {.text = bad[i % 4], .len = strlen(bad[i % 4])};
        chunk right = {.text = "n = (n or 0) + 1 assert(n < 100)", .len = 32};
        assert_int_not_equal(run_in(h, &wrong, &e), FL_OK);
        assert_int_equal(run_in(h, &right, &e), FL_OK);
        assert_int_equal(lua_gettop(h->L), 0);
    }
    fl_host_destroy(h);
}

static void test_json_views(void **state)
{
    (void)state;
    static const char script[] =
        "return function(v)\n"
        "  if kept then assert(not pcall(function() return #kept end)) end\n"
        "  kept = v\n"
        "  assert(v.a == 1 and v.b == nil and v.nothing == nil and v.s == 'x\\u{e9}')\n"
        "  assert(v.r == 1.5 and v.t == true and v.f == false and #v.list == 3 and #v == 8)\n"
        "  assert(v.list[1] == 10 and v.list[3].deep[1] == 'q' and v.list[4] == nil)\n"
        "  assert(v.list[0] == nil and v.list.x == nil and v[1] == nil)\n"
        "  local keys = {}\n"
        "  for key, value in pairs(v) do table.insert(keys, key .. json.type(value)) end\n"
        "  assert(table.concat(keys, ' ') == 'zinteger ainteger bnull sstring rnumber tboolean '\n"
        "    .. 'fboolean listarray')\n"
        "  local n = 0\n"
        "  for i, x in pairs(v.list) do n = n + i end\n"
        "  assert(n == 6 and json.type(v) == 'object')\n"
        "  assert(not pcall(function() v.a = 2 end) and not pcall(pairs(v.list), v.list, 'x'))\n"
        "  pairs(v.list)(v.list, 0, kept)\n"
        "  assert(json.encode(v.list) == '[10,null,{\"deep\":[\"q\"]}]')\n"
        "  assert(json.encode(v.list[3], {spaced = true}) == '{\"deep\": [\"q\"]}')\n"
        "  local ok, why = json.decode('{\"k\": }', function() end)\n"
        "  assert(ok == false and why:find('line 1'))\n"
        "  local got\n"
        "  assert(json.decode('{\"k\":[1,2]}', function(d) got = d.k[2] end) and got == 2)\n"
        "  assert(json.decode(' null', function(d) got = d end) and got == nil)\n"
        "end";
    fl_host *h;
    fl_error e = {0};
    fl_json *v = parse("{\"z\": 0, \"a\": 1, \"b\": null, \"s\": \"x\\u00e9\", \"r\": 1.5, "
                       "\"t\": true, \"f\": false, \"list\": [10, null, {\"deep\": [\"q\"]}]}");
    chunk c = {.text = script, .len = strlen(script), .json = v};
    assert_int_equal(fl_host_create(&limits, &h, &e), FL_OK);
    for (int i = 0; i < 2; i++) {
        if (run_in(h, &c, &e) != FL_OK)
            fail_msg("%s", e.message);
    }
    fl_host_destroy(h);
    fl_json_free(v);
}

static void test_failed_allocations(void **state)
{
    (void)state;
    static const char text[] = "local t = {} for i = 1, 200 do t[i] = ('x'):rep(i) .. i end "
                               "json.decode('{\"k\": [1, 2, 3]}', function(v) json.encode(v) end)";
    long before = fl_mem_count();
    fl_error e = {0};
    assert_int_equal(run(text, &e), FL_OK);
    long n = fl_mem_count() - before;
    assert_true(n > 100);
    for (long i = 1; i <= n; i++) {
        fl_mem_fail_at(i);
        fl_status status = run(text, &e);
        fl_mem_fail_at(0);
        /* Lua collects garbage and tries again, so most failures are no failures. */
        if (status != FL_OK && status != FL_NOMEM)
            fail_msg("allocation %ld: %s", i, e.message);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_what_is_there),
        cmocka_unit_test(test_what_is_not_there),
        cmocka_unit_test(test_hostile),
        cmocka_unit_test(test_bytecode_is_refused),
        cmocka_unit_test(test_seconds),
        cmocka_unit_test(test_deep_recursion),
        cmocka_unit_test(test_a_host_outlives_its_errors),
        cmocka_unit_test(test_json_views),
        cmocka_unit_test(test_failed_allocations),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
