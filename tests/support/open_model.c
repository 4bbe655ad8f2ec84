#include "support/open_model.h"

#include "ops/ops.h"
#include "support/cmocka_all.h"

static fl_status try_open(opened *m, const char *dir, fl_kv kv, const fl_engine_options *o,
                          fl_error *err)
{
    const fl_model_options mo = {.models_dir = FL_MODELS, .kv = kv};
    *m = (opened){0};
    FL_TRY(fl_checkpoint_open(dir, FL_OPEN_DATA, &m->checkpoint, err));
    FL_TRY(fl_model_open(m->checkpoint, fl_ops_registry(), &mo, &m->model, err));
    return fl_engine_create(m->model, o, &m->engine, err);
}

fl_status try_open_model(opened *m, const char *dir, const fl_engine_options *o, fl_error *err)
{
    return try_open(m, dir, FL_KV_F32, o, err);
}

void open_model_kv(opened *m, const char *dir, fl_kv kv, const fl_engine_options *o)
{
    fl_error err;
    if (try_open(m, dir, kv, o, &err) != FL_OK)
        fail_msg("%s", err.message);
}

void open_model(opened *m, const char *dir, const fl_engine_options *o)
{
    fl_error err;
    if (try_open_model(m, dir, o, &err) != FL_OK)
        fail_msg("%s", err.message);
}

void close_model(opened *m)
{
    fl_engine_destroy(m->engine);
    fl_model_close(m->model);
    fl_checkpoint_close(m->checkpoint);
    *m = (opened){0};
}

void draw_text(uint32_t seed, int32_t *ids, int64_t n)
{
    for (int64_t i = 0; i < n; i++) {
        seed = seed * 1664525u + 1013904223u;
        ids[i] = (int32_t)((seed >> 8) % 3800);
    }
}
