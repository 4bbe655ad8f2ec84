/* Finding and opening devices (device.h).  A plugin lies beside the program, or where the
 * installation puts it; that it is missing, or finds no driver, is an ordinary answer. */
#define _GNU_SOURCE
#include "ops/device.h"

#include "ops/plugin.h"

#include <dlfcn.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const char *const KINDS[] = {"cuda", "musa"};
enum { N_KINDS = sizeof KINDS / sizeof *KINDS };

fl_status fl_plugin_load(const char *path, const fl_plugin **out, fl_error *err)
{
    void *library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (!library)
        return fl_fail(err, FL_DEVICE, "%s", dlerror());
    void *symbol = dlsym(library, FL_PLUGIN_ENTRY);
    fl_plugin_entry_fn entry;
    memcpy(&entry, &symbol, sizeof entry); /* C has no cast from data to function pointers */
    const fl_plugin *p = symbol ? entry() : NULL;
    if (p && p->layout == FL_PLUGIN_LAYOUT && strcmp(p->version, fl_version()) == 0) {
        *out = p;
        return FL_OK;
    }
    dlclose(library);
    return fl_fail(err, FL_MISMATCH, "%s: %s", path,
                   p ? "made for another build of firstlight" : "not a firstlight plugin");
}

/* Writes the path of the plugin of this kind: beside the program, else where it was installed. */
static fl_status find_plugin(const char *kind, char path[PATH_MAX + 64], fl_error *err)
{
    char program[PATH_MAX];
    ssize_t n = readlink("/proc/self/exe", program, sizeof program - 1);
    while (n > 0 && program[n - 1] != '/')
        n--;
    snprintf(path, PATH_MAX + 64, "%.*slibfirstlight_%s.so", n > 0 ? (int)n : 0, program, kind);
    if (n > 0 && access(path, R_OK) == 0)
        return FL_OK;
    snprintf(path, PATH_MAX + 64, "%s/libfirstlight_%s.so", FL_PLUGIN_DIR, kind);
    if (access(path, R_OK) == 0)
        return FL_OK;
    return fl_fail(err, FL_NOTFOUND, "no libfirstlight_%s.so beside the program or in %s", kind,
                   FL_PLUGIN_DIR);
}

static fl_status open_number(const char *kind, int ordinal, fl_device **out, fl_error *err)
{
    char path[PATH_MAX + 64];
    const fl_plugin *plugin;
    FL_TRY(find_plugin(kind, path, err));
    FL_TRY(fl_plugin_load(path, &plugin, err));
    fl_device *once;
    FL_TRY(plugin->open(ordinal, &once, err));
    fl_status s = fl_device_self_test(once, err);
    once->fn->close(once);
    return s == FL_OK ? plugin->open(ordinal, out, err) : s;
}

/* "cuda" or "cuda:N". */
static bool parse(const char *name, const char **kind, int *ordinal)
{
    for (int i = 0; i < N_KINDS; i++) {
        size_t n = strlen(KINDS[i]);
        if (strncmp(name, KINDS[i], n) != 0)
            continue;
        *kind = KINDS[i];
        *ordinal = 0;
        if (name[n] == 0)
            return true;
        char *end;
        long v = strtol(name + n + 1, &end, 10);
        *ordinal = (int)v;
        return name[n] == ':' && end != name + n + 1 && *end == 0 && v >= 0 && v < 1024;
    }
    return false;
}

/* The first device of any kind; else the reason why the first kind has none, or, where no plugin is
 * there at all, that. */
static fl_status open_any(fl_device **out, fl_error *err)
{
    fl_status s = FL_NOTFOUND;
    for (int i = 0; i < N_KINDS; i++) {
        fl_error found = {0};
        fl_status now = open_number(KINDS[i], 0, out, &found);
        if (now == FL_OK)
            return FL_OK;
        if (i == 0 || (s == FL_NOTFOUND && now != FL_NOTFOUND)) {
            s = now;
            *err = found;
        }
    }
    return s;
}

fl_status fl_device_open(const char *name, fl_device **out, char why[200], fl_error *err)
{
    int ordinal = 0;
    const char *kind = NULL;
    fl_error found = {0};
    *out = NULL;
    snprintf(why, 200, "asked for");
    if (!name || strcmp(name, "cpu") == 0)
        return FL_OK;
    bool any = strcmp(name, "auto") == 0;
    if (!any && !parse(name, &kind, &ordinal))
        return fl_fail(err, FL_ARGUMENT,
                       "device \"%s\": possible are auto, cpu, cuda, musa, and cuda:N or musa:N",
                       name);
    fl_status s = any ? open_any(out, &found) : open_number(kind, ordinal, out, &found);
    if (s == FL_OK)
        snprintf(why, 200, "%s", (*out)->name);
    else if (any)
        snprintf(why, 200, "no GPU: %.180s", found.message);
    else
        return fl_fail(err, s, "device %s: %s", name, found.message);
    return FL_OK;
}
