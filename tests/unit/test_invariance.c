/* What a result must not depend on, bit for bit, with a real model: company, threads, the cutting
 * of the prompt, forks, snapshots, files.  And what must not spread: NaN, failed allocations.
 * `test_invariance --full` fails every single allocation of a run instead of a sample, and runs the
 * long text at every processor level; with two numbers, `--full 20001 30000`, only these
 * allocations and nothing else: all of them take an hour.  `test_invariance --fast` does all in
 * precision fast; there levels round differently and are not compared. */
#define _GNU_SOURCE
#include "base/mem.h"
#include "support/cmocka_all.h"
#include "support/collect.h"
#include "support/open_model.h"

#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

enum { VOCAB = 4096, PROMPT = 333, ANSWER = 12, GRID = 192 };

static bool full_run, fast_run;
static long first_failure = 1, last_failure = LONG_MAX;
static int32_t text[8][PROMPT];

static int make_texts(void **state)
{
    (void)state;
    draw_text(99, text[0], 8 * PROMPT);
    return 0;
}

static fl_engine_options options(int threads, int chunk)
{
    fl_engine_options o = fl_engine_options_default();
    o.fast = fast_run;
    o.threads = threads;
    o.chunk = chunk;
    o.max_context = 1024;
    o.max_snapshots = 2;
    return o;
}

/* Greedy with log-probabilities, which show the last bit of the logits. */
static fl_request_params params(const int32_t *ids, int64_t n, int64_t max_tokens)
{
    fl_request_params p = fl_request_params_default();
    p.prompt = ids;
    p.n_prompt = n;
    p.max_tokens = max_tokens;
    p.sampling.n_top = 0;
    return p;
}

/* The first n tokens of the first text among `others` more texts of different lengths, some that
 * came before it and some after. */
static void run_among(fl_engine *e, int64_t n, int others, bool rows, collector *c)
{
    collector rest[7];
    for (int i = 0; i <= others; i++) {
        fl_request_params p = params(text[0], n, ANSWER);
        bool busy, first = i == others / 2;
        int k = i < others / 2 ? i : i - 1;
        if (!first) {
            p = params(text[k + 1], 1 + n / 20 * k, 6);
            p.sampling.temperature = k % 2 ? 1.0f : 0;
        }
        collect(first ? c : &rest[k], &p, first && rows ? VOCAB : 0);
        submit(e, &p);
        if (i % 3 != 1)
            assert_int_equal(fl_engine_step(e, &busy, NULL), FL_OK);
    }
    run_all(e);
    for (int i = 0; i < others; i++) {
        assert_int_equal(rest[i].finish, FL_FINISH_LENGTH);
        collector_free(&rest[i]);
    }
}

typedef struct way {
    int threads, chunk;
} way;
static const way WAYS[] = {{1, 64},  {2, 256}, {1, 128}, {2, 64},
                           {1, 512}, {2, 128}, {1, 256}, {2, 512}};

/* Alone and among seven in each of the first n_ways; all give the same as the first, *base. */
static void compare_ways(fl_isa isa, int64_t n, int n_ways, collector *base)
{
    for (int i = 0; i < n_ways; i++) {
        opened m;
        collector c;
        fl_engine_options o = options(WAYS[i].threads, WAYS[i].chunk);
        o.isa = isa;
        open_model(&m, FL_TINY_MODEL, &o);
        run_among(m.engine, n, 0, true, i ? &c : base);
        if (i) {
            assert_same(&c, base);
            collector_free(&c);
        }
        run_among(m.engine, n, 7, true, &c);
        assert_same(&c, base);
        collector_free(&c);
        close_model(&m);
    }
    assert_int_equal(base->n_rows, n);
}

static void test_company_threads_and_cutting(void **state)
{
    (void)state;
    collector c;
    compare_ways(fl_cpu_isa(), PROMPT, 8, &c);
    collector_free(&c);
}

/* The lower processor levels keep the same promise, each for itself, and agree with each other but
 * for rounding.  A shorter text: the lowest level is slow. */
