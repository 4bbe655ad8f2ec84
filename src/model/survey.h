/* What can be said of a checkpoint that no model definition is for: its tensors by kind, the
 * operators they call for, the known family that is nearest, and the beginning of a definition.
 *
 * All of it is reading of names.  A tensor's kind is guessed from the words that checkpoints use
 * for it; a family is near when its model file speaks of the same words and configuration keys.
 * Nothing here decides how a model is run. */
#ifndef FL_MODEL_SURVEY_H
#define FL_MODEL_SURVEY_H

#include "base/arena.h"
#include "checkpoint/config.h"
#include "model/model.h"

/* Tensors whose names differ in numbers only. */
typedef struct fl_survey_group {
    const char *pattern; /* the name with * for each number between dots */
    const char *part;    /* what it seems to belong to: "attention"; "?" when nothing is known */
    const char *op;      /* the operator that would use it, or NULL */
    size_t n;
    const fl_tensor_info *first;
    bool varies;       /* types or shapes differ */
    int64_t low, high; /* of the first number; low > high: there is none */
} fl_survey_group;

/* Something that the model needs, as far as names say. */
typedef struct fl_survey_need {
    const char *op;  /* the operator, or what is missing in words */
    const char *why; /* a tensor's pattern or a configuration key */
    bool here;       /* there is such an operator */
} fl_survey_need;

typedef FL_VEC(const char *) fl_survey_words;

typedef struct fl_survey {
    const fl_checkpoint *ck;
    fl_config config; /* the text part */
    fl_arena arena;
    FL_VEC(fl_survey_group) groups; /* in order of first tensor */
    FL_VEC(fl_survey_need) needs;
    const char *family;                  /* the nearest definition, or NULL */
    int known, words;                    /* words of names and keys that it speaks of, of so many */
    fl_survey_words new_words, new_keys; /* those that it does not */
} fl_survey;

/* Whether a definition in models_dir is for the checkpoint. */
FL_MUST_CHECK fl_status fl_survey_is_known(const fl_checkpoint *ck, const char *models_dir,
                                           bool *known, fl_error *err);

/* Surveys a checkpoint opened in any mode; registry: fl_ops_registry(); models_dir: NULL for
 * fl_models_dir.  The checkpoint must outlive s, which is freed after failure too. */
FL_MUST_CHECK fl_status fl_survey_open(const fl_checkpoint *ck, const fl_registry *registry,
                                       const char *models_dir, fl_survey *s, fl_error *err);
void fl_survey_free(fl_survey *s);

/* Appends the text of a model file that takes every tensor and builds embedding, final norm and
 * head, with the layers between left to be written. */
FL_MUST_CHECK fl_status fl_survey_skeleton(const fl_survey *s, fl_buf *out, fl_error *err);

#endif
