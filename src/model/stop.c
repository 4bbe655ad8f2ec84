/* The ids that end an answer.  Three places name some of them, and each may lack one that the
 * others have: generation_config.json, config.json (root and text part) and the definition. */
#include "model/model_internal.h"

#include <stdio.h>

enum { MAX_CONFIG_BYTES = 1 << 20, MAX_PATH = 4096 };

static fl_status add_id(fl_model *m, int64_t id, const char *where, fl_error *err)
{
    if (id < 0 || id >= fl_graph_vocab(m->graph))
        return fl_fail(err, FL_CONFIG, "%s: eos_token_id %lld is outside the vocabulary of %lld",
                       where, (long long)id, (long long)fl_graph_vocab(m->graph));
    for (size_t i = 0; i < m->stop_ids.n; i++) {
        if (m->stop_ids.data[i] == id)
            return FL_OK;
    }
    return fl_vec_push(&m->stop_ids, (int32_t)id)
               ? FL_OK
               : fl_fail(err, FL_NOMEM, "no memory for the stop ids");
}

/* eos_token_id: absent, null, an integer or a list of them. */
static fl_status add_json(fl_model *m, const fl_json *object, const char *where, fl_error *err)
{
    const fl_json *v =
        fl_json_is(object, FL_JSON_OBJECT) ? fl_json_get(object, "eos_token_id") : NULL;
    if (!v || fl_json_is(v, FL_JSON_NULL))
        return FL_OK;
    bool list = fl_json_is(v, FL_JSON_ARRAY);
    for (size_t i = 0; i < (list ? fl_json_size(v) : 1); i++) {
        const fl_json *id = list ? fl_json_at(v, i) : v;
        if (!fl_json_is(id, FL_JSON_INT))
            return fl_fail(err, FL_CONFIG, "%s: eos_token_id is %s, expected an integer", where,
                           fl_json_type_name(id));
        FL_TRY(add_id(m, fl_json_int(id), where, err));
    }
    return FL_OK;
}

fl_status fl_model_read_stops(fl_model *m, fl_error *err)
{
    char path[MAX_PATH];
    fl_json *generation = NULL;
    const fl_json *root = fl_checkpoint_config(m->ck);
    int n = snprintf(path, sizeof path, "%s/generation_config.json", fl_checkpoint_dir(m->ck));
    if (n < 0 || n >= (int)sizeof path)
        return fl_fail(err, FL_ARGUMENT, "the path of the model is too long");
    fl_status status = fl_json_read(path, MAX_CONFIG_BYTES, &generation, err);
    if (status != FL_OK && status != FL_NOTFOUND)
        return status;
    if (status == FL_OK) {
        status = add_json(m, generation, "generation_config.json", err);
        fl_json_free(generation);
        FL_TRY(status);
    }
    FL_TRY(add_json(m, root, "config.json", err));
    return add_json(m, fl_json_get(root, "text_config"), "config.json: text_config", err);
}

/* Adds the ids of the names in the definition's `stop` that this vocabulary has. */
static int add_names(lua_State *L)
{
    fl_model *m = lua_touserdata(L, 1);
    fl_definition_push_field(L, "stop", LUA_TTABLE);
    for (lua_Integer i = 1; lua_rawgeti(L, 2, i) == LUA_TSTRING; i++, lua_pop(L, 1)) {
        int32_t id = fl_tokenizer_special(m->tokenizer, lua_tostring(L, -1));
        fl_error e = {0};
        if (id != FL_NO_TOKEN && add_id(m, id, "stop", &e) != FL_OK)
            return fl_host_raise(L, &e);
    }
    return 0;
}

const int32_t *fl_model_stop_ids(fl_model *m, size_t *n)
{
    const fl_tokenizer *t;
    /* Without a tokenizer there are no names; the ids from the files still hold. */
    if (!m->stop_named && fl_model_tokenizer(m, &t, NULL) == FL_OK)
        m->stop_named = fl_host_run(m->definition.host, NULL, add_names, m, NULL) == FL_OK;
    *n = m->stop_ids.n;
    return m->stop_ids.data;
}
