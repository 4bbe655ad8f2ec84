/* What the files that speak HTTP share. */
#ifndef FL_SERVER_HTTP_INTERNAL_H
#define FL_SERVER_HTTP_INTERNAL_H

#include "server/job_internal.h"

#include <microhttpd.h>

/* One request on a connection. */
typedef struct fl_exchange {
    const fl_dialect *dialect; /* NULL: a page */
    fl_key *key;
    char request_id[FL_REQUEST_ID]; /* the client's X-Request-Id, or empty */
    fl_buf body;
    bool too_large;
    fl_job *job;
    int fd;
} fl_exchange;

/* gate.c: checks a request's head and fills the key and the client's id; false fills r. */
bool fl_gate_check(fl_server *s, struct MHD_Connection *c, const char *path, fl_exchange *x,
                   fl_refusal *r);
bool fl_gate_too_large(fl_server *s, fl_refusal *r); /* fills r */

/* respond.c */
enum MHD_Result fl_respond(fl_server *s, struct MHD_Connection *c, const fl_exchange *x, int http,
                           const char *type, const char *text, size_t len);
enum MHD_Result fl_respond_refusal(fl_server *s, struct MHD_Connection *c, const fl_exchange *x,
                                   const char *path, const fl_refusal *r, bool close);
/* Answers with what the job has; suspends the connection when it has nothing yet. */
enum MHD_Result fl_respond_job(struct MHD_Connection *c, const fl_exchange *x);
/* What a browser asks before a request from a page of another origin. */
enum MHD_Result fl_respond_preflight(fl_server *s, struct MHD_Connection *c);

#endif
