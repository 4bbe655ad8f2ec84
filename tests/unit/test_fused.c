/* Calls in one go: which a plan puts together, that its memory allows it, that answers stay the
 * same, and that their source compiles wherever the compiler at run time is (else that part is
 * skipped).  Whether what is compiled is right can only be seen on a GPU (test_gpu_fused.c). */
#include "graph/plan_internal.h"
#include "ops/fused.h"
#include "ops/ops.h"
#include "ops/rtc.h"
#include "support/cmocka_all.h"
#include "support/collect.h"
#include "support/fake_device.h"
#include "support/open_model.h"

#include <stdio.h>

enum { N = 3, LENGTH = 90, ANSWER = 20 };

static fl_buf source; /* of the last plan, and how many kernels it has */
static size_t n_kernels;
static int n_joints, n_calls, longest;

static void write_source(const fl_joint *joints, int n)
{
    fl_fused_unit unit = {0};
    n_joints = n;
    n_calls = longest = 0;
    for (int i = 0; i < n; i++) {
        fl_fused lay;
        int number;
        n_calls += joints[i].n;
        longest = joints[i].n > longest ? joints[i].n : longest;
        if (fl_fused_lay(&joints[i], &lay))
            assert_true(fl_fused_unit_add(&unit, &lay, &number));
        else
            assert_int_equal(joints[i].n, 1);
    }
    source.n = 0;
    assert_true(fl_fused_unit_write(&unit, &source));
    n_kernels = unit.texts.n;
    fl_fused_unit_free(&unit);
}

static void answer(const char *dir, const char *kernels, bool device, collector c[N])
{
    opened m;
    fl_engine_options o = fl_engine_options_default();
    o.max_seqs = N;
    o.max_context = 512;
    o.threads = 1;
    o.chunk = 64;
    o.kernels = kernels;
    if (device)
        o.given_device = fake_device_open(fl_ops_registry(), (size_t)1 << 30, "pick");
    open_model(&m, dir, &o);
    uint32_t x = 3;
    int32_t ids[N][LENGTH];
    for (int i = 0; i < N; i++) {
        fl_request_params p = fl_request_params_default();
        fl_request *r;
        fl_error err;
        for (int k = 0; k < LENGTH; k++)
            ids[i][k] = (int32_t)(((x = x * 1664525u + 1013904223u) >> 8) % 250);
        p.prompt = ids[i];
        p.n_prompt = 20 + 30 * i;
        p.max_tokens = ANSWER;
        p.sampling.n_top = 0;
        collect(&c[i], &p, 0);
        if (fl_engine_submit(m.engine, &p, &r, &err) != FL_OK)
            fail_msg("%s", err.message);
    }
    run_all(m.engine);
    close_model(&m);
}

static void test_same_answers(void **state)
{
    (void)state;
    static collector c[3][N];
    fake_device_on_join = write_source;
    fake_device_joined = 0;
    answer(FL_TINY_MODEL, NULL, false, c[0]);
    answer(FL_TINY_MODEL, NULL, true, c[1]);
    print_message("%d calls in %d joints, %d in the longest, %d kernels of %d characters\n",
                  n_calls, n_joints, longest, (int)n_kernels, (int)source.n);
    assert_true(fake_device_joined > 0);
    assert_true(longest >= 8); /* the convolutions of a layer with what follows */
    int alone = n_joints;
    /* named kernels are used as they are */
    answer(FL_TINY_MODEL, "expr=fake,rmsnorm=fake,l2norm=fake,conv1d=fake,residual_mix=fake", true,
           c[2]);
    assert_int_equal(n_joints, alone); /* not called again */
    for (int i = 0; i < N; i++) {
        assert_same(&c[0][i], &c[1][i]);
        assert_same(&c[0][i], &c[2][i]);
        for (int k = 0; k < 3; k++)
            collector_free(&c[k][i]);
    }
    fake_device_on_join = NULL;
}

static void test_compiles(void **state)
{
    (void)state;
    const void *image, *again;
    size_t bytes, same;
    fl_error err;
    assert_true(source.n > 0);
    fl_status s = fl_rtc_compile(source.data, "sm_90", &image, &bytes, &err);
    if (s == FL_NOTFOUND) {
        print_message("skipped: %s\n", err.message);
        skip();
    }
    if (s != FL_OK)
        fail_msg("%s", err.message);
    assert_memory_equal(image,
                        "\x7f"
                        "ELF",
                        4);
    assert_int_equal(fl_rtc_compile(source.data, "sm_90", &again, &same, &err), FL_OK);
    assert_ptr_equal(again, image); /* compiled once */
    assert_int_equal(same, bytes);
    s = fl_rtc_compile("no program", "sm_90", &image, &bytes, &err);
    assert_int_equal(s, FL_UNSUPPORTED);
    assert_non_null(strstr(err.message, "not compiled"));
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_same_answers),
        cmocka_unit_test(test_compiles),
    };
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    if (argc > 1) { /* for people: the source itself */
        FILE *to = fopen(argv[1], "w");
        if (to) {
            fputs(source.data, to);
            fclose(to);
        }
    }
    fl_vec_free(&source);
    return failed;
}
