/* Opening a model: the definition is found and run, the tensors are reckoned up, the graph is
 * finished. */
#include "model/model_internal.h"

#include "base/mem.h"

const char fl_chat_key[] = "firstlight.chat";

typedef struct build {
    fl_config text, root;
} build;

/* Runs build(g, config), and settles on the chat format. */
static int run_build(lua_State *L)
{
    const build *b = lua_touserdata(L, 1);
    fl_definition_push(L);
    if (lua_getfield(L, -1, "unused") == LUA_TTABLE) {
        for (lua_Integer i = 1; lua_rawgeti(L, -1, i) == LUA_TSTRING; i++, lua_pop(L, 1)) {
            fl_error e = {0};
            if (fl_inventory_unused(fl_host_of(L)->task.builder->inventory, lua_tostring(L, -1),
                                    &e) != FL_OK)
                return fl_host_raise(L, &e);
        }
    }
    lua_settop(L, 1);
    fl_definition_push_field(L, "build", LUA_TFUNCTION);
    fl_lua_push_graph(L);
    fl_lua_push_config(L, &b->text);
    lua_call(L, 2, 0);
    fl_definition_push(L);
    if (lua_getfield(L, -1, "chat") == LUA_TFUNCTION) {
        fl_lua_push_config(L, &b->root);
        lua_call(L, 1, 1);
    }
    lua_setfield(L, LUA_REGISTRYINDEX, fl_chat_key);
    return 0;
}

static fl_status build_graph(fl_model *m, const fl_registry *registry, const fl_model_options *opts,
                             const build *b, fl_error *err)
{
    fl_builder builder = {.graph = m->graph,
                          .registry = registry,
                          .inventory = &m->inventory,
                          .kinds = &m->kinds,
                          .layers = opts->layers,
                          .dense = opts->dense};
    fl_host_task task = {.builder = &builder, .refusal = FL_CONFIG};
    fl_status status = fl_host_run(m->definition.host, &task, run_build, (void *)b, err);
    if (status != FL_OK && err && builder.label[0] && !strstr(err->message, builder.label))
        fl_error_prefix(err, "while building %s", builder.label);
    m->max_context = builder.max_context;
    fl_builder_free(&builder);
    return status;
}

static fl_status open_model(fl_model *m, const fl_registry *registry, const fl_model_options *opts,
                            fl_error *err)
{
    char dir[4096];
    build b = {.root = fl_config_root(fl_checkpoint_config(m->ck))};
    FL_TRY(fl_config_text(b.root.object, &b.text, err));
    if (!opts->models_dir)
        FL_TRY(fl_models_dir(dir, sizeof dir, err));
    FL_TRY(fl_definition_open(opts->definition, opts->models_dir ? opts->models_dir : dir,
                              b.root.object, &m->definition, err));
    FL_TRY(fl_inventory_open(&m->inventory, m->ck, err));
    FL_TRY(fl_graph_create(registry, &m->graph, err));
    FL_TRY(build_graph(m, registry, opts, &b, err));
    FL_TRY(fl_inventory_close(&m->inventory, fl_checkpoint_has_data(m->ck), err));
    if (opts->trunk_q8)
        fl_graph_keep_q8(m->graph);
    fl_graph_keep_cache(m->graph, opts->kv);
    FL_TRY(fl_graph_finish(m->graph, err));
    FL_TRY(fl_model_read_stops(m, err));
    return fl_model_hash(m, opts, &m->fingerprint, err);
}

fl_status fl_model_open(const fl_checkpoint *ck, const fl_registry *registry,
                        const fl_model_options *opts, fl_model **out, fl_error *err)
{
    static const fl_model_options none = {0};
    *out = NULL;
    fl_model *m = fl_calloc(1, sizeof *m);
    if (!m)
        return fl_fail(err, FL_NOMEM, "no memory for the model");
    m->ck = ck;
    fl_status status = open_model(m, registry, opts ? opts : &none, err);
    if (status != FL_OK) {
        fl_error_prefix(err, "%s", fl_checkpoint_dir(ck));
        fl_model_close(m);
        return status;
    }
    *out = m;
    return FL_OK;
}

void fl_model_close(fl_model *m)
{
    if (!m)
        return;
    fl_definition_close(&m->definition);
    fl_tokenizer_close(m->tokenizer);
    fl_graph_destroy(m->graph);
    fl_vec_free(&m->kinds);
    fl_vec_free(&m->stop_ids);
    fl_inventory_free(&m->inventory);
    fl_free(m);
}

const fl_graph *fl_model_graph(const fl_model *m)
{
    return m->graph;
}

const char *fl_model_family(const fl_model *m)
{
    return m->definition.family;
}

int fl_model_layers(const fl_model *m)
{
    return (int)m->kinds.n;
}

const char *fl_model_layer_kind(const fl_model *m, int layer)
{
    return layer >= 0 && (size_t)layer < m->kinds.n ? m->kinds.data[layer] : "";
}

int64_t fl_model_max_context(const fl_model *m)
{
    return m->max_context;
}

uint64_t fl_model_fingerprint(const fl_model *m)
{
    return m->fingerprint;
}

size_t fl_model_missing(const fl_model *m)
{
    return m->inventory.missing.n;
}

const char *fl_model_missing_name(const fl_model *m, size_t i)
{
    return i < m->inventory.missing.n ? m->inventory.missing.data[i] : "";
}

size_t fl_model_unknown(const fl_model *m)
{
    return m->inventory.unknown.n;
}

const char *fl_model_unknown_name(const fl_model *m, size_t i)
{
    return i < m->inventory.unknown.n ? m->inventory.unknown.data[i] : "";
}

size_t fl_model_parts(const fl_model *m)
{
    return m->inventory.parts.n;
}

fl_part fl_model_part(const fl_model *m, size_t i)
{
    return i < m->inventory.parts.n ? m->inventory.parts.data[i] : (fl_part){.name = ""};
}

/* ---- tokenizer ---- */

typedef struct tokenizer_call {
    fl_model *m;
    int64_t vocab_size;
    fl_error *err;
    fl_status status;
} tokenizer_call;

static const char *text_field(lua_State *L, const char *name)
{
    lua_getfield(L, 2, name);
    return luaL_optstring(L, -1, NULL);
}

static int64_t int_field(lua_State *L, const char *name)
{
    lua_getfield(L, 2, name);
    return luaL_optinteger(L, -1, 0);
}

static int open_tokenizer(lua_State *L)
{
    tokenizer_call *c = lua_touserdata(L, 1);
    fl_definition_push_field(L, "tokenizer", LUA_TTABLE);
    fl_tokenizer_spec spec = {.kind = text_field(L, "kind"),
                              .file = text_field(L, "file"),
                              .pattern = text_field(L, "pattern"),
                              .max_chars = int_field(L, "max_chars"),
                              .max_run = int_field(L, "max_run"),
                              .vocab_size = c->vocab_size,
                              .reserved = text_field(L, "reserved")};
    c->status = fl_tokenizer_open(fl_checkpoint_dir(c->m->ck), &spec, &c->m->tokenizer, c->err);
    return 0;
}

fl_status fl_model_tokenizer(fl_model *m, const fl_tokenizer **out, fl_error *err)
{
    *out = NULL;
    if (!m->tokenizer) {
        tokenizer_call c = {.m = m, .vocab_size = fl_graph_vocab(m->graph), .err = err};
        FL_TRY(fl_host_run(m->definition.host, NULL, open_tokenizer, &c, err));
        FL_TRY(c.status);
    }
    *out = m->tokenizer;
    return FL_OK;
}
