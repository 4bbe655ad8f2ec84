/* mla: both forms at every level, and that of precision fast, against the reference and against
 * each other; shuffled pages, several sequences in a step, selections, weight and cache types,
 * spans, threads, cuttings. */
#include "support/cmocka_all.h"
#include "support/kernels.h"

#include "ops/def/def_internal.h"

#include <string.h>

#define DIM(...) ((const int64_t[]){__VA_ARGS__})

static rng random_numbers;
/* bf16: where the processor has BF16 dot products.  It fits even sizes only.  Scores here are so
 * large that their rounding moves weights by percents; test_ops has the closer bounds. */
typedef struct family {
    const char *name;
    bool grid;      /* equal bits for cuts on the chunk grid only */
    double coarser; /* than float32 */
} family;
static const family families[] = {
    {"absorbed", false, 1}, {"expanded", true, 1}, {"bf16", true, 5000}};
enum { FAMILIES = sizeof families / sizeof *families };

/* The i-th kernel of a family that fits the call; NULL past the last. */
static const fl_kernel *kernel_of(const tc *c, const family *f, int i)
{
    const fl_kernel *k = tk_kernel("mla", f->name, i);
    fl_node_view view = tc_view(c);
    return k && k->fits && !k->fits(&view) ? NULL : k;
}

typedef struct shape {
    int heads, nope, pe, dv, latent;
    fl_dtype weights;
    int topk; /* 0: no selection */
} shape;

static fl_dtype cache_type = FL_F32;

/* A call without a selection filled in. */
static void make(tc *c, const shape *z, int n_seqs, const int *rows, const int64_t *pos0)
{
    tc_begin(c, "mla", &random_numbers);
    tc_step(c, n_seqs, rows, pos0);
    tc_rows(c, FL_ROWS_TOKENS, FL_F32, 2, DIM(z->heads, z->nope + z->pe));
    tc_const(c, z->weights, 1, 2, DIM(z->heads * (z->nope + z->dv), z->latent));
    tc_cache_in(c, cache_type, z->latent + z->pe);
    if (z->topk)
        tc_rows(c, FL_ROWS_TOKENS, FL_I32, 1, DIM(z->topk));
    tc_number(c, "v_dim", z->dv);
    tc_number(c, "scale", 0.3 / sqrt(z->nope + z->pe));
    tc_finish(c);
}

/* What index_select would leave: everything while it fits, then topk positions at random. */
static void select_some(tc *c, int topk)
{
    for (int32_t r = 0; r < c->step.n_rows; r++) {
        int64_t visible = fl_step_pos(&c->step, r) + 1;
        int32_t *s = tc_i32(c, FL_MLA_SELECT, r);
        for (int64_t p = 0, n = 0; n < topk; n++) {
            /* Algorithm S: each of those left with equal chance. */
            while (p < visible && visible > topk && rng_int(c->random, 1, visible - p) > topk - n)
                p++;
            s[n] = p < visible ? (int32_t)p++ : -1;
        }
    }
}

static void check_family(tc *c, const family *f, const tk_result *ref, double tolerance)
{
    const fl_kernel *k;
    tk_result first = {0};
    for (int i = 0; (k = kernel_of(c, f, i)) != NULL; i++) {
        tk_result r = tk_run(c, k, 1);
        if (ref)
            tk_close(c, &r, ref, tolerance * f->coarser, k->name);
        if (i)
            tk_same(c, &first, &r, k->name);
        else
            first = r;
        for (int j = 0; j < 2; j++) {
            int threads = (int)rng_int(c->random, 2, 8);
            tk_result other = tk_run(c, k, j ? threads : -threads);
            tk_same(c, &r, &other, "threads");
            tk_free(&other);
        }
        tk_result cut = tk_run_cut(c, k, (int)rng_int(c->random, 1, 3), f->grid);
        tk_same(c, &r, &cut, "cutting");
        tk_free(&cut);
        if (i)
            tk_free(&r);
    }
    tk_free(&first);
}

