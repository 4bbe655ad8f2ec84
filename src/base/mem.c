#define _GNU_SOURCE
#include "base/mem.h"

#include <stdatomic.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#ifdef __GLIBC__
#include <malloc.h>
#endif

enum { HUGE_PAGE = 2 << 20, HUGE_FROM = 2 * HUGE_PAGE }; /* bytes */

static atomic_long count;
static atomic_long fail_at; /* value of count at which an allocation fails; 0 = never */

static bool refuse(void)
{
    long now = atomic_fetch_add_explicit(&count, 1, memory_order_relaxed) + 1;
    return now == atomic_load_explicit(&fail_at, memory_order_relaxed);
}

void fl_mem_fail_at(long n)
{
    atomic_store(&fail_at, n > 0 ? atomic_load(&count) + n : 0);
}

long fl_mem_count(void)
{
    return atomic_load(&count);
}

void *fl_malloc(size_t bytes)
{
    return refuse() ? NULL : malloc(bytes ? bytes : 1);
}

void *fl_calloc(size_t n, size_t size)
{
    return refuse() ? NULL : calloc(n ? n : 1, size ? size : 1);
}

void *fl_realloc(void *old, size_t bytes)
{
    return refuse() ? NULL : realloc(old, bytes ? bytes : 1);
}

void *fl_realloc_array(void *old, size_t n, size_t size)
{
    size_t bytes;
    if (__builtin_mul_overflow(n, size, &bytes))
        return NULL;
    return fl_realloc(old, bytes);
}

char *fl_strndup(const char *text, size_t len)
{
    char *copy = fl_malloc(len + 1);
    if (!copy)
        return NULL;
    memcpy(copy, text, len);
    copy[len] = 0;
    return copy;
}

char *fl_strdup(const char *text)
{
    return fl_strndup(text, strlen(text));
}

void fl_free(void *p)
{
    free(p);
}

void *fl_alloc_aligned(size_t bytes, size_t align)
{
    size_t rounded;
    if (align < FL_CACHE_LINE)
        align = FL_CACHE_LINE;
    if (refuse() || __builtin_add_overflow(bytes, align - 1, &rounded))
        return NULL;
    rounded &= ~(align - 1);
    void *p = aligned_alloc(align, rounded ? rounded : align);
    if (p)
        memset(p, 0, rounded);
    return p;
}

void fl_free_aligned(void *p)
{
    free(p);
}

void *fl_alloc_large(size_t bytes, void **raw)
{
    size_t align = bytes >= HUGE_FROM ? HUGE_PAGE : FL_CACHE_LINE, all;
    *raw = NULL;
    if (__builtin_add_overflow(bytes, align - 1, &all))
        return NULL;
    *raw = fl_calloc(1, all); /* large memory comes from the system, which zeroes it when touched */
    if (!*raw)
        return NULL;
    uintptr_t p = ((uintptr_t)*raw + align - 1) & ~(uintptr_t)(align - 1);
    if (align == HUGE_PAGE)
        (void)madvise((void *)p, bytes & ~(size_t)(HUGE_PAGE - 1), MADV_HUGEPAGE);
    return (void *)p;
}

void fl_mem_trim(void)
{
#ifdef __GLIBC__
    malloc_trim(0);
#endif
}
