/* The text of a kernel that makes several calls.
 *
 * A function for each chain, and a kernel that gives each block one of them.  In a chain thread t
 * of a team holds elements t, t + T, t + 2T, ... of its span (E of them), of every value: x<n> is
 * what was loaded of operand n, v<n> what call n made.  Sizes are numbers in the text, so loops
 * unroll and values stay in registers; floats are written in hexadecimal, so they are exact. */
#include "ops/fused_internal.h"

#include "graph/expr.h"
#include "ops/def/def_internal.h"
#include "ops/expr_formulas.h"

#include <stdarg.h>
#include <stdio.h>

/* All kernels are called so until the unit is put together. */
#define NAME "fused"

typedef struct writer {
    const fl_fused *f;
    const fl_fused_chain *chain;
    fl_buf *to;
    bool failed;
    const char *here; /* whether element e of a thread exists */
} writer;

static void FL_PRINTF(2, 3) put(writer *w, const char *format, ...)
{
    char line[512];
    va_list args;
    va_start(args, format);
    int n = vsnprintf(line, sizeof line, format, args);
    va_end(args);
    w->failed =
        w->failed || n < 0 || n >= (int)sizeof line || !fl_vec_append(w->to, line, (size_t)n);
}

/* ---- operands ---- */

/* The index of element e in an operand of these dims that is spread over those of the output. */
static void put_spread_index(writer *w, const fl_type *out, const fl_type *in)
{
    int64_t below = 1, step = 1; /* elements of the output, of the operand, in one of this dim */
    put(w, "0");
    for (int d = 1; d <= out->ndim; d++) { /* from the last dim on */
        int64_t size = out->dim[out->ndim - d];
        int64_t own = d <= in->ndim ? in->dim[in->ndim - d] : 1;
        if (own > 1)
            put(w, " + (i0 + e * T) / %lld %% %lld * %lld", (long long)below, (long long)size,
                (long long)step);
        below *= size;
        step *= own;
    }
}

static bool is_flat(const fl_call *c, const fl_arg *a)
{
    return fl_type_width(&a->type) == fl_type_width(&c->out[0].type);
}

/* Element e of operand k of call i, as an expression. */
static void put_operand(writer *w, int i, int k)
{
    const fl_call *c = w->f->call[i];
    const fl_arg *a = &c->in[k];
    int made = fl_fused_maker(w->f, i, a), at = fl_fused_place(w->f, a);
    if (made >= 0) {
        put(w, "v%d[e]", made);
    } else if (is_flat(c, a)) {
        put(w, "x%d[e]", at);
    } else {
        put(w, "(%s ? a.at[%d].p[row * a.at[%d].stride + ", w->here, at, at);
        put_spread_index(w, &c->out[0].type, &a->type);
        put(w, "] : 0)");
    }
}

/* Loads what the calls of the chain read element by element, each operand once. */
static void put_loads(writer *w, int chain)
{
    bool loaded[GPU_FUSED_ARGS] = {false};
    for (int i = 0; i < w->f->n_calls; i++) {
        const fl_call *c = w->f->call[i];
        fl_fused_kind kind = fl_fused_kind_of(c->kernel->op);
        for (int k = 0; k < c->n_in && w->f->chain_of[i] == chain; k++) {
            const fl_arg *a = &c->in[k];
            int at = fl_fused_place(w->f, a);
            bool wanted =
                kind == FL_FUSED_EXPR || (kind <= FL_FUSED_L2 && k == 0 && kind != FL_FUSED_CONV);
            if (!wanted || !a->data || !is_flat(c, a) || fl_fused_maker(w->f, i, a) >= 0 ||
                loaded[at])
                continue;
            loaded[at] = true;
            put(w,
                "    float x%d[E];\n    ALL x%d[e] = %s ? a.at[%d].p[row * a.at[%d].stride + i0 + "
                "e * T] : 0;\n",
                at, at, w->here, at, at);
        }
    }
}

/* ---- calls ---- */

static const char *const formulas[] = {
#define FORMULA_TEXT(name, formula)                                                                \
    "static __device__ inline float op_" #name "(float a, float b) { return " #formula "; }\n",
    FL_EXPR_FORMULAS(FORMULA_TEXT)
#undef FORMULA_TEXT
};

