/* SPDX-License-Identifier: MIT */
/* What tests made with mkdtemp() and mkstemp() and did not remove.  Check runs no teardown behind a failure, and a test
 * that is killed runs nothing: so the test programs (linked through the wrappers of tmpleft.c) remember each name in
 * memory that all their processes share, and remove what is left when all tests have run.  When none of them failed,
 * leaving something is itself a failure.  Test processes only. */
#ifndef GLMD_TMPLEFT_H
#define GLMD_TMPLEFT_H

struct tmpleft;

/* From here on names are remembered.  Returns what was under way: a test may run a runner of its own in a child. */
struct tmpleft *tmpleft_begin(void);
/* Removes and names what is left, and goes back to outer.  Returns how many there were. */
unsigned tmpleft_end(struct tmpleft *outer);

#endif
