/* Rendering a conversation and parsing an answer: C keeps the tokens, UTF-8 and the order of
 * events, the chat table of the definition keeps the rules. */
#include "model/chat_internal.h"

#include "base/mem.h"

#include <string.h>

enum { MAX_FEED = 4096 };

/* Pushes the function `name` of the chat table. */
static void push_function(lua_State *L, const char *name)
{
    lua_getfield(L, LUA_REGISTRYINDEX, fl_chat_key);
    if (!lua_istable(L, -1) || lua_getfield(L, -1, name) != LUA_TFUNCTION)
        luaL_error(L, "the model definition has no chat format (chat.%s)", name);
    lua_remove(L, -2);
}

/* ---- rendering ---- */

static void set_json(lua_State *L, const char *name, const fl_json *v, int loan)
{
    fl_lua_push_json(L, v, loan);
    lua_setfield(L, -2, name);
}

/* Pushes the options as Lua sees them; the loan for JSON is at index 2. */
static void push_options(lua_State *L, const fl_chat_options *o)
{
    lua_createtable(L, 0, 8);
    set_json(L, "messages", o->messages, 2);
    set_json(L, "tools", o->tools, 2);
    set_json(L, "tool_choice", o->tool_choice, 2);
    set_json(L, "response_format", o->response_format, 2);
    lua_pushstring(L, o->effort);
    lua_setfield(L, -2, "effort");
    lua_pushboolean(L, o->thinking);
    lua_setfield(L, -2, "thinking");
    lua_pushboolean(L, o->generation_prompt);
    lua_setfield(L, -2, "generation_prompt");
    lua_pushboolean(L, o->one_call);
    lua_setfield(L, -2, "one_call");
}

static int run_render(lua_State *L)
{
    const fl_chat_options *o = lua_touserdata(L, 1);
    fl_lua_push_loan(L);
    push_function(L, "render");
    push_options(L, o);
    fl_lua_push_out(L);
    lua_call(L, 2, 0);
    return 0;
}

static bool put(fl_buf *b, const char *text)
{
    return fl_vec_append(b, text, strlen(text));
}

bool fl_chat_add_message(fl_buf *array, const char *role, const char *text, size_t len)
{
    return put(array, array->n ? ", " : "[") && put(array, "{\"role\": ") &&
           fl_json_quote(role, strlen(role), array) && put(array, ", \"content\": ") &&
           fl_json_quote(text, len, array) && put(array, "}");
}

static fl_status check_options(const fl_chat_options *o, fl_error *err)
{
    if (!fl_json_is(o->messages, FL_JSON_ARRAY))
        return fl_fail(err, FL_ARGUMENT, "messages is not a list");
    if (o->tools && !fl_json_is(o->tools, FL_JSON_ARRAY) && !fl_json_is(o->tools, FL_JSON_NULL))
        return fl_fail(err, FL_ARGUMENT, "tools is %s, expected a list",
                       fl_json_type_name(o->tools));
    return FL_OK;
}

fl_status fl_chat_render(fl_model *m, const fl_chat_options *o, fl_buf *text, fl_ids *ids,
                         fl_error *err)
{
    fl_chat_writer w = {.text = text, .ids = ids};
    FL_TRY(check_options(o, err));
    if (ids)
        FL_TRY(fl_model_tokenizer(m, &w.tokenizer, err));
    fl_host_task task = {.writer = &w, .refusal = FL_ARGUMENT};
    return fl_host_run(m->definition.host, &task, run_render, (void *)o, err);
}

/* ---- the form of an answer ---- */

/* Whether o asks for anything that free text might not be. */
static bool wants_form(const fl_chat_options *o)
{
    const fl_json *format = fl_json_is(o->response_format, FL_JSON_OBJECT)
                                ? fl_json_get(o->response_format, "type")
                                : o->response_format;
    if (fl_json_is(format, FL_JSON_STRING) && strcmp(fl_json_string(format).data, "text") != 0)
        return true;
    if (fl_json_is(o->tool_choice, FL_JSON_OBJECT) ||
        (fl_json_is(o->tool_choice, FL_JSON_STRING) &&
         strcmp(fl_json_string(o->tool_choice).data, "required") == 0))
        return true;
    for (size_t i = 0; fl_json_is(o->tools, FL_JSON_ARRAY) && i < fl_json_size(o->tools); i++) {
        const fl_json *tool = fl_json_at(o->tools, i), *f, *strict;
        f = fl_json_is(tool, FL_JSON_OBJECT) ? fl_json_get(tool, "function") : NULL;
        strict = fl_json_is(f, FL_JSON_OBJECT) ? fl_json_get(f, "strict") : NULL;
        if (fl_json_is(strict, FL_JSON_BOOL) && fl_json_bool(strict))
            return true;
    }
    return false;
}

