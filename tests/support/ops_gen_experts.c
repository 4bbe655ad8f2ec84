/* Cases of route and experts. */
#include "support/ops_gen.h"

#include "ops/def/def_internal.h"

#include <math.h>

/* ---- route ----
 *
 * Ids must be equal, so no two scores may be so close that rounding decides: the values by which
 * experts are chosen are taken from a grid, with the bias making up for the score.  Exact ties are
 * wanted: some experts get logit and bias of another. */

typedef struct router {
    tc *c;
    int64_t n, groups, size;
    bool softmax;
    float *bias; /* NULL: none */
} router;

static void logits_of_row(const router *m, int32_t row, const int64_t *order)
{
    float *x = tc_f32(m->c, 0, row);
    for (int64_t e = 0; e < m->n;
         e++) /* the biases stand already; without them only the order counts */
        x[e] = m->bias ? rng_float(m->c->random, -3, 3)
                       : -6 + 12 * ((float)order[e] + 0.5f) / (float)m->n;
}

static double score(const router *m, const float *x, int64_t e)
{
    double sum = 0;
    if (!m->softmax)
        return 1 / (1 + exp(-(double)x[e]));
    for (int64_t i = 0; i < m->n; i++)
        sum += exp(x[i] - x[e]);
    return 1 / sum;
}

static double choice(const router *m, const float *x, int64_t e)
{
    return score(m, x, e) + (m->bias ? m->bias[e] : 0);
}

/* True when a pair of values is neither equal by its making nor clearly apart. */
static bool close_pair(double a, double b, bool twins)
{
    return !twins && fabs(a - b) < 4e-6 * (fabs(a) + fabs(b));
}

static bool doubtful(const router *m, const float *x)
{
    double value[300], best[300];
    for (int64_t e = 0; e < m->n; e++)
        value[e] = choice(m, x, e);
    for (int64_t a = 0; a < m->n; a++) {
        for (int64_t b = 0; b < a; b++) {
            bool twins = x[a] == x[b] && (!m->bias || m->bias[a] == m->bias[b]);
            if (close_pair(value[a], value[b], twins))
                return true;
        }
    }
    for (int64_t g = 0; g < m->groups && m->size > 1; g++) {
        double first = -INFINITY, second = -INFINITY;
        for (int64_t e = g * m->size; e < (g + 1) * m->size; e++) {
            second = fmax(second, fmin(first, value[e]));
            first = fmax(first, value[e]);
        }
        best[g] = first + second;
        for (int64_t h = 0; h < g; h++) {
            if (close_pair(best[g], best[h], best[g] == best[h]))
                return true;
        }
    }
    return false;
}

static void fill_logits(const router *m, int32_t row)
{
    rng *r = m->c->random;
    float *x = tc_f32(m->c, 0, row);
    int64_t order[300];
    do {
        for (int64_t i = 0; i < m->n; i++) {
            int64_t j = rng_int(r, 0, i);
            order[i] = order[j];
            order[j] = i;
        }
        logits_of_row(m, row, order);
        for (int64_t i = m->n / 4; i > 0; i--) {
            int64_t a = rng_int(r, 0, m->n - 1), b = rng_int(r, 0, m->n - 1);
            if (!m->bias || m->bias[a] == m->bias[b])
                x[a] = x[b];
        }
    } while (doubtful(m, x));
    if (rng_one_in(r, 15))
        x[rng_int(r, 0, m->n - 1)] = NAN;
}

