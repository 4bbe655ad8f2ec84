/* Opening a device: the only place that knows which kinds exist and where their plugins lie. */
#ifndef FL_OPS_DEVICE_H
#define FL_OPS_DEVICE_H

#include "graph/device.h"

/* Opens the device `name`: "cuda" or "musa", or "cuda:1" (the second); "auto": the first that
 * works, else none; "cpu" or NULL: none.  *out is NULL for none, and what the host's own processor
 * is used for then stands in why ("no GPU: the driver is not installed"); else why is the device's
 * name. FL_ARGUMENT for another name; FL_NOTFOUND or FL_DEVICE, with the reason, when a device that
 * was asked for by name cannot be had.  The caller closes it: (*out)->fn->close(*out). */
FL_MUST_CHECK fl_status fl_device_open(const char *name, fl_device **out, char why[200],
                                       fl_error *err);

#endif
