#define _GNU_SOURCE
#include "ops/rtc.h"

#include "base/mem.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>

#ifdef FL_MUSA
#define RTC(name) "mtrtc" name
static const char *const LIBRARIES[] = {"libmtrtc.so"};
#else
#define RTC(name) "nvrtc" name
static const char *const LIBRARIES[] = {"libnvrtc.so.13", "libnvrtc.so.12", "libnvrtc.so"};
#endif
enum { N_LIBRARIES = sizeof LIBRARIES / sizeof *LIBRARIES };

/* The functions that are used, as nvrtc.h declares them; a program is a handle, 0 is success. */
#define RTC_FUNCTIONS(X)                                                                           \
    X(create, RTC("CreateProgram"),                                                                \
      (void **program, const char *source, const char *name, int n_headers,                        \
       const char *const *headers, const char *const *names))                                      \
    X(compile, RTC("CompileProgram"), (void *program, int n, const char *const *options))          \
    X(destroy, RTC("DestroyProgram"), (void **program))                                            \
    X(image_size, RTC("GetCUBINSize"), (void *program, size_t *bytes))                             \
    X(image, RTC("GetCUBIN"), (void *program, char *to))                                           \
    X(log_size, RTC("GetProgramLogSize"), (void *program, size_t *bytes))                          \
    X(log, RTC("GetProgramLog"), (void *program, char *to))

typedef struct rtc {
#define RTC_MEMBER(member, symbol, args) int(*member) args;
    RTC_FUNCTIONS(RTC_MEMBER)
#undef RTC_MEMBER
} rtc;

typedef struct compiled {
    struct compiled *next;
    char *source, arch[16];
    void *image;
    size_t bytes;
} compiled;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static rtc functions;
static bool found;
static compiled *cache; /* kept to the end of the process */

static bool find(void *library, const char *name, void *function)
{
    void *symbol = dlsym(library, name);
    memcpy(function, &symbol, sizeof symbol); /* C has no cast from data to function pointers */
    return symbol != NULL;
}

static fl_status load(fl_error *err)
{
    void *library = NULL;
    if (found)
        return FL_OK;
    for (int i = 0; i < N_LIBRARIES && !library; i++)
        library = dlopen(LIBRARIES[i], RTLD_NOW | RTLD_LOCAL);
    if (!library)
        return fl_fail(err, FL_NOTFOUND, "no %s", LIBRARIES[0]);
    found = true;
#define RTC_FIND(member, symbol, args) found = found && find(library, symbol, &functions.member);
    RTC_FUNCTIONS(RTC_FIND)
#undef RTC_FIND
    return found ? FL_OK
                 : fl_fail(err, FL_NOTFOUND, "%s lacks functions that are needed", LIBRARIES[0]);
}

/* The compiler's own words, cut to what a message holds. */
static fl_status refused(void *program, fl_error *err)
{
    size_t n = 0;
    char *log = functions.log_size(program, &n) == 0 ? fl_calloc(n + 1, 1) : NULL;
    if (log && functions.log(program, log) != 0)
        log[0] = 0;
    fl_fail(err, FL_UNSUPPORTED, "not compiled: %.300s", log && log[0] ? log : "no reason given");
    fl_free(log);
    return FL_UNSUPPORTED;
}

static fl_status compile(compiled *c, fl_error *err)
{
    char arch[40];
    void *program = NULL;
    snprintf(arch, sizeof arch, "--gpu-architecture=%s", c->arch);
    const char *const options[] = {arch, "--std=c++17"};
    if (functions.create(&program, c->source, "expressions", 0, NULL, NULL) != 0)
        return fl_fail(err, FL_UNSUPPORTED, "the compiler at run time does not start");
    fl_status s = FL_OK;
    if (functions.compile(program, 2, options) != 0 ||
        functions.image_size(program, &c->bytes) != 0 || c->bytes == 0)
        s = refused(program, err);
    if (s == FL_OK && !(c->image = fl_malloc(c->bytes)))
        s = fl_fail(err, FL_NOMEM, "no memory for compiled expressions");
    if (s == FL_OK && functions.image(program, c->image) != 0)
        s = fl_fail(err, FL_UNSUPPORTED, "the compiler at run time gives no image");
    (void)functions.destroy(&program);
    return s;
}

static void discard(compiled *c)
{
    if (c) {
        fl_free(c->source);
        fl_free(c->image);
    }
    fl_free(c);
}

static fl_status look_up(const char *source, const char *arch, compiled **out, fl_error *err)
{
    for (*out = cache; *out; *out = (*out)->next) {
        if (strcmp((*out)->arch, arch) == 0 && strcmp((*out)->source, source) == 0)
            return FL_OK;
    }
    FL_TRY(load(err));
    compiled *c = fl_calloc(1, sizeof *c);
    fl_status s = FL_OK;
    if (!c || !(c->source = fl_strdup(source)))
        s = fl_fail(err, FL_NOMEM, "no memory for compiled expressions");
    if (s == FL_OK) {
        snprintf(c->arch, sizeof c->arch, "%s", arch);
        s = compile(c, err);
    }
    if (s != FL_OK) {
        discard(c);
        return s;
    }
    c->next = cache;
    *out = cache = c;
    return FL_OK;
}

fl_status fl_rtc_compile(const char *source, const char *arch, const void **image, size_t *bytes,
                         fl_error *err)
{
    compiled *c = NULL;
    pthread_mutex_lock(&lock);
    fl_status s = look_up(source, arch, &c, err);
    pthread_mutex_unlock(&lock);
    if (s == FL_OK) {
        *image = c->image;
        *bytes = c->bytes;
    }
    return s;
}
