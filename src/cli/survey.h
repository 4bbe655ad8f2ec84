/* For inspect: a checkpoint that no model definition is for. */
#ifndef FL_CLI_SURVEY_H
#define FL_CLI_SURVEY_H

#include "base/status.h"

#include <stdbool.h>

/* Whether one of the installed definitions is for the checkpoint. */
fl_status cli_is_known(const char *model, bool *known, fl_error *err);

/* Prints what names and configuration say, or (new_model) writes the beginning of a definition to
 * that path. */
fl_status cli_survey(const char *model, const char *new_model, bool json, fl_error *err);

#endif
