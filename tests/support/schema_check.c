#include "support/schema_check.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <math.h>
#include <pcre2.h>
#include <string.h>

static bool of_type(const char *type, const json_t *v)
{
    if (strcmp(type, "null") == 0)
        return json_is_null(v);
    if (strcmp(type, "boolean") == 0)
        return json_is_boolean(v);
    if (strcmp(type, "integer") == 0)
        return json_is_integer(v) ||
               (json_is_real(v) && json_real_value(v) == floor(json_real_value(v)));
    if (strcmp(type, "number") == 0)
        return json_is_number(v);
    if (strcmp(type, "string") == 0)
        return json_is_string(v);
    if (strcmp(type, "array") == 0)
        return json_is_array(v);
    return strcmp(type, "object") == 0 && json_is_object(v);
}

static bool type_fits(const json_t *type, const json_t *v)
{
    if (json_is_string(type))
        return of_type(json_string_value(type), v);
    size_t i;
    json_t *one;
    json_array_foreach(type, i, one)
    {
        if (of_type(json_string_value(one), v))
            return true;
    }
    return false;
}

static int count(const json_t *list, const json_t *root, const json_t *v)
{
    int n = 0;
    for (size_t i = 0; i < json_array_size(list); i++)
        n += schema_accepts(json_array_get(list, i), root, v);
    return n;
}

static bool listed(const json_t *list, const json_t *v)
{
    for (size_t i = 0; i < json_array_size(list); i++) {
        if (json_equal(json_array_get(list, i), v))
            return true;
    }
    return false;
}

static bool matches(const char *pattern, const char *text)
{
    int code;
    PCRE2_SIZE at;
    pcre2_code *re =
        pcre2_compile((PCRE2_SPTR)pattern, PCRE2_ZERO_TERMINATED, PCRE2_UTF, &code, &at, NULL);
    pcre2_match_data *data = re ? pcre2_match_data_create_from_pattern(re, NULL) : NULL;
    bool found = data && pcre2_match(re, (PCRE2_SPTR)text, strlen(text), 0, 0, data, NULL) >= 0;
    pcre2_match_data_free(data);
    pcre2_code_free(re);
    return found;
}

static size_t characters(const char *s)
{
    size_t n = 0;
    for (; *s; s++)
        n += ((unsigned char)*s & 0xc0) != 0x80;
    return n;
}

static bool string_fits(const json_t *s, const json_t *v)
{
    const char *text = json_string_value(v);
    json_t *min = json_object_get(s, "minLength"), *max = json_object_get(s, "maxLength");
    json_t *pattern = json_object_get(s, "pattern");
    return !(min && characters(text) < (size_t)json_number_value(min)) &&
           !(max && characters(text) > (size_t)json_number_value(max)) &&
           !(pattern && !matches(json_string_value(pattern), text));
}

static bool number_fits(const json_t *s, const json_t *v)
{
    double x = json_number_value(v);
    json_t *low = json_object_get(s, "minimum"), *high = json_object_get(s, "maximum");
    json_t *above = json_object_get(s, "exclusiveMinimum");
    json_t *below = json_object_get(s, "exclusiveMaximum");
    return !(low && x < json_number_value(low)) && !(high && x > json_number_value(high)) &&
           !(above && x <= json_number_value(above)) && !(below && x >= json_number_value(below));
}

static bool array_fits(const json_t *s, const json_t *root, const json_t *v)
{
    json_t *min = json_object_get(s, "minItems"), *max = json_object_get(s, "maxItems");
    json_t *prefix = json_object_get(s, "prefixItems"), *items = json_object_get(s, "items");
    size_t n = json_array_size(v), k = json_array_size(prefix);
    if ((min && n < (size_t)json_number_value(min)) || (max && n > (size_t)json_number_value(max)))
        return false;
    for (size_t i = 0; i < n; i++) {
        const json_t *schema = i < k ? json_array_get(prefix, i) : items;
        if (schema && !schema_accepts(schema, root, json_array_get(v, i)))
            return false;
    }
    return true;
}

static bool object_fits(const json_t *s, const json_t *root, json_t *v)
{
    json_t *properties = json_object_get(s, "properties"),
           *required = json_object_get(s, "required");
    json_t *others = json_object_get(s, "additionalProperties"), *value;
    json_t *min = json_object_get(s, "minProperties"), *max = json_object_get(s, "maxProperties");
    const char *key;
    if ((min && json_object_size(v) < (size_t)json_number_value(min)) ||
        (max && json_object_size(v) > (size_t)json_number_value(max)))
        return false;
    for (size_t i = 0; i < json_array_size(required); i++) {
        if (!json_object_get(v, json_string_value(json_array_get(required, i))))
            return false;
    }
    json_object_foreach(v, key, value)
    {
        const json_t *schema = json_object_get(properties, key);
        if (!schema)
            schema = others;
        if (schema && !schema_accepts(schema, root, value))
            return false;
    }
    return true;
}

static const json_t *target(const json_t *root, const char *ref)
{
    static const char defs[] = "#/$defs/";
    if (strcmp(ref, "#") == 0)
        return root;
    return strncmp(ref, defs, sizeof defs - 1) == 0
               ? json_object_get(json_object_get(root, "$defs"), ref + sizeof defs - 1)
               : NULL;
}

bool schema_accepts(const json_t *s, const json_t *root, const json_t *v)
{
    if (json_is_boolean(s))
        return json_is_true(s);
    json_t *type = json_object_get(s, "type"), *any = json_object_get(s, "anyOf");
    json_t *one = json_object_get(s, "oneOf"), *list = json_object_get(s, "enum");
    json_t *value = json_object_get(s, "const"), *ref = json_object_get(s, "$ref");
    if (ref && !schema_accepts(target(root, json_string_value(ref)), root, v))
        return false;
    if ((type && !type_fits(type, v)) || (any && count(any, root, v) == 0) ||
        (one && count(one, root, v) != 1) || (list && !listed(list, v)) ||
        (value && !json_equal(value, v)))
        return false;
    if (json_is_string(v))
        return string_fits(s, v);
    if (json_is_number(v))
        return number_fits(s, v);
    if (json_is_array(v))
        return array_fits(s, root, v);
    return !json_is_object(v) || object_fits(s, root, (json_t *)v);
}
