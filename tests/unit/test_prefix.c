/* The prefix index: random texts that begin alike, against what the text itself says; what is
 * dropped when; salts. */
#include "base/mem.h"
#include "state/prefix_internal.h"
#include "support/cmocka_all.h"
#include "support/rng.h"
#include "support/state_support.h"

#include <stdlib.h>
#include <string.h>

enum { PAGE = FL_PAGE_TOKENS, CONTEXT = 12 * PAGE, SEQS = 5, SNAPS = 6, FAMILIES = 3 };

static rng dice;

/* All that no live sequence holds. */
static void drop_idle(fl_prefix *px)
{
    fl_prefix_stats s;
    fl_prefix_get_stats(px, &s);
    assert_true(fl_prefix_make_room(px, fl_state_free_tokens(px->st) + s.idle));
}

static uint32_t rnd(uint32_t n)
{
    return (uint32_t)rng_int(&dice, 0, (int64_t)n - 1);
}

typedef struct text {
    bool live;
    uint64_t salt;
    int32_t ids[CONTEXT];
    float values[CONTEXT];
    int64_t n; /* of the prompt */
    fl_block last;
} text;

/* Tables and index are exactly what the counts say; the order of use is a permutation of the
 * blocks; parents are in the index. */
static void check_index(const fl_prefix *px)
{
    const fl_state *st = px->st;
    int32_t *count = calloc((size_t)st->n_pages, sizeof *count);
    int32_t blocks = 0, snaps = 0, listed = 0;
    for (int s = 0; s < st->limits.n_seqs; s++) {
        for (int i = 0; st->seqs[s].live && i < st->seqs[s].n_pages; i++)
            count[st->seqs[s].pages[i]]++;
    }
    int32_t *children = calloc((size_t)st->n_pages, sizeof *children);
    for (int p = 0; p < st->n_pages; p++) {
        const fl_block_info *k = &px->blocks[p];
        if (k->depth == 0)
            continue;
        count[p]++;
        blocks++;
        assert_int_equal(k->depth, k->parent == FL_NONE ? 1 : px->blocks[k->parent].depth + 1);
        assert_ptr_equal(&px->blocks[fl_block_find(px, k->salt, k->parent, fl_block_ids(px, p))],
                         k);
        if (k->parent != FL_NONE) {
            children[k->parent]++;
            assert_true(px->blocks[k->parent].depth > 0);
        }
        if (k->snap != FL_NONE) {
            snaps++;
            assert_int_equal(st->snaps[k->snap].owner, FL_OWNER_PREFIX);
            assert_int_equal(px->snap_at[k->snap], p);
        }
    }
    for (fl_block b = px->oldest; b != FL_NONE; b = px->blocks[b].newer) {
        assert_int_equal(px->blocks[b].n_children, children[b]);
        listed++;
    }
    assert_int_equal(blocks, px->n_blocks);
    assert_int_equal(listed, blocks);
    assert_int_equal(snaps, px->n_snaps);
    assert_true(snaps <= px->max_snaps);
    assert_memory_equal(count, st->refs, (size_t)st->n_pages * sizeof *count);
    free(count);
    free(children);
}

/* Texts of one family are alike up to a random point. */
static void write_text(text *t, int32_t family[FAMILIES][CONTEXT])
{
    const int32_t *f = family[rnd(FAMILIES)];
    t->n = 1 + rnd(CONTEXT - 1);
    t->salt = rnd(2);
    int64_t alike = rnd(4) == 0 ? rnd(CONTEXT) : rnd(CONTEXT / PAGE) * PAGE;
    for (int64_t i = 0; i < t->n; i++) {
        t->ids[i] = i < alike ? f[i] : (int32_t)rnd(1000);
        t->values[i] = (float)(t->ids[i] + 1000 * (int32_t)t->salt);
    }
}

