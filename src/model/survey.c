/* Tensors by the form of their names, and what each form usually is. */
#include "model/survey_internal.h"

#include "base/strmap.h"

#include <stdio.h>

/* The first row whose word is in a pattern decides.  The words are those that checkpoints share;
 * none belongs to one family. */
static const struct rule {
    const char *word, *part, *op;
} rules[] = {
    {"rotary_emb", "positions (computed)", NULL},
    {"_scale", "scales of a matrix", NULL},
    {"vision", "another tower", NULL},
    {"visual", "another tower", NULL},
    {"audio", "another tower", NULL},
    {"projector", "another tower", NULL},
    {"mtp.", "drafting", NULL},
    {"eh_proj", "drafting", NULL},
    {"enorm", "drafting", NULL},
    {"hnorm", "drafting", NULL},
    {"shared_head", "drafting", NULL},
    {"embed_tokens", "embedding", "embed"},
    {"word_embeddings", "embedding", "embed"},
    {"wte.", "embedding", "embed"},
    {"lm_head", "output", "linear"},
    {"indexer.k_norm", "selector", "layernorm"},
    {"indexer.", "selector", "index_select"},
    {"A_log", "recurrent attention", "delta_rule"},
    {"dt_bias", "recurrent attention", "delta_rule"},
    {"conv", "recurrent attention", "conv1d"},
    {"q_norm", "norms", "rmsnorm"},
    {"k_norm", "norms", "rmsnorm"},
    {"norm", "norms", "rmsnorm"},
    {"ln_", "norms", "rmsnorm"},
    {"score_correction_bias", "router", "route"},
    {"router", "router", "route"},
    {"mlp.gate.", "router", "route"},
    {"moe.gate.", "router", "route"},
    {"shared_expert", "shared experts", "linear"},
    {"experts.", "experts", "experts"},
    {"expert", "experts", "linear"},
    {"kv_b_proj", "latent attention", "mla"},
    {"kv_a_proj", "latent attention", "linear"},
    {"q_a_proj", "latent attention", "linear"},
    {"q_b_proj", "latent attention", "linear"},
    {"attn", "attention", "linear"},
    {"attention", "attention", "linear"},
    {"mlp", "mlp", "linear"},
    {"feed_forward", "mlp", "linear"},
    {"ffn", "mlp", "linear"},
};

static fl_status nomem(fl_error *err)
{
    return fl_fail(err, FL_NOMEM, "no memory for the survey");
}

/* Writes name with * for numbers to out; the first number, or -1. */
static int64_t make_pattern(const char *name, char *out, size_t size)
{
    int64_t first = -1;
    size_t at = 0;
    bool begins = true;
    for (const char *p = name; *p && at + 2 < size;) {
        size_t digits = begins ? strspn(p, "0123456789") : 0;
        if (digits && (p[digits] == '.' || !p[digits])) {
            if (first < 0 && digits < 10) {
                first = 0;
                for (size_t i = 0; i < digits; i++)
                    first = first * 10 + (p[i] - '0');
            }
            out[at++] = '*';
            p += digits;
            begins = false;
        } else {
            begins = *p == '.';
            out[at++] = *p++;
        }
    }
    out[at] = 0;
    return first;
}

static bool same_type(const fl_tensor *a, const fl_tensor *b)
{
    return a->dtype == b->dtype && a->ndim == b->ndim &&
           memcmp(a->shape, b->shape, (size_t)a->ndim * sizeof *a->shape) == 0;
}

static fl_status add_group(fl_survey *s, const char *pattern, const fl_tensor_info *info,
                           fl_strmap *map, fl_error *err)
{
    fl_survey_group g = {.pattern = fl_arena_strdup(&s->arena, pattern),
                         .part = "?",
                         .first = info,
                         .low = INT64_MAX,
                         .high = -1};
    for (size_t i = 0; g.pattern && i < sizeof rules / sizeof *rules; i++) {
        if (strstr(pattern, rules[i].word)) {
            g.part = rules[i].part;
            g.op = rules[i].op;
            break;
        }
    }
    if (!g.pattern || !fl_vec_push(&s->groups, g) ||
        !fl_strmap_put(map, g.pattern, strlen(g.pattern), (uint32_t)s->groups.n - 1, NULL))
        return nomem(err);
    return FL_OK;
}

