/* SPDX-License-Identifier: MIT */
/* packtest.h: glm-pack as a program, in a directory that is gone afterwards. Failures fail the running Check
 * test. */
#ifndef GLMD_TEST_PACKTEST_H
#define GLMD_TEST_PACKTEST_H

#include "ckpt.h"
#include "index.h"
#include "runprog.h"

extern struct ckpt packtest_dir;
extern struct runprog packtest_prog; /* the last run */

void packtest_setup(void);
void packtest_teardown(void);
const char *packtest_out(const char *name); /* a path inside, as of ckpt_path() */
/* IN, OUT, --format FORMAT and up to 26 more arguments; the exit status. */
int packtest(const char *in, const char *to, const char *format, const char *const *more);
/* MODULE.SUFFIX, malloc'ed; NULL: not there. */
void *packtest_load(const struct model_index *x, const char *module, const char *suffix, uint64_t *ret_bytes);

#define PACKTEST_SAYS(text)                                                                                  \
    ck_assert_msg(strstr(packtest_prog.err_text, text) || strstr(packtest_prog.out_text, text),              \
                  "found %s%s", packtest_prog.out_text, packtest_prog.err_text)

#endif
