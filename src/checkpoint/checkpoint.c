/* Opening a folder: config.json, then the shard index or the single file, then every shard.
 *
 * The index is a promise about the shards and each promise is checked: a named tensor must be in
 * its shard, and no other shard may hold it.  A tensor that a shard holds and the index does not
 * name is kept (loaders have always taken whole shards), so that it is seen, not lost. */
#define _GNU_SOURCE
#include "checkpoint/checkpoint_internal.h"

#include "base/mem.h"

#include <dirent.h>
#include <errno.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* Enters one tensor of an open shard into the table. */
static fl_status enter(fl_checkpoint *ck, uint32_t shard, const fl_st_entry *src, fl_error *err)
{
    const char *name = fl_checkpoint_strip(src->name);
    bool existing;
    uint32_t at = (uint32_t)ck->entries.n;
    FL_TRY(fl_checkpoint_add(ck, name, shard, &existing, err));
    if (existing)
        (void)fl_strmap_get(&ck->names, name, strlen(name), &at);
    fl_checkpoint_entry *e = &ck->entries.data[at];
    if (e->shard != shard)
        return fl_fail(err, FL_FORMAT, "%s: tensor %.200s belongs to %s",
                       ck->shards.data[shard].file, name, e->info.file);
    if (e->found)
        return fl_fail(err, FL_FORMAT,
                       "%s: tensor %.200s is there twice, with and without 'language_model.'",
                       e->info.file, name);
    e->found = true;
    e->info.tensor = src->tensor;
    e->info.begin = src->begin;
    e->info.end = src->end;
    e->info.shape_known = true;
    ck->bytes += src->end - src->begin;
    return FL_OK;
}

static fl_status open_shard(fl_checkpoint *ck, uint32_t i, fl_open_mode mode, fl_error *err)
{
    fl_shard *s = &ck->shards.data[i];
    const char *path = fl_arena_printf(&ck->arena, "%s/%s", ck->dir, s->file);
    if (!path)
        return fl_fail(err, FL_NOMEM, "%s: no memory to open it", s->file);
    fl_status status =
        access(path, F_OK) != 0
            ? fl_fail(err, FL_NOTFOUND, "%s: the shard is missing from %s", s->file, ck->dir)
            : fl_safetensors_load(path, s->file, &s->st, err);
    if (status == FL_NOTFOUND && mode == FL_OPEN_SURVEY)
        return FL_OK;
    FL_TRY(status);
    for (size_t k = 0; k < s->st->n; k++)
        FL_TRY(enter(ck, i, &s->st->entries[k], err));
    return FL_OK;
}

static fl_status open_shards(fl_checkpoint *ck, fl_open_mode mode, fl_error *err)
{
    for (size_t i = 0; i < ck->shards.n; i++)
        FL_TRY(open_shard(ck, (uint32_t)i, mode, err));
    for (size_t i = 0; i < ck->entries.n; i++) {
        const fl_checkpoint_entry *e = &ck->entries.data[i];
        if (!e->found && ck->shards.data[e->shard].st)
            return fl_fail(err, FL_FORMAT,
                           "%s: tensor %.200s is missing, the index says it is here", e->info.file,
                           e->info.name);
    }
    return FL_OK;
}

static bool is_safetensors(const char *file)
{
    size_t n = strlen(file);
    return file[0] != '.' && n > 12 && strcmp(file + n - 12, ".safetensors") == 0;
}

/* Without an index the folder may hold one safetensors file. */
static fl_status find_single(fl_checkpoint *ck, fl_error *err)
{
    DIR *dir = opendir(ck->dir);
    if (!dir)
        return fl_fail(err, FL_IO, "%s: %s", ck->dir, strerror(errno));
    fl_status s = FL_OK;
    for (struct dirent *d; s == FL_OK && (d = readdir(dir));) {
        if (!is_safetensors(d->d_name))
            continue;
        s = ck->shards.n ? fl_fail(err, FL_FORMAT,
                                   "%s: %s and %s, but no model.safetensors.index.json that says "
                                   "which belong to the model",
                                   ck->dir, ck->shards.data[0].file, d->d_name)
                         : fl_checkpoint_add_shard(ck, d->d_name, err);
    }
    closedir(dir);
    return s;
}

