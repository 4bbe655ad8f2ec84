#include "cpu/probe.h"

#include "ops/cpu/cpu_files.h"

#include <string.h>

#define DECLARE(X, level) extern const fl_probe fl_probes_##level[];
FL_CPU_LEVELS(DECLARE, unused)

const fl_probe *fl_probes(fl_isa isa)
{
#define POINTER(X, level) fl_probes_##level,
    static const fl_probe *const all[FL_ISA_COUNT] = {FL_CPU_LEVELS(POINTER, unused)};
    return all[isa];
}

fl_isa fl_probe_top(void)
{
    fl_isa isa = fl_cpu_isa();
    while (!fl_probes(isa))
        isa--;
    return isa;
}

const fl_probe *fl_probe_find(fl_isa isa, const char *name)
{
    const fl_probe *p = fl_probes(isa);
    while (p->name && strcmp(p->name, name) != 0)
        p++;
    return p->name ? p : NULL;
}
