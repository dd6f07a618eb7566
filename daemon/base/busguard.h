/* SPDX-License-Identifier: MIT */
/* Reading memory that a client shares with us may raise SIGBUS (the kernel finds no page to put there). Such
 * reads happen between busguard_enter and busguard_leave; a fault inside the guarded range ends the stretch
 * instead of the process. Faults anywhere else stay fatal.
 *
 *     struct busguard g;
 *     if (!busguard_enter(&g, base, bytes))
 *         return -EFAULT;            (a fault jumps here)
 *     ... read the range, take no lock, allocate nothing ...
 *     busguard_leave(&g);
 *
 * Any thread; not nested. Locals changed inside the stretch and used after a fault must be volatile. */
#ifndef GLMD_BUSGUARD_H
#define GLMD_BUSGUARD_H

#include <setjmp.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct busguard {
    sigjmp_buf env;
    uintptr_t lo, hi;
};

int busguard_install(void); /* once, before threads */
void busguard_arm(struct busguard *g, const void *base, size_t bytes);
void busguard_leave(struct busguard *g);

/* sigsetjmp must run in the caller's frame, so this is a macro. */
#define busguard_enter(g, base, bytes)                                                                       \
    (sigsetjmp((g)->env, 0) == 0 ? (busguard_arm((g), (base), (bytes)), true) : false)

#endif
