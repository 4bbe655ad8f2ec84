/* Weights in Lua: g:weight(name, shape) and its relatives.
 *
 * A name is the tensor's name in the checkpoint.  What the checkpoint says to it is the inventory's
 * business; here a value comes out of it in any case, so that building goes on and all problems are
 * reported at once. */
#include "model/weights_internal.h"

#include <stdio.h>
#include <string.h>

enum { MAX_NAME = 240, MAX_STACK = 65536 };

/* Reads a shape: an integer or a list of them. */
static void check_shape(lua_State *L, int index, fl_wanted *want)
{
    int64_t size = 1;
    bool list = lua_istable(L, index);
    want->ndim = list ? (int)lua_rawlen(L, index) : 1;
    luaL_argcheck(L, want->ndim >= 1 && want->ndim <= FL_MAX_DIMS, index, "not a shape");
    for (int i = 0; i < want->ndim; i++) {
        if (list)
            lua_rawgeti(L, index, i + 1);
        else
            lua_pushvalue(L, index);
        int exact;
        want->dim[i] = lua_tointegerx(L, -1, &exact);
        lua_pop(L, 1);
        luaL_argcheck(L,
                      exact && want->dim[i] >= 1 &&
                          !__builtin_mul_overflow(size, want->dim[i], &size) &&
                          size <= (int64_t)1 << 48,
                      index, "not a shape");
    }
}

static const char *check_name(lua_State *L, int index)
{
    size_t len;
    const char *name = luaL_checklstring(L, index, &len);
    luaL_argcheck(L, len <= MAX_NAME && strlen(name) == len, index, "not the name of a tensor");
    return name;
}

/* A type by its name; BF16 when left out. */
static fl_dtype opt_dtype(lua_State *L, int index)
{
    const char *name = luaL_optstring(L, index, "BF16");
    int i = 0;
    while (i < FL_DTYPE_COUNT && strcmp(name, fl_dtype_name((fl_dtype)i)) != 0)
        i++;
    luaL_argcheck(L, i < FL_DTYPE_COUNT, index, "not a type of tensors");
    return (fl_dtype)i;
}

/* True the first time a name is asked for. */
static bool ask(lua_State *L, fl_builder *b, const char *name)
{
    bool existing = false;
    const char *own = fl_arena_strdup(&b->inventory->arena, name);
    if (!own || !fl_strmap_put(&b->asked, own, strlen(own), 0, &existing))
        fl_host_nomem(L);
    return !existing;
}

static fl_val add_const(lua_State *L, fl_builder *b, const char *name, const fl_tensor *t, int n)
{
    fl_val v = FL_NONE;
    fl_error e = {0};
    if (fl_graph_const(b->graph, name, t, n, &v, &e) != FL_OK)
        fl_host_raise(L, &e);
    return v;
}

static fl_val take(lua_State *L, fl_builder *b, const fl_wanted *want, fl_dtype *dtype)
{
    fl_tensor t;
    fl_error e = {0};
    if (fl_inventory_take(b->inventory, want, ask(L, b, want->name), &t, &e) != FL_OK)
        fl_host_raise(L, &e);
    *dtype = t.dtype;
    return add_const(L, b, want->name, &t, 1);
}

/* g:weight(name, shape [, dtype]): as stored.  dtype is what to assume when only the name is
 * known. */
int fl_lua_weight(lua_State *L)
{
    fl_builder *b = fl_lua_check_graph(L);
    fl_wanted want = {.name = check_name(L, 2), .dtype = opt_dtype(L, 4)};
    fl_dtype dtype;
    check_shape(L, 3, &want);
    fl_lua_push_value(L, take(L, b, &want, &dtype));
    return 1;
}

/* g:vector(name, shape [, dtype]): the same as F32. */
int fl_lua_vector(lua_State *L)
{
    fl_builder *b = fl_lua_check_graph(L);
    fl_wanted want = {.name = check_name(L, 2), .dtype = opt_dtype(L, 4)};
    fl_dtype dtype;
    check_shape(L, 3, &want);
    fl_val v = take(L, b, &want, &dtype);
    fl_lua_push_value(L, dtype == FL_F32 ? v : fl_lua_cast(L, v));
    return 1;
}

/* Writes pattern with its one "%d" replaced by i. */
static void number_name(const char *pattern, const char *mark, int i, char *out, size_t size)
{
    snprintf(out, size, "%.*s%d%s", (int)(mark - pattern), pattern, i, mark + 2);
}

/* A stack that lacks the data of one tensor has none: the first is the model for all.  What is
 * wrong is on record. */
static void make_alike(fl_tensor *t, int n)
{
    int whole = 0;
    while (whole < n && t[whole].data)
        whole++;
    for (int i = 0; i < n && whole < n; i++) {
        t[i].dtype = t[0].dtype;
        t[i].data = NULL;
        t[i].scale = NULL;
        t[i].block_scale = NULL;
    }
}

/* g:stack(pattern, n, shape [, dtype]): the tensors pattern % 0 .. n - 1 as one value. */
int fl_lua_stack(lua_State *L)
{
    fl_builder *b = fl_lua_check_graph(L);
    const char *pattern = check_name(L, 2), *mark = strstr(pattern, "%d");
    fl_wanted want = {.dtype = opt_dtype(L, 5)};
    lua_Integer n = luaL_checkinteger(L, 3);
    check_shape(L, 4, &want);
    luaL_argcheck(L, mark && strchr(pattern, '%') == mark && !strchr(mark + 1, '%'), 2,
                  "needs one %d");
    luaL_argcheck(L, n >= 1 && n <= MAX_STACK, 3, "out of range");
    bool first = ask(L, b, pattern);
    b->stack.n = 0;
    if (!fl_vec_reserve(&b->stack, (size_t)n))
        return fl_host_nomem(L);
    for (int i = 0; i < (int)n; i++) {
        char name[MAX_NAME + 16];
        fl_error e = {0};
        number_name(pattern, mark, i, name, sizeof name);
        want.name = name;
        if (fl_inventory_take(b->inventory, &want, first, &b->stack.data[i], &e) != FL_OK)
            return fl_host_raise(L, &e);
    }
    make_alike(b->stack.data, (int)n);
    fl_lua_push_value(L, add_const(L, b, pattern, b->stack.data, (int)n));
    return 1;
}

/* g:has(name): is the tensor there?  Without any tensors (a configuration alone): no. */
int fl_lua_has(lua_State *L)
{
    fl_builder *b = fl_lua_check_graph(L);
    lua_pushboolean(L, fl_inventory_has(b->inventory, luaL_checkstring(L, 2)));
    return 1;
}

/* g:size(name): how many elements it has, or nil when that is not known. */
int fl_lua_size(lua_State *L)
{
    fl_builder *b = fl_lua_check_graph(L);
    const fl_tensor_info *info = fl_checkpoint_find(b->inventory->ck, luaL_checkstring(L, 2));
    if (info && info->shape_known)
        lua_pushinteger(L, fl_tensor_elements(&info->tensor));
    else
        lua_pushnil(L);
    return 1;
}

/* g:unused(prefix): tensors whose name begins so are known and may stay unused. */
int fl_lua_unused(lua_State *L)
{
    fl_builder *b = fl_lua_check_graph(L);
    fl_error e = {0};
    if (fl_inventory_unused(b->inventory, luaL_checkstring(L, 2), &e) != FL_OK)
        return fl_host_raise(L, &e);
    return 0;
}
