/* Prefixes on disk: a restart finds them, limits hold, damaged and foreign files are refused and
 * told about, and a program that is killed while it saves loses nothing that was acknowledged. */
#define _GNU_SOURCE
#include "base/mem.h"
#include "support/cmocka_all.h"
#include "support/engine_support.h"
#include "support/fake_model.h"

#include <dirent.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

enum { PAGE = FL_PAGE_TOKENS };

static char dir[64];
static char last_note[sizeof(((fl_error *)0)->message)];
static int notes;

static void on_note(void *ctx, const char *message)
{
    (void)ctx;
    notes++;
    snprintf(last_note, sizeof last_note, "%s", message);
}

static fl_engine_options options(void)
{
    fl_engine_options o = fl_engine_options_default();
    o.threads = 1;
    o.max_seqs = 2;
    o.max_waiting = 8;
    o.cache_tokens = 4096;
    o.max_prefixes = 16;
    o.prefix_dir = dir;
    o.note = on_note;
    return o;
}

static fl_engine *open_with(const fl_engine_options *o)
{
    fl_engine *e;
    fl_error err;
    if (fl_engine_create_graph(engine_graph, FAKE_CONTEXT, o, &e, &err) != FL_OK)
        fail_msg("%s", err.message);
    return e;
}

static fl_engine *open_again(void)
{
    fl_engine_options o = options();
    return open_with(&o);
}

/* The text of a number is the same in every run. */
static void make_text(uint32_t number, int32_t *text, int64_t n)
{
    engine_dice = (rng){1000 + number};
    engine_some_ids(text, n);
}

/* Runs a text, expects the right answer, and returns the tokens that were found. */
static int64_t ask(fl_engine *e, uint64_t salt, uint32_t number, int64_t n)
{
    int32_t text[FAKE_CONTEXT];
    make_text(number, text, n);
    return engine_ask(e, salt, text, n);
}

/* Number of files whose name ends so; the path of one of them. */
static int files(const char *suffix, char *path, size_t room)
{
    DIR *d = opendir(dir);
    int n = 0;
    assert_non_null(d);
    for (struct dirent *f; (f = readdir(d));) {
        size_t len = strlen(f->d_name), end = strlen(suffix);
        if (f->d_name[0] == '.' || len < end || strcmp(f->d_name + len - end, suffix) != 0)
            continue;
        n++;
        if (path)
            snprintf(path, room, "%s/%s", dir, f->d_name);
    }
    closedir(d);
    return n;
}

static void empty(void)
{
    char path[400];
    while (files("", path, sizeof path))
        assert_int_equal(unlink(path), 0);
}

static int make_dir(void **state)
{
    snprintf(dir, sizeof dir, "/tmp/fl-prefix-XXXXXX");
    if (!mkdtemp(dir))
        return -1;
    return engine_setup(state);
}

static int drop_dir(void **state)
{
    empty();
    rmdir(dir);
    return engine_teardown(state);
}

static void test_a_restart_finds_them(void **state)
{
    (void)state;
    fl_engine *e = open_again();
    assert_int_equal(ask(e, 1, 1, 300), 0); /* saved when the engine has nothing else to do */
    assert_int_equal(files(".prefix", NULL, 0), 1);
    assert_int_equal(ask(e, 1, 2, 200), 0);
    assert_int_equal(ask(e, 2, 1, 300), 0);
    assert_int_equal(files(".prefix", NULL, 0), 3);
    assert_int_equal(ask(e, 1, 1, 500), 256); /* goes on: the shorter file is of no more use */
    assert_int_equal(files(".prefix", NULL, 0), 3);
    int64_t n;
    assert_int_equal(fl_engine_save_prefixes(e, &n, NULL), FL_OK);
    assert_int_equal(n, 0);
    fl_engine_destroy(e);

    e = open_again();
    assert_int_equal(ask(e, 1, 1, 500), 448);
    assert_int_equal(ask(e, 1, 2, 200), 192);
    assert_int_equal(ask(e, 2, 1, 400), 256);
    assert_int_equal(ask(e, 3, 1, 400), 0);
    fl_engine_stats s;
    fl_engine_get_stats(e, &s);
    assert_int_equal(s.prefixes_loaded, 3);
    assert_int_equal(notes, 0);
    fl_engine_destroy(e);
    empty();
}

static void test_the_limit(void **state)
{
    (void)state;
    fl_engine_options o = options();
    fl_engine *e = open_again();
    char path[400];
    struct stat info;
    ask(e, 1, 1, 300);
    files(".prefix", path, sizeof path);
    assert_int_equal(stat(path, &info), 0);
    fl_engine_destroy(e);
    o.prefix_disk = info.st_size * 3 + 10;
    e = open_with(&o);
    for (uint32_t i = 2; i < 8; i++) {
        usleep(20000); /* a file system may count time in ticks */
        ask(e, 1, i, 300);
    }
    assert_int_equal(files(".prefix", NULL, 0), 3);
    fl_engine_destroy(e);
    o.prefix_disk = info.st_size + 10;
    e = open_with(&o);
    assert_int_equal(files(".prefix", NULL, 0), 1);
    assert_int_equal(ask(e, 1, 7, 300), 256);
    fl_engine_destroy(e);
    empty();
}