typedef struct form_call {
    const fl_chat_options *o;
    fl_chat_former *former;
    bool free; /* the format asks for no form */
} form_call;

static int run_form(lua_State *L)
{
    form_call *c = lua_touserdata(L, 1);
    fl_lua_push_loan(L);
    lua_getfield(L, LUA_REGISTRYINDEX, fl_chat_key);
    if (!lua_istable(L, -1) || lua_getfield(L, -1, "form") != LUA_TFUNCTION) {
        fl_error e;
        fl_fail(&e, FL_ARGUMENT,
                "this chat format cannot force tool calls, strict tools or a response_format");
        return fl_host_raise(L, &e);
    }
    lua_remove(L, -2);
    push_options(L, c->o);
    fl_lua_push_form(L);
    lua_call(L, 2, 1);
    c->free = lua_isnil(L, -1);
    if (!c->free)
        c->former->form->root = fl_lua_form_part(L, -1);
    return 0;
}

fl_status fl_chat_form(fl_model *m, const fl_chat_options *o, fl_form **out, fl_error *err)
{
    fl_chat_former former = {.form = fl_calloc(1, sizeof *former.form)};
    form_call c = {.o = o, .former = &former};
    fl_host_task task = {.former = &former, .refusal = FL_ARGUMENT};
    fl_status s = check_options(o, err);
    *out = NULL;
    if (s == FL_OK && !wants_form(o)) {
        fl_form_free(former.form);
        return FL_OK;
    }
    if (s == FL_OK && !former.form)
        s = fl_fail(err, FL_NOMEM, "no memory for the form of an answer");
    if (s == FL_OK)
        s = fl_model_tokenizer(m, &former.tokenizer, err);
    if (s == FL_OK)
        s = fl_host_run(m->definition.host, &task, run_form, &c, err);
    if (s == FL_OK && !c.free)
        *out = former.form;
    else
        fl_form_free(former.form);
    return s;
}

void fl_form_free(fl_form *f)
{
    if (!f)
        return;
    fl_vec_free(&f->parts);
    fl_vec_free(&f->kids);
    fl_arena_free(&f->arena);
    fl_free(f);
}

/* ---- parsing ---- */

typedef struct parser_call {
    fl_chat_parser *p;
    bool thinking;
    const int32_t *ids;
    size_t n;
    const fl_json *tools;
} parser_call;

static int run_create(lua_State *L)
{
    parser_call *c = lua_touserdata(L, 1);
    push_function(L, "parser");
    lua_pushboolean(L, c->thinking);
    fl_lua_push_emit(L);
    lua_call(L, 2, 1);
    if (!lua_istable(L, -1))
        return luaL_error(L, "chat.parser returns a %s, expected a table", luaL_typename(L, -1));
    c->p->state = luaL_ref(L, LUA_REGISTRYINDEX);
    return 0;
}

fl_status fl_chat_parser_create(fl_model *m, bool thinking, fl_chat_sink sink, void *ctx,
                                fl_chat_parser **out, fl_error *err)
{
    const fl_tokenizer *t;
    *out = NULL;
    FL_TRY(fl_model_tokenizer(m, &t, err));
    fl_chat_parser *p = fl_calloc(1, sizeof *p);
    if (!p)
        return fl_fail(err, FL_NOMEM, "no memory for a parser");
    *p = (fl_chat_parser){.m = m, .tokenizer = t, .sink = sink, .ctx = ctx, .state = LUA_NOREF};
    parser_call c = {.p = p, .thinking = thinking};
    fl_host_task task = {.parser = p};
    fl_status status = fl_host_run(m->definition.host, &task, run_create, &c, err);
    if (status != FL_OK) {
        fl_chat_parser_destroy(p);
        return status;
    }
    *out = p;
    return FL_OK;
}

