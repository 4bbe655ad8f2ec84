/* One safetensors file: everything a header can do wrong, and writing. */
#define _GNU_SOURCE
#include "support/cmocka_all.h"
#include "support/folder.h"

#include "base/mem.h"
#include "checkpoint/checkpoint.h"

#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static folder dir;

static int set_up(void **state)
{
    (void)state;
    folder_make(&dir);
    return 0;
}

static int tear_down(void **state)
{
    (void)state;
    folder_remove(&dir);
    return 0;
}

/* Opens the file x, which must fail; the message must begin with its path and hold `cause`. */
static void refuse(fl_status status, const char *cause)
{
    fl_safetensors *st = NULL;
    fl_error e = {0};
    const char *path = folder_file(&dir, "x");
    fl_status got = fl_safetensors_open(path, &st, &e);
    if (got != status || st)
        fail_msg("status %d, not %d, for '%s': %s", got, status, cause, e.message);
    if (strncmp(e.message, path, strlen(path)) != 0 || !strstr(e.message, cause))
        fail_msg("message '%s' lacks '%s'", e.message, cause);
}

static void test_lengths(void **state)
{
    (void)state;
    folder_write(&dir, "x", "", 0);
    refuse(FL_FORMAT, "has 0 bytes");
    folder_write(&dir, "x", "\2\0\0\0\0\0\0", 7);
    refuse(FL_FORMAT, "has 7 bytes");
    folder_write(&dir, "x", "\0\0\0\0\0\0\0\0", 8);
    refuse(FL_FORMAT, "does not begin with '{'");
    /* Lengths that would wrap when 8 is added, exceed the file, or miss it by one. */
    static const uint64_t lengths[] = {UINT64_MAX, UINT64_MAX - 7, UINT64_MAX - 8,
                                       INT64_MAX,  UINT32_MAX,     3};
    for (size_t i = 0; i < sizeof lengths / sizeof *lengths; i++) {
        char bytes[10] = "........{}";
        memcpy(bytes, &lengths[i], 8);
        folder_write(&dir, "x", bytes, sizeof bytes);
        refuse(FL_FORMAT, "but only 2 follow");
    }
    folder_shard(&dir, "x", "[]", 0);
    refuse(FL_FORMAT, "does not begin with '{'");
    folder_shard(&dir, "x", "  {}", 0);
    refuse(FL_FORMAT, "does not begin with '{'");
}

static void test_huge_header(void **state)
{
    (void)state;
    uint64_t len = (100u << 20) + 1;
    folder_write(&dir, "x", &len, 8);
    assert_int_equal(truncate(folder_file(&dir, "x"), (off_t)len + 8), 0); /* sparse */
    refuse(FL_FORMAT, "at most 104857600 are allowed");
}