static fl_status add_tensor(fl_survey *s, const fl_tensor_info *info, fl_strmap *map, fl_error *err)
{
    char pattern[512];
    uint32_t i;
    int64_t number = make_pattern(info->name, pattern, sizeof pattern);
    if (!fl_strmap_get(map, pattern, strlen(pattern), &i)) {
        FL_TRY(add_group(s, pattern, info, map, err));
        i = (uint32_t)s->groups.n - 1;
    }
    fl_survey_group *g = &s->groups.data[i];
    g->n++;
    g->varies = g->varies || (info->shape_known && g->first->shape_known &&
                              !same_type(&info->tensor, &g->first->tensor));
    if (number >= 0 && number < g->low)
        g->low = number;
    if (number > g->high)
        g->high = number;
    return FL_OK;
}

/* ---- needs ---- */

static fl_status need(fl_survey *s, const fl_registry *registry, const char *op, const char *why,
                      fl_error *err)
{
    for (size_t i = 0; i < s->needs.n; i++) {
        if (strcmp(s->needs.data[i].op, op) == 0)
            return FL_OK;
    }
    fl_survey_need n = {.op = op, .why = why, .here = fl_registry_op(registry, op) != NULL};
    return fl_vec_push(&s->needs, n) ? FL_OK : nomem(err);
}

/* The first pattern that holds the word, or NULL. */
static const char *find_word(const fl_survey *s, const char *word)
{
    for (size_t i = 0; i < s->groups.n; i++) {
        if (strstr(s->groups.data[i].pattern, word))
            return s->groups.data[i].pattern;
    }
    return NULL;
}

/* Attention with keys and values of its own is known by what it does not have: a latent or a state
 * that the projections lead into. */
static fl_status need_attention(fl_survey *s, const fl_registry *registry, fl_error *err)
{
    static const char *const words[] = {"k_proj", "qkv", "c_attn", "key.", "Wqkv"};
    for (size_t i = 0; i < sizeof words / sizeof *words; i++) {
        const char *pattern = find_word(s, words[i]);
        if (pattern && !find_word(s, "A_log"))
            return need(s, registry, "attention over keys and values of several heads", pattern,
                        err);
    }
    return FL_OK;
}

/* What the configuration asks for by a key that is set. */
static fl_status need_by_keys(fl_survey *s, const fl_registry *registry, fl_error *err)
{
    static const struct {
        const char *key, *op;
    } keys[] = {{"rope_theta", "rope"},
                {"rope_parameters", "rope"},
                {"rope_scaling", "rope"},
                {"sliding_window", "attention within a window"},
                {"attn_logit_softcapping", "attention with capped scores"},
                {"alibi", "attention with a bias by distance"}};
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++) {
        const fl_json *v = fl_json_get(s->config.object, keys[i].key);
        bool set =
            v && !fl_json_is(v, FL_JSON_NULL) && !(fl_json_is(v, FL_JSON_BOOL) && !fl_json_bool(v));
        if (set)
            FL_TRY(need(s, registry, keys[i].op, keys[i].key, err));
    }
    return FL_OK;
}

static fl_status find_needs(fl_survey *s, const fl_registry *registry, fl_error *err)
{
    for (size_t i = 0; i < s->groups.n; i++) {
        const fl_survey_group *g = &s->groups.data[i];
        if (!g->op)
            continue;
        bool norm = strcmp(g->op, "rmsnorm") == 0;
        size_t len = strlen(g->pattern);
        bool bias = len > 5 && strcmp(g->pattern + len - 5, ".bias") == 0;
        FL_TRY(need(s, registry,
                    norm && bias ? "layernorm"
                    : bias       ? "expr"
                                 : g->op,
                    g->pattern, err));
    }
    FL_TRY(need_attention(s, registry, err));
    return need_by_keys(s, registry, err);
}

fl_status fl_survey_open(const fl_checkpoint *ck, const fl_registry *registry,
                         const char *models_dir, fl_survey *s, fl_error *err)
{
    char dir[4096];
    fl_strmap map = {0};
    fl_status status = FL_OK;
    *s = (fl_survey){.ck = ck};
    FL_TRY(fl_config_text(fl_checkpoint_config(ck), &s->config, err));
    if (!models_dir)
        FL_TRY(fl_models_dir(dir, sizeof dir, err));
    for (size_t i = 0; status == FL_OK && i < fl_checkpoint_count(ck); i++)
        status = add_tensor(s, fl_checkpoint_at(ck, i), &map, err);
    fl_strmap_free(&map);
    FL_TRY(status);
    FL_TRY(find_needs(s, registry, err));
    return fl_survey_nearest(s, models_dir ? models_dir : dir, err);
}

void fl_survey_free(fl_survey *s)
{
    fl_vec_free(&s->groups);
    fl_vec_free(&s->needs);
    fl_vec_free(&s->new_words);
    fl_vec_free(&s->new_keys);
    fl_arena_free(&s->arena);
    *s = (fl_survey){0};
}