static void make_route(tc *c)
{
    rng *r = c->random;
    router m = {.c = c, .groups = 1, .softmax = rng_one_in(r, 3)};
    tc_step_random(c, 8, 200);
    m.size = rng_int(r, 1, rng_one_in(r, 5) ? 130 : 30);
    if (rng_one_in(r, 3)) {
        m.groups = rng_int(r, 2, 8);
        m.size = rng_int(r, 1, 12);
    }
    m.n = m.groups * m.size;
    tc_rows(c, ops_row_symbol(c), FL_F32, 1, &m.n);
    if (rng_one_in(r, 2)) {
        m.bias = tc_f32(c, tc_const(c, FL_F32, 1, 1, &m.n), 0);
        for (int64_t e = 1; e < m.n; e++) {
            if (rng_one_in(r, 4))
                m.bias[e] = m.bias[rng_int(r, 0, e - 1)];
        }
    }
    for (int32_t row = 0; row < tc_n_rows(c, c->in_type[0].rows); row++)
        fill_logits(&m, row);
    int64_t keep = rng_int(r, 1, m.groups);
    tc_number(c, "topk", (double)rng_int(r, 1, m.n < 17 * m.groups / keep ? keep * m.size : 16));
    tc_text(c, "func", m.softmax ? "softmax" : "sigmoid");
    tc_number(c, "renormalize", (double)rng_int(r, 0, 1));
    if (rng_one_in(r, 2))
        tc_number(c, "scale", 2.446);
    tc_number(c, "groups", (double)m.groups);
    tc_number(c, "topk_groups", (double)keep);
}

const ops_gen ops_gen_route = {"route", make_route, NULL, 4e-6, false};

/* ---- experts ---- */

enum { Z, IDS, WEIGHTS, W1, W3, W2 };

/* Scales of 1/16 to 64: a kernel may take a shorter way while none is above some number. */
static void some_large_scales(tc *c, int i)
{
    for (int32_t e = 0; e < c->in_type[i].n_tensors; e++) {
        const fl_tensor *t = &c->in[i].tensors[e];
        if (rng_one_in(c->random, 2))
            continue;
        for (int64_t g = 0; g < fl_tensor_elements(t) / FL_MX_GROUP; g++) {
            if (rng_one_in(c->random, 12))
                ((uint8_t *)t->scale)[g] = (uint8_t)rng_int(c->random, 123, 133);
        }
    }
}

static void make_experts(tc *c)
{
    static const fl_dtype types[] = {FL_MXFP4, FL_MXFP4, FL_F8_BLOCK, FL_BF16, FL_F16, FL_F32};
    static const char *const acts[] = {"b*tanh(g/b)*sigmoid(g) * l*tanh(u/l)", "silu(g)*u",
                                       "gelu(g)*u"};
    rng *r = c->random;
    tc_step_random(c, rng_one_in(r, 3) ? 60 : 8, 200);
    fl_dtype type = types[rng_int(r, 0, 5)];
    int64_t grain = type == FL_MXFP4 ? 32 : 1;
    int64_t most = rng_one_in(r, 10) ? 700 : 130;
    bool chunks = type == FL_MXFP4 && rng_one_in(r, 4); /* wide rows, for kernels of whole chunks */
    if (chunks) {
        grain = 128;
        most = 512;
    }
    int64_t z = grain * rng_int(r, 1, most / grain), inner = grain * rng_int(r, 1, most / grain);
    int32_t n = (int32_t)rng_int(r, 1, rng_one_in(r, 3) ? 20 : 5);
    int64_t k = rng_int(r, 1, n < 6 ? n : 6);
    fl_rows rows = ops_row_symbol(c);
    tc_rows(c, rows, FL_F32, 1, &z);
    if (!chunks) /* sums so long, of numbers so large, could overflow on the way */
        ops_special(c, Z, true);
    tc_rows(c, rows, FL_I32, 1, &k);
    tc_rows(c, rows, FL_F32, 1, &k);
    for (int32_t row = 0; row < tc_n_rows(c, rows); row++) {
        int32_t *ids = tc_i32(c, IDS, row), first = (int32_t)rng_int(r, 0, n - 1);
        for (int64_t j = 0; j < k; j++) /* different ones, in any order; now and then none at all */
            ids[j] = (first + (int32_t)j * (n > 6 ? 3 : 1)) % n;
        if (rng_one_in(r, 20))
            ids[rng_int(r, 0, k - 1)] = rng_one_in(r, 2) ? -1 : n;
        if (rng_one_in(r, 20))
            ids[rng_int(r, 0, k - 1)] = ids[0];
    }
    for (int w = W1; w <= W2; w++) {
        int i = tc_const(c, type, n, 2, (int64_t[]){w == W2 ? z : inner, w == W2 ? inner : z});
        if (chunks)
            some_large_scales(c, i);
    }
    tc_text(c, "act", acts[rng_int(r, 0, 2)]);
    tc_text(c, "consts", "b=4,l=25");
}

