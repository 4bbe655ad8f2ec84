/* Several answers to one prompt, and masks, over the fake network: every choice is the answer that
 * a request of its own would give, wherever it is cancelled. */
#include "support/cmocka_all.h"
#include "support/engine_support.h"
#include "support/fake_model.h"

#include <string.h>

enum { N = 4, PROMPT = 150, ANSWER = 20 };

typedef struct answers {
    fl_ids ids[N];
    fl_finish finish[N];
    int n_last;
    fl_engine *cancel_in; /* not NULL: cancels choice `victim` when it has said `after` tokens */
    int victim;
    size_t after;
} answers;

static void on_token(void *ctx, const fl_token_event *event)
{
    answers *a = ctx;
    int i = event->choice;
    assert_in_range(i, 0, N - 1);
    assert_int_equal(a->finish[i], FL_FINISH_NONE);
    if (event->id != FL_NO_TOKEN)
        assert_true(fl_vec_push(&a->ids[i], event->id));
    a->finish[i] = event->finish;
    assert_int_equal(a->n_last, 0); /* nothing comes after the last */
    a->n_last += event->last;
    if (a->cancel_in && i == a->victim && a->ids[i].n == a->after && !event->finish)
        fl_engine_cancel_choice(a->cancel_in, event->request, i);
}

static void answers_free(answers *a)
{
    for (int i = 0; i < N; i++)
        fl_vec_free(&a->ids[i]);
}

static const fl_logit_bias never = {FAKE_NAN, -1000};

static fl_request_params sampled(const int32_t *text, int n)
{
    fl_request_params p = engine_params(text, PROMPT, ANSWER);
    p.sampling.temperature = 1.2f;
    p.sampling.presence = 0.3f;
    p.sampling.seed = 77;
    p.sampling.bias = &never;
    p.sampling.n_bias = 1;
    p.n = n;
    p.on_token = on_token;
    return p;
}

static void answer_alone(fl_engine *e, const int32_t *text, answers *out)
{
    *out = (answers){0};
    for (int i = 0; i < N; i++) {
        collector c;
        fl_request_params p = sampled(text, 0);
        p.sampling.seed += (uint64_t)i;
        collect(&c, &p, 0);
        submit(e, &p);
        run_all(e);
        assert_int_equal(c.finish, FL_FINISH_LENGTH);
        assert_true(fl_vec_append(&out->ids[i], c.ids.data, c.ids.n));
        collector_free(&c);
    }
}

static void test_choices_are_answers_of_their_own(void **state)
{
    (void)state;
    engine_dice = (rng){21};
    fl_engine *e = engine_make(1, N + 1, 64, 4096);
    int32_t text[PROMPT];
    engine_some_ids(text, PROMPT);
    answers alone, a = {0};
    answer_alone(e, text, &alone);
    assert_memory_not_equal(alone.ids[0].data, alone.ids[1].data, ANSWER * sizeof(int32_t));
    fl_request_params p = sampled(text, N), other = engine_params(text, 90, 30);
    p.ctx = &a;
    fl_request *r = submit(e, &p);
    submit(e, &other);
    bool busy;
    assert_int_equal(fl_engine_step(e, &busy, NULL), FL_OK);
    assert_int_equal(fl_request_done(r), 64);
    run_all(e);
    assert_int_equal(a.n_last, 1);
    for (int i = 0; i < N; i++) {
        assert_int_equal(a.finish[i], FL_FINISH_LENGTH);
        assert_int_equal(a.ids[i].n, ANSWER);
        assert_memory_equal(a.ids[i].data, alone.ids[i].data, ANSWER * sizeof(int32_t));
    }
    answers_free(&a);
    answers_free(&alone);
    engine_assert_idle(e, 4096);
    fl_engine_destroy(e);
}

/* One of the choices is cancelled after some steps, or from its own event; the others go on. */
static void test_cancel_one_choice(void **state)
{
    (void)state;
    engine_dice = (rng){22};
    fl_engine *e = engine_make(1, N, 64, 4096);
    int32_t text[PROMPT];
    engine_some_ids(text, PROMPT);
    answers alone;
    answer_alone(e, text, &alone);
    for (int round = 0; round < 12 * N; round++) {
        int victim = round % N, steps = round / N;
        answers a = {.victim = victim};
        if (steps >= 6) { /* from its event */
            a.cancel_in = e;
            a.after = (size_t)steps - 5;
        }
        fl_request_params p = sampled(text, N);
        p.ctx = &a;
        fl_request *r = submit(e, &p);
        bool busy;
        for (int i = 0; i < steps && steps < 6; i++)
            assert_int_equal(fl_engine_step(e, &busy, NULL), FL_OK);
        if (steps < 6)
            fl_engine_cancel_choice(e, r, victim);
        run_all(e);
        assert_int_equal(a.n_last, 1);
        for (int i = 0; i < N; i++) {
            assert_int_equal(a.finish[i], i == victim ? FL_FINISH_CANCEL : FL_FINISH_LENGTH);
            assert_true(i == victim ? a.ids[i].n < ANSWER : a.ids[i].n == ANSWER);
            if (a.ids[i].n)
                assert_memory_equal(a.ids[i].data, alone.ids[i].data, a.ids[i].n * sizeof(int32_t));
        }
        answers_free(&a);
        engine_assert_idle(e, 4096);
    }
    answers_free(&alone);
    fl_engine_destroy(e);
}

