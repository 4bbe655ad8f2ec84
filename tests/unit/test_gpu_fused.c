/* Calls in one go on a GPU: random chains of expressions, norms, mixes and convolutions give the
 * bits that the same calls give one by one, for steps of single rows and of several.
 *
 *     test_gpu_fused [joints] [seed]
 *
 * Skipped, with the reason, where there is no GPU or no compiler at run time. */
#include "base/mem.h"
#include "graph/expr.h"
#include "ops/def/def_internal.h"
#include "ops/device.h"
#include "support/cmocka_all.h"
#include "support/device_room.h"
#include "support/rng.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { ROWS = 6, CALLS = 7, MOST_IN = 4, TAPS = 4, SLOTS = ROWS, N_JOINTS = 60, MOST_WIDTH = 7168 };
#define ROOM ((size_t)800 << 20)

static fl_device *device;
static char why[200];
static rng dice;
static int n_joints = N_JOINTS;
static uint64_t seed = 1;
static device_room room;

typedef struct made { /* a joint, and where its calls write when they run one by one */
    fl_call call[CALLS];
    const fl_call *pointer[CALLS];
    fl_arg in[CALLS][MOST_IN], out[CALLS];
    fl_attr attr[CALLS][2];
    int state[CALLS]; /* -1: none */
    fl_joint joint;
} made;

static made *all;
static fl_arena arena;
static fl_state_pool pools[N_JOINTS * CALLS * 4];
static int n_pools;
static size_t pool_bytes[N_JOINTS * CALLS * 4];

static int between(int low, int high)
{
    return (int)rng_int(&dice, low, high);
}

/* Random floats in device memory. */
static unsigned char *numbers(size_t n)
{
    float *x = fl_calloc(n, sizeof *x);
    assert_non_null(x);
    for (size_t i = 0; i < n; i++)
        x[i] = (float)rng_int(&dice, -4000, 4000) / 1000;
    unsigned char *to = device_send(&room, x, n * sizeof *x);
    fl_free(x);
    return to;
}

static fl_arg rows_of(int64_t width, bool filled)
{
    fl_arg a = {.type = {.rows = FL_ROWS_TOKENS,
                         .dtype = FL_F32,
                         .ndim = 1,
                         .n_tensors = 1,
                         .dim = {width},
                         .state = -1},
                .stride = width + 16 * between(0, 2)};
    size_t n = (size_t)a.stride * ROWS;
    a.data = filled ? numbers(n) : device_take(&room, n * sizeof(float));
    return a;
}

static fl_arg constant(int ndim, int64_t d0, int64_t d1)
{
    fl_arg a = {.type = {.rows = FL_ROWS_CONST,
                         .dtype = FL_F32,
                         .ndim = ndim,
                         .n_tensors = 1,
                         .dim = {d0, d1},
                         .state = -1}};
    a.data = numbers((size_t)d0 * (size_t)(ndim > 1 ? d1 : 1));
    a.stride = fl_type_width(&a.type);
    return a;
}

/* Gives an operand the shape [width / d, d]. */
static fl_arg in_vectors(fl_arg a, int64_t d)
{
    int64_t width = fl_type_width(&a.type);
    a.type.ndim = 2;
    a.type.dim[0] = width / d;
    a.type.dim[1] = d;
    return a;
}

static const fl_kernel *single(const char *op)
{
    for (int l = 0; l < device->n_lists; l++) {
        for (int i = 0; i < device->lists[l]->n; i++) {
            if (strcmp(device->lists[l]->kernels[i].op, op) == 0)
                return &device->lists[l]->kernels[i];
        }
    }
    fail_msg("no kernel for %s", op);
    return NULL;
}

static void make_expr(fl_call *c, fl_arg *in, fl_arg x, fl_arg y, int64_t d)
{
    static const char *const texts[] = {"x*y + 1.5",
                                        "silu(x)",
                                        "4*tanh(x/4)*sigmoid(x)*25*tanh(y/25)",
                                        "x - y*w",
                                        "-5*sigmoid(v*(x+w))",
                                        "softplus(x)*y - v",
                                        "gelu(x)*y + exp(y/9)",
                                        "max(x,y)/(1+abs(x))",
                                        "rsqrt(x*x+0.1)*erf(y)",
                                        "-v*log(1+x*x)+relu(y)"};
    const fl_expr *e;
    fl_error err;
    device_must(fl_expr_compile(texts[between(0, 9)], "x, y, w, v", "", &arena, &e, &err), &err);
    int64_t width = fl_type_width(&x.type);
    in[0] = in_vectors(x, d);
    in[1] = in_vectors(y, d);
    in[2] = between(0, 1) ? constant(2, width / d, d) : constant(1, d, 0);
    in[3] = constant(2, width / d, 1);
    *c = (fl_call){.kernel = single("expr"), .n_in = 4, .prep = e};
}