/* The data part has 16 bytes.  The cause names the tensor. */
static const struct {
    const char *header, *cause;
    fl_status status;
} headers[] = {
    /* JSON */
    {"{ ", "header: line 1", FL_FORMAT},
    {"{} x", "header: line 1", FL_FORMAT},
    {"{\"a\":{\"dtype\":\"U8\",\"shape\":[16],\"data_offsets\":[0,16]},"
     "\"a\":{\"dtype\":\"U8\",\"shape\":[16],\"data_offsets\":[0,16]}}",
     "duplicate object key near '\"a\"'", FL_FORMAT},
    {"{\"\xff\":1}", "invalid UTF-8", FL_FORMAT},
    {"{\"a\\u0000b\":1}", "NUL", FL_FORMAT},
    {"{\"\":{\"dtype\":\"U8\",\"shape\":[16],\"data_offsets\":[0,16]}}", "empty name", FL_FORMAT},
    /* entries */
    {"{\"a\":7}", "tensor a: its entry is an integer", FL_FORMAT},
    {"{\"a\":{\"shape\":[16],\"data_offsets\":[0,16]}}", "tensor a: dtype is missing", FL_FORMAT},
    {"{\"a\":{\"dtype\":8,\"shape\":[16],\"data_offsets\":[0,16]}}",
     "tensor a: dtype is an integer", FL_FORMAT},
    {"{\"a\":{\"dtype\":\"F4\",\"shape\":[16],\"data_offsets\":[0,16]}}",
     "tensor a: dtype F4 is not supported", FL_UNSUPPORTED},
    {"{\"a\":{\"dtype\":\"MXFP4\",\"shape\":[32],\"data_offsets\":[0,16]}}",
     "tensor a: dtype MXFP4 is not supported", FL_UNSUPPORTED},
    {"{\"a\":{\"dtype\":\"U8\",\"data_offsets\":[0,16]}}", "tensor a: shape is missing", FL_FORMAT},
    {"{\"a\":{\"dtype\":\"U8\",\"shape\":16,\"data_offsets\":[0,16]}}",
     "tensor a: shape is an integer", FL_FORMAT},
    {"{\"a\":{\"dtype\":\"U8\",\"shape\":[-16],\"data_offsets\":[0,16]}}",
     "tensor a: shape[0] is -16, which is negative", FL_FORMAT},
    {"{\"a\":{\"dtype\":\"U8\",\"shape\":[-4,-4],\"data_offsets\":[0,16]}}",
     "tensor a: shape[0] is -4, which is negative", FL_FORMAT},
    {"{\"a\":{\"dtype\":\"U8\",\"shape\":[16.0],\"data_offsets\":[0,16]}}",
     "tensor a: shape[0] is a fraction", FL_FORMAT},
    {"{\"a\":{\"dtype\":\"U8\",\"shape\":[1e1],\"data_offsets\":[0,16]}}",
     "tensor a: shape[0] is a fraction", FL_FORMAT},
    {"{\"a\":{\"dtype\":\"U8\",\"shape\":[null],\"data_offsets\":[0,16]}}",
     "tensor a: shape[0] is null", FL_FORMAT},
    {"{\"a\":{\"dtype\":\"U8\",\"shape\":[18446744073709551632],\"data_offsets\":[0,16]}}",
     "too big integer", FL_FORMAT},
    {"{\"a\":{\"dtype\":\"U8\",\"shape\":[1,1,1,1,1,1,16],\"data_offsets\":[0,16]}}",
     "tensor a: shape has 7 dims", FL_UNSUPPORTED},
    /* products that wrap to 16, to 0, and a zero that hides an absurd dim */
    {"{\"a\":{\"dtype\":\"U8\",\"shape\":[4294967296,4294967296,16],\"data_offsets\":[0,16]}}",
     "tensor a: shape [4294967296, 4294967296, 16] is too large", FL_FORMAT},
    {"{\"a\":{\"dtype\":\"U8\",\"shape\":[3,6148914691236517211],\"data_offsets\":[0,16]}}",
     "is too large", FL_FORMAT},
    {"{\"a\":{\"dtype\":\"F64\",\"shape\":[2305843009213693954],\"data_offsets\":[0,16]}}",
     "is too large", FL_FORMAT},
    {"{\"a\":{\"dtype\":\"U8\",\"shape\":[0,4294967296,4294967296],\"data_offsets\":[0,0]}}",
     "is too large", FL_FORMAT},
    /* offsets */
    {"{\"a\":{\"dtype\":\"U8\",\"shape\":[16]}}", "tensor a: data_offsets is missing", FL_FORMAT},
    {"{\"a\":{\"dtype\":\"U8\",\"shape\":[16],\"data_offsets\":[16]}}",
     "tensor a: data_offsets has 1 numbers", FL_FORMAT},
    {"{\"a\":{\"dtype\":\"U8\",\"shape\":[16],\"data_offsets\":[0,8,16]}}",
     "tensor a: data_offsets has 3 numbers", FL_FORMAT},
    {"{\"a\":{\"dtype\":\"U8\",\"shape\":[16],\"data_offsets\":[-16,0]}}",
     "tensor a: data_offsets[0] is -16, which is negative", FL_FORMAT},
    {"{\"a\":{\"dtype\":\"U8\",\"shape\":[16],\"data_offsets\":[0,\"16\"]}}",
     "tensor a: data_offsets[1] is a string", FL_FORMAT},
    {"{\"a\":{\"dtype\":\"U8\",\"shape\":[16],\"data_offsets\":[16,0]}}",
     "tensor a: data_offsets are inverted", FL_FORMAT},
    {"{\"a\":{\"dtype\":\"U8\",\"shape\":[17],\"data_offsets\":[0,17]}}",
     "tensor a: it ends at byte 80 of the file, which has 79: a truncated", FL_FORMAT},
    {"{\"a\":{\"dtype\":\"U8\",\"shape\":[0],\"data_offsets\":[9223372036854775807,"
     "9223372036854775807]}}",
     "tensor a: it ends at byte", FL_FORMAT},
    {"{\"a\":{\"dtype\":\"F32\",\"shape\":[5],\"data_offsets\":[0,16]}}",
     "tensor a: F32 [5] needs 20 bytes, data_offsets give 16", FL_FORMAT},
    {"{\"a\":{\"dtype\":\"BF16\",\"shape\":[4,4],\"data_offsets\":[0,16]}}",
     "tensor a: BF16 [4, 4] needs 32 bytes", FL_FORMAT},
    {"{\"a\":{\"dtype\":\"U8\",\"shape\":[],\"data_offsets\":[0,16]}}",
     "tensor a: U8 [] needs 1 bytes", FL_FORMAT},
    {"{\"a\":{\"dtype\":\"U8\",\"shape\":[10],\"data_offsets\":[0,10]},"
     "\"b\":{\"dtype\":\"U8\",\"shape\":[8],\"data_offsets\":[8,16]}}",
     "tensor b overlaps tensor a", FL_FORMAT},
    {"{\"b\":{\"dtype\":\"U8\",\"shape\":[16],\"data_offsets\":[0,16]},"
     "\"a\":{\"dtype\":\"U8\",\"shape\":[16],\"data_offsets\":[0,16]}}",
     "overlaps", FL_FORMAT},
    {"{\"a\":{\"dtype\":\"U8\",\"shape\":[8],\"data_offsets\":[8,16]}}",
     "8 bytes before tensor a belong to no tensor", FL_FORMAT},
    {"{\"a\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[0,4]},"
     "\"b\":{\"dtype\":\"U8\",\"shape\":[8],\"data_offsets\":[8,16]}}",
     "4 bytes before tensor b belong to no tensor", FL_FORMAT},
    {"{\"a\":{\"dtype\":\"U8\",\"shape\":[12],\"data_offsets\":[0,12]}}",
     "4 bytes after the last tensor", FL_FORMAT},
    {"{}", "16 bytes after the last tensor", FL_FORMAT},
};

