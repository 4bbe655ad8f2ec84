/* String to 32-bit number, open addressing.  Keys are borrowed: they must outlive the map. */
#ifndef FL_BASE_STRMAP_H
#define FL_BASE_STRMAP_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct fl_strmap {
    struct fl_strmap_slot *slots;
    size_t n, cap;
} fl_strmap; /* {0} is an empty map */

/* Adds key (len bytes) -> value.  False when memory ran out; *existing (may be NULL) becomes true,
 * and nothing changes, when the key is there already. */
bool fl_strmap_put(fl_strmap *m, const char *key, size_t len, uint32_t value, bool *existing);
bool fl_strmap_get(const fl_strmap *m, const char *key, size_t len, uint32_t *value);
void fl_strmap_free(fl_strmap *m);

#endif
