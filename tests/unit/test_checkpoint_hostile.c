/* Checkpoint folders that lie: configurations, indexes and shards that do not belong together,
 * damaged data, seeded mutation of every file, every allocation failed once. */
#define _GNU_SOURCE
#include "support/cmocka_all.h"
#include "support/folder.h"
#include "support/rng.h"

#include "base/mem.h"
#include "checkpoint/checkpoint.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static folder dir;

/* Two shards: a, b in 1.safetensors and c in 2.safetensors. */
static const char header1[] =
    "{\"language_model.a\":{\"dtype\":\"BF16\",\"shape\":[2,2],\"data_offsets\":[0,8]},"
    "\"b\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[8,12]}} ";
static const char header2[] = "{\"c\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4]}}  ";
static const char index_text[] =
    "{\"metadata\":{\"total_size\":16},\"weight_map\":{\"language_model.a\":\"1.safetensors\","
    "\"b\":\"1.safetensors\",\"c\":\"2.safetensors\"}}";
static const char index_name[] = "model.safetensors.index.json";

static int set_up(void **state)
{
    (void)state;
    folder_make(&dir);
    folder_text(&dir, "config.json", "{\"model_type\": \"t\"}");
    folder_text(&dir, index_name, index_text);
    folder_shard(&dir, "1.safetensors", header1, 12);
    folder_shard(&dir, "2.safetensors", header2, 4);
    return 0;
}

static int tear_down(void **state)
{
    (void)state;
    folder_remove(&dir);
    return 0;
}

static fl_checkpoint *must_open(fl_open_mode mode)
{
    fl_checkpoint *ck;
    fl_error e;
    if (fl_checkpoint_open(dir.path, mode, &ck, &e) != FL_OK)
        fail_msg("refused: %s", e.message);
    return ck;
}

static void refuse(fl_status status, const char *file, const char *cause)
{
    fl_checkpoint *ck = NULL;
    fl_error e = {0};
    fl_status got = fl_checkpoint_open(dir.path, FL_OPEN_DATA, &ck, &e);
    if (got != status || ck)
        fail_msg("status %d, not %d, for '%s': %s", got, status, cause, e.message);
    if (!strstr(e.message, file) || !strstr(e.message, cause))
        fail_msg("message '%s' lacks '%s' or '%s'", e.message, file, cause);
}

static void test_sound(void **state)
{
    (void)state;
    folder_text(&dir, "stray.safetensors", "files that the index does not name are not looked at");
    fl_checkpoint *ck = must_open(FL_OPEN_DATA);
    assert_int_equal(fl_checkpoint_count(ck), 3);
    assert_int_equal(fl_checkpoint_shards(ck), 2);
    assert_string_equal(fl_checkpoint_find(ck, "a")->file, "1.safetensors");
    assert_null(fl_checkpoint_find(ck, "language_model.a"));
    assert_int_equal(fl_checkpoint_bytes(ck), 16);
    fl_checkpoint_close(ck);
    fl_checkpoint_close(NULL);
}

static void test_config(void **state)
{
    (void)state;
    folder_text(&dir, "config.json", "[1]");
    refuse(FL_CONFIG, "config.json", "holds an array");
    folder_text(&dir, "config.json", "{\"a\": tru}");
    refuse(FL_FORMAT, "config.json", "line 1 column");
    char deep[600];
    memset(deep, '[', sizeof deep);
    folder_write(&dir, "config.json", deep, sizeof deep);
    refuse(FL_FORMAT, "config.json", "nested");
    assert_int_equal(truncate(folder_file(&dir, "config.json"), 20 << 20), 0); /* sparse */
    refuse(FL_FORMAT, "config.json", "at most 16777216");
    assert_int_equal(unlink(folder_file(&dir, "config.json")), 0);
    refuse(FL_NOTFOUND, "config.json", "No such file");
    fl_checkpoint *ck;
    fl_error e;
    assert_int_equal(fl_checkpoint_open("/nowhere/at/all", FL_OPEN_DATA, &ck, &e), FL_NOTFOUND);
    assert_int_equal(fl_checkpoint_open(folder_file(&dir, index_name), FL_OPEN_DATA, &ck, &e),
                     FL_ARGUMENT);
}

