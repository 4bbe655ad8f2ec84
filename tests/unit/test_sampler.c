/* The sampler: known distributions, truncation against a sort, penalties, hostile numbers. */
#include "base/mem.h"
#include "engine/sampler_internal.h"
#include "support/cmocka_all.h"
#include "support/rng.h"

#include <float.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

static rng dice;

static uint32_t rnd(uint32_t n)
{
    return (uint32_t)rng_int(&dice, 0, (int64_t)n - 1);
}

static fl_sample draw_once(const fl_sampling *s, const float *logits, int64_t vocab)
{
    fl_sample_scratch scratch = {0};
    fl_sampler sm;
    fl_sample out;
    assert_int_equal(fl_sample_scratch_init(&scratch, vocab, NULL), FL_OK);
    assert_int_equal(fl_sampler_init(&sm, s, vocab, NULL), FL_OK);
    assert_int_equal(fl_sampler_draw(&sm, logits, NULL, &scratch, &out, NULL), FL_OK);
    fl_sampler_free(&sm);
    fl_sample_scratch_free(&scratch);
    out.top = NULL;
    return out;
}

/* Draws many tokens and returns how often each came. */
static void histogram(const fl_sampling *s, const float *logits, int64_t vocab, int draws,
                      int *count)
{
    fl_sample_scratch scratch = {0};
    fl_sampler sm;
    fl_sample out;
    assert_int_equal(fl_sample_scratch_init(&scratch, vocab, NULL), FL_OK);
    assert_int_equal(fl_sampler_init(&sm, s, vocab, NULL), FL_OK);
    memset(count, 0, (size_t)vocab * sizeof *count);
    for (int i = 0; i < draws; i++) {
        assert_int_equal(fl_sampler_draw(&sm, logits, NULL, &scratch, &out, NULL), FL_OK);
        count[out.id]++;
    }
    fl_sampler_free(&sm);
    fl_sample_scratch_free(&scratch);
}

/* Chi-square of the counts against p (entries of 0 must never come); degrees of freedom out. */
static double chi_square(const int *count, const double *p, int n, int draws, int *freedom)
{
    double chi = 0;
    *freedom = -1;
    for (int i = 0; i < n; i++) {
        double expect = p[i] * draws;
        if (p[i] == 0) {
            assert_int_equal(count[i], 0);
            continue;
        }
        chi += (count[i] - expect) * (count[i] - expect) / expect;
        ++*freedom;
    }
    return chi;
}

/* What the settings mean, the slow way: sort, cut, renormalise. */
static void definition(const fl_sampling *s, const float *x, int n, double *p)
{
    int order[64];
    for (int i = 0; i < n; i++) { /* insertion keeps lower ids first among equals */
        int at = i;
        for (; at > 0 && x[i] > x[order[at - 1]]; at--)
            order[at] = order[at - 1];
        order[at] = i;
    }
    int keep = s->top_k > 0 && s->top_k < n ? s->top_k : n;
    double w[64], sum = 0, at = 0;
    for (int i = 0; i < keep; i++)
        sum += w[i] = exp(((double)x[order[i]] - x[order[0]]) / s->temperature);
    if (s->top_p < 1) {
        int m = 0;
        while (m < keep && (m == 0 || at < s->top_p * sum))
            at += w[m++];
        keep = m;
    }
    while (keep > 1 && w[keep - 1] < s->min_p)
        keep--;
    sum = 0;
    for (int i = 0; i < keep; i++)
        sum += w[i];
    for (int i = 0; i < n; i++)
        p[i] = 0;
    for (int i = 0; i < keep; i++)
        p[order[i]] = w[i] / sum;
}

