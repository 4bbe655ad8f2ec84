/* The geometry of mla, and blocks of cached rows. */
#include "ops/cpu/mla.h"

#include "ops/cpu/cache.h"
#include "ops/cpu/matmul.h"
#include "ops/cpu/pairs.h"
#include "ops/def/def_internal.h"

static void set_shape(fl_mla *m, const fl_type *q, const fl_type *kv_b, const fl_attr *attr)
{
    m->heads = q->dim[0];
    m->latent = kv_b->dim[1];
    m->dv = attr[FL_MLA_V_DIM].i;
    m->nope = kv_b->dim[0] / m->heads - m->dv;
    m->pe = q->dim[1] - m->nope;
    m->scale = (float)attr[FL_MLA_SCALE].f;
    m->width = m->latent + m->pe;
    m->d = m->fast ? fl_pairs_words(m->width) : m->width;
    m->ldc = fl_padded(m->latent);
    m->nv = (int)(m->ldc / 16);
    m->ldq = fl_padded(m->width);
    m->group = m->heads < FL_ATTEND_QUERIES ? m->heads : FL_ATTEND_QUERIES;
}

fl_mla fl_mla_shape(const fl_node_view *node, bool fast)
{
    fl_mla m = {.fast = fast, .cache = node->in[FL_MLA_CACHE]->dtype};
    set_shape(&m, node->in[FL_MLA_Q], node->in[FL_MLA_KV_B], node->attr);
    return m;
}

fl_mla fl_mla_of(const fl_call *call, const fl_step *step)
{
    const fl_arg *in = call->in;
    bool select = call->n_in > FL_MLA_SELECT && in[FL_MLA_SELECT].data;
    fl_mla m = {.step = step,
                .q = &in[FL_MLA_Q],
                .select = select ? &in[FL_MLA_SELECT] : NULL,
                .out = &call->out[0],
                .kv_b = in[FL_MLA_KV_B].tensors,
                .pool = &step->states[in[FL_MLA_CACHE].type.state],
                .cache = in[FL_MLA_CACHE].type.dtype,
                .fast = call->kernel->fast};
    set_shape(&m, &in[FL_MLA_Q].type, &in[FL_MLA_KV_B].type, call->attr);
    return m;
}

fl_mla fl_mla_absorbed(const fl_mla *m)
{
    fl_mla r = *m;
    if (m->cache == FL_F32 && m->heads <= FL_LANES) {
        r.fast = false;
        r.d = m->width;
    }
    return r;
}

void fl_mla_cut_block(const fl_mla *m, fl_room *r, fl_mla_block *b)
{
    b->keys = fl_room_floats(r, m->d * FL_ATTEND_KEYS);
    b->rows = fl_room_floats(r, FL_ATTEND_KEYS * m->ldq);
    b->values = fl_room_floats(r, m->fast ? FL_ATTEND_KEYS / 2 * m->ldc : 0);
    b->spare = fl_room_floats(r, m->fast ? m->ldc : 0);
}

/* Whether rows of a page can be used where they lie: they are what is multiplied, and the values
 * among them whole vectors. */
static bool in_place(const fl_mla *m)
{
    return m->fast ? m->cache == FL_BF16 && m->latent % (2 * FL_LANES) == 0
                   : m->cache == FL_F32 && m->latent == m->ldc;
}

static void load_row(const fl_mla *m, const void *cached, float *out)
{
#if defined(__AVX512BF16__)
    if (m->fast) {
        fl_cache_pairs(m->cache, m->width, cached, out);
        return;
    }
#endif
    fl_cache_load(m->cache, m->width, cached, out);
}

#if defined(__AVX512BF16__)
/* Values of a pair of keys; NULL: beside an odd last one stand zeros. */
static void pair_values(const fl_mla *m, const float *a, const float *b, float *out)
{
    for (int64_t w = 0; 2 * w < m->ldc; w += FL_LANES) {
        vf x = vf_load(a + w), y = b ? vf_load(b + w) : vf_zero();
        vf_store(out + 2 * w, vf_zip_rows(x, y, 0));
        if (2 * w + FL_LANES < m->ldc)
            vf_store(out + 2 * w + FL_LANES, vf_zip_rows(x, y, 16));
    }
}
#endif

fl_block fl_mla_place(const fl_mla *m, const fl_mla_block *b, const fl_seq_rows *seq,
                      const int32_t *pos, int64_t first, int n)
{
    fl_block block = {
        .n = n, .pairs = m->fast, .d = m->d, .rows = b->rows, .ld_rows = m->ldq, .spare = b->spare};
    bool there = !pos && in_place(m);
    if (there) {
        block.rows = fl_state_row(m->pool, seq, first);
        block.ld_rows = m->pool->item_bytes / (int64_t)sizeof(float);
    }
    for (int i = 0; i < n; i++) {
        if (!there)
            load_row(m, fl_state_row(m->pool, seq, pos ? pos[i] : first + i), b->rows + i * m->ldq);
#if defined(__AVX512BF16__)
        const float *row = block.rows + i * block.ld_rows;
        if (m->fast && i % 2)
            pair_values(m, row - block.ld_rows, row, b->values + i / 2 * m->ldc);
        else if (m->fast && i + 1 == n)
            pair_values(m, row, NULL, b->values + i / 2 * m->ldc);
#endif
    }
    block.values = m->fast ? b->values : block.rows;
    block.ld_values = m->fast ? m->ldc : block.ld_rows;
    return block;
}

fl_block fl_mla_load(const fl_mla *m, const fl_mla_block *b, const fl_seq_rows *seq,
                     const int32_t *pos, int64_t first, int n)
{
    fl_block block = fl_mla_place(m, b, seq, pos, first, n);
    fl_transpose(n, m->d, block.rows, block.ld_rows, b->keys, FL_ATTEND_KEYS);
    block.keys = b->keys;
    return block;
}
