#define _GNU_SOURCE
#include "base/cpu.h"

#include <sched.h>
#include <stdbool.h>

#if defined(__x86_64__)
#include <cpuid.h>

/* The parts of x86-64-v3 that __builtin_cpu_supports has no name for.  A compiler told to use v3
 * emits them anywhere, and a virtual machine may hide any of them. */
static bool has_small_v3(void)
{
    unsigned a, b, c, d;
    return __get_cpuid(1, &a, &b, &c, &d) && (c & bit_F16C) && (c & bit_MOVBE) &&
           __get_cpuid(0x80000001, &a, &b, &c, &d) && (c & bit_LZCNT);
}
#endif

fl_isa fl_cpu_isa(void)
{
#if defined(__x86_64__)
    if (!__builtin_cpu_supports("avx2") || !__builtin_cpu_supports("fma") ||
        !__builtin_cpu_supports("bmi") || !__builtin_cpu_supports("bmi2") || !has_small_v3())
        return FL_ISA_BASE;
    if (!__builtin_cpu_supports("avx512f") || !__builtin_cpu_supports("avx512bw") ||
        !__builtin_cpu_supports("avx512cd") || !__builtin_cpu_supports("avx512dq") ||
        !__builtin_cpu_supports("avx512vl"))
        return FL_ISA_AVX2;
    if (!__builtin_cpu_supports("avx512vnni") || !__builtin_cpu_supports("avx512bf16") ||
        !__builtin_cpu_supports("avx512vbmi"))
        return FL_ISA_AVX512;
    return FL_ISA_VNNI;
#else
    return FL_ISA_BASE;
#endif
}

const char *fl_isa_name(fl_isa isa)
{
    static const char *const names[FL_ISA_COUNT] = {"base", "avx2", "avx512", "avx512-vnni"};
    return isa < FL_ISA_COUNT ? names[isa] : "?";
}

int fl_cpu_count(void)
{
    cpu_set_t set;
    return sched_getaffinity(0, sizeof set, &set) == 0 ? CPU_COUNT(&set) : 1;
}
