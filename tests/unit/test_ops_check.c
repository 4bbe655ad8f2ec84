/* The checker itself: kernels that are wrong in one way each, and that it must not let pass. */
#include "support/cmocka_all.h"
#include "support/ops_gen.h"

#include <string.h>

static void reference(const fl_call *call, const fl_step *step, int phase, const fl_worker *w)
{
    tc_kernel(call->kernel->op, "ref")->run(call, step, phase, w);
}

/* What each faulty kernel does after the reference has done it right. */

static void little_off(const fl_call *call, const fl_step *step, int phase, const fl_worker *w)
{
    reference(call, step, phase, w);
    if (w->thread == 0 && step->n_rows > 0)
        fl_row_f32(&call->out[0], 0)[0] *= 1.00001f;
}

static void depends_on_workers(const fl_call *call, const fl_step *step, int phase,
                               const fl_worker *w)
{
    reference(call, step, phase, w);
    if (w->thread == 1 && w->n_threads == 2)
        fl_row_f32(&call->out[0], 0)[0] *= 1 + 0x1p-22f;
}

static void depends_on_batch(const fl_call *call, const fl_step *step, int phase,
                             const fl_worker *w)
{
    reference(call, step, phase, w);
    if (w->thread == 0 && step->n_rows > 3)
        fl_row_f32(&call->out[0], step->n_rows - 1)[0] *= 1 + 0x1p-22f;
}

static void depends_on_neighbours(const fl_call *call, const fl_step *step, int phase,
                                  const fl_worker *w)
{
    reference(call, step, phase, w);
    if (w->thread == 0 && step->n_seqs > 1)
        fl_row_f32(&call->out[0], 0)[0] *= 1 + 0x1p-22f;
}

static void leaves_out(const fl_call *call, const fl_step *step, int phase, const fl_worker *w)
{
    uint32_t poison = TC_POISON;
    reference(call, step, phase, w);
    if (w->thread == 0)
        memcpy(fl_row_f32(&call->out[0], step->n_rows - 1), &poison, 4);
}

static void writes_between_rows(const fl_call *call, const fl_step *step, int phase,
                                const fl_worker *w)
{
    reference(call, step, phase, w);
    if (call->out[0].stride > fl_type_width(&call->out[0].type))
        fl_row_f32(&call->out[0], 0)[call->out[0].stride - 1] = 0;
}

static void writes_before(const fl_call *call, const fl_step *step, int phase, const fl_worker *w)
{
    reference(call, step, phase, w);
    if (w->thread == 0)
        fl_row_f32(&call->out[0], 0)[-1] = 0;
}

static void changes_input(const fl_call *call, const fl_step *step, int phase, const fl_worker *w)
{
    reference(call, step, phase, w);
    if (w->thread == 0)
        fl_row_f32(&call->in[0], 0)[0] += 1;
}

static void scratch_of_four(const fl_node_view *node, const fl_limits *limits, size_t *per_worker,
                            size_t *shared)
{
    (void)node;
    (void)limits;
    *per_worker = 4;
    *shared = 0;
}

static void overruns_scratch(const fl_call *call, const fl_step *step, int phase,
                             const fl_worker *w)
{
    reference(call, step, phase, w);
    memset(w->scratch, 0, 8);
}

static void forgets_state(const fl_call *call, const fl_step *step, int phase, const fl_worker *w)
{
    unsigned char *tail = fl_state_slot(&step->states[0], &step->seqs[0]);
    float was;
    memcpy(&was, tail, 4);
    reference(call, step, phase, w);
    if (w->thread == 0)
        memcpy(tail, &was, 4);
}

static void other_slot(const fl_call *call, const fl_step *step, int phase, const fl_worker *w)
{
    int32_t used = 0;
    reference(call, step, phase, w);
    for (int i = 0; i < step->n_seqs; i++)
        used |= 1 << step->seqs[i].slot;
    int free_slot = __builtin_ctz(~(unsigned)used);
    if (w->thread == 0)
        memset(step->states[0].base + free_slot * step->states[0].item_bytes, 0, 4);
}

static void swallows_nan(const fl_call *call, const fl_step *step, int phase, const fl_worker *w)
{
    reference(call, step, phase, w);
    int64_t width = fl_type_width(&call->out[0].type);
    for (int32_t r = 0; w->thread == w->n_threads - 1 && r < step->n_rows; r++) {
        float *y = fl_row_f32(&call->out[0], r);
        for (int64_t i = 0; i < width; i++)
            y[i] = y[i] != y[i] ? 0 : y[i];
    }
}

static void wrong_id(const fl_call *call, const fl_step *step, int phase, const fl_worker *w)
{
    reference(call, step, phase, w);
    int32_t *ids = call->out[0].data;
    if (w->thread == 0 && step->n_logits == step->n_rows)
        ids[0] = ids[0] ? 0 : 1;
}

/* Many cases: not every one brings the fault out. */
static bool found(const ops_gen *g, fl_kernel_fn run,
                  void (*scratch)(const fl_node_view *, const fl_limits *, size_t *, size_t *))
{
    const fl_kernel *ref = tc_kernel(g->op, "ref");
    fl_kernel bad = *ref;
    bad.name = "bad";
    bad.run = run;
    if (scratch)
        bad.scratch = scratch;
    for (uint64_t seed = 1; seed <= 60; seed++) {
        if (ops_check(g, seed, (const fl_kernel *[]){&bad, NULL}, NULL, NULL))
            return true;
    }
    return false;
}

static void test_faults_are_found(void **state)
{
    (void)state;
    assert_false(found(&ops_gen_conv1d, reference, NULL));
    assert_false(found(&ops_gen_route, reference, NULL));
    assert_true(found(&ops_gen_conv1d, little_off, NULL));
    assert_true(found(&ops_gen_conv1d, depends_on_workers, NULL));
    assert_true(found(&ops_gen_conv1d, depends_on_batch, NULL));
    assert_true(found(&ops_gen_conv1d, depends_on_neighbours, NULL));
    assert_true(found(&ops_gen_conv1d, leaves_out, NULL));
    assert_true(found(&ops_gen_conv1d, writes_between_rows, NULL));
    assert_true(found(&ops_gen_conv1d, writes_before, NULL));
    assert_true(found(&ops_gen_conv1d, changes_input, NULL));
    assert_true(found(&ops_gen_conv1d, overruns_scratch, scratch_of_four));
    assert_true(found(&ops_gen_conv1d, forgets_state, NULL));
    assert_true(found(&ops_gen_conv1d, other_slot, NULL));
    assert_true(found(&ops_gen_conv1d, swallows_nan, NULL));
    assert_true(found(&ops_gen_route, wrong_id, NULL));
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_faults_are_found)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
