/* JSON in Lua: read-only views of parsed values, and writing as Python's json.dumps does.
 *
 * An object or array is a userdata: v.key, v[i] from 1, #v, pairs(v) in the order of the text.
 * Scalars become Lua values, null becomes nil (pairs still visits it).  A view belongs to a loan:
 * what C passes in lives until the call ends, what json.decode made until its function returns.
 * A view that is kept longer fails when it is used. */
#include "model/lua_internal.h"

#include "base/mem.h"

enum { MAX_DECODE = 8 << 20 };

static const char view_class[] = "firstlight.json";

typedef struct loan {
    uint64_t epoch; /* the call in which it is good; 0: ended */
    bool lasting;   /* what C lent, which outlives the call */
} loan;

typedef struct view {
    const fl_json *node;
} view;

void fl_lua_push_loan(lua_State *L)
{
    loan *l = lua_newuserdatauv(L, sizeof *l, 0);
    *l = (loan){.epoch = fl_host_of(L)->epoch, .lasting = true};
}

void fl_lua_push_json(lua_State *L, const fl_json *v, int loan_index)
{
    loan_index = lua_absindex(L, loan_index);
    fl_bytes text;
    view *made;
    switch (v ? fl_json_typeof(v) : FL_JSON_NULL) {
    case FL_JSON_NULL:
        lua_pushnil(L);
        break;
    case FL_JSON_BOOL:
        lua_pushboolean(L, fl_json_bool(v));
        break;
    case FL_JSON_INT:
        lua_pushinteger(L, fl_json_int(v));
        break;
    case FL_JSON_REAL:
        lua_pushnumber(L, fl_json_number(v));
        break;
    case FL_JSON_STRING:
        text = fl_json_string(v);
        lua_pushlstring(L, text.data, text.len);
        break;
    case FL_JSON_ARRAY:
    case FL_JSON_OBJECT:
        made = lua_newuserdatauv(L, sizeof *made, 1);
        made->node = v;
        lua_pushvalue(L, loan_index);
        lua_setiuservalue(L, -2, 1);
        luaL_setmetatable(L, view_class);
        break;
    }
}

/* The node of the view at index, whose loan is pushed; NULL (nothing pushed) for other values. */
static const fl_json *test_view(lua_State *L, int index)
{
    view *v = luaL_testudata(L, index, view_class);
    if (!v)
        return NULL;
    lua_getiuservalue(L, index, 1);
    const loan *l = lua_touserdata(L, -1);
    if (!l || l->epoch != fl_host_of(L)->epoch)
        luaL_error(L, "a JSON value is used after the call it belonged to");
    return v->node;
}

static const fl_json *check_view(lua_State *L, int index)
{
    const fl_json *node = test_view(L, index);
    if (!node)
        luaL_typeerror(L, index, "JSON object or array");
    return node;
}

const fl_json *fl_lua_lasting_json(lua_State *L, int index)
{
    const fl_json *node = check_view(L, index);
    const loan *l = lua_touserdata(L, -1);
    if (!l->lasting)
        luaL_error(L, "a decoded value cannot be kept");
    lua_pop(L, 1);
    return node;
}

static int view_index(lua_State *L)
{
    const fl_json *node = check_view(L, 1);
    const fl_json *found = NULL;
    if (lua_type(L, 2) == LUA_TSTRING && fl_json_is(node, FL_JSON_OBJECT)) {
        found = fl_json_get(node, lua_tostring(L, 2));
    } else if (lua_isinteger(L, 2) && fl_json_is(node, FL_JSON_ARRAY)) {
        lua_Integer i = lua_tointeger(L, 2);
        if (i >= 1 && (lua_Unsigned)i <= fl_json_size(node))
            found = fl_json_at(node, (size_t)i - 1);
    }
    fl_lua_push_json(L, found, -1);
    return 1;
}

static int view_len(lua_State *L)
{
    lua_pushinteger(L, (lua_Integer)fl_json_size(check_view(L, 1)));
    return 1;
}

static int next_element(lua_State *L)
{
    lua_settop(L, 2);
    const fl_json *node = check_view(L, 1);
    lua_Integer i = luaL_checkinteger(L, 2);
    if (i < 0 || (lua_Unsigned)i >= fl_json_size(node))
        return lua_pushnil(L), 1;
    lua_pushinteger(L, i + 1);
    fl_lua_push_json(L, fl_json_at(node, (size_t)i), 3);
    return 2;
}

/* The place in the object is kept in upvalue 2; upvalue 1 is the view. */
static int next_member(lua_State *L)
{
    lua_settop(L, 0);
    const fl_json *node = check_view(L, lua_upvalueindex(1));
    void *it = lua_touserdata(L, lua_upvalueindex(2));
    if (!it)
        return lua_pushnil(L), 1;
    lua_pushlightuserdata(L, fl_json_next(node, it));
    lua_replace(L, lua_upvalueindex(2));
    fl_bytes key = fl_json_iter_key(it);
    lua_pushlstring(L, key.data, key.len);
    fl_lua_push_json(L, fl_json_iter_value(it), 1);
    return 2;
}

