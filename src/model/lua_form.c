/* What chat.form builds with: functions that make the parts of an answer's form.  A part is a
 * number in Lua, its place in the list of parts. */
#include "model/chat_internal.h"
#include "model/lua_internal.h"

enum { MAX_PARTS = 200000 };

static const char form_key[] = "firstlight.form";

static fl_chat_former *former(lua_State *L)
{
    fl_chat_former *f = fl_host_of(L)->task.former;
    if (!f)
        luaL_error(L, "the parts of a form are only made inside chat.form");
    return f;
}

static int add(lua_State *L, fl_form_part part)
{
    fl_form *form = former(L)->form;
    if (form->parts.n >= MAX_PARTS)
        return luaL_error(L, "a form has more than %d parts", MAX_PARTS);
    if (!fl_vec_push(&form->parts, part))
        return fl_host_nomem(L);
    lua_pushinteger(L, (lua_Integer)form->parts.n - 1);
    return 1;
}

int32_t fl_lua_form_part(lua_State *L, int index)
{
    lua_Integer part = luaL_checkinteger(L, index);
    if (part < 0 || (lua_Unsigned)part >= former(L)->form->parts.n)
        luaL_error(L, "this is not a part of a form");
    return (int32_t)part;
}

static fl_bytes keep_text(lua_State *L, int index)
{
    fl_bytes text;
    const char *from = luaL_checklstring(L, index, &text.len);
    text.data = fl_arena_strndup(&former(L)->form->arena, from, text.len);
    if (!text.data)
        fl_host_nomem(L);
    return text;
}

/* form.text(s) */
static int form_text(lua_State *L)
{
    return add(L, (fl_form_part){.kind = FL_FORM_TEXT, .text = keep_text(L, 1)});
}

/* form.match(pattern): a text that matches; anchor it with ^ and $. */
static int form_match(lua_State *L)
{
    return add(L, (fl_form_part){.kind = FL_FORM_MATCH, .text = keep_text(L, 1)});
}

/* form.marker(name) */
static int form_marker(lua_State *L)
{
    const char *name = luaL_checkstring(L, 1);
    int32_t id = fl_tokenizer_special(former(L)->tokenizer, name);
    if (id == FL_NO_TOKEN)
        return luaL_error(L, "the tokenizer has no token %s", name);
    return add(L, (fl_form_part){.kind = FL_FORM_MARKER, .marker = id});
}

/* form.any() */
static int form_any(lua_State *L)
{
    return add(L, (fl_form_part){.kind = FL_FORM_ANY});
}

static unsigned type_of_name(lua_State *L, int index)
{
    static const char *const names[] = {"null",  "boolean", "integer", "number", "string",
                                        "array", "object",  "any",     NULL};
    static const unsigned types[] = {
        FL_KIND_NULL,   FL_KIND_BOOL,  FL_KIND_INTEGER, FL_KIND_NUMBER | FL_KIND_INTEGER,
        FL_KIND_STRING, FL_KIND_ARRAY, FL_KIND_OBJECT,  FL_KIND_ALL};
    return types[luaL_checkoption(L, index, "any", names)];
}

/* A field that is a schema: a view, or nil or true for anything. */
static const fl_json *schema_field(lua_State *L, const char *name)
{
    int type = lua_getfield(L, 1, name);
    bool anything = type == LUA_TNIL || (type == LUA_TBOOLEAN && lua_toboolean(L, -1));
    return anything ? NULL : fl_lua_lasting_json(L, lua_gettop(L));
}

/* A value by a schema, from a table: schema, root (where references lead into; nil: the schema),
 * type ("any"), name (of the schema in messages), lenient. */
static int by_schema(lua_State *L, fl_form_kind kind)
{
    luaL_checktype(L, 1, LUA_TTABLE);
    lua_settop(L, 1);
    fl_form_part p = {.kind = kind, .schema = schema_field(L, "schema")};
    p.root = schema_field(L, "root");
    lua_getfield(L, 1, "type");
    p.types = type_of_name(L, lua_gettop(L));
    lua_getfield(L, 1, "lenient");
    p.lenient = lua_toboolean(L, -1);
    if (lua_getfield(L, 1, "name") != LUA_TNIL)
        p.text = keep_text(L, lua_gettop(L));
    return add(L, p);
}

/* form.json{...}: a JSON value */
static int form_json(lua_State *L)
{
    return by_schema(L, FL_FORM_JSON);
}

/* form.raw{...}: the strings of the schema, without quotes and escapes */
static int form_raw(lua_State *L)
{
    return by_schema(L, FL_FORM_RAW);
}

static int group(lua_State *L, fl_form_kind kind)
{
    fl_form *form = former(L)->form;
    luaL_checktype(L, 1, LUA_TTABLE);
    lua_Integer n = luaL_len(L, 1);
    fl_form_part p = {.kind = kind, .first = (int32_t)form->kids.n, .n = (int32_t)n};
    if (n > MAX_PARTS || form->kids.n + (size_t)n > 4 * (size_t)MAX_PARTS)
        return luaL_error(L, "a form has too many parts");
    for (lua_Integer i = 1; i <= n; i++) {
        lua_geti(L, 1, i);
        if (!fl_vec_push(&form->kids, fl_lua_form_part(L, -1)))
            return fl_host_nomem(L);
        lua_pop(L, 1);
    }
    return add(L, p);
}

/* form.seq{...}, form.alt{...} */
static int form_seq(lua_State *L)
{
    return group(L, FL_FORM_SEQ);
}

static int form_alt(lua_State *L)
{
    return group(L, FL_FORM_ALT);
}

/* form.many(part) */
static int form_many(lua_State *L)
{
    fl_form *form = former(L)->form;
    fl_form_part p = {.kind = FL_FORM_MANY, .first = (int32_t)form->kids.n, .n = 1};
    if (!fl_vec_push(&form->kids, fl_lua_form_part(L, 1)))
        return fl_host_nomem(L);
    return add(L, p);
}

void fl_lua_push_form(lua_State *L)
{
    lua_getfield(L, LUA_REGISTRYINDEX, form_key);
}

void fl_lua_open_form(lua_State *L)
{
    static const luaL_Reg functions[] = {
        {"text", form_text}, {"match", form_match}, {"marker", form_marker}, {"any", form_any},
        {"json", form_json}, {"raw", form_raw},     {"seq", form_seq},       {"alt", form_alt},
        {"many", form_many}, {NULL, NULL}};
    lua_newtable(L);
    luaL_setfuncs(L, functions, 0);
    lua_setfield(L, LUA_REGISTRYINDEX, form_key);
}