static void test_processor_levels(void **state)
{
    (void)state;
    if (fast_run)
        skip();
    collector highest, c;
    int64_t n = full_run ? PROMPT : 100;
    compare_ways(fl_cpu_isa(), n, 2, &highest);
    for (fl_isa isa = FL_ISA_BASE; isa < fl_cpu_isa(); isa++) {
        compare_ways(isa, n, 2, &c);
        assert_int_equal(c.rows.n, highest.rows.n);
        for (size_t i = 0; i < c.rows.n; i++)
            assert_true(fabsf(c.rows.data[i] - highest.rows.data[i]) < 2e-3f);
        collector_free(&c);
    }
    collector_free(&highest);
}

/* ---- sequences that are kept ---- */

/* Runs the first GRID tokens and keeps the sequence. */
static fl_seq run_head(fl_engine *e)
{
    collector c;
    fl_request_params p = params(text[0], GRID, 0);
    p.keep = true;
    collect(&c, &p, 0);
    submit(e, &p);
    run_all(e);
    assert_int_equal(fl_state_pos(fl_engine_state(e), c.kept), GRID);
    return c.kept;
}

static fl_request *submit_tail(fl_engine *e, fl_seq from, bool keep, collector *c)
{
    fl_request_params p = params(text[0] + GRID, PROMPT - GRID, ANSWER);
    p.keep_from = from;
    p.keep = keep;
    collect(c, &p, 0);
    return submit(e, &p);
}

static void test_kept_sequences_continue_identically(void **state)
{
    (void)state;
    opened m;
    fl_engine_options o = options(2, 64);
    open_model(&m, FL_TINY_MODEL, &o);
    fl_engine *e = m.engine;
    fl_state *st = fl_engine_state(e);
    collector whole, c[4];
    run_among(e, PROMPT, 0, false, &whole);

    /* A kept head, two forks of it, all at once: the same as in one piece, for GRID is on the
     * grid. */
    fl_seq head = run_head(e), twin, third;
    fl_snap snap;
    assert_int_equal(fl_state_snapshot(st, head, &snap, NULL), FL_OK);
    assert_int_equal(fl_state_fork(st, head, &twin, NULL), FL_OK);
    assert_int_equal(fl_state_fork(st, twin, &third, NULL), FL_OK);
    submit_tail(e, head, true, &c[0]);
    submit_tail(e, twin, false, &c[1]);
    submit_tail(e, third, false, &c[2]);
    run_all(e);
    for (int i = 0; i < 3; i++)
        assert_same(&c[i], &whole);

    /* Back to the snapshot, and from there again. */
    int64_t pos;
    assert_int_equal(fl_state_pos(st, c[0].kept), PROMPT + ANSWER - 1);
    assert_int_equal(fl_state_rollback(st, c[0].kept, ANSWER, &pos, NULL), FL_OK);
    assert_int_equal(pos, GRID);
    submit_tail(e, c[0].kept, true, &c[3]);
    run_all(e);
    assert_same(&c[3], &whole);

    /* Back to the start: everything again on the same sequence. */
    fl_state_snapshot_free(st, snap);
    assert_int_equal(fl_state_rollback(st, c[3].kept, 1, &pos, NULL), FL_OK);
    assert_int_equal(pos, 0);
    fl_request_params p = params(text[0], PROMPT, ANSWER);
    p.keep_from = c[3].kept;
    collector again;
    collect(&again, &p, 0);
    submit(e, &p);
    run_all(e);
    assert_same(&again, &whole);

    collector_free(&again);
    for (int i = 0; i < 4; i++)
        collector_free(&c[i]);
    collector_free(&whole);
    assert_int_equal(fl_state_free_seqs(st), 8);
    close_model(&m);
}

