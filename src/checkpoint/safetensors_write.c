/* Writing a safetensors file, whole or not at all. */
#include "checkpoint/checkpoint_internal.h"

#include "base/file.h"
#include "base/mem.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* One tensor to write: where it is in the caller's arrays. */
typedef struct item {
    size_t at, bytes;
    int bits;
} item;

/* Wide elements first, as the safetensors library does: then every tensor is aligned. */
static int by_width(const void *a, const void *b)
{
    const item *x = a, *y = b;
    if (x->bits != y->bits)
        return y->bits - x->bits;
    return (x->at > y->at) - (x->at < y->at);
}

static bool append(fl_buf *out, const char *text)
{
    return fl_vec_append(out, text, strlen(text));
}

static fl_status check(const char *const *names, const fl_tensor *tensors, size_t n, item *items,
                       fl_error *err)
{
    fl_strmap seen = {0};
    fl_status s = FL_OK;
    for (size_t i = 0; s == FL_OK && i < n; i++) {
        const fl_tensor *t = &tensors[i];
        bool existing;
        int64_t elements;
        if (t->dtype >= FL_MXFP4 || t->ndim < 0 || t->ndim > FL_MAX_DIMS ||
            !fl_shape_elements(t->shape, t->ndim, &elements) || (!t->data && elements > 0))
            s = fl_fail(err, FL_ARGUMENT, "tensor %.200s cannot be written: %s", names[i],
                        t->dtype == FL_MXFP4 ? "MXFP4 is not a type of the format"
                                             : "bad shape or no data");
        else if (!*names[i] || strcmp(names[i], "__metadata__") == 0)
            s = fl_fail(err, FL_ARGUMENT, "'%s' cannot be the name of a tensor", names[i]);
        else if (!fl_strmap_put(&seen, names[i], strlen(names[i]), 0, &existing))
            s = fl_fail(err, FL_NOMEM, "no memory for %zu tensors", n);
        else if (existing)
            s = fl_fail(err, FL_ARGUMENT, "tensor %.200s is given twice", names[i]);
        else
            items[i] = (item){
                .at = i, .bytes = (size_t)fl_tensor_bytes(t), .bits = fl_dtype_bits(t->dtype)};
    }
    fl_strmap_free(&seen);
    return s;
}

/* Appends length and JSON, padded so that the data part begins at a multiple of 8. */
static bool build_header(const char *const *names, const fl_tensor *tensors, const item *items,
                         size_t n, fl_buf *out)
{
    uint64_t at = 0;
    if (!append(out, "01234567{"))
        return false;
    for (size_t i = 0; i < n; i++) {
        const fl_tensor *t = &tensors[items[i].at];
        const char *name = names[items[i].at];
        char text[320], dims[160];
        fl_shape_text(t->shape, t->ndim, dims, sizeof dims);
        snprintf(text, sizeof text, ":{\"dtype\":\"%s\",\"shape\":%s,\"data_offsets\":[%llu,%llu]}",
                 fl_dtype_name(t->dtype), dims, (unsigned long long)at,
                 (unsigned long long)(at + items[i].bytes));
        at += items[i].bytes;
        if ((i && !append(out, ",")) || !fl_json_quote(name, strlen(name), out) ||
            !append(out, text))
            return false;
    }
    if (!append(out, "}"))
        return false;
    while (out->n % 8) {
        if (!append(out, " "))
            return false;
    }
    uint64_t len = out->n - 8;
    memcpy(out->data, &len, sizeof len);
    return true;
}

static fl_status write_file(const char *path, const fl_buf *header, const fl_tensor *tensors,
                            const item *items, size_t n, fl_error *err)
{
    fl_new_file f;
    FL_TRY(fl_new_file_begin(path, 0666, &f, err));
    fl_status s = fl_new_file_write(&f, header->data, header->n, err);
    for (size_t i = 0; s == FL_OK && i < n; i++)
        s = fl_new_file_write(&f, tensors[items[i].at].data, items[i].bytes, err);
    return fl_new_file_end(&f, s, err);
}

fl_status fl_safetensors_write(const char *path, const char *const *names, const fl_tensor *tensors,
                               size_t n, fl_error *err)
{
    fl_arena arena = {0};
    fl_buf header = {0};
    item *items = fl_arena_array(&arena, n, sizeof *items);
    fl_status s = FL_OK;
    if (!items) {
        s = fl_fail(err, FL_NOMEM, "%s: no memory for %zu tensors", path, n);
    } else {
        s = check(names, tensors, n, items, err);
        if (s != FL_OK)
            fl_error_prefix(err, "%s", path);
    }
    if (s == FL_OK) {
        qsort(items, n, sizeof *items, by_width);
        s = build_header(names, tensors, items, n, &header)
                ? write_file(path, &header, tensors, items, n, err)
                : fl_fail(err, FL_NOMEM, "%s: no memory for the header", path);
    }
    fl_vec_free(&header);
    fl_arena_free(&arena);
    return s;
}
