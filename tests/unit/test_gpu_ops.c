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

static void count(void *ctx, const fl_kernel *k)
{
    (void)k;
    ++*(long *)ctx;
}

static void check_kernel(const ops_gen *g, const fl_kernel *k)
{
    long ran = 0, drawn = 0;
    for (; ran < cases && drawn < MOST_DRAWS * cases; drawn++) {
        const char *wrong = ops_check(g, seed + (uint64_t)drawn, k, count, &ran);
        if (wrong)
            fail_msg("%s\n    again: test_gpu_ops 1 %llu %s", wrong,
                     (unsigned long long)seed + (unsigned long long)drawn, g->op);
    }
    printf("    %s %s: %ld cases of %ld drawn\n", k->op, k->name, ran, drawn);
    if (cases >= 50 && ran < cases)
        fail_msg("%s %s: only %ld of %ld cases fitted it", k->op, k->name, ran, drawn);
}

static void test_operator(void **state)
{
    const ops_gen *g = *state;
    int n = 0;
    if (!device)
        skip();
    for (int l = 0; l < device->n_lists; l++) {
        for (int i = 0; i < device->lists[l]->n; i++) {
            const fl_kernel *k = &device->lists[l]->kernels[i];
            if (strcmp(k->op, g->op) != 0)
                continue;
            check_kernel(g, k);
            n++;
        }
    }
    if (n == 0)
        fail_msg("the device has no kernel for %s", g->op);
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
