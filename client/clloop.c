/* SPDX-License-Identifier: MIT */
/* One descriptor for any loop: an epoll descriptor over the socket (the daemon's end), the notify pipe (its
 * bells), a timer and an eventfd for other threads.  Runs on the connection's thread, except glmd_wakeup().
 */
#include <errno.h>
#include <poll.h>
#include <sys/epoll.h>
#include <sys/timerfd.h>
#include <time.h>
#include <unistd.h>

#include "clconn.h"

#define PULSE_ASK_NS   (2000 * CL_NS_PER_MS)
#define PULSE_AGAIN_NS (1000 * CL_NS_PER_MS)

enum { N_FDS = 4 };        /* socket, pipe, timer, eventfd */
enum { BELLS_UNREAD = 64 }; /* a wake-up may stand for a few */

void cl_bell_write(int fd) {
    static const uint64_t one = 1;
    ssize_t n;
    do {
        n = write(fd, &one, sizeof one);
    } while (n < 0 && errno == EINTR);
    /* any other failure: the counter is full and so the bell is already rung, or the daemon is gone */
}

/* ---- timer ---- */

static uint64_t earliest(const glmd_conn *c) {
    uint64_t t = c->pulse.check_ns;
    if (c->coalesce_at_ns < t)
        t = c->coalesce_at_ns;
    return c->retry_at_ns < t ? c->retry_at_ns : t;
}

/* A timer that is already set earlier is left alone: one spurious wake is cheaper than a system call a sleep.
 */
void cl_timer_plan(glmd_conn *c) {
    uint64_t t = earliest(c);
    if (t >= c->timer_at_ns)
        return;
    if (!t)
        t = 1; /* zero would disarm */
    struct itimerspec s = {
        .it_value = {.tv_sec = (time_t)(t / 1000000000u), .tv_nsec = (long)(t % 1000000000u)}};
    if (timerfd_settime(c->fd_timer, TFD_TIMER_ABSTIME, &s, NULL) == 0)
        c->timer_at_ns = t;
}

/* A stale heartbeat may only mean that this machine slept or that clocks differ, so the daemon is asked. */
static void check_pulse(glmd_conn *c, uint64_t now) {
    struct glmw_status s;
    if (!c->tags.n_live || now < c->pulse.check_ns)
        return;
    if (glmw_status_read(&c->d->status, &s) == 0)
        c->status = s;
    uint64_t beat = c->status.heartbeat_ns;
    if (beat && (beat >= now || now - beat < GLMW_STATUS_ALIVE_NS)) {
        if (c->pulse.state == CL_PULSE_HUNG)
            cl_notice(c, GLMD_NOTICE_ALIVE);
        c->pulse.state = CL_PULSE_OK;
        c->pulse.check_ns = (beat < now ? beat : now) + GLMW_STATUS_ALIVE_NS;
        return;
    }
    if (c->pulse.state == CL_PULSE_OK) {
        c->pulse.state = CL_PULSE_ASKED;
        c->pulse.asked = now;
        struct glmw_ping p;
        __builtin_memcpy(&p, &now, sizeof p);
        cl_packet_send(c, GLMW_PKT_PING, &p, sizeof p);
        c->pulse.check_ns = now + PULSE_ASK_NS;
        return;
    }
    if (c->pulse.state == CL_PULSE_ASKED)
        cl_notice(c, GLMD_NOTICE_HANG);
    c->pulse.state = CL_PULSE_HUNG;
    c->pulse.check_ns = now + PULSE_AGAIN_NS;
}

static void on_timer(glmd_conn *c) {
    uint64_t count;
    if (read(c->fd_timer, &count, sizeof count) != (ssize_t)sizeof count)
        return;
    c->timer_at_ns = CL_NEVER;
    uint64_t now = cl_now_ns();
    if (now >= c->coalesce_at_ns) {
        /* the pause is over: from here the next record rings at once */
        c->coalesce_at_ns = CL_NEVER;
        c->armed = false;
    }
    check_pulse(c, now);
}

/* ---- dispatch ---- */

/* False: the daemon's end is closed, and the descriptor would stay readable for ever. */
static bool drain(int fd) {
    char junk[4096];
    ssize_t n;
    do {
        n = read(fd, junk, sizeof junk);
    } while (n == (ssize_t)sizeof junk);
    return n != 0;
}

/* The pipe is edge-triggered: what lies in it wakes nobody twice, so most bells stay there, unread, until some have
 * come together (epoll hears of every write since Linux 5.14). Room must remain, because a bell that finds the pipe
 * full is not rung. A page holds 4096; what is armed once is rung for once, and only a coalescing client's urgent
 * records ring more often (PROTOCOL.md 5.3). False: the daemon's end is closed, which is an edge of its own. */
static bool heed_bell(glmd_conn *c, uint32_t events) {
    if (!(events & ~(uint32_t)EPOLLIN) && c->bells_left && c->coalesce_tokens <= 1 && !FAULT(client_reads_bells)) {
        if (!FAULT(client_pipe_fills))
            c->bells_left--;
        return true;
    }
    c->bells_left = BELLS_UNREAD;
    return drain(c->fd_pipe) && !(events & EPOLLHUP);
}

