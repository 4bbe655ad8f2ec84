/* Weights in Lua (lua_weights.c), and what they take from the graph's functions. */
#ifndef FL_MODEL_WEIGHTS_INTERNAL_H
#define FL_MODEL_WEIGHTS_INTERNAL_H

#include "model/builder_internal.h"

fl_builder *fl_lua_builder(lua_State *L);     /* raises outside build */
fl_builder *fl_lua_check_graph(lua_State *L); /* the same, and argument 1 must be g */
void fl_lua_push_value(lua_State *L, fl_val v);
fl_val fl_lua_cast(lua_State *L, fl_val v); /* a constant as F32 */

/* Methods of g. */
int fl_lua_weight(lua_State *L);
int fl_lua_vector(lua_State *L);
int fl_lua_stack(lua_State *L);
int fl_lua_has(lua_State *L);
int fl_lua_size(lua_State *L);
int fl_lua_unused(lua_State *L);

#endif