static const struct {
    const char *text, *cause;
} indexes[] = {
    {"{", "line 1"},
    {"[]", "weight_map is missing"},
    {"{\"weight_map\": []}", "weight_map is an array"},
    {"{\"weight_map\": {}}", "weight_map is empty"},
    {"{\"weight_map\": {\"a\": 1}}", "tensor a: its shard 'an integer' is not a file name"},
    {"{\"weight_map\": {\"a\": \"\"}}", "tensor a: its shard '' is not a file name"},
    {"{\"weight_map\": {\"a\": \"../1.safetensors\"}}", "tensor a: its shard '../1.safetensors'"},
    {"{\"weight_map\": {\"a\": \"/etc/passwd\"}}", "tensor a: its shard '/etc/passwd'"},
    {"{\"weight_map\": {\"a\": \"sub/1.safetensors\"}}", "is not a file name"},
    {"{\"weight_map\": {\"a\": \"..\"}}", "tensor a: its shard '..' is not a file name"},
    {"{\"weight_map\": {\"a\": \".\"}}", "tensor a: its shard '.' is not a file name"},
    {"{\"weight_map\": {\"a\": \"1.safetensors\\u0000.txt\"}}", "is not a file name"},
    {"{\"weight_map\": {\"\": \"1.safetensors\"}}", "empty name"},
    {"{\"weight_map\": {\"a\": \"1.safetensors\", \"a\": \"2.safetensors\"}}", "duplicate"},
    {"{\"weight_map\": {\"a\": \"1.safetensors\", \"language_model.a\": \"1.safetensors\"}}",
     "tensor a is named twice"},
    {"{\"metadata\": {\"total_size\": -1}, \"weight_map\": {\"a\": \"x\"}}", "total_size"},
    {"{\"metadata\": {\"total_size\": 1.5}, \"weight_map\": {\"a\": \"x\"}}", "total_size"},
    {"{\"metadata\": {\"total_size\": \"16\"}, \"weight_map\": {\"a\": \"x\"}}", "total_size"},
    {"{\"metadata\": {\"total_size\": 1e300}, \"weight_map\": {\"a\": \"x\"}}", "total_size"},
    {"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 9\n", "Git LFS pointer"},
};

static void test_indexes(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof indexes / sizeof *indexes; i++) {
        folder_text(&dir, index_name, indexes[i].text);
        refuse(strncmp(indexes[i].text, "version", 7) ? FL_FORMAT : FL_NOTFOUND, index_name,
               indexes[i].cause);
    }
    char name[300], text[400];
    memset(name, 'n', sizeof name - 1);
    name[sizeof name - 1] = 0;
    snprintf(text, sizeof text, "{\"weight_map\": {\"a\": \"%s\"}}", name);
    folder_text(&dir, index_name, text);
    refuse(FL_FORMAT, index_name, "is not a file name");
}

static void test_too_many_shards(void **state)
{
    (void)state;
    char *text = malloc(200000), *p = text;
    assert_non_null(text);
    p += sprintf(p, "{\"weight_map\":{\"t\":\"s\"");
    for (int i = 0; i < 4096; i++)
        p += sprintf(p, ",\"t%d\":\"s%d\"", i, i);
    strcpy(p, "}}");
    folder_text(&dir, index_name, text);
    free(text);
    refuse(FL_FORMAT, index_name, "more than 4096 shards");
}

