/* cmocka needs these before it, in this order. */
#ifndef FL_TESTS_CMOCKA_ALL_H
#define FL_TESTS_CMOCKA_ALL_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#endif
