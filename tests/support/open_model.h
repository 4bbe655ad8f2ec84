/* Opens a checkpoint folder, its model and an engine in one go; any failure fails the test. */
#ifndef FL_TEST_OPEN_MODEL_H
#define FL_TEST_OPEN_MODEL_H

#include "engine/engine.h"

typedef struct opened {
    fl_checkpoint *checkpoint;
    fl_model *model;
    fl_engine *engine;
} opened;

/* The same with the status of the first step that failed; what was opened is in *m either way. */
FL_MUST_CHECK fl_status try_open_model(opened *m, const char *dir, const fl_engine_options *o,
                                       fl_error *err);
void open_model(opened *m, const char *dir, const fl_engine_options *o);
void open_model_kv(opened *m, const char *dir, fl_kv kv, const fl_engine_options *o);
void close_model(opened *m);

/* n token ids of the bundled model, the same for the same seed. */
void draw_text(uint32_t seed, int32_t *ids, int64_t n);

#endif
