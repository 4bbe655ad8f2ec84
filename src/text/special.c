/* Special tokens: ids that stand for a name, not for a piece of text.
 *
 * Beside a rank file every slot above the ranks has a name, as in the release: the one that
 * tokenizer_config.json gives it, or one made of its number.  Names are found in text only where
 * the caller of the tokenizer allows it. */
#include "text/text_internal.h"

static fl_status no_memory(const char *path, fl_error *err)
{
    return fl_fail(err, FL_NOMEM, "%s: no memory for the special tokens", path);
}

/* Puts len into the list of lengths. */
static bool add_length(fl_specials *s, size_t len)
{
    size_t i = 0;
    while (i < s->lengths.n && s->lengths.data[i] > len)
        i++;
    if (i < s->lengths.n && s->lengths.data[i] == len)
        return true;
    if (!fl_vec_push(&s->lengths, 0))
        return false;
    memmove(s->lengths.data + i + 1, s->lengths.data + i,
            (s->lengths.n - 1 - i) * sizeof *s->lengths.data);
    s->lengths.data[i] = (uint32_t)len;
    return true;
}

fl_status fl_specials_add(fl_specials *s, const char *path, fl_special token, fl_bytes name,
                          fl_vocab *v, fl_error *err)
{
    bool existing;
    name.data = fl_arena_strndup(&s->arena, name.data, name.len);
    if (!name.data || !add_length(s, name.len) ||
        !fl_strmap_put(&s->names, name.data, name.len, (uint32_t)s->entries.n, &existing))
        return no_memory(path, err);
    if (existing)
        return fl_fail(err, FL_FORMAT, "%s: two special tokens are named \"%.*s\"", path,
                       (int)(name.len < 80 ? name.len : 80), name.data);
    if (!fl_vec_push(&s->entries, token))
        return no_memory(path, err);
    v->tokens[token.id] = name;
    s->starts[(unsigned char)name.data[0]] = true;
    return FL_OK;
}

/* One entry of added_tokens_decoder: "163584": {"content": "[BOS]", ...}. */
static fl_status read_entry(const char *path, fl_bytes key, const fl_json *value, fl_vocab *v,
                            fl_specials *s, fl_error *err)
{
    int key_len = (int)(key.len < 40 ? key.len : 40);
    int64_t id = 0;
    bool number = key.len > 0;
    for (size_t i = 0; i < key.len && number && id < v->size; i++) {
        number = key.data[i] >= '0' && key.data[i] <= '9';
        id = id * 10 + (key.data[i] - '0');
    }
    if (!number || id < v->n_ranks || id >= v->size)
        return fl_fail(err, FL_FORMAT,
                       "%s: added_tokens_decoder: \"%.*s\" is not the id of a special token "
                       "(%d..%d)",
                       path, key_len, key.data, (int)v->n_ranks, (int)v->size - 1);
    if (v->tokens[id].data)
        return fl_fail(err, FL_FORMAT, "%s: added_tokens_decoder: id %d is named twice", path,
                       (int)id);
    const fl_json *content =
        fl_json_is(value, FL_JSON_OBJECT) ? fl_json_get(value, "content") : NULL;
    fl_bytes name = {NULL, 0};
    if (fl_json_is(content, FL_JSON_STRING))
        name = fl_json_string(content);
    if (!name.len || name.len > FL_MAX_NAME_BYTES)
        return fl_fail(err, FL_FORMAT,
                       "%s: added_tokens_decoder.%.*s.content must be a string of 1..%d bytes",
                       path, key_len, key.data, FL_MAX_NAME_BYTES);
    return fl_specials_add(s, path, (fl_special){.id = (int32_t)id}, name, v, err);
}

static fl_status read_entries(const char *path, const fl_json *root, fl_vocab *v, fl_specials *s,
                              fl_error *err)
{
    const fl_json *entries =
        fl_json_is(root, FL_JSON_OBJECT) ? fl_json_get(root, "added_tokens_decoder") : NULL;
    if (!fl_json_is(entries, FL_JSON_OBJECT))
        return fl_fail(err, FL_FORMAT, "%s: added_tokens_decoder is %s, an object was expected",
                       path, entries ? fl_json_type_name(entries) : "missing");
    for (void *it = fl_json_iter(entries); it; it = fl_json_next(entries, it))
        FL_TRY(read_entry(path, fl_json_iter_key(it), fl_json_iter_value(it), v, s, err));
    return FL_OK;
}

/* Names the slots that the file left out. */
static fl_status name_reserved(const char *path, const char *reserved, fl_vocab *v, fl_specials *s,
                               fl_error *err)
{
    const char *number = reserved ? strstr(reserved, "%d") : NULL;
    if (!number || strchr(reserved, '%') != number || strchr(number + 1, '%'))
        return fl_fail(err, FL_ARGUMENT,
                       "the name of reserved tokens, \"%s\", must hold %%d once and no other %%",
                       reserved ? reserved : "");
    for (int32_t id = v->n_ranks; id < v->size; id++) {
        if (v->tokens[id].data)
            continue;
        const char *name = fl_arena_printf(&s->arena, "%.*s%d%s", (int)(number - reserved),
                                           reserved, (int)id, number + 2);
        if (!name)
            return no_memory(path, err);
        FL_TRY(fl_specials_add(s, path, (fl_special){.id = id}, (fl_bytes){name, strlen(name)}, v,
                               err));
    }
    return FL_OK;
}

fl_status fl_specials_read(const char *path, const char *reserved, fl_vocab *v, fl_specials *s,
                           fl_error *err)
{
    *s = (fl_specials){0};
    fl_json *root;
    FL_TRY(fl_json_read(path, FL_MAX_CONFIG_FILE, &root, err));
    fl_status status = read_entries(path, root, v, s, err);
    fl_json_free(root);
    FL_TRY(status);
    return name_reserved(path, reserved, v, s, err);
}

void fl_specials_free(fl_specials *s)
{
    fl_arena_free(&s->arena);
    fl_strmap_free(&s->names);
    fl_vec_free(&s->entries);
    fl_vec_free(&s->lengths);
    *s = (fl_specials){0};
}

const fl_special *fl_specials_get(const fl_specials *s, const char *name, size_t len)
{
    uint32_t entry;
    return fl_strmap_get(&s->names, name, len, &entry) ? &s->entries.data[entry] : NULL;
}

const fl_special *fl_specials_find(const fl_specials *s, fl_bytes text, size_t *begin, size_t *end)
{
    for (size_t i = 0; s->entries.n && i < text.len; i++) {
        if (!s->starts[(unsigned char)text.data[i]])
            continue;
        for (size_t j = 0; j < s->lengths.n; j++) {
            size_t len = s->lengths.data[j];
            const fl_special *found =
                len <= text.len - i ? fl_specials_get(s, text.data + i, len) : NULL;
            if (!found)
                continue;
            *begin = i;
            *end = i + len;
            return found;
        }
    }
    return NULL;
}
