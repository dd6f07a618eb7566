/* SPDX-License-Identifier: MIT */
/* Makes the N-th fallible call of a program fail. The program is linked with tests/lib/failwrap.c, which
 * takes every call named in failwrap.syms; what it does is said in a block of memory that the test shares
 * with it: its own for a program that tests itself, a file named by $GLMD_FAIL for a daemon (failctl_open).
 *
 *     failctl_arm(c, FAIL_ONCE, n);
 *     ... the operation ...
 *     failctl_disarm(c);
 *     if (c->failed == 0) the operation makes fewer than n calls: the sweep is over
 *
 * Armed and counting, calls may come from any thread of the program. */
#ifndef GLMD_TEST_FAILCTL_H
#define GLMD_TEST_FAILCTL_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

enum fail_mode {
    FAIL_OFF = 0,
    FAIL_ONCE,  /* call N is refused by the system: no memory, no descriptor, no space */
    FAIL_EVER,  /* and every later call too, some with another errno */
    FAIL_WHILE, /* and the four after it: what a failure sets in motion fails as well */
    FAIL_INTR,  /* calls N to N + 19 that can be interrupted are: EINTR */
    FAIL_SHORT, /* calls N to N + 3 that move bytes of files move half of them */
    FAIL_MODES
};

struct failctl {
    _Atomic uint32_t mode;
    _Atomic uint64_t at;     /* N, from 1 */
    _Atomic uint64_t calls;  /* counted since armed, of those the mode can touch */
    _Atomic uint64_t failed; /* of them, failed */
    _Atomic uint64_t where;  /* offset of the first one's caller in the program, for addr2line */
    char name[32];           /* its function */
    char only[40];           /* the one function that fails and is counted; empty: all */
    /* always counted; what the program has at a quiet moment must not grow */
    _Atomic int64_t blocks; /* of malloc and its family */
    _Atomic int64_t maps;
};

/* The block of this program, when it is linked with failwrap.c. */
extern struct failctl *failctl_self __attribute__((weak));

/* A block in a new file, to be named by $GLMD_FAIL. NULL and errno. */
struct failctl *failctl_open(const char *path);
void failctl_close(struct failctl *c);

void failctl_arm(struct failctl *c, enum fail_mode mode, uint64_t at);
void failctl_arm_only(struct failctl *c, const char *only, enum fail_mode mode, uint64_t at);
void failctl_disarm(struct failctl *c);
const char *failctl_mode_name(enum fail_mode mode);
/* "call 12, eventfd from 0x1234, once", for messages; static storage. */
const char *failctl_text(const struct failctl *c, enum fail_mode mode);

#endif
