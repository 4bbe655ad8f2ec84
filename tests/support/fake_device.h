/* A device without hardware, which proves the seam: its memory is the host's at addresses that the
 * host cannot use, and its kernels run the host's kernels on it.  A plan or a state manager that
 * touches device memory by itself crashes.  Decode steps are recorded the first time and repeated
 * after that, as a GPU does. */
#ifndef FL_TEST_FAKE_DEVICE_H
#define FL_TEST_FAKE_DEVICE_H

#include "graph/device.h"

/* Its kernels are those of the registry, the best that fits each call, but for the operators in
 * `without` ("mla,experts"; NULL: none).  memory: what it has. */
fl_device *fake_device_open(const fl_registry *registry, size_t memory, const char *without);

/* The n-th call that can fail does so, from now (1: the next), and once a step or a transfer to the
 * host has failed, all do until the device is closed; 0: none. */
void fake_device_fail_at(long n);

extern const char *fake_device_broken; /* an operator whose kernel does nothing; NULL: none */
extern int fake_device_alive;          /* devices that are open */
extern int fake_device_repeats;        /* steps that were repeated from a recording */
extern int fake_device_joined;         /* calls that were made in one go with others */
extern size_t fake_device_reserved;    /* by the last reserve */
extern size_t fake_device_fetched;     /* bytes that went to the host, since it was last set to 0 */
/* Sees what a plan puts together (by the rule of ops/fused.h); NULL: nobody does. */
extern void (*fake_device_on_join)(const fl_joint *joints, int n);

#endif
