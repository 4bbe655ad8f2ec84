/* An open model, as the files of this room see it. */
#ifndef FL_MODEL_MODEL_INTERNAL_H
#define FL_MODEL_MODEL_INTERNAL_H

#include "model/builder_internal.h"
#include "model/definition_internal.h"

struct fl_model {
    const fl_checkpoint *ck;
    fl_definition definition;
    fl_inventory inventory;
    fl_names kinds; /* strings in the inventory's arena */
    fl_graph *graph;
    int64_t max_context;
    uint64_t fingerprint;
    fl_tokenizer *tokenizer; /* NULL until asked for */
    fl_ids stop_ids;         /* from the configuration files; the definition's after first use */
    bool stop_named;         /* the definition's are in */
};

/* The registry key of the chat table of the definition. */
extern const char fl_chat_key[];

/* fingerprint.c */
FL_MUST_CHECK fl_status fl_model_hash(const fl_model *m, const fl_model_options *opts,
                                      uint64_t *out, fl_error *err);
/* stop.c: reads the ids that the configuration files name. */
FL_MUST_CHECK fl_status fl_model_read_stops(fl_model *m, fl_error *err);

#endif
