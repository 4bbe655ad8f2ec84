/* The device contract: a second processor with memory of its own that runs a whole plan.
 *
 * A device is opened by the operators room (ops/device.h), given to a plan and to a state manager
 * of one engine, and outlives both.  They ask it for memory and copies; its kernels are ordinary
 * fl_kernels whose run() queues work on fl_worker.queue and returns.  Operands then point to device
 * memory, which the host never touches but through the functions here.
 *
 * Work is done in the order in which it was asked for.  What copies or launches do wrong may show
 * late: begin, end, wait and the transfers to the host report it, and once a device has failed so,
 * it stays failed until it is closed.  One thread at a time. */
#ifndef FL_GRAPH_DEVICE_H
#define FL_GRAPH_DEVICE_H

#include "graph/op.h"

typedef struct fl_device fl_device;

/* How the calls of one step are to be made. */
typedef struct fl_pass {
    bool walk;           /* make them; false: the device repeats a step that it has recorded */
    const fl_step *step; /* what kernels are shown: the sizes to launch for.  The numbers of the
                            step itself they find in device memory. */
    void *queue;         /* fl_worker.queue */
} fl_pass;

/* Calls that a device makes in one go (plan_internal.h says which a plan may put together).  In
 * order: one may read what those before it write. */
typedef struct fl_joint {
    int n;
    const fl_call *const *calls;
    fl_call call; /* set by join: makes them all; kernel NULL: they are made one by one */
} fl_joint;

typedef struct fl_device_fn {
    void (*close)(fl_device *d);

    /* Takes everything that alloc will give, and room for steps within the limits.  Once. */
    fl_status (*reserve)(fl_device *d, size_t bytes, const fl_limits *limits, fl_error *err);
    /* Memory out of the reserve, aligned to FL_DEVICE_ALIGN; freed by close. */
    fl_status (*alloc)(fl_device *d, size_t bytes, void **out, fl_error *err);
    /* Host memory that transfers are fast to and from; freed by close. */
    fl_status (*host_alloc)(fl_device *d, size_t bytes, void **out, fl_error *err);

    /* To the device, before or within a step: `from` may be reused on return.  Made for gigabytes:
     * reading `from` (a mapped file, it may be) overlaps with the copy. */
    fl_status (*upload)(fl_device *d, void *to, const void *from, size_t bytes, fl_error *err);
    /* To the host, rows of row_bytes that lie stride bytes apart on the device and packed here;
     * returns when they are there. */
    fl_status (*download)(fl_device *d, void *to, const void *from, size_t row_bytes, size_t stride,
                          size_t rows, fl_error *err);
    void (*copy)(fl_device *d, void *to, const void *from, size_t bytes); /* within the device */
    void (*zero)(fl_device *d, void *at, size_t bytes);

    /* A step: begin hands it over, the calls are made if pass->walk says so, end starts what is not
     * running yet, wait returns when all is done.  `owner` tells plans apart; observed: somebody
     * will look at values or times between calls, or compute some on the host. */
    fl_status (*begin)(fl_device *d, const void *owner, const fl_step *step, bool observed,
                       fl_pass *pass, fl_error *err);
    fl_status (*end)(fl_device *d, fl_error *err);
    fl_status (*wait)(fl_device *d, fl_error *err);

    /* Calls in one go; both NULL where there is no such thing.  joins: whether a node may be made
     * together with n others, of whose outputs it reads, as a whole, the inputs that are set in
     * `inside`.  join: all of a plan, once, when operands have their addresses. */
    bool (*joins)(const fl_device *d, const fl_node_view *members, int n, const fl_node_view *node,
                  uint64_t inside);
    fl_status (*join)(fl_device *d, fl_joint *joints, int n, fl_error *err);

    /* Times within an observed step: mark, numbered from 0 on, says "when the work asked for so far
     * is done"; times gives, after wait, the microseconds from mark 0 to each of the first n. */
    void (*mark)(fl_device *d, int i);
    fl_status (*times)(fl_device *d, int n, int64_t *us, fl_error *err);
} fl_device_fn;

struct fl_device {
    const fl_device_fn *fn;
    const fl_kernel_list *const *lists; /* its kernels */
    int n_lists;
    size_t memory;  /* bytes that reserve can take */
    char name[160]; /* "cuda:0 NVIDIA H200, 139.7 GiB" */
    char note[160]; /* what a user should know about it, known after join; "": nothing */
};

enum { FL_DEVICE_ALIGN = 256 };

/* Rounds up to FL_DEVICE_ALIGN; false when it wraps. */
static inline bool fl_device_round(size_t n, size_t *out)
{
    return !__builtin_add_overflow(n, (size_t)FL_DEVICE_ALIGN - 1, out) &&
           ((*out &= ~((size_t)FL_DEVICE_ALIGN - 1)), true);
}

#endif
