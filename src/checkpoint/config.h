/* Typed access to a configuration object.  A getter fails on a missing or ill-typed key and its
 * message gives the key's whole path ("text_config.linear_attn_config.head_dim is missing").
 * An fl_config is a borrowed view: it lives as long as its checkpoint. */
#ifndef FL_CHECKPOINT_CONFIG_H
#define FL_CHECKPOINT_CONFIG_H

#include "checkpoint/json.h"

typedef struct fl_config {
    const fl_json *object;
    char path[120]; /* "" at the root, else "text_config." */
} fl_config;

fl_config fl_config_root(const fl_json *object);
/* The text part of a multimodal configuration: text_config if there is one, else the root. */
FL_MUST_CHECK fl_status fl_config_text(const fl_json *root, fl_config *out, fl_error *err);

bool fl_config_has(const fl_config *c, const char *key); /* present and not null */
FL_MUST_CHECK fl_status fl_config_object(const fl_config *c, const char *key, fl_config *out,
                                         fl_error *err);
FL_MUST_CHECK fl_status fl_config_int(const fl_config *c, const char *key, int64_t *out,
                                      fl_error *err);
FL_MUST_CHECK fl_status fl_config_float(const fl_config *c, const char *key, double *out,
                                        fl_error *err);
FL_MUST_CHECK fl_status fl_config_bool(const fl_config *c, const char *key, bool *out,
                                       fl_error *err);
FL_MUST_CHECK fl_status fl_config_string(const fl_config *c, const char *key, fl_bytes *out,
                                         fl_error *err);
/* An array of integers; *out is a borrowed JSON array, every element checked. */
FL_MUST_CHECK fl_status fl_config_ints(const fl_config *c, const char *key, const fl_json **out,
                                       fl_error *err);

#endif
