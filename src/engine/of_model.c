/* The engine of a model.  The rest of the room knows graphs only, which is how it is tested. */
#include "engine/engine_internal.h"

fl_status fl_engine_create(const fl_model *m, const fl_engine_options *o, fl_engine **out,
                           fl_error *err)
{
    return fl_engine_create_graph(fl_model_graph(m), fl_model_max_context(m), o, out, err);
}

fl_status fl_engine_predict(const fl_model *m, const fl_engine_options *o, fl_engine_memory *out,
                            fl_error *err)
{
    FL_TRY(fl_engine_predict_graph(fl_model_graph(m), fl_model_max_context(m), o, out, err));
    for (size_t i = 0; i < fl_model_parts(m); i++)
        out->weights += fl_model_part(m, i).bytes;
    out->weights -= fl_graph_saved_bytes(fl_model_graph(m));
    out->total += out->weights;
    return FL_OK;
}