static void test_index_without_metadata(void **state)
{
    (void)state;
    folder_text(&dir, index_name,
                "{\"metadata\":{\"total_size\":1.6e1},\"weight_map\":{\"a\":\"1.safetensors\","
                "\"b\":\"1.safetensors\",\"language_model.c\":\"2.safetensors\"}}");
    fl_checkpoint *ck = must_open(FL_OPEN_DATA); /* the prefix may differ between the two */
    fl_error e;
    assert_int_equal(fl_checkpoint_verify(ck, NULL, NULL, &e), FL_OK);
    fl_checkpoint_close(ck);
    folder_text(&dir, index_name,
                "{\"weight_map\":{\"a\":\"1.safetensors\",\"c\":\"2.safetensors\"}}");
    ck = must_open(FL_OPEN_DATA);
    /* The index does not name b; its shard holds it. */
    assert_int_equal(fl_checkpoint_count(ck), 3);
    assert_string_equal(fl_checkpoint_find(ck, "b")->file, "1.safetensors");
    assert_true(fl_checkpoint_find(ck, "b")->shape_known);
    assert_int_equal(fl_checkpoint_verify(ck, NULL, NULL, &e), FL_OK);
    fl_checkpoint_close(ck);
}

static void test_shards(void **state)
{
    (void)state;
    assert_int_equal(truncate(folder_file(&dir, "1.safetensors"), (off_t)sizeof header1 + 7 + 11),
                     0);
    refuse(FL_FORMAT, "1.safetensors: ", "tensor b: it ends at byte");
    assert_int_equal(truncate(folder_file(&dir, "1.safetensors"), 50), 0);
    refuse(FL_FORMAT, "1.safetensors: ", "the header should have");
    folder_text(&dir, "1.safetensors", "version https://git-lfs.github.com/spec/v1\n");
    refuse(FL_NOTFOUND, "1.safetensors: ", "Git LFS pointer");
    assert_int_equal(unlink(folder_file(&dir, "1.safetensors")), 0);
    refuse(FL_NOTFOUND, "1.safetensors: ", "the shard is missing from");
}

static void test_disagreement(void **state)
{
    (void)state;
    /* c is in the index, but its shard lacks it. */
    folder_shard(&dir, "2.safetensors", "{}", 0);
    refuse(FL_FORMAT, "2.safetensors: ", "tensor c is missing, the index says it is here");
    /* The other shard holds it. */
    folder_text(&dir, index_name,
                "{\"weight_map\":{\"a\":\"1.safetensors\",\"b\":\"2.safetensors\"}}");
    refuse(FL_FORMAT, "1.safetensors: ", "tensor b belongs to 2.safetensors");
    /* Two shards hold a tensor that the index does not name. */
    folder_text(&dir, index_name,
                "{\"weight_map\":{\"a\":\"1.safetensors\",\"c\":\"2.safetensors\"}}");
    folder_shard(&dir, "2.safetensors",
                 "{\"c\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[0,4]},"
                 "\"b\":{\"dtype\":\"U8\",\"shape\":[0],\"data_offsets\":[4,4]}}",
                 4);
    refuse(FL_FORMAT, "2.safetensors: ", "tensor b belongs to 1.safetensors");
    /* One shard holds a name with and without the prefix. */
    folder_shard(&dir, "2.safetensors",
                 "{\"c\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[0,4]},"
                 "\"language_model.c\":{\"dtype\":\"U8\",\"shape\":[0],\"data_offsets\":[4,4]}}",
                 4);
    refuse(FL_FORMAT, "2.safetensors: ", "tensor c is there twice");
}

static void test_single_file(void **state)
{
    (void)state;
    assert_int_equal(unlink(folder_file(&dir, index_name)), 0);
    refuse(FL_FORMAT, dir.path, "but no model.safetensors.index.json");
    assert_int_equal(unlink(folder_file(&dir, "2.safetensors")), 0);
    folder_text(&dir, "._1.safetensors", "left by another system");
    folder_text(&dir, "1.safetensors.tmp", "half of a download");
    fl_checkpoint *ck = must_open(FL_OPEN_DATA);
    assert_int_equal(fl_checkpoint_count(ck), 2);
    assert_int_equal(fl_checkpoint_bytes(ck), 12);
    assert_non_null(fl_checkpoint_find(ck, "a"));
    fl_checkpoint_close(ck);
    assert_int_equal(unlink(folder_file(&dir, "1.safetensors")), 0);
    refuse(FL_NOTFOUND, dir.path, "holds neither");
}