static void test_headers(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof headers / sizeof *headers; i++) {
        folder_shard(&dir, "x", headers[i].header, 16);
        refuse(headers[i].status, headers[i].cause);
    }
}

static void test_unaligned(void **state)
{
    (void)state;
    /* Aligned within the data part, but the header is one byte too long... */
    char text[128] = "{\"a\":{\"dtype\":\"F32\",\"shape\":[4],\"data_offsets\":[0,16]}}";
    while ((8 + strlen(text)) % 4 != 1)
        strcat(text, " ");
    folder_shard(&dir, "x", text, 16);
    refuse(FL_FORMAT, "tensor a: it begins at byte");
    /* ...or a byte tensor comes first. */
    snprintf(text, sizeof text, "%s",
             "{\"a\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1]},"
             "\"b\":{\"dtype\":\"U16\",\"shape\":[1],\"data_offsets\":[1,3]}}");
    while (strlen(text) % 2)
        strcat(text, " ");
    folder_shard(&dir, "x", text, 3);
    refuse(FL_FORMAT, "tensor b: it begins at byte");
}

static void test_deep_and_wide_headers(void **state)
{
    (void)state;
    size_t n = (size_t)26 << 20; /* bytes; three of them make a value */
    char *text = malloc(n + 1);
    assert_non_null(text);
    memset(text, '[', n);
    memcpy(text, "{\"a\":", 5);
    text[n] = 0;
    folder_shard(&dir, "x", text, 0);
    refuse(FL_FORMAT, "nested more than 128 deep");
    for (size_t i = 6; i + 3 <= n; i += 3)
        memcpy(text + i, "[],", 3);
    folder_shard(&dir, "x", text, 0);
    refuse(FL_FORMAT, "more than 8388608 values");
    free(text);
}

