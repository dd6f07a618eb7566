/* SPDX-License-Identifier: MIT */
/* Shared by the tests of control: a small vocabulary with every mark. */
#ifndef GLMD_TEST_CONTROLTEST_H
#define GLMD_TEST_CONTROLTEST_H

#include "vocab_view.h"

/* Token i of 0..25 is the letter 'a'+i; then some longer ones and the marks. */
enum { T_STOP = 26, T_STO, T_P, T_EMPTY, T_THINK, T_NOTHINK, T_CALL, T_NOCALL, T_EOS, T_ASSIST, T_KEY, T_NOKEY, T_VALUE,
       T_NOVALUE, T_N };

extern struct vocab_view controltest_vocab;
void controltest_setup(void); /* before it is used */

#endif
