/* The asynchronous matrix instructions of Hopper (wgmma) and what feeds them: barriers in shared
 * memory on which copies are counted, and copies of whole pieces of memory by the copy engine.
 *
 * Four warps multiply 64 rows, 16 elements each, that they hold in registers as the fragments of
 * mma.m16n8k16 (warp w: rows 16 w to 16 w + 15), with N vectors in shared memory; what is summed
 * lies as the results of that instruction do, and is summed the same way.
 *
 * Vectors lie in rows of 128 bytes, 64 elements, one after the other from an address that 1024
 * divides; the eight pieces of 16 bytes of row r stand in the order i XOR r % 8, so that eight rows
 * are read at once without conflict. */
#ifndef FL_OPS_GPU_WGMMA_H
#define FL_OPS_GPU_WGMMA_H

#include "ops/gpu/gpu.h"

enum { WGMMA_THREADS = 128, WGMMA_ROWS = 64, WGMMA_ROW_BYTES = 128 };

#ifdef __CUDACC__

/* Other processors have no such instructions; what is launched there never reaches them. */
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
#define WGMMA_ASM(...) asm volatile(__VA_ARGS__)
#else
#define WGMMA_ASM(...) __trap()
#endif

static __device__ inline uint32_t shared_at(const void *p)
{
    return (uint32_t)__cvta_generic_to_shared(p);
}

/* ---- barriers ---- */

