/* Matching the tensors that a definition wants with those that are there.  Nothing is trusted: data
 * is handed on only when type and shape are what was asked for. */
#include "model/inventory_internal.h"

#include "base/mem.h"

#include <stdio.h>
#include <string.h>

enum { SHOWN = 4 }; /* names in a message; the rest is counted */

static fl_status nomem(fl_error *err)
{
    return fl_fail(err, FL_NOMEM, "no memory for the table of tensors");
}

fl_status fl_inventory_open(fl_inventory *v, const fl_checkpoint *ck, fl_error *err)
{
    *v = (fl_inventory){.ck = ck};
    v->used = fl_calloc(fl_checkpoint_count(ck), sizeof *v->used);
    return v->used ? FL_OK : nomem(err);
}

void fl_inventory_free(fl_inventory *v)
{
    fl_free(v->used);
    fl_vec_free(&v->missing);
    fl_vec_free(&v->wrong);
    fl_vec_free(&v->unused);
    fl_vec_free(&v->unknown);
    fl_vec_free(&v->parts);
    fl_arena_free(&v->arena);
    *v = (fl_inventory){0};
}

static bool keep(fl_inventory *v, fl_names *list, const char *text)
{
    const char *own = fl_arena_strdup(&v->arena, text);
    return own && fl_vec_push(list, own);
}

fl_status fl_inventory_unused(fl_inventory *v, const char *prefix, fl_error *err)
{
    return keep(v, &v->unused, prefix) ? FL_OK : nomem(err);
}

fl_status fl_inventory_part(fl_inventory *v, const char *name, fl_error *err)
{
    for (v->part = 0; v->part < v->parts.n; v->part++) {
        if (strcmp(v->parts.data[v->part].name, name) == 0)
            return FL_OK;
    }
    fl_part part = {.name = fl_arena_strdup(&v->arena, name)};
    return part.name && fl_vec_push(&v->parts, part) ? FL_OK : nomem(err);
}

/* ---- one tensor ---- */

/* The other part of X.weight, or one of its two parts.  The suffix follows the name. */
static const fl_tensor_info *find_half(const fl_inventory *v, const char *name, const char *suffix)
{
    char half[512];
    size_t n = strlen(name);
    if (n < 7 || strcmp(name + n - 7, ".weight") != 0 ||
        snprintf(half, sizeof half, "%s%s", name, suffix) >= (int)sizeof half)
        return NULL;
    return fl_checkpoint_find(v->ck, half);
}

bool fl_inventory_has(const fl_inventory *v, const char *name)
{
    return fl_checkpoint_find(v->ck, name) ||
           (find_half(v, name, "_packed") && find_half(v, name, "_scale"));
}

static void mark(fl_inventory *v, const fl_tensor_info *info)
{
    v->used[fl_checkpoint_index(v->ck, info)] = true;
}

static int64_t elements(const int64_t *dim, int ndim)
{
    int64_t n = 1;
    for (int i = 0; i < ndim; i++) {
        if (__builtin_mul_overflow(n, dim[i], &n))
            return -1;
    }
    return n;
}

static int drop_ones(const int64_t *dim, int ndim, int64_t *out)
{
    int n = 0;
    for (int i = 0; i < ndim; i++) {
        if (dim[i] != 1)
            out[n++] = dim[i];
    }
    return n;
}

static bool shape_fits(const fl_tensor *t, const fl_wanted *want)
{
    int64_t a[FL_MAX_DIMS], b[FL_MAX_DIMS];
    int na = drop_ones(t->shape, t->ndim, a), nb = drop_ones(want->dim, want->ndim, b);
    if (na == nb && memcmp(a, b, (size_t)na * sizeof *a) == 0)
        return true;
    return (na <= 1 || nb <= 1) && elements(a, na) == elements(b, nb);
}

static bool is_float(fl_dtype dtype)
{
    return dtype == FL_F32 || dtype == FL_BF16 || dtype == FL_F16;
}

static fl_status note_wrong(fl_inventory *v, const fl_tensor_info *info, const char *types,
                            const int64_t *dim, int ndim, fl_error *err)
{
    char found[128], expected[128], text[600];
    snprintf(text, sizeof text, "%s in %s is %s %s, expected %s %s", info->name, info->file,
             fl_dtype_name(info->tensor.dtype),
             fl_shape_text(info->tensor.shape, info->tensor.ndim, found, sizeof found), types,
             fl_shape_text(dim, ndim, expected, sizeof expected));
    return keep(v, &v->wrong, text) ? FL_OK : nomem(err);
}

static fl_status take_plain(fl_inventory *v, const fl_tensor_info *info, const fl_wanted *want,
                            fl_tensor *out, fl_error *err)
{
    mark(v, info);
    if (!info->shape_known) {
        out->dtype = want->dtype >= FL_MXFP4 ? FL_BF16 : want->dtype;
        return FL_OK;
    }
    if (!is_float(info->tensor.dtype) || !shape_fits(&info->tensor, want))
        return note_wrong(v, info, "F32, BF16 or F16", want->dim, want->ndim, err);
    out->dtype = info->tensor.dtype;
    out->data = info->tensor.data;
    return FL_OK;
}

static fl_status check_half(fl_inventory *v, const fl_tensor_info *info, const fl_wanted *want,
                            int64_t per, bool *good, fl_error *err)
{
    int64_t dim[2] = {want->dim[0], want->dim[1] / per};
    const fl_tensor *t = &info->tensor;
    mark(v, info);
    *good = want->ndim == 2 && want->dim[1] % FL_MX_GROUP == 0;
    if (*good && !info->shape_known)
        return FL_OK;
    *good = *good && t->dtype == FL_U8 && t->ndim == 2 && memcmp(t->shape, dim, sizeof dim) == 0;
    return *good ? FL_OK : note_wrong(v, info, "U8", dim, 2, err);
}

