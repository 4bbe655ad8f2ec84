/* Every CPU kernel gives the same bits at every processor level, on the random cases of the checker
 * (support/ops_gen.h); only the bits of a NaN may differ.  A kernel whose only peer this machine
 * cannot run is left out and named. */
#include "support/cmocka_all.h"
#include "support/kernels.h"
#include "support/ops_gen.h"

#include "ops/ops.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

enum { CASES = 40, SEED = 5 };

#define GEN_POINTER(op) &ops_gen_##op,
static const ops_gen *const gens[] = {OPS_GENS(GEN_POINTER)};
enum { N_GENS = sizeof gens / sizeof *gens };

/* Results are 32-bit floats, or integers, whose bits are never those of a NaN that appears here. */
static void same_bits(const tk_result *a, const tk_result *b, const char *op, const fl_kernel *k,
                      uint64_t seed)
{
    assert_int_equal(a->bytes, b->bytes);
    for (size_t i = 0; i < a->bytes; i += 4) {
        float x, y;
        memcpy(&x, a->data + i, 4);
        memcpy(&y, b->data + i, 4);
        if (memcmp(&x, &y, 4) != 0 && !(isnan(x) && isnan(y)))
            fail_msg("%s %s, seed %llu: word %zu is %a, at the base level %a", op, k->name,
                     (unsigned long long)seed, i / 4, y, x);
    }
}

/* Runs the peers of a base kernel: the same name with the suffix of another level.  Returns how
 * many there are; *lacking: one that this machine cannot run, if it can run none. */
static int compare_peers(tc *c, const fl_kernel *base, uint64_t seed, const fl_kernel **lacking)
{
    int compared = 0;
    const fl_kernel *above = NULL;
    size_t stem = strlen(base->name) - strlen("base");
    tk_result want = tk_run(c, base, 1);
    const fl_kernel *k;
    for (int i = 0; (k = fl_registry_kernel(fl_ops_registry(), i)) != NULL; i++) {
        if (k == base || strcmp(k->op, base->op) != 0 || strncmp(k->name, base->name, stem) != 0 ||
            strchr(k->name + stem, '-') || k->isa == FL_ISA_BASE)
            continue;
        if (k->isa > fl_cpu_isa()) {
            above = k;
            continue;
        }
        tk_result got = tk_run(c, k, 1);
        same_bits(&want, &got, base->op, k, seed);
        tk_free(&got);
        compared++;
    }
    tk_free(&want);
    if (compared == 0 && above)
        *lacking = above;
    return compared + (above != NULL);
}

static void test_levels_agree(void **state)
{
    const ops_gen *g = *state;
    const fl_kernel *lacking = NULL;
    for (uint64_t seed = SEED; seed < SEED + CASES; seed++) {
        rng random = {seed};
        tc c;
        tc_begin(&c, g->op, &random);
        g->make(&c);
        tc_finish(&c);
        fl_node_view view = tc_view(&c);
        const fl_kernel *k;
        for (int i = 0; (k = fl_registry_kernel(fl_ops_registry(), i)) != NULL; i++) {
            const char *suffix = strrchr(k->name, '-');
            if (strcmp(k->op, g->op) == 0 && suffix && strcmp(suffix, "-base") == 0 &&
                (!k->fits || k->fits(&view)) && fl_cpu_isa() > FL_ISA_BASE)
                assert_true(compare_peers(&c, k, seed, &lacking) > 0);
        }
        tc_end(&c);
    }
    if (lacking)
        printf("%s %s left out: level %s is not to be had here\n", g->op, lacking->name,
               fl_isa_name(lacking->isa));
}

int main(void)
{
    struct CMUnitTest tests[N_GENS];
    for (int i = 0; i < N_GENS; i++)
        tests[i] = (struct CMUnitTest){gens[i]->op, test_levels_agree, NULL, NULL, (void *)gens[i]};
    printf("%d cases per operator from seed %d, levels up to %s\n", CASES, SEED,
           fl_isa_name(fl_cpu_isa()));
    return _cmocka_run_group_tests("levels", tests, N_GENS, NULL, NULL);
}
