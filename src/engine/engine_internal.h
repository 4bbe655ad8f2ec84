/* Inside the engine room: requests, the step under construction, and the engine itself. */
#ifndef FL_ENGINE_INTERNAL_H
#define FL_ENGINE_INTERNAL_H

#include "base/clock.h"
#include "engine/engine.h"
#include "engine/sampler_internal.h"

typedef enum fl_phase {
    FL_BEHIND,  /* its prompt runs in another choice, whose fork it will be */
    FL_WAITING, /* for a place: has nothing in the state but what it was given (keep_from) */
    FL_RUNNING, /* has a sequence and is in every step that has room for it */
    FL_OVER
} fl_phase;

enum { FL_MARKS = 4 };

/* One answer in the making.  Its text is the prompt of the request, then what it said.  All of it
 * has to run before the next token can be drawn: first the prompt, then, when the state was given
 * up on the way, what was said before, and normally the one token it said last. */
typedef struct fl_choice {
    fl_request *request;
    int index;
    fl_phase phase;
    int64_t run;    /* tokens of the text that are in the state */
    int64_t high;   /* the most that `run` has been */
    int32_t *said;  /* [max_tokens] */
    int64_t n_said; /* tokens given */
    fl_sampler sampler;
    fl_seq seq;              /* FL_NONE without one */
    fl_block last_block;     /* of the prompt, in the prefix index */
    int64_t marks[FL_MARKS]; /* where the prompt stops to have its record kept */
    int n_marks;
    bool deferred;          /* this turn: it waits for what another is running */
    int64_t last_piece;     /* number of the step that ran its last rows */
    fl_finish finish;       /* NONE while alive */
    struct fl_choice *next; /* of the waiting */
} fl_choice;

/* Who shares the machine: exists while it has requests. */
typedef struct fl_client {
    uint64_t id;
    int64_t served; /* rows run for it, counted from where it came in */
    int n_requests;
    struct fl_client *next;
} fl_client;

/* One choice, the first, runs the prompt for all; the others are forks of it. */
struct fl_request {
    fl_request_params p; /* prompt and stop_ids are the request's own copies */
    int64_t number;      /* in order of arrival */
    int64_t submitted;   /* clock */
    fl_client *client;
    bool started;        /* has had a place */
    bool shared;         /* finds and leaves prefixes */
    bool settles;        /* an answer that runs again as a prompt; runs alone */
    int64_t cached;      /* tokens found when it started */
    bool pinned;         /* cannot be replayed: all its rows are reserved and it keeps its place */
    fl_seq kept;         /* FL_NONE before the end */
    int n_alive;         /* choices that have not ended */
    fl_request *next;    /* in the list of the ended */
    fl_choice choices[]; /* [p.n] */
};

/* What one choice has in the step. */
typedef struct fl_share {
    fl_choice *choice;
    int32_t row0, n_rows;
    int32_t logit0, n_logits; /* rows of the logits that are its own */
    bool prompt;              /* a piece of its prompt; else of what it said */
} fl_share;

/* Options with every default filled in and every range checked. */
typedef struct fl_engine_sizes {
    fl_plan_options plan;
    fl_state_limits state;
    int32_t chunk;
    int32_t shown_logits; /* logit rows of prompts with on_rows in one step */
    int32_t max_waiting, max_prefixes;
    bool settle;
    fl_store_options store; /* of the caller's: dir is valid during creation only */
    fl_clock_fn clock;
    void *clock_ctx;
} fl_engine_sizes;

struct fl_engine {
    int64_t vocab;
    fl_engine_sizes sizes;
    fl_device *device; /* NULL: the host */
    char device_text[400];
    fl_plan *plan;
    fl_pool *pool;
    fl_state *state;
    fl_prefix *prefix;      /* NULL: none */
    fl_prefix_store *store; /* NULL: none */
    bool store_failed;      /* the last save: no more by itself */
    fl_sample_scratch scratch;
    fl_engine_stats stats; /* what only grows; the rest is filled in when asked for */

    fl_choice **live; /* [n_seqs] the running ones, in the order of compose */
    int n_live;
    fl_choice *waiting; /* in order of arrival */
    int n_waiting;
    int n_settling; /* of the waiting */
    fl_client *clients;
    int64_t arrivals;  /* requests taken so far */
    fl_request *ended; /* freed when the outermost call returns: callbacks may still name them */
    int depth;         /* calls into the engine that are under way */
    bool stepping;

    fl_step step;
    int32_t *ids, *row_seq; /* [max_rows] */
    fl_seq_rows *seqs;      /* [n_seqs] */
    int32_t *logit_rows;    /* [max_logits] */
    fl_share *shares;       /* [n_seqs]; one per sequence of the step */
};

/* Tokens of a choice's text that are known. */
static inline int64_t fl_choice_known(const fl_choice *c)
{
    return c->request->p.n_prompt + c->n_said;
}