static int64_t start(fl_prefix *px, fl_seq s, text *t)
{
    fl_prefix_hit hit = fl_prefix_find(px, t->salt, t->ids, t->n);
    assert_true(hit.resume <= hit.known && hit.known < t->n);
    assert_true(hit.resume % PAGE == 0 && hit.known % PAGE == 0);
    fl_prefix_resume(px, s, &hit);
    t->live = true;
    t->last = hit.block;
    state_check(px->st, s, t->values, hit.resume);
    return hit.resume;
}

static void go_on(fl_prefix *px, fl_seq s, text *t)
{
    int64_t pos = fl_state_pos(px->st, s);
    int64_t end = pos / PAGE * PAGE + PAGE * (1 + (int64_t)rnd(3));
    end = end < t->n ? end : t->n;
    if (end == pos)
        return;
    fl_status ok = fl_state_extend(px->st, s, end - pos, NULL);
    if (ok == FL_BUSY && fl_prefix_make_room(px, end - pos + PAGE))
        ok = fl_state_extend(px->st, s, end - pos, NULL);
    if (ok != FL_OK)
        return;
    state_write(px->st, s, t->values + pos, end - pos);
    fl_prefix_add(px, t->salt, s, t->ids, end / PAGE * PAGE, &t->last);
    if (end % PAGE == 0 && rnd(2))
        fl_prefix_snapshot(px, s, t->last);
}

static int64_t run_random(uint32_t seed)
{
    dice = (rng){seed};
    int32_t family[FAMILIES][CONTEXT];
    for (int f = 0; f < FAMILIES; f++) {
        for (int i = 0; i < CONTEXT; i++)
            family[f][i] = (int32_t)rnd(1000);
    }
    fl_state *st = state_make(SEQS, SNAPS, PAGE * (15 + (int64_t)rnd(50)), CONTEXT);
    fl_prefix *px;
    assert_int_equal(fl_prefix_create(st, 1 + (int32_t)rnd(SNAPS), &px, NULL), FL_OK);
    text *texts = calloc(SEQS, sizeof *texts);
    int64_t saved = 0;
    for (int i = 0; i < 400; i++) {
        fl_seq s = (fl_seq)rnd(SEQS);
        text *t = &texts[s];
        if (!t->live) {
            fl_seq got;
            assert_int_equal(fl_state_admit(st, &got, NULL), FL_OK);
            t = &texts[got];
            write_text(t, family);
            saved += start(px, got, t);
        } else if (rnd(8) == 0) {
            fl_state_release(st, s);
            t->live = false;
        } else {
            go_on(px, s, t);
        }
        if (rnd(40) == 0)
            (void)fl_prefix_make_room(px, (int64_t)rnd(CONTEXT));
        if (rnd(100) == 0)
            drop_idle(px);
        check_index(px);
        for (int k = 0; k < SEQS; k++) {
            if (texts[k].live)
                state_check(st, k, texts[k].values, fl_state_pos(st, k));
        }
    }
    for (int k = 0; k < SEQS; k++)
        fl_state_release(st, k);
    check_index(px);
    drop_idle(px);
    assert_int_equal(px->n_blocks, 0);
    assert_int_equal(px->n_snaps, 0);
    assert_int_equal(st->n_free, st->n_pages);
    free(texts);
    fl_prefix_destroy(px);
    fl_state_destroy(st);
    return saved;
}

static void test_random_texts(void **state)
{
    (void)state;
    int64_t saved = 0;
    for (uint32_t seed = 1; seed <= 60; seed++) {
        print_message("seed %u\n", seed);
        saved += run_random(seed);
    }
    assert_true(saved > 100 * PAGE);
}

/* Runs the first n tokens of ids as one sequence, snapshots at its end, and lets it go. */
static void teach(fl_prefix *px, uint64_t salt, const int32_t *ids, int64_t n)
{
    float values[CONTEXT];
    for (int64_t i = 0; i < n; i++)
        values[i] = (float)ids[i];
    fl_seq s;
    assert_int_equal(fl_state_admit(px->st, &s, NULL), FL_OK);
    fl_prefix_hit hit = fl_prefix_find(px, salt, ids, n);
    fl_prefix_resume(px, s, &hit);
    assert_true(fl_prefix_make_room(px, n - hit.resume));
    assert_int_equal(fl_state_extend(px->st, s, n - hit.resume, NULL), FL_OK);
    state_write(px->st, s, values + hit.resume, n - hit.resume);
    fl_prefix_add(px, salt, s, ids, n / PAGE * PAGE, &hit.block);
    fl_prefix_snapshot(px, s, hit.block);
    fl_state_release(px->st, s);
}

