/* The inventory: which tensors a definition asked for, and what the checkpoint says to each.
 *
 * A tensor that is not there or has other dims does not stop the building; it is written down, the
 * value gets the declared type without data, and the caller reports all of them together. */
#ifndef FL_MODEL_INVENTORY_INTERNAL_H
#define FL_MODEL_INVENTORY_INTERNAL_H

#include "base/arena.h"
#include "base/strmap.h"
#include "model/model.h"

typedef struct fl_wanted {
    const char *name; /* exactly as in the checkpoint */
    fl_dtype dtype;   /* what to assume when the checkpoint does not say */
    int ndim;
    int64_t dim[FL_MAX_DIMS];
} fl_wanted;

typedef FL_VEC(const char *) fl_names;

typedef struct fl_inventory {
    const fl_checkpoint *ck;
    fl_arena arena;
    bool *used;              /* by index of the checkpoint's tensors */
    fl_names missing, wrong; /* wrong: sentences */
    fl_names unused;         /* prefixes of tensors that may stay unused */
    fl_names unknown;
    FL_VEC(fl_part) parts;
    size_t part; /* where tensors are counted now */
} fl_inventory;

FL_MUST_CHECK fl_status fl_inventory_open(fl_inventory *v, const fl_checkpoint *ck, fl_error *err);
void fl_inventory_free(fl_inventory *v);

/* Tensors asked for from now on belong to this part. */
FL_MUST_CHECK fl_status fl_inventory_part(fl_inventory *v, const char *name, fl_error *err);
FL_MUST_CHECK fl_status fl_inventory_unused(fl_inventory *v, const char *prefix, fl_error *err);

/* Is X there: as itself or, for X ending in ".weight", as an MXFP4 pair? */
bool fl_inventory_has(const fl_inventory *v, const char *name);

/* The tensor a definition wants, in the shape it wants.  Dims of 1 do not count when shapes are
 * compared, and a vector matches any shape of as many elements.  count: add it to its part (false
 * when the name was asked for before). */
FL_MUST_CHECK fl_status fl_inventory_take(fl_inventory *v, const fl_wanted *want, bool count,
                                          fl_tensor *out, fl_error *err);

/* After building: finds the tensors that nothing asked for, and fails when one has wrong dims or
 * (need_all) is missing, naming the first few. */
FL_MUST_CHECK fl_status fl_inventory_close(fl_inventory *v, bool need_all, fl_error *err);

#endif
