/* The Lua state behind its three limits: allocation, instruction hook, and the turning of every
 * error into a status. */
#define _GNU_SOURCE
#include "model/host_internal.h"

#include "base/mem.h"

#include <time.h>

enum { HOOK_STEP = 1000, BYTES_PER_UNIT = 16 };

static const char error_class[] = "firstlight.error";

fl_host_limits fl_host_limits_default(void)
{
    return (fl_host_limits){.memory = (size_t)256 << 20, .work = 200000000, .seconds = 60};
}

/* Processor time of this thread: what a sink waits for does not count. */
static int64_t now_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

fl_host *fl_host_of(lua_State *L)
{
    return *(fl_host **)lua_getextraspace(L);
}

/* Lua's allocator.  Making a block smaller must not fail: then the old one stays. */
static void *allocate(void *ctx, void *old, size_t old_size, size_t size)
{
    fl_host *h = ctx;
    if (!old)
        old_size = 0;
    if (size == 0) {
        fl_free(old);
        h->used -= old_size;
        return NULL;
    }
    if (size > old_size) {
        size_t more = size - old_size;
        if (more > h->limits.memory - h->used) {
            h->capped = true;
            return NULL;
        }
        h->work -= (int64_t)(more / BYTES_PER_UNIT);
        if (h->work < 0 && !h->ended)
            return NULL;
    }
    void *p = fl_realloc(old, size);
    if (!p && size > old_size)
        return NULL;
    h->used += size - old_size;
    return p ? p : old;
}

static void count_hook(lua_State *L, lua_Debug *ar)
{
    fl_host *h = fl_host_of(L);
    h->work -= HOOK_STEP;
    bool late = now_ns() > h->deadline_ns;
    if (h->work >= 0 && !late)
        return;
    h->ended = true; /* no instruction runs after this one, so the message may be allocated */
    lua_getinfo(L, "Sl", ar);
    if (late)
        lua_pushfstring(L, "%s:%d: it ran longer than %d s", ar->short_src, ar->currentline,
                        h->limits.seconds);
    else
        lua_pushfstring(L, "%s:%d: it used its whole budget of %I steps", ar->short_src,
                        ar->currentline, (LUAI_UACINT)h->limits.work);
    lua_error(L);
}

/* pcall, except that nothing can catch the end of the budget or of memory. */
static int protected_call(lua_State *L)
{
    luaL_checkany(L, 1);
    lua_pushboolean(L, true);
    lua_insert(L, 1);
    int status = lua_pcall(L, lua_gettop(L) - 2, LUA_MULTRET, 0);
    if (status == LUA_OK)
        return lua_gettop(L);
    if (status == LUA_ERRMEM || fl_host_of(L)->ended)
        return lua_error(L);
    lua_pushboolean(L, false);
    lua_insert(L, -2);
    return 2;
}

/* ---- errors ---- */

int fl_host_raise(lua_State *L, const fl_error *e)
{
    fl_error *own = lua_newuserdatauv(L, sizeof *own, 0);
    *own = *e;
    luaL_setmetatable(L, error_class);
    lua_Debug ar;
    if (lua_getstack(L, 1, &ar) && lua_getinfo(L, "Sl", &ar) && ar.currentline > 0)
        fl_error_prefix(own, "%s:%d", ar.short_src, ar.currentline);
    return lua_error(L);
}

int fl_host_nomem(lua_State *L)
{
    fl_error e = {0};
    (void)fl_fail(&e, FL_NOMEM, "out of memory");
    return fl_host_raise(L, &e);
}

static int error_text(lua_State *L)
{
    const fl_error *e = luaL_checkudata(L, 1, error_class);
    lua_pushstring(L, e->message);
    return 1;
}

/* refuse(format, ...): the file turns down what it was given; the message stands alone. */
static int refuse(lua_State *L)
{
    fl_host *h = fl_host_of(L);
    lua_pushvalue(L, lua_upvalueindex(1)); /* string.format */
    lua_insert(L, 1);
    lua_call(L, lua_gettop(L) - 1, 1);
    fl_error *e = lua_newuserdatauv(L, sizeof *e, 0);
    *e = (fl_error){0};
    luaL_setmetatable(L, error_class);
    (void)fl_fail(e, h->task.refusal != FL_OK ? h->task.refusal : FL_MODEL, "%s",
                  lua_tostring(L, -2));
    return lua_error(L);
}

/* Turns the error value on top of the stack into a status.  This runs unprotected, so it calls
 * nothing that could allocate in Lua. */
