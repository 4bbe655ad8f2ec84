/* The table of a checkpoint's tensors and shards: adding to it, asking it. */
#include "checkpoint/checkpoint_internal.h"

#include <string.h>

const char *fl_checkpoint_strip(const char *name)
{
    static const char prefix[] = "language_model.";
    size_t n = sizeof prefix - 1;
    return strncmp(name, prefix, n) == 0 && name[n] ? name + n : name;
}

fl_status fl_checkpoint_add_shard(fl_checkpoint *ck, const char *file, fl_error *err)
{
    if (ck->shards.n == FL_MAX_SHARDS)
        return fl_fail(err, FL_FORMAT, "more than %d shards", FL_MAX_SHARDS);
    fl_shard s = {.file = fl_arena_strdup(&ck->arena, file)};
    if (!s.file || !fl_vec_push(&ck->shards, s))
        return fl_fail(err, FL_NOMEM, "no memory for %zu shards", ck->shards.n + 1);
    return FL_OK;
}

fl_status fl_checkpoint_add(fl_checkpoint *ck, const char *name, uint32_t shard, bool *existing,
                            fl_error *err)
{
    *existing = false;
    if (ck->entries.n == FL_MAX_TENSORS)
        return fl_fail(err, FL_FORMAT, "more than %d tensors", FL_MAX_TENSORS);
    fl_checkpoint_entry e = {.info = {.name = name, .file = ck->shards.data[shard].file},
                             .shard = shard};
    if (!fl_vec_reserve(&ck->entries, 1) ||
        !fl_strmap_put(&ck->names, name, strlen(name), (uint32_t)ck->entries.n, existing))
        return fl_fail(err, FL_NOMEM, "no memory for %zu tensors", ck->entries.n + 1);
    if (!*existing)
        ck->entries.data[ck->entries.n++] = e;
    return FL_OK;
}

const char *fl_checkpoint_dir(const fl_checkpoint *ck)
{
    return ck->dir;
}

const fl_json *fl_checkpoint_config(const fl_checkpoint *ck)
{
    return ck->config;
}

bool fl_checkpoint_has_tensors(const fl_checkpoint *ck)
{
    return ck->entries.n > 0;
}

bool fl_checkpoint_has_data(const fl_checkpoint *ck)
{
    for (size_t i = 0; i < ck->shards.n; i++) {
        if (!ck->shards.data[i].st)
            return false;
    }
    return ck->entries.n > 0;
}

size_t fl_checkpoint_count(const fl_checkpoint *ck)
{
    return ck->entries.n;
}

const fl_tensor_info *fl_checkpoint_at(const fl_checkpoint *ck, size_t i)
{
    return i < ck->entries.n ? &ck->entries.data[i].info : NULL;
}

const fl_tensor_info *fl_checkpoint_find(const fl_checkpoint *ck, const char *name)
{
    uint32_t i;
    return fl_strmap_get(&ck->names, name, strlen(name), &i) ? &ck->entries.data[i].info : NULL;
}

size_t fl_checkpoint_index(const fl_checkpoint *ck, const fl_tensor_info *info)
{
    return (size_t)((const fl_checkpoint_entry *)(const void *)info - ck->entries.data);
}

uint64_t fl_checkpoint_bytes(const fl_checkpoint *ck)
{
    return fl_checkpoint_has_data(ck) || ck->total_size < 0 ? ck->bytes : (uint64_t)ck->total_size;
}

size_t fl_checkpoint_shards(const fl_checkpoint *ck)
{
    return ck->shards.n;
}
