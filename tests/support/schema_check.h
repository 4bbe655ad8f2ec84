/* A plain validator for the part of JSON Schema that the tests use, to hold generated documents
 * against: it shares no code with the engine and reads with jansson as it is. */
#ifndef FL_TEST_SCHEMA_CHECK_H
#define FL_TEST_SCHEMA_CHECK_H

#include <jansson.h>
#include <stdbool.h>

/* Whether v satisfies the schema; root is where references lead into. */
bool schema_accepts(const json_t *schema, const json_t *root, const json_t *v);

#endif
