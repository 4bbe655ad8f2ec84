/* Inside the engine room: running a grammar.  A configuration is a set of stacks, all ways in which
 * what was read so far may be understood; a stack is a frame and its parents. */
#ifndef FL_ENGINE_MATCHER_INTERNAL_H
#define FL_ENGINE_MATCHER_INTERNAL_H

#include "engine/grammar_internal.h"

/* parent -1: the bottom, behind which a document is complete. */
typedef struct fl_frame {
    int32_t node, count, parent, depth;
} fl_frame;

/* Frames and stacks grow while bytes are tried and are cut back afterwards.  A stack is the index
 * of its top frame, whose node takes a byte or a control token. */
typedef struct fl_run {
    const fl_grammar *g;
    FL_VEC(fl_frame) frames;
    FL_VEC(int32_t) stacks;
    FL_VEC(fl_frame) todo;
    bool exited;        /* the last move took a stack beyond its bottom */
    int32_t exit_count; /* with this counter */
    bool free;          /* count, but heed no bounds */
    int64_t work;
    fl_status status; /* FL_NOMEM; FL_ARGUMENT: more ways than can be followed */
} fl_run;
void fl_run_free(fl_run *r);

/* Adds to the stacks (those from index `set` on are one configuration) all that f becomes by moves
 * that take nothing. */
void fl_run_settle(fl_run *r, fl_frame f, size_t set);
/* Adds what the stacks [begin, end) become by one byte. */
void fl_run_byte(fl_run *r, size_t begin, size_t end, uint8_t byte);
/* The same by a control token. */
void fl_run_mark(fl_run *r, size_t begin, size_t end, int32_t token);
/* Whether the edge may be taken from f; *count is the counter behind it. */
bool fl_run_may(const fl_run *r, const fl_frame *f, const fl_edge *e, int32_t *count);
bool fl_run_may_enter(const fl_run *r, int32_t node, int32_t count, int32_t depth);

typedef struct fl_choice_state {
    fl_run run;
    bool complete, begun;
    int64_t n; /* tokens of the answer that were read */
} fl_choice_state;

typedef struct fl_level {
    size_t begin, end, frames;
} fl_level;

/* A token that a walk found to fit, or a node of the trie where the frame is left, with the lowest
 * counter of the stacks there. */
typedef struct fl_text_hit {
    int32_t what;
    int32_t count;
} fl_text_hit;

struct fl_matcher {
    fl_grammar *g;
    int n_choices;
    int32_t *stop_ids;
    size_t n_stop;
    FL_VEC(int32_t) map, slots;      /* scratch of compaction */
    FL_VEC(fl_text_hit) hits, exits; /* scratch of a walk: tokens that fit, exits */
    fl_level *levels;                /* [longest token + 1] */
    fl_choice_state choices[];
};

/* Walks the part of the trie below node `root` with the stacks [begin, end) of the run, which it
 * leaves as it was.  Tokens that stay inside go to hits and, with `local`, nodes at which the
 * bottom was passed to exits; without it tokens that pass the bottom are hits.  Returns the nodes
 * looked at. */
int32_t fl_mask_walk(fl_matcher *m, fl_run *r, int32_t root, size_t begin, size_t end, bool local);

/* The whole trie with one frame, whose parent is -1: fills hits and exits. */
int32_t fl_mask_walk_frame(fl_matcher *m, fl_run *r, fl_frame alone);

/* text_walk.c: the frame is one of a rule with a shape.  Sets in allowed the bits of the tokens
 * that it takes, and leaves in m->exits the places where it is left, if
 * these are wanted. */
void fl_text_walk_fill(fl_matcher *m, fl_run *r, const fl_frame *f, bool exits, uint32_t *allowed);

/* mask.c: sets in allowed the bits of the tokens that the configuration takes. */
void fl_mask_fill(fl_matcher *m, fl_choice_state *c, uint32_t *allowed);

#endif
