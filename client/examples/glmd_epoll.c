/* SPDX-License-Identifier: MIT */
/* libglmd in a loop over epoll: connections, signals and a timer are descriptors beside each other.
 *
 *     cc -o glmd_epoll glmd_epoll.c ask.c $(pkg-config --cflags --libs glmd)
 *     ./glmd_epoll "Why is the sky blue?" "Count from 1 to 12."
 *
 * One thread, which waits in epoll_wait() only. */
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/signalfd.h>
#include <sys/timerfd.h>
#include <unistd.h>

#include "ask.h"

enum { ID_SIGNAL = ASK_CONNS, ID_TIMER, N_IDS }; /* below: numbers of connections */

static int add(int ep, int fd, uint32_t id) {
    struct epoll_event e = {.events = EPOLLIN};
    e.data.u32 = id;
    return epoll_ctl(ep, EPOLL_CTL_ADD, fd, &e);
}

static int add_signals(int ep) {
    sigset_t s;
    int fd;
    sigemptyset(&s);
    sigaddset(&s, SIGINT);
    sigaddset(&s, SIGTERM);
    sigprocmask(SIG_BLOCK, &s, NULL);
    fd = signalfd(-1, &s, SFD_NONBLOCK | SFD_CLOEXEC);
    if (fd >= 0 && add(ep, fd, ID_SIGNAL) < 0) {
        close(fd);
        return -1;
    }
    return fd;
}

static int add_timer(int ep, unsigned ms) {
    struct itimerspec t = {0};
    int fd = timerfd_create(CLOCK_MONOTONIC, TFD_NONBLOCK | TFD_CLOEXEC);
    t.it_interval.tv_sec = ms / 1000;
    t.it_interval.tv_nsec = (long)(ms % 1000) * 1000000;
    t.it_value = t.it_interval; /* 0 keeps it still */
    if (fd >= 0 && (timerfd_settime(fd, 0, &t, NULL) < 0 || add(ep, fd, ID_TIMER) < 0)) {
        close(fd);
        return -1;
    }
    return fd;
}

/* One turn of the loop. */
static int turn(struct ask *a, int ep, int signals, int timer) {
    struct epoll_event got[N_IDS];
    bool news[ASK_CONNS] = {false};
    struct signalfd_siginfo si;
    uint64_t expired;
    int n, timeout = -1;

    for (int k = 0; k < a->n_conns; k++)
        if (!a->lost[k] && glmd_prepare(a->conn[k]) != 1) {
            news[k] = true; /* the descriptor may stay silent: only look at the others */
            timeout = 0;
        }
    n = epoll_wait(ep, got, N_IDS, timeout);
    if (n < 0 && errno != EINTR)
        return -errno;
    for (int i = 0; i < n; i++) {
        if (got[i].data.u32 < ASK_CONNS)
            news[got[i].data.u32] = true;
        else if (got[i].data.u32 == ID_SIGNAL && read(signals, &si, sizeof si) == sizeof si)
            ask_cancel(a);
        else if (got[i].data.u32 == ID_TIMER && read(timer, &expired, sizeof expired) == sizeof expired)
            ask_tick(a);
    }
    for (int k = 0; k < a->n_conns; k++)
        if (news[k] && !a->lost[k] && !ask_take(a, k))
            epoll_ctl(ep, EPOLL_CTL_DEL, glmd_get_fd(a->conn[k]), NULL);
    return 0;
}

int main(int argc, char **argv) {
    static struct ask a;
    int ep, signals, timer, code, r = 0;
    code = ask_open(&a, "glmd_epoll", argc, argv);
    if (code)
        return code;
    ep = epoll_create1(EPOLL_CLOEXEC);
    signals = add_signals(ep);
    timer = add_timer(ep, a.tick_ms);
    if (ep < 0 || signals < 0 || timer < 0)
        r = -errno;
    for (int k = 0; k < a.n_conns && r == 0; k++)
        r = add(ep, glmd_get_fd(a.conn[k]), (uint32_t)k) < 0 ? -errno : 0;
    while (r == 0 && !ask_over(&a))
        r = turn(&a, ep, signals, timer);
    if (r < 0)
        fprintf(stderr, "glmd_epoll: %s\n", strerror(-r));
    close(timer);
    close(signals);
    close(ep);
    code = ask_close(&a);
    return r < 0 ? 1 : code;
}
