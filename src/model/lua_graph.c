/* The graph in Lua: g.linear{x, w} adds a node, g:state{...} a state, g:tap(...) a mark.
 *
 * Operators are found by name in the registry and called with a table: positional entries are
 * inputs, named ones attributes.  Nothing here knows an operator, except that g.expr{text, name =
 * value or number} gathers its names.  Values are userdata that only this file makes; they are good
 * until build returns.  g itself holds nothing: the graph being built is the running task's. */
#include "model/builder_internal.h"

#include "graph/expr.h"
#include "model/weights_internal.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_IN = 64, MAX_ATTR = 16, MAX_NAMES = 32, MAX_NAME = 31 };

static const char graph_class[] = "firstlight.graph";
static const char value_class[] = "firstlight.value";

typedef struct handle {
    fl_val v;
    uint64_t epoch;
} handle;

void fl_builder_free(fl_builder *b)
{
    fl_strmap_free(&b->asked);
    fl_vec_free(&b->stack);
}

void fl_lua_push_graph(lua_State *L)
{
    lua_newuserdatauv(L, 0, 0);
    luaL_setmetatable(L, graph_class);
}

fl_builder *fl_lua_builder(lua_State *L)
{
    fl_builder *b = fl_host_of(L)->task.builder;
    if (!b)
        luaL_error(L, "g is only usable inside build");
    return b;
}

fl_builder *fl_lua_check_graph(lua_State *L)
{
    luaL_checkudata(L, 1, graph_class);
    return fl_lua_builder(L);
}

void fl_lua_push_value(lua_State *L, fl_val v)
{
    handle *own = lua_newuserdatauv(L, sizeof *own, 0);
    *own = (handle){v, fl_host_of(L)->epoch};
    luaL_setmetatable(L, value_class);
}

static fl_val check_value(lua_State *L, int index)
{
    const handle *v = luaL_checkudata(L, index, value_class);
    if (v->epoch != fl_host_of(L)->epoch)
        luaL_error(L, "a value of another graph");
    return v->v;
}

/* ---- nodes ---- */

typedef struct call {
    const char *op;
    int n_in, n_attrs;
    fl_val in[MAX_IN];
    fl_node_attr attrs[MAX_ATTR];
} call;

static int add_node(lua_State *L, const call *c)
{
    fl_builder *b = fl_lua_builder(L);
    fl_val outs[FL_MAX_OUT];
    int n = 0;
    fl_error e = {0};
    if (fl_graph_node(b->graph, c->op, b->label, c->in, c->n_in, c->attrs, c->n_attrs, outs, &n,
                      &e) != FL_OK)
        return fl_host_raise(L, &e);
    luaL_checkstack(L, n + 4, NULL);
    for (int i = 0; i < n; i++)
        fl_lua_push_value(L, outs[i]);
    return n;
}

static void add_attr(lua_State *L, call *c, const char *name, fl_attr_kind kind, fl_attr a)
{
    if (c->n_attrs == MAX_ATTR)
        luaL_error(L, "%s: more than %d attributes", c->op, MAX_ATTR);
    c->attrs[c->n_attrs++] = (fl_node_attr){.name = name, .kind = kind, .value = a};
}

/* Appends "name=number" to the host's scratch buffer. */
static void add_number(lua_State *L, const char *name, double x)
{
    fl_buf *out = &fl_host_of(L)->scratch;
    if (strlen(name) > MAX_NAME)
        luaL_error(L, "the name %s is longer than %d characters", name, MAX_NAME);
    if (!isfinite(x))
        luaL_error(L, "%s is not a finite number", name);
    if ((out->n && !fl_vec_push(out, ',')) || !fl_vec_append(out, name, strlen(name)) ||
        !fl_vec_push(out, '=') || !fl_json_real(x, out))
        fl_host_nomem(L);
}

static int by_name(const void *a, const void *b)
{
    return strcmp(*(const char *const *)a, *(const char *const *)b);
}

