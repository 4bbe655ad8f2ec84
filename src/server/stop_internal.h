/* Stop strings. */
#ifndef FL_SERVER_STOP_INTERNAL_H
#define FL_SERVER_STOP_INTERNAL_H

#include "base/vec.h"

enum { FL_MAX_STOPS = 16, FL_MAX_STOP_BYTES = 1024 };

typedef struct fl_stops {
    fl_bytes text[FL_MAX_STOPS]; /* none empty */
    int n;
} fl_stops;

/* Looks at text that came since the last byte known to be no beginning of a stop string.  Returns
 * how many bytes of it precede the stop string that ends first (of several, the longest), with its
 * index in *found; or, *found being -1, how many cannot be the beginning of one.  The result of
 * feeding a text is the same in whatever parts it comes. */
size_t fl_stops_scan(const fl_stops *s, const char *text, size_t len, int *found);

#endif