static void check(uint64_t seed, const shape *z, int n_seqs, const int *rows, const int64_t *pos0)
{
    print_message("seed %llu: %d heads of %d + %d, %d, latent %d, top %d\n",
                  (unsigned long long)seed, z->heads, z->nope, z->pe, z->dv, z->latent, z->topk);
    tc c;
    random_numbers.state = seed;
    make(&c, z, n_seqs, rows, pos0);
    if (z->topk)
        select_some(&c, z->topk);
    tk_result ref = tk_run(&c, tk_kernel("mla", "ref", 0), 1);
    for (int f = 0; f < FAMILIES; f++)
        check_family(&c, &families[f], &ref, 2e-5);
    tk_free(&ref);
    tc_end(&c);
}

static void test_sizes(void **state)
{
    (void)state;
    const shape tiny = {4, 64, 32, 64, 96, FL_BF16, 0};
    check(1, &tiny, 1, (int[]){70}, DIM(0));
    check(2, &tiny, 3, (int[]){1, 9, 64}, DIM(130, 5, 64));
    const shape odd = {3, 5, 3, 7, 9, FL_F32, 0};
    check(3, &odd, 4, (int[]){1, 80, 1, 1}, DIM(0, 60, 255, 256));
    const shape no_pe = {2, 6, 0, 1, 17, FL_F16, 0};
    check(4, &no_pe, 2, (int[]){66, 1}, DIM(63, 100));
    const shape many_heads = {35, 2, 2, 2, 16, FL_F32, 0};
    check(5, &many_heads, 2, (int[]){70, 1}, DIM(0, 200));
    const shape mx = {2, 20, 4, 18, 64, FL_MXFP4, 0};
    check(6, &mx, 1, (int[]){68}, DIM(60));
    const shape one = {1, 1, 1, 1, 1, FL_F32, 0};
    check(7, &one, 2, (int[]){1, 64}, DIM(0, 0));
    const shape in_lanes = {18, 4, 3, 5, 32, FL_BF16, 0};
    check(8, &in_lanes, 3, (int[]){1, 70, 1}, DIM(130, 60, 63));
}

/* Types of caches, whose rows may be used where they lie or not. */
static void test_caches(void **state)
{
    (void)state;
    static const fl_dtype types[] = {FL_BF16, FL_F8_E4M3, FL_I8};
    for (int i = 0; i < 3; i++) {
        cache_type = types[i];
        const shape lanes = {16, 4, 6, 4, 160, FL_BF16, 0};
        check(10 + (uint64_t)i, &lanes, 3, (int[]){1, 66, 1}, DIM(130, 62, 5));
        const shape some = {12, 4, 3, 7, 40, FL_F16, 20};
        check(13 + (uint64_t)i, &some, 2, (int[]){70, 1}, DIM(0, 100));
    }
    cache_type = FL_F32;
}

static void test_selection(void **state)
{
    (void)state;
    const shape tiny = {4, 16, 8, 16, 32, FL_BF16, 128};
    check(20, &tiny, 1, (int[]){140}, DIM(0));
    check(21, &tiny, 4, (int[]){1, 1, 1, 64}, DIM(126, 127, 128, 192));
    const shape small = {3, 5, 3, 7, 9, FL_F32, 70};
    check(22, &small, 2, (int[]){128, 1}, DIM(0, 500));
    const shape single = {3, 5, 3, 7, 16, FL_F32, 1};
    check(23, &single, 2, (int[]){66, 1}, DIM(0, 30));
    const shape many_heads = {40, 2, 2, 2, 16, FL_F32, 70};
    check(24, &many_heads, 2, (int[]){70, 1}, DIM(20, 200));
    const shape most_heads = {270, 1, 1, 1, 3, FL_F32, 3};
    check(25, &most_heads, 1, (int[]){40}, DIM(0));
}

