#define _GNU_SOURCE
/* The library of a model file, by allow-list: what is not named here does not exist there.
 *
 * Left out on purpose: everything that loads or leaves (load, require, io, os, debug, print),
 * metatables and coroutines (finalizers run with the hook off), patterns (they can backtrack for
 * ever inside one call), and the table functions whose time depends on a claimed length alone
 * (move, insert and remove in the middle).  Instead there are plain find and replace. */
#include "model/host_internal.h"

#include <limits.h>
#include <string.h>

static const char *const base_names[] = {"assert",   "error",    "ipairs", "next",
                                         "pairs",    "rawequal", "rawlen", "select",
                                         "tonumber", "tostring", "type",   NULL};
static const char *const string_names[] = {"byte",  "char",    "format", "len", "lower",
                                           "upper", "reverse", "sub",    NULL};
static const char *const table_names[] = {"concat", "pack", "sort", "unpack", NULL};
static const char *const math_names[] = {"abs",  "ceil", "exp", "floor", "fmod",       "huge",
                                         "log",  "max",  "min", "modf",  "maxinteger", "mininteger",
                                         "sqrt", "type", "pi",  "ult",   "tointeger",  NULL};
static const char *const utf8_names[] = {"char", "codepoint", "codes", "len", "offset", NULL};

/* string.rep(s, n [, gap]).  The original counts to n even when there is nothing to write. */
static int string_rep(lua_State *L)
{
    size_t len, gap, total = 0;
    const char *text = luaL_checklstring(L, 1, &len);
    lua_Integer n = luaL_checkinteger(L, 2);
    const char *between = luaL_optlstring(L, 3, "", &gap);
    if (n < 0 || len + gap == 0)
        n = 0;
    if (__builtin_mul_overflow((size_t)n, len + gap, &total) || total > INT_MAX)
        return luaL_error(L, "the string is too long");
    luaL_Buffer b;
    char *out = luaL_buffinitsize(L, &b, total);
    for (lua_Integer i = 0; i < n; i++, out += len + gap) {
        memcpy(out, text, len);
        memcpy(out + len, between, gap);
    }
    luaL_pushresultsize(&b, n > 0 ? total - gap : 0);
    return 1;
}

/* The first place of needle in text at or after byte `from`, or NULL. */
static const char *find_plain(const char *text, size_t len, size_t from, const char *needle,
                              size_t n)
{
    return from > len ? NULL : memmem(text + from, len - from, needle, n);
}

/* string.find(s, text [, init]): never a pattern.  Returns first and last byte or nil. */
static int string_find(lua_State *L)
{
    size_t len, n;
    const char *text = luaL_checklstring(L, 1, &len);
    const char *needle = luaL_checklstring(L, 2, &n);
    lua_Integer init = luaL_optinteger(L, 3, 1);
    luaL_argcheck(L, init >= 1, 3, "must be 1 or more");
    const char *at = find_plain(text, len, (size_t)init - 1, needle, n);
    if (!at)
        return lua_pushnil(L), 1;
    lua_pushinteger(L, at - text + 1);
    lua_pushinteger(L, at - text + (lua_Integer)n);
    return 2;
}

/* string.replace(s, text, by): every occurrence, left to right, no patterns. */
static int string_replace(lua_State *L)
{
    size_t len, n;
    const char *text = luaL_checklstring(L, 1, &len);
    const char *needle = luaL_checklstring(L, 2, &n);
    luaL_checkstring(L, 3);
    luaL_argcheck(L, n > 0, 2, "must not be empty");
    luaL_Buffer b;
    luaL_buffinit(L, &b);
    size_t done = 0;
    const char *at;
    while ((at = find_plain(text, len, done, needle, n)) != NULL) {
        luaL_addlstring(&b, text + done, (size_t)(at - text) - done);
        lua_pushvalue(L, 3);
        luaL_addvalue(&b);
        done = (size_t)(at - text) + n;
    }
    luaL_addlstring(&b, text + done, len - done);
    luaL_pushresult(&b);
    return 1;
}

/* table.insert(t, v): at the end only. */
static int table_insert(lua_State *L)
{
    luaL_checktype(L, 1, LUA_TTABLE);
    luaL_argcheck(L, lua_gettop(L) == 2, 3, "a table takes new elements at its end only");
    lua_rawseti(L, 1, (lua_Integer)lua_rawlen(L, 1) + 1);
    return 0;
}

/* table.remove(t): the last element. */
static int table_remove(lua_State *L)
{
    luaL_checktype(L, 1, LUA_TTABLE);
    luaL_argcheck(L, lua_gettop(L) == 1, 2, "a table gives up its last element only");
    lua_Integer n = (lua_Integer)lua_rawlen(L, 1);
    lua_rawgeti(L, 1, n);
    if (n > 0) {
        lua_pushnil(L);
        lua_rawseti(L, 1, n);
    }
    return 1;
}

/* Copies the named fields of the table at `from` into the one on top of the stack. */
static void copy_names(lua_State *L, int from, const char *const *names)
{
    for (; *names; names++) {
        lua_getfield(L, from, *names);
        lua_setfield(L, -2, *names);
    }
}

/* Puts what is allowed of a standard library, and more, into the new globals on top. */
static void add_library(lua_State *L, const char *name, lua_CFunction open,
                        const char *const *names, const luaL_Reg *more)
{
    luaL_requiref(L, name, open, 0);
    lua_newtable(L);
    copy_names(L, lua_absindex(L, -2), names);
    if (more)
        luaL_setfuncs(L, more, 0);
    lua_remove(L, -2);
    lua_setfield(L, -2, name);
}

/* Makes the methods of strings those of the new globals on top. */
static void mend_strings(lua_State *L)
{
    lua_pushliteral(L, "");
    lua_getmetatable(L, -1);
    lua_getfield(L, -3, "string");
    lua_setfield(L, -2, "__index");
    lua_pop(L, 2);
}

void fl_lua_open_base(lua_State *L)
{
    static const luaL_Reg strings[] = {
        {"rep", string_rep}, {"find", string_find}, {"replace", string_replace}, {NULL, NULL}};
    static const luaL_Reg tables[] = {
        {"insert", table_insert}, {"remove", table_remove}, {NULL, NULL}};
    luaL_requiref(L, "_G", luaopen_base, 0);
    lua_newtable(L);
    copy_names(L, lua_absindex(L, -2), base_names);
    add_library(L, "string", luaopen_string, string_names, strings);
    add_library(L, "table", luaopen_table, table_names, tables);
    add_library(L, "math", luaopen_math, math_names, NULL);
    add_library(L, "utf8", luaopen_utf8, utf8_names, NULL);
    mend_strings(L);
    lua_rawseti(L, LUA_REGISTRYINDEX, LUA_RIDX_GLOBALS);
    lua_pop(L, 1);
}
