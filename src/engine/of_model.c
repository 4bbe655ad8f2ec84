/* The engine of a model.  The rest of the room knows graphs only, which is how it is tested. */
#include "engine/engine_internal.h"

fl_status fl_engine_create(const fl_model *m, const fl_engine_options *o, fl_engine **out,
                           fl_error *err)
{
    fl_engine_options own = *o;
    own.fingerprint = fl_model_fingerprint(m);
    return fl_engine_create_graph(fl_model_graph(m), fl_model_max_context(m), &own, out, err);
}

static int64_t weights(const fl_model *m)
{
    int64_t bytes = 0;
    for (size_t i = 0; i < fl_model_parts(m); i++)
        bytes += fl_model_part(m, i).bytes;
    return bytes - fl_graph_saved_bytes(fl_model_graph(m));
}

fl_status fl_engine_predict(const fl_model *m, const fl_engine_options *o, fl_engine_memory *out,
                            fl_error *err)
{
    FL_TRY(fl_engine_predict_graph(fl_model_graph(m), fl_model_max_context(m), o, out, err));
    out->weights = weights(m);
    out->total += out->weights;
    return FL_OK;
}

fl_status fl_engine_fit(const fl_model *m, int64_t ram, fl_engine_options *o, fl_error *err)
{
    return fl_engine_fit_graph(fl_model_graph(m), fl_model_max_context(m), weights(m), ram, o, err);
}
