/* Where chat formats write to: `out` takes the segments of a prompt, `emit` what a parser found. */
#include "model/chat_internal.h"

static const char out_key[] = "firstlight.out", emit_key[] = "firstlight.emit";

/* ---- out ---- */

static fl_chat_writer *writer(lua_State *L)
{
    fl_chat_writer *w = fl_host_of(L)->task.writer;
    if (!w)
        luaL_error(L, "out is only usable inside render");
    return w;
}

static void show(lua_State *L, fl_chat_writer *w, const char *text, size_t len)
{
    if (w->text && !fl_vec_append(w->text, text, len))
        fl_host_nomem(L);
}

/* out.marker(name): one control token. */
static int out_marker(lua_State *L)
{
    fl_chat_writer *w = writer(L);
    size_t len;
    const char *name = luaL_checklstring(L, 1, &len);
    show(L, w, name, len);
    if (!w->ids)
        return 0;
    int32_t id = fl_tokenizer_special(w->tokenizer, name);
    if (id == FL_NO_TOKEN)
        return luaL_error(L, "the tokenizer has no token %s", name);
    return fl_vec_push(w->ids, id) ? 0 : fl_host_nomem(L);
}

/* out.text(s): plain text, a segment of its own; nothing in it becomes a control token. */
static int out_text(lua_State *L)
{
    fl_chat_writer *w = writer(L);
    size_t len;
    const char *text = luaL_checklstring(L, 1, &len);
    fl_error e = {0};
    show(L, w, text, len);
    if (w->ids && fl_tokenizer_encode(w->tokenizer, text, len, false, w->ids, &e) != FL_OK)
        return fl_host_raise(L, &e);
    return 0;
}

/* ---- emit ---- */

static fl_chat_parser *parser(lua_State *L)
{
    fl_chat_parser *p = fl_host_of(L)->task.parser;
    if (!p)
        luaL_error(L, "emit is only usable while tokens are fed");
    return p;
}

static int emit(lua_State *L, fl_chat_event_kind kind)
{
    fl_chat_parser *p = parser(L);
    fl_chat_event e = {.kind = kind, .index = p->n_calls - 1};
    e.text.data = luaL_optlstring(L, 1, "", &e.text.len);
    if (kind == FL_CHAT_REASONING || kind == FL_CHAT_CONTENT)
        e.index = 0;
    else if (kind != FL_CHAT_TOOL_BEGIN && !p->in_call)
        return luaL_error(L, "no tool call was begun");
    if (e.text.len || kind == FL_CHAT_TOOL_BEGIN || kind == FL_CHAT_TOOL_END)
        p->sink(p->ctx, &e);
    return 0;
}

static int emit_reasoning(lua_State *L)
{
    return emit(L, FL_CHAT_REASONING);
}

static int emit_content(lua_State *L)
{
    return emit(L, FL_CHAT_CONTENT);
}

static int emit_tool_begin(lua_State *L)
{
    fl_chat_parser *p = parser(L);
    if (p->in_call)
        return luaL_error(L, "the last tool call is not ended");
    p->in_call = true;
    p->n_calls++;
    return emit(L, FL_CHAT_TOOL_BEGIN);
}

static int emit_tool_args(lua_State *L)
{
    return emit(L, FL_CHAT_TOOL_ARGS);
}

static int emit_tool_end(lua_State *L)
{
    lua_settop(L, 0);
    emit(L, FL_CHAT_TOOL_END);
    parser(L)->in_call = false;
    return 0;
}

void fl_lua_push_out(lua_State *L)
{
    lua_getfield(L, LUA_REGISTRYINDEX, out_key);
}

void fl_lua_push_emit(lua_State *L)
{
    lua_getfield(L, LUA_REGISTRYINDEX, emit_key);
}

void fl_lua_open_chat(lua_State *L)
{
    static const luaL_Reg out[] = {{"marker", out_marker}, {"text", out_text}, {NULL, NULL}};
    static const luaL_Reg events[] = {
        {"reasoning", emit_reasoning}, {"content", emit_content},   {"tool_begin", emit_tool_begin},
        {"tool_args", emit_tool_args}, {"tool_end", emit_tool_end}, {NULL, NULL}};
    lua_newtable(L);
    luaL_setfuncs(L, out, 0);
    lua_setfield(L, LUA_REGISTRYINDEX, out_key);
    lua_newtable(L);
    luaL_setfuncs(L, events, 0);
    lua_setfield(L, LUA_REGISTRYINDEX, emit_key);
}
