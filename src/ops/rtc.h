/* The compiler at run time: NVRTC, or MTRTC in a plugin for MUSA.  It is looked for with dlopen
 * when it is first needed, so that neither the program nor a plugin needs it; where it is missing,
 * what would be compiled is done otherwise. */
#ifndef FL_OPS_RTC_H
#define FL_OPS_RTC_H

#include "base/status.h"

#include <stddef.h>

/* Compiles CUDA source for the architecture ("sm_90") to a loadable image, which stays for the life
 * of the process, so that the same source is compiled once.  FL_NOTFOUND: there is no compiler;
 * FL_UNSUPPORTED: it did not like the source or the architecture, and says why.  Any thread. */
FL_MUST_CHECK fl_status fl_rtc_compile(const char *source, const char *arch, const void **image,
                                       size_t *bytes, fl_error *err);

#endif