/* Largest absolute value, over 250: somewhat more than half a step of an 8-bit number, and than the
 * rounding of both factors to BF16; what is below the least normal number may count as zero. */
static double half_step(const double *x, int64_t n)
{
    double high = 0;
    for (int64_t i = 0; i < n; i++)
        high = fmax(high, fabs(x[i]));
    return high / 250 + 0x1p-126;
}

typedef struct expert { /* for one row and expert */
    const float *w1, *w3, *w2;
    double *z, *hidden, *error; /* error: absolute, of hidden */
} expert;

/* hidden values and how far they can be off, from a relative `unit` in sums and `step` in z. */
static void hidden_error(const tc *c, const expert *x, double unit, double step_z)
{
    int64_t inner = c->in_type[W1].dim[0], width = c->in_type[W1].dim[1];
    for (int64_t i = 0; i < inner; i++) {
        double value[2] = {0, 0}, error[2];
        for (int b = 0; b < 2; b++) {
            const float *w = (b ? x->w3 : x->w1) + i * width;
            double sum = 0, weights = 0;
            for (int64_t j = 0; j < width; j++) {
                value[b] += x->z[j] * w[j];
                sum += fabs(x->z[j] * w[j]);
                weights += fabs(w[j]);
            }
            error[b] = sum + weights * step_z / unit;
        }
        x->error[i] = ops_expr_error(c->prep, value, error, &x->hidden[i]) * unit;
    }
}

static void add_expert(const tc *c, const expert *x, double weight, double unit, double step_h,
                       double *sum)
{
    int64_t width = c->in_type[W2].dim[0], inner = c->in_type[W2].dim[1];
    for (int64_t o = 0; o < width; o++) {
        double parts = 0;
        for (int64_t i = 0; i < inner; i++) { /* an unknown is one also times zero */
            double off = fabs(x->hidden[i]) * unit + x->error[i] + step_h;
            parts += isinf(off) ? off : fabs(x->w2[o * inner + i]) * off;
        }
        sum[o] += isinf(parts) ? parts : fabs(weight) * parts / unit;
    }
}

static void experts_magnitude(tc *c, bool fast, ops_magnitude *m)
{
    int64_t inner = c->in_type[W1].dim[0], width = c->in_type[W1].dim[1],
            k = c->in_type[IDS].dim[0];
    double unit = ops_gen_experts.tolerance;
    const float *w[3][20];
    for (int32_t e = 0; e < c->in_type[W1].n_tensors; e++) {
        for (int b = 0; b < 3; b++)
            w[b][e] = ops_decode(c, &c->in[W1 + b].tensors[e]);
    }
    expert x = {.z = tc_alloc(c, (size_t)width * 8, 8)};
    x.hidden = tc_alloc(c, (size_t)inner * 8, 8);
    x.error = tc_alloc(c, (size_t)inner * 8, 8);
    double *sum = tc_alloc(c, (size_t)width * 8, 8);
    for (int32_t r = 0; r < tc_n_rows(c, c->in_type[Z].rows); r++) {
        for (int64_t j = 0; j < width; j++) {
            x.z[j] = tc_f32(c, Z, r)[j];
            sum[j] = 0;
        }
        for (int64_t j = 0; j < k; j++) {
            int32_t e = tc_i32(c, IDS, r)[j];
            if (e < 0 || e >= c->in_type[W1].n_tensors)
                continue;
            x.w1 = w[0][e];
            x.w3 = w[1][e];
            x.w2 = w[2][e];
            hidden_error(c, &x, unit, fast ? half_step(x.z, width) : 0);
            add_expert(c, &x, tc_f32(c, WEIGHTS, r)[j], unit, fast ? half_step(x.hidden, inner) : 0,
                       sum);
        }
        for (int64_t o = 0; o < width; o++)
            m->out[0][r * width + o] = (float)sum[o];
    }
}

const ops_gen ops_gen_experts = {"experts", make_experts, experts_magnitude, 2e-6, false};
