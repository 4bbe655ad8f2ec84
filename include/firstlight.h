/* Firstlight: one C library that opens a checkpoint folder as it was downloaded and runs it.
 *
 * The whole in one page:
 *
 *     fl_context *c;
 *     fl_error err;
 *     if (fl_open("models/firstlight-tiny", NULL, &c, &err) != FL_OK)
 *         fail(err.message);
 *     fl_prompt p = fl_prompt_default();
 *     p.user = "Good morning!";
 *     fl_generate(c, &p, show, NULL, NULL, &err);   // show() gets the answer as it comes
 *     fl_close(c);
 *
 * fl_open maps the checkpoint, builds the model's graph from its definition (a Lua file that comes
 * with the installation), lays out a plan for this machine and allocates everything that running
 * needs.  fl_generate renders a prompt in the model's chat format, or takes text or token ids as
 * they are, and calls back with the answer.
 *
 * A function that can fail returns fl_status (FL_OK is 0) and, when the caller passes an fl_error,
 * writes there what went wrong and what to do about it.  The library never prints, never exits and
 * never aborts, and every failure leaves it usable.  A context is used by one thread at a time;
 * contexts are independent of each other.
 */
#ifndef FIRSTLIGHT_H
#define FIRSTLIGHT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Every status the library returns, with the words fl_status_text gives for it. */
#define FL_STATUS_MAP(X)                                                                           \
    X(OK, "success")                                                                               \
    X(NOMEM, "out of memory")                                                                      \
    X(IO, "input or output error")                                                                 \
    X(FORMAT, "malformed input")                                                                   \
    X(CONFIG, "bad model configuration")                                                           \
    X(MODEL, "error in a model definition")                                                        \
    X(UNSUPPORTED, "not supported")                                                                \
    X(NOTFOUND, "not found")                                                                       \
    X(ARGUMENT, "bad argument")                                                                    \
    X(BUSY, "no room at this moment")                                                              \
    X(CANCELLED, "cancelled")                                                                      \
    X(NUMERIC, "a result is not a finite number")                                                  \
    X(MISMATCH, "results differ")                                                                  \
    X(DEVICE, "the device failed")                                                                 \
    X(INTERNAL, "internal error")

typedef enum fl_status {
#define FL_STATUS_ENUM(name, text) FL_##name,
    FL_STATUS_MAP(FL_STATUS_ENUM)
#undef FL_STATUS_ENUM
} fl_status;

#if defined(__GNUC__)
#define FL_MUST_CHECK __attribute__((warn_unused_result))
#define FL_PRINTF(fmt, args) __attribute__((format(printf, fmt, args)))
#define FL_API __attribute__((visibility("default")))
#else
#define FL_MUST_CHECK
#define FL_PRINTF(fmt, args)
#define FL_API
#endif

/* Where a failing function writes the detail: one sentence that names the file, tensor, key or
 * argument, the cause, and a hint.  Owned by the caller; never needs freeing. */
typedef struct fl_error {
    fl_status status;
    char message[496];
} fl_error;

/* "malformed input" for FL_FORMAT; never NULL. */
FL_API const char *fl_status_text(fl_status status);

/* "0.1.0" */
FL_API const char *fl_version(void);

/* ---- opening ---- */

typedef struct fl_context fl_context; /* a model ready to run */

/* How the attention cache is kept: float32, which is exact, or with less memory and rounded.  FP8
 * is E4M3, INT8 signed bytes, both with a scale for each 128 elements; the keys that a
 * sparse-attention selector scores are signed bytes in both. */
typedef enum fl_kv { FL_KV_F32, FL_KV_BF16, FL_KV_FP8, FL_KV_INT8 } fl_kv;

/* {0} is the default of every field. */
typedef struct fl_open_options {
    int threads;     /* processors to use; 0: all */
    int64_t context; /* tokens of one conversation; 0: as much as the model and the default
                        memory limit allow */
    int layers;      /* > 0: run the first layers only */
    bool fast;       /* 8-bit activations in the routed experts, BF16 in other products */
    bool dense;      /* ignore sparse-attention selectors */
    bool trunk_q8;   /* keep the weights outside the routed experts in 8 bits, half of BF16 */
    fl_kv kv;        /* how the attention cache is kept */
    const char *definition; /* a model definition to use instead of the installed ones */
} fl_open_options;

/* Opens a checkpoint folder.  options may be NULL.  *out is owned by the caller: fl_close. */
FL_API FL_MUST_CHECK fl_status fl_open(const char *path, const fl_open_options *options,
                                       fl_context **out, fl_error *err);
FL_API void fl_close(fl_context *c); /* NULL is allowed */

/* ---- generating ---- */

typedef struct fl_prompt {
    /* Exactly one of these four: */
    const char *user;     /* a user's message, rendered in the model's chat format */
    const char *messages; /* OpenAI chat messages as JSON text, rendered likewise */
    const char *raw;      /* the whole prompt as text, special tokens included */
    const int32_t *ids;   /* the whole prompt as n_ids token ids */
    int64_t n_ids;

    const char *system; /* with user: a system message before it, or NULL */
    const char *effort; /* thinking effort ("low", "high", "max"), or NULL: do not think */
    int64_t max_tokens; /* 0 runs the prompt only */
    float temperature;  /* 0: the most probable token */
    float top_p;        /* 1: off */
    int32_t top_k;      /* 0: off */
    uint64_t seed;
} fl_prompt;

FL_API fl_prompt fl_prompt_default(void); /* 512 tokens, greedy, no thinking */

typedef enum fl_piece_kind {
    FL_PIECE_CONTENT,
    FL_PIECE_REASONING,
    FL_PIECE_TOOL_CALL
} fl_piece_kind;

/* Called with each piece of the answer: whole UTF-8 characters, len bytes, valid during the call.
 * A tool call comes as one piece, {"name": ..., "arguments": {...}}.  Returning false stops. */
typedef bool (*fl_piece_fn)(void *ctx, fl_piece_kind kind, const char *text, size_t len);

typedef struct fl_usage {
    int64_t prompt_tokens, completion_tokens;
    bool stopped; /* the model ended its answer (else max_tokens, or the callback, did) */
} fl_usage;

/* Runs one prompt to its end.  usage may be NULL. */
FL_API FL_MUST_CHECK fl_status fl_generate(fl_context *c, const fl_prompt *prompt,
                                           fl_piece_fn piece, void *ctx, fl_usage *usage,
                                           fl_error *err);

/* ---- tokens ---- */

/* *ids is allocated: fl_ids_free.  specials: named special tokens in the text become their ids. */
FL_API FL_MUST_CHECK fl_status fl_tokenize(fl_context *c, const char *text, size_t len,
                                           bool specials, int32_t **ids, size_t *n, fl_error *err);
FL_API void fl_ids_free(int32_t *ids);
/* The bytes of a token, not terminated, owned by the context; NULL for an id without one. */
FL_API const char *fl_token_bytes(fl_context *c, int32_t id, size_t *len);

#ifdef __cplusplus
}
#endif
#endif
