/* Every kernel against the reference, on random cases (support/ops_check.h says what is demanded).
 *
 *     test_ops [cases per operator] [seed] [operator]
 *
 * A failure prints the seed of its case: `test_ops 1 SEED OPERATOR` runs that case alone. */
#include "support/cmocka_all.h"
#include "support/ops_gen.h"

#include "ops/ops.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#if defined(__SANITIZE_ADDRESS__)
static long cases = 25; /* six times as slow; that every kernel is met is for the other builds */
#else
static long cases = 60;
#endif
static uint64_t seed = 1;

#define GEN_POINTER(op) &ops_gen_##op,
static const ops_gen *const gens[] = {OPS_GENS(GEN_POINTER)};
enum { N_GENS = sizeof gens / sizeof *gens };

typedef struct tally {
    const fl_kernel *kernel[OPS_MAX_KERNELS];
    int n;
} tally;

static void count(void *ctx, const fl_kernel *k)
{
    tally *t = ctx;
    for (int i = 0; i < t->n; i++) {
        if (t->kernel[i] == k)
            return;
    }
    assert_true(t->n < OPS_MAX_KERNELS);
    t->kernel[t->n++] = k;
}

/* With enough cases, a kernel that none of them fitted is a hole in the generator. */
static void all_ran(const ops_gen *g, const tally *t)
{
    const fl_kernel *k;
    for (int i = 0; (k = fl_registry_kernel(fl_ops_registry(), i)) != NULL; i++) {
        bool ran = strcmp(k->op, g->op) != 0 || k->isa > fl_cpu_isa();
        for (int j = 0; j < t->n; j++)
            ran |= t->kernel[j] == k;
        if (!ran)
            fail_msg("%s %s: no case fitted it", k->op, k->name);
    }
}

static void test_operator(void **state)
{
    const ops_gen *g = *state;
    tally t = {0};
    for (long i = 0; i < cases; i++) {
        const char *wrong = ops_check(g, seed + (uint64_t)i, NULL, count, &t);
        if (wrong)
            fail_msg("%s\n    again: test_ops 1 %llu %s", wrong,
                     (unsigned long long)seed + (unsigned long long)i, g->op);
    }
    if (cases >= 50)
        all_ran(g, &t);
}

static void test_every_operator_has_cases(void **state)
{
    (void)state;
    const fl_registry *r = fl_ops_registry();
    for (int i = 0; i < r->n_ops; i++) {
        const char *name = r->ops[i]->name;
        bool found = r->ops[i]->view;
        for (int j = 0; j < N_GENS; j++)
            found |= strcmp(gens[j]->op, name) == 0;
        if (!found)
            fail_msg("operator %s has no generator of cases", name);
        if (!r->ops[i]->view && !tc_kernel(name, "ref"))
            fail_msg("operator %s has no reference kernel", name);
    }
}

int main(int argc, char **argv)
{
    struct CMUnitTest tests[N_GENS + 1];
    int n = 0;
    if (argc > 1)
        cases = strtol(argv[1], NULL, 10);
    if (argc > 2)
        seed = strtoull(argv[2], NULL, 10);
    tests[n++] = (struct CMUnitTest)cmocka_unit_test(test_every_operator_has_cases);
    for (int i = 0; i < N_GENS; i++) {
        if (argc <= 3 || strcmp(argv[3], gens[i]->op) == 0)
            tests[n++] =
                (struct CMUnitTest){gens[i]->op, test_operator, NULL, NULL, (void *)gens[i]};
    }
    printf("%ld cases per operator, seed %llu, processor level %s\n", cases,
           (unsigned long long)seed, fl_isa_name(fl_cpu_isa()));
    return _cmocka_run_group_tests("operators", tests, (size_t)n, NULL, NULL);
}
