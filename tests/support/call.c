/* Building one operator call (call.h): memory, the step, inputs, states, attributes, outputs. */
#include "support/call.h"

#include "support/call_internal.h"
#include "support/cmocka_all.h"

#include "base/mem.h"
#include "graph/cache_row.h"
#include "ops/ops.h"

#include <string.h>

void *tc_alloc(tc *c, size_t bytes, size_t align)
{
    /* malloc aligns to 16; the lead leaves no more of that than was asked for, and the data ends
     * where the block ends, so that a sanitizer sees the first byte beyond it. */
    size_t lead = align % 16;
    tc_block *b = fl_malloc(sizeof *b);
    unsigned char *memory = fl_malloc(lead + bytes);
    assert_true(b && memory);
    *b = (tc_block){.next = c->blocks, .memory = memory, .data = memory + lead, .bytes = bytes};
    c->blocks = b;
    tc_poison(memory, lead + bytes);
    return b->data;
}

void tc_poison(void *p, size_t bytes)
{
    static const uint32_t poison = TC_POISON;
    for (size_t i = 0; i < bytes; i++)
        ((unsigned char *)p)[i] = ((const unsigned char *)&poison)[i % sizeof poison];
}

void tc_begin(tc *c, const char *op, rng *random)
{
    *c = (tc){.random = random};
    c->op = fl_registry_op(fl_ops_registry(), op);
    if (!c->op)
        fail_msg("operator %s does not exist", op);
    assert_true(c->op->n_attrs <= TC_MAX_ATTR);
    for (int i = 0; i < c->op->n_attrs; i++) {
        const fl_attr_spec *s = &c->op->attrs[i];
        c->attr[i].f = s->number;
        c->attr[i].i = (int64_t)s->number;
        c->attr[i].text = s->text;
    }
}

void tc_end(tc *c)
{
    while (c->blocks) {
        tc_block *b = c->blocks;
        c->blocks = b->next;
        fl_free(b->memory);
        fl_free(b);
    }
    fl_arena_free(&c->prep_arena);
}

/* ---- the step ---- */

static void shuffle(rng *r, int32_t *v, int64_t n)
{
    for (int64_t i = n - 1; i > 0; i--) {
        int64_t j = rng_int(r, 0, i);
        int32_t t = v[i];
        v[i] = v[j];
        v[j] = t;
    }
}

static int32_t *shuffled(tc *c, int64_t n)
{
    int32_t *v = tc_alloc(c, (size_t)n * sizeof *v, sizeof *v);
    for (int64_t i = 0; i < n; i++)
        v[i] = (int32_t)i;
    shuffle(c->random, v, n);
    return v;
}

static int64_t pages_of(int64_t tokens)
{
    return (tokens + FL_PAGE_TOKENS - 1) / FL_PAGE_TOKENS;
}

void tc_step(tc *c, int n_seqs, const int *n_rows, const int64_t *pos0)
{
    int32_t rows = 0;
    int64_t context = 0;
    c->n_slots = n_seqs + 2;
    for (int i = 0; i < n_seqs; i++) {
        rows += n_rows[i];
        c->n_pages += pages_of(pos0[i] + n_rows[i]);
        context = pos0[i] + n_rows[i] > context ? pos0[i] + n_rows[i] : context;
    }
    c->n_pages += 2;
    int32_t *pages = shuffled(c, c->n_pages), *slots = shuffled(c, c->n_slots);
    fl_seq_rows *seqs = tc_alloc(c, (size_t)n_seqs * sizeof *seqs, sizeof(void *));
    int32_t *row_seq = tc_alloc(c, (size_t)rows * sizeof *row_seq, sizeof(int32_t));
    int32_t *ids = tc_alloc(c, (size_t)rows * sizeof *ids, sizeof(int32_t));
    int32_t *logit_rows = tc_alloc(c, (size_t)rows * sizeof *logit_rows, sizeof(int32_t));
    int32_t r = 0;
    for (int i = 0; i < n_seqs; i++) {
        seqs[i] = (fl_seq_rows){r, n_rows[i], pos0[i], pages, slots[i]};
        pages += pages_of(pos0[i] + n_rows[i]);
        for (int j = 0; j < n_rows[i]; j++, r++) {
            row_seq[r] = i;
            ids[r] = 0;
            logit_rows[r] = r;
        }
    }
    c->step = (fl_step){.n_rows = rows,
                        .n_seqs = n_seqs,
                        .n_logits = rows,
                        .ids = ids,
                        .row_seq = row_seq,
                        .seqs = seqs,
                        .logit_rows = logit_rows,
                        .states = c->pools};
    c->limits = (fl_limits){.max_rows = rows, .max_logits = rows, .max_context = context};
}

