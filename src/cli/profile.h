/* Where the time of steps goes: what `bench --profile` prints. */
#ifndef FL_CLI_PROFILE_H
#define FL_CLI_PROFILE_H

#include "engine/engine.h"

typedef enum cli_profile_part {
    CLI_PROFILE_PROMPT,
    CLI_PROFILE_GENERATION,
    CLI_PROFILE_PARTS
} cli_profile_part;

/* Microseconds by node of the graph.  All zero: off, and _take does nothing. */
typedef struct cli_profile {
    fl_engine *engine;
    const fl_graph *graph;
    int64_t *now; /* since the last _take */
    int64_t *part[CLI_PROFILE_PARTS];
} cli_profile;

FL_MUST_CHECK fl_status cli_profile_begin(cli_profile *p, fl_engine *e, const fl_graph *g,
                                          fl_error *err);
/* Counts what has run since the last time for a part. */
void cli_profile_take(cli_profile *p, cli_profile_part part);
/* A line for each kernel and type of constant: time, share and, by the cost rules for `sizes`,
 * operations and bytes per second.  n: how many prompts or steps the part holds. */
FL_MUST_CHECK fl_status cli_profile_print(const cli_profile *p, cli_profile_part part, double n,
                                          const fl_sizes *sizes, fl_error *err);
void cli_profile_end(cli_profile *p); /* before the engine is destroyed */

#endif
