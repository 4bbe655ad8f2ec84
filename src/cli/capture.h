/* Captures what a prompt run shows: logits, the running sum after each layer, the positions that
 * each indexer selected.  Used by --dump and by verify. */
#ifndef FL_CLI_CAPTURE_H
#define FL_CLI_CAPTURE_H

#include "cli/cli.h"

typedef struct cli_capture {
    int64_t n_prompt;   /* rows of the run */
    int64_t keep;       /* the last `keep` rows of logits and taps are kept */
    const int32_t *ids; /* the prompt, for logprob_next */
    int64_t vocab, hidden, topk;
    int n_layers, n_select;
    float *logits;       /* [keep, vocab] */
    float *layers;       /* [n_layers, keep, hidden] */
    int32_t *select;     /* [n_select, keep, topk], ascending, -1 beyond the end */
    int32_t *argmax;     /* [n_prompt] */
    float *logprob_next; /* [n_prompt - 1]: log-probability of the token that follows */
    int64_t *layer_rows, *select_rows; /* rows seen so far of each tap */
} cli_capture;

/* Prepares for a prompt of n ids on the model of m.  Everything is freed by cli_capture_free. */
FL_MUST_CHECK fl_status cli_capture_init(cli_capture *c, const cli_model *m, const int32_t *ids,
                                         int64_t n, int64_t keep, fl_error *err);
/* Runs the prompt alone and fills the capture. */
FL_MUST_CHECK fl_status cli_capture_run(cli_capture *c, const cli_model *m, fl_error *err);
void cli_capture_free(cli_capture *c);

/* As an fl_request's on_rows and tap, with the capture as context. */
void cli_capture_rows(void *ctx, int64_t pos, int32_t n, const float *logits);
void cli_capture_tap(void *ctx, const char *kind, int index, const fl_arg *value, int32_t rows);

/* --dump: logits [keep, vocab] and layers [layer, keep, hidden] as float32 safetensors. */
FL_MUST_CHECK fl_status cli_capture_write(const cli_capture *c, const char *path, fl_error *err);

#endif
