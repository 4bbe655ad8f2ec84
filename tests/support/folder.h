/* Temporary folders with checkpoint files in them, whole or broken on purpose.  A failure to make
 * one ends the cmocka test. */
#ifndef FL_TEST_FOLDER_H
#define FL_TEST_FOLDER_H

#include <stddef.h>

typedef struct folder {
    char path[64];
} folder;

void folder_make(folder *f);
void folder_remove(folder *f); /* with all that is in it */

/* The path of a file in the folder; valid until the next call. */
const char *folder_file(const folder *f, const char *name);

void folder_write(const folder *f, const char *name, const void *bytes, size_t n);
void folder_text(const folder *f, const char *name, const char *text);
/* A safetensors file: the length of header, header, and n_data bytes 0, 1, 2... */
void folder_shard(const folder *f, const char *name, const char *header, size_t n_data);
/* config.json and the index of the real Kimi K3, 497,220 names in 96 shards. */
void folder_kimi_k3(const folder *f);

#endif
