/* The streaming selection of ops/topk.h against a full sort: random and hostile rows, ties, NaN. */
#include "support/cmocka_all.h"
#include "support/rng.h"

#include "base/mem.h"
#include "ops/topk.h"

#include <stdlib.h>
#include <string.h>

enum { MOST = 6000 };

typedef struct scored {
    float score;
    int32_t pos;
} scored;

static int by_score(const void *a, const void *b)
{
    const scored *x = a, *y = b;
    if (x->score != y->score)
        return x->score > y->score ? -1 : 1;
    return x->pos < y->pos ? -1 : 1;
}

static int by_position(const void *a, const void *b)
{
    return *(const int32_t *)a < *(const int32_t *)b ? -1 : 1;
}

static float awkward(rng *r)
{
    static const float values[] = {0.0f, -0.0f, NAN, INFINITY, -INFINITY, 1e-45f, -1e-45f, 1};
    return values[rng_int(r, 0, 7)];
}

/* One row of n scores of some shape. */
static void fill(rng *r, float *s, int n)
{
    int shape = (int)rng_int(r, 0, 7);
    for (int i = 0; i < n; i++) {
        switch (shape) {
        case 0: /* hardly a tie */
            s[i] = rng_normal(r);
            break;
        case 1: /* ties everywhere */
            s[i] = (float)rng_int(r, -2, 2);
            break;
        case 2: /* every one better than those before */
            s[i] = (float)i;
            break;
        case 3:
            s[i] = (float)-i;
            break;
        case 4: /* a plateau of zeros, as real rows have it */
            s[i] = rng_one_in(r, 3) ? rng_normal(r) : rng_one_in(r, 2) ? 0.0f : -0.0f;
            break;
        case 5:
            s[i] = awkward(r);
            break;
        case 6: /* one bit apart */
            s[i] = 1 + (float)rng_int(r, 0, 3) * 0x1p-23f;
            break;
        default:
            s[i] = NAN;
        }
    }
}

static void offer(fl_topk *t, float score, int32_t pos)
{
    if (score <= t->floor)
        return;
    t->best[t->n++] = fl_topk_candidate(score, pos);
    if (t->n == t->cap)
        fl_topk_cut(t);
}

static void check_row(rng *r, const float *s, int n, int k)
{
    int64_t room = fl_topk_room(k);
    uint64_t *best = fl_malloc((size_t)room * 8), *spare = fl_malloc((size_t)room * 8);
    int32_t *got = fl_malloc((size_t)k * 4), *want = fl_malloc((size_t)k * 4);
    scored *all = fl_malloc((size_t)(n ? n : 1) * sizeof *all);
    assert_true(best && spare && got && want && all);
    fl_topk t;
    fl_topk_begin(&t, k, best, spare);
    for (int i = 0; i < n; i++) {
        offer(&t, s[i], i);
        all[i] = (scored){isnan(s[i]) ? -INFINITY : s[i], i};
        if (rng_one_in(r, 500)) /* at any time */
            fl_topk_cut(&t);
    }
    fl_topk_write(&t, got);
    qsort(all, (size_t)n, sizeof *all, by_score);
    for (int i = 0; i < k; i++)
        want[i] = i < n ? all[i].pos : -1;
    qsort(want, (size_t)(n < k ? n : k), sizeof *want, by_position);
    for (int i = 0; i < k; i++) {
        if (got[i] != want[i])
            fail_msg("%d of %d: entry %d is %d, expected %d", k, n, i, (int)got[i], (int)want[i]);
    }
    fl_free(best);
    fl_free(spare);
    fl_free(got);
    fl_free(want);
    fl_free(all);
}

static void test_against_sort(void **state)
{
    (void)state;
    static float s[MOST];
    rng r = {.state = 1};
    for (int i = 0; i < 20000; i++) {
        int n = (int)rng_int(&r, 0, rng_one_in(&r, 50) ? MOST : 200);
        int k = (int)rng_int(&r, 1, rng_one_in(&r, 50) ? 600 : 40);
        fill(&r, s, n);
        check_row(&r, s, n, k);
    }
}

/* fl_topk_keep leaves the order alone, whatever the numbers. */
static void test_keep(void **state)
{
    (void)state;
    uint64_t v[300], all[300], spare[300];
    rng r = {.state = 2};
    for (int i = 0; i < 10000; i++) {
        int n = (int)rng_int(&r, 1, 300), k = (int)rng_int(&r, 1, 300);
        uint64_t mask = rng_next(&r), base = rng_next(&r) & ~mask;
        for (int j = 0; j < n; j++)
            v[j] = all[j] = (base | (rng_next(&r) & mask)) << 9 | (uint64_t)((j * 77) % 512);
        int kept = fl_topk_keep(v, n, k, spare);
        assert_int_equal(kept, n < k ? n : k);
        uint64_t least = UINT64_MAX;
        for (int j = 0, from = 0; j < kept; j++) {
            while (from < n && all[from] != v[j])
                from++;
            assert_true(from < n);
            all[from] = 0;
            least = v[j] < least ? v[j] : least;
        }
        for (int j = 0; j < n; j++)
            assert_true(all[j] < least);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_against_sort),
                                       cmocka_unit_test(test_keep)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