static void test_not_a_file(void **state)
{
    (void)state;
    refuse(FL_NOTFOUND, "No such file");
    folder_text(&dir, "x",
                "version https://git-lfs.github.com/spec/v1\n"
                "oid sha256:4d7a214614ab2935c943f9e0ff69d22eadbb8f32b1258daaa5e2ca24d17e2393\n"
                "size 12345\n");
    refuse(FL_NOTFOUND, "Git LFS pointer");
    assert_int_equal(unlink(folder_file(&dir, "x")), 0);
    assert_int_equal(mkfifo(folder_file(&dir, "x"), 0600), 0);
    refuse(FL_IO, "not a regular file");
    assert_int_equal(unlink(folder_file(&dir, "x")), 0);
    assert_int_equal(mkdir(folder_file(&dir, "x"), 0700), 0);
    refuse(FL_IO, "not a regular file");
}

static void test_terminal_codes_in_names(void **state)
{
    (void)state;
    folder_shard(&dir, "x", "{\"\\u001b[2J\\u009b\":1}", 16);
    refuse(FL_FORMAT, "tensor ?[2J??: its entry");
}

static void test_accepted(void **state)
{
    (void)state;
    /* Any order of entries, scalars, empty tensors anywhere, metadata, unknown keys, padding. */
    folder_shard(&dir, "x",
                 "{\"z\":{\"dtype\":\"U8\",\"shape\":[8],\"data_offsets\":[8,16],\"extra\":[]},"
                 "\"__metadata__\":{\"format\":\"pt\"},"
                 "\"s\":{\"dtype\":\"U8\",\"shape\":[],\"data_offsets\":[7,8]},"
                 "\"e\":{\"dtype\":\"F32\",\"shape\":[3,0],\"data_offsets\":[7,7]},"
                 "\"a\":{\"dtype\":\"BOOL\",\"shape\":[7,1],\"data_offsets\":[0,7]}}   ",
                 16);
    fl_safetensors *st;
    fl_error e;
    assert_int_equal(fl_safetensors_open(folder_file(&dir, "x"), &st, &e), FL_OK);
    assert_int_equal(fl_safetensors_count(st), 4);
    assert_string_equal(fl_safetensors_name(st, 0), "a");
    assert_string_equal(fl_safetensors_name(st, 1), "e");
    assert_string_equal(fl_safetensors_name(st, 2), "s");
    assert_string_equal(fl_safetensors_name(st, 3), "z");
    assert_null(fl_safetensors_name(st, 4));
    assert_null(fl_safetensors_at(st, 4));
    const fl_tensor *t = fl_safetensors_find(st, "s");
    assert_ptr_equal(t, fl_safetensors_at(st, 2));
    assert_int_equal(t->ndim, 0);
    assert_int_equal(*(const uint8_t *)t->data, 7);
    assert_int_equal(*(const uint8_t *)fl_safetensors_find(st, "z")->data, 8);
    assert_null(fl_safetensors_find(st, "__metadata__"));
    fl_safetensors_close(st);
    fl_safetensors_close(NULL);
}

static void test_golden_files(void **state)
{
    (void)state;
    fl_safetensors *st;
    fl_error e;
    assert_int_equal(fl_safetensors_open(FL_TEST_DATA "/golden/text_short.safetensors", &st, &e),
                     FL_OK);
    const fl_tensor *t = fl_safetensors_find(st, "layers");
    assert_int_equal(t->dtype, FL_F32);
    assert_int_equal(fl_tensor_elements(t), 8 * 21 * 256);
    assert_int_equal(fl_safetensors_find(st, "ids")->dtype, FL_I32);
    fl_safetensors_close(st);
}

static const uint8_t bytes3[3] = {1, 2, 3};
static const float floats[6] = {0.5f, -1, 2, 3, 4, 5};
static const uint16_t halves[2] = {0x3f80, 0x4000};
static const char *const names[4] = {"b\"y\xc3\xa9", "f", "h", "none"};
static const fl_tensor tensors[4] = {
    {.dtype = FL_U8, .ndim = 1, .shape = {3}, .data = bytes3},
    {.dtype = FL_F32, .ndim = 2, .shape = {2, 3}, .data = floats},
    {.dtype = FL_BF16, .ndim = 1, .shape = {2}, .data = halves},
    {.dtype = FL_F64, .ndim = 1, .shape = {0}},
};

