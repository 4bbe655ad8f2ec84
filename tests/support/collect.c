#include "support/collect.h"

#include "support/cmocka_all.h"

/* Again: tests that make one allocation fail mean those of the library. */
#define PUSH(v, x) assert_true(fl_vec_push(v, x) || fl_vec_push(v, x))

static void on_token(void *ctx, const fl_token_event *event)
{
    collector *c = ctx;
    assert_false(c->ended);
    if (event->id != FL_NO_TOKEN) {
        PUSH(&c->ids, event->id);
        PUSH(&c->logprobs, event->logprob);
    }
    if (event->finish == FL_FINISH_NONE) {
        assert_int_not_equal(event->id, FL_NO_TOKEN);
        return;
    }
    c->ended = true;
    c->finish = event->finish;
    c->error = event->error;
    c->kept = fl_request_kept(event->request);
}

static void on_rows(void *ctx, int64_t pos, int32_t n, const float *logits)
{
    collector *c = ctx;
    if (c->n_rows == 0)
        c->first_row = pos;
    assert_int_equal(pos, c->first_row + c->n_rows); /* in order, without gaps */
    size_t count = (size_t)n * (size_t)c->rows_vocab;
    assert_true(fl_vec_append(&c->rows, logits, count));
    c->n_rows += n;
}

void collect(collector *c, fl_request_params *p, int64_t vocab)
{
    *c = (collector){.rows_vocab = vocab, .kept = FL_NONE};
    p->on_token = on_token;
    p->ctx = c;
    p->on_rows = vocab ? on_rows : NULL;
    p->rows_ctx = c;
}

void assert_same(const collector *a, const collector *b)
{
    assert_true(a->ended && b->ended);
    assert_int_equal(a->finish, b->finish);
    assert_int_equal(a->ids.n, b->ids.n);
    assert_memory_equal(a->ids.data, b->ids.data, a->ids.n * sizeof *a->ids.data);
    assert_memory_equal(a->logprobs.data, b->logprobs.data, a->ids.n * sizeof(float));
    assert_int_equal(a->rows.n, b->rows.n);
    if (a->rows.n)
        assert_memory_equal(a->rows.data, b->rows.data, a->rows.n * sizeof(float));
}

void collector_free(collector *c)
{
    fl_vec_free(&c->ids);
    fl_vec_free(&c->logprobs);
    fl_vec_free(&c->rows);
    *c = (collector){.kept = FL_NONE};
}

void run_all(fl_engine *e)
{
    bool busy = true;
    while (busy) {
        fl_error err;
        if (fl_engine_step(e, &busy, &err) != FL_OK)
            fail_msg("%s", err.message);
    }
}

fl_request *submit(fl_engine *e, const fl_request_params *p)
{
    fl_request *r;
    fl_error err;
    if (fl_engine_submit(e, p, &r, &err) != FL_OK)
        fail_msg("%s", err.message);
    return r;
}
