/* model.safetensors.index.json: which shard holds which tensor.
 *
 * The index decides which files are opened, so a file name in it must not lead out of the folder.
 */
#include "checkpoint/checkpoint_internal.h"

#include "base/mem.h"

#include <string.h>

static bool plain_file_name(fl_bytes f)
{
    return f.len > 0 && f.len <= 255 && !memchr(f.data, 0, f.len) && !memchr(f.data, '/', f.len) &&
           strcmp(f.data, ".") != 0 && strcmp(f.data, "..") != 0;
}

/* total_size may be written as a fraction ("1.5e12") by tools that compute it in floats. */
static fl_status read_total(const fl_json *root, int64_t *out, fl_error *err)
{
    const fl_json *meta = fl_json_get(root, "metadata");
    const fl_json *v = fl_json_get(meta, "total_size");
    if (!v)
        return FL_OK;
    double x = fl_json_number(v);
    bool whole = fl_json_is(v, FL_JSON_INT) ||
                 (fl_json_is(v, FL_JSON_REAL) && x >= 0 && x < 9e15 && x == (double)(int64_t)x);
    if (!whole || x < 0)
        return fl_fail(err, FL_FORMAT, "metadata.total_size is not a number of bytes");
    *out = fl_json_is(v, FL_JSON_INT) ? fl_json_int(v) : (int64_t)x;
    return FL_OK;
}

/* *shard: the number of the shard with that file name, which is new or in files. */
static fl_status intern_shard(fl_checkpoint *ck, fl_strmap *files, fl_bytes file, uint32_t *shard,
                              fl_error *err)
{
    if (fl_strmap_get(files, file.data, file.len, shard))
        return FL_OK;
    *shard = (uint32_t)ck->shards.n;
    FL_TRY(fl_checkpoint_add_shard(ck, file.data, err));
    if (!fl_strmap_put(files, ck->shards.data[*shard].file, file.len, *shard, NULL))
        return fl_fail(err, FL_NOMEM, "no memory for %zu shards", ck->shards.n);
    return FL_OK;
}

static fl_status read_map(fl_checkpoint *ck, const fl_json *map, fl_strmap *files, fl_error *err)
{
    if (!fl_json_is(map, FL_JSON_OBJECT))
        return fl_fail(err, FL_FORMAT, "weight_map is %s, an object is needed",
                       fl_json_type_name(map));
    if (fl_json_size(map) == 0)
        return fl_fail(err, FL_FORMAT, "weight_map is empty");
    if (fl_json_size(map) > FL_MAX_TENSORS)
        return fl_fail(err, FL_FORMAT, "weight_map names %zu tensors, at most %d are allowed",
                       fl_json_size(map), FL_MAX_TENSORS);
    for (void *it = fl_json_iter(map); it; it = fl_json_next(map, it)) {
        fl_bytes key = fl_json_iter_key(it);
        const fl_json *v = fl_json_iter_value(it);
        fl_bytes file = fl_json_string(v);
        if (key.len == 0)
            return fl_fail(err, FL_FORMAT, "weight_map holds an empty name");
        if (!fl_json_is(v, FL_JSON_STRING) || !plain_file_name(file))
            return fl_fail(err, FL_FORMAT, "tensor %.200s: its shard '%.100s' is not a file name",
                           key.data, file.data ? file.data : fl_json_type_name(v));
        uint32_t shard;
        bool existing;
        FL_TRY(intern_shard(ck, files, file, &shard, err));
        char *name = fl_arena_strndup(&ck->arena, key.data, key.len);
        if (!name)
            return fl_fail(err, FL_NOMEM, "no memory for the names");
        FL_TRY(fl_checkpoint_add(ck, fl_checkpoint_strip(name), shard, &existing, err));
        if (existing)
            return fl_fail(err, FL_FORMAT,
                           "tensor %.200s is named twice, with and without 'language_model.'",
                           fl_checkpoint_strip(name));
    }
    return FL_OK;
}

fl_status fl_checkpoint_read_index(fl_checkpoint *ck, const char *path, fl_error *err)
{
    fl_json *root;
    fl_strmap files = {0};
    FL_TRY(fl_json_read(path, FL_MAX_INDEX_BYTES, &root, err));
    fl_status s = read_total(root, &ck->total_size, err);
    if (s == FL_OK)
        s = read_map(ck, fl_json_get(root, "weight_map"), &files, err);
    if (s != FL_OK)
        fl_error_prefix(err, "%s", path);
    fl_strmap_free(&files);
    fl_json_free(root);
    return s;
}
