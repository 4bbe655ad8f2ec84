/* The server room: many users of one model over HTTP, in the forms of OpenAI and Anthropic.
 *
 * HTTP threads read and check requests; one scheduler thread owns the model and the engine, renders
 * prompts, runs steps and writes answers into a queue of text per request, which the HTTP threads
 * send.  The room knows nothing about models. */
#ifndef FL_SERVER_H
#define FL_SERVER_H

#include "engine/engine.h"

typedef struct fl_server fl_server;

/* Gets each line of the log, without a line end; called by any thread of the server. */
typedef void (*fl_log_fn)(void *ctx, const char *line);

typedef struct fl_server_options {
    const char *host;     /* address or name to listen on */
    int port;             /* 0: any free one */
    const char *alias;    /* the model's names for clients, separated by commas */
    const char *key_file; /* API keys and their limits (docs/internals/server.md); NULL: no key is
                             asked for */
    bool open_metrics;    /* /metrics asks for no key */
    const char *effort;   /* thinking effort of requests that name none, or NULL */
    const char *efforts;  /* "medium=high,x=low": efforts that are taken for others, or NULL */
    const char *cors;     /* origin that browsers may call from, "*": any; NULL: none */
    const char *tls_cert, *tls_key; /* PEM files; both or neither */
    int64_t context;                /* tokens of one sequence: what the engine was created with */
    int max_queue;                  /* requests that wait at once; one more is answered with 429;
                                       the engine takes as many (max_waiting) */
    int queue_seconds, request_seconds; /* a request fails after so long: without having begun, in
                                           any case; 0: never */
    size_t max_body;                    /* bytes of a request's body */
    int stuck_seconds;                  /* /health fails after so long in one step */
    int ping_seconds;                   /* a stream that has nothing to say says so after so long */
    fl_log_fn log;                      /* or NULL */
    void *log_ctx;
} fl_server_options;

/* One name, port 8080 of this machine, no keys, 64 may wait, 16 MiB; model and context to be set.
 */
fl_server_options fl_server_options_default(void);

/* Starts listening.  Until fl_server_stop the server alone may use model and engine, which outlive
 * it.  Strings of o outlive it too. */
FL_MUST_CHECK fl_status fl_server_start(fl_model *m, fl_engine *e, const fl_server_options *o,
                                        fl_server **out, fl_error *err);
int fl_server_port(const fl_server *s);
/* From now on new work is refused with 503 and /ready fails; what was taken goes on. */
void fl_server_drain(fl_server *s);
int fl_server_active(fl_server *s); /* requests that clients still wait for */
/* Ends what still runs, closes all connections, frees.  NULL is allowed. */
void fl_server_stop(fl_server *s);

#endif
