/* SPDX-License-Identifier: MIT */
/* Short ways to say what most tests of the client do. */
#ifndef GLMD_CLIENTTEST_H
#define GLMD_CLIENTTEST_H

#include <check.h>
#include <stdint.h>

#include "glmd.h"

/* Submits one user message. */
uint64_t ct_submit(glmd_conn *c, const char *text);

/* The next event must exist and be of this type and tag. */
struct glmd_event ct_next(glmd_conn *c, uint32_t type, uint64_t tag);
void ct_next_text(glmd_conn *c, uint64_t tag, const char *text);
void ct_none(glmd_conn *c);

/* 1 when the descriptor is readable within timeout_ms */
int ct_readable(glmd_conn *c, int timeout_ms);

/* Runs every test case of a suite; the exit status of the program. */
int ct_main(Suite *s);

/* A case with the leak fixture and a timeout. */
TCase *ct_case(Suite *s, const char *name, double timeout_s);

#endif
