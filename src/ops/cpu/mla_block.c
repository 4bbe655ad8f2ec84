/* The geometry of mla, and blocks of cached rows. */
#include "ops/cpu/mla.h"

#include "ops/cpu/cache.h"
#include "ops/cpu/matmul.h"
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
    m->ldc = fl_padded(m->latent);
    m->nv = (int)(m->ldc / 16);
    m->ldq = fl_padded(m->width);
    m->group = m->heads < FL_ATTEND_QUERIES ? m->heads : FL_ATTEND_QUERIES;
}

fl_mla fl_mla_shape(const fl_node_view *node)
{
    fl_mla m = {0};
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
                .cache = in[FL_MLA_CACHE].type.dtype};
    set_shape(&m, &in[FL_MLA_Q].type, &in[FL_MLA_KV_B].type, call->attr);
    return m;
}

void fl_mla_cut_block(const fl_mla *m, fl_room *r, fl_mla_block *b)
{
    b->keys = fl_room_floats(r, m->width * FL_ATTEND_KEYS);
    b->rows = fl_room_floats(r, FL_ATTEND_KEYS * m->ldq);
}

fl_block fl_mla_place(const fl_mla *m, const fl_mla_block *b, const fl_seq_rows *seq,
                      const int32_t *pos, int64_t first, int n)
{
    fl_block block = {.n = n, .d = m->width};
    if (!pos && m->latent == m->ldc &&
        m->cache == FL_F32) { /* a row of values is whole vectors: they stay in the page */
        block.values = fl_state_row(m->pool, seq, first);
        block.ld_values = m->pool->item_bytes / (int64_t)sizeof(float);
    } else {
        for (int i = 0; i < n; i++)
            fl_cache_load(m->cache, m->width, fl_state_row(m->pool, seq, pos ? pos[i] : first + i),
                          b->rows + i * m->ldq);
        block.values = b->rows;
        block.ld_values = m->ldq;
    }
    return block;
}

fl_block fl_mla_load(const fl_mla *m, const fl_mla_block *b, const fl_seq_rows *seq,
                     const int32_t *pos, int64_t first, int n)
{
    fl_block block = fl_mla_place(m, b, seq, pos, first, n);
    fl_transpose(n, m->width, block.values, block.ld_values, b->keys, FL_ATTEND_KEYS);
    block.keys = b->keys;
    return block;
}
