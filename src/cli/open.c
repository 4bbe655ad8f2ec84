/* Opening a model, and an engine for it. */
#include "cli/cli.h"

#include <string.h>

void cli_engine_options(const cli_common *o, fl_engine_options *engine)
{
    engine->threads = o->threads;
    engine->max_context = o->context;
    engine->fast = o->fast;
    engine->isa = FL_ISA_COUNT;
    engine->kernels = o->kernels;
    engine->device = o->device ? o->device : "auto";
    engine->device_memory = (int64_t)(o->gpu_memory * 1e9);
}

fl_status cli_open(const char *path, const cli_common *o, fl_open_mode mode,
                   fl_engine_options *engine, cli_model *out, fl_error *err)
{
    *out = (cli_model){0};
    fl_model_options mo = {.definition = o->definition,
                           .layers = o->layers,
                           .dense = o->dense,
                           .trunk_q8 = o->trunk_q8,
                           .kv = o->kv};
    fl_status s = fl_checkpoint_open(path, mode, &out->ck, err);
    if (s == FL_OK)
        s = fl_model_open(out->ck, fl_ops_registry(), &mo, &out->model, err);
    if (s == FL_OK && engine) {
        cli_tuned_options(o, out, engine);
        s = cli_start(o, engine, out, err);
    }
    if (s != FL_OK)
        cli_close(out);
    return s;
}

void cli_tuned_options(const cli_common *o, cli_model *m, fl_engine_options *engine)
{
    cli_engine_options(o, engine);
    cli_load_tuning(m->model, o, engine, &m->tuning);
}

fl_status cli_start(const cli_common *o, const fl_engine_options *engine, cli_model *m,
                    fl_error *err)
{
    FL_TRY(fl_engine_create(m->model, engine, &m->engine, err));
    if (o->device || strncmp(fl_engine_device(m->engine), "cpu", 3) != 0)
        cli_note("device: %s", fl_engine_device(m->engine));
    return FL_OK;
}

void cli_close(cli_model *m)
{
    fl_engine_destroy(m->engine);
    fl_tuning_destroy(m->tuning);
    fl_model_close(m->model);
    fl_checkpoint_close(m->ck);
    *m = (cli_model){0};
}

fl_status cli_run_all(fl_engine *e, fl_error *err)
{
    bool busy = true;
    while (busy)
        FL_TRY(fl_engine_step(e, &busy, err));
    return FL_OK;
}