static const char *const op_names[] = {
#define OP_NAME(name, text, arity) "op_" #name,
    FL_EXPR_MAP(OP_NAME)
#undef OP_NAME
};

/* A sum and a product that follow each other stay two operations. */
static const char *op_function(fl_expr_op op)
{
    return op == FL_EXPR_ADD   ? "__fadd_rn"
           : op == FL_EXPR_SUB ? "__fsub_rn"
           : op == FL_EXPR_MUL ? "__fmul_rn"
                               : op_names[op];
}

static void put_expr_operand(writer *w, int i, const fl_expr_operand *o)
{
    if (o->src == FL_EXPR_CONST)
        put(w, "%af", (double)o->value);
    else if (o->src == FL_EXPR_REG)
        put(w, "r%d", o->index);
    else
        put_operand(w, i, o->index);
}

static void put_expr(writer *w, int i)
{
    const fl_expr *e = w->f->call[i]->prep;
    put(w, "    ALL {\n");
    for (int r = 0; r < e->n_regs; r++)
        put(w, "        float r%d;\n", r);
    for (int k = 0; k < e->n_code; k++) {
        const fl_expr_instr *c = &e->code[k];
        put(w, "        r%d = %s(", c->dst, op_function(c->op));
        put_expr_operand(w, i, &c->a);
        put(w, ", ");
        put_expr_operand(w, i, &c->b);
        put(w, ");\n");
    }
    put(w, "        v%d[e] = ", i);
    put_expr_operand(w, i, &e->result);
    put(w, ";\n    }\n");
}

static void put_conv(writer *w, int i, int state)
{
    const fl_call *c = w->f->call[i];
    int x = fl_fused_place(w->f, &c->in[0]), taps = fl_fused_place(w->f, &c->in[1]);
    const fl_type *t = &c->in[1].type;
    char args[120];
    snprintf(args, sizeof args, "a.state[%d], %lld, %d", state, (long long)w->chain->width,
             (int)t->dim[t->ndim - 1]);
    put(w,
        "    ALL if (%s) {\n        v%d[e] = conv_at(a.step, a.at[%d], a.at[%d].p, %s, row, "
        "i0 + e * T);\n",
        w->here, i, x, taps, args);
    put(w,
        "        if (a.move)\n            conv_move(a.step.seqs[a.step.row_seq[row]], a.at[%d], "
        "%s, i0 + e * T);\n    }\n",
        x, args);
}

static void put_norm(writer *w, int i, bool rms)
{
    const fl_call *c = w->f->call[i];
    double eps = (float)c->attr[0].f; /* FL_RMSNORM_EPS, FL_L2NORM_EPS */
    put(w, "    float s%d[1] = {0};\n    ALL if (%s) s%d[0] = fmaf(", i, w->here, i);
    put_operand(w, i, 0);
    put(w, ", ");
    put_operand(w, i, 0);
    put(w, ", s%d[0]);\n    teams_sum<T, 1>(s%d, room);\n", i, i);
    if (rms)
        put(w, "    s%d[0] = rms_factor(s%d[0], %lld, %af);\n", i, i, (long long)w->chain->span,
            eps);
    else
        put(w, "    s%d[0] = l2_factor(s%d[0], %af, %af);\n", i, i,
            (double)(float)c->attr[FL_L2NORM_SCALE].f, eps);
    bool weighted = c->n_in > 1 && c->in[1].data;
    put(w, "    ALL v%d[e] = __fmul_rn(", i);
    put_operand(w, i, 0);
    put(w, weighted ? " * s%d[0], " : ", s%d[0]", i);
    if (weighted)
        put(w, "%s ? a.at[%d].p[t + e * T] : 0", w->here, fl_fused_place(w->f, &c->in[1]));
    put(w, ");\n");
}

/* Source k of a mix: sources that come from memory are read again, not held. */
static void put_source(writer *w, int i, int k)
{
    const fl_arg *a = &w->f->call[i]->in[k];
    int made = fl_fused_maker(w->f, i, a), at = fl_fused_place(w->f, a);
    if (made >= 0)
        put(w, "v%d[e]", made);
    else
        put(w, "a.at[%d].p[row * a.at[%d].stride + i0 + e * T]", at, at);
}