/* A fork in the middle of a page, whose rows two sequences then write differently. */
static void test_forks_do_not_touch_each_other(void **state)
{
    (void)state;
    opened m;
    fl_engine_options o = options(1, 128);
    open_model(&m, FL_TINY_MODEL, &o);
    fl_engine *e = m.engine;
    collector head, alone[2], both[2];
    fl_seq seq[2];
    for (int run = 0; run < 2; run++) {
        fl_request_params p = params(text[0], 100, 0);
        p.keep = true;
        collect(&head, &p, 0);
        submit(e, &p);
        run_all(e);
        seq[0] = head.kept;
        assert_int_equal(fl_state_fork(fl_engine_state(e), seq[0], &seq[1], NULL), FL_OK);
        for (int i = 0; i < 2; i++) {
            p = params(text[i + 1], 70, ANSWER);
            p.keep_from = seq[i];
            collect(run ? &both[i] : &alone[i], &p, 0);
            submit(e, &p);
            if (run == 0)
                run_all(e);
        }
        run_all(e);
    }
    for (int i = 0; i < 2; i++) {
        assert_same(&alone[i], &both[i]);
        collector_free(&alone[i]);
        collector_free(&both[i]);
    }
    close_model(&m);
}

static void test_saved_sequence_continues_in_another_engine(void **state)
{
    (void)state;
    char path[] = "/tmp/fl-invariance-XXXXXX";
    int fd = mkstemp(path);
    assert_true(fd >= 0);
    close(fd);
    opened m;
    collector whole, c;
    fl_engine_options o = options(1, 256);
    open_model(&m, FL_TINY_MODEL, &o);
    run_among(m.engine, PROMPT, 0, false, &whole);
    uint64_t print = fl_model_fingerprint(m.model);
    fl_error err;
    if (fl_state_save(fl_engine_state(m.engine), run_head(m.engine), print, text[0], path, &err) !=
        FL_OK)
        fail_msg("%s", err.message);
    close_model(&m);

    o = options(2, 64);
    open_model(&m, FL_TINY_MODEL, &o);
    fl_seq seq;
    int32_t *ids;
    int64_t n;
    assert_int_equal(print, fl_model_fingerprint(m.model));
    if (fl_state_load(fl_engine_state(m.engine), path, print, &seq, &ids, &n, &err) != FL_OK)
        fail_msg("%s", err.message);
    assert_int_equal(n, GRID);
    assert_memory_equal(ids, text[0], GRID * sizeof *ids);
    fl_free(ids);
    submit_tail(m.engine, seq, false, &c);
    run_all(m.engine);
    assert_same(&c, &whole);
    collector_free(&c);
    collector_free(&whole);
    close_model(&m);
    unlink(path);
}

/* ---- NaN ---- */

static void poison(const opened *m, fl_seq seq)
{
    const fl_graph *g = fl_model_graph(m->model);
    fl_state *st = fl_engine_state(m->engine);
    fl_seq_rows q;
    fl_state_rows(st, seq, &q);
    for (int i = 0; i < fl_graph_states(g); i++) {
        const fl_state_spec *spec = fl_graph_state_spec(g, i);
        float *x = spec->paged ? fl_state_row(&fl_state_pools(st)[i], &q, GRID / 2)
                               : fl_state_slot(&fl_state_pools(st)[i], &q);
        for (int64_t k = 0; k < spec->elements; k++)
            x[k] = NAN;
    }
}

static void test_nan_ends_one_request(void **state)
{
    (void)state;
    opened m;
    fl_engine_options o = options(2, 128);
    open_model(&m, FL_TINY_MODEL, &o);
    fl_engine *e = m.engine;
    collector whole, sick, well[2];
    run_among(e, PROMPT, 0, false, &whole);
    fl_seq healthy = run_head(e), poisoned = run_head(e);
    poison(&m, poisoned);
    fl_request_params p = params(text[0], PROMPT, ANSWER);
    submit_tail(e, poisoned, true, &sick);
    submit_tail(e, healthy, false, &well[0]);
    collect(&well[1], &p, 0);
    submit(e, &p);
    run_all(e);
    assert_int_equal(sick.finish, FL_FINISH_ERROR);
    assert_int_equal(sick.error.status, FL_NUMERIC);
    assert_int_equal(sick.kept, FL_NONE);
    assert_same(&well[0], &whole);
    assert_same(&well[1], &whole);

    /* The slots and pages that held NaN serve the next ones. */
    for (int round = 0; round < 2; round++) {
        for (int i = 0; i < 2; i++) {
            collector_free(&well[i]);
            collect(&well[i], &p, 0);
            submit(e, &p);
        }
        run_all(e);
        assert_same(&well[0], &whole);
        assert_same(&well[1], &whole);
    }
    collector_free(&well[0]);
    collector_free(&well[1]);
    collector_free(&sick);
    collector_free(&whole);
    close_model(&m);
}

