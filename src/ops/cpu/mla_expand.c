/* Keys and values of one head from a block of cached rows, for the expanded form of mla: keys with
 * the keys in lanes, values as rows.
 *
 * In pairs (precision fast) the weights of the head are rounded and laid out once for all blocks:
 * UK as rows, which are multiplied with the block in lanes, and UV turned, with its outputs in
 * lanes, so that cached rows give rows of values and nothing is turned on the way. */
#include "ops/cpu/mla.h"

#include "ops/cpu/matmul.h"
#include "ops/cpu/pairs.h"

#include <string.h>

enum { KEYS = FL_ATTEND_KEYS, PANEL = FL_MLA_PANEL };

/* Words of a row of latents in whole vectors. */
static int64_t ld_words(const fl_mla *m)
{
    return fl_padded(fl_pairs_words(m->latent));
}

void fl_mla_cut_head(const fl_mla *m, fl_room *r, fl_mla_head *w)
{
    int64_t ldv = fl_padded(m->dv), d = m->nope + m->pe;
    w->panel = fl_room_floats(r, PANEL * m->ldc);
    w->keys = fl_room_floats(r, (m->fast ? fl_pairs_words(d) : d) * KEYS);
    w->values = fl_room_floats(r, (m->fast ? KEYS / 2 : KEYS) * ldv);
    w->part = fl_room_floats(r, PANEL * (m->fast && ldv > KEYS ? ldv : KEYS));
    w->uk = fl_room_floats(r, m->fast ? m->nope * ld_words(m) : 0);
    w->uv = fl_room_floats(r, m->fast ? fl_pairs_words(m->latent) * ldv : 0);
    w->spare = fl_room_floats(r, m->fast ? ldv : 0);
}

/* The first weight row of a head. */
static int64_t row_of(const fl_mla *m, int64_t h)
{
    return h * (m->nope + m->dv);
}

#if defined(__AVX512BF16__)

void fl_mla_ready_head(const fl_mla *m, const fl_mla_head *w, int64_t h)
{
    int64_t ldw = ld_words(m), ldv = fl_padded(m->dv), words = fl_pairs_words(m->latent);
    if (!m->fast)
        return;
    for (int64_t i = 0; i < m->nope; i++) {
        fl_mla_weights(m, row_of(m, h) + i, 1, w->panel);
        fl_pairs_round(w->panel, m->latent, w->uk + i * ldw);
    }
    for (int64_t i = 0; i < m->dv; i += PANEL) {
        int rows = fl_mla_panel(i, m->dv);
        fl_mla_weights(m, row_of(m, h) + m->nope + i, rows, w->panel);
        for (int r = 0; r < rows; r++)
            fl_pairs_round(w->panel + r * m->ldc, m->latent, w->panel + r * m->ldc);
        fl_transpose(rows, words, w->panel, m->ldc, w->uv + i, ldv);
    }
}

/* Rows 2 i and 2 i + 1 of n, `width` wide, become row i of words; beside an odd last row stand
 * zeros. */
static void zip_rows(int n, int64_t width, const float *in, int64_t ldi, float *out, int64_t ldo)
{
    for (int i = 0; i < n; i += 2, in += 2 * ldi, out += ldo) {
        for (int64_t l = 0; l < width; l += FL_LANES)
            vf_store(out + l,
                     vf_zip(vf_load(in + l), i + 1 < n ? vf_load(in + ldi + l) : vf_zero()));
    }
}

static fl_block expand_pairs(const fl_mla *m, const fl_mla_head *w, const fl_block *cached)
{
    int64_t ldv = fl_padded(m->dv), words = fl_pairs_words(m->latent);
    int nv = (cached->n + FL_LANES - 1) / FL_LANES;
    for (int64_t i = 0; i < m->nope; i += PANEL) {
        int rows = fl_mla_panel(i, m->nope);
        fl_matmul_pairs(rows, nv, words, w->uk + i * ld_words(m), ld_words(m), 1, cached->keys,
                        KEYS, NULL, w->part, KEYS, false);
        zip_rows(rows, nv * FL_LANES, w->part, KEYS, w->keys + i / 2 * KEYS, KEYS);
    }
    memcpy(w->keys + m->nope / 2 * KEYS, cached->keys + words * KEYS,
           (size_t)(fl_pairs_words(m->pe) * KEYS) * sizeof(float));
    for (int k = 0; k < cached->n; k += PANEL) {
        int rows = fl_mla_panel(k, cached->n);
        fl_matmul_pairs(rows, (int)(ldv / FL_LANES), words, cached->rows + k * cached->ld_rows,
                        cached->ld_rows, 1, w->uv, ldv, NULL, w->part, ldv, false);
        zip_rows(rows, ldv, w->part, ldv, w->values + k / 2 * ldv, ldv);
    }
    return (fl_block){.n = cached->n,
                      .pairs = true,
                      .keys = w->keys,
                      .d = m->nope / 2 + fl_pairs_words(m->pe),
                      .values = w->values,
                      .ld_values = ldv,
                      .spare = w->spare};
}

#else

void fl_mla_ready_head(const fl_mla *m, const fl_mla_head *w, int64_t h)
{
    (void)m, (void)w, (void)h;
}

#endif

static fl_block expand_floats(const fl_mla *m, const fl_mla_head *w, int64_t h,
                              const fl_block *cached)
{
    int64_t row = row_of(m, h), ldv = fl_padded(m->dv);
    int nv = (cached->n + FL_LANES - 1) / FL_LANES;
    for (int64_t i = 0; i < m->nope; i += PANEL) {
        int rows = fl_mla_panel(i, m->nope);
        fl_mla_weights(m, row + i, rows, w->panel);
        fl_matmul(rows, nv, m->latent, w->panel, m->ldc, cached->keys, KEYS, w->keys + i * KEYS,
                  KEYS, false);
    }
    memcpy(w->keys + m->nope * KEYS, cached->keys + m->latent * KEYS,
           (size_t)(m->pe * KEYS) * sizeof(float));
    for (int64_t i = 0; i < m->dv; i += PANEL) {
        int rows = fl_mla_panel(i, m->dv);
        fl_mla_weights(m, row + m->nope + i, rows, w->panel);
        fl_matmul(rows, nv, m->latent, w->panel, m->ldc, cached->keys, KEYS, w->part, KEYS, false);
        fl_transpose(rows, cached->n, w->part, KEYS, w->values + i, ldv);
    }
    return (fl_block){.n = cached->n,
                      .keys = w->keys,
                      .d = m->nope + m->pe,
                      .values = w->values,
                      .ld_values = ldv};
}

fl_block fl_mla_expand(const fl_mla *m, const fl_mla_head *w, int64_t h, const fl_block *cached)
{
#if defined(__AVX512BF16__)
    if (m->fast)
        return expand_pairs(m, w, cached);
#endif
    return expand_floats(m, w, h, cached);
}