/* Contexts of several spans, up to where spans grow. */
static void test_spans(void **state)
{
    (void)state;
    const shape z = {2, 2, 2, 2, 14, FL_F32, 0};
    check(30, &z, 2, (int[]){1, 40}, DIM(3 * 1024 + 5, 1000));
    check(31, &z, 1, (int[]){1}, DIM(2047));
    const shape s = {2, 2, 2, 2, 14, FL_F32, 1500};
    check(32, &s, 2, (int[]){1, 40}, DIM(1600, 1480));
    /* Around 32 spans of 16 blocks, and where 40 of them become 20 of 32; too long for the
     * reference.  The short rows make the step one of many rows, the cut ones are of few. */
    tc c;
    random_numbers.state = 33;
    make(&c, &z, 4, (int[]){1, 1, 1, 40}, DIM(32767, 32768, 40 * 1024, 0));
    for (int f = 0; f < FAMILIES; f++)
        check_family(&c, &families[f], NULL, 0);
    tc_end(&c);
}

/* A selection of everything gives the bits of no selection; so do all rows up
 * to topk positions next to rows beyond. */
static void test_select_all(void **state)
{
    (void)state;
    for (int topk = 200; topk >= 100; topk -= 50) {
        tc dense, sparse;
        const shape z = {3, 8, 4, 8, 20, FL_BF16, 0};
        shape selecting = z;
        selecting.topk = topk;
        random_numbers.state = 40;
        make(&dense, &z, 3, (int[]){150, 1, 1}, DIM(0, topk - 1, topk));
        random_numbers.state = 40;
        make(&sparse, &selecting, 3, (int[]){150, 1, 1}, DIM(0, topk - 1, topk));
        select_some(&sparse, topk);
        for (int r = 0; r < 152; r++) /* the same numbers, whatever was drawn in between */
            memcpy(tc_f32(&sparse, FL_MLA_Q, r), tc_f32(&dense, FL_MLA_Q, r), 3 * 12 * 4);
        memcpy(sparse.in[FL_MLA_KV_B].data, dense.in[FL_MLA_KV_B].data, 3 * 16 * 20 * 2);
        for (int s = 0; s < 3; s++) {
            for (int64_t p = 0; p < dense.step.seqs[s].pos0 + dense.step.seqs[s].n_rows; p++) {
                fl_state_pool a = {sparse.states[0].initial, sparse.pools[0].item_bytes};
                fl_state_pool b = {dense.states[0].initial, dense.pools[0].item_bytes};
                memcpy(fl_state_row(&a, &sparse.step.seqs[s], p),
                       fl_state_row(&b, &dense.step.seqs[s], p), 24 * 4);
            }
        }
        for (int f = 0; f < FAMILIES; f++) {
            const fl_kernel *k = kernel_of(&dense, &families[f], 0);
            if (!k)
                continue;
            tk_result a = tk_run(&dense, k, 2), b = tk_run(&sparse, k, 3);
            int differ = 0;
            for (int r = 0; r < 152; r++) {
                bool same = memcmp(a.data + r * 96, b.data + r * 96, 96) == 0;
                if (fl_step_pos(&dense.step, r) < topk)
                    assert_true(same);
                differ += !same;
            }
            assert_int_equal(differ, (topk < 150 ? 150 - topk : 0) + 1);
            tk_free(&a);
            tk_free(&b);
        }
        tc_end(&dense);
        tc_end(&sparse);
    }
}

/* Entries that are no visible position are passed over, a row without any gives zeros. */
static void test_holes(void **state)
{
    (void)state;
    tc c;
    const shape z = {2, 4, 4, 4, 16, FL_F32, 80};
    random_numbers.state = 50;
    make(&c, &z, 3, (int[]){1, 40, 64}, DIM(300, 100, 0));
    select_some(&c, 80);
    for (int32_t r = 0; r < 105; r++) {
        for (int i = 0; i < 80; i++) {
            if (rng_one_in(&random_numbers, 3) || (r == 5 && i < 64))
                tc_i32(&c, FL_MLA_SELECT, r)[i] = rng_one_in(&random_numbers, 2) ? -1 : 1 << 30;
        }
    }
    for (int i = 0; i < 80; i++)
        tc_i32(&c, FL_MLA_SELECT, 7)[i] = -1;
    tk_result ref = tk_run(&c, tk_kernel("mla", "ref", 0), 1);
    for (int i = 0; i < 8; i++)
        assert_true(((float *)ref.data)[7 * 8 + i] == 0);
    for (int f = 0; f < FAMILIES; f++)
        check_family(&c, &families[f], &ref, 2e-5);
    tk_free(&ref);
    tc_end(&c);
}

