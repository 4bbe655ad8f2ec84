/* The door to a device plugin: a shared library that is looked for beside the program and loaded
 * at run time, so one program serves machines with and without a GPU.
 *
 * The library exports one function, fl_plugin_entry, which returns this description.  It is made
 * from the same sources as the program and shares its structures (op.h, step.h, device.h); layout
 * guards against a mixture of two builds. */
#ifndef FL_OPS_PLUGIN_H
#define FL_OPS_PLUGIN_H

#include "graph/device.h"

typedef struct fl_plugin {
    uint64_t layout;     /* FL_PLUGIN_LAYOUT, first so that any two builds can compare it */
    const char *version; /* of Firstlight */
    const char *kind;    /* "cuda" */
    /* Opens the device of this number, which need not exist. */
    fl_status (*open)(int ordinal, fl_device **out, fl_error *err);
} fl_plugin;

typedef const fl_plugin *(*fl_plugin_entry_fn)(void);
#define FL_PLUGIN_ENTRY "fl_plugin_entry"

/* Changes when a structure changes size; the number in front when only the meaning does. */
#define FL_PLUGIN_LAYOUT                                                                           \
    ((uint64_t)1 << 48 | (uint64_t)sizeof(fl_kernel) << 36 | (uint64_t)sizeof(fl_arg) << 24 |      \
     (uint64_t)(sizeof(fl_step) + sizeof(fl_seq_rows) + sizeof(fl_call)) << 12 |                   \
     (uint64_t)(sizeof(fl_device) + sizeof(fl_device_fn) + sizeof(fl_limits) + sizeof(fl_attr)))

/* Loads a library once and for all: it stays until the program ends. */
FL_MUST_CHECK fl_status fl_plugin_load(const char *path, const fl_plugin **out, fl_error *err);

/* Runs a kernel of each family on a device on which nothing was reserved yet, and holds it against
 * the reference; the device can then only be closed.  FL_DEVICE when a result is wrong. */
FL_MUST_CHECK fl_status fl_device_self_test(fl_device *d, fl_error *err);

#endif
