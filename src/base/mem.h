/* Memory.  Every allocation of the library goes through here (jansson, PCRE2 and Lua are given
 * these functions too), so that a test can make the n-th one fail and so that sizes computed from
 * a file are multiplied with an overflow check.  All return NULL on failure. */
#ifndef FL_BASE_MEM_H
#define FL_BASE_MEM_H

#include <stddef.h>
#include <stdint.h>

#define FL_CACHE_LINE 64

void *fl_malloc(size_t bytes);
void *fl_calloc(size_t count, size_t size);
void *fl_realloc(void *old, size_t bytes);
void *fl_realloc_array(void *old, size_t count, size_t size); /* NULL when count * size wraps */
char *fl_strdup(const char *text);
char *fl_strndup(const char *text, size_t len);
void fl_free(void *p);

/* Zeroed memory aligned to `align` (a power of two, at least FL_CACHE_LINE); fl_free_aligned. */
void *fl_alloc_aligned(size_t bytes, size_t align);
void fl_free_aligned(void *p);

/* Zeroed memory for what is large and lives long (caches, workspaces, converted weights), aligned
 * to FL_CACHE_LINE and not touched: on a machine with several memory nodes a page comes to lie at
 * the processor that first writes it.  From a few megabytes on the system is asked for huge pages,
 * which is only a hint.  *raw is what fl_free takes. */
void *fl_alloc_large(size_t bytes, void **raw);

/* Gives the system back what free memory the heap holds: after something that took much for a
 * moment. */
void fl_mem_trim(void);

/* Failure injection for tests.  fl_mem_fail_at(n): the n-th allocation from now (1 = the next)
 * fails, once; 0 switches the injection off.  fl_mem_count: allocations since the start. */
void fl_mem_fail_at(long n);
long fl_mem_count(void);

#endif
