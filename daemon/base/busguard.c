/* SPDX-License-Identifier: MIT */
/* The SIGBUS handler behind busguard.h: looks at this thread's guard and at the faulting address only. */
#include "busguard.h"

#include <errno.h>
#include <signal.h>
#include <stdatomic.h>
#include <string.h>
#include <ucontext.h>

static _Thread_local struct busguard *volatile current;

static void on_sigbus(int sig, siginfo_t *si, void *context) {
    struct busguard *g = current;
    uintptr_t at = (uintptr_t)si->si_addr;

    if (g && at >= g->lo && at < g->hi) {
        current = NULL;
        /* the jump does not return through the kernel, which would put the signal mask back */
        pthread_sigmask(SIG_SETMASK, &((ucontext_t *)context)->uc_sigmask, NULL);
        siglongjmp(g->env, 1);
    }
    /* not ours: fall back to the default and let the instruction fault again */
    signal(sig, SIG_DFL);
}

int busguard_install(void) {
    struct sigaction sa;

    memset(&sa, 0, sizeof sa);
    sa.sa_sigaction = on_sigbus;
    sa.sa_flags = SA_SIGINFO;
    return sigaction(SIGBUS, &sa, NULL) < 0 ? -errno : 0;
}

void busguard_arm(struct busguard *g, const void *base, size_t bytes) {
    g->lo = (uintptr_t)base;
    g->hi = g->lo + bytes;
    atomic_signal_fence(memory_order_seq_cst);
    current = g;
    atomic_signal_fence(memory_order_seq_cst);
}

void busguard_leave(struct busguard *g) {
    (void)g;
    atomic_signal_fence(memory_order_seq_cst);
    current = NULL;
}
