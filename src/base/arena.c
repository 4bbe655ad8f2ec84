#include "base/arena.h"

#include "base/mem.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

enum { BLOCK = 64 * 1024, ALIGN = 16 };

struct fl_arena_block {
    struct fl_arena_block *next;
    size_t used, cap; /* bytes after this header */
};

static char *payload(struct fl_arena_block *b)
{
    return (char *)b + ((sizeof *b + ALIGN - 1) & ~(size_t)(ALIGN - 1));
}

void *fl_arena_alloc(fl_arena *a, size_t bytes)
{
    size_t need;
    if (__builtin_add_overflow(bytes, (size_t)(ALIGN - 1), &need))
        return NULL;
    need &= ~(size_t)(ALIGN - 1);
    struct fl_arena_block *b = a->head;
    if (!b || b->cap - b->used < need) {
        size_t cap = need > BLOCK ? need : BLOCK, total;
        if (__builtin_add_overflow(cap, sizeof *b + ALIGN, &total))
            return NULL;
        b = fl_calloc(1, total);
        if (!b)
            return NULL;
        b->cap = cap;
        /* A big block goes behind the head so that the head's free room is not lost. */
        if (a->head && need > BLOCK) {
            b->next = a->head->next;
            a->head->next = b;
        } else {
            b->next = a->head;
            a->head = b;
        }
    }
    void *p = payload(b) + b->used;
    b->used += need;
    return p;
}

void *fl_arena_array(fl_arena *a, size_t count, size_t size)
{
    size_t bytes;
    return __builtin_mul_overflow(count, size, &bytes) ? NULL : fl_arena_alloc(a, bytes);
}

char *fl_arena_strndup(fl_arena *a, const char *text, size_t len)
{
    char *copy = fl_arena_alloc(a, len + 1);
    if (copy)
        memcpy(copy, text, len);
    return copy;
}

char *fl_arena_strdup(fl_arena *a, const char *text)
{
    return fl_arena_strndup(a, text, strlen(text));
}

char *fl_arena_printf(fl_arena *a, const char *fmt, ...)
{
    va_list ap, again;
    va_start(ap, fmt);
    va_copy(again, ap);
    int len = vsnprintf(NULL, 0, fmt, ap);
    va_end(ap);
    char *text = len < 0 ? NULL : fl_arena_alloc(a, (size_t)len + 1);
    if (text)
        vsnprintf(text, (size_t)len + 1, fmt, again);
    va_end(again);
    return text;
}

void fl_arena_free(fl_arena *a)
{
    struct fl_arena_block *b = a->head;
    while (b) {
        struct fl_arena_block *next = b->next;
        fl_free(b);
        b = next;
    }
    a->head = NULL;
}
