#define _GNU_SOURCE
#include "support/model_support.h"

#include "support/cmocka_all.h"

#include "base/file.h"
#include "ops/ops.h"

#include <dirent.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

void model_open(opened *o, const char *dir, const fl_model_options *options)
{
    fl_error e = {0};
    if (fl_checkpoint_open(dir, FL_OPEN_DATA, &o->ck, &e) != FL_OK ||
        fl_model_open(o->ck, fl_ops_registry(), options, &o->m, &e) != FL_OK)
        fail_msg("%s", e.message);
}

void model_close(opened *o)
{
    fl_model_close(o->m);
    fl_checkpoint_close(o->ck);
}

void model_links(folder *f, const char *dir)
{
    folder_make(f);
    DIR *d = opendir(dir);
    assert_non_null(d);
    for (struct dirent *entry; (entry = readdir(d)) != NULL;) {
        char path[600];
        snprintf(path, sizeof path, "%s/%s", dir, entry->d_name);
        if (strchr(entry->d_name, '.') != entry->d_name &&
            symlink(path, folder_file(f, entry->d_name)) != 0)
            fail_msg("cannot link %s", path);
    }
    closedir(d);
}

void model_edit(const folder *f, const char *dir, const char *name, const char *from,
                const char *to)
{
    char path[600];
    fl_buf text = {0};
    fl_error e = {0};
    snprintf(path, sizeof path, "%s/%s", dir, name);
    if (fl_file_read(path, 1 << 20, &text, &e) != FL_OK)
        fail_msg("%s", e.message);
    const char *at = memmem(text.data, text.n, from, strlen(from));
    if (!at)
        fail_msg("%s does not hold %s", path, from);
    size_t head = (size_t)(at - text.data), tail = head + strlen(from);
    fl_buf out = {0};
    assert_true(fl_vec_append(&out, text.data, head) && fl_vec_append(&out, to, strlen(to)) &&
                fl_vec_append(&out, text.data + tail, text.n - tail));
    folder_write(f, name, out.data, out.n);
    fl_vec_free(&text);
    fl_vec_free(&out);
}

void model_links_with_tools(folder *f)
{
    model_links(f, FL_TEST_DATA "/linear");
    model_edit(f, FL_TEST_DATA "/linear", "tokenizer_config.json", "\"298\": {",
               "\"290\": {\"content\": \"<|tool_calls_section_begin|>\"},"
               "\"291\": {\"content\": \"<|tool_calls_section_end|>\"},"
               "\"292\": {\"content\": \"<|tool_call_begin|>\"},"
               "\"293\": {\"content\": \"<|tool_call_argument_begin|>\"},"
               "\"294\": {\"content\": \"<|tool_call_end|>\"}, \"298\": {");
}

fl_json *parse(const char *text)
{
    fl_json *v = NULL;
    fl_error e = {0};
    if (fl_json_parse(text, strlen(text), "test", &v, &e) != FL_OK)
        fail_msg("%s: %s", text, e.message);
    return v;
}

void assert_failed(fl_status status, fl_status expected, const fl_error *e, const char *words)
{
    if (status != expected || !strstr(e->message, words))
        fail_msg("status %d (%s), expected %d and \"%s\"", (int)status, e->message, (int)expected,
                 words);
}
