/* Where model files come from: the folder of definitions, the search for the one that matches, and
 * include(). */
#define _GNU_SOURCE
#include "model/definition_internal.h"

#include "base/file.h"
#include "base/mem.h"
#include "model/model.h"

#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

enum { MAX_SOURCE = 1 << 20, MAX_FILES = 256, MAX_PATH = 4096 };

static const char definition_key[] = "firstlight.definition";

fl_status fl_models_dir(char *out, size_t size, fl_error *err)
{
    char exe[MAX_PATH], dir[MAX_PATH];
    struct stat st;
    ssize_t n = readlink("/proc/self/exe", exe, sizeof exe - 1);
    exe[n < 0 ? 0 : n] = 0;
    for (int i = 0; i < 2; i++) {
        char *slash = strrchr(exe, '/');
        if (slash)
            *slash = 0;
    }
    const char *found = FL_SOURCE_MODELS_DIR;
    if (snprintf(dir, sizeof dir, "%s/share/firstlight/models", exe) < (int)sizeof dir &&
        stat(dir, &st) == 0 && S_ISDIR(st.st_mode))
        found = dir;
    if (snprintf(out, size, "%s", found) >= (int)size)
        return fl_fail(err, FL_ARGUMENT, "%s: the path is too long", found);
    return FL_OK;
}

/* ---- loading ---- */

/* Loads a file from disk and pushes what it returns.  The text goes to the host's sources, which
 * the fingerprint covers. */
static void load_file(lua_State *L, const char *path)
{
    fl_host *h = fl_host_of(L);
    const char *slash = strrchr(path, '/');
    size_t start = h->sources.n;
    fl_error e = {0};
    if (fl_file_read(path, MAX_SOURCE, &h->sources, &e) != FL_OK)
        fl_host_raise(L, &e);
    fl_host_load(L, slash ? slash + 1 : path, h->sources.data + start, h->sources.n - start);
}