/* Counts the files of the folder. */
static int files(void)
{
    int n = 0;
    DIR *d = opendir(dir.path);
    assert_non_null(d);
    while (readdir(d))
        n++;
    closedir(d);
    return n - 2;
}

static void test_write(void **state)
{
    (void)state;
    fl_safetensors *st;
    fl_error e;
    folder_text(&dir, "x", "what was there before");
    assert_int_equal(fl_safetensors_write(folder_file(&dir, "x"), names, tensors, 4, &e), FL_OK);
    assert_int_equal(files(), 1);
    assert_int_equal(fl_safetensors_open(folder_file(&dir, "x"), &st, &e), FL_OK);
    assert_int_equal(fl_safetensors_count(st), 4);
    for (int i = 0; i < 4; i++) {
        const fl_tensor *t = fl_safetensors_find(st, names[i]);
        assert_non_null(t);
        assert_int_equal(t->dtype, tensors[i].dtype);
        assert_int_equal(t->ndim, tensors[i].ndim);
        assert_memory_equal(t->shape, tensors[i].shape, sizeof t->shape);
        if (tensors[i].data)
            assert_memory_equal(t->data, tensors[i].data, (size_t)fl_tensor_bytes(t));
    }
    fl_safetensors_close(st);
    assert_int_equal(fl_safetensors_write(folder_file(&dir, "x"), NULL, NULL, 0, &e), FL_OK);
    assert_int_equal(fl_safetensors_open(folder_file(&dir, "x"), &st, &e), FL_OK);
    assert_int_equal(fl_safetensors_count(st), 0);
    fl_safetensors_close(st);
}

static void refuse_write(const char *name, fl_tensor t, const char *cause)
{
    fl_error e;
    const char *twice[2] = {"f", name};
    const fl_tensor both[2] = {tensors[1], t};
    assert_int_equal(fl_safetensors_write(folder_file(&dir, "x"), twice, both, 2, &e), FL_ARGUMENT);
    if (!strstr(e.message, cause))
        fail_msg("message '%s' lacks '%s'", e.message, cause);
    assert_int_equal(files(), 0);
}

static void test_write_refused(void **state)
{
    (void)state;
    fl_tensor t = tensors[1];
    refuse_write("f", t, "tensor f is given twice");
    refuse_write("", t, "cannot be the name");
    refuse_write("__metadata__", t, "cannot be the name");
    t.data = NULL;
    refuse_write("g", t, "tensor g cannot be written");
    t = tensors[1];
    t.shape[0] = -2;
    refuse_write("g", t, "bad shape");
    t = tensors[1];
    t.dtype = FL_MXFP4;
    refuse_write("g", t, "MXFP4");
    fl_error e;
    assert_int_equal(fl_safetensors_write(folder_file(&dir, "no/x"), names, tensors, 4, &e), FL_IO);
    assert_non_null(strstr(e.message, folder_file(&dir, "no/x")));
    /* The target is a folder: the temporary file must not stay. */
    assert_int_equal(mkdir(folder_file(&dir, "x"), 0700), 0);
    assert_int_equal(fl_safetensors_write(folder_file(&dir, "x"), names, tensors, 4, &e), FL_IO);
    assert_int_equal(files(), 1);
}

static void test_write_without_memory(void **state)
{
    (void)state;
    fl_status s;
    long n = 0;
    do {
        fl_error e;
        fl_mem_fail_at(++n);
        s = fl_safetensors_write(folder_file(&dir, "x"), names, tensors, 4, &e);
        fl_mem_fail_at(0);
        assert_true(s == FL_OK || s == FL_NOMEM);
        assert_int_equal(files(), s == FL_OK);
    } while (s != FL_OK);
    assert_true(n > 3);
}

int main(void)
{
#define CASE(test) cmocka_unit_test_setup_teardown(test, set_up, tear_down)
    const struct CMUnitTest tests[] = {
        CASE(test_lengths),
        CASE(test_huge_header),
        CASE(test_headers),
        CASE(test_unaligned),
        CASE(test_deep_and_wide_headers),
        CASE(test_not_a_file),
        CASE(test_terminal_codes_in_names),
        CASE(test_accepted),
        CASE(test_golden_files),
        CASE(test_write),
        CASE(test_write_refused),
        CASE(test_write_without_memory),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