static inline bool fl_choice_in_prompt(const fl_choice *c)
{
    return c->run < c->request->p.n_prompt;
}

static inline int64_t fl_engine_now(const fl_engine *e)
{
    return e->sizes.clock ? e->sizes.clock(e->sizes.clock_ctx) : fl_clock_us();
}

/* options.c */
FL_MUST_CHECK fl_status fl_engine_resolve(const fl_graph *g, int64_t model_context,
                                          const fl_engine_options *o, fl_engine_sizes *out,
                                          fl_error *err);
FL_MUST_CHECK fl_status fl_engine_predict_graph(const fl_graph *g, int64_t model_context,
                                                const fl_engine_options *o, fl_engine_memory *out,
                                                fl_error *err);
/* fit.c */
FL_MUST_CHECK fl_status fl_engine_fit_graph(const fl_graph *g, int64_t model_context,
                                            int64_t weights, int64_t ram, fl_engine_options *o,
                                            fl_error *err);
int64_t fl_engine_array_bytes(const fl_engine_sizes *z, int64_t vocab);
/* The state specs of a graph; *out is allocated (fl_free). */
FL_MUST_CHECK fl_status fl_engine_specs(const fl_graph *g, fl_state_spec **out, fl_error *err);

/* engine.c: fl_engine_create for a graph that came from anywhere. */
FL_MUST_CHECK fl_status fl_engine_create_graph(const fl_graph *g, int64_t model_context,
                                               const fl_engine_options *o, fl_engine **out,
                                               fl_error *err);

/* request.c */
void fl_engine_enter(fl_engine *e);
void fl_engine_leave(fl_engine *e); /* frees ended requests when it is the outermost */
/* Ends a choice: settles its sequence, takes it out of the queue and delivers the event, whose
 * finish is set.  With its last choice the request ends. */
void fl_choice_end(fl_engine *e, fl_choice *c, fl_token_event *event);
/* Those that wait for the prompt that c runs fail with it. */
void fl_choice_fail(fl_engine *e, fl_choice *c, const fl_error *why);
void fl_request_end(fl_engine *e, fl_request *r, fl_finish finish); /* all its choices */
void fl_request_free(fl_request *r);                                /* NULL is allowed */

/* Takes in a request that runs when there is nothing else to do; a failure is silent. */
void fl_request_settle(fl_engine *e, const fl_request_params *p);

/* reuse.c: prefixes. */
/* The choice has an empty sequence: moves it, and c->run, to the deepest point that is known. */
void fl_reuse_begin(fl_engine *e, fl_choice *c);
int64_t
fl_reuse_stop(const fl_choice *c); /* where the next piece of its prompt ends at the latest */
void fl_reuse_ran(fl_engine *e, fl_choice *c);         /* a piece of its prompt */
bool fl_reuse_make_room(fl_engine *e, int64_t tokens); /* that are free then */
bool fl_reuse_defers(fl_engine *e, const fl_choice *c);
void fl_reuse_settle(fl_engine *e, const fl_choice *c); /* c has ended */
bool fl_reuse_save_one(fl_engine *e);                   /* false: nothing is left to save */
void fl_reuse_load(fl_engine *e, const fl_choice *c);   /* what the disk has and memory has not */
bool fl_reuse_is_settled(const fl_engine *e, const fl_choice *c);
void fl_reuse_park(fl_engine *e, const fl_choice *c); /* it will lose its place */

/* queue.c: who has a place. */
FL_MUST_CHECK fl_status fl_queue_join(fl_engine *e, fl_request *r, uint64_t client, fl_error *err);
void fl_queue_part(fl_engine *e, fl_request *r); /* its client's count; NULL client is allowed */
void fl_queue_leave(fl_engine *e, fl_choice *c); /* takes it off the running or waiting ones */
void fl_queue_wait(fl_engine *e, fl_choice *c);
/* Gives a choice that is not in the queue a sequence with its rows and makes it run; FL_BUSY, and
 * nothing changed, when there is no room. */
FL_MUST_CHECK fl_status fl_queue_start(fl_engine *e, fl_choice *c, fl_error *err);
/* `to` takes the place of `from`, wherever that is, and its sequence. */
void fl_queue_replace(fl_engine *e, fl_choice *from, fl_choice *to);
/* The prompt has run in c: gives the choices behind it forks of its sequence, or has them wait. */
void fl_queue_fork(fl_engine *e, fl_choice *c);
/* Before a step: ends what is out of time, finds the decoding choices the rows they need (others
 * may lose their places), and lets waiting ones in. */
void fl_queue_turn(fl_engine *e);

/* batch.c: composes e->step and e->shares from the running choices; false when there is nothing. */
bool fl_engine_compose(fl_engine *e);

#endif