static void run_async(glmd_conn *c) {
    struct cl_async *a = &c->async;
    uint64_t count;
    if (read(c->fd_wake, &count, sizeof count) != (ssize_t)sizeof count)
        return;
    for (;;) {
        uint64_t tag = 0;
        pthread_mutex_lock(&a->lock);
        if (a->n)
            tag = a->tags[--a->n];
        pthread_mutex_unlock(&a->lock);
        if (!tag)
            return;
        glmd_cancel(c, tag);
    }
}

/* Which of the four descriptors have something: one call where most wake-ups are bells, instead of a vain read
 * of each other. All of them when the kernel does not say. */
static uint32_t ready_events(const struct epoll_event *ev, int n, int fd) {
    for (int i = 0; i < n; i++)
        if (ev[i].data.fd == fd)
            return ev[i].events;
    return n < 0 ? (uint32_t)EPOLLIN : 0u;
}

static bool is_ready(const struct epoll_event *ev, int n, int fd) {
    return ready_events(ev, n, fd) != 0;
}

static int handle(glmd_conn *c, const struct epoll_event *ev, int n) {
    /* the pipe before the ring: a bell for a record that is taken below must not stay behind */
    uint32_t bell = ready_events(ev, n, c->fd_pipe);
    bool pipe_open = !bell || heed_bell(c, bell);
    if (is_ready(ev, n, c->fd_wake))
        run_async(c);
    if (is_ready(ev, n, c->fd_timer))
        on_timer(c);
    if (!c->socket_done && (!pipe_open || is_ready(ev, n, c->fd_sock)))
        cl_socket_read(c); /* also behind a closed pipe: it may hold the reason */
    if (!pipe_open)
        cl_die(c, -EPIPE, "the daemon closed the connection or ended");
    if (!c->error && (c->credit_owed || c->n_cancel_owed || c->n_submit_owed))
        cl_owed_push(c);
    cl_timer_plan(c);
    if (cl_pending(c))
        return 1;
    return c->error;
}

static int dispatch(glmd_conn *c) {
    struct epoll_event ev[N_FDS];
    cl_release(c);
    return handle(c, ev, epoll_wait(c->fd_epoll, ev, N_FDS, 0));
}

int glmd_dispatch(glmd_conn *c) {
    int r = cl_check(c);
    return r < 0 ? r : dispatch(c);
}

int glmd_prepare(glmd_conn *c) {
    int r = cl_check(c);
    if (r < 0)
        return r;
    cl_release(c);
    if (cl_pending(c))
        return 0;
    if (c->error)
        return c->error;
    r = cl_arm(c);
    if (r == 1)
        cl_timer_plan(c);
    return r;
}

int glmd_get_fd(glmd_conn *c) {
    int r = cl_check(c);
    return r < 0 ? r : c->fd_epoll;
}

int glmd_get_timeout(glmd_conn *c, uint64_t *ret_ns) {
    int r = cl_check(c);
    if (r < 0)
        return r;
    *ret_ns = c->timer_at_ns;
    return 0;
}

int glmd_wakeup(glmd_conn *c) {
    int saved = errno; /* callable from a signal handler */
    int r = cl_check(c);
    if (r == 0)
        cl_bell_write(c->fd_wake);
    errno = saved;
    return r;
}

int glmd_set_coalesce(glmd_conn *c, uint32_t tokens, uint32_t usec) {
    int r = cl_check(c);
    if (r < 0)
        return r;
    if (tokens > 1 && !(c->hello.features & GLMW_FEAT_COALESCE))
        return -EOPNOTSUPP;
    c->coalesce_tokens = tokens;
    c->coalesce_ns = (uint64_t)usec * 1000u;
    c->armed = false;
    return 0;
}

/* ---- blocking ---- */

static bool is_over(uint64_t deadline_ns) {
    return deadline_ns != CL_NEVER && cl_now_ns() >= deadline_ns;
}

/* Number of ready descriptors, 0 for none, or negative errno. epoll_wait() counts whole milliseconds: what is left
 * of one is for ppoll(). */
static int await(glmd_conn *c, struct epoll_event *ev, uint64_t deadline_ns) {
    int ms = -1;
    if (deadline_ns != CL_NEVER) {
        uint64_t now = cl_now_ns(), left = now < deadline_ns ? deadline_ns - now : 0;
        ms = left / CL_NS_PER_MS > INT32_MAX ? INT32_MAX : (int)(left / CL_NS_PER_MS);
        struct pollfd p = {.fd = c->fd_epoll, .events = POLLIN};
        struct timespec ts = {.tv_nsec = (long)left};
        if (ms == 0 && ppoll(&p, 1, &ts, NULL) < 0)
            return -errno;
    }
    int n = epoll_wait(c->fd_epoll, ev, N_FDS, ms);
    return n < 0 ? -errno : n;
}

int glmd_wait(glmd_conn *c, int64_t timeout_ns) {
    int r = cl_check(c);
    if (r < 0)
        return r;
    uint64_t deadline = CL_NEVER;
    if (timeout_ns >= 0)
        deadline = cl_now_ns() + (uint64_t)timeout_ns;
    for (;;) {
        struct epoll_event ev[N_FDS];
        r = glmd_prepare(c);
        if (r <= 0) {
            r = dispatch(c);
            if (r || is_over(deadline))
                return r;
            continue;
        }
        int n = await(c, ev, deadline);
        if (n < 0)
            return n;
        r = handle(c, ev, n);
        /* whatever keeps the descriptor readable does not keep the caller */
        if (r || is_ready(ev, n, c->fd_wake) || is_over(deadline))
            return r;
    }
}
