/* Compiled once per processor level, like the kernels. */
#include "cpu/probe.h"

#include "ops/cpu/cpu_internal.h"
#include "ops/cpu/vmath.h"

#define ARGS const float *pa, const float *pb, const float *pc, float *out
#define LOAD                                                                                       \
    vf a = vf_load(pa), b = vf_load(pb), c = vf_load(pc);                                          \
    const uint16_t *half = (const uint16_t *)pa;                                                   \
    int count = (int)(vi_hmax(vf_bits(b)) & 15);                                                   \
    (void)a, (void)b, (void)c, (void)half, (void)count

/* One probe per line: name, how many arguments, the vector it stores. */
/* clang-format off */
#define PROBES(X)                                                                                  \
    X(load_bf16, 1, vf_load_bf16(half))                                                            \
    X(loadn_bf16, 2, vf_loadn_bf16(half, count))                                                   \
    X(load_f16, 1, vf_load_f16(half))                                                              \
    X(loadn_f16, 2, vf_loadn_f16(half, count))                                                     \
    X(load_e4m3, 1, vf_load_e4m3((const uint8_t *)pa))                                             \
    X(loadn_e4m3, 2, vf_loadn_e4m3((const uint8_t *)pa, count))                                    \
    X(load_i8, 1, vf_load_i8((const int8_t *)pa))                                                  \
    X(load_u8, 1, vi_to_vf(vi_load_u8((const uint8_t *)pa)))                                       \
    X(loadn_i8, 2, vf_loadn_i8((const int8_t *)pa, count))                                    \
    X(loadn, 2, vf_loadn(pa, count))                                                               \
    X(mxfp4, 2, vmx_load(vmx_table(fabsf(pb[0])), (const uint8_t *)pa))                            \
    X(add, 2, vf_add(a, b))                                                                        \
    X(sub, 2, vf_sub(a, b))                                                                        \
    X(mul, 2, vf_mul(a, b))                                                                        \
    X(div, 2, vf_div(a, b))                                                                        \
    X(sqrt, 1, vf_sqrt(a))                                                                         \
    X(fma, 3, vf_fma(a, b, c))                                                                     \
    X(neg, 1, vf_neg(a))                                                                           \
    X(abs, 1, vf_abs(a))                                                                           \
    X(min, 2, vf_min(a, b))                                                                        \
    X(max, 2, vf_max(a, b))                                                                        \
    X(lt, 3, vf_select(vf_lt(a, b), a, c))                                                         \
    X(le, 3, vf_select(vf_le(a, b), a, c))                                                         \
    X(eq, 3, vf_select(vf_eq(a, b), a, c))                                                         \
    X(masks, 3, vf_select(vm_or(vm_and(vf_lt(a, b), vm_not(vf_lt(b, c))), vf_eq(a, c)), b, c))     \
    X(to_int, 1, vi_to_vf(vf_to_vi(vf_max(vf_min(a, vf_set1(2e9f)), vf_set1(-2e9f)))))             \
    X(int_arith, 2, vi_float(vi_sub(vi_add(vf_bits(a), vf_bits(b)), vi_shl(vf_bits(a), 3))))       \
    X(int_logic, 3, vi_float(vi_or(vi_and(vf_bits(a), vf_bits(b)), vi_sar(vf_bits(c), 5))))        \
    X(int_xor, 2, vi_float(vi_xor(vf_bits(a), vf_bits(b))))                                        \
    X(int_max, 2, vi_float(vi_max(vf_bits(a), vf_bits(b))))                                        \
    X(int_less, 3, vf_select(vi_lt(vf_bits(a), vf_bits(b)), a, c))                                 \
    X(int_equal, 3, vf_select(vi_eq(vf_bits(a), vf_bits(b)), a, c))                                \
    X(exp, 1, vf_exp(a))                                                                           \
    X(log, 1, vf_log(a))                                                                           \
    X(tanh, 1, vf_tanh(a))                                                                         \
    X(sigmoid, 1, vf_sigmoid(a))                                                                   \
    X(silu, 1, vf_silu(a))                                                                         \
    X(softplus, 1, vf_softplus(a))                                                                 \
    X(erf, 1, vf_erf(a))                                                                           \
    X(gelu, 1, vf_gelu(a))
/* clang-format on */

#define DEFINE(name, arity, value)                                                                 \
    static void run_##name(ARGS)                                                                   \
    {                                                                                              \
        LOAD;                                                                                      \
        vf_store(out, value);                                                                      \
    }
PROBES(DEFINE)

static void run_storen(ARGS)
{
    LOAD;
    vf_store(out, c);
    vf_storen(out, a, count);
}

static void run_sums(ARGS)
{
    LOAD;
    vf_sum4(a, b, c, vf_fma(a, b, c), out);
    out[4] = vf_sum(a);
    out[5] = vf_sum(b);
    out[6] = vf_sum(c);
    out[7] = vf_sum(vf_fma(a, b, c));
    out[8] = vf_hmax(a);
    int32_t m = vi_hmax(vf_bits(b));
    for (int i = 9; i < 16; i++)
        memcpy(&out[i], &m, sizeof m);
}

static void run_bits(ARGS)
{
    LOAD;
    uint32_t bits = vm_bits(vf_lt(a, b));
    for (int i = 0; i < 16; i++)
        memcpy(&out[i], &bits, sizeof bits);
}

/* 16 rows of four elements with a gap between them; every element is in some round. */
static void run_columns(ARGS)
{
    LOAD;
    float in[16 * 5], turned[4 * 16];
    for (int r = 0; r < 16; r++)
        memcpy(in + 5 * r,
               r % 3 == 0   ? pa + r % 12
               : r % 3 == 1 ? pb + r % 12
                            : pc + r % 12,
               4 * sizeof *in);
    for (int r = 0; r < 16; r += FL_PART)
        vp_columns(in + 5 * r, 5, turned + r, 16);
    for (int i = 0; i < 16; i++)
        out[i] = turned[(i + count) % 4 * 16 + i];
}

/* What it returns, and of the pairs that it means one half. */
static void run_pairs(ARGS)
{
    LOAD;
    uint64_t pairs[16];
    int n = vi_pairs(vf_bits(a), vf_bits(b), vm_bits(vf_lt(b, c)), pairs);
    vf_store(out, vi_float(vi_set1(n)));
    for (int i = 0; i < n; i++) {
        uint32_t part = (uint32_t)(pairs[i] >> (count % 2 ? 32 : 0));
        memcpy(&out[i], &part, sizeof part);
    }
}

#define ROW(name, arity, value) {#name, arity, run_##name},
extern const fl_probe FL_CPU_NAME(fl_probes)[];
const fl_probe FL_CPU_NAME(fl_probes)[] = {
    PROBES(ROW){"storen", 3, run_storen}, {"sums", 3, run_sums},   {"bits", 2, run_bits},
    {"columns", 3, run_columns},          {"pairs", 3, run_pairs}, {0}};
