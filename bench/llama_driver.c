/* llama.cpp beside Firstlight: what bench/vs_llamacpp.py builds against a llama.cpp tree.
 *
 *   llama_driver MODEL.gguf THREADS logits IDS_FILE OUT   float32 logits of every position
 *   llama_driver MODEL.gguf THREADS prompt N RUNS         tokens/s of a prompt, best of RUNS
 *   llama_driver MODEL.gguf THREADS generate BATCH CONTEXT N [STATE]
 *                                tokens/s of BATCH sequences after CONTEXT tokens, N steps; the
 * state of a sequence after them is read from the file STATE, or written there first
 *
 * Speeds are of llama_decode alone; token ids are arbitrary, nothing is sampled. */
#include "llama.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { CHUNK = 512 };

static struct llama_model *model;
static int threads, vocab;
static unsigned long long state = 1;

static void die(const char *what)
{
    fprintf(stderr, "llama_driver: %s\n", what);
    exit(1);
}

static double seconds(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static int next_id(void)
{
    state = state * 6364136223846793005u + 1442695040888963407u;
    return (int)((state >> 33) % (unsigned)vocab);
}

static struct llama_context *open_context(int tokens, int seqs)
{
    struct llama_context_params p = llama_context_default_params();
    p.n_ctx = (unsigned)(tokens + 256) * (unsigned)seqs;
    p.n_batch = CHUNK;
    p.n_ubatch = CHUNK;
    p.n_seq_max = (unsigned)seqs;
    p.n_threads = p.n_threads_batch = threads;
    p.no_perf = true;
    struct llama_context *c = llama_init_from_model(model, p);
    if (!c)
        die("no context");
    return c;
}

static void put(struct llama_batch *b, int id, int position, int seq, bool logits)
{
    int i = b->n_tokens++;
    b->token[i] = id;
    b->pos[i] = position;
    b->n_seq_id[i] = 1;
    b->seq_id[i][0] = seq;
    b->logits[i] = logits;
}

static void decode(struct llama_context *c, struct llama_batch b)
{
    if (llama_decode(c, b) != 0)
        die("llama_decode failed");
    llama_synchronize(c);
}

/* n tokens of sequence seq from position 0 on. */
static void prompt(struct llama_context *c, struct llama_batch *b, int n, int seq)
{
    for (int at = 0; at < n; at += CHUNK) {
        b->n_tokens = 0;
        for (int i = at; i < n && i < at + CHUNK; i++)
            put(b, next_id(), i, seq, i == n - 1);
        decode(c, *b);
    }
}

static void logits(const char *ids_file, const char *out)
{
    FILE *in = fopen(ids_file, "r"), *f = fopen(out, "wb");
    int ids[CHUNK], n = 0;
    if (!in || !f)
        die("cannot open the files of ids and logits");
    while (n < CHUNK && fscanf(in, "%d", &ids[n]) == 1)
        n++;
    struct llama_context *c = open_context(n, 1);
    struct llama_batch b = llama_batch_init(CHUNK, 0, 1);
    for (int i = 0; i < n; i++)
        put(&b, ids[i], i, 0, true);
    decode(c, b);
    for (int i = 0; i < n; i++)
        fwrite(llama_get_logits_ith(c, i), sizeof(float), (size_t)vocab, f);
    if (fclose(f) != 0)
        die("cannot write the logits");
    fclose(in);
    llama_batch_free(b);
    llama_free(c);
}

static void time_prompt(int n, int runs)
{
    struct llama_context *c = open_context(n, 1);
    struct llama_batch b = llama_batch_init(CHUNK, 0, 1);
    double best = 1e9;
    for (int r = 0; r <= runs; r++) { /* the first warms up */
        llama_memory_clear(llama_get_memory(c), true);
        double t = seconds();
        prompt(c, &b, n, 0);
        t = seconds() - t;
        if (r && t < best)
            best = t;
    }
    printf("%.3f\n", n / best);
    llama_batch_free(b);
    llama_free(c);
}

/* Fills a sequence with what a file keeps, or runs the prompt and keeps it there. */
static void resume(struct llama_context *c, struct llama_batch *b, int context, int seq,
                   const char *file)
{
    llama_token none;
    size_t n;
    FILE *kept = fopen(file, "rb");
    if (kept) {
        fclose(kept);
        if (!llama_state_seq_load_file(c, file, seq, &none, 0, &n))
            die("the kept state cannot be read");
        return;
    }
    prompt(c, b, context, seq);
    if (!llama_state_seq_save_file(c, file, seq, NULL, 0))
        die("the state cannot be kept");
}

static void time_generate(int seqs, int context, int n, const char *state)
{
    struct llama_context *c = open_context(context + n, seqs);
    struct llama_batch b = llama_batch_init(CHUNK, 0, 1);
    for (int s = 0; s < seqs && context; s++) {
        if (state)
            resume(c, &b, context, s, state);
        else
            prompt(c, &b, context, s);
    }
    double start = 0;
    for (int i = -2; i < n; i++) { /* two steps warm up */
        if (i == 0)
            start = seconds();
        b.n_tokens = 0;
        for (int s = 0; s < seqs; s++)
            put(&b, next_id(), context + i + 2, s, true);
        decode(c, b);
    }
    printf("%.3f\n", seqs * n / (seconds() - start));
    llama_batch_free(b);
    llama_free(c);
}

static void quiet(enum ggml_log_level level, const char *text, void *ctx)
{
    (void)ctx;
    if (level == GGML_LOG_LEVEL_ERROR)
        fputs(text, stderr);
}

int main(int argc, char **argv)
{
    if (argc < 6)
        die("see the head of the source for usage");
    llama_log_set(quiet, NULL);
    llama_backend_init();
    model = llama_model_load_from_file(argv[1], llama_model_default_params());
    if (!model)
        die("cannot load the model");
    threads = atoi(argv[2]);
    vocab = llama_vocab_n_tokens(llama_model_get_vocab(model));
    if (strcmp(argv[3], "logits") == 0)
        logits(argv[4], argv[5]);
    else if (strcmp(argv[3], "prompt") == 0)
        time_prompt(atoi(argv[4]), atoi(argv[5]));
    else if (strcmp(argv[3], "generate") == 0 && argc > 6)
        time_generate(atoi(argv[4]), atoi(argv[5]), atoi(argv[6]), argc > 7 ? argv[7] : NULL);
    else
        die("the task is logits, prompt or generate");
    llama_model_free(model);
    return 0;
}
