/* What the files that speak HTTP share. */
#ifndef FL_SERVER_HTTP_INTERNAL_H
#define FL_SERVER_HTTP_INTERNAL_H

#include "server/server_internal.h"

#include <microhttpd.h>

/* gate.c: checks a request's head; false fills r. */
bool fl_gate_check(fl_server *s, struct MHD_Connection *c, const char *path, fl_refusal *r);
bool fl_gate_too_large(fl_server *s, fl_refusal *r); /* fills r */

#endif
