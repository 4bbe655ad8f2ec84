/* The header of a safetensors file: 8 bytes of length, JSON, then the data part.
 *
 * Nothing here is taken on trust.  A tensor is accepted when its dims times its element size are
 * exactly its byte range, the range lies in the file, and it is aligned so that kernels may read
 * it in place.  All ranges together must cover the data part exactly: the format forbids overlaps
 * and holes, so one sort proves both. */
#include "checkpoint/checkpoint_internal.h"

#include "base/mem.h"

#include <stdlib.h>
#include <string.h>

/* Finds where header and data lie.  The length is compared before it is added to anything. */
static fl_status find_data(fl_safetensors *st, fl_error *err)
{
    if (st->size < 8)
        return fl_fail(err, FL_FORMAT, "has %llu bytes, too few for a safetensors file",
                       (unsigned long long)st->size);
    uint64_t len;
    memcpy(&len, st->map, sizeof len);
    if (len > st->size - 8)
        return fl_fail(err, FL_FORMAT,
                       "the header should have %llu bytes, but only %llu follow: a truncated "
                       "download or not a safetensors file",
                       (unsigned long long)len, (unsigned long long)st->size - 8);
    if (len > FL_MAX_HEADER_BYTES)
        return fl_fail(err, FL_FORMAT, "the header has %llu bytes, at most %d are allowed",
                       (unsigned long long)len, FL_MAX_HEADER_BYTES);
    if (len < 2 || st->map[8] != '{')
        return fl_fail(err, FL_FORMAT,
                       "the header does not begin with '{': not a safetensors file");
    st->data_start = 8 + len;
    return FL_OK;
}

/* Reads an array of non-negative integers, at most max of them; *n is how many there are. */
static fl_status read_ints(const fl_json *object, const char *key, size_t max, int64_t *out,
                           size_t *n, fl_error *err)
{
    const fl_json *v = fl_json_get(object, key);
    if (!fl_json_is(v, FL_JSON_ARRAY))
        return fl_fail(err, FL_FORMAT, "%s is %s, an array is needed", key, fl_json_type_name(v));
    *n = fl_json_size(v);
    for (size_t i = 0; i < *n && i < max; i++) {
        const fl_json *x = fl_json_at(v, i);
        if (!fl_json_is(x, FL_JSON_INT))
            return fl_fail(err, FL_FORMAT, "%s[%zu] is %s, an integer is needed", key, i,
                           fl_json_type_name(x));
        out[i] = fl_json_int(x);
        if (out[i] < 0)
            return fl_fail(err, FL_FORMAT, "%s[%zu] is %lld, which is negative", key, i,
                           (long long)out[i]);
    }
    return FL_OK;
}

static fl_status read_entry(const fl_safetensors *st, const fl_json *v, fl_st_entry *e,
                            fl_error *err)
{
    if (!fl_json_is(v, FL_JSON_OBJECT))
        return fl_fail(err, FL_FORMAT, "its entry is %s, an object is needed",
                       fl_json_type_name(v));
    const fl_json *dtype = fl_json_get(v, "dtype");
    if (!fl_json_is(dtype, FL_JSON_STRING))
        return fl_fail(err, FL_FORMAT, "dtype is %s, a string is needed", fl_json_type_name(dtype));
    fl_bytes type = fl_json_string(dtype);
    fl_tensor *t = &e->tensor;
    if (!fl_dtype_parse(type.data, type.len, &t->dtype))
        return fl_fail(err, FL_UNSUPPORTED, "dtype %.40s is not supported", type.data);

    size_t n;
    FL_TRY(read_ints(v, "shape", FL_MAX_DIMS, t->shape, &n, err));
    if (n > FL_MAX_DIMS)
        return fl_fail(err, FL_UNSUPPORTED, "shape has %zu dims, at most %d are supported", n,
                       FL_MAX_DIMS);
    t->ndim = (int)n;
    int64_t offsets[2];
    FL_TRY(read_ints(v, "data_offsets", 2, offsets, &n, err));
    if (n != 2)
        return fl_fail(err, FL_FORMAT, "data_offsets has %zu numbers, 2 are needed", n);
    e->begin = (uint64_t)offsets[0];
    e->end = (uint64_t)offsets[1];
    if (e->begin > e->end)
        return fl_fail(err, FL_FORMAT, "data_offsets are inverted: it ends at %lld before %lld",
                       (long long)offsets[1], (long long)offsets[0]);

    char dims[160];
    fl_shape_text(t->shape, t->ndim, dims, sizeof dims);
    int64_t elements;
    if (!fl_shape_elements(t->shape, t->ndim, &elements))
        return fl_fail(err, FL_FORMAT, "shape %s is too large", dims);
    uint64_t size = (uint64_t)fl_dtype_bits(t->dtype) / 8, bytes = (uint64_t)elements * size;
    if (bytes != e->end - e->begin)
        return fl_fail(err, FL_FORMAT, "%s %s needs %llu bytes, data_offsets give %llu",
                       fl_dtype_name(t->dtype), dims, (unsigned long long)bytes,
                       (unsigned long long)(e->end - e->begin));
    if (e->end > st->size - st->data_start)
        return fl_fail(err, FL_FORMAT,
                       "it ends at byte %llu of the file, which has %llu: a truncated download",
                       (unsigned long long)(st->data_start + e->end), (unsigned long long)st->size);
    if ((st->data_start + e->begin) % size != 0 && bytes > 0)
        return fl_fail(err, FL_FORMAT,
                       "it begins at byte %llu of the file, which is not aligned for %s; saving "
                       "the file again with a current safetensors library helps",
                       (unsigned long long)(st->data_start + e->begin), fl_dtype_name(t->dtype));
    t->data = st->map + st->data_start + e->begin;
    return FL_OK;
}