/* include("name"): the value of models_dir/name.lua. */
static int include(lua_State *L)
{
    size_t len;
    const char *name = luaL_checklstring(L, 1, &len);
    const char *dir = fl_host_of(L)->models_dir;
    static const char letters[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_";
    if (!len || strspn(name, letters) != len || !dir)
        return luaL_error(L, "include: \"%s\" is not the name of a model file", name);
    load_file(L, lua_pushfstring(L, "%s/%s.lua", dir, name));
    return 1;
}

void fl_definition_push(lua_State *L)
{
    lua_getfield(L, LUA_REGISTRYINDEX, definition_key);
}

void fl_definition_push_field(lua_State *L, const char *field, int type)
{
    fl_definition_push(L);
    if (lua_getfield(L, -1, field) != type)
        luaL_error(L, "the model definition has no %s \"%s\"", lua_typename(L, type), field);
    lua_remove(L, -2);
}

typedef struct load {
    const char *path;
    const fl_json *root;
    bool given, matches; /* given: named by the caller, so match is not asked */
    char family[64];
} load;

/* Loads the file and asks whether it is for this configuration. */
static int load_and_match(lua_State *L)
{
    load *l = lua_touserdata(L, 1);
    lua_pushcfunction(L, include);
    lua_setglobal(L, "include");
    load_file(L, l->path);
    if (!lua_istable(L, -1) && !l->given)
        return 0;
    if (!lua_istable(L, -1))
        return luaL_error(L, "%s returns a %s, expected a table", l->path, luaL_typename(L, -1));
    lua_setfield(L, LUA_REGISTRYINDEX, definition_key);
    fl_definition_push(L);
    if (lua_getfield(L, -1, "match") != LUA_TFUNCTION && !l->given)
        return 0; /* a file for include() */
    fl_definition_push_field(L, "name", LUA_TSTRING);
    snprintf(l->family, sizeof l->family, "%s", lua_tostring(L, -1));
    lua_pop(L, 1);
    l->matches = l->given;
    if (!l->given) {
        fl_config root = fl_config_root(l->root);
        fl_lua_push_config(L, &root);
        lua_call(L, 1, 1);
        l->matches = lua_toboolean(L, -1);
    }
    return 0;
}

/* Tries one file; d is open afterwards if it matches. */
static fl_status try_file(fl_definition *d, load *l, fl_error *err)
{
    fl_host_limits limits = fl_host_limits_default();
    fl_host_task task = {.refusal = FL_CONFIG};
    FL_TRY(fl_host_create(&limits, &d->host, err));
    d->host->models_dir = d->models_dir;
    fl_status status = fl_host_run(d->host, &task, load_and_match, l, err);
    if (status == FL_OK && l->matches) {
        d->family = fl_strdup(l->family);
        if (d->family)
            return FL_OK;
        status = fl_fail(err, FL_NOMEM, "no memory for the model definition");
    }
    fl_host_destroy(d->host);
    d->host = NULL;
    return status;
}

/* ---- finding ---- */

static int is_lua(const struct dirent *entry)
{
    size_t n = strlen(entry->d_name);
    return n > 4 && entry->d_name[0] != '.' && strcmp(entry->d_name + n - 4, ".lua") == 0;
}

static int by_name(const void *a, const void *b)
{
    return strcmp(*(char *const *)a, *(char *const *)b);
}

fl_status fl_definition_files(const char *dir, fl_arena *arena, char ***paths, int *n,
                              fl_error *err)
{
    *n = 0;
    *paths = fl_arena_array(arena, MAX_FILES, sizeof **paths);
    DIR *d = *paths ? opendir(dir) : NULL;
    if (*paths && !d)
        return fl_fail(err, FL_NOTFOUND, "%s: the folder of model definitions cannot be read", dir);
    bool ok = *paths != NULL;
    for (const struct dirent *entry; ok && *n < MAX_FILES && (entry = readdir(d)) != NULL;) {
        if (!is_lua(entry))
            continue;
        (*paths)[*n] = fl_arena_printf(arena, "%s/%s", dir, entry->d_name);
        ok = (*paths)[(*n)++] != NULL;
    }
    if (d)
        closedir(d);
    if (!ok)
        return fl_fail(err, FL_NOMEM, "no memory for the list of model definitions");
    qsort(*paths, (size_t)*n, sizeof **paths, by_name);
    return FL_OK;
}

static fl_status find(fl_definition *d, const fl_json *root, fl_arena *arena, fl_error *err)
{
    char **paths;
    int n;
    FL_TRY(fl_definition_files(d->models_dir, arena, &paths, &n, err));
    for (int i = 0; i < n; i++) {
        load l = {.path = paths[i], .root = root};
        FL_TRY(try_file(d, &l, err));
        if (l.matches)
            return FL_OK;
    }
    const fl_json *type = fl_json_get(root, "model_type");
    fl_bytes name = fl_json_is(type, FL_JSON_STRING) ? fl_json_string(type) : (fl_bytes){"", 0};
    return fl_fail(
        err, FL_UNSUPPORTED,
        "no model definition in %s is for model_type \"%.*s\"; inspect says what it needs, "
        "--model-def names a file",
        d->models_dir, (int)(name.len < 80 ? name.len : 80), name.data);
}

fl_status fl_definition_open(const char *file, const char *models_dir, const fl_json *root,
                             fl_definition *out, fl_error *err)
{
    fl_arena arena = {0};
    fl_definition d = {.models_dir = fl_strdup(models_dir)};
    load l = {.path = file, .root = root, .given = true};
    fl_status status;
    if (!d.models_dir)
        status = fl_fail(err, FL_NOMEM, "no memory for the model definition");
    else if (file)
        status = try_file(&d, &l, err);
    else
        status = find(&d, root, &arena, err);
    fl_arena_free(&arena);
    if (status != FL_OK)
        fl_definition_close(&d);
    *out = d;
    return status;
}

void fl_definition_close(fl_definition *d)
{
    fl_host_destroy(d->host);
    fl_free(d->models_dir);
    fl_free(d->family);
    *d = (fl_definition){0};
}