static void test_survey(void **state)
{
    (void)state;
    /* One shard absent, the other a pointer, then none, then the index a pointer, then none. */
    assert_int_equal(unlink(folder_file(&dir, "1.safetensors")), 0);
    fl_checkpoint *ck = must_open(FL_OPEN_SURVEY);
    const fl_tensor_info *t = fl_checkpoint_find(ck, "a");
    assert_false(t->shape_known);
    assert_string_equal(t->file, "1.safetensors");
    assert_true(t->begin == 0 && t->end == 0);
    assert_null(t->tensor.data);
    assert_true(fl_checkpoint_find(ck, "c")->shape_known);
    assert_true(fl_checkpoint_has_tensors(ck));
    assert_false(fl_checkpoint_has_data(ck));
    assert_int_equal(fl_checkpoint_bytes(ck), 16); /* as the index says */
    fl_error e;
    assert_int_equal(fl_checkpoint_verify(ck, NULL, NULL, &e), FL_NOTFOUND);
    fl_checkpoint_close(ck);

    folder_text(&dir, "2.safetensors", "version https://git-lfs.github.com/spec/v1\n");
    ck = must_open(FL_OPEN_SURVEY);
    assert_false(fl_checkpoint_find(ck, "c")->shape_known);
    fl_checkpoint_close(ck);

    folder_text(&dir, "2.safetensors", "rubbish instead of a shard");
    assert_int_equal(fl_checkpoint_open(dir.path, FL_OPEN_SURVEY, &ck, &e), FL_FORMAT);

    folder_text(&dir, index_name, "version https://git-lfs.github.com/spec/v1\n");
    ck = must_open(FL_OPEN_SURVEY);
    assert_false(fl_checkpoint_has_tensors(ck));
    assert_false(fl_checkpoint_has_data(ck));
    assert_non_null(fl_json_get(fl_checkpoint_config(ck), "model_type"));
    fl_checkpoint_close(ck);

    assert_int_equal(unlink(folder_file(&dir, index_name)), 0);
    assert_int_equal(unlink(folder_file(&dir, "2.safetensors")), 0);
    ck = must_open(FL_OPEN_SURVEY);
    assert_int_equal(fl_checkpoint_count(ck), 0);
    fl_checkpoint_close(ck);

    assert_int_equal(fl_checkpoint_open(folder_file(&dir, "config.json"), FL_OPEN_SURVEY, &ck, &e),
                     FL_OK);
    assert_string_equal(fl_checkpoint_dir(ck), dir.path);
    assert_false(fl_checkpoint_has_tensors(ck));
    fl_checkpoint_close(ck);
}

typedef struct seen {
    uint64_t done, total;
    int calls;
} seen;

static void watch(void *ctx, uint64_t done, uint64_t total)
{
    seen *s = ctx;
    assert_true(done > s->done && done <= total);
    s->done = done;
    s->total = total;
    s->calls++;
}

static void refuse_data(fl_status status, const char *cause)
{
    fl_checkpoint *ck = must_open(FL_OPEN_DATA);
    fl_error e;
    assert_int_equal(fl_checkpoint_verify(ck, NULL, NULL, &e), status);
    if (!strstr(e.message, cause))
        fail_msg("message '%s' lacks '%s'", e.message, cause);
    fl_checkpoint_close(ck);
}

static void test_verify(void **state)
{
    (void)state;
    fl_checkpoint *ck = must_open(FL_OPEN_DATA);
    fl_error e;
    seen s = {0};
    assert_int_equal(fl_checkpoint_verify(ck, watch, &s, &e), FL_OK);
    assert_true(s.done == 16 && s.total == 16 && s.calls == 3);
    /* The file shrinks under our hands: an error, not a signal. */
    assert_int_equal(truncate(folder_file(&dir, "1.safetensors"), (off_t)sizeof header1 + 7 + 9),
                     0);
    assert_int_equal(fl_checkpoint_verify(ck, NULL, NULL, &e), FL_IO);
    assert_non_null(strstr(e.message, "1.safetensors: tensor b: byte"));
    assert_int_equal(unlink(folder_file(&dir, "2.safetensors")), 0);
    folder_shard(&dir, "1.safetensors", header1, 12);
    assert_int_equal(fl_checkpoint_verify(ck, NULL, NULL, &e), FL_IO);
    assert_non_null(strstr(e.message, "2.safetensors: No such file"));
    fl_checkpoint_close(ck);

    folder_shard(&dir, "2.safetensors", header2, 4);
    folder_text(&dir, index_name,
                "{\"metadata\":{\"total_size\":17},\"weight_map\":{\"c\":\"2.safetensors\","
                "\"a\":\"1.safetensors\"}}");
    refuse_data(FL_FORMAT, "hold 16 bytes of tensors, metadata.total_size of the index says 17");
}