static fl_status take_error(fl_host *h, int lua_status, fl_error *err)
{
    lua_State *L = h->L;
    if (lua_getmetatable(L, -1)) {
        const fl_error *e = lua_topointer(L, -1) == h->error_class ? lua_touserdata(L, -2) : NULL;
        lua_pop(L, 1);
        if (e)
            return fl_fail(err, e->status, "%s", e->message);
    }
    if (lua_status == LUA_ERRMEM && h->work < 0)
        return fl_fail(err, FL_MODEL, "the model definition used its whole budget of %lld steps",
                       (long long)h->limits.work);
    if (lua_status == LUA_ERRMEM && h->capped)
        return fl_fail(err, FL_MODEL, "the model definition needs more than %zu MiB of memory",
                       h->limits.memory >> 20);
    if (lua_status == LUA_ERRMEM)
        return fl_fail(err, FL_NOMEM, "no memory for the model definition");
    if (lua_type(L, -1) == LUA_TSTRING)
        return fl_fail(err, FL_MODEL, "%s", lua_tostring(L, -1));
    return fl_fail(err, FL_MODEL, "the model definition raised an error that is a %s",
                   luaL_typename(L, -1));
}

fl_status fl_host_run(fl_host *h, const fl_host_task *task, lua_CFunction fn, void *ctx,
                      fl_error *err)
{
    fl_host_task outer = h->task;
    h->task = task ? *task : (fl_host_task){0};
    h->work = h->limits.work;
    h->deadline_ns = now_ns() + (int64_t)h->limits.seconds * 1000000000;
    h->capped = h->ended = false;
    uint64_t outer_epoch = h->epoch;
    h->epoch = ++h->last_epoch;
    int top = lua_gettop(h->L);
    lua_pushcfunction(h->L, fn);
    lua_pushlightuserdata(h->L, ctx);
    int lua_status = lua_pcall(h->L, 1, 0, 0);
    fl_status status = lua_status == LUA_OK ? FL_OK : take_error(h, lua_status, err);
    lua_settop(h->L, top);
    h->epoch = outer_epoch;
    h->task = outer;
    return status;
}

/* ---- the state ---- */

void fl_host_load(lua_State *L, const char *name, const char *text, size_t len)
{
    lua_pushfstring(L, "@%s", name);
    if (luaL_loadbufferx(L, text, len, lua_tostring(L, -1), "t") != LUA_OK)
        lua_error(L);
    lua_remove(L, -2);
    lua_call(L, 0, 1);
}

void fl_host_class(lua_State *L, const char *name, const luaL_Reg *methods, const luaL_Reg *meta)
{
    luaL_newmetatable(L, name);
    lua_pushboolean(L, false);
    lua_setfield(L, -2, "__metatable");
    if (methods) {
        lua_newtable(L);
        luaL_setfuncs(L, methods, 0);
        lua_setfield(L, -2, "__index");
    }
    if (meta)
        luaL_setfuncs(L, meta, 0);
    lua_pop(L, 1);
}

static int open_library(lua_State *L)
{
    static const luaL_Reg meta[] = {{"__tostring", error_text}, {NULL, NULL}};
    fl_host_class(L, error_class, NULL, meta);
    luaL_getmetatable(L, error_class);
    fl_host_of(L)->error_class = lua_topointer(L, -1);
    lua_pop(L, 1);
    fl_lua_open_base(L);
    lua_pushcfunction(L, protected_call);
    lua_setglobal(L, "pcall");
    lua_getglobal(L, "string");
    lua_getfield(L, -1, "format");
    lua_pushcclosure(L, refuse, 1);
    lua_setglobal(L, "refuse");
    lua_pop(L, 1);
    fl_lua_open_json(L);
    fl_lua_open_config(L);
    fl_lua_open_graph(L);
    fl_lua_open_chat(L);
    fl_lua_open_form(L);
    return 0;
}

fl_status fl_host_create(const fl_host_limits *limits, fl_host **out, fl_error *err)
{
    *out = NULL;
    fl_host *h = fl_calloc(1, sizeof *h);
    if (!h)
        return fl_fail(err, FL_NOMEM, "no memory for the model definition");
    h->limits = *limits;
    h->work = limits->work;
    h->L = lua_newstate(allocate, h);
    if (!h->L) {
        fl_host_destroy(h);
        return fl_fail(err, FL_NOMEM, "no memory for the model definition");
    }
    *(fl_host **)lua_getextraspace(h->L) = h;
    lua_sethook(h->L, count_hook, LUA_MASKCOUNT, HOOK_STEP);
    fl_status status = fl_host_run(h, NULL, open_library, NULL, err);
    if (status != FL_OK) {
        fl_host_destroy(h);
        return status;
    }
    *out = h;
    return FL_OK;
}

void fl_host_destroy(fl_host *h)
{
    if (!h)
        return;
    if (h->L)
        lua_close(h->L);
    fl_vec_free(&h->scratch);
    fl_vec_free(&h->sources);
    fl_free(h);
}
