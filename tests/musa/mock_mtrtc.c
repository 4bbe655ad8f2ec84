/* A mock of MUSA's compiler at run time for tests: its names, implemented over NVRTC, which is
 * looked for when it is first needed.  Architectures are named as MUSA names them ("mp_90"). */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

static void *nvrtc(const char *name)
{
    static void *library;
    const char *const names[] = {"libnvrtc.so.13", "libnvrtc.so.12", "libnvrtc.so"};
    for (int i = 0; i < 3 && !library; i++)
        library = dlopen(names[i], RTLD_NOW | RTLD_LOCAL);
    return library ? dlsym(library, name) : NULL;
}

/* Calls the function of NVRTC with these arguments; 1, an error, when it is not there. */
#define CALL(name, types, ...)                                                                     \
    int(*f) types;                                                                                 \
    void *found = nvrtc(name);                                                                     \
    memcpy(&f, &found, sizeof f);                                                                  \
    return f ? f(__VA_ARGS__) : 1

__attribute__((visibility("default"))) int mtrtcCreateProgram(void **p, const char *source,
                                                              const char *name, int n,
                                                              const char *const *headers,
                                                              const char *const *names)
{
    CALL("nvrtcCreateProgram",
         (void **, const char *, const char *, int, const char *const *, const char *const *), p,
         source, name, n, headers, names);
}

__attribute__((visibility("default"))) int mtrtcCompileProgram(void *p, int n,
                                                               const char *const *options)
{
    char arch[80] = "";
    const char *mine[8];
    for (int i = 0; i < n && i < 8; i++) {
        const char *at = strstr(options[i], "=mp_");
        mine[i] = options[i];
        if (!at)
            continue;
        snprintf(arch, sizeof arch, "%.*s=sm_%s", (int)(at - options[i]), options[i], at + 4);
        mine[i] = arch;
    }
    CALL("nvrtcCompileProgram", (void *, int, const char *const *), p, n, mine);
}

__attribute__((visibility("default"))) int mtrtcDestroyProgram(void **p)
{
    CALL("nvrtcDestroyProgram", (void **), p);
}

__attribute__((visibility("default"))) int mtrtcGetCUBINSize(void *p, size_t *bytes)
{
    CALL("nvrtcGetCUBINSize", (void *, size_t *), p, bytes);
}

__attribute__((visibility("default"))) int mtrtcGetCUBIN(void *p, char *to)
{
    CALL("nvrtcGetCUBIN", (void *, char *), p, to);
}

__attribute__((visibility("default"))) int mtrtcGetProgramLogSize(void *p, size_t *bytes)
{
    CALL("nvrtcGetProgramLogSize", (void *, size_t *), p, bytes);
}

__attribute__((visibility("default"))) int mtrtcGetProgramLog(void *p, char *to)
{
    CALL("nvrtcGetProgramLog", (void *, char *), p, to);
}
