/* Inside the engine room: requests, the step under construction, and the engine itself. */
#ifndef FL_ENGINE_INTERNAL_H
#define FL_ENGINE_INTERNAL_H

#include "engine/engine.h"
#include "engine/sampler_internal.h"

/* One answer in the making.  Its text is the prompt of the request, then what it said.  It is in
 * its prompt while run < n_prompt, then it decodes: the last token it said is the only one that has
 * not run yet. */
typedef struct fl_choice {
    fl_request *request;
    int index;
    int64_t run;    /* tokens of the text that have run */
    int32_t *said;  /* [max_tokens] */
    int64_t n_said; /* tokens given */
    fl_sampler sampler;
    fl_seq seq;       /* FL_NONE before the fork and after the end */
    fl_finish finish; /* NONE while alive */
} fl_choice;

/* One choice, the first, runs the prompt for all; the others are forks of it. */
struct fl_request {
    fl_request_params p; /* prompt and stop_ids are the request's own copies */
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
    bool prompt;              /* a piece of its prompt; else the token it gave last */
} fl_share;

/* Options with every default filled in and every range checked. */
typedef struct fl_engine_sizes {
    fl_plan_options plan;
    fl_state_limits state;
    int32_t chunk;
    int32_t shown_logits; /* logit rows of prompts with on_rows in one step */
} fl_engine_sizes;

struct fl_engine {
    int64_t vocab;
    fl_engine_sizes sizes;
    fl_device *device; /* NULL: the host */
    char device_text[240];
    fl_plan *plan;
    fl_pool *pool;
    fl_state *state;
    fl_sample_scratch scratch;

    /* Choices with a sequence, the one whose prompt has waited longest first. */
    fl_choice **live; /* [n_seqs] */
    int n_live;
    fl_request *ended; /* freed when the outermost call returns: callbacks may still name them */
    int depth;         /* calls into the engine that are under way */
    bool stepping;

    fl_step step;
    int32_t *ids, *row_seq; /* [max_rows] */
    fl_seq_rows *seqs;      /* [n_seqs] */
    int32_t *logit_rows;    /* [max_logits] */
    fl_share *shares;       /* [n_seqs]; one per sequence of the step */
};

/* options.c */
FL_MUST_CHECK fl_status fl_engine_resolve(const fl_graph *g, int64_t model_context,
                                          const fl_engine_options *o, fl_engine_sizes *out,
                                          fl_error *err);
FL_MUST_CHECK fl_status fl_engine_predict_graph(const fl_graph *g, int64_t model_context,
                                                const fl_engine_options *o, fl_engine_memory *out,
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
/* Ends a choice: settles its sequence, takes it off the live ones and delivers the event, whose
 * finish is set.  With its last choice the request ends. */
void fl_choice_end(fl_engine *e, fl_choice *c, fl_token_event *event);
/* Those that wait for the prompt that c runs fail with it. */
void fl_choice_fail(fl_engine *e, fl_choice *c, const fl_error *why);
/* The prompt has run in c: gives the other choices of its request sequences of their own. */
void fl_choice_fork(fl_engine *e, fl_choice *c);
void fl_request_free(fl_request *r); /* NULL is allowed */

/* batch.c: composes e->step and e->shares from the live requests; false when there is nothing. */
bool fl_engine_compose(fl_engine *e);

#endif
