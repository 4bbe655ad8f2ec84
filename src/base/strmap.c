#include "base/strmap.h"

#include "base/mem.h"

#include <string.h>

struct fl_strmap_slot {
    const char *key; /* NULL: free */
    uint32_t len, value;
};

/* FNV-1a with a final mix: names differ mostly at their ends.  Keys come from checkpoint files,
 * whose number is bounded by the loader, so a flooding attack costs at most a slow start. */
static uint64_t hash(const char *key, size_t len)
{
    uint64_t h = 14695981039346656037u;
    for (size_t i = 0; i < len; i++)
        h = (h ^ (unsigned char)key[i]) * 1099511628211u;
    h ^= h >> 32;
    h *= 0x9e3779b97f4a7c15u;
    return h ^ (h >> 29);
}

static struct fl_strmap_slot *probe(struct fl_strmap_slot *slots, size_t cap, const char *key,
                                    size_t len)
{
    size_t i = hash(key, len) & (cap - 1);
    while (slots[i].key && (slots[i].len != len || memcmp(slots[i].key, key, len) != 0))
        i = (i + 1) & (cap - 1);
    return &slots[i];
}

static bool grow(fl_strmap *m)
{
    size_t cap = m->cap ? m->cap * 2 : 16;
    struct fl_strmap_slot *slots = fl_calloc(cap, sizeof *slots);
    if (!slots)
        return false;
    for (size_t i = 0; i < m->cap; i++) {
        if (m->slots[i].key)
            *probe(slots, cap, m->slots[i].key, m->slots[i].len) = m->slots[i];
    }
    fl_free(m->slots);
    m->slots = slots;
    m->cap = cap;
    return true;
}

bool fl_strmap_put(fl_strmap *m, const char *key, size_t len, uint32_t value, bool *existing)
{
    if (existing)
        *existing = false;
    if (len > UINT32_MAX || (m->n * 4 >= m->cap * 3 && !grow(m)))
        return false;
    struct fl_strmap_slot *s = probe(m->slots, m->cap, key, len);
    if (s->key) {
        if (existing)
            *existing = true;
        return true;
    }
    *s = (struct fl_strmap_slot){key, (uint32_t)len, value};
    m->n++;
    return true;
}

bool fl_strmap_get(const fl_strmap *m, const char *key, size_t len, uint32_t *value)
{
    if (!m->n)
        return false;
    const struct fl_strmap_slot *s = probe(m->slots, m->cap, key, len);
    if (!s->key)
        return false;
    *value = s->value;
    return true;
}

void fl_strmap_free(fl_strmap *m)
{
    fl_free(m->slots);
    *m = (fl_strmap){0};
}
