/* Reading members of a request, each with the refusal that names it. */
#define _GNU_SOURCE
#include "server/read_internal.h"

const fl_json *fl_read(const fl_json *o, const char *name)
{
    const fl_json *v = fl_json_is(o, FL_JSON_OBJECT) ? fl_json_get(o, name) : NULL;
    return fl_json_is(v, FL_JSON_NULL) ? NULL : v;
}

bool fl_read_wrong(fl_refusal *r, const char *name, const char *wanted, const fl_json *v)
{
    return fl_refuse(r, 400, "invalid_type", name, "%s must be %s, not %s", name, wanted,
                     fl_json_type_name(v));
}

bool fl_read_typed(const fl_json *o, const char *name, fl_json_type type, const char *wanted,
                   const fl_json **out, fl_refusal *r)
{
    const fl_json *v = fl_read(o, name);
    if (v && !fl_json_is(v, type))
        return fl_read_wrong(r, name, wanted, v);
    if (v)
        *out = v;
    return true;
}

bool fl_read_flag(const fl_json *o, const char *name, bool *out, fl_refusal *r)
{
    const fl_json *v = NULL;
    if (!fl_read_typed(o, name, FL_JSON_BOOL, "true or false", &v, r))
        return false;
    if (v)
        *out = fl_json_bool(v);
    return true;
}

bool fl_read_text(const fl_json *o, const char *name, const char **out, fl_refusal *r)
{
    const fl_json *v = NULL;
    if (!fl_read_typed(o, name, FL_JSON_STRING, "a string", &v, r))
        return false;
    if (v)
        *out = fl_json_string(v).data;
    return true;
}

bool fl_read_real(const fl_json *o, const char *name, double low, double high, float *out,
                  fl_refusal *r)
{
    const fl_json *v = fl_read(o, name);
    if (!v)
        return true;
    if (!fl_json_is(v, FL_JSON_INT) && !fl_json_is(v, FL_JSON_REAL))
        return fl_read_wrong(r, name, "a number", v);
    double x = fl_json_number(v);
    if (!(x >= low && x <= high))
        return fl_refuse(r, 400, "invalid_value", name, "%s must be from %g to %g, not %g", name,
                         low, high, x);
    *out = (float)x;
    return true;
}

bool fl_read_int(const fl_json *o, const char *name, int64_t low, int64_t high, int64_t *out,
                 fl_refusal *r)
{
    const fl_json *v = NULL;
    if (!fl_read_typed(o, name, FL_JSON_INT, "an integer", &v, r))
        return false;
    if (!v)
        return true;
    int64_t x = fl_json_int(v);
    if (x < low || x > high)
        return fl_refuse(r, 400, "invalid_value", name, "%s must be from %lld to %lld, not %lld",
                         name, (long long)low, (long long)high, (long long)x);
    *out = x;
    return true;
}

bool fl_is_text(const fl_json *v, const char *text)
{
    return fl_json_is(v, FL_JSON_STRING) && strcmp(fl_json_string(v).data, text) == 0;
}