void tc_step_random(tc *c, int max_rows, int64_t max_pos)
{
    enum { SEQS = 5 };
    rng *r = c->random;
    int n_rows[SEQS], n_seqs = (int)rng_int(r, 1, max_rows < SEQS ? max_rows : SEQS),
                      left = max_rows;
    int64_t pos0[SEQS];
    for (int i = 0; i < n_seqs; i++) {
        int most = left - (n_seqs - 1 - i);
        n_rows[i] = rng_one_in(r, 3) ? 1 : (int)rng_int(r, 1, most);
        left -= n_rows[i];
        pos0[i] = rng_one_in(r, 3) ? 0 : rng_int(r, 0, max_pos);
        if (rng_one_in(r, 4))
            pos0[i] = pos0[i] / FL_PAGE_TOKENS * FL_PAGE_TOKENS;
    }
    tc_step(c, n_seqs, n_rows, pos0);
    int32_t wanted = 0, *logit_rows = (int32_t *)c->step.logit_rows;
    int keep = (int)rng_int(r, 0, 2); /* none but luck, half, all */
    for (int32_t i = 0; i < c->step.n_rows; i++) {
        if (keep == 2 || rng_int(r, 0, 3) < keep * 2)
            logit_rows[wanted++] = i;
    }
    c->step.n_logits = wanted;
}

int32_t tc_n_rows(const tc *c, fl_rows rows)
{
    return fl_rows_now(&c->step, rows);
}

/* ---- inputs ---- */

static int add(tc *c, fl_rows rows, fl_dtype dtype, int32_t n, int ndim, const int64_t *dim)
{
    assert_true(c->n_in < TC_MAX_IN);
    int i = c->n_in++;
    fl_type *t = &c->in_type[i];
    *t = (fl_type){.rows = rows, .dtype = dtype, .ndim = ndim, .n_tensors = n, .state = -1};
    memcpy(t->dim, dim, (size_t)ndim * sizeof *dim);
    c->in_types[i] = t;
    return i;
}

int tc_none(tc *c)
{
    assert_true(c->n_in < TC_MAX_IN);
    return c->n_in++;
}

int tc_rows(tc *c, fl_rows rows, fl_dtype dtype, int ndim, const int64_t *dim)
{
    int i = add(c, rows, dtype, 1, ndim, dim);
    int64_t width = fl_type_width(&c->in_type[i]), n = tc_n_rows(c, rows);
    int64_t stride = width + (rng_one_in(c->random, 2) ? 0 : rng_int(c->random, 1, 9));
    size_t bytes = n ? (size_t)((n - 1) * stride + width) * 4 : 0;
    c->in[i] = (fl_arg){.stride = stride, .data = tc_alloc(c, bytes, 4)};
    c->blocks->input = true;
    for (int64_t r = 0; r < n; r++) {
        for (int64_t j = 0; j < width; j++) {
            if (dtype == FL_F32)
                tc_f32(c, i, r)[j] = rng_normal(c->random);
            else
                tc_i32(c, i, r)[j] = 0;
        }
    }
    return i;
}

/* One random number of a weight type, at element i. */
static void put_weight(rng *r, fl_dtype dtype, void *data, int64_t i)
{
    float x = rng_normal(r);
    uint32_t bits;
    memcpy(&bits, &x, 4);
    if (dtype == FL_F32)
        memcpy((float *)data + i, &x, 4);
    else if (dtype == FL_BF16)
        ((uint16_t *)data)[i] = (uint16_t)(bits >> 16);
    else if (dtype == FL_F16) /* exponents from 2^-5 to 2, and a zero or denormal now and then */
        ((uint16_t *)data)[i] =
            (uint16_t)((rng_next(r) & 0x83ff) | (rng_one_in(r, 30) ? 0 : rng_int(r, 10, 16) << 10));
    else if (dtype == FL_F8_BLOCK) /* all but NaN */
        ((uint8_t *)data)[i] = (uint8_t)(rng_int(r, 0, 126) | rng_int(r, 0, 1) << 7);
    else
        fail_msg("no random numbers of type %d", (int)dtype);
}