/* Calls the function `name` of the parser's table (at 2) with one string, if it is not empty. */
static void tell(lua_State *L, const char *name, const char *text, size_t len)
{
    if (!len)
        return;
    lua_getfield(L, 2, name);
    lua_pushlstring(L, text, len);
    lua_call(L, 1, 0);
}

static void tell_text(lua_State *L, fl_chat_parser *p)
{
    size_t n = p->whole.n;
    p->whole.n = 0;
    tell(L, "text", p->whole.data, n);
}

static void feed(lua_State *L, fl_chat_parser *p, int32_t id)
{
    fl_bytes bytes = fl_tokenizer_bytes(p->tokenizer, id);
    if (!bytes.data)
        luaL_error(L, "token %d is outside the vocabulary", (int)id);
    bool special = fl_tokenizer_is_special(p->tokenizer, id);
    if (!(special ? fl_utf8_end(&p->utf8, &p->whole)
                  : fl_utf8_feed(&p->utf8, bytes.data, bytes.len, &p->whole)))
        fl_host_nomem(L);
    tell_text(L, p);
    if (special)
        tell(L, "marker", bytes.data, bytes.len);
}

static int run_feed(lua_State *L)
{
    const parser_call *c = lua_touserdata(L, 1);
    size_t n_stop;
    const int32_t *stop = fl_model_stop_ids(c->p->m, &n_stop);
    lua_rawgeti(L, LUA_REGISTRYINDEX, c->p->state);
    for (size_t i = 0; i < c->n; i++) {
        size_t k = 0;
        while (k < n_stop && stop[k] != c->ids[i])
            k++;
        if (k == n_stop)
            feed(L, c->p, c->ids[i]);
    }
    return 0;
}

static int run_end(lua_State *L)
{
    const parser_call *c = lua_touserdata(L, 1);
    lua_rawgeti(L, LUA_REGISTRYINDEX, c->p->state);
    if (!fl_utf8_end(&c->p->utf8, &c->p->whole))
        return fl_host_nomem(L);
    tell_text(L, c->p);
    lua_getfield(L, 2, "finish");
    lua_call(L, 0, 0);
    return 0;
}

static fl_status run_parser(parser_call *c, lua_CFunction fn, fl_error *err)
{
    if (c->p->broken)
        return fl_fail(err, FL_ARGUMENT, "the parser has ended");
    fl_host_task task = {.parser = c->p};
    fl_status status = fl_host_run(c->p->m->definition.host, &task, fn, c, err);
    c->p->broken = status != FL_OK || fn == run_end;
    return status;
}

/* Calls the parser's function `tools`, if it has one. */
static int run_tools(lua_State *L)
{
    const parser_call *c = lua_touserdata(L, 1);
    fl_lua_push_loan(L);
    lua_rawgeti(L, LUA_REGISTRYINDEX, c->p->state);
    if (lua_getfield(L, -1, "tools") == LUA_TNIL)
        return 0;
    fl_lua_push_json(L, c->tools, 2);
    lua_call(L, 1, 0);
    return 0;
}

fl_status fl_chat_parser_tools(fl_chat_parser *p, const fl_json *tools, fl_error *err)
{
    if (!fl_json_is(tools, FL_JSON_ARRAY))
        return FL_OK;
    return run_parser(&(parser_call){.p = p, .tools = tools}, run_tools, err);
}

fl_status fl_chat_parser_feed(fl_chat_parser *p, const int32_t *ids, size_t n, fl_error *err)
{
    for (size_t i = 0; i < n; i += MAX_FEED) { /* each with its own budget */
        parser_call c = {.p = p, .ids = ids + i, .n = n - i < MAX_FEED ? n - i : MAX_FEED};
        FL_TRY(run_parser(&c, run_feed, err));
    }
    return FL_OK;
}

fl_status fl_chat_parser_end(fl_chat_parser *p, fl_error *err)
{
    return run_parser(&(parser_call){.p = p}, run_end, err);
}

static int run_forget(lua_State *L)
{
    const fl_chat_parser *p = lua_touserdata(L, 1);
    luaL_unref(L, LUA_REGISTRYINDEX, p->state);
    return 0;
}

void fl_chat_parser_destroy(fl_chat_parser *p)
{
    if (!p)
        return;
    if (p->state != LUA_NOREF)
        (void)!fl_host_run(p->m->definition.host, NULL, run_forget, p, NULL);
    fl_vec_free(&p->whole);
    fl_free(p);
}
