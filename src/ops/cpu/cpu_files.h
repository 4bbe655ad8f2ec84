/* The CPU kernel files.  Each is compiled once per processor level and defines, under the name
 * that FL_CPU_NAME gives it, `const fl_kernel_list fl_cpu_kernels_FILE_LEVEL`. */
#ifndef FL_OPS_CPU_FILES_H
#define FL_OPS_CPU_FILES_H

/* X(file, level), one line per file. */
#define FL_CPU_FILES(X, level)                                                                     \
    X(conv, level)                                                                                 \
    X(delta_rule, level)                                                                           \
    X(delta_chunk, level)                                                                          \
    X(experts, level)                                                                              \
    X(expr, level)                                                                                 \
    X(index_select, level)                                                                         \
    X(linear, level)                                                                               \
    X(mix, level)                                                                                  \
    X(mla, level)                                                                                  \
    X(mla_expanded, level)                                                                         \
    X(norm, level)

/* L(X, level), for every level that CMakeLists.txt builds. */
#if defined(__x86_64__)
#define FL_CPU_LEVELS(L, X)                                                                        \
    L(X, base)                                                                                     \
    L(X, avx2)                                                                                     \
    L(X, avx512)                                                                                   \
    L(X, vnni)
#else
#define FL_CPU_LEVELS(L, X) L(X, base)
#endif

#endif
