/* The checkpoint room: a folder of safetensors shards with a config.json, opened as downloaded.
 *
 * It owns the mapped files, the table of tensors and the configuration.  It knows no model: names
 * and shapes are what the files say.  Every size from a file is checked before it is used.  Rooms
 * to the right read tensors by name; the bytes stay mapped until fl_checkpoint_close. */
#ifndef FL_CHECKPOINT_H
#define FL_CHECKPOINT_H

#include "checkpoint/json.h"
#include "checkpoint/tensor.h"

typedef struct fl_checkpoint fl_checkpoint;

typedef struct fl_tensor_info {
    const char *name; /* as in the file, without an optional "language_model." prefix */
    const char *file; /* the shard's file name */
    fl_tensor tensor; /* data NULL when the shard is not here (plan-only folder) */
    uint64_t begin,
        end; /* byte range in the data part of the shard; 0, 0 if only the index is known */
    bool shape_known; /* false when only the index (no shard header) is known */
} fl_tensor_info;

typedef enum fl_open_mode {
    FL_OPEN_DATA,  /* every shard that the index names must be here and whole */
    FL_OPEN_SURVEY /* config.json is enough; shards and index are used if present (inspect, plan) */
} fl_open_mode;

/* Opens a folder.  Sources, first that exists: model.safetensors.index.json with its shards (files
 * it does not name are ignored), else a single *.safetensors file.  A tensor that a shard holds and
 * the index does not name is kept; one that the index assigns to another shard is an error.
 * In SURVEY mode `path` may also be a config.json, read alone, and a Git LFS pointer counts as
 * absent; files that are here must be whole in both modes.  Errors name file, tensor and cause. */
FL_MUST_CHECK fl_status fl_checkpoint_open(const char *path, fl_open_mode mode, fl_checkpoint **out,
                                           fl_error *err);
void fl_checkpoint_close(fl_checkpoint *ck); /* NULL is allowed */

const char *fl_checkpoint_dir(const fl_checkpoint *ck);
const fl_json *fl_checkpoint_config(const fl_checkpoint *ck); /* the whole config.json */
bool fl_checkpoint_has_tensors(const fl_checkpoint *ck);      /* an index or shards were found */
bool fl_checkpoint_has_data(const fl_checkpoint *ck);
size_t fl_checkpoint_count(const fl_checkpoint *ck);
const fl_tensor_info *fl_checkpoint_at(const fl_checkpoint *ck, size_t i);
const fl_tensor_info *fl_checkpoint_find(const fl_checkpoint *ck, const char *name); /* or NULL */
/* The i for which fl_checkpoint_at(ck, i) is info, a tensor of this checkpoint. */
size_t fl_checkpoint_index(const fl_checkpoint *ck, const fl_tensor_info *info);
/* The sum over the tensors; while shards are absent what the index says (metadata.total_size). */
uint64_t fl_checkpoint_bytes(const fl_checkpoint *ck);
size_t fl_checkpoint_shards(const fl_checkpoint *ck);

/* Reads every shard once: sizes against metadata.total_size, read errors, NaN among the weights
 * and the scales (E8M0 255).  Stops at the first fault.  progress may be NULL. */
FL_MUST_CHECK fl_status fl_checkpoint_verify(const fl_checkpoint *ck,
                                             void (*progress)(void *ctx, uint64_t done,
                                                              uint64_t total),
                                             void *ctx, fl_error *err);

/* One safetensors file on its own (golden files, dumps).  Same checks as a shard. */
typedef struct fl_safetensors fl_safetensors;
FL_MUST_CHECK fl_status fl_safetensors_open(const char *path, fl_safetensors **out, fl_error *err);
const fl_tensor *fl_safetensors_find(const fl_safetensors *st, const char *name);
size_t fl_safetensors_count(const fl_safetensors *st);
const char *fl_safetensors_name(const fl_safetensors *st, size_t i);
const fl_tensor *fl_safetensors_at(const fl_safetensors *st, size_t i);
void fl_safetensors_close(fl_safetensors *st);

/* Writes tensors to path through a temporary file that is renamed when whole. */
FL_MUST_CHECK fl_status fl_safetensors_write(const char *path, const char *const *names,
                                             const fl_tensor *tensors, size_t n, fl_error *err);

#endif
