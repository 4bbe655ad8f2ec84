/* A request inside the server: its parameters, the answers that come to it, and the dialect that
 * these are written in. */
#ifndef FL_SERVER_JOB_INTERNAL_H
#define FL_SERVER_JOB_INTERNAL_H

#include "server/server_internal.h"
#include "server/stop_internal.h"

enum { FL_MAX_CHOICES = 64, FL_MAX_ANSWERS = 2048, FL_REQUEST_ID = 128 };

/* A checked request; pointers lead into its body. */
typedef struct fl_params {
    bool stream, include_usage, thinking, ignore_eos, one_call, show_stop;
    const char *effort;
    char *mapped;       /* effort is this when it stands for another */
    int64_t max_tokens; /* -1: as many as fit */
    int64_t n, priority, min_tokens;
    fl_sampling sampling;
    FL_VEC(fl_logit_bias) bias;
    FL_VEC(int32_t) stop_ids;
    fl_stops stops;
    const fl_json *messages, *tools, *tool_choice, *format, *prompt; /* NULL: absent */
} fl_params;

/* Answers are made of items: reasoning, text, tool calls, in the order in which they came. */
typedef enum fl_item_kind { FL_ITEM_REASONING, FL_ITEM_TEXT, FL_ITEM_CALL } fl_item_kind;
typedef struct fl_item {
    fl_item_kind kind;
    fl_buf name, text; /* of a call: the tool, and its arguments as JSON text */
    int call;          /* index among the calls */
} fl_item;

/* The log-probability of a token whose text begins at byte `at` of the answer's text. */
typedef struct fl_mark {
    int32_t id;
    float logprob;
    size_t at, top; /* top: index into tops */
    int n_top;
} fl_mark;

typedef enum fl_end { FL_END_NONE, FL_END_STOP, FL_END_LENGTH, FL_END_CALLS } fl_end;

/* One of a job's prompts, which the engine knows as a request of its own. */
typedef struct fl_job_prompt {
    fl_job *job;
    size_t at, n;        /* its tokens among those of the job */
    int choice;          /* the first of its answers */
    fl_request *request; /* alive in the engine */
    bool opened;         /* its first event has come */
} fl_job_prompt;

/* One of the n answers to a prompt. */
typedef struct fl_choice {
    fl_job *job;
    int index;              /* in the job */
    fl_chat_parser *parser; /* NULL: tokens are text */
    fl_utf8_stream utf8;
    fl_buf hold; /* text that may be the beginning of a stop string */
    FL_VEC(fl_item) items;
    bool open; /* the last item may get more */
    int n_calls;
    FL_VEC(fl_mark) marks; /* the first marks_sure are of text, marks_shown were written */
    FL_VEC(fl_logprob) tops;
    size_t marks_sure, marks_shown;
    size_t fed, shown; /* bytes of text that came, and that passed the stop strings */
    int64_t n_tokens, n_reasoning;
    fl_end end;
    int stop;  /* the stop string that ended it, or -1 */
    bool done; /* takes no more tokens */
} fl_choice;

/* More of an item. */
typedef struct fl_piece {
    const fl_item *item;
    size_t index; /* of the item */
    fl_bytes text;
    size_t mark0, n_marks; /* marks of this text */
} fl_piece;

/* A way of asking and answering.  The functions append to out and return false without memory. */
typedef struct fl_dialect {
    const char *path, *prefix; /* prefix: of ids */
    bool chat;                 /* the request has messages */
    /* Writes the request as one to /v1/chat/completions; NULL: it is one already. */
    bool (*translate)(const fl_json *body, fl_buf *out, fl_refusal *r);
    /* What is answered by the scheduler without the engine; NULL: the engine answers. */
    bool (*act)(fl_job *j, fl_buf *out, fl_refusal *r);
    bool (*whole)(const fl_job *j, fl_buf *out);
    /* Events of a stream; open and close may be NULL. */
    bool (*begin)(fl_job *j, fl_buf *out);
    bool (*open)(fl_choice *c, const fl_piece *p, fl_buf *out);
    bool (*delta)(fl_choice *c, const fl_piece *p, fl_buf *out);
    bool (*close)(fl_choice *c, const fl_piece *p, fl_buf *out);
    bool (*end_choice)(fl_choice *c, fl_buf *out);
    bool (*end)(fl_job *j, fl_buf *out);
    bool (*error)(const fl_refusal *r, bool event, fl_buf *out);
} fl_dialect;

/* The dialect of a path, or NULL. */
const fl_dialect *fl_dialect_find(const char *path);
extern const fl_dialect fl_dialect_chat, fl_dialect_completions, fl_dialect_messages,
    fl_dialect_responses, fl_dialect_tokenize, fl_dialect_detokenize, fl_dialect_template,
    fl_dialect_count;

