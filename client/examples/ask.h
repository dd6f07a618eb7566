/* SPDX-License-Identifier: MIT */
/* What the loop examples share, and what has nothing to do with loops: options, requests, printing.
 *
 * Owns the connections and the answers of one program.  Everything runs on the thread of the loop, and
 * nothing but ask_open() waits.  A loop does three things with it, until ask_over():
 *
 *     before it sleeps     glmd_prepare(a.conn[k]) for each k that is not lost: sleep only if it says 1
 *     when there is news   ask_take(&a, k)
 *     on Ctrl-C            ask_cancel(&a)
 */
#ifndef GLMD_EXAMPLE_ASK_H
#define GLMD_EXAMPLE_ASK_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <glmd.h>

#define ASK_CONNS   8
#define ASK_ANSWERS 64
#define ASK_AT_ONCE 64 /* events taken before the other sources of the loop get their turn */

struct ask_answer {
    const char *prompt;
    uint64_t tag; /* 0: not submitted yet */
    bool over;
    int status;
    char line[512]; /* of several answers, a line is printed when it is whole */
    size_t n_line;
};

struct ask {
    const char *name; /* of the program */
    const char *socket[ASK_CONNS];
    glmd_conn *conn[ASK_CONNS];
    bool lost[ASK_CONNS];
    int n_conns;
    struct ask_answer answer[ASK_ANSWERS]; /* answer i comes over connection i % n_conns */
    int n_answers, n_over;
    unsigned max_tokens;
    unsigned tick_ms; /* how often a timer of the same loop is to call ask_tick(); 0: no timer */
    bool verbose, cancelled;
    unsigned long takes, ticks;
};

/* Reads the options, connects and submits.  0, or the status with which to exit. */
int ask_open(struct ask *a, const char *name, int argc, char **argv);

/* Takes what connection k has, at most ASK_AT_ONCE events.  False: the connection is dead, it is now marked
 * as lost, and its descriptor has to leave the loop. */
bool ask_take(struct ask *a, int k);

void ask_tick(struct ask *a);

/* Asks for an early end of all answers.  The second time it leaves the program. */
void ask_cancel(struct ask *a);

bool ask_over(const struct ask *a);

/* Closes the connections.  The status with which to exit. */
int ask_close(struct ask *a);

#endif
