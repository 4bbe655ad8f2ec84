/* The configuration in Lua: config:int("hidden_size").
 *
 * Each getter checks the type and names the key's whole path when it fails.  With a second argument
 * it returns that (nil included) for a key that is absent or null.  Unknown keys are nobody's
 * business. */
#include "model/lua_internal.h"

static const char config_class[] = "firstlight.config";

void fl_lua_push_config(lua_State *L, const fl_config *c)
{
    fl_config *own = lua_newuserdatauv(L, sizeof *own, 0);
    *own = *c;
    luaL_setmetatable(L, config_class);
}

/* ---- one function per type: pushes the value, or returns why not ---- */

static fl_status push_int(lua_State *L, const fl_config *c, const char *key, fl_error *err)
{
    int64_t v;
    FL_TRY(fl_config_int(c, key, &v, err));
    lua_pushinteger(L, v);
    return FL_OK;
}

static fl_status push_float(lua_State *L, const fl_config *c, const char *key, fl_error *err)
{
    double v;
    FL_TRY(fl_config_float(c, key, &v, err));
    lua_pushnumber(L, v);
    return FL_OK;
}

static fl_status push_bool(lua_State *L, const fl_config *c, const char *key, fl_error *err)
{
    bool v;
    FL_TRY(fl_config_bool(c, key, &v, err));
    lua_pushboolean(L, v);
    return FL_OK;
}

static fl_status push_string(lua_State *L, const fl_config *c, const char *key, fl_error *err)
{
    fl_bytes v;
    FL_TRY(fl_config_string(c, key, &v, err));
    lua_pushlstring(L, v.data, v.len);
    return FL_OK;
}

static fl_status push_object(lua_State *L, const fl_config *c, const char *key, fl_error *err)
{
    fl_config v;
    FL_TRY(fl_config_object(c, key, &v, err));
    fl_lua_push_config(L, &v);
    return FL_OK;
}

static fl_status push_ints(lua_State *L, const fl_config *c, const char *key, fl_error *err)
{
    const fl_json *v;
    FL_TRY(fl_config_ints(c, key, &v, err));
    lua_newtable(L);
    for (size_t i = 0; i < fl_json_size(v); i++) {
        lua_pushinteger(L, fl_json_int(fl_json_at(v, i)));
        lua_rawseti(L, -2, (lua_Integer)i + 1);
    }
    return FL_OK;
}

static fl_status push_strings(lua_State *L, const fl_config *c, const char *key, fl_error *err)
{
    const fl_json *v = fl_json_get(c->object, key);
    if (!fl_json_is(v, FL_JSON_ARRAY))
        return fl_fail(err, FL_CONFIG, "%s%s is %s, an array of strings is needed", c->path, key,
                       v ? fl_json_type_name(v) : "missing");
    lua_newtable(L);
    for (size_t i = 0; i < fl_json_size(v); i++) {
        const fl_json *item = fl_json_at(v, i);
        if (!fl_json_is(item, FL_JSON_STRING))
            return fl_fail(err, FL_CONFIG, "%s%s[%zu] is %s, a string is needed", c->path, key, i,
                           fl_json_type_name(item));
        fl_bytes text = fl_json_string(item);
        lua_pushlstring(L, text.data, text.len);
        lua_rawseti(L, -2, (lua_Integer)i + 1);
    }
    return FL_OK;
}

static const struct {
    const char *name;
    fl_status (*push)(lua_State *L, const fl_config *c, const char *key, fl_error *err);
} getters[] = {{"int", push_int},        {"float", push_float},   {"bool", push_bool},
               {"string", push_string},  {"object", push_object}, {"ints", push_ints},
               {"strings", push_strings}};

/* config:TYPE(key [, default]); upvalue 1 is the index of TYPE in getters. */
static int get(lua_State *L)
{
    const fl_config *c = luaL_checkudata(L, 1, config_class);
    const char *key = luaL_checkstring(L, 2);
    fl_error e = {0};
    if (lua_gettop(L) >= 3 && !fl_config_has(c, key)) {
        lua_settop(L, 3);
        return 1;
    }
    if (getters[lua_tointeger(L, lua_upvalueindex(1))].push(L, c, key, &e) != FL_OK)
        return fl_host_raise(L, &e);
    return 1;
}

static int has(lua_State *L)
{
    const fl_config *c = luaL_checkudata(L, 1, config_class);
    lua_pushboolean(L, fl_config_has(c, luaL_checkstring(L, 2)));
    return 1;
}

void fl_lua_open_config(lua_State *L)
{
    static const luaL_Reg methods[] = {{"has", has}, {NULL, NULL}};
    fl_host_class(L, config_class, methods, NULL);
    luaL_getmetatable(L, config_class);
    lua_getfield(L, -1, "__index");
    for (size_t i = 0; i < sizeof getters / sizeof *getters; i++) {
        lua_pushinteger(L, (lua_Integer)i);
        lua_pushcclosure(L, get, 1);
        lua_setfield(L, -2, getters[i].name);
    }
    lua_pop(L, 2);
}