static void test_distributions(void **state)
{
    (void)state;
    enum { N = 12, DRAWS = 40000 };
    const float x[N] = {0.5f, -1, 2, 2, 0, 1.5f, -3, 0.25f, 2, -0.5f, 1, 0.75f};
    fl_sampling plain = fl_sampling_default();
    plain.temperature = 1;
    fl_sampling cases[9];
    for (int i = 0; i < 9; i++) {
        cases[i] = plain;
        cases[i].seed = 1000 + (uint64_t)i;
    }
    cases[1].temperature = 2.5f;
    cases[2].temperature = 0.4f;
    cases[3].top_k = 5;
    cases[4].top_k = 2; /* cuts through the three equal logits: the lower ids stay */
    cases[5].top_p = 0.7f;
    cases[6].min_p = 0.3f;
    cases[7].top_k = 8, cases[7].top_p = 0.8f, cases[7].min_p = 0.2f, cases[7].temperature = 1.3f;
    cases[8].top_p = 0.999f, cases[8].temperature = 3;
    for (int i = 0; i < 9; i++) {
        double p[N];
        int count[N], freedom;
        definition(&cases[i], x, N, p);
        histogram(&cases[i], x, N, DRAWS, count);
        double chi = chi_square(count, p, N, DRAWS, &freedom);
        /* Mean + 4 standard deviations: a right sampler fails this once in some thousand seeds,
         * and the seeds are fixed. */
        double limit = freedom + 4 * sqrt(2.0 * freedom);
        if (chi > limit)
            fail_msg("case %d: chi-square %.1f over %.1f", i, chi, limit);
    }
}

/* Different seeds give independent draws too. */
static void test_seeds(void **state)
{
    (void)state;
    enum { N = 4, DRAWS = 20000 };
    const float x[N] = {0, logf(2), logf(3), logf(4)};
    const double p[N] = {0.1, 0.2, 0.3, 0.4};
    int count[N] = {0}, freedom;
    fl_sampling s = fl_sampling_default();
    s.temperature = 1;
    for (s.seed = 0; s.seed < DRAWS; s.seed++) {
        fl_sample a = draw_once(&s, x, N), b = draw_once(&s, x, N);
        assert_int_equal(a.id, b.id);
        count[a.id]++;
    }
    assert_true(chi_square(count, p, N, DRAWS, &freedom) < 3 + 4 * sqrt(6));
}

/* The generator's first numbers, from the published definition with seed 1234567. */
static void test_generator_is_splitmix64(void **state)
{
    (void)state;
    const uint64_t known[] = {6457827717110365317u, 3203168211198807973u, 9817491932198370423u};
    /* Equal logits make the draw show the top bits: 2^16 tokens, token = first 16 bits. */
    enum { N = 1 << 16 };
    static float x[N];
    fl_sampling s = fl_sampling_default();
    s.temperature = 1;
    s.seed = 1234567;
    fl_sample_scratch scratch = {0};
    fl_sampler sm;
    fl_sample out;
    assert_int_equal(fl_sample_scratch_init(&scratch, N, NULL), FL_OK);
    assert_int_equal(fl_sampler_init(&sm, &s, N, NULL), FL_OK);
    for (int i = 0; i < 3; i++) {
        assert_int_equal(fl_sampler_draw(&sm, x, NULL, &scratch, &out, NULL), FL_OK);
        assert_int_equal(out.id, known[i] >> 48);
    }
    fl_sampler_free(&sm);
    fl_sample_scratch_free(&scratch);
}

static int by_order(const void *pa, const void *pb)
{
    const fl_candidate *a = pa, *b = pb;
    if (a->x != b->x)
        return a->x > b->x ? -1 : 1;
    return a->id - b->id;
}

