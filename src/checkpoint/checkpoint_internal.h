/* What the files of this room share: one mapped safetensors file, and the checkpoint made of them.
 */
#ifndef FL_CHECKPOINT_INTERNAL_H
#define FL_CHECKPOINT_INTERNAL_H

#include "base/arena.h"
#include "base/strmap.h"
#include "checkpoint/checkpoint.h"

/* The limits of a hostile file.  K3 whole has 497,220 tensors in 96 shards and a 56 MB index. */
enum {
    FL_MAX_CONFIG_BYTES = 16 << 20,
    FL_MAX_INDEX_BYTES = 512 << 20,
    FL_MAX_HEADER_BYTES = 100 << 20, /* the same as the safetensors library */
    FL_MAX_TENSORS = 4 << 20,
    FL_MAX_SHARDS = 4096
};

typedef struct fl_st_entry {
    const char *name; /* as in the file; in the arena */
    uint64_t begin, end;
    fl_tensor tensor;
} fl_st_entry;

struct fl_safetensors {
    const uint8_t *map;
    uint64_t size, data_start; /* bytes of the file; where the data part begins */
    fl_st_entry *entries;      /* in the order of their bytes, which they cover without a hole */
    size_t n;
    fl_strmap names; /* to the index in entries; only in files opened on their own */
    fl_arena arena;
};

/* Opens the file at path; messages call it label.  FL_NOTFOUND also when a Git LFS pointer lies in
 * its place. */
FL_MUST_CHECK fl_status fl_safetensors_load(const char *path, const char *label,
                                            fl_safetensors **out, fl_error *err);

/* Fills entries, n and arena from the mapped header; label is not in the messages yet. */
FL_MUST_CHECK fl_status fl_safetensors_header(fl_safetensors *st, fl_error *err);

typedef struct fl_shard {
    const char *file;
    fl_safetensors *st; /* NULL when it is not here */
} fl_shard;

typedef struct fl_checkpoint_entry {
    fl_tensor_info info; /* first: fl_checkpoint_index relies on it */
    uint32_t shard;
    bool found; /* its shard has it */
} fl_checkpoint_entry;

struct fl_checkpoint {
    const char *dir;
    fl_json *config;
    FL_VEC(fl_shard) shards;
    FL_VEC(fl_checkpoint_entry) entries;
    fl_strmap names;    /* to the index in entries */
    uint64_t bytes;     /* sum over the tensors whose shape is known */
    int64_t total_size; /* of the index's metadata; -1 if it does not say */
    fl_arena arena;     /* names, file names, dir */
};

/* Reads the shard index at path: adds its shards and names, all without shape.  FL_NOTFOUND when
 * a Git LFS pointer lies in its place. */
FL_MUST_CHECK fl_status fl_checkpoint_read_index(fl_checkpoint *ck, const char *path,
                                                 fl_error *err);
/* Adds a shard that is not open yet; file is copied. */
FL_MUST_CHECK fl_status fl_checkpoint_add_shard(fl_checkpoint *ck, const char *file, fl_error *err);
/* Adds a tensor without shape under its stripped name, which must live as long as ck; *existing
 * says that the name is there already, and nothing was added. */
FL_MUST_CHECK fl_status fl_checkpoint_add(fl_checkpoint *ck, const char *name, uint32_t shard,
                                          bool *existing, fl_error *err);
/* The name without the optional prefix of multimodal checkpoints. */
const char *fl_checkpoint_strip(const char *name);

#endif