static void test_verify_nan(void **state)
{
    (void)state;
    static const struct {
        const char *name, *dtype;
        int size;
        uint32_t sound, nan;
    } cases[] = {
        {"w.weight_scale", "U8", 1, 0xfe, 0xff},  {"w", "F8_E8M0", 1, 0xfe, 0xff},
        {"w", "F8_E4M3", 1, 0xfe, 0xff},          {"w", "F8_E5M2", 1, 0xfc, 0xfd},
        {"w", "F16", 2, 0xfc00, 0x7c01},          {"w", "BF16", 2, 0xff80, 0xffc0},
        {"w", "F32", 4, 0xff800000u, 0x7f800001},
    };
    folder_text(&dir, index_name, "{\"weight_map\":{\"w\":\"1.safetensors\"}}");
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char text[200];
        snprintf(text, sizeof text, "{\"weight_map\":{\"%s\":\"1.safetensors\"}}", cases[i].name);
        folder_text(&dir, index_name, text);
        int len = snprintf(text, sizeof text,
                           "{\"%s\":{\"dtype\":\"%s\",\"shape\":[4],\"data_offsets\":[0,%d]}}",
                           cases[i].name, cases[i].dtype, cases[i].size * 4);
        while (len % 8)
            text[len++] = ' ';
        text[len] = 0;
        folder_shard(&dir, "1.safetensors", text, (size_t)cases[i].size * 4);
        for (int nan = 0; nan < 2; nan++) {
            FILE *f = fopen(folder_file(&dir, "1.safetensors"), "r+b");
            assert_non_null(f);
            uint32_t bits = nan ? cases[i].nan : cases[i].sound;
            assert_int_equal(fseek(f, 8 + len + cases[i].size * 2, SEEK_SET), 0);
            assert_int_equal(fwrite(&bits, (size_t)cases[i].size, 1, f), 1);
            fclose(f);
            if (nan) {
                snprintf(text, sizeof text, "1.safetensors: tensor %s: element 2 is NaN",
                         cases[i].name);
                refuse_data(FL_FORMAT, text);
            } else {
                refuse_data(FL_OK, "");
            }
        }
    }
}

/* Reads every byte that an open checkpoint gives out, so that the sanitizer can object. */
static unsigned touch(const fl_checkpoint *ck)
{
    unsigned sum = 0;
    for (size_t i = 0; i < fl_checkpoint_count(ck); i++) {
        const fl_tensor_info *t = fl_checkpoint_at(ck, i);
        assert_int_equal(fl_tensor_bytes(&t->tensor), t->end - t->begin);
        for (uint64_t k = 0; k < t->end - t->begin; k++)
            sum += ((const uint8_t *)t->tensor.data)[k];
        sum += (unsigned)strlen(t->name) + (unsigned)strlen(t->file);
    }
    return sum;
}

