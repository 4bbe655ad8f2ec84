/* The kernels of a GPU against the reference, on the random cases of test_ops.c, of which are drawn
 * until as many as wanted fitted the kernel.
 *
 *     test_gpu_ops [cases per kernel] [seed] [operator]
 *
 * Skipped, with the reason, where there is no GPU. */
#include "ops/device.h"
#include "support/call_device.h"
#include "support/cmocka_all.h"
#include "support/ops_gen.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static long cases = 60;
static uint64_t seed = 1;
static fl_device *device;

#define GEN_POINTER(op) &ops_gen_##op,
static const ops_gen *const gens[] = {OPS_GENS(GEN_POINTER)};
enum { N_GENS = sizeof gens / sizeof *gens, MOST_DRAWS = 50 /* for each case that fits */ };

typedef struct tally {
    const fl_kernel *kernel[OPS_MAX_KERNELS + 1]; /* that need more cases; NULL ends them */
    long ran[OPS_MAX_KERNELS];
    int n;
} tally;

static void add_kernels(tally *t, const char *op)
{
    for (int l = 0; l < device->n_lists; l++) {
        for (int i = 0; i < device->lists[l]->n; i++) {
            const fl_kernel *k = &device->lists[l]->kernels[i];
            if (strcmp(k->op, op) != 0)
                continue;
            assert_true(t->n < OPS_MAX_KERNELS);
            t->kernel[t->n++] = k;
        }
    }
}

static void count(void *ctx, const fl_kernel *k)
{
    tally *t = ctx;
    for (int i = 0; i < t->n; i++)
        t->ran[i] += t->kernel[i] == k;
}

/* Kernels that have their cases leave the list. */
static void leave(tally *t, long drawn)
{
    int n = 0;
    for (int i = 0; i < t->n; i++) {
        if (t->ran[i] >= cases) {
            printf("    %s %s: %ld cases of %ld drawn\n", t->kernel[i]->op, t->kernel[i]->name,
                   t->ran[i], drawn);
            continue;
        }
        t->ran[n] = t->ran[i];
        t->kernel[n++] = t->kernel[i];
    }
    t->n = n;
    t->kernel[n] = NULL;
}

static void test_operator(void **state)
{
    const ops_gen *g = *state;
    tally t = {.n = 0};
    long drawn = 0;
    if (!device)
        skip();
    add_kernels(&t, g->op);
    if (t.n == 0)
        fail_msg("the device has no kernel for %s", g->op);
    for (; t.n > 0 && drawn < MOST_DRAWS * cases; leave(&t, drawn)) {
        uint64_t each = seed + (uint64_t)drawn++;
        const char *wrong = ops_check(g, each, t.kernel, count, &t);
        if (wrong)
            fail_msg("%s\n    again: test_gpu_ops 1 %llu %s", wrong, (unsigned long long)each,
                     g->op);
    }
    for (int i = 0; i < t.n; i++)
        printf("    %s %s: only %ld cases of %ld drawn fitted it\n", t.kernel[i]->op,
               t.kernel[i]->name, t.ran[i], drawn);
    if (t.n > 0 && cases >= 50)
        fail_msg("%s: too few cases fitted", g->op);
}

int main(int argc, char **argv)
{
    struct CMUnitTest tests[N_GENS];
    char why[200];
    fl_error err;
    int n = 0;
    if (argc > 1)
        cases = strtol(argv[1], NULL, 10);
    if (argc > 2)
        seed = strtoull(argv[2], NULL, 10);
    if (fl_device_open("auto", &device, why, &err) != FL_OK)
        return 1;
    printf("%s%s\n", device ? "" : "skipped: ", why);
    tc_use_device(device);
    ops_tiny = 1e-34f; /* matrix units have no room for all bits of denormals */
    for (int i = 0; i < N_GENS; i++) {
        if (argc <= 3 || strcmp(argv[3], gens[i]->op) == 0)
            tests[n++] =
                (struct CMUnitTest){gens[i]->op, test_operator, NULL, NULL, (void *)gens[i]};
    }
    int failed = _cmocka_run_group_tests("operators on a GPU", tests, (size_t)n, NULL, NULL);
    if (device)
        device->fn->close(device);
    return failed;
}
