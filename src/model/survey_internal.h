/* The halves of the survey: names (survey.c) and families (nearest.c). */
#ifndef FL_MODEL_SURVEY_INTERNAL_H
#define FL_MODEL_SURVEY_INTERNAL_H

#include "model/survey.h"

/* Finds the definition in models_dir that speaks of most words of the checkpoint. */
FL_MUST_CHECK fl_status fl_survey_nearest(fl_survey *s, const char *models_dir, fl_error *err);

#endif
