/* SPDX-License-Identifier: MIT */
/* Check in forked children.  Check keeps one message file and one lock for the test process; a child shares the
 * file, and inherits the lock held when another thread of the test was just reporting: it would wait for ever, or
 * die in the middle of a message.  So in a child that a test forks the ck_ words (linked through the wrappers of
 * childcheck.c) never reach Check: what holds says nothing, what fails prints one line and ends the child with
 * CHILD_FAILED, for the parent to see.  Children of a raw clone() must not use them.
 *
 * And under a limit on file sizes (RLIMIT_FSIZE, soft, below the hard one) in the test itself: Check's file is a file
 * too, and a message cut in two ends the program ("Bad message type").  While the limit stands, what holds says
 * nothing; what fails lifts it first.  Test processes only. */
#ifndef GLMD_CHILDCHECK_H
#define GLMD_CHILDCHECK_H

enum { CHILD_FAILED = 97 };

/* For a program without a runner (a bench): from now on it is as a forked child. */
void childcheck_no_runner(void);

#endif
