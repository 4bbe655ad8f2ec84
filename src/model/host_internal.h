/* The sandbox: one Lua state with its own allocator, a budget and a hand-picked library.
 *
 * A model file is data from outside.  Its state has no way to a file, a process, the clock or the
 * network, loads no bytecode, and every call into it is limited three ways: bytes of memory, units
 * of work (an instruction is one unit, sixteen allocated bytes another) and seconds.  The library
 * holds only functions whose time is bounded by the size of their arguments, so the limits always
 * get their turn.  All Lua runs inside fl_host_run; an error of any kind ends there as a status.
 *
 * C functions that Lua calls leave by longjmp when they fail: what they allocate must belong to the
 * Lua state, to the host or to the model, never to a local variable. */
#ifndef FL_MODEL_HOST_INTERNAL_H
#define FL_MODEL_HOST_INTERNAL_H

#include "base/status.h"
#include "base/vec.h"

#include <lauxlib.h>
#include <lua.h>
#include <lualib.h>

typedef struct fl_host_limits {
    size_t memory; /* bytes that the state holds at once */
    int64_t work;  /* units per fl_host_run */
    int seconds;   /* per fl_host_run */
} fl_host_limits;

fl_host_limits fl_host_limits_default(void);

/* What a running call is about; Lua functions that need one that is NULL fail. */
typedef struct fl_host_task {
    struct fl_builder *builder;    /* build(g, config) */
    struct fl_chat_writer *writer; /* chat.render */
    struct fl_chat_parser *parser; /* chat.parser and what it returned */
    struct fl_chat_former *former; /* chat.form */
    fl_status refusal;             /* the status of refuse(...): FL_CONFIG, FL_ARGUMENT */
} fl_host_task;

typedef struct fl_host {
    lua_State *L;
    fl_host_limits limits;
    size_t used;
    int64_t work; /* units left in this call */
    int64_t deadline_ns;
    bool capped, ended;         /* in this call: memory ran out; the budget or the time did */
    uint64_t epoch, last_epoch; /* number of the call: JSON lent to it is dead in the next */
    const void *error_class;    /* the metatable of fl_error values */
    fl_host_task task;          /* of the running call */
    fl_buf scratch;             /* for C functions that build a string */
    const char *models_dir;     /* where include() reads; NULL: nowhere.  Borrowed */
    fl_buf sources;             /* the text of all files loaded, one after the other */
} fl_host;

FL_MUST_CHECK fl_status fl_host_create(const fl_host_limits *limits, fl_host **out, fl_error *err);
void fl_host_destroy(fl_host *h); /* NULL is allowed */

/* Runs fn protected, with a fresh budget; fn finds ctx as light userdata at index 1 and returns
 * nothing.  A refusal by the file (refuse) has the task's status, an error in it FL_MODEL with file
 * and line, a failure inside a C function that function's status. */
FL_MUST_CHECK fl_status fl_host_run(fl_host *h, const fl_host_task *task, lua_CFunction fn,
                                    void *ctx, fl_error *err);

/* ---- for C functions that Lua calls ---- */

fl_host *fl_host_of(lua_State *L);
/* Raises e with the file and line of the caller before its message.  Does not return. */
int fl_host_raise(lua_State *L, const fl_error *e);
int fl_host_nomem(lua_State *L);
/* Pushes the value of a loaded text chunk: what the file returned.  Raises. */
void fl_host_load(lua_State *L, const char *name, const char *text, size_t len);

/* A class of userdata: methods (may be NULL) are found by name in values of it, meta are further
 * metamethods (may be NULL).  Scripts cannot see or change the metatable. */
void fl_host_class(lua_State *L, const char *name, const luaL_Reg *methods, const luaL_Reg *meta);

/* What opens the parts of the library, each adding globals. */
void fl_lua_open_base(lua_State *L);   /* lua_base.c */
void fl_lua_open_json(lua_State *L);   /* lua_json.c: json */
void fl_lua_open_config(lua_State *L); /* lua_config.c */
void fl_lua_open_graph(lua_State *L);  /* lua_graph.c */
void fl_lua_open_chat(lua_State *L);   /* lua_chat.c */
void fl_lua_open_form(lua_State *L);   /* lua_form.c */

#endif
