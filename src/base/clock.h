/* Time that only moves forward. */
#ifndef FL_BASE_CLOCK_H
#define FL_BASE_CLOCK_H

#include <stdint.h>

int64_t fl_clock_us(void); /* microseconds since some moment before the program began */

#endif