/* Scores hundreds apart, in rising and falling order. */
static void test_large_scores(void **state)
{
    (void)state;
    tc c;
    const shape z = {2, 4, 4, 4, 16, FL_F32, 0};
    random_numbers.state = 60;
    make(&c, &z, 2, (int[]){1, 130}, DIM(300, 0));
    for (int32_t r = 0; r < 131; r++) {
        for (int i = 0; i < 16; i++)
            tc_f32(&c, FL_MLA_Q, r)[i] *= 300;
    }
    tk_result ref = tk_run(&c, tk_kernel("mla", "ref", 0), 1);
    for (int f = 0; f < FAMILIES; f++)
        /* 2e-3: the rounding of a score of some hundred, which in BF16 means nothing any more. */
        check_family(&c, &families[f], families[f].coarser > 1 ? NULL : &ref, 2e-3);
    tk_free(&ref);
    tc_end(&c);
}

/* A NaN row of the cache reaches the rows that see it and no other. */
static void test_nan(void **state)
{
    (void)state;
    const shape z = {2, 4, 4, 4, 16, FL_F32, 0};
    for (int f = 0; f < FAMILIES; f++) {
        tc c;
        random_numbers.state = 70;
        make(&c, &z, 2, (int[]){128, 20}, DIM(0, 64));
        const fl_kernel *k = kernel_of(&c, &families[f], 0);
        if (!k) {
            tc_end(&c);
            continue;
        }
        tk_result clean = tk_run(&c, k, 1);
        fl_state_pool initial = {c.states[0].initial, c.pools[0].item_bytes};
        ((float *)fl_state_row(&initial, &c.step.seqs[0], 70))[3] = NAN;
        tk_result got = tk_run(&c, k, 1);
        for (int r = 0; r < 148; r++) {
            const float *a = (float *)clean.data + r * 8, *b = (float *)got.data + r * 8;
            for (int i = 0; i < 8; i++) {
                if (r >= 70 && r < 128)
                    assert_true(isnan(b[i]));
                else
                    assert_memory_equal(&a[i], &b[i], 4);
            }
        }
        tk_free(&clean);
        tk_free(&got);
        tc_end(&c);
    }
}

static void test_refusals(void **state)
{
    (void)state;
    tc c;
    fl_error err;
    const shape z = {2, 4, 4, 4, 16, FL_F32, 8};
    make(&c, &z, 1, (int[]){1}, DIM(0));
    c.in_type[FL_MLA_CACHE].dim[0]++;
    assert_int_equal(tc_try_infer(&c, &err), FL_MODEL);
    assert_non_null(strstr(err.message, "cache"));
    c.in_type[FL_MLA_CACHE].dim[0]--;
    tc_number(&c, "v_dim", 8);
    assert_int_equal(tc_try_infer(&c, &err), FL_MODEL);
    assert_non_null(strstr(err.message, "kv_b"));
    tc_number(&c, "v_dim", 4);
    c.in_type[FL_MLA_Q].rows = FL_ROWS_LOGITS;
    assert_int_equal(tc_try_infer(&c, &err), FL_MODEL);
    tc_end(&c);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_sizes),  cmocka_unit_test(test_selection),
        cmocka_unit_test(test_spans),  cmocka_unit_test(test_select_all),
        cmocka_unit_test(test_holes),  cmocka_unit_test(test_large_scores),
        cmocka_unit_test(test_nan),    cmocka_unit_test(test_refusals),
        cmocka_unit_test(test_caches),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