static void test_refused_files(void **state)
{
    (void)state;
    fl_engine *e = open_again();
    char path[400], other[512];
    ask(e, 1, 1, 300);
    assert_int_equal(files(".prefix", path, sizeof path), 1);
    fl_engine_destroy(e);
    struct stat info;
    assert_int_equal(stat(path, &info), 0);
    for (int where = 0; where < 4; where++) { /* in the head, the ids, the rows, the checksum */
        const off_t at[] = {9, 240, info.st_size / 2, info.st_size - 3};
        int fd = open(path, O_RDWR);
        unsigned char byte;
        assert_int_equal(pread(fd, &byte, 1, at[where]), 1);
        byte ^= 4;
        assert_int_equal(pwrite(fd, &byte, 1, at[where]), 1);
        notes = 0;
        fl_engine_options o = options();
        o.settle = true;
        e = open_with(&o);
        e->store_failed = true; /* it would write the file anew */
        assert_int_equal(ask(e, 1, 1, 300), 0);
        assert_int_equal(notes, 1);
        assert_non_null(strstr(last_note, path));
        fl_engine_destroy(e);
        byte ^= 4;
        assert_int_equal(pwrite(fd, &byte, 1, at[where]), 1);
        close(fd);
    }

    /* Another model's; another text's under this name; what a killed program left. */
    fl_engine_options o = options();
    o.fingerprint = 77;
    notes = 0;
    e = open_with(&o);
    assert_int_equal(notes, 1);
    assert_non_null(strstr(last_note, "another model"));
    fl_engine_destroy(e);
    snprintf(other, sizeof other, "%s/0123456789abcdef.prefix.12-3.part", dir);
    close(open(other, O_CREAT | O_WRONLY, 0600));
    snprintf(other, sizeof other, "%s/0123456789abcdef.prefix", dir);
    assert_int_equal(link(path, other), 0);
    snprintf(other, sizeof other, "%s/README", dir);
    close(open(other, O_CREAT | O_WRONLY, 0600));
    notes = 0;
    e = open_again();
    assert_int_equal(notes, 0);
    assert_int_equal(files(".part", NULL, 0), 0);
    assert_int_equal(files("README", NULL, 0), 1);
    assert_int_equal(ask(e, 1, 1, 300), 256);
    fl_engine_destroy(e);

    /* A folder that cannot be. */
    o = options();
    o.prefix_dir = other; /* a file */
    fl_error err;
    assert_int_equal(fl_engine_create_graph(engine_graph, FAKE_CONTEXT, &o, &e, &err), FL_IO);
    assert_non_null(strstr(err.message, "README"));
    empty();
}

/* The child runs text after text and says so when the save of one has returned. */
static void run_child(int out)
{
    fl_engine_options o = options();
    o.max_prefixes = 200;
    o.cache_tokens = 65536;
    fl_engine *e = open_with(&o);
    for (uint32_t i = 0;; i++) {
        int64_t n;
        int32_t text[FAKE_CONTEXT];
        make_text(i, text, 300);
        fl_request_params p = engine_params(text, 300, 0);
        submit(e, &p);
        bool busy = true;
        while (busy)
            (void)!fl_engine_step(e, &busy, NULL);
        if (fl_engine_save_prefixes(e, &n, NULL) != FL_OK || write(out, &i, sizeof i) != sizeof i)
            _exit(1);
    }
}

static void test_killed_while_saving(void **state)
{
    (void)state;
    uint32_t all = 0;
    for (int round = 0; round < 8; round++) {
        int ends[2];
        assert_int_equal(pipe(ends), 0);
        pid_t child = fork();
        assert_true(child >= 0);
        if (child == 0)
            run_child(ends[1]);
        close(ends[1]);
        uint32_t n = 0, i;
        while (n < 3 && read(ends[0], &i, sizeof i) == sizeof i)
            n++;
        usleep(500 * (useconds_t)round);
        kill(child, SIGKILL);
        while (read(ends[0], &i, sizeof i) == sizeof i)
            n++;
        close(ends[0]);
        assert_int_equal(waitpid(child, NULL, 0), child);
        notes = 0;
        fl_engine *e = open_again();
        assert_int_equal(notes, 0);
        for (i = 0; i < n; i++)
            assert_int_equal(ask(e, 0, i, 300), 256);
        fl_engine_destroy(e);
        empty();
        all += n;
    }
    assert_true(all >= 24);
}

static void test_allocation_failures(void **state)
{
    (void)state;
    fl_engine *e = open_again();
    ask(e, 0, 1, 300);
    fl_engine_destroy(e);
    int32_t text[300];
    make_text(1, text, 300);
    fl_request_params p = engine_params(text, 300, 2);
    fl_engine_options o = options();
    o.settle = true;
    int failed = 0;
    for (bool ok = false; !ok; failed++) { /* of opening, loading, running, saving */
        fl_request *r = NULL;
        int64_t n;
        e = NULL;
        fl_mem_fail_at(failed + 1);
        long before = fl_mem_count();
        fl_status s = fl_engine_create_graph(engine_graph, FAKE_CONTEXT, &o, &e, NULL);
        if (s == FL_OK)
            s = fl_engine_submit(e, &p, &r, NULL);
        bool busy = s == FL_OK;
        while (busy)
            assert_int_equal(fl_engine_step(e, &busy, NULL), FL_OK);
        if (s == FL_OK)
            s = fl_engine_save_prefixes(e, &n, NULL);
        ok = fl_mem_count() - before < failed + 1;
        fl_mem_fail_at(0);
        assert_true(s == FL_OK || s == FL_NOMEM);
        fl_engine_destroy(e);
    }
    assert_true(failed > 20);
    empty();
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_restart_finds_them), cmocka_unit_test(test_the_limit),
        cmocka_unit_test(test_refused_files),        cmocka_unit_test(test_killed_while_saving),
        cmocka_unit_test(test_allocation_failures),
    };
    return cmocka_run_group_tests(tests, make_dir, drop_dir);
}
