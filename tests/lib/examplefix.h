/* SPDX-License-Identifier: MIT */
/* What the tests of client/examples share: a daemon that says a known text in tokens of nano's vocabulary. */
#ifndef GLMD_TEST_EXAMPLEFIX_H
#define GLMD_TEST_EXAMPLEFIX_H

#include "daemonfix.h"

/* 4082 ends the reasoning, 198 a line, 4060 the turn. */
#define THOUGHT "39 334 593 4082 "
#define SKY     "712 1168 88 318 876 461 585 43 762 518 271 264 290 13 "

#define EXAMPLE_THOUGHT "Hello"
#define EXAMPLE_TEXT    "The sky is blue.\nLight from the sun."

/* Starts a daemon with nano's tokenizer and these lines of a script. */
void example_daemon(struct daemonfix *f, const char *script);

#endif
