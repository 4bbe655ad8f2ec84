/* What the files of the server share: a request's parameters, the job that it becomes, the server.
 *
 * A job has two holders: its connection (HTTP threads) and the scheduler.  They meet in the fields
 * under the server's lock; the rest belongs to the scheduler once the job was enqueued. */
#ifndef FL_SERVER_INTERNAL_H
#define FL_SERVER_INTERNAL_H

#include "model/chat.h"
#include "server/server.h"

#include <pthread.h>
#include <stdatomic.h>

enum { FL_MAX_STOPS = 16, FL_MAX_STOP_BYTES = 1024, FL_STUCK_SECONDS = 60 };

/* Why a request is refused: the four members of OpenAI's error object and the HTTP status. */
typedef struct fl_refusal {
    int http;
    const char *code;
    char param[64]; /* empty: null */
    char message[520];
} fl_refusal;

/* Fills r and returns false. */
bool fl_refuse(fl_refusal *r, int http, const char *code, const char *param, const char *fmt, ...)
    FL_PRINTF(5, 6);
/* The same from a library error: FL_ARGUMENT is the client's fault, anything else ours. */
bool fl_refuse_error(fl_refusal *r, const fl_error *err);

/* A checked request; pointers lead into its body. */
typedef struct fl_params {
    bool chat, stream, include_usage, thinking, ignore_eos;
    const char *effort;
    int64_t max_tokens; /* -1: as many as fit */
    fl_sampling sampling;
    FL_VEC(fl_logit_bias) bias;
    fl_bytes stop[FL_MAX_STOPS];
    int n_stop;
    const fl_json *messages, *tools, *tool_choice, *prompt;
} fl_params;
bool fl_params_read(const fl_json *body, bool chat, const fl_server_options *o, fl_params *p,
                    fl_refusal *r);

typedef struct fl_job {
    struct fl_server *server;
    uint64_t id;
    int64_t created; /* Unix time */
    fl_json *body;
    fl_params params;

    /* Under the server's lock. */
    int holders;
    struct fl_job *live; /* next of those that have a connection */
    fl_buf out;          /* text to send; sent so far: out_at */
    size_t out_at;
    int http;           /* the status of the answer */
    bool begun;         /* a stream has begun: its head can be sent */
    bool ended, broken; /* nothing follows; broken: close without a proper end */
    bool suspended;     /* the connection waits for more */
    struct MHD_Connection *connection;
    atomic_bool dead; /* nobody reads the answer any more */

    /* The scheduler's. */
    struct fl_job *next; /* waiting or running */
    fl_ids prompt;
    bool prepared;
    fl_request *request; /* alive in the engine */
    const fl_tokenizer *tokenizer;
    fl_chat_parser *parser;
    fl_utf8_stream utf8;
    fl_buf hold;                            /* text that may be the beginning of a stop string */
    fl_buf content, reasoning, tools, call; /* of an answer that is sent whole */
    fl_buf piece, chunk;                    /* scratch */
    int n_calls;
    int64_t n_tokens;
    bool stopped; /* a stop string was found */
    bool failed, finished;
    fl_error error;
} fl_job;

typedef struct fl_counters {
    int64_t running, prompt_tokens, generation_tokens, free_tokens, all_tokens;
    int64_t ended[FL_FINISH_ERROR + 1];
} fl_counters;

struct fl_server {
    fl_server_options options;
    fl_model *model;
    fl_engine *engine;
    const fl_tokenizer *tokenizer;
    fl_buf keys; /* the key file */
    int64_t started;
    int port;

    pthread_mutex_t lock;
    pthread_cond_t wake; /* the scheduler has something to do */
    uint64_t next_id;
    fl_job *live;
    int n_live;
    fl_job *waiting, **waiting_end;
    int n_waiting;
    bool draining, stopping, busy;
    double progress; /* when the last step ended, or work came after none */
    fl_counters counters;

    pthread_t scheduler, watcher;
    bool has_scheduler, has_watcher;
    int epoll, event; /* of the watcher */
    struct MHD_Daemon *daemon;
};

double fl_server_seconds(void);

/* job.c.  A new job has one holder, its connection; it takes body over, even on failure. */
fl_job *fl_job_create(fl_server *s, fl_json *body, bool chat, fl_refusal *r);
void fl_job_drop(fl_job *j); /* one holder less */
void fl_job_wake_locked(fl_job *j);
void fl_job_begin(fl_job *j);
void fl_job_send(fl_job *j, const char *text, size_t len);
void fl_job_end(fl_job *j, int http);
void fl_job_fail(fl_job *j, const fl_refusal *r);

/* scheduler.c */
bool fl_scheduler_enqueue(fl_job *j, fl_refusal *r);
void *fl_scheduler_run(void *server);

/* answer.c: from tokens to text. */
bool fl_answer_prepare(fl_job *j, fl_refusal *r);
void fl_answer_token(void *job, const fl_token_event *e);
void fl_answer_free(fl_job *j);

/* write.c: from text to JSON. */
typedef enum fl_part_kind { FL_PART_ROLE, FL_PART_REASONING, FL_PART_CONTENT } fl_part_kind;
bool fl_put(fl_buf *b, const char *fmt, ...) FL_PRINTF(2, 3);
bool fl_write_text(fl_job *j, fl_part_kind kind, const char *text, size_t len);
bool fl_write_tool(fl_job *j, const fl_chat_event *e);
bool fl_write_end(fl_job *j, const char *finish);
bool fl_write_error(fl_buf *b, const fl_refusal *r);

/* watch.c: notices clients that went away while nothing is sent to them. */
fl_status fl_watch_start(fl_server *s, fl_error *err);
void fl_watch_stop(fl_server *s);
void fl_watch_add(fl_server *s, int fd, uint64_t id);
void fl_watch_remove(fl_server *s, int fd);

/* http.c */
fl_status fl_http_start(fl_server *s, fl_error *err);
void fl_http_stop(fl_server *s);

/* pages.c: what is asked for with GET. */
bool fl_page(fl_server *s, const char *path, fl_buf *out, const char **type, int *http);

#endif