static void test_cancel_all_and_failure(void **state)
{
    (void)state;
    engine_dice = (rng){23};
    fl_engine *e = engine_make(1, N, 64, 4096);
    int32_t text[PROMPT];
    engine_some_ids(text, PROMPT);
    for (int steps = 0; steps < 6; steps++) {
        answers a = {0};
        fl_request_params p = sampled(text, N);
        p.ctx = &a;
        bool busy;
        fl_request *r = submit(e, &p);
        for (int i = 0; i < steps; i++)
            assert_int_equal(fl_engine_step(e, &busy, NULL), FL_OK);
        fl_engine_cancel(e, r);
        assert_int_equal(a.n_last, 1);
        for (int i = 0; i < N; i++)
            assert_int_equal(a.finish[i], FL_FINISH_CANCEL);
        answers_free(&a);
        engine_assert_idle(e, 4096);
    }
    text[PROMPT - 1] = FAKE_NAN;
    answers a = {0};
    fl_request_params p = sampled(text, N);
    p.ctx = &a;
    submit(e, &p);
    run_all(e);
    assert_int_equal(a.n_last, 1);
    for (int i = 0; i < N; i++)
        assert_int_equal(a.finish[i], FL_FINISH_ERROR);
    p.keep = true;
    assert_int_equal(engine_try_submit(e, &p), FL_ARGUMENT);
    p.keep = false;
    p.n = N + 1;
    assert_int_equal(engine_try_submit(e, &p), FL_ARGUMENT);
    p.n = -1;
    assert_int_equal(engine_try_submit(e, &p), FL_ARGUMENT);
    engine_assert_idle(e, 4096);
    fl_engine_destroy(e);
}

/* ---- masks ---- */

/* Allows the tokens of the parity of the number of tokens so far. */
static fl_status by_parity(void *ctx, int choice, const int32_t *answer, int64_t n,
                           uint32_t *allowed, fl_error *err)
{
    (void)choice;
    int *calls = ctx;
    if (n == 9)
        return fl_fail(err, FL_CANCELLED, "nine is enough");
    assert_int_equal(n, *calls);
    ++*calls;
    for (int64_t i = 0; i < n; i++)
        assert_int_equal(answer[i] % 2, i % 2);
    for (int w = 0; w < (FAKE_VOCAB + 31) / 32; w++) {
        assert_int_equal(allowed[w], UINT32_MAX);
        allowed[w] = n % 2 ? 0xaaaaaaaau : 0x55555555u;
    }
    return FL_OK;
}

static fl_status nothing(void *ctx, int choice, const int32_t *answer, int64_t n, uint32_t *allowed,
                         fl_error *err)
{
    (void)ctx, (void)choice, (void)answer, (void)n, (void)err;
    memset(allowed, 0, (FAKE_VOCAB + 31) / 32 * sizeof *allowed);
    return FL_OK;
}

static void test_masks(void **state)
{
    (void)state;
    engine_dice = (rng){24};
    fl_engine *e = engine_make(1, 2, 64, 4096);
    int32_t text[PROMPT];
    engine_some_ids(text, PROMPT);
    const fl_sampling settings[] = {
        fl_sampling_default(),
        {.temperature = 3, .top_p = 1, .repetition = 1, .n_top = 3},
        {.temperature = 0.01f, .top_p = 0.5f, .repetition = 1, .presence = 1, .n_top = -1},
        {.temperature = 2, .top_p = 0.9f, .top_k = 60, .min_p = 0.001f, .repetition = 1}};
    for (int i = 0; i < 4; i++) {
        collector c;
        int calls = 0;
        fl_request_params p = engine_params(text, PROMPT, ANSWER);
        p.sampling = settings[i];
        p.mask = by_parity;
        p.mask_ctx = &calls;
        collect(&c, &p, 0);
        submit(e, &p);
        run_all(e);
        assert_int_equal(c.finish, FL_FINISH_ERROR);
        assert_int_equal(c.error.status, FL_CANCELLED);
        assert_int_equal(c.ids.n, 9);
        for (size_t k = 0; k < c.ids.n; k++)
            assert_int_equal(c.ids.data[k] % 2, k % 2);
        collector_free(&c);
        p.mask = nothing;
        collect(&c, &p, 0);
        submit(e, &p);
        run_all(e);
        assert_int_equal(c.error.status, FL_ARGUMENT);
        collector_free(&c);
    }
    engine_assert_idle(e, 4096);
    fl_engine_destroy(e);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_choices_are_answers_of_their_own),
        cmocka_unit_test(test_cancel_one_choice),
        cmocka_unit_test(test_cancel_all_and_failure),
        cmocka_unit_test(test_masks),
    };
    return cmocka_run_group_tests(tests, engine_setup, engine_teardown);
}
