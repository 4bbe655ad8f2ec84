/* An arena: many small allocations with one lifetime.  Nothing is freed singly. */
#ifndef FL_BASE_ARENA_H
#define FL_BASE_ARENA_H

#include <stddef.h>

typedef struct fl_arena {
    struct fl_arena_block *head;
} fl_arena; /* {0} is an empty arena */

void *fl_arena_alloc(fl_arena *a, size_t bytes); /* zeroed, 16-aligned, NULL on failure */
void *fl_arena_array(fl_arena *a, size_t count, size_t size); /* the same, overflow-checked */
char *fl_arena_strdup(fl_arena *a, const char *text);
char *fl_arena_strndup(fl_arena *a, const char *text, size_t len);
char *fl_arena_printf(fl_arena *a, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
void fl_arena_free(fl_arena *a);

#endif
