/* Memory of a device that a test gives out piece by piece, and calls that are run there. */
#ifndef FL_TEST_DEVICE_ROOM_H
#define FL_TEST_DEVICE_ROOM_H

#include "graph/device.h"

typedef struct device_room {
    fl_device *device;
    unsigned char *base;
    size_t bytes, used;
} device_room;

/* Fails the test, with the message, unless s is FL_OK. */
void device_must(fl_status s, const fl_error *err);
/* All the device will be asked for.  It is fresh: nothing was reserved on it yet. */
void device_open_room(device_room *r, fl_device *d, size_t bytes, const fl_limits *limits);
unsigned char *device_take(device_room *r, size_t bytes);
unsigned char *device_send(device_room *r, const void *from, size_t bytes);
void device_fetch(const device_room *r, void *to, const void *from, size_t bytes);
/* Runs the calls one after the other as a pass of their own, and waits for them.  key: of the pass;
 * w: scratch and shared memory of the device. */
void device_run(const device_room *r, const void *key, const fl_step *step,
                const fl_call *const *calls, int n, fl_worker w);

#endif
