/* The record of a tuning, shared by what measures it (tune.c) and what keeps it (tuning.c). */
#ifndef FL_TUNING_INTERNAL_H
#define FL_TUNING_INTERNAL_H

#include "engine/tuning.h"

#include "base/arena.h"

struct fl_tuning {
    fl_arena texts;
    const char *key;
    FL_VEC(fl_tuned_node) nodes;
    fl_choices *choices;
};

/* An empty record for this model and these options. */
FL_MUST_CHECK fl_status fl_tuning_begin(const fl_graph *g, const fl_engine_sizes *z,
                                        fl_tuning **out, fl_error *err);
/* Makes the choices of what `chosen` says. */
FL_MUST_CHECK fl_status fl_tuning_settle(fl_tuning *t, fl_error *err);

#endif
