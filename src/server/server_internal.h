/* What all files of the server share: refusals, keys, counters, the server itself.
 *
 * One lock guards what threads share.  A job (job_internal.h) has two holders, its connection (HTTP
 * threads) and the scheduler. */
#ifndef FL_SERVER_INTERNAL_H
#define FL_SERVER_INTERNAL_H

#include "engine/constraint.h"
#include "server/server.h"

#include <pthread.h>
#include <stdatomic.h>

typedef struct fl_job fl_job;

/* Why a request is refused: the four members of OpenAI's error object, the HTTP status, and when to
 * try again. */
typedef struct fl_refusal {
    int http;
    const char *code;
    char param[64]; /* empty: null */
    char message[520];
    int retry; /* seconds, with 429 and 503; 0: 1 */
} fl_refusal;

/* Fills r and returns false. */
bool fl_refuse(fl_refusal *r, int http, const char *code, const char *param, const char *fmt, ...)
    FL_PRINTF(5, 6);
bool fl_refuse_nomem(fl_refusal *r);
/* The same from a library error: FL_ARGUMENT is the client's fault, anything else ours. */
bool fl_refuse_error(fl_refusal *r, const fl_error *err);

/* One line of the key file.  A limit of 0 is none. */
typedef struct fl_key {
    char *secret, *name;
    int64_t concurrent, per_minute, context;
    bool shared;   /* its prefixes may be reused for other keys that are shared */
    uint64_t salt; /* of its prefixes: from the secret, so that it is the same after a restart
                      whatever the order of the keys; 0 of those that are shared */
    /* Under the server's lock: */
    int64_t running;     /* requests on connections */
    double left, filled; /* tokens left, and when that was computed */
} fl_key;

/* keys.c */
FL_MUST_CHECK fl_status fl_keys_parse(fl_server *s, const char *text, size_t len, const char *what,
                                      fl_error *err);
void fl_keys_free(fl_server *s);
fl_key *fl_keys_find(fl_server *s, const char *secret); /* NULL: no such key */
/* Takes and gives back one of the key's concurrent requests; key may be NULL.  Locked. */
bool fl_key_enter_locked(fl_key *key, double now, fl_refusal *r);
void fl_key_leave_locked(fl_key *key);
void fl_key_charge_locked(fl_key *key, int64_t tokens);

/* Histograms: enum name, metric, whether it counts seconds (else tokens). */
#define FL_HISTOGRAM_MAP(X)                                                                        \
    X(FIRST_TOKEN, "vllm:time_to_first_token_seconds", true)                                       \
    X(BETWEEN, "vllm:inter_token_latency_seconds", true)                                           \
    X(PER_TOKEN, "vllm:request_time_per_output_token_seconds", true)                               \
    X(WHOLE, "vllm:e2e_request_latency_seconds", true)                                             \
    X(QUEUE, "vllm:request_queue_time_seconds", true)                                              \
    X(INFERENCE, "vllm:request_inference_time_seconds", true)                                      \
    X(PREFILL, "vllm:request_prefill_time_seconds", true)                                          \
    X(DECODE, "vllm:request_decode_time_seconds", true)                                            \
    X(STEP, "firstlight:step_seconds", true)                                                       \
    X(PROMPT, "vllm:request_prompt_tokens", false)                                                 \
    X(ANSWER, "vllm:request_generation_tokens", false)                                             \
    X(MAX, "vllm:request_params_max_tokens", false)                                                \
    X(CHOICES, "vllm:request_params_n", false)

typedef enum fl_histogram_id {
#define FL_HISTOGRAM_ENUM(name, metric, seconds) FL_H_##name,
    FL_HISTOGRAM_MAP(FL_HISTOGRAM_ENUM)
#undef FL_HISTOGRAM_ENUM
        FL_H_COUNT
} fl_histogram_id;
enum { FL_H_BUCKETS = 20 };

typedef struct fl_histogram {
    int64_t count, buckets[FL_H_BUCKETS]; /* a value is in the first bucket that it fits in */
    double sum;
} fl_histogram;

/* Everything /metrics tells that is not read elsewhere. */
typedef struct fl_counters {
    int64_t prompt_tokens, generation_tokens, refused, ended[FL_FINISH_COUNT];
    fl_engine_stats engine; /* after the last step */
    fl_histogram h[FL_H_COUNT];
} fl_counters;

/* A grammar and the text that it was made from. */
enum { FL_KEPT_FORMS = 32 };
typedef struct fl_kept_form {
    fl_buf key;
    fl_grammar *grammar;
    uint64_t used; /* when: a count of uses */
} fl_kept_form;

struct fl_server {
    fl_server_options options;
    fl_model *model;
    fl_engine *engine;
    const fl_tokenizer *tokenizer;
    fl_token_trie *trie; /* NULL until it is needed */
    fl_kept_form forms[FL_KEPT_FORMS];
    uint64_t forms_used;
    FL_VEC(fl_key) keys;
    fl_buf tls_key, tls_cert;
    int64_t started; /* Unix time */
    int port;

    pthread_mutex_t lock;
    pthread_cond_t wake; /* the scheduler has something to do */
    uint64_t next_id;
    fl_job *live; /* those with a connection */
    int n_live;
    fl_job *waiting, **waiting_end; /* for the scheduler to take them to the engine */
    fl_job *chores;                 /* for the scheduler alone, the latest first */
    int n_waiting;                  /* chores, and jobs that have had no room in the engine yet */
    bool draining, stopping, busy;
    double progress; /* when the last step ended, or work came after none */
    fl_counters counters;
    double published; /* when the engine's part of them was taken; the scheduler's */

    pthread_t scheduler, watcher;
    bool has_scheduler, has_watcher;
    int epoll, event; /* of the watcher */
    struct MHD_Daemon *daemon;
};

double fl_server_seconds(void);
/* Whether name is one of the model's names; the first of them. */
bool fl_server_is_alias(const fl_server *s, const char *name);
fl_bytes fl_server_alias(const fl_server *s);

/* scheduler.c */
bool fl_scheduler_enqueue(fl_job *j, fl_refusal *r);
void *fl_scheduler_run(void *server);

/* watch.c: notices clients that went away while nothing is sent to them. */
fl_status fl_watch_start(fl_server *s, fl_error *err);
void fl_watch_stop(fl_server *s);
void fl_watch_add(fl_server *s, int fd, uint64_t id);
void fl_watch_remove(fl_server *s, int fd);

/* http.c */
fl_status fl_http_start(fl_server *s, fl_error *err);
void fl_http_stop(fl_server *s);

/* page.html, made into an array by the build. */
extern const unsigned char fl_page_html[];
extern const size_t fl_page_html_size;

/* pages.c: what is asked for with GET. */
bool fl_page(fl_server *s, const char *path, fl_buf *out, const char **type, int *http);

/* form.c */
void fl_forms_free(fl_server *s);

/* metrics.c */
void fl_observe(fl_server *s, fl_histogram_id which, double value); /* takes the lock */
void fl_count_token(fl_job *j);
void fl_count_end(fl_job *j, fl_finish how);
bool fl_metrics_write(fl_server *s, bool healthy, fl_buf *b);

/* log.c: one line per event, as key=value; called without the lock. */
void fl_log_job(fl_job *j);
void fl_log_refusal(fl_server *s, const char *path, const fl_key *key, const fl_refusal *r);

#endif