static void make_tensor(tc *c, fl_tensor *t)
{
    int64_t n = fl_tensor_elements(t), width = t->ndim ? t->shape[t->ndim - 1] : 1;
    int64_t q8_blocks = n / width * ((width + FL_Q8_BLOCK - 1) / FL_Q8_BLOCK);
    size_t bytes =
        (size_t)(t->dtype == FL_Q8 ? q8_blocks * FL_Q8_BLOCK : n * fl_dtype_bits(t->dtype) / 8);
    size_t align = t->dtype == FL_MXFP4 ? 1 : (size_t)fl_dtype_bits(t->dtype) / 8;
    unsigned char *data = tc_alloc(c, bytes, align);
    c->blocks->input = true;
    t->data = data;
    if (t->dtype == FL_Q8) {
        float *factor = tc_alloc(c, (size_t)q8_blocks * sizeof *factor, sizeof *factor);
        float *values = tc_alloc(c, (size_t)n * sizeof *values, sizeof *values);
        c->blocks->input = true;
        t->block_scale = factor;
        for (int64_t i = 0; i < n; i++)
            values[i] = rng_normal(c->random) * (i / width % 7 == 3 ? 1e-3f : 1);
        const fl_tensor from = {
            .dtype = FL_F32, .ndim = 2, .shape = {n / width, width}, .data = values};
        fl_tensor_to_q8(&from, t, 0, n / width);
        return;
    }
    if (t->dtype != FL_MXFP4) {
        for (int64_t i = 0; i < n; i++)
            put_weight(c->random, t->dtype, data, i);
        if (t->dtype == FL_F8_BLOCK) {
            int64_t blocks = fl_f8_blocks(n / width) * fl_f8_blocks(width);
            float *factor = tc_alloc(c, (size_t)blocks * sizeof *factor, sizeof *factor);
            c->blocks->input = true;
            t->block_scale = factor;
            for (int64_t i = 0; i < blocks; i++)
                factor[i] = rng_float(c->random, 0.001f, 0.01f);
        }
        return;
    }
    uint8_t *scale = tc_alloc(c, (size_t)(n / FL_MX_GROUP), 1);
    c->blocks->input = true;
    t->scale = scale;
    for (size_t i = 0; i < bytes; i++)
        data[i] = (uint8_t)rng_next(c->random);
    int top = rng_one_in(c->random, 2) ? 124 : 128; /* near each other, or not */
    for (int64_t i = 0; i < n / FL_MX_GROUP; i++)
        scale[i] = (uint8_t)rng_int(c->random, 121, top);
}

int tc_const(tc *c, fl_dtype dtype, int32_t n_tensors, int ndim, const int64_t *dim)
{
    int i = add(c, FL_ROWS_CONST, dtype, n_tensors, ndim, dim);
    fl_tensor *t = tc_alloc(c, (size_t)n_tensors * sizeof *t, sizeof(void *));
    for (int32_t k = 0; k < n_tensors; k++) {
        t[k] = (fl_tensor){.dtype = dtype, .ndim = ndim};
        memcpy(t[k].shape, dim, (size_t)ndim * sizeof *dim);
        make_tensor(c, &t[k]);
    }
    c->in[i] = (fl_arg){.data = (void *)t->data, .tensors = t};
    return i;
}