static void test_selection_against_sort(void **state)
{
    (void)state;
    static fl_candidate c[3000], sorted[3000];
    for (uint32_t seed = 1; seed <= 400; seed++) {
        dice = (rng){seed};
        int n = 1 + (int)rnd(seed % 10 ? 60 : 3000);
        uint32_t levels = 1 + rnd(rnd(2) ? 5 : 100000); /* few levels: many ties */
        uint64_t sum = 0;
        for (int i = 0; i < n; i++) {
            uint32_t level = rnd(levels);
            if (seed % 7 == 0) /* falling or rising input */
                level = (uint32_t)(seed % 2 ? i : n - i);
            c[i] = (fl_candidate){(float)level, i, level + 1};
            sum += c[i].weight;
        }
        memcpy(sorted, c, sizeof c);
        qsort(sorted, (size_t)n, sizeof *sorted, by_order);
        bool by_count = rnd(2);
        uint64_t target = by_count ? 1 + rnd((uint32_t)n) : sum * rnd(1001) / 1000;
        int expect = 0;
        for (uint64_t at = 0; expect < n && (expect == 0 || at < target); expect++)
            at += by_count ? 1 : sorted[expect].weight;
        int got = (int)fl_candidates_best(c, n, target, by_count);
        if (got != expect || c[got - 1].id != sorted[got - 1].id)
            fail_msg("seed %u: %d candidates, expected %d", seed, got, expect);
        qsort(c, (size_t)got, sizeof *c, by_order);
        assert_memory_equal(c, sorted, (size_t)got * sizeof *c);
    }
}

static void test_greedy_and_ties(void **state)
{
    (void)state;
    float x[6] = {1, 3, -2, 3, 3, 0};
    fl_sampling s = fl_sampling_default();
    assert_int_equal(draw_once(&s, x, 6).id, 1);
    s.temperature = 1;
    s.top_k = 1;
    assert_int_equal(draw_once(&s, x, 6).id, 1);
    s.top_k = 0;
    s.top_p = 0;
    assert_int_equal(draw_once(&s, x, 6).id, 1);
    s.top_p = 1;
    s.min_p = 1; /* all that tie with the best */
    int count[6];
    histogram(&s, x, 6, 300, count);
    assert_int_equal(count[1] + count[3] + count[4], 300);
    assert_true(count[1] > 50 && count[3] > 50 && count[4] > 50);
    s.min_p = 0;
    s.temperature = 1e-30f; /* nearly greedy: only exact ties are left */
    histogram(&s, x, 6, 300, count);
    assert_int_equal(count[1] + count[3] + count[4], 300);
    float one = -5;
    s.temperature = 1;
    assert_int_equal(draw_once(&s, &one, 1).id, 0);
    float far[3] = {-FLT_MAX, FLT_MAX, -FLT_MAX};
    assert_int_equal(draw_once(&s, far, 3).id, 1);
    s.top_p = 0.5f;
    s.top_k = 2;
    s.min_p = 0.1f;
    assert_int_equal(draw_once(&s, far, 3).id, 1);
}

