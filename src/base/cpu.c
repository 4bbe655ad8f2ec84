#define _GNU_SOURCE
#include "base/cpu.h"

#include <sched.h>
#include <string.h>

#if defined(__x86_64__)
#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>

/* The parts of x86-64-v3 that __builtin_cpu_supports has no name for.  A compiler told to use v3
 * emits them anywhere, and a virtual machine may hide any of them. */
static bool has_small_v3(void)
{
    unsigned a, b, c, d;
    return __get_cpuid(1, &a, &b, &c, &d) && (c & bit_F16C) && (c & bit_MOVBE) &&
           __get_cpuid(0x80000001, &a, &b, &c, &d) && (c & bit_LZCNT);
}

/* Tiles: the processor has them, the system keeps their registers (XCR0), and lets this process use
 * them when asked (arch_prctl; older systems do not know the question, and say no). */
static bool has_tiles(void)
{
    enum { TILE_BF16 = 1 << 22, TILE = 1 << 24, TILE_INT8 = 1 << 25, XCR0_TILES = 3 << 17 };
    enum { REQ_XCOMP_PERM = 0x1023, XFEATURE_XTILEDATA = 18 };
    unsigned a, b, c, d, xcr0, high;
    const unsigned all = TILE_BF16 | TILE | TILE_INT8;
    if (!__get_cpuid(1, &a, &b, &c, &d) || !(c & bit_OSXSAVE) ||
        !__get_cpuid_count(7, 0, &a, &b, &c, &d) || (d & all) != all)
        return false;
    __asm__("xgetbv" : "=a"(xcr0), "=d"(high) : "c"(0));
    return (xcr0 & XCR0_TILES) == XCR0_TILES &&
           syscall(SYS_arch_prctl, REQ_XCOMP_PERM, XFEATURE_XTILEDATA) == 0;
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
    return has_tiles() ? FL_ISA_AMX : FL_ISA_VNNI;
#else
    return FL_ISA_BASE;
#endif
}

static bool is_intel(void)
{
#if defined(__x86_64__)
    return __builtin_cpu_is("intel");
#else
    return false;
#endif
}

bool fl_cpu_fetch_second(void)
{
    return is_intel();
}

bool fl_cpu_slow_bf16_dots(void)
{
    return is_intel();
}

const char *fl_isa_name(fl_isa isa)
{
    static const char *const names[FL_ISA_COUNT] = {"base", "avx2", "avx512", "avx512-vnni", "amx"};
    return isa < FL_ISA_COUNT ? names[isa] : "?";
}

const char *fl_cpu_name(char out[FL_CPU_NAME])
{
    memset(out, 0, FL_CPU_NAME);
#if defined(__x86_64__)
    for (unsigned i = 0; i < 3; i++) {
        unsigned r[4];
        if (!__get_cpuid(0x80000002 + i, &r[0], &r[1], &r[2], &r[3]))
            break;
        memcpy(out + 16 * i, r, sizeof r);
    }
    size_t lead = strspn(out, " "), n = strlen(out);
    memmove(out, out + lead, n - lead + 1);
    for (n -= lead; n && out[n - 1] == ' '; n--)
        out[n - 1] = 0;
#endif
    if (!out[0])
        memcpy(out, "unknown processor", sizeof "unknown processor");
    return out;
}

int fl_cpu_count(void)
{
    cpu_set_t set;
    return sched_getaffinity(0, sizeof set, &set) == 0 ? CPU_COUNT(&set) : 1;
}