static int view_pairs(lua_State *L)
{
    const fl_json *node = check_view(L, 1);
    if (fl_json_is(node, FL_JSON_ARRAY)) {
        lua_pushcfunction(L, next_element);
        lua_pushvalue(L, 1);
        lua_pushinteger(L, 0);
        return 3;
    }
    lua_pushvalue(L, 1);
    lua_pushlightuserdata(L, fl_json_iter(node));
    lua_pushcclosure(L, next_member, 2);
    return 1;
}

/* json.type(v): "object", "array", "string", "integer", "number", "boolean", "null". */
static int json_type(lua_State *L)
{
    const fl_json *node = test_view(L, 1);
    const char *name = NULL;
    if (node)
        name = fl_json_is(node, FL_JSON_OBJECT) ? "object" : "array";
    else if (lua_type(L, 1) == LUA_TNUMBER)
        name = lua_isinteger(L, 1) ? "integer" : "number";
    else if (lua_isnoneornil(L, 1))
        name = "null";
    else if (lua_isboolean(L, 1) || lua_type(L, 1) == LUA_TSTRING)
        name = luaL_typename(L, 1);
    else
        luaL_typeerror(L, 1, "JSON value");
    lua_pushstring(L, name);
    return 1;
}

static bool option(lua_State *L, const char *name)
{
    if (lua_isnoneornil(L, 2))
        return false;
    luaL_checktype(L, 2, LUA_TTABLE);
    lua_getfield(L, 2, name);
    bool set = lua_toboolean(L, -1);
    lua_pop(L, 1);
    return set;
}

/* json.encode(v, {spaced = true, sorted = true}): the text of v. */
static int json_encode(lua_State *L)
{
    fl_host *h = fl_host_of(L);
    bool spaced = option(L, "spaced"), sorted = option(L, "sorted"), fits = true;
    const fl_json *node = test_view(L, 1);
    h->scratch.n = 0;
    if (node) {
        fits = fl_json_dump(node, spaced, sorted, &h->scratch) == FL_OK;
    } else if (lua_isinteger(L, 1)) {
        lua_pushfstring(L, "%I", (LUAI_UACINT)lua_tointeger(L, 1));
        return 1;
    } else if (lua_type(L, 1) == LUA_TNUMBER) {
        fits = fl_json_real(lua_tonumber(L, 1), &h->scratch);
    } else if (lua_type(L, 1) == LUA_TSTRING) {
        size_t len;
        const char *text = lua_tolstring(L, 1, &len);
        fits = fl_json_quote(text, len, &h->scratch);
    } else if (lua_isnoneornil(L, 1)) {
        lua_pushliteral(L, "null");
        return 1;
    } else if (lua_isboolean(L, 1)) {
        lua_pushstring(L, lua_toboolean(L, 1) ? "true" : "false");
        return 1;
    } else {
        luaL_typeerror(L, 1, "JSON value");
    }
    if (!fits)
        return fl_host_nomem(L);
    lua_pushlstring(L, h->scratch.data, h->scratch.n);
    return 1;
}

/* (f, node, loan): calls f with the view of node. */
static int call_with_json(lua_State *L)
{
    fl_lua_push_json(L, lua_touserdata(L, 2), 3);
    lua_pushvalue(L, 1);
    lua_insert(L, -2);
    lua_call(L, 1, 0);
    return 0;
}

/* json.decode(text, f): parses text and calls f(value); the value is gone when f returns.  Returns
 * true, or false and a message when text is not JSON. */
static int json_decode(lua_State *L)
{
    size_t len;
    const char *text = luaL_checklstring(L, 1, &len);
    luaL_checktype(L, 2, LUA_TFUNCTION);
    luaL_argcheck(L, len <= MAX_DECODE, 1, "too long");
    fl_error e = {0};
    lua_settop(L, 2);
    fl_lua_push_loan(L);
    loan *l = lua_touserdata(L, 3);
    l->lasting = false;
    lua_pushvalue(L, 2);
    luaL_checkstack(L, 8, NULL);
    fl_json *root;
    fl_status status = fl_json_parse(text, len, "the text", &root, &e);
    if (status == FL_NOMEM)
        return fl_host_raise(L, &e);
    if (status != FL_OK) {
        lua_pushboolean(L, false);
        lua_pushstring(L, e.message);
        return 2;
    }
    /* From here to fl_json_free nothing may raise: pushing the value happens inside the pcall. */
    lua_pushcfunction(L, call_with_json);
    lua_insert(L, -2);
    lua_pushlightuserdata(L, root);
    lua_pushvalue(L, 3);
    int lua_status = lua_pcall(L, 3, 0, 0);
    l->epoch = 0;
    fl_json_free(root);
    if (lua_status != LUA_OK)
        return lua_error(L);
    lua_pushboolean(L, true);
    return 1;
}

void fl_lua_open_json(lua_State *L)
{
    static const luaL_Reg meta[] = {
        {"__index", view_index}, {"__len", view_len}, {"__pairs", view_pairs}, {NULL, NULL}};
    static const luaL_Reg functions[] = {
        {"type", json_type}, {"encode", json_encode}, {"decode", json_decode}, {NULL, NULL}};
    fl_host_class(L, view_class, NULL, meta);
    lua_newtable(L);
    luaL_setfuncs(L, functions, 0);
    lua_setglobal(L, "json");
}
