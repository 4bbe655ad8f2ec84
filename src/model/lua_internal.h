/* What the files that give Lua its functions share with those that call Lua. */
#ifndef FL_MODEL_LUA_INTERNAL_H
#define FL_MODEL_LUA_INTERNAL_H

#include "checkpoint/config.h"
#include "model/host_internal.h"

/* Pushes a loan: JSON pushed under it is readable until the running call ends. */
void fl_lua_push_loan(lua_State *L);
/* Pushes v as Lua sees it; NULL and JSON null are nil. */
void fl_lua_push_json(lua_State *L, const fl_json *v, int loan_index);

/* The object or array at index, which C lent and which so outlives the call.  Raises. */
const fl_json *fl_lua_lasting_json(lua_State *L, int index);

/* Pushes a configuration object; what it views must outlive the host. */
void fl_lua_push_config(lua_State *L, const fl_config *c);

#endif