/* A phase ends when `count` threads have arrived and all expected bytes are there. */
static __device__ inline void barrier_init(uint64_t *b, int count)
{
    WGMMA_ASM("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(shared_at(b)), "r"(count) : "memory");
}

static __device__ inline void barrier_arrive(uint64_t *b)
{
    WGMMA_ASM("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(shared_at(b)) : "memory");
}

static __device__ inline void barrier_expect(uint64_t *b, uint32_t bytes)
{
    WGMMA_ASM("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(shared_at(b)),
              "r"(bytes)
              : "memory");
}

/* Waits for the end of a phase of this parity: the first has 0.  Returns 1. */
static __device__ inline uint32_t barrier_wait(uint64_t *b, uint32_t parity)
{
    uint32_t done = 0;
    while (!done) {
        WGMMA_ASM("{\n.reg .pred p;\n"
                  "mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2;\n"
                  "selp.u32 %0, 1, 0, p;\n}"
                  : "=r"(done)
                  : "r"(shared_at(b)), "r"(parity)
                  : "memory");
    }
    return done;
}

/* Makes barriers that one thread has made known to the copy engine. */
static __device__ inline void barriers_made(void)
{
    WGMMA_ASM("fence.mbarrier_init.release.cluster;" ::: "memory");
}

/* A barrier of some of the block's warps. */
static __device__ inline void warps_meet(int number, int threads)
{
    WGMMA_ASM("bar.sync %0, %1;" ::"r"(number), "r"(threads) : "memory");
}

/* ---- the copy engine ---- */

/* What this thread has written to shared memory will be seen by copies and matrix instructions
 * that are started after the next barrier. */
static __device__ inline void shared_written(void)
{
    WGMMA_ASM("fence.proxy.async.shared::cta;" ::: "memory");
}

/* Both 16-aligned; the bytes count on the barrier. */
static __device__ inline void bulk_load(void *to, const void *from, uint32_t bytes, uint64_t *b)
{
    WGMMA_ASM("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes "
              "[%0], [%1], %2, [%3];" ::"r"(shared_at(to)),
              "l"(from), "r"(bytes), "r"(shared_at(b))
              : "memory");
}

static __device__ inline void bulk_store(void *to, const void *from, uint32_t bytes)
{
    WGMMA_ASM("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;\n"
              "cp.async.bulk.commit_group;" ::"l"(to),
              "r"(shared_at(from)), "r"(bytes)
              : "memory");
}

/* This thread's bulk stores, but for the last N, have read what they store. */
template <int N = 0> static __device__ inline void bulk_stores_read(void)
{
    WGMMA_ASM("cp.async.bulk.wait_group.read %0;" ::"n"(N) : "memory");
}

/* They are also seen by whoever comes after the kernel. */
static __device__ inline void bulk_stores_done(void)
{
    WGMMA_ASM("cp.async.bulk.wait_group 0;" ::: "memory");
}

/* Four 8 x 8 matrices of 16-bit numbers, held as products are, are written transposed; lane l gives
 * the place of row l % 8 of matrix l / 8. */
static __device__ inline void store_transposed(void *to, const uint32_t m[4])
{
    WGMMA_ASM("stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(
                  shared_at(to)),
              "r"(m[0]), "r"(m[1]), "r"(m[2]), "r"(m[3])
              : "memory");
}

/* ---- registers of a warpgroup ---- */

template <int N> static __device__ inline void more_registers(void)
{
    WGMMA_ASM("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(N));
}

template <int N> static __device__ inline void fewer_registers(void)
{
    WGMMA_ASM("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(N));
}

/* ---- products ---- */

/* Describes vectors in shared memory; 2 more: 16 elements further. */
static __device__ inline uint64_t wgmma_vectors(const void *at)
{
    return (uint64_t)(shared_at(at) >> 4) | (uint64_t)1 << 16 | (uint64_t)64 << 32 |
           (uint64_t)1 << 62;
}

/* Before products when registers that they use were written. */
static __device__ inline void wgmma_begin(void)
{
    WGMMA_ASM("wgmma.fence.sync.aligned;" ::: "memory");
}

static __device__ inline void wgmma_commit(void)
{
    WGMMA_ASM("wgmma.commit_group.sync.aligned;" ::: "memory");
}

/* All but the last N groups of products are done. */
template <int N> static __device__ inline void wgmma_wait(void)
{
    WGMMA_ASM("wgmma.wait_group.sync.aligned %0;" ::"n"(N) : "memory");
}

/* Operands of the instruction for 8 n vectors: places 6 and up, four registers for each 8. */
#define WGMMA_R1 "%6, %7, %8, %9"
#define WGMMA_D1 "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
#define WGMMA_R2 WGMMA_R1 ", %10, %11, %12, %13"
#define WGMMA_D2 WGMMA_D1, "+f"(d[4]), "+f"(d[5]), "+f"(d[6]), "+f"(d[7])
#define WGMMA_R3 WGMMA_R2 ", %14, %15, %16, %17"
#define WGMMA_D3 WGMMA_D2, "+f"(d[8]), "+f"(d[9]), "+f"(d[10]), "+f"(d[11])
#define WGMMA_R4 WGMMA_R3 ", %18, %19, %20, %21"
#define WGMMA_D4 WGMMA_D3, "+f"(d[12]), "+f"(d[13]), "+f"(d[14]), "+f"(d[15])
#define WGMMA_R5 WGMMA_R4 ", %22, %23, %24, %25"
#define WGMMA_D5 WGMMA_D4, "+f"(d[16]), "+f"(d[17]), "+f"(d[18]), "+f"(d[19])
#define WGMMA_R6 WGMMA_R5 ", %26, %27, %28, %29"
#define WGMMA_D6 WGMMA_D5, "+f"(d[20]), "+f"(d[21]), "+f"(d[22]), "+f"(d[23])
#define WGMMA_R7 WGMMA_R6 ", %30, %31, %32, %33"
#define WGMMA_D7 WGMMA_D6, "+f"(d[24]), "+f"(d[25]), "+f"(d[26]), "+f"(d[27])
#define WGMMA_R8 WGMMA_R7 ", %34, %35, %36, %37"
#define WGMMA_D8 WGMMA_D7, "+f"(d[28]), "+f"(d[29]), "+f"(d[30]), "+f"(d[31])
#define WGMMA_R9 WGMMA_R8 ", %38, %39, %40, %41"
#define WGMMA_D9 WGMMA_D8, "+f"(d[32]), "+f"(d[33]), "+f"(d[34]), "+f"(d[35])
#define WGMMA_R10 WGMMA_R9 ", %42, %43, %44, %45"
#define WGMMA_D10 WGMMA_D9, "+f"(d[36]), "+f"(d[37]), "+f"(d[38]), "+f"(d[39])
#define WGMMA_R11 WGMMA_R10 ", %46, %47, %48, %49"
#define WGMMA_D11 WGMMA_D10, "+f"(d[40]), "+f"(d[41]), "+f"(d[42]), "+f"(d[43])
#define WGMMA_R12 WGMMA_R11 ", %50, %51, %52, %53"
#define WGMMA_D12 WGMMA_D11, "+f"(d[44]), "+f"(d[45]), "+f"(d[46]), "+f"(d[47])
#define WGMMA_R13 WGMMA_R12 ", %54, %55, %56, %57"
#define WGMMA_D13 WGMMA_D12, "+f"(d[48]), "+f"(d[49]), "+f"(d[50]), "+f"(d[51])
#define WGMMA_R14 WGMMA_R13 ", %58, %59, %60, %61"
#define WGMMA_D14 WGMMA_D13, "+f"(d[52]), "+f"(d[53]), "+f"(d[54]), "+f"(d[55])
#define WGMMA_R15 WGMMA_R14 ", %62, %63, %64, %65"
#define WGMMA_D15 WGMMA_D14, "+f"(d[56]), "+f"(d[57]), "+f"(d[58]), "+f"(d[59])
#define WGMMA_R16 WGMMA_R15 ", %66, %67, %68, %69"
#define WGMMA_D16 WGMMA_D15, "+f"(d[60]), "+f"(d[61]), "+f"(d[62]), "+f"(d[63])
#define WGMMA_R17 WGMMA_R16 ", %70, %71, %72, %73"
#define WGMMA_D17 WGMMA_D16, "+f"(d[64]), "+f"(d[65]), "+f"(d[66]), "+f"(d[67])
#define WGMMA_R18 WGMMA_R17 ", %74, %75, %76, %77"
#define WGMMA_D18 WGMMA_D17, "+f"(d[68]), "+f"(d[69]), "+f"(d[70]), "+f"(d[71])
#define WGMMA_R19 WGMMA_R18 ", %78, %79, %80, %81"
#define WGMMA_D19 WGMMA_D18, "+f"(d[72]), "+f"(d[73]), "+f"(d[74]), "+f"(d[75])

/* d = a times N vectors, + d if `more`.  The inputs stand in front, as if they were changed, so
 * that the numbers of the results do not depend on N. */
template <int N>
static __device__ inline void wgmma(float *d, const uint32_t a[4], uint64_t vectors, int more);

#define WGMMA_FOR(N, EIGHTS)                                                                       \
    template <>                                                                                    \
    __device__ inline void wgmma<N>(float *d, const uint32_t a[4], uint64_t vectors, int more)     \
    {                                                                                              \
        uint32_t a0 = a[0], a1 = a[1], a2 = a[2], a3 = a[3];                                       \
        WGMMA_ASM("{\n.reg .pred p;\nsetp.ne.b32 p, %5, 0;\n"                                      \
                  "wgmma.mma_async.sync.aligned.m64n" #N "k16.f32.bf16.bf16 {" WGMMA_R##EIGHTS     \
                  "}, {%1, %2, %3, %4}, %0, p, 1, 1, 0;\n}"                                        \
                  : "+l"(vectors), "+r"(a0), "+r"(a1), "+r"(a2), "+r"(a3), "+r"(more),             \
                    WGMMA_D##EIGHTS);                                                              \
    }
WGMMA_FOR(16, 2)
WGMMA_FOR(32, 4)
WGMMA_FOR(48, 6)
WGMMA_FOR(64, 8)
WGMMA_FOR(80, 10)
WGMMA_FOR(104, 13)
WGMMA_FOR(128, 16)
WGMMA_FOR(152, 19)
#undef WGMMA_FOR

/* The same with the 64 rows of a in shared memory, where they lie as vectors do. */
template <int N>
static __device__ inline void wgmma_shared(float *d, uint64_t a, uint64_t vectors, int more);

#define WGMMA_FOR(N, EIGHTS)                                                                       \
    template <>                                                                                    \
    __device__ inline void wgmma_shared<N>(float *d, uint64_t a, uint64_t vectors, int more)       \
    {                                                                                              \
        uint32_t none = 0; /* results begin at the place of those above */                         \
        WGMMA_ASM("{\n.reg .pred p;\nsetp.ne.b32 p, %2, 0;\n"                                      \
                  "wgmma.mma_async.sync.aligned.m64n" #N "k16.f32.bf16.bf16 {" WGMMA_R##EIGHTS     \
                  "}, %1, %0, p, 1, 1, 0, 0;\n}"                                                   \
                  : "+l"(vectors), "+l"(a), "+r"(more), "+r"(none), "+r"(none), "+r"(none),        \
                    WGMMA_D##EIGHTS);                                                              \
    }
WGMMA_FOR(64, 8)
WGMMA_FOR(128, 16)
#undef WGMMA_FOR

#endif
#endif