/* The string keys of the table at index in order; Lua's own order changes from run to run. */
static int sorted_names(lua_State *L, int index, const char **names)
{
    int n = 0;
    for (lua_pushnil(L); lua_next(L, index); lua_pop(L, 1)) {
        if (lua_type(L, -2) != LUA_TSTRING)
            continue;
        if (n == MAX_NAMES)
            luaL_error(L, "more than %d names", MAX_NAMES);
        names[n++] = lua_tostring(L, -2);
    }
    qsort(names, (size_t)n, sizeof *names, by_name);
    return n;
}

/* Pushes {b = 4, l = 25} as the text "b=4.0,l=25.0", which lives as long as the stack slot. */
static const char *push_numbers(lua_State *L, int index)
{
    const char *names[MAX_NAMES];
    int n = sorted_names(L, index, names);
    fl_host_of(L)->scratch.n = 0;
    for (int i = 0; i < n; i++) {
        lua_getfield(L, index, names[i]);
        add_number(L, names[i], luaL_checknumber(L, -1));
        lua_pop(L, 1);
    }
    lua_pushlstring(L, fl_host_of(L)->scratch.data, fl_host_of(L)->scratch.n);
    return lua_tostring(L, -1);
}

/* A table as an attribute: a list of integers, or named numbers as text (one more stack slot). */
static void add_table(lua_State *L, call *c, const char *name, int index)
{
    fl_attr a = {0};
    lua_Integer n = (lua_Integer)lua_rawlen(L, index);
    if (n == 0) {
        a.text = push_numbers(L, index);
        lua_insert(L, -3); /* below the pair that lua_next works on */
        add_attr(L, c, name, FL_ATTR_TEXT, a);
        return;
    }
    if (n > FL_MAX_DIMS)
        luaL_error(L, "%s: attribute %s has more than %d entries", c->op, name, FL_MAX_DIMS);
    for (a.n = 0; a.n < (int)n; a.n++) {
        lua_rawgeti(L, index, a.n + 1);
        int exact;
        a.v[a.n] = lua_tointegerx(L, -1, &exact);
        if (!exact)
            luaL_error(L, "%s: attribute %s is not a list of integers", c->op, name);
        lua_pop(L, 1);
    }
    add_attr(L, c, name, FL_ATTR_INTS, a);
}

/* The named entry whose key is at -2 and value at -1. */
static void add_named(lua_State *L, call *c)
{
    const char *name = lua_tostring(L, -2);
    switch (lua_type(L, -1)) {
    case LUA_TNUMBER:
        if (lua_isinteger(L, -1))
            add_attr(L, c, name, FL_ATTR_INT, (fl_attr){.i = lua_tointeger(L, -1)});
        else
            add_attr(L, c, name, FL_ATTR_FLOAT, (fl_attr){.f = lua_tonumber(L, -1)});
        break;
    case LUA_TBOOLEAN:
        add_attr(L, c, name, FL_ATTR_BOOL, (fl_attr){.i = lua_toboolean(L, -1)});
        break;
    case LUA_TSTRING:
        add_attr(L, c, name, FL_ATTR_TEXT, (fl_attr){.text = lua_tostring(L, -1)});
        break;
    case LUA_TTABLE:
        add_table(L, c, name, lua_absindex(L, -1));
        break;
    default:
        luaL_error(L, "%s: attribute %s is a %s", c->op, name, luaL_typename(L, -1));
    }
}