static size_t mutate(rng *r, char *bytes, size_t n, size_t cap)
{
    static const char *const words[] = {"-1",
                                        "18446744073709551615",
                                        "9223372036854775807",
                                        "[",
                                        "]",
                                        "{",
                                        "\"",
                                        ",",
                                        "1e5",
                                        "null",
                                        "\\u0000",
                                        "0"};
    for (int64_t k = rng_int(r, 1, 4); k > 0; k--) {
        size_t at = (size_t)rng_int(r, 0, (int64_t)n - 1);
        const char *word = words[rng_int(r, 0, 11)];
        switch (rng_int(r, 0, 4)) {
        case 0:
            bytes[at] ^= (char)(1 << rng_int(r, 0, 7));
            break;
        case 1:
            bytes[at] = (char)rng_int(r, 0, 255);
            break;
        case 2:
            n = at + 1;
            break;
        case 3: /* a digit becomes another: sizes and offsets */
            while (at < n - 1 && (bytes[at] < '0' || bytes[at] > '9'))
                at++;
            bytes[at] = (char)('0' + rng_int(r, 0, 9));
            break;
        default:
            if (n + strlen(word) < cap) {
                memmove(bytes + at + strlen(word), bytes + at, n - at);
                memcpy(bytes + at, word, strlen(word));
                n += strlen(word);
            }
            break;
        }
    }
    return n;
}

static void test_mutations(void **state)
{
    (void)state;
    static const char *const files[3] = {"1.safetensors", index_name, "config.json"};
    char good[3][1024], bad[1024];
    size_t n[3];
    for (int i = 0; i < 3; i++) {
        FILE *f = fopen(folder_file(&dir, files[i]), "rb");
        assert_non_null(f);
        n[i] = fread(good[i], 1, sizeof good[i], f);
        fclose(f);
    }
    int opened = 0, refused = 0;
    for (uint64_t seed = 1; seed <= 5000; seed++) {
        rng r = {seed};
        int which = (int)rng_int(&r, 0, 8);
        which = which < 6 ? 0 : which < 8 ? 1 : 2;
        memcpy(bad, good[which], n[which]);
        folder_write(&dir, files[which], bad, mutate(&r, bad, n[which], sizeof bad));
        fl_checkpoint *ck = NULL;
        fl_error e = {0};
        fl_status s = fl_checkpoint_open(dir.path, FL_OPEN_DATA, &ck, &e);
        if (s == FL_OK) {
            (void)touch(ck);
            fl_status v = fl_checkpoint_verify(ck, NULL, NULL, &e);
            if (v != FL_OK && v != FL_FORMAT)
                fail_msg("seed %llu: verify gives %d", (unsigned long long)seed, v);
            opened++;
        } else {
            if (ck || !*e.message || s == FL_NOMEM || s == FL_INTERNAL)
                fail_msg("seed %llu: status %d, message '%s'", (unsigned long long)seed, s,
                         e.message);
            refused++;
        }
        fl_checkpoint_close(ck);
        folder_write(&dir, files[which], good[which], n[which]);
    }
    print_message("%d opened, %d refused\n", opened, refused);
    assert_true(opened > 100 && refused > 1000);
}

static void test_allocation_failures(void **state)
{
    (void)state;
    for (long n = 0, made = 0; n <= made; n++) {
        fl_checkpoint *ck = NULL;
        fl_error e;
        long before = fl_mem_count();
        fl_mem_fail_at(n);
        fl_status s = fl_checkpoint_open(dir.path, FL_OPEN_DATA, &ck, &e);
        if (s == FL_OK)
            s = fl_checkpoint_verify(ck, NULL, NULL, &e);
        fl_mem_fail_at(0);
        fl_checkpoint_close(ck);
        if (n == 0)
            made = fl_mem_count() - before; /* the first round fails nothing */
        if (s != (n == 0 ? FL_OK : FL_NOMEM) || (n > 0 && !strstr(e.message, "no memory")))
            fail_msg("allocation %ld: status %d, %s", n, s, e.message);
        assert_true(made > 100);
    }
}

int main(void)
{
#define CASE(test) cmocka_unit_test_setup_teardown(test, set_up, tear_down)
    const struct CMUnitTest tests[] = {
        CASE(test_sound),
        CASE(test_config),
        CASE(test_indexes),
        CASE(test_too_many_shards),
        CASE(test_index_without_metadata),
        CASE(test_shards),
        CASE(test_disagreement),
        CASE(test_single_file),
        CASE(test_survey),
        CASE(test_verify),
        CASE(test_verify_nan),
        CASE(test_mutations),
        CASE(test_allocation_failures),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