/* ---- allocations that fail ---- */

static fl_status life(collector *c)
{
    opened m;
    fl_engine_options o = options(2, 64);
    fl_ids ids = {0};
    fl_request *r;
    fl_error err;
    const fl_tokenizer *tokenizer;
    fl_status s;
    FL_GOTO(s, done, try_open_model(&m, FL_TINY_MODEL, &o, &err));
    FL_GOTO(s, done, fl_model_tokenizer(m.model, &tokenizer, &err));
    FL_GOTO(s, done, fl_tokenizer_encode(tokenizer, "The index is", 12, false, &ids, &err));
    fl_request_params p = params(ids.data, (int64_t)ids.n, 2);
    p.sampling.presence = 0.1f;
    collect(c, &p, 0);
    FL_GOTO(s, done, fl_engine_submit(m.engine, &p, &r, &err));
    bool busy = true;
    while (busy)
        FL_GOTO(s, done, fl_engine_step(m.engine, &busy, &err));
done:
    fl_vec_free(&ids);
    close_model(&m);
    if (s != FL_OK)
        assert_true(err.message[0] != 0);
    return s;
}

static void test_allocation_failures(void **state)
{
    (void)state;
    collector good = {0}, c = {0};
    long before = fl_mem_count();
    assert_int_equal(life(&good), FL_OK);
    long n = fl_mem_count() - before, failed = 0, runs = 0;
    print_message("%ld allocations in a load-and-generate run\n", n);
    /* The sample: the first and last 40, and about 60 between. */
    n = n < last_failure ? n : last_failure;
    for (long i = first_failure, next; i <= n; i = next) {
        next = i + (full_run || i <= 40 || i > n - 40 ? 1 : 1 + n / 60);
        next = i <= n - 40 && next > n - 40 ? n - 39 : next;
        fl_mem_fail_at(i);
        fl_status s = life(&c);
        fl_mem_fail_at(0);
        runs++;
        failed += s != FL_OK;
        if (s == FL_OK) /* whoever asked could do without; then the answer is right */
            assert_same(&c, &good);
        collector_free(&c);
    }
    print_message("%ld runs, %ld of them failed\n", runs, failed);
    bool slice = last_failure < LONG_MAX; /* it may lie where all who ask can do without */
    assert_true(slice || failed > runs / 2);
    collector_free(&good);
}

int main(int argc, char **argv)
{
    full_run = argc > 1 && strcmp(argv[1], "--full") == 0;
    fast_run = argc > 1 && strcmp(argv[1], "--fast") == 0;
    const struct CMUnitTest failures[] = {cmocka_unit_test(test_allocation_failures)};
    if (full_run && argc == 4) {
        first_failure = strtol(argv[2], NULL, 10);
        last_failure = strtol(argv[3], NULL, 10);
        return cmocka_run_group_tests(failures, make_texts, NULL);
    }
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_company_threads_and_cutting),
        cmocka_unit_test(test_processor_levels),
        cmocka_unit_test(test_kept_sequences_continue_identically),
        cmocka_unit_test(test_forks_do_not_touch_each_other),
        cmocka_unit_test(test_saved_sequence_continues_in_another_engine),
        cmocka_unit_test(test_nan_ends_one_request),
        cmocka_unit_test(test_allocation_failures),
    };
    return cmocka_run_group_tests(tests, make_texts, NULL);
}
