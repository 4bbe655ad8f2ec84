/* The two products of the absorbed form with kv_b as it is stored: q_nope through UK into latent
 * space, by panels of decoded rows, and the weighted latent through UV into the output. */
#include "ops/cpu/mla.h"

#include "ops/cpu/matmul.h"
#include "ops/cpu/pairs.h"
#include "ops/cpu/weights.h"

void fl_mla_weights(const fl_mla *m, int64_t row, int n, float *panel)
{
    for (int i = 0; i < n; i++)
        fl_weights_row(m->kv_b, row + i, panel + i * m->ldc);
}

static void finish_query(const fl_mla *m, const float *q, float *out)
{
    vf by = vf_set1(m->scale);
    for (int64_t c = 0; c < m->ldc; c += FL_LANES)
        vf_store(out + c, vf_mul(by, vf_load(out + c)));
    for (int64_t i = 0; i < m->pe; i++)
        out[m->latent + i] = m->scale * q[m->nope + i];
#if defined(__AVX512BF16__)
    if (m->fast)
        fl_pairs_round(out, m->width, out);
#endif
}

void fl_mla_absorb(const fl_mla *m, int32_t row, int n, int64_t h0, int64_t h1, float *out,
                   int64_t ld, float *panel)
{
    for (int64_t h = h0; h < h1; h++) {
        const float *q = fl_row_f32(m->q, row) + h * (m->nope + m->pe);
        float *to = out + (h - h0) * m->ldq;
        for (int64_t i = 0; i < m->nope; i += FL_MLA_PANEL) {
            int rows = fl_mla_panel(i, m->nope);
            fl_mla_weights(m, h * (m->nope + m->dv) + i, rows, panel);
            fl_matmul(n, m->nv, rows, q + i, m->q->stride, panel, m->ldc, to, ld, i > 0);
        }
        for (int r = 0; r < n; r++)
            finish_query(m, q + r * m->q->stride, to + r * ld);
    }
}

void fl_mla_project(const fl_mla *m, int32_t row, int n, int64_t h, float *latent, int64_t ld,
                    void *scratch)
{
    int64_t first = h * (m->nope + m->dv) + m->nope;
    fl_row_list x = {latent, ld, NULL};
    fl_row_list y = {fl_row_f32(m->out, row) + h * m->dv, m->out->stride, NULL};
    fl_weights_mul(m->kv_b, first, first + m->dv, &x, &y, n, scratch);
}