static fl_status open_tensors(fl_checkpoint *ck, fl_open_mode mode, fl_error *err)
{
    const char *index = fl_arena_printf(&ck->arena, "%s/model.safetensors.index.json", ck->dir);
    if (!index)
        return fl_fail(err, FL_NOMEM, "%s: no memory to open it", ck->dir);
    struct stat info;
    if (stat(index, &info) == 0) {
        fl_status s = fl_checkpoint_read_index(ck, index, err);
        if (s == FL_NOTFOUND && mode == FL_OPEN_SURVEY)
            return FL_OK;
        FL_TRY(s);
    } else {
        FL_TRY(find_single(ck, err));
    }
    if (ck->shards.n == 0 && mode == FL_OPEN_DATA)
        return fl_fail(err, FL_NOTFOUND,
                       "%s: holds neither model.safetensors.index.json nor a .safetensors file",
                       ck->dir);
    return open_shards(ck, mode, err);
}

static fl_status read_config(fl_checkpoint *ck, const char *path, fl_error *err)
{
    FL_TRY(fl_json_read(path, FL_MAX_CONFIG_BYTES, &ck->config, err));
    if (!fl_json_is(ck->config, FL_JSON_OBJECT))
        return fl_fail(err, FL_CONFIG, "%s: holds %s, an object is needed", path,
                       fl_json_type_name(ck->config));
    return FL_OK;
}

static fl_status open_path(fl_checkpoint *ck, const char *path, fl_open_mode mode, fl_error *err)
{
    struct stat info;
    if (stat(path, &info) != 0)
        return fl_fail(err, errno == ENOENT ? FL_NOTFOUND : FL_IO, "%s: %s", path, strerror(errno));
    bool folder = S_ISDIR(info.st_mode);
    if (!folder && mode == FL_OPEN_DATA)
        return fl_fail(err, FL_ARGUMENT, "%s: not a folder; name the folder of the checkpoint",
                       path);
    size_t len = strlen(path);
    if (!folder) {
        const char *slash = strrchr(path, '/');
        ck->dir = slash
                      ? fl_arena_strndup(&ck->arena, path, (size_t)(slash - path) + (slash == path))
                      : fl_arena_strdup(&ck->arena, ".");
        return ck->dir ? read_config(ck, path, err)
                       : fl_fail(err, FL_NOMEM, "%s: no memory to open it", path);
    }
    while (len > 1 && path[len - 1] == '/')
        len--;
    ck->dir = fl_arena_strndup(&ck->arena, path, len);
    const char *config = ck->dir ? fl_arena_printf(&ck->arena, "%s/config.json", ck->dir) : NULL;
    if (!config)
        return fl_fail(err, FL_NOMEM, "%s: no memory to open it", path);
    FL_TRY(read_config(ck, config, err));
    return open_tensors(ck, mode, err);
}

fl_status fl_checkpoint_open(const char *path, fl_open_mode mode, fl_checkpoint **out,
                             fl_error *err)
{
    *out = NULL;
    fl_checkpoint *ck = fl_calloc(1, sizeof *ck);
    if (!ck)
        return fl_fail(err, FL_NOMEM, "%s: no memory to open it", path);
    ck->total_size = -1;
    fl_status s = open_path(ck, path, mode, err);
    if (s != FL_OK) {
        fl_checkpoint_close(ck);
        return s;
    }
    *out = ck;
    return FL_OK;
}

void fl_checkpoint_close(fl_checkpoint *ck)
{
    if (!ck)
        return;
    for (size_t i = 0; i < ck->shards.n; i++)
        fl_safetensors_close(ck->shards.data[i].st);
    fl_vec_free(&ck->shards);
    fl_vec_free(&ck->entries);
    fl_strmap_free(&ck->names);
    fl_json_free(ck->config);
    fl_arena_free(&ck->arena);
    fl_free(ck);
}
