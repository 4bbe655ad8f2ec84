/* What the CPU kernel files share.  Each .c of this folder is compiled once per processor level
 * (CMakeLists.txt) with FL_ISA_SUFFIX set to the level; whatever has external linkage is named
 * through FL_CPU_NAME, so that the copies stand side by side in one library.
 *
 * A kernel file ends with
 *
 *   static const fl_kernel kernels[] = {
 *       {.op = "rmsnorm", .name = FL_CPU_TEXT("simd"), .isa = FL_CPU_ISA,
 *        .preference = FL_CPU_PREFERENCE, .n_phases = 1, .run = rmsnorm}};
 *   const fl_kernel_list FL_CPU_NAME(fl_cpu_kernels_norm) = FL_KERNEL_LIST(kernels);
 *
 * and adds itself to cpu_files.h. */
#ifndef FL_OPS_CPU_INTERNAL_H
#define FL_OPS_CPU_INTERNAL_H

#include "graph/op.h"
#include "ops/cpu/cpu_files.h"

#define FL_PASTE_(a, b) a##_##b
#define FL_PASTE(a, b) FL_PASTE_(a, b)
#define FL_STRING_(a) #a
#define FL_STRING(a) FL_STRING_(a)

/* fl_cpu_kernels_norm -> fl_cpu_kernels_norm_avx2 */
#define FL_CPU_NAME(x) FL_PASTE(x, FL_ISA_SUFFIX)
/* "simd" -> "simd-avx2" */
#define FL_CPU_TEXT(text) text "-" FL_STRING(FL_ISA_SUFFIX)

/* The fl_isa of this copy. */
#define FL_CPU_ISA ((fl_isa)FL_PASTE(FL_CPU_ISA, FL_ISA_SUFFIX))
enum {
    FL_CPU_ISA_base = FL_ISA_BASE,
    FL_CPU_ISA_avx2 = FL_ISA_AVX2,
    FL_CPU_ISA_avx512 = FL_ISA_AVX512,
    FL_CPU_ISA_vnni = FL_ISA_VNNI
};

/* Above the reference (0), higher levels first; a kernel for precision "fast" adds 10. */
enum { FL_CPU_PREFERENCE = 10 + FL_CPU_ISA };

/* The kernel lists of this copy, so that a forgotten line in cpu_files.h does not compile. */
#define FL_CPU_DECLARE_LIST(file, level)                                                           \
    extern const fl_kernel_list FL_CPU_NAME(fl_cpu_kernels_##file);
FL_CPU_FILES(FL_CPU_DECLARE_LIST, FL_ISA_SUFFIX)
#undef FL_CPU_DECLARE_LIST

#endif