static void put_mix(writer *w, int i)
{
    const fl_call *c = w->f->call[i];
    int n = c->n_in - 1, q = fl_fused_place(w->f, &c->in[0]);
    put(w, "    float s%d[%d] = {0}, high%d = -INFINITY, sum%d = 0;\n", i, 2 * n, i, i);
    put(w, "    ALL if (%s) {\n        float w = a.at[%d].p[i0 + e * T], v;\n", w->here, q);
    for (int k = 0; k < n; k++) {
        put(w, "        v = ");
        put_source(w, i, k + 1);
        put(w, ";\n        s%d[%d] = fmaf(v, v, s%d[%d]); s%d[%d] = fmaf(v, w, s%d[%d]);\n", i,
            2 * k, i, 2 * k, i, 2 * k + 1, i, 2 * k + 1);
    }
    put(w, "    }\n    teams_sum<T, %d>(s%d, room);\n", 2 * n, i);
    put(w,
        "    for (int k = 0; k < %d; k++) {\n"
        "        s%d[k] = mix_score(s%d[2 * k + 1], s%d[2 * k], %lld, %af);\n"
        "        high%d = s%d[k] > high%d ? s%d[k] : high%d;\n    }\n",
        n, i, i, i, (long long)w->chain->width, (double)(float)c->attr[FL_RESIDUAL_MIX_EPS].f, i, i,
        i, i, i);
    put(w, "    for (int k = 0; k < %d; k++) sum%d += s%d[k] = expf(s%d[k] - high%d);\n", n, i, i,
        i, i);
    put(w, "    for (int k = 0; k < %d; k++) s%d[k] /= sum%d;\n", n, i, i);
    put(w, "    ALL if (%s) {\n        float mix = 0;\n", w->here);
    for (int k = 0; k < n; k++) {
        put(w, "        mix = fmaf(s%d[%d], ", i, k);
        put_source(w, i, k + 1);
        put(w, ", mix);\n");
    }
    put(w, "        v%d[e] = mix;\n    }\n", i);
}

static void put_call(writer *w, int i, int state)
{
    int at = fl_fused_place(w->f, &w->f->call[i]->out[0]);
    fl_fused_kind kind = fl_fused_kind_of(w->f->call[i]->kernel->op);
    put(w, "    float v%d[E];\n", i);
    if (kind == FL_FUSED_EXPR)
        put_expr(w, i);
    else if (kind == FL_FUSED_CONV)
        put_conv(w, i, state);
    else if (kind == FL_FUSED_MIX)
        put_mix(w, i);
    else
        put_norm(w, i, kind == FL_FUSED_RMS);
    put(w, "    ALL if (%s) a.at[%d].p[row * a.at[%d].stride + i0 + e * T] = v%d[e];\n", w->here,
        at, at, i);
}

/* ---- chains and kernels ---- */

static void put_chain(writer *w, int chain)
{
    const fl_fused_chain *c = w->chain = &w->f->chain[chain];
    char here[120];
    int side_by_side = w->f->threads / c->threads, n = 0, states = 0;
    here[0] = 0;
    if (c->teams % side_by_side)
        n += snprintf(here + n, sizeof here - (size_t)n, " && team < %lld", (long long)c->teams);
    if (c->span % c->threads)
        n +=
            snprintf(here + n, sizeof here - (size_t)n, " && t + e * T < %lld", (long long)c->span);
    if (c->width % c->span)
        n += snprintf(here + n, sizeof here - (size_t)n, " && i0 + e * T < %lld",
                      (long long)c->width);
    char condition[130];
    snprintf(condition, sizeof condition, n ? "(%s)" : "true", here + (n ? 4 : 0));
    w->here = condition;
    put(w,
        "static __device__ inline void chain_%d(const gpu_fused &a, int64_t row, int block, "
        "float *room)\n{\n",
        chain);
    put(w, "    enum { T = %d, E = %d };\n", c->threads,
        (int)((c->span + c->threads - 1) / c->threads));
    put(w,
        "    int t = threadIdx.x %% T, team = block * %d + threadIdx.x / T, i0 = team * %lld + "
        "t;\n",
        side_by_side, (long long)c->span);
    put_loads(w, chain);
    for (int i = 0; i < w->f->n_calls; i++) {
        bool conv = fl_fused_kind_of(w->f->call[i]->kernel->op) == FL_FUSED_CONV;
        if (w->f->chain_of[i] == chain)
            put_call(w, i, states);
        states += conv;
    }
    put(w, "}\n\n");
}