/* g.NAME{input..., attribute = ...}; upvalue 1 is NAME. */
static int call_op(lua_State *L)
{
    call c = {.op = lua_tostring(L, lua_upvalueindex(1))};
    luaL_checktype(L, 1, LUA_TTABLE);
    lua_settop(L, 1);
    luaL_checkstack(L, MAX_ATTR + 8, NULL);
    for (int i = 0; i < MAX_IN; i++)
        c.in[i] = FL_NONE;
    for (lua_pushnil(L); lua_next(L, 1); lua_pop(L, 1)) {
        if (lua_type(L, -2) == LUA_TSTRING) {
            add_named(L, &c);
            continue;
        }
        lua_Integer i = lua_isinteger(L, -2) ? lua_tointeger(L, -2) : 0;
        if (i < 1 || i > MAX_IN)
            return luaL_error(L, "%s: at most %d inputs", c.op, MAX_IN);
        if (!luaL_testudata(L, -1, value_class))
            return luaL_error(L, "%s: input %d is a %s, expected a value", c.op, (int)i,
                              luaL_typename(L, -1));
        c.in[i - 1] = check_value(L, -1);
        c.n_in = i > c.n_in ? (int)i : c.n_in;
    }
    return add_node(L, &c);
}

/* g.expr{"a*x + b", x = value, a = 2}: values are inputs, numbers constants, both by name. */
static int call_expr(lua_State *L)
{
    const char *names[MAX_NAMES];
    luaL_checktype(L, 1, LUA_TTABLE);
    lua_settop(L, 1);
    lua_rawgeti(L, 1, 1);
    const char *text = lua_tostring(L, 2);
    if (!text)
        return luaL_error(L, "expr: entry 1 is a %s, expected the text", luaL_typename(L, 2));
    int n = sorted_names(L, 1, names);
    call c = {.op = "expr"};
    char inputs[(FL_EXPR_MAX_INPUTS + 1) * (MAX_NAME + 1)] = "";
    size_t used = 0;
    fl_buf *consts = &fl_host_of(L)->scratch;
    consts->n = 0;
    for (int i = 0; i < n; i++) {
        lua_getfield(L, 1, names[i]);
        if (lua_type(L, -1) == LUA_TNUMBER) {
            add_number(L, names[i], lua_tonumber(L, -1));
        } else {
            if (c.n_in == FL_EXPR_MAX_INPUTS || strlen(names[i]) > MAX_NAME)
                return luaL_error(L, "expr: more than %d inputs, or a name too long: %s",
                                  FL_EXPR_MAX_INPUTS, names[i]);
            if (!luaL_testudata(L, -1, value_class))
                return luaL_error(L, "expr: %s is a %s, expected a value or a number", names[i],
                                  luaL_typename(L, -1));
            used += (size_t)snprintf(inputs + used, sizeof inputs - used, "%s%s", c.n_in ? "," : "",
                                     names[i]);
            c.in[c.n_in++] = check_value(L, -1);
        }
        lua_pop(L, 1);
    }
    lua_pushlstring(L, consts->data, consts->n);
    add_attr(L, &c, "text", FL_ATTR_TEXT, (fl_attr){.text = text});
    add_attr(L, &c, "inputs", FL_ATTR_TEXT, (fl_attr){.text = inputs});
    add_attr(L, &c, "consts", FL_ATTR_TEXT, (fl_attr){.text = lua_tostring(L, -1)});
    return add_node(L, &c);
}

fl_val fl_lua_cast(lua_State *L, fl_val v)
{
    call c = {.op = "cast", .n_in = 1, .in = {v}};
    add_node(L, &c);
    fl_val out = check_value(L, -1);
    lua_pop(L, 1);
    return out;
}

/* ---- the rest of the graph ---- */

/* g:state{name = , paged = , width = } */
static int add_state(lua_State *L)
{
    fl_builder *b = fl_lua_check_graph(L);
    luaL_checktype(L, 2, LUA_TTABLE);
    lua_getfield(L, 2, "name");
    lua_getfield(L, 2, "paged");
    lua_getfield(L, 2, "width");
    fl_state_spec spec = {.name = luaL_checkstring(L, -3),
                          .paged = lua_toboolean(L, -2),
                          .dtype = FL_F32,
                          .elements = luaL_checkinteger(L, -1)};
    fl_val v;
    fl_error e = {0};
    if (fl_graph_state(b->graph, &spec, &v, &e) != FL_OK)
        return fl_host_raise(L, &e);
    fl_lua_push_value(L, v);
    return 1;
}