static int by_begin(const void *a, const void *b)
{
    const fl_st_entry *x = a, *y = b;
    if (x->begin != y->begin)
        return x->begin < y->begin ? -1 : 1;
    return (x->end > y->end) - (x->end < y->end);
}

/* After the sort every tensor must begin where the one before it ends. */
static fl_status check_cover(const fl_safetensors *st, fl_error *err)
{
    uint64_t at = 0, size = st->size - st->data_start;
    for (size_t i = 0; i < st->n; i++) {
        const fl_st_entry *e = &st->entries[i];
        if (e->begin < at)
            return fl_fail(err, FL_FORMAT, "tensor %.150s overlaps tensor %.150s", e->name,
                           st->entries[i - 1].name);
        if (e->begin > at)
            return fl_fail(err, FL_FORMAT, "%llu bytes before tensor %.200s belong to no tensor",
                           (unsigned long long)(e->begin - at), e->name);
        at = e->end;
    }
    if (at != size)
        return fl_fail(err, FL_FORMAT, "%llu bytes after the last tensor belong to no tensor",
                       (unsigned long long)(size - at));
    return FL_OK;
}

static fl_status read_entries(fl_safetensors *st, const fl_json *header, fl_error *err)
{
    if (!fl_json_is(header, FL_JSON_OBJECT))
        return fl_fail(err, FL_FORMAT, "the header is %s, an object is needed",
                       fl_json_type_name(header));
    st->entries = fl_realloc_array(NULL, fl_json_size(header), sizeof *st->entries);
    if (!st->entries)
        return fl_fail(err, FL_NOMEM, "no memory for %zu tensors", fl_json_size(header));
    for (void *it = fl_json_iter(header); it; it = fl_json_next(header, it)) {
        fl_bytes name = fl_json_iter_key(it);
        if (strcmp(name.data, "__metadata__") == 0)
            continue;
        if (name.len == 0)
            return fl_fail(err, FL_FORMAT, "a tensor has an empty name");
        fl_st_entry *e = &st->entries[st->n];
        *e = (fl_st_entry){.name = fl_arena_strndup(&st->arena, name.data, name.len)};
        if (!e->name)
            return fl_fail(err, FL_NOMEM, "no memory for the names");
        fl_status s = read_entry(st, fl_json_iter_value(it), e, err);
        if (s != FL_OK) {
            fl_error_prefix(err, "tensor %.200s", name.data);
            return s;
        }
        st->n++;
    }
    qsort(st->entries, st->n, sizeof *st->entries, by_begin);
    return check_cover(st, err);
}

fl_status fl_safetensors_header(fl_safetensors *st, fl_error *err)
{
    fl_json *header;
    FL_TRY(find_data(st, err));
    FL_TRY(fl_json_parse((const char *)st->map + 8, st->data_start - 8, "header", &header, err));
    fl_status s = read_entries(st, header, err);
    fl_json_free(header);
    return s;
}