static int most_sums(const fl_fused *f)
{
    int most = 1;
    for (int i = 0; i < f->n_calls; i++) {
        int n = fl_fused_kind_of(f->call[i]->kernel->op) == FL_FUSED_MIX
                    ? 2 * (f->call[i]->n_in - 1)
                    : 1;
        most = n > most ? n : most;
    }
    return most;
}

/* What all kernels need. */
static bool write_common(fl_buf *to)
{
    writer w = {.to = to};
    put(&w, "typedef int int32_t;\ntypedef unsigned uint32_t;\ntypedef long long int64_t;\n"
            "#ifndef INFINITY\n#define INFINITY __int_as_float(0x7f800000)\n#endif\n"
            "#define ALL _Pragma(\"unroll\") for (int e = 0; e < E; e++)\n");
    const char *const texts[] = {fl_text_step, fl_text_sums, fl_text_rows};
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
        w.failed = w.failed || !fl_vec_append(to, texts[i], strlen(texts[i]));
        put(&w, "\n");
    }
    for (size_t i = 0; i < sizeof formulas / sizeof *formulas; i++)
        put(&w, "%s", formulas[i]);
    put(&w, "\n");
    return !w.failed;
}

static bool write_kernel(const fl_fused *f, fl_buf *to)
{
    writer w = {.f = f, .to = to};
    for (int n = 0; n < f->n_chains; n++)
        put_chain(&w, n);
    put(&w,
        "extern \"C\" __global__ void __launch_bounds__(%d) " NAME
        "(const __grid_constant__ gpu_fused "
        "a)\n{\n    __shared__ float room[32 * %d];\n",
        f->threads, most_sums(f));
    put(&w, "    int64_t row = blockIdx.x;\n    int block = blockIdx.y;\n"
            "    if (row >= *a.count)\n        return;\n");
    unsigned first = 0;
    for (int n = 0; n < f->n_chains; n++) {
        put(&w, "    %sif (block < %u)\n        chain_%d(a, row, block - %u, room);\n",
            n ? "else " : "", first + f->chain[n].blocks, n, first);
        first += f->chain[n].blocks;
    }
    put(&w, "}\n\n");
    return !w.failed;
}

/* ---- the unit ---- */

bool fl_fused_unit_add(fl_fused_unit *u, const fl_fused *f, int *number)
{
    fl_buf text = {0};
    size_t i = 0;
    bool fits = write_kernel(f, &text);
    while (fits && i < u->texts.n &&
           (u->texts.data[i].n != text.n || memcmp(u->texts.data[i].data, text.data, text.n) != 0))
        i++;
    *number = (int)i;
    if (fits && i == u->texts.n && fl_vec_push(&u->texts, text))
        return true;
    fits = fits && i < u->texts.n;
    fl_vec_free(&text);
    return fits;
}

bool fl_fused_unit_write(const fl_fused_unit *u, fl_buf *to)
{
    writer w = {.to = to, .failed = !write_common(to)};
    for (size_t i = 0; i < u->texts.n; i++) {
        put(&w, "#define " NAME " " NAME "%zu\nnamespace n%zu {\n", i, i);
        w.failed = w.failed || !fl_vec_append(to, u->texts.data[i].data, u->texts.data[i].n);
        put(&w, "}\n#undef " NAME "\n");
    }
    return !w.failed && fl_vec_push(to, 0);
}

void fl_fused_unit_free(fl_fused_unit *u)
{
    for (size_t i = 0; i < u->texts.n; i++)
        fl_vec_free(&u->texts.data[i]);
    fl_vec_free(&u->texts);
}
