#define _GNU_SOURCE
#include "support/folder.h"

#include "support/cmocka_all.h"

#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

void folder_make(folder *f)
{
    snprintf(f->path, sizeof f->path, "/tmp/firstlight-test-XXXXXX");
    if (!mkdtemp(f->path))
        fail_msg("cannot make %s", f->path);
}

void folder_remove(folder *f)
{
    DIR *dir = opendir(f->path);
    if (!dir)
        fail_msg("cannot read %s", f->path);
    for (struct dirent *d; (d = readdir(dir));) {
        const char *path = folder_file(f, d->d_name);
        if (strcmp(d->d_name, ".") != 0 && strcmp(d->d_name, "..") != 0 && unlink(path) != 0)
            (void)rmdir(path);
    }
    closedir(dir);
    if (rmdir(f->path) != 0)
        fail_msg("cannot remove %s", f->path);
}

const char *folder_file(const folder *f, const char *name)
{
    static char path[400];
    snprintf(path, sizeof path, "%s/%s", f->path, name);
    return path;
}

void folder_write(const folder *f, const char *name, const void *bytes, size_t n)
{
    (void)unlink(folder_file(f, name)); /* some file systems sync a file that is overwritten */
    FILE *out = fopen(folder_file(f, name), "wb");
    if (!out || (n && fwrite(bytes, 1, n, out) != n) || fclose(out) != 0)
        fail_msg("cannot write %s", folder_file(f, name));
}

void folder_text(const folder *f, const char *name, const char *text)
{
    folder_write(f, name, text, strlen(text));
}

void folder_shard(const folder *f, const char *name, const char *header, size_t n_data)
{
    uint64_t len = strlen(header);
    size_t n = 8 + len + n_data;
    unsigned char *bytes = malloc(n);
    assert_non_null(bytes);
    memcpy(bytes, &len, 8);
    memcpy(bytes + 8, header, len);
    for (size_t i = 0; i < n_data; i++)
        bytes[8 + len + i] = (unsigned char)i;
    folder_write(f, name, bytes, n);
    free(bytes);
}

void folder_kimi_k3(const folder *f)
{
    char command[700];
    snprintf(command, sizeof command,
             "cp '%s/kimi-k3/config.json' '%s' && gzip -dc '%s/kimi-k3/model.safetensors.index."
             "json.gz' > '%s/model.safetensors.index.json'",
             FL_TEST_DATA, f->path, FL_TEST_DATA, f->path);
    if (system(command) != 0)
        fail_msg("cannot unpack the K3 index");
}
