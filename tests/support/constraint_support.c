#include "support/constraint_support.h"

#include "base/mem.h"
#include "support/cmocka_all.h"

#include <string.h>

void writer_open(writer *w, const fl_tokenizer *t, int32_t stop)
{
    fl_error e = {0};
    *w = (writer){.tokenizer = t, .stop = stop};
    if (fl_token_trie_create(t, &w->trie, &e) != FL_OK)
        fail_msg("%s", e.message);
    w->allowed = fl_calloc((size_t)fl_tokenizer_size(t) / 32 + 1, sizeof *w->allowed);
    assert_non_null(w->allowed);
    assert_int_not_equal(stop, FL_NO_TOKEN);
}

void writer_close(writer *w)
{
    fl_token_trie_destroy(w->trie);
    fl_free(w->allowed);
}

bool writer_allows(const writer *w, int32_t id)
{
    return w->allowed[id / 32] >> id % 32 & 1;
}

/* A token among the allowed: any, or a control token or one that begins as closing things do.
 */
static int32_t pick(writer *w, rng *dice, bool closing)
{
    int64_t vocab = fl_tokenizer_size(w->tokenizer), start = rng_int(dice, 0, vocab - 1);
    if (closing && writer_allows(w, w->stop))
        return w->stop;
    int32_t any = FL_NO_TOKEN, chosen = FL_NO_TOKEN;
    int closers = 0;
    for (int64_t i = 0; i < vocab; i++) {
        int32_t id = (int32_t)((start + i) % vocab);
        if (!writer_allows(w, id))
            continue;
        fl_bytes text = fl_tokenizer_bytes(w->tokenizer, id);
        if (!closing)
            return id;
        any = id;
        if ((fl_tokenizer_is_special(w->tokenizer, id) ||
             (text.len && memchr("\"]}/", text.data[0], 4))) &&
            rng_one_in(dice, ++closers))
            chosen = id; /* each with the same chance */
    }
    return closers ? chosen : any;
}

bool writer_run(writer *w, fl_grammar *g, rng *dice, int64_t hurry, int64_t limit, fl_ids *ids)
{
    fl_matcher *m;
    fl_error e = {0};
    bool ended = false;
    ids->n = 0;
    assert_int_equal(fl_matcher_create(g, 1, &w->stop, 1, &m, &e), FL_OK);
    while (!ended && (int64_t)ids->n < limit) {
        if (fl_matcher_mask(m, 0, ids->data, (int64_t)ids->n, w->allowed, &e) != FL_OK)
            fail_msg("%s", e.message);
        int32_t id = pick(w, dice, (int64_t)ids->n >= hurry && !rng_one_in(dice, 8));
        if (id == FL_NO_TOKEN) {
            fl_buf text = {0};
            writer_text(w, ids, &text);
            fail_msg("no token may follow %s", text.data);
        }
        ended = id == w->stop;
        assert_true(ended || fl_vec_push(ids, id));
    }
    fl_matcher_destroy(m);
    return ended;
}

void writer_text(const writer *w, const fl_ids *ids, fl_buf *text)
{
    text->n = 0;
    for (size_t i = 0; i < ids->n; i++) {
        fl_bytes b = fl_tokenizer_bytes(w->tokenizer, ids->data[i]);
        assert_true(fl_vec_append(text, b.data, b.len));
    }
    assert_true(fl_vec_push(text, 0));
    text->n--;
}

void writer_check_mask(writer *w, fl_grammar *g, const fl_ids *ids, int64_t n)
{
    fl_matcher *m;
    fl_error e = {0};
    int64_t vocab = fl_tokenizer_size(w->tokenizer);
    size_t words = (size_t)vocab / 32 + 1;
    uint32_t *other = fl_calloc(words, sizeof *other);
    int32_t *answer = fl_calloc((size_t)n + 1, sizeof *answer);
    assert_true(other && answer);
    memcpy(answer, ids->data, (size_t)n * sizeof *answer);
    assert_int_equal(fl_matcher_create(g, 1, &w->stop, 1, &m, &e), FL_OK);
    assert_int_equal(fl_matcher_mask(m, 0, answer, n, w->allowed, &e), FL_OK);
    for (int32_t id = 0; id < vocab; id++) {
        if (id == w->stop)
            continue;
        answer[n] = id;
        /* Followed from the start each time, or only the last step when it fits. */
        bool fits = fl_matcher_mask(m, 0, answer, n + 1, other, &e) == FL_OK;
        if (fits != writer_allows(w, id))
            fail_msg("token %d after %lld: the mask says %d", id, (long long)n,
                     writer_allows(w, id));
        assert_int_equal(fl_matcher_mask(m, 0, answer, n, other, &e), FL_OK);
        assert_memory_equal(other, w->allowed, (size_t)(vocab / 32) * sizeof *other);
    }
    fl_matcher_destroy(m);
    fl_free(other);
    fl_free(answer);
}
