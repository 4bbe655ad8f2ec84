/* A model definition: the host that holds a model file, found by configuration or by name. */
#ifndef FL_MODEL_DEFINITION_INTERNAL_H
#define FL_MODEL_DEFINITION_INTERNAL_H

#include "base/arena.h"
#include "model/lua_internal.h"

typedef struct fl_definition {
    fl_host *host;
    char *models_dir; /* where include() reads */
    char *family;     /* the file's `name` */
} fl_definition;

/* Loads `file`, or (NULL) the first file of models_dir, in order of name, whose match(config) is
 * true.  root is the whole config.json and must outlive the definition. */
FL_MUST_CHECK fl_status fl_definition_open(const char *file, const char *models_dir,
                                           const fl_json *root, fl_definition *out, fl_error *err);
void fl_definition_close(fl_definition *d);

/* The paths of the Lua files in dir, in order of name; *paths and they lie in arena. */
FL_MUST_CHECK fl_status fl_definition_files(const char *dir, fl_arena *arena, char ***paths, int *n,
                                            fl_error *err);

/* Pushes the table that the file returned, or one of its fields.  Raises. */
void fl_definition_push(lua_State *L);
void fl_definition_push_field(lua_State *L, const char *field, int type);

#endif