static fl_status take_pair(fl_inventory *v, const fl_tensor_info *packed,
                           const fl_tensor_info *scale, const fl_wanted *want, fl_tensor *out,
                           fl_error *err)
{
    bool good, good_scale;
    FL_TRY(check_half(v, packed, want, 2, &good, err));
    FL_TRY(check_half(v, scale, want, FL_MX_GROUP, &good_scale, err));
    out->dtype = FL_MXFP4;
    if (good && good_scale && packed->tensor.data && scale->tensor.data) {
        out->data = packed->tensor.data;
        out->scale = scale->tensor.data;
    }
    return FL_OK;
}

/* F8_E4M3 values with their factors.  The blocks lie in the matrix as it is stored, so its shape
 * must be the one that is wanted. */
static fl_status take_f8(fl_inventory *v, const fl_tensor_info *values, const fl_tensor_info *scale,
                         const fl_wanted *want, fl_tensor *out, fl_error *err)
{
    const fl_tensor *t = &values->tensor, *s = &scale->tensor;
    bool matrix = want->ndim == 2;
    int64_t dim[2] = {fl_f8_blocks(want->dim[0]), fl_f8_blocks(want->dim[matrix ? 1 : 0])};
    mark(v, values);
    mark(v, scale);
    out->dtype = FL_F8_BLOCK;
    if (!matrix || (values->shape_known && (t->dtype != FL_F8_E4M3 || t->ndim != 2 ||
                                            memcmp(t->shape, want->dim, sizeof dim) != 0)))
        return note_wrong(v, values, "F8_E4M3", want->dim, want->ndim, err);
    if (scale->shape_known &&
        (s->dtype != FL_F32 || s->ndim != 2 || memcmp(s->shape, dim, sizeof dim) != 0))
        return note_wrong(v, scale, "F32", dim, 2, err);
    if (t->data && s->data) {
        out->data = t->data;
        out->block_scale = s->data;
    }
    return FL_OK;
}

static fl_status note_missing(fl_inventory *v, const char *name, fl_error *err)
{
    const fl_tensor_info *plain = fl_checkpoint_find(v->ck, name);
    const fl_tensor_info *packed = find_half(v, name, "_packed");
    const char *half = plain                          ? "_scale_inv"
                       : packed                       ? "_scale"
                       : find_half(v, name, "_scale") ? "_packed"
                                                      : "";
    const char *own = fl_arena_printf(&v->arena, "%s%s", name, half);
    if (plain || packed)
        mark(v, plain ? plain : packed);
    return own && fl_vec_push(&v->missing, own) ? FL_OK : nomem(err);
}

fl_status fl_inventory_take(fl_inventory *v, const fl_wanted *want, bool count, fl_tensor *out,
                            fl_error *err)
{
    *out = (fl_tensor){.dtype = want->dtype, .ndim = want->ndim};
    memcpy(out->shape, want->dim, sizeof out->shape);
    const fl_tensor_info *plain = fl_checkpoint_find(v->ck, want->name);
    const fl_tensor_info *packed = plain ? NULL : find_half(v, want->name, "_packed");
    const fl_tensor_info *scale = find_half(v, want->name, plain ? "_scale_inv" : "_scale");
    bool pair = (plain || packed) && scale;
    if (plain && scale)
        FL_TRY(take_f8(v, plain, scale, want, out, err));
    else if (plain && !(plain->shape_known && plain->tensor.dtype == FL_F8_E4M3))
        FL_TRY(take_plain(v, plain, want, out, err));
    else if (packed && scale)
        FL_TRY(take_pair(v, packed, scale, want, out, err));
    else if (count && fl_checkpoint_has_tensors(v->ck))
        FL_TRY(note_missing(v, want->name, err));
    if (count && v->part < v->parts.n) {
        fl_part *part = &v->parts.data[v->part];
        part->tensors += pair ? 2 : 1;
        part->parameters += fl_tensor_elements(out);
        part->bytes += fl_tensor_bytes(out);
    }
    return FL_OK;
}

/* ---- the reckoning ---- */

static bool may_stay_unused(const fl_inventory *v, const char *name)
{
    for (size_t i = 0; i < v->unused.n; i++) {
        if (strncmp(name, v->unused.data[i], strlen(v->unused.data[i])) == 0)
            return true;
    }
    return false;
}

static fl_status report(const fl_names *list, fl_status status, const char *what, fl_error *err)
{
    char text[400] = "";
    size_t at = 0;
    for (size_t i = 0; i < list->n && i < SHOWN && at < sizeof text; i++)
        at +=
            (size_t)snprintf(text + at, sizeof text - at, "%s%.160s", i ? ", " : "", list->data[i]);
    return fl_fail(err, status, "%zu tensor%s %s: %s%s", list->n, list->n > 1 ? "s" : "", what,
                   text, list->n > SHOWN ? ", ..." : "");
}

fl_status fl_inventory_close(fl_inventory *v, bool need_all, fl_error *err)
{
    for (size_t i = 0; i < fl_checkpoint_count(v->ck); i++) {
        const char *name = fl_checkpoint_at(v->ck, i)->name;
        if (!v->used[i] && !may_stay_unused(v, name) && !fl_vec_push(&v->unknown, name))
            return nomem(err);
    }
    if (v->wrong.n)
        return report(&v->wrong, FL_FORMAT, "of another type or shape than config.json says", err);
    if (need_all && v->missing.n)
        return report(&v->missing, FL_NOTFOUND, "missing", err);
    return FL_OK;
}
