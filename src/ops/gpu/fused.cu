/* Calls in one go: what ops/fused.h wrote, compiled at run time (ops/rtc.h) as one unit for all
 * calls of a plan, and launched.  Joints whose texts are the same (those of equal layers) share a
 * kernel: addresses travel as an argument. */
#include "ops/gpu/gpu.h"

extern "C" {
#include "ops/fused.h"
#include "ops/rtc.h"
}

#include <stdio.h>
#include <string.h>

typedef struct fused_call {
    gpu_fused args; /* but for what the step has */
    cudaKernel_t kernel;
    const fl_joint *joint;
    int32_t state[GPU_FUSED_STATES];
    int n_states, text; /* text: the index of its kernel; -1: it has none */
    unsigned blocks, threads;
    fl_rows rows;
} fused_call;

struct gpu_joined {
    cudaLibrary_t library;
    fused_call *calls; /* one per joint */
    fl_fused_unit unit;
};

static void run(const fl_call *call, const fl_step *step, int phase, const fl_worker *worker)
{
    (void)phase;
    gpu_queue *q = (gpu_queue *)worker->queue;
    const fused_call *f = (const fused_call *)call->prep;
    gpu_fused args = f->args;
    int32_t rows = fl_rows_now(step, f->rows);
    args.step = q->step;
    args.count = gpu_count(q, f->rows);
    args.move = step->n_rows == step->n_seqs;
    for (int i = 0; i < f->n_states; i++) {
        args.state[i].base = step->states[f->state[i]].base;
        args.state[i].item_bytes = step->states[f->state[i]].item_bytes;
    }
    void *p[] = {&args};
    dim3 grid((unsigned)rows, f->blocks);
    if (rows)
        (void)cudaLaunchKernel((const void *)f->kernel, grid, dim3(f->threads), p, 0, q->stream);
    gpu_launched(q);
    for (int i = 0; i < f->joint->n && !args.move; i++) {
        if (strcmp(f->joint->calls[i]->kernel->op, "conv1d") == 0)
            gpu_conv_tail(q, f->joint->calls[i], step);
    }
}

static const fl_kernel kernel = {
    .op = "expr", .name = "fused-gpu", .preference = 1, .n_phases = 1, .run = run};

void gpu_part(gpu_joined *joined)
{
    if (!joined)
        return;
    if (joined->library)
        cudaLibraryUnload(joined->library);
    fl_fused_unit_free(&joined->unit);
    fl_free(joined->calls);
    fl_free(joined);
}

/* Lays a joint out and finds the text of its kernel, which is written when it is new. */
static bool add(gpu_joined *all, const fl_joint *joint, fused_call *c)
{
    fl_fused lay;
    c->joint = joint;
    c->text = -1;
    if (!fl_fused_lay(joint, &lay))
        return true;
    if (!fl_fused_unit_add(&all->unit, &lay, &c->text))
        return false;
    c->blocks = lay.blocks;
    c->threads = (unsigned)lay.threads;
    c->rows = joint->calls[0]->out[0].type.rows;
    c->n_states = lay.n_states;
    memcpy(c->state, lay.state, sizeof c->state);
    for (int a = 0; a < lay.n_args; a++)
        c->args.at[a] = gpu_rows_of(lay.arg[a]);
    return true;
}

/* Compiles and loads; kernels of the calls are set. */
static fl_status load(gpu_joined *all, int n, const char *arch, fl_error *err)
{
    fl_buf text = {};
    const void *image = NULL;
    size_t bytes = 0;
    fl_status s = fl_fused_unit_write(&all->unit, &text)
                      ? fl_rtc_compile(text.data, arch, &image, &bytes, err)
                      : fl_fail(err, FL_NOMEM, "no memory for expressions");
    fl_vec_free(&text);
    FL_TRY(s);
    cudaError_t e =
        cudaLibraryLoadData(&all->library, image, nullptr, nullptr, 0, nullptr, nullptr, 0);
    for (int i = 0; i < n && e == cudaSuccess; i++) {
        char name[32];
        snprintf(name, sizeof name, "fused%d", all->calls[i].text);
        if (all->calls[i].text >= 0)
            e = cudaLibraryGetKernel(&all->calls[i].kernel, all->library, name);
    }
    if (e == cudaSuccess)
        return FL_OK;
    (void)cudaGetLastError();
    return fl_fail(err, FL_UNSUPPORTED, "not loaded: %s", cudaGetErrorString(e));
}

fl_status gpu_join(fl_joint *joints, int n, const char *arch, gpu_joined **out, char note[160],
                   fl_error *err)
{
    if (*out)
        return fl_fail(err, FL_INTERNAL, "calls were joined before");
    gpu_joined *all = (gpu_joined *)fl_calloc(1, sizeof(gpu_joined));
    bool room = all && (all->calls = (fused_call *)fl_calloc((size_t)n, sizeof(fused_call)));
    for (int i = 0; i < n && room; i++)
        room = add(all, &joints[i], &all->calls[i]);
    fl_error why = {};
    fl_status s = room ? FL_OK : fl_fail(&why, FL_NOMEM, "no memory for the calls of a plan");
    if (s == FL_OK && all->unit.texts.n)
        s = load(all, n, arch, &why);
    if (s == FL_OK) {
        for (int i = 0; i < n; i++) {
            if (all->calls[i].text < 0)
                continue;
            joints[i].call.kernel = &kernel;
            joints[i].call.prep = &all->calls[i];
        }
        *out = all;
        return FL_OK;
    }
    gpu_part(all);
    if (s == FL_NOMEM)
        return fl_fail(err, s, "%s", why.message);
    snprintf(note, 160, "expressions are interpreted: %.120s", why.message);
    return FL_OK;
}