static void test_bias_and_penalties(void **state)
{
    (void)state;
    const float x[4] = {1, 2, 3, -1};
    fl_sampling s = fl_sampling_default();
    fl_logit_bias bias[] = {{0, 1.25f}, {2, -100}, {0, 1.25f}};
    s.bias = bias;
    s.n_bias = 3;
    assert_int_equal(draw_once(&s, x, 4).id, 0);
    s.n_bias = 1;
    assert_int_equal(draw_once(&s, x, 4).id, 2);

    fl_sample_scratch scratch = {0};
    fl_sampler sm;
    fl_sample out;
    assert_int_equal(fl_sample_scratch_init(&scratch, 4, NULL), FL_OK);

    /* Presence and frequency: over the answer only. */
    s = fl_sampling_default();
    s.presence = 0.5f;
    s.frequency = 0.3f;
    assert_int_equal(fl_sampler_init(&sm, &s, 4, NULL), FL_OK);
    fl_sampler_note(&sm, 2, false);
    assert_int_equal(fl_sampler_draw(&sm, x, NULL, &scratch, &out, NULL), FL_OK);
    assert_int_equal(out.id, 2);
    fl_sampler_note(&sm, 2, true); /* 3 - 0.8 = 2.2 */
    assert_int_equal(fl_sampler_draw(&sm, x, NULL, &scratch, &out, NULL), FL_OK);
    assert_int_equal(out.id, 2);
    fl_sampler_note(&sm, 2, true); /* 3 - 1.1 = 1.9 */
    assert_int_equal(fl_sampler_draw(&sm, x, NULL, &scratch, &out, NULL), FL_OK);
    assert_int_equal(out.id, 1);
    fl_sampler_free(&sm);

    /* Repetition: over prompt and answer, by sign, once however often a token came. */
    s = fl_sampling_default();
    s.repetition = 4;
    assert_int_equal(fl_sampler_init(&sm, &s, 4, NULL), FL_OK);
    fl_sampler_note(&sm, 2, false); /* 0.75 */
    fl_sampler_note(&sm, 2, true);
    fl_sampler_note(&sm, 1, false); /* 0.5 */
    fl_sampler_note(&sm, 0, true);  /* 0.25 */
    assert_int_equal(fl_sampler_draw(&sm, x, NULL, &scratch, &out, NULL), FL_OK);
    assert_int_equal(out.id, 2);
    const float negative[4] = {-1, -1.5f, -2, -3}; /* -4 -6 -8 -3 */
    assert_int_equal(fl_sampler_draw(&sm, negative, NULL, &scratch, &out, NULL), FL_OK);
    assert_int_equal(out.id, 3);
    fl_sampler_free(&sm);
    fl_sample_scratch_free(&scratch);
}

static void test_log_probabilities(void **state)
{
    (void)state;
    const float x[5] = {logf(0.1f) + 7, logf(0.3f) + 7, logf(0.05f) + 7, logf(0.3f) + 7,
                        logf(0.25f) + 7};
    fl_sample_scratch scratch = {0};
    fl_sampler sm;
    fl_sample out;
    fl_sampling s = fl_sampling_default();
    fl_logit_bias bias = {2, 50}; /* moves the choice, not what is reported */
    s.bias = &bias;
    s.n_bias = 1;
    s.n_top = 3;
    assert_int_equal(fl_sample_scratch_init(&scratch, 5, NULL), FL_OK);
    assert_int_equal(fl_sampler_init(&sm, &s, 5, NULL), FL_OK);
    assert_int_equal(fl_sampler_draw(&sm, x, NULL, &scratch, &out, NULL), FL_OK);
    assert_int_equal(out.id, 2);
    assert_true(fabs(out.logprob - log(0.05)) < 1e-6);
    assert_int_equal(out.n_top, 3);
    const int ids[3] = {1, 3, 4};
    const double p[3] = {0.3, 0.3, 0.25};
    for (int i = 0; i < 3; i++) {
        assert_int_equal(out.top[i].id, ids[i]);
        assert_true(fabs(out.top[i].logprob - log(p[i])) < 1e-6);
    }
    fl_sampler_free(&sm);
    s.n_top = 100; /* more than there are */
    assert_int_equal(fl_sampler_init(&sm, &s, 5, NULL), FL_OK);
    assert_int_equal(fl_sampler_draw(&sm, x, NULL, &scratch, &out, NULL), FL_OK);
    assert_int_equal(out.n_top, 5);
    assert_int_equal(out.top[4].id, 2);
    fl_sampler_free(&sm);
    s.n_top = 0;
    assert_int_equal(draw_once(&s, x, 5).n_top, 0);
    fl_sample_scratch_free(&scratch);
}