static int64_t resume(const fl_prefix *px, uint64_t salt, const int32_t *ids, int64_t n)
{
    return fl_prefix_find(px, salt, ids, n).resume;
}

static void test_what_goes_first(void **state)
{
    (void)state;
    static int32_t a[CONTEXT], b[CONTEXT], c[CONTEXT];
    for (int i = 0; i < CONTEXT; i++) {
        a[i] = i;
        b[i] = i + 1;
        c[i] = i + 2;
    }
    fl_state *st = state_make(2, 4, 12 * PAGE, CONTEXT);
    fl_prefix *px;
    assert_int_equal(fl_prefix_create(st, 2, &px, NULL), FL_OK);
    teach(px, 1, a, 6 * PAGE);
    teach(px, 1, b, PAGE);
    assert_int_equal(resume(px, 1, a, 8 * PAGE), 6 * PAGE);
    assert_int_equal(resume(px, 1, a, 6 * PAGE), 0); /* the last token has to run */
    assert_int_equal(fl_prefix_find(px, 1, a, 6 * PAGE).known, 5 * PAGE);
    assert_int_equal(resume(px, 2, a, 8 * PAGE), 0); /* another's */
    assert_int_equal(fl_prefix_find(px, 2, a, 8 * PAGE).known, 0);

    /* Two snapshots at most: the one that saves one page goes, although it is the younger. */
    teach(px, 1, c, 2 * PAGE);
    assert_int_equal(resume(px, 1, b, 8 * PAGE), 0);
    assert_int_equal(fl_prefix_find(px, 1, b, 8 * PAGE).known, PAGE);
    assert_int_equal(resume(px, 1, c, 8 * PAGE), 2 * PAGE);
    /* Again and again with nobody asking for a: its worth fades. */
    for (int i = 0; i < 8; i++) {
        teach(px, 1, b, PAGE);
        teach(px, 1, c, 2 * PAGE);
    }
    assert_int_equal(resume(px, 1, a, 8 * PAGE), 0);

    /* Pages: the least recently used text loses its end first. */
    assert_true(fl_prefix_make_room(px, 4 * PAGE));
    assert_int_equal(fl_prefix_find(px, 1, a, 8 * PAGE).known, 5 * PAGE);
    assert_int_equal(fl_prefix_find(px, 1, b, 8 * PAGE).known, PAGE);
    assert_false(fl_prefix_make_room(px, 13 * PAGE));
    assert_int_equal(fl_prefix_find(px, 1, a, 8 * PAGE).known, 5 * PAGE);
    assert_true(fl_prefix_make_room(px, 12 * PAGE));
    fl_prefix_stats s;
    fl_prefix_get_stats(px, &s);
    assert_int_equal(s.tokens, 0);
    assert_int_equal(s.snapshots, 0);
    fl_prefix_destroy(px);
    fl_state_destroy(st);
}

static void test_allocation_failures(void **state)
{
    (void)state;
    fl_state *st = state_make(2, 2, 4 * PAGE, CONTEXT);
    fl_prefix *px = NULL;
    int failed = 0;
    for (; !px; failed++) {
        fl_error e;
        fl_mem_fail_at(failed + 1);
        fl_status s = fl_prefix_create(st, 2, &px, &e);
        fl_mem_fail_at(0);
        assert_true(s == FL_OK || (s == FL_NOMEM && !px));
    }
    assert_true(failed > 4);
    fl_prefix_destroy(px);
    fl_prefix_destroy(NULL);
    fl_state_destroy(st);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_random_texts),
        cmocka_unit_test(test_what_goes_first),
        cmocka_unit_test(test_allocation_failures),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
