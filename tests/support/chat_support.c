#define _GNU_SOURCE
#include "support/chat_support.h"

#include "support/cmocka_all.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

void heard_free(heard *h)
{
    fl_vec_free(&h->log);
}

static void add(fl_buf *out, const char *text, size_t n)
{
    assert_true(fl_vec_append(out, text, n));
}

void hear(void *ctx, const fl_chat_event *e)
{
    static const char letters[] = "RCTAE";
    heard *h = ctx;
    if ((int)e->kind != h->kind || e->index != h->index) {
        char head[32];
        int n = snprintf(head, sizeof head, "%s%c", h->kind >= 0 ? "]" : "", letters[e->kind]);
        if (e->kind >= FL_CHAT_TOOL_BEGIN)
            n += snprintf(head + n, sizeof head - (size_t)n, "%d", e->index);
        add(&h->log, head, (size_t)n);
        add(&h->log, "[", 1);
    }
    h->kind = e->kind;
    h->index = e->index;
    add(&h->log, e->text.data, e->text.len);
}

void parse_answer(fl_model *m, bool thinking, const fl_ids *ids, int cut, rng *random, heard *h)
{
    fl_chat_parser *p;
    fl_error e = {0};
    h->log.n = 0;
    h->kind = h->index = -1;
    if (fl_chat_parser_create(m, thinking, hear, h, &p, &e) != FL_OK)
        fail_msg("%s", e.message);
    if (fl_chat_parser_tools(p, h->tools, &e) != FL_OK)
        fail_msg("%s", e.message);
    for (size_t i = 0, n; i < ids->n; i += n) {
        n = ids->n - i;
        if (cut == CUT_SINGLE)
            n = 1;
        else if (cut == CUT_RANDOM)
            n = (size_t)rng_int(random, 1, (int64_t)(n < 12 ? n : 12));
        if (fl_chat_parser_feed(p, ids->data + i, n, &e) != FL_OK)
            fail_msg("%s", e.message);
    }
    if (fl_chat_parser_end(p, &e) != FL_OK)
        fail_msg("%s", e.message);
    fl_chat_parser_destroy(p);
    if (h->kind >= 0)
        add(&h->log, "]", 1);
    add(&h->log, "", 1);
}

void encode(fl_model *m, const char *text, fl_ids *ids)
{
    const fl_tokenizer *t;
    fl_error e = {0};
    if (fl_model_tokenizer(m, &t, &e) != FL_OK ||
        fl_tokenizer_encode(t, text, strlen(text), true, ids, &e) != FL_OK)
        fail_msg("%s", e.message);
}

void chat_format_open(chat_format *t, const char *kind, const char *chat, const char *config)
{
    static const char header[] =
        "{\"embed\":{\"dtype\":\"F32\",\"shape\":[1500,2],\"data_offsets\":[0,12000]}}     ";
    _Static_assert((sizeof header - 1) % 8 == 0, "the data must be aligned");
    char path[512], text[1024];
    folder_make(&t->f);
    snprintf(path, sizeof path, "%s/tokenizers/%s/tokenizer.json", FL_TEST_DATA, kind);
    assert_int_equal(symlink(path, folder_file(&t->f, "tokenizer.json")), 0);
    folder_text(&t->f, "config.json", config);
    folder_shard(&t->f, "model.safetensors", header, 12000);
    snprintf(text, sizeof text,
             "return { name = 'test', stop = { '<|endoftext|>', '<|user|>', "
             "'<｜end▁of▁sentence｜>' }, tokenizer = { kind = 'hf', file = 'tokenizer.json' },\n"
             "chat = %s, build = function(g) g:at('here', 'part')\n"
             "g:output(g.gather_logits{ g.linear{ g.embed{ g:weight('embed', {1500, 2}) }, "
             "g:weight('embed', {1500, 2}) } }) end }",
             chat);
    folder_text(&t->f, "test.lua", text);
    snprintf(path, sizeof path, "%s", folder_file(&t->f, "test.lua"));
    fl_model_options options = {.definition = path, .models_dir = FL_MODELS};
    model_open(&t->o, t->f.path, &options);
}

void chat_format_close(chat_format *t)
{
    model_close(&t->o);
    folder_remove(&t->f);
}
