/* The vocabulary as a tree of bytes, laid out in preorder: the children of a node follow it, and a
 * subtree that cannot match is skipped in one move. */
#include "engine/grammar_internal.h"

#include <stdlib.h>

typedef struct entry {
    fl_bytes text;
    int32_t id;
} entry;

static int compare(const void *a, const void *b)
{
    const entry *x = a, *y = b;
    size_t n = x->text.len < y->text.len ? x->text.len : y->text.len;
    int order = memcmp(x->text.data, y->text.data, n);
    if (order)
        return order;
    if (x->text.len != y->text.len)
        return x->text.len < y->text.len ? -1 : 1;
    return x->id < y->id ? -1 : 1;
}

static size_t shared_bytes(fl_bytes a, fl_bytes b)
{
    size_t n = 0;
    while (n < a.len && n < b.len && a.data[n] == b.data[n])
        n++;
    return n;
}

/* Fills the nodes; `open` is the path from the root to the node made last. */
static void fill(fl_token_trie *t, const entry *list, size_t n, int32_t *open)
{
    fl_bytes before = {0};
    size_t depth = 0;
    t->n = 1;
    t->token[0] = FL_NO_TOKEN;
    open[0] = 0;
    for (size_t i = 0; i < n; i++) {
        size_t shared = shared_bytes(before, list[i].text);
        for (; depth > shared; depth--)
            t->skip[open[depth]] = t->n;
        while (depth < list[i].text.len) {
            t->byte[t->n] = (uint8_t)list[i].text.data[depth++];
            t->depth[t->n] = (uint16_t)depth;
            t->token[t->n] = FL_NO_TOKEN;
            open[depth] = t->n++;
        }
        if (t->token[open[depth]] == FL_NO_TOKEN) /* of two with the same bytes the first */
            t->token[open[depth]] = list[i].id;
        t->all[list[i].id / 32] |= 1u << list[i].id % 32;
        before = list[i].text;
        if ((size_t)t->longest < before.len)
            t->longest = (int)before.len;
    }
    for (size_t d = 0; d <= depth; d++)
        t->skip[open[d]] = t->n;
}

static bool allocate(fl_token_trie *t, size_t nodes)
{
    t->all = fl_calloc((size_t)t->vocab / 32 + 1, sizeof *t->all);
    t->byte = fl_calloc(nodes, sizeof *t->byte);
    t->depth = fl_calloc(nodes, sizeof *t->depth);
    t->skip = fl_calloc(nodes, sizeof *t->skip);
    t->token = fl_calloc(nodes, sizeof *t->token);
    return t->all && t->byte && t->depth && t->skip && t->token;
}

fl_status fl_token_trie_create(const fl_tokenizer *tokenizer, fl_token_trie **out, fl_error *err)
{
    int64_t vocab = fl_tokenizer_size(tokenizer);
    fl_token_trie *t = fl_calloc(1, sizeof *t);
    entry *list = fl_realloc_array(NULL, (size_t)vocab + 1, sizeof *list);
    int32_t *open = NULL;
    size_t n = 0, nodes = 1, longest = 0;
    *out = NULL;
    for (int32_t id = 0; list && id < vocab; id++) {
        fl_bytes text = fl_tokenizer_bytes(tokenizer, id);
        if (text.len > 0 && text.len <= UINT16_MAX && !fl_tokenizer_is_special(tokenizer, id))
            list[n++] = (entry){text, id};
    }
    if (list && n)
        qsort(list, n, sizeof *list, compare);
    for (size_t i = 0; list && i < n; i++) {
        nodes += list[i].text.len - (i ? shared_bytes(list[i - 1].text, list[i].text) : 0);
        longest = list[i].text.len > longest ? list[i].text.len : longest;
    }
    open = fl_realloc_array(NULL, longest + 1, sizeof *open);
    if (t)
        t->vocab = vocab;
    if (t && list && open && nodes < INT32_MAX && allocate(t, nodes) &&
        (t->walks = fl_text_walks_create()) != NULL) {
        t->tokenizer = tokenizer;
        fill(t, list, n, open);
        *out = t;
    } else {
        fl_token_trie_destroy(t);
    }
    fl_free(list);
    fl_free(open);
    return *out ? FL_OK
                : fl_fail(err, FL_NOMEM, "no memory for a tree of %lld tokens", (long long)vocab);
}

void fl_token_trie_destroy(fl_token_trie *t)
{
    if (!t)
        return;
    fl_free(t->byte);
    fl_free(t->depth);
    fl_free(t->skip);
    fl_free(t->token);
    fl_free(t->all);
    fl_text_walks_free(t->walks);
    fl_free(t);
}
