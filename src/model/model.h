/* The model room: a sandboxed Lua host that turns models/NAME.lua and a config.json into a graph, a
 * tokenizer and a chat format.
 *
 * It owns all knowledge of how a family is described; the knowledge itself is in the Lua files.  A
 * Lua file returns { name, match = function(config), tokenizer = {...}, build = function(g,
 * config), chat = {...} }.  It runs without file, process or network access, with an instruction
 * budget and a memory cap; an error names the file, the line and what was being built.
 * docs/internals/model.md describes what a file can call. */
#ifndef FL_MODEL_H
#define FL_MODEL_H

#include "checkpoint/checkpoint.h"
#include "graph/graph.h"
#include "text/tokenizer.h"

typedef struct fl_model fl_model;

typedef struct fl_model_options {
    const char *definition; /* a Lua file to use; NULL: the first in models_dir that matches */
    const char *models_dir; /* NULL: fl_models_dir */
    int layers;             /* > 0: build the first `layers` layers only */
    bool dense;             /* ignore sparse-attention selectors */
    bool trunk_q8;          /* keep the weights of products in 8 bits: fl_graph_keep_q8 */
    fl_kv kv;               /* how the paged caches are kept: fl_graph_keep_cache */
} fl_model_options;

/* The folder of model definitions: <prefix>/share/firstlight/models beside the running program, if
 * it exists, else the source tree's. */
FL_MUST_CHECK fl_status fl_models_dir(char *out, size_t size, fl_error *err);

/* Builds and finishes the graph.  The checkpoint must outlive the model.  With a checkpoint opened
 * in SURVEY mode the graph has types but maybe no data.  registry: fl_ops_registry(). */
FL_MUST_CHECK fl_status fl_model_open(const fl_checkpoint *ck, const fl_registry *registry,
                                      const fl_model_options *opts, fl_model **out, fl_error *err);
void fl_model_close(fl_model *m); /* NULL is allowed */

const fl_graph *fl_model_graph(const fl_model *m);
const char *fl_model_family(const fl_model *m); /* the definition's name */
/* Layers built, and the kind of each as the file describes it ("kda + dense"). */
int fl_model_layers(const fl_model *m);
const char *fl_model_layer_kind(const fl_model *m, int layer);
int64_t fl_model_max_context(const fl_model *m);
uint64_t fl_model_fingerprint(const fl_model *m); /* of config, definition and tensor table */

/* Tensors: names the definition asked for that are not there, and names in the checkpoint that
 * nothing asked for.  Missing ones make fl_model_open fail in DATA mode.  A definition may name
 * patterns that it knows and leaves unused ("vision_tower."): those are not unknown. */
size_t fl_model_missing(const fl_model *m);
const char *fl_model_missing_name(const fl_model *m, size_t i);
size_t fl_model_unknown(const fl_model *m);
const char *fl_model_unknown_name(const fl_model *m, size_t i);

/* Bytes and parameters by part ("experts", "attention", "embedding", ...), in fixed order. */
typedef struct fl_part {
    const char *name;
    int64_t tensors, parameters, bytes;
} fl_part;
size_t fl_model_parts(const fl_model *m);
fl_part fl_model_part(const fl_model *m, size_t i);

/* Opens the tokenizer that the definition describes; *out is owned by the model.  Loaded on first
 * use: a folder without one still runs from ids. */
FL_MUST_CHECK fl_status fl_model_tokenizer(fl_model *m, const fl_tokenizer **out, fl_error *err);
/* Ids that end an answer: generation_config.json, config.json and the definition, united. */
const int32_t *fl_model_stop_ids(fl_model *m, size_t *n);

#endif
