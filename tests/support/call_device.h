/* Running a call (call.h) on a device: operands, states and scratch are copied there and, after the
 * run, what a kernel may have written is copied back, guard zones included. */
#ifndef FL_TEST_CALL_DEVICE_H
#define FL_TEST_CALL_DEVICE_H

#include "graph/device.h"
#include "support/call.h"

/* From now on tc_run runs the kernels of this device there; NULL: none.  The device is fresh:
 * nothing was reserved on it yet. */
void tc_use_device(fl_device *d);
bool tc_on_device(const fl_kernel *k);
/* call: of the rows of `step`, in host memory; its operands begin at row0 and logit row logit0 of
 * the case's own. */
void tc_run_on_device(tc *c, const fl_call *call, const fl_step *step, int32_t row0,
                      int32_t logit0);

#endif