static void make_call(made *m, int i, int64_t width, int64_t d, const fl_arg *known, int n_known)
{
    fl_call *c = &m->call[i];
    fl_arg *in = m->in[i], x = known[between(0, n_known - 1)], y = known[between(0, n_known - 1)];
    int kind = i == 0 ? between(0, 4) : between(0, 3);
    m->state[i] = -1;
    m->out[i] = rows_of(width, false);
    m->attr[i][0] = (fl_attr){.f = 1e-5};
    m->attr[i][1] = (fl_attr){.f = 0.125};
    if (kind == 0) {
        make_expr(c, in, x, y, d);
        m->out[i] = in_vectors(m->out[i], d);
    } else if (kind == 1) {
        in[0] = in_vectors(x, d);
        in[1] = constant(1, d, 0);
        *c = (fl_call){.kernel = single("rmsnorm"), .n_in = between(1, 2)};
    } else if (kind == 2) {
        in[0] = in_vectors(x, d);
        *c = (fl_call){.kernel = single("l2norm"), .n_in = 1};
    } else if (kind == 3 && d == width) {
        in[0] = constant(1, width, 0);
        in[1] = x;
        in[2] = y;
        in[3] = known[0];
        *c = (fl_call){.kernel = single("residual_mix"), .n_in = between(2, 4)};
    } else if (kind == 4) {
        size_t bytes = (size_t)width * (TAPS - 1) * sizeof(float);
        in[0] = known[0];
        in[1] = constant(2, width, TAPS);
        in[2].type = (fl_type){.rows = FL_ROWS_STATE, .state = n_pools};
        pools[n_pools] = (fl_state_pool){numbers(bytes / 4 * SLOTS), (int64_t)bytes};
        pool_bytes[n_pools] = bytes * SLOTS;
        m->state[i] = n_pools++;
        *c = (fl_call){.kernel = single("conv1d"), .n_in = 3};
    } else {
        make_expr(c, in, x, y, d);
        m->out[i] = in_vectors(m->out[i], d);
    }
    c->in = in;
    c->out = &m->out[i];
    c->n_out = 1;
    c->attr = m->attr[i];
}

/* A chain, or two of different widths side by side. */
static void make_joint(made *m)
{
    int n = 0, chains = between(1, 2);
    for (int k = 0; k < chains; k++) {
        static const int vectors[] = {64, 96, 128, 200, 256, 1000, 1024, 3584, MOST_WIDTH};
        int64_t d = vectors[between(0, 8)], width = d * (d > 1000 ? 1 : between(1, 9));
        fl_arg known[2 + CALLS] = {rows_of(width, true), rows_of(width, true)};
        int until = k + 1 < chains ? between(1, CALLS - 1) : between(n + 1, CALLS), first = n;
        for (; n < until; n++) {
            make_call(m, n, width, d, known, 2 + n - first);
            known[2 + n - first] = m->out[n];
            known[2 + n - first].type.ndim = 1;
            known[2 + n - first].type.dim[0] = width;
        }
    }
    for (int i = 0; i < n; i++)
        m->pointer[i] = &m->call[i];
    m->joint = (fl_joint){.n = n, .calls = m->pointer};
}

/* What the outputs and states of a joint are after a step, beginning with the states given. */
static void run(made *m, const fl_step *step, bool joined, const unsigned char *const *before,
                float *out, size_t *n_out)
{
    size_t n = 0;
    for (int i = 0; i < m->joint.n; i++) {
        size_t bytes = (size_t)m->out[i].stride * ROWS * sizeof(float);
        device->fn->zero(device, m->out[i].data, bytes);
        if (m->state[i] >= 0)
            device->fn->copy(device, pools[m->state[i]].base, before[m->state[i]],
                             pool_bytes[m->state[i]]);
    }
    const fl_call *whole[] = {&m->joint.call};
    device_run(&room, m, step, joined ? whole : m->pointer, joined ? 1 : m->joint.n,
               (fl_worker){.n_threads = 1});
    for (int i = 0; i < m->joint.n; i++) {
        size_t bytes = (size_t)m->out[i].stride * ROWS * sizeof(float);
        device_fetch(&room, out + n, m->out[i].data, bytes);
        n += bytes / sizeof(float);
        if (m->state[i] < 0)
            continue;
        bytes = pool_bytes[m->state[i]];
        device_fetch(&room, out + n, pools[m->state[i]].base, bytes);
        n += bytes / sizeof(float);
    }
    *n_out = n;
}