static void test_not_finite(void **state)
{
    (void)state;
    const float bad[] = {NAN, -NAN, INFINITY, -INFINITY};
    fl_sample_scratch scratch = {0};
    fl_sampler sm;
    fl_sample out;
    fl_error e;
    fl_sampling s = fl_sampling_default();
    assert_int_equal(fl_sample_scratch_init(&scratch, 9, NULL), FL_OK);
    assert_int_equal(fl_sampler_init(&sm, &s, 9, NULL), FL_OK);
    for (int i = 0; i < 4; i++) {
        for (int at = 0; at < 9; at++) {
            float x[9] = {FLT_MAX, -FLT_MAX, 0, -0.0f, FLT_MIN, 1e-45f, 1, 2, 3};
            assert_true(fl_all_finite(x, 9));
            x[at] = bad[i];
            assert_false(fl_all_finite(x, 9));
            assert_int_equal(fl_sampler_draw(&sm, x, NULL, &scratch, &out, &e), FL_NUMERIC);
        }
    }
    fl_sampler_free(&sm);
    fl_sample_scratch_free(&scratch);
}

static void test_bad_settings(void **state)
{
    (void)state;
    const float odd[] = {NAN, INFINITY, -INFINITY, -1e30f, 1e30f};
    fl_error e;
    fl_sampling ok = fl_sampling_default();
    assert_int_equal(fl_sampling_check(&ok, &e), FL_OK);
    for (int field = 0; field < 7; field++) {
        for (int i = 0; i < 5; i++) {
            fl_sampling s = ok;
            fl_logit_bias bias = {0, 0};
            s.bias = &bias;
            s.n_bias = 1;
            float *at[] = {&s.temperature, &s.top_p,     &s.min_p,  &s.repetition,
                           &s.presence,    &s.frequency, &bias.bias};
            *at[field] = odd[i];
            assert_int_equal(fl_sampling_check(&s, &e), FL_ARGUMENT);
        }
    }
    fl_sampling s = ok;
    s.temperature = -0.5f;
    assert_int_equal(fl_sampling_check(&s, &e), FL_ARGUMENT);
    s = ok;
    s.repetition = 0;
    assert_int_equal(fl_sampling_check(&s, &e), FL_ARGUMENT);
    s = ok;
    s.top_k = -1;
    assert_int_equal(fl_sampling_check(&s, &e), FL_ARGUMENT);
    s = ok;
    s.n_top = FL_MAX_TOP + 1;
    assert_int_equal(fl_sampling_check(&s, &e), FL_ARGUMENT);
    const int32_t outside[] = {-1, 10, INT32_MAX};
    for (int i = 0; i < 3; i++) {
        fl_logit_bias bias = {outside[i], 1};
        fl_sampler sm;
        s = ok;
        s.bias = &bias;
        s.n_bias = 1;
        assert_int_equal(fl_sampler_init(&sm, &s, 10, &e), FL_ARGUMENT);
    }
}

static void test_allocation_failures(void **state)
{
    (void)state;
    fl_logit_bias bias = {1, 1};
    fl_sampling s = fl_sampling_default();
    s.presence = 1;
    s.bias = &bias;
    s.n_bias = 1;
    for (long i = 1; i <= 3; i++) {
        fl_sampler sm;
        fl_mem_fail_at(i);
        assert_int_equal(fl_sampler_init(&sm, &s, 50, NULL), FL_NOMEM);
        fl_mem_fail_at(0);
    }
    for (long i = 1; i <= 2; i++) {
        fl_sample_scratch scratch = {0};
        fl_mem_fail_at(i);
        assert_int_equal(fl_sample_scratch_init(&scratch, 50, NULL), FL_NOMEM);
        fl_mem_fail_at(0);
        fl_sample_scratch_free(&scratch);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_distributions),
        cmocka_unit_test(test_seeds),
        cmocka_unit_test(test_generator_is_splitmix64),
        cmocka_unit_test(test_selection_against_sort),
        cmocka_unit_test(test_greedy_and_ties),
        cmocka_unit_test(test_bias_and_penalties),
        cmocka_unit_test(test_log_probabilities),
        cmocka_unit_test(test_not_finite),
        cmocka_unit_test(test_bad_settings),
        cmocka_unit_test(test_allocation_failures),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
