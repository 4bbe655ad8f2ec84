/* The known family that is nearest to a checkpoint: the definition whose text, with all that it
 * includes, has most of the words that the checkpoint's tensors and configuration are made of.
 *
 * Two families that share their words may still compute different things.  The words that a file
 * does not know are the useful part: each is a tensor or a key that somebody has to read about. */
#include "model/survey_internal.h"

#include "base/strmap.h"
#include "model/definition_internal.h"

#include <string.h>

typedef struct words {
    fl_survey_words list; /* without repetition */
    fl_strmap seen;
    size_t n_names; /* those of tensors come first, then configuration keys */
} words;

static void words_free(words *w)
{
    fl_vec_free(&w->list);
    fl_strmap_free(&w->seen);
}

static bool is_word(char c)
{
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_';
}

/* Adds a word once; kept in the arena. */
static bool add(fl_survey *s, words *w, const char *text, size_t len)
{
    bool existing;
    uint32_t at;
    if (fl_strmap_get(&w->seen, text, len, &at))
        return true;
    const char *own = fl_arena_strndup(&s->arena, text, len);
    return own && fl_strmap_put(&w->seen, own, len, (uint32_t)w->list.n, &existing) &&
           fl_vec_push(&w->list, own);
}

/* The words between the dots of a pattern; those that every checkpoint has say nothing. */
static bool add_pattern(fl_survey *s, words *w, const char *pattern)
{
    static const char *const plain[] = {"model", "layers",       "weight",       "bias",
                                        "*",     "weight_scale", "weight_packed"};
    for (const char *p = pattern; *p;) {
        size_t len = strcspn(p, "."), i = 0;
        while (i < sizeof plain / sizeof *plain &&
               (strlen(plain[i]) != len || memcmp(plain[i], p, len) != 0))
            i++;
        if (len && i == sizeof plain / sizeof *plain && !add(s, w, p, len))
            return false;
        p += len + (p[len] == '.');
    }
    return true;
}

/* Keys that are about training, files or other programs. */
static bool is_idle_key(fl_bytes key)
{
    static const char *const idle[] = {
        "architectures",  "auto_map",          "attention_dropout",
        "bos_token_id",   "eos_token_id",      "pad_token_id",
        "dtype",          "initializer_range", "model_type",
        "pretraining_tp", "torch_dtype",       "transformers_version",
        "use_cache"};
    for (size_t i = 0; i < sizeof idle / sizeof *idle; i++) {
        if (strlen(idle[i]) == key.len && memcmp(idle[i], key.data, key.len) == 0)
            return true;
    }
    return key.len && key.data[0] == '_';
}

static bool collect(fl_survey *s, words *w)
{
    for (size_t i = 0; i < s->groups.n; i++) {
        if (!add_pattern(s, w, s->groups.data[i].pattern))
            return false;
    }
    w->n_names = w->list.n;
    const fl_json *config = s->config.object;
    for (void *it = fl_json_iter(config); it; it = fl_json_next(config, it)) {
        fl_bytes key = fl_json_iter_key(it);
        if (!is_idle_key(key) && !add(s, w, key.data, key.len))
            return false;
    }
    return true;
}

/* Marks in has[] the words that occur in a text. */
static int mark(const words *w, const char *text, size_t len, bool *has)
{
    int n = 0;
    memset(has, 0, w->list.n * sizeof *has);
    for (size_t i = 0; i < len;) {
        size_t end = i;
        uint32_t at;
        while (end < len && is_word(text[end]))
            end++;
        if (end > i && fl_strmap_get(&w->seen, text + i, end - i, &at) && !has[at]) {
            has[at] = true;
            n++;
        }
        i = end + 1;
    }
    return n;
}

static bool keep_news(fl_survey *s, const words *w, const bool *has)
{
    s->new_words.n = s->new_keys.n = 0;
    for (size_t i = 0; i < w->list.n; i++) {
        fl_survey_words *to = i < w->n_names ? &s->new_words : &s->new_keys;
        if (!has[i] && !fl_vec_push(to, w->list.data[i]))
            return false;
    }
    return true;
}

/* Compares one definition; a file that cannot be loaded, or is for include(), counts for nothing.
 */
static bool try_definition(fl_survey *s, const words *w, const char *path, const char *dir,
                           bool *has)
{
    fl_definition d;
    bool ok = true;
    fl_status status = fl_definition_open(path, dir, fl_checkpoint_config(s->ck), &d, NULL);
    if (status != FL_OK)
        return status != FL_NOMEM;
    int known = mark(w, d.host->sources.data, d.host->sources.n, has);
    if (known > s->known) {
        s->known = known;
        s->family = fl_arena_strdup(&s->arena, d.family);
        ok = s->family && keep_news(s, w, has);
    }
    fl_definition_close(&d);
    return ok;
}

fl_status fl_survey_nearest(fl_survey *s, const char *models_dir, fl_error *err)
{
    words w = {0};
    fl_arena arena = {0};
    char **paths = NULL;
    int n = 0;
    fl_status status = fl_definition_files(models_dir, &arena, &paths, &n, err);
    bool *has = NULL;
    if (status == FL_OK) {
        bool ok = collect(s, &w);
        has = ok ? fl_calloc(w.list.n + 1, sizeof *has) : NULL;
        ok = ok && has;
        for (int i = 0; ok && i < n; i++)
            ok = try_definition(s, &w, paths[i], models_dir, has);
        s->words = (int)w.list.n;
        if (!ok)
            status = fl_fail(err, FL_NOMEM, "no memory to compare model definitions");
    }
    fl_free(has);
    words_free(&w);
    fl_arena_free(&arena);
    return status;
}

fl_status fl_survey_is_known(const fl_checkpoint *ck, const char *models_dir, bool *known,
                             fl_error *err)
{
    char dir[4096];
    fl_definition d;
    fl_error e = {0};
    if (!models_dir)
        FL_TRY(fl_models_dir(dir, sizeof dir, err));
    fl_status status =
        fl_definition_open(NULL, models_dir ? models_dir : dir, fl_checkpoint_config(ck), &d, &e);
    *known = status == FL_OK;
    if (status == FL_OK)
        fl_definition_close(&d);
    else if (status != FL_UNSUPPORTED && err) /* which only the search gives */
        *err = e;
    return status == FL_UNSUPPORTED ? FL_OK : status;
}