/* Steps of ROWS rows: every sequence one, or some of several. */
static fl_step make_step(bool decode, fl_seq_rows *seqs, int32_t *row_seq, int32_t *ids)
{
    fl_step s = {.n_rows = ROWS, .ids = ids, .row_seq = row_seq, .seqs = seqs, .states = pools};
    for (int32_t row = 0; row < ROWS; s.n_seqs++) {
        int32_t n = decode ? 1 : (int32_t)rng_int(&dice, 1, ROWS - row);
        seqs[s.n_seqs] = (fl_seq_rows){.row0 = row, .n_rows = n, .pos0 = 5, .slot = s.n_seqs};
        for (int32_t i = 0; i < n; i++)
            row_seq[row++] = s.n_seqs;
    }
    return s;
}

static void test_joints(void **state)
{
    (void)state;
    fl_error err;
    const fl_limits limits = {
        .max_rows = ROWS, .max_logits = ROWS, .n_threads = 1, .max_context = 64, .max_seqs = ROWS};
    if (!device)
        skip();
    device_open_room(&room, device, ROOM, &limits);
    dice = (rng){seed};
    all = fl_calloc((size_t)n_joints, sizeof *all);
    fl_joint *joints = fl_calloc((size_t)n_joints, sizeof *joints);
    const unsigned char *before[sizeof pools / sizeof *pools];
    float *a = fl_calloc(CALLS * 2 * ROWS * (MOST_WIDTH * 3 + 64), sizeof *a);
    float *b = fl_calloc(CALLS * 2 * ROWS * (MOST_WIDTH * 3 + 64), sizeof *b);
    assert_true(all && joints && a && b);
    for (int i = 0; i < n_joints; i++) {
        make_joint(&all[i]);
        joints[i] = all[i].joint;
    }
    for (int i = 0; i < n_pools; i++) {
        before[i] = device_take(&room, pool_bytes[i]);
        device->fn->copy(device, (void *)(uintptr_t)before[i], pools[i].base, pool_bytes[i]);
    }
    device_must(device->fn->join(device, joints, n_joints, &err), &err);
    if (device->note[0]) {
        print_message("skipped: %s\n", device->note);
        skip();
    }
    int ran = 0;
    for (int i = 0; i < n_joints; i++) {
        all[i].joint.call = joints[i].call;
        for (int decode = 0; decode < 2 && joints[i].call.kernel; decode++, ran++) {
            fl_seq_rows seqs[ROWS];
            int32_t row_seq[ROWS], ids[ROWS] = {0};
            fl_step step = make_step(decode, seqs, row_seq, ids);
            size_t n, m;
            run(&all[i], &step, false, before, a, &n);
            run(&all[i], &step, true, before, b, &m);
            assert_int_equal(n, m);
            if (memcmp(a, b, n * sizeof *a) != 0) {
                for (int k = 0; k < all[i].joint.n; k++)
                    print_message("    %s, %lld wide\n", all[i].call[k].kernel->op,
                                  (long long)fl_type_width(&all[i].out[k].type));
                size_t at = 0;
                while (memcmp(&a[at], &b[at], sizeof *a) == 0)
                    at++;
                fail_msg("joint %d (seed %llu, decode %d): number %zu is %a in one go, %a alone", i,
                         (unsigned long long)seed, decode, at, (double)b[at], (double)a[at]);
            }
        }
    }
    print_message("%d of %d joints ran in one go\n", ran / 2, n_joints);
    assert_true(ran > n_joints);
    fl_free(all);
    fl_free(joints);
    fl_free(a);
    fl_free(b);
    fl_arena_free(&arena);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_joints)};
    fl_error err;
    if (argc > 1)
        n_joints = (int)strtol(argv[1], NULL, 10);
    if (n_joints < 1 || n_joints > N_JOINTS)
        n_joints = N_JOINTS;
    if (argc > 2)
        seed = strtoull(argv[2], NULL, 10);
    if (fl_device_open("auto", &device, why, &err) != FL_OK)
        return 1;
    print_message("%s%s\n", device ? "" : "skipped: ", why);
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    if (device)
        device->fn->close(device);
    return failed;
}