/* g:tap(kind, index, value) */
static int add_tap(lua_State *L)
{
    fl_builder *b = fl_lua_check_graph(L);
    lua_Integer index = luaL_checkinteger(L, 3);
    fl_error e = {0};
    luaL_argcheck(L, index >= 0 && index <= INT32_MAX, 3, "out of range");
    if (fl_graph_tap(b->graph, luaL_checkstring(L, 2), (int)index, check_value(L, 4), &e) != FL_OK)
        return fl_host_raise(L, &e);
    return 0;
}

static int set_output(lua_State *L)
{
    fl_builder *b = fl_lua_check_graph(L);
    fl_error e = {0};
    if (fl_graph_output(b->graph, check_value(L, 2), &e) != FL_OK)
        return fl_host_raise(L, &e);
    return 0;
}

/* g:at(label, part): what comes now, for messages and reports. */
static int set_place(lua_State *L)
{
    fl_builder *b = fl_lua_check_graph(L);
    const char *label = luaL_checkstring(L, 2), *part = luaL_checkstring(L, 3);
    fl_error e = {0};
    snprintf(b->label, sizeof b->label, "%s", label);
    if (fl_inventory_part(b->inventory, part, &e) != FL_OK)
        return fl_host_raise(L, &e);
    return 0;
}

/* g:layer(i, kind): layer i, from 0 and in order, is of this kind. */
static int add_layer(lua_State *L)
{
    fl_builder *b = fl_lua_check_graph(L);
    luaL_argcheck(L, luaL_checkinteger(L, 2) == (lua_Integer)b->kinds->n, 2,
                  "layers are declared in order");
    const char *kind = fl_arena_strdup(&b->inventory->arena, luaL_checkstring(L, 3));
    if (!kind || !fl_vec_push(b->kinds, kind))
        return fl_host_nomem(L);
    return 0;
}

static int set_context(lua_State *L)
{
    fl_builder *b = fl_lua_check_graph(L);
    b->max_context = luaL_checkinteger(L, 2);
    luaL_argcheck(L, b->max_context >= 1, 2, "out of range");
    return 0;
}

/* g.NAME: a method (upvalue 1 is their table), a setting, or an operator. */
static int graph_index(lua_State *L)
{
    fl_builder *b = fl_lua_check_graph(L);
    const char *name = luaL_checkstring(L, 2);
    lua_settop(L, 2);
    lua_pushvalue(L, 2);
    lua_rawget(L, lua_upvalueindex(1));
    if (!lua_isnil(L, -1))
        return 1;
    if (strcmp(name, "dense") == 0) {
        lua_pushboolean(L, b->dense);
    } else if (strcmp(name, "layers") == 0) {
        lua_pushinteger(L, b->layers > 0 ? b->layers : LUA_MAXINTEGER);
    } else if (fl_registry_op(b->registry, name)) {
        lua_pushvalue(L, 2);
        lua_pushcclosure(L, call_op, 1);
    } else {
        return luaL_error(L, "%s: there is no operator \"%s\"", b->label, name);
    }
    return 1;
}

void fl_lua_open_graph(lua_State *L)
{
    static const luaL_Reg methods[] = {{"expr", call_expr},       {"weight", fl_lua_weight},
                                       {"vector", fl_lua_vector}, {"stack", fl_lua_stack},
                                       {"has", fl_lua_has},       {"size", fl_lua_size},
                                       {"unused", fl_lua_unused}, {"state", add_state},
                                       {"tap", add_tap},          {"output", set_output},
                                       {"at", set_place},         {"layer", add_layer},
                                       {"context", set_context},  {NULL, NULL}};
    fl_host_class(L, value_class, NULL, NULL);
    fl_host_class(L, graph_class, NULL, NULL);
    luaL_getmetatable(L, graph_class);
    lua_newtable(L);
    luaL_setfuncs(L, methods, 0);
    lua_pushcclosure(L, graph_index, 1);
    lua_setfield(L, -2, "__index");
    lua_pop(L, 1);
}