struct fl_job {
    fl_server *server;
    const fl_dialect *dialect;
    fl_key *key;     /* NULL: no keys are asked for */
    uint64_t client; /* whom the engine is fair to */
    uint64_t salt;   /* who may find what this prompt leaves in the cache */
    uint64_t id;
    int64_t created; /* Unix time */
    char request_id[FL_REQUEST_ID];
    fl_json *body, *translated;
    fl_params params;

    /* Under the server's lock. */
    int holders;
    fl_job *live; /* next of those that have a connection */
    fl_buf out;   /* text to send; sent so far: out_at */
    size_t out_at;
    int http;           /* the status of the answer */
    int retry;          /* Retry-After */
    bool begun;         /* a stream has begun: its head can be sent */
    bool ended, broken; /* nothing follows; broken: close without a proper end */
    bool suspended;     /* the connection waits for more */
    bool started;       /* does not wait any more */
    bool entered;       /* counts as one of its key's requests */
    struct MHD_Connection *connection;
    atomic_bool dead; /* nobody reads the answer any more */

    /* The scheduler's. */
    fl_job *next;  /* waiting or running */
    fl_ids prompt; /* of all prompts */
    FL_VEC(fl_job_prompt) prompts;
    size_t n_asked, n_alive; /* prompts that the engine has been given, that it has */
    bool prepared;
    fl_ids stop_ids;
    fl_choice *choices; /* [n_choices], prompt by prompt */
    int n_choices;
    fl_matcher *matcher; /* what the answers are held to; NULL: they are free */
    fl_buf chunk;        /* events under construction */
    int64_t n_cached, sequence;
    bool opened; /* the first event has come */
    bool failed, finished;
    bool stopped; /* no more prompts are asked */
    bool timed_out;
    const char *code; /* of a failure, for the log */
    fl_error error;
    double came, begun_at, first, last, sent; /* seconds; 0: not yet */
};

/* job.c.  A new job has one holder, its connection; it takes body over, even on failure. */
fl_job *fl_job_create(fl_server *s, const fl_dialect *d, fl_key *key, fl_json *body, fl_refusal *r);
void fl_job_drop(fl_job *j); /* one holder less */
void fl_job_wake_locked(fl_job *j);
/* It has room in the engine, or needs none any more. */
void fl_job_start(fl_job *j);
void fl_job_begin(fl_job *j);
void fl_job_send(fl_job *j, const char *text, size_t len);
void fl_job_end(fl_job *j, int http);
void fl_job_leave_locked(fl_job *j); /* gives its key's place back, once */
void fl_job_fail(fl_job *j, const fl_refusal *r);

/* params.c */
bool fl_params_read(const fl_json *body, const fl_dialect *d, const fl_server *s, fl_params *p,
                    fl_refusal *r);
void fl_params_free(fl_params *p);
bool fl_sampling_read(const fl_json *o, bool chat, fl_params *p, fl_refusal *r); /* sampling.c */

/* prompt.c: renders or encodes into j->prompt and j->prompts (or, with text, renders into it). */
bool fl_prompt_make(fl_job *j, fl_buf *text, fl_refusal *r);
/* And readies the choices. */
bool fl_prompt_prepare(fl_job *j, fl_refusal *r);

/* form.c: readies the matcher when the options bind the answers; without messages these are bare
 * documents. */
bool fl_form_prepare(fl_job *j, const fl_chat_options *o, fl_refusal *r);

/* answer.c: from tokens to items.  ctx is the prompt. */
void fl_answer_token(void *ctx, const fl_token_event *e);
/* Ends what the engine still has of a job. */
void fl_answer_stop(fl_job *j);
void fl_answer_free(fl_job *j);
/* answer.c: which tokens may come next: those of the form, and none that ends the answer before
 * min_tokens.  ctx is the prompt. */
fl_status fl_answer_mask(void *ctx, int choice, const int32_t *answer, int64_t n, uint32_t *allowed,
                         fl_error *err);
/* answer.c: what the chat parser of a choice reports. */
void fl_answer_sink(void *choice, const fl_chat_event *e);

/* item.c: items of a choice; with a stream their events too. */
bool fl_item_more(fl_choice *c, fl_item_kind kind, const char *text, size_t len);
bool fl_item_open(fl_choice *c, fl_item_kind kind, fl_bytes name);
bool fl_item_close(fl_choice *c);
void fl_items_free(fl_choice *c);
/* Text as parts come, gathered: of every item of the kind. */
bool fl_item_put(const fl_choice *c, fl_item_kind kind, fl_buf *out);

/* chores.c: how many tokens a prompt has, in Anthropic's form. */
bool fl_chore_count(fl_job *j, fl_buf *out, fl_refusal *r);

/* Sums over the choices. */
int64_t fl_job_tokens(const fl_job *j);
int64_t fl_job_reasoning_tokens(const fl_job *j);

#endif