static int state_in(tc *c, bool paged, fl_dtype dtype, int64_t elements)
{
    assert_true(c->n_states < TC_MAX_STATES);
    int i = add(c, FL_ROWS_STATE, dtype, 1, 1, &elements), s = c->n_states++;
    c->in_type[i].state = s;
    c->in_type[i].paged = paged;
    c->in_type[i].n_tensors = 0;
    int64_t items = paged ? c->n_pages * FL_PAGE_TOKENS : c->n_slots;
    int64_t used = fl_cache_row_bytes(dtype, elements);
    int64_t item_bytes = used + rng_int(c->random, 0, 1) * 64;
    size_t bytes = (size_t)(items * item_bytes), align = dtype == FL_F32 ? 4 : FL_CACHE_ALIGN;
    unsigned char *base = tc_alloc(c, bytes + 2 * TC_GUARD, align);
    c->states[s] = (tc_state){
        .initial = tc_alloc(c, bytes, align), .items = items, .elements = elements, .used = used};
    c->pools[s] = (fl_state_pool){.base = base + TC_GUARD, .item_bytes = item_bytes};
    fl_state_pool initial = {c->states[s].initial, item_bytes};
    float *x = tc_alloc(c, (size_t)elements * sizeof *x, sizeof *x);
    for (int q = 0; q < c->step.n_seqs; q++) {
        const fl_seq_rows *seq = &c->step.seqs[q];
        int64_t n = paged ? seq->pos0 + seq->n_rows : 1;
        for (int64_t p = 0; p < n; p++) {
            for (int64_t e = 0; e < elements; e++)
                x[e] = paged || seq->pos0 ? rng_normal(c->random) : 0;
            fl_cache_encode(dtype, elements, x,
                            paged ? fl_state_row(&initial, seq, p) : fl_state_slot(&initial, seq));
        }
    }
    return i;
}

int tc_state_in(tc *c, bool paged, int64_t elements)
{
    return state_in(c, paged, FL_F32, elements);
}

int tc_cache_in(tc *c, fl_dtype dtype, int64_t elements)
{
    return state_in(c, true, dtype, elements);
}

float *tc_f32(const tc *c, int in, int64_t row)
{
    return fl_row_f32(&c->in[in], row);
}

int32_t *tc_i32(const tc *c, int in, int64_t row)
{
    return (int32_t *)c->in[in].data + row * c->in[in].stride;
}

/* ---- attributes ---- */

static fl_attr *attr(tc *c, const char *name)
{
    for (int i = 0; i < c->op->n_attrs; i++) {
        if (strcmp(c->op->attrs[i].name, name) == 0) {
            c->attr[i].set = true;
            return &c->attr[i];
        }
    }
    fail_msg("operator %s has no attribute %s", c->op->name, name);
    return NULL;
}

void tc_number(tc *c, const char *name, double value)
{
    fl_attr *a = attr(c, name);
    a->f = value;
    a->i = (int64_t)value;
}

void tc_text(tc *c, const char *name, const char *text)
{
    attr(c, name)->text = text;
}

void tc_ints(tc *c, const char *name, int n, const int64_t *v)
{
    fl_attr *a = attr(c, name);
    a->n = n;
    memcpy(a->v, v, (size_t)n * sizeof *v);
}

/* ---- the finished call ---- */

fl_node_view tc_view(const tc *c)
{
    return (fl_node_view){.op = c->op,
                          .n_in = c->n_in,
                          .n_out = c->n_out,
                          .in = c->in_types,
                          .out = c->out_type,
                          .attr = c->attr,
                          .prep = c->prep};
}

fl_status tc_try_infer(tc *c, fl_error *err)
{
    fl_node_view v = tc_view(c);
    FL_TRY(c->op->infer(&v, c->out_type, &c->n_out, err));
    if (!c->op->prepare)
        return FL_OK;
    v = tc_view(c);
    return c->op->prepare(&v, &c->prep_arena, &c->prep, err);
}

void tc_finish(tc *c)
{
    fl_error err;
    if (tc_try_infer(c, &err) != FL_OK)
        fail_msg("%s: %s", c->op->name, err.message);
    for (int i = 0; i < c->n_in; i++)
        c->in[i].type = c->in_type[i];
    for (int o = 0; o < c->n_out; o++) {
        const fl_type *t = &c->out_type[o];
        int64_t width = fl_type_width(t), n = tc_n_rows(c, t->rows);
        int64_t stride = width + (t->rows == FL_ROWS_CONST ? 0 : rng_int(c->random, 0, 5));
        unsigned char *p = tc_alloc(c, (size_t)(n * stride) * 4 + 2 * TC_GUARD, 4);
        c->out[o] = (fl_arg){.type = *t, .data = p + TC_GUARD, .stride = stride};
    }
}

const fl_kernel *tc_kernel(const char *op, const char *name)
{
    const fl_kernel *k;
    for (int i = 0; (k = fl_registry_kernel(fl_ops_registry(), i)) != NULL; i++) {
        if (strcmp(k->op, op) == 0 && strcmp(k->name, name) == 0)
            return k;
    }
    return NULL;
}
