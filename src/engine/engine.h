/* The engine room: requests in, tokens out.
 *
 * An engine owns a plan, a thread pool and a state manager for one model and runs steps that mix
 * prompt chunks and single tokens of several requests.  Requests that find no room wait for it in a
 * bounded queue.  Steps are composed so that a result never depends on who shares them.
 * Single-threaded: one thread calls submit, step and cancel. */
#ifndef FL_ENGINE_H
#define FL_ENGINE_H

#include "engine/sampler.h"
#include "graph/plan.h"
#include "model/model.h"
#include "state/prefix_store.h"

typedef struct fl_engine fl_engine;
typedef struct fl_request fl_request;

typedef int64_t (*fl_clock_fn)(void *ctx);

typedef struct fl_engine_options {
    int threads;          /* 0: all processors */
    int max_seqs;         /* answers running and sequences kept at once; 0: 8 */
    int max_waiting;      /* requests that may wait for room; 0: none */
    int chunk;            /* prompt rows of a step at most, a multiple of FL_PAGE_TOKENS; 0: 256.
                             Decoding requests add a row each. */
    int64_t max_context;  /* tokens of one sequence; 0: what the model says, at most 65536 */
    int64_t cache_tokens; /* token rows over all sequences; 0: one whole context, and at least 8192
                             (or the context) for each of max_seqs */
    int max_snapshots;    /* recurrent records that callers may keep in fl_engine_state; 0: none */
    int max_prefixes; /* recurrent records of beginnings of prompts that are kept to resume from;
                         0: none, and prompts always run from the start */
    const char *prefix_dir; /* where prefixes are saved and found again (copied); NULL: nowhere */
    int64_t prefix_disk;    /* bytes of it to use at most; 0: no limit */
    fl_note_fn note;        /* told what an operator should know about these files; may be NULL */
    void *note_ctx;
    uint64_t fingerprint; /* of the model; fl_engine_create sets it */
    bool settle;          /* run answers again as prompts while there is nothing else to do, so that
                             the next turn of a conversation resumes behind them */
    bool fast;            /* precision fast */
    fl_isa isa;           /* highest level to use; FL_ISA_COUNT: this machine's */
    const char *kernels;  /* fl_plan_options.kernels */
    const fl_choices *choices; /* fl_plan_options.choices; must outlive the engine */
    /* Where to run (ops/device.h): "auto" takes a GPU that can run the model and has room for it,
     * else the CPU; "cuda" insists; NULL: the CPU.  isa and threads are for the CPU and what it
     * computes for a GPU. */
    const char *device;
    int64_t device_memory;   /* bytes of it to use at most; 0: all that are free */
    fl_device *given_device; /* instead of `device`: one that is open.  The engine takes it over,
                                also when it cannot be made. */
    fl_clock_fn clock;       /* microseconds for deadlines and statistics; NULL: the machine's */
    void *clock_ctx;
} fl_engine_options;

fl_engine_options fl_engine_options_default(void); /* this machine's level, 0 elsewhere */

/* Memory by part before anything is allocated.  workspace: intermediates, scratch and the step's
 * own arrays; state: the whole cache, although it is touched only as it is used.  With given_device
 * (which stays the caller's) these are what the host keeps, and device is what is taken there:
 * weights, workspace and state. */
typedef struct fl_engine_memory {
    int64_t weights, workspace, state, total;
    int64_t device; /* not in total */
} fl_engine_memory;
FL_MUST_CHECK fl_status fl_engine_predict(const fl_model *m, const fl_engine_options *o,
                                          fl_engine_memory *out, fl_error *err);

/* Sets cache_tokens to what `ram` bytes hold besides weights, workspace and records (the caller's
 * own needs are not in it), and max_context, if it was 0, to no more than that.  An engine with
 * these options never takes more.  FL_ARGUMENT, with the parts, when they do not hold max_context.
 */
FL_MUST_CHECK fl_status fl_engine_fit(const fl_model *m, int64_t ram, fl_engine_options *o,
                                      fl_error *err);

/* The model must outlive the engine. */
FL_MUST_CHECK fl_status fl_engine_create(const fl_model *m, const fl_engine_options *o,
                                         fl_engine **out, fl_error *err);
void fl_engine_destroy(fl_engine *e); /* NULL is allowed; ends all requests without calling back */

typedef enum fl_finish {
    FL_FINISH_NONE,
    FL_FINISH_STOP,
    FL_FINISH_LENGTH,
    FL_FINISH_CANCEL,
    FL_FINISH_ERROR,
    FL_FINISH_TIMEOUT, /* max_us, or max_wait_us */
    FL_FINISH_COUNT
} fl_finish;

/* One generated token, or the end of an answer. */
typedef struct fl_token_event {
    fl_request *request;
    int choice;            /* which of the n answers to the prompt */
    int32_t id;            /* FL_NO_TOKEN with the end of an answer that gave no token this time */
    float logprob;         /* of id, when asked for */
    const fl_logprob *top; /* the n_top most probable, valid during the call */
    int n_top;
    fl_finish finish; /* not NONE: this was the last event of the choice */
    bool last;        /* and of the request: no other choice is alive */
    fl_error error;   /* with FL_FINISH_ERROR */
} fl_token_event;

/* Callbacks run inside fl_engine_step (and the end of a cancelled request inside fl_engine_cancel).
 * They may submit and cancel, their own request too, but not step or destroy. */
typedef void (*fl_token_fn)(void *ctx, const fl_token_event *event);

/* Sees the logits of prompt rows (perplexity, dumps): [n, vocab] for positions pos .. pos + n - 1.
 */
typedef void (*fl_rows_fn)(void *ctx, int64_t pos, int32_t n, const float *logits);

