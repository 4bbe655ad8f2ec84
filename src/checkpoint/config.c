#include "checkpoint/config.h"

#include <stdio.h>
#include <string.h>

fl_config fl_config_root(const fl_json *object)
{
    return (fl_config){.object = object};
}

static fl_status wrong(const fl_config *c, const char *key, const fl_json *v, const char *needed,
                       fl_error *err)
{
    if (!v)
        return fl_fail(err, FL_CONFIG, "%s%s is missing, %s is needed", c->path, key, needed);
    return fl_fail(err, FL_CONFIG, "%s%s is %s, %s is needed", c->path, key, fl_json_type_name(v),
                   needed);
}

static fl_status get(const fl_config *c, const char *key, fl_json_type type, const char *needed,
                     const fl_json **out, fl_error *err)
{
    *out = fl_json_get(c->object, key);
    return fl_json_is(*out, type) ? FL_OK : wrong(c, key, *out, needed, err);
}

bool fl_config_has(const fl_config *c, const char *key)
{
    const fl_json *v = fl_json_get(c->object, key);
    return v && !fl_json_is(v, FL_JSON_NULL);
}

fl_status fl_config_text(const fl_json *root, fl_config *out, fl_error *err)
{
    if (!fl_json_is(root, FL_JSON_OBJECT))
        return fl_fail(err, FL_CONFIG, "the configuration is %s, an object is needed",
                       fl_json_type_name(root));
    fl_config whole = fl_config_root(root);
    if (fl_config_has(&whole, "text_config"))
        return fl_config_object(&whole, "text_config", out, err);
    *out = whole;
    return FL_OK;
}

fl_status fl_config_object(const fl_config *c, const char *key, fl_config *out, fl_error *err)
{
    fl_config child;
    FL_TRY(get(c, key, FL_JSON_OBJECT, "an object", &child.object, err));
    int n = snprintf(child.path, sizeof child.path, "%s%s.", c->path, key);
    if (n < 0 || (size_t)n >= sizeof child.path)
        return fl_fail(err, FL_CONFIG, "%s%s: key paths may have %zu bytes", c->path, key,
                       sizeof child.path - 2);
    *out = child;
    return FL_OK;
}

fl_status fl_config_int(const fl_config *c, const char *key, int64_t *out, fl_error *err)
{
    const fl_json *v;
    FL_TRY(get(c, key, FL_JSON_INT, "an integer", &v, err));
    *out = fl_json_int(v);
    return FL_OK;
}

fl_status fl_config_float(const fl_config *c, const char *key, double *out, fl_error *err)
{
    const fl_json *v = fl_json_get(c->object, key);
    if (!fl_json_is(v, FL_JSON_INT) && !fl_json_is(v, FL_JSON_REAL))
        return wrong(c, key, v, "a number", err);
    *out = fl_json_number(v);
    return FL_OK;
}

fl_status fl_config_bool(const fl_config *c, const char *key, bool *out, fl_error *err)
{
    const fl_json *v;
    FL_TRY(get(c, key, FL_JSON_BOOL, "true or false", &v, err));
    *out = fl_json_bool(v);
    return FL_OK;
}

fl_status fl_config_string(const fl_config *c, const char *key, fl_bytes *out, fl_error *err)
{
    const fl_json *v;
    FL_TRY(get(c, key, FL_JSON_STRING, "a string", &v, err));
    *out = fl_json_string(v);
    return FL_OK;
}

fl_status fl_config_ints(const fl_config *c, const char *key, const fl_json **out, fl_error *err)
{
    const fl_json *v;
    FL_TRY(get(c, key, FL_JSON_ARRAY, "an array of integers", &v, err));
    for (size_t i = 0; i < fl_json_size(v); i++) {
        if (!fl_json_is(fl_json_at(v, i), FL_JSON_INT))
            return fl_fail(err, FL_CONFIG, "%s%s[%zu] is %s, an integer is needed", c->path, key, i,
                           fl_json_type_name(fl_json_at(v, i)));
    }
    *out = v;
    return FL_OK;
}
