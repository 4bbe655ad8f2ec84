/* The fingerprint of a model: what a saved session must agree on.  It covers the configuration,
 * the text of the definition, the options that change the graph, and name, type, shape and place
 * of every tensor. */
#include "model/model_internal.h"

#include <xxhash.h>

static uint64_t add(uint64_t hash, const void *data, size_t len)
{
    return XXH3_64bits_withSeed(data, len, hash);
}

static uint64_t add_int(uint64_t hash, int64_t x)
{
    return add(hash, &x, sizeof x);
}

static uint64_t add_tensor(uint64_t hash, const fl_tensor_info *info)
{
    const fl_tensor *t = &info->tensor;
    hash = add(hash, info->name, strlen(info->name));
    hash = add(hash, info->file, strlen(info->file));
    hash = add_int(hash, (int64_t)info->begin);
    hash = add_int(hash, (int64_t)info->end);
    hash = add_int(hash, (int64_t)t->dtype * (FL_MAX_DIMS + 1) + t->ndim);
    return add(hash, t->shape, (size_t)t->ndim * sizeof *t->shape);
}

fl_status fl_model_hash(const fl_model *m, const fl_model_options *opts, uint64_t *out,
                        fl_error *err)
{
    fl_buf config = {0};
    fl_status status = fl_json_dump(fl_checkpoint_config(m->ck), false, true, &config);
    if (status != FL_OK) {
        fl_vec_free(&config);
        return fl_fail(err, status, "no memory for the fingerprint");
    }
    const fl_buf *sources = &m->definition.host->sources;
    uint64_t hash = add(0, config.data, config.n);
    fl_vec_free(&config);
    hash = add(hash, sources->data, sources->n);
    hash = add_int(hash, (int64_t)m->kinds.n);
    hash = add_int(hash, opts->dense + 2 * opts->trunk_q8 + 4 * (int)opts->kv);
    for (size_t i = 0; i < fl_checkpoint_count(m->ck); i++)
        hash = add_tensor(hash, fl_checkpoint_at(m->ck, i));
    *out = hash;
    return FL_OK;
}