/* Says which tokens may come next in a choice that has given answer[n] so far: clears bits of
 * allowed, where token id is bit id % 32 of word id / 32 and every bit is set before the call.
 * Called once before each draw; must not call the engine.  A failure ends the choice with it. */
typedef fl_status (*fl_mask_fn)(void *ctx, int choice, const int32_t *answer, int64_t n,
                                uint32_t *allowed, fl_error *err);

typedef struct fl_request_params {
    const int32_t *prompt; /* copied */
    int64_t n_prompt;      /* >= 1; with keep_from the tokens after the kept ones */
    int64_t max_tokens;    /* of each answer; 0: run the prompt only */
    int n; /* answers to the one prompt, which runs once; choice i draws with seed + i; 0: 1 */
    const int32_t *stop_ids; /* copied; ids that end the answer (reported, then STOP) */
    size_t n_stop;
    fl_sampling sampling;
    fl_token_fn on_token; /* may be NULL */
    void *ctx;
    fl_mask_fn mask; /* may be NULL */
    void *mask_ctx;
    fl_rows_fn on_rows; /* not NULL: logits of every prompt row are computed and shown */
    void *rows_ctx;
    fl_tap_fn tap; /* not NULL: sees the taps of every step this request is in, its own rows only */
    void *tap_ctx;
    fl_seq keep_from; /* a kept sequence to continue, or FL_NONE; consumed when submit succeeds */
    bool keep;        /* keep the sequence at the end: fl_request_kept */
    /* With keep, keep_from, on_rows or tap there is one choice only, and the rows of the whole
     * request are reserved before it starts. */

    uint64_t client; /* opaque: clients share the machine equally */
    uint64_t salt;   /* prompts find beginnings of others that have the same salt */
    int priority;    /* lower first, also when memory runs short */
    /* Microseconds from submit, after which the request ends with FL_FINISH_TIMEOUT: if it has not
     * begun to run; in any case.  0: no limit. */
    int64_t max_wait_us, max_us;
} fl_request_params;

fl_request_params fl_request_params_default(void); /* greedy, no kept sequence, 0 elsewhere */

/* Takes a request in.  One that was taken never runs out of memory: it may lose its place to others
 * on the way, and then runs again what it needs, without a change to what it says.  FL_BUSY when
 * there is no room at this moment and max_waiting are waiting already; FL_ARGUMENT when it can
 * never fit, or a token id is outside the vocabulary.  *out is valid until the last event has been
 * delivered. */
FL_MUST_CHECK fl_status fl_engine_submit(fl_engine *e, const fl_request_params *p, fl_request **out,
                                         fl_error *err);
void fl_engine_cancel(fl_engine *e, fl_request *r); /* its last event comes before this returns */
void fl_engine_cancel_choice(fl_engine *e, fl_request *r, int choice); /* likewise, one answer */
/* Runs one step if there is work; *busy tells whether requests remain.  A failed step ends the
 * requests in it with FL_FINISH_ERROR, is also returned, and leaves the engine usable.  A step in
 * which requests remain and none has room (kept sequences hold all of it) runs nothing. */
FL_MUST_CHECK fl_status fl_engine_step(fl_engine *e, bool *busy, fl_error *err);

/* Tokens of the prompt that have run so far, or need not: fl_request_cached of them were found
 * where another request had left them (0 until it starts).  Kept ones are not counted. */
int64_t fl_request_done(const fl_request *r);
int64_t fl_request_cached(const fl_request *r);
bool fl_request_started(const fl_request *r); /* it has had room */

/* What the engine is doing and has done. */
typedef struct fl_engine_stats {
    int running, waiting;          /* answers that have room, or wait for it */
    int64_t tokens, free_tokens;   /* rows of the cache, and those not in use */
    int64_t steps;                 /* that ran rows */
    int64_t step_us, last_step_us; /* time in all of them, in the last */
    int64_t progress_us;           /* clock at the end of the last (or at creation) */
    int64_t now_us;                /* clock at the time of asking */
    int64_t prompt_tokens;         /* run; what was run again is not counted */
    int64_t generated_tokens;
    int64_t replayed_tokens;                 /* run again after their place was lost */
    int64_t preemptions;                     /* places lost */
    int64_t settled_tokens;                  /* run as prompts again by themselves */
    int64_t prefixes_saved, prefixes_loaded; /* on disk, from disk */
    int64_t prefix_queries,
        prefix_hits; /* tokens of prompts that began to run, and found of them */
    fl_prefix_stats prefix;
    int64_t finished[FL_FINISH_COUNT]; /* answers by how they ended */
} fl_engine_stats;
void fl_engine_get_stats(const fl_engine *e, fl_engine_stats *out);

/* With `keep`: valid inside the last event; the sequence then belongs to the caller, who continues
 * it (keep_from) or releases it.  It holds every token that was run: prompt and answer but for the
 * last token of the answer, which the next prompt begins with (fl_state_pos tells).  FL_NONE after
 * an error. */
fl_seq fl_request_kept(const fl_request *r);
/* Saves all prefixes that are not on disk yet (an idle engine does it by itself, one a step).
 * *n tells how many; with FL_OK they are there to stay.  FL_BUSY when no sequence is free. */
FL_MUST_CHECK fl_status fl_engine_save_prefixes(fl_engine *e, int64_t *n, fl_error *err);
fl_state *fl_engine_state(fl_engine *e);
const fl_plan *fl_engine_plan(const fl_engine *e);
void fl_engine_profile(fl_engine *e, int64_t *us); /* fl_plan_profile of its plan */
/* Where it runs, and why not elsewhere: "cuda:0 NVIDIA H200, 139.8 GiB", "cpu (no GPU: ...)". */
const char *fl_engine_device(const fl_engine *e);

#endif
