/* SPDX-License-Identifier: MIT */
/* A connection from its first descriptor to its last.  Runs on the thread that owns it. */
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/timerfd.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

#include "clconn.h"
#include "clsay.h"

#define DEFAULT_TIMEOUT_MS 5000u
#define SUN_PATH_BYTES     sizeof(((struct sockaddr_un *)NULL)->sun_path)

uint64_t cl_now_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000ull + (uint64_t)t.tv_nsec;
}

/* ---- fork ---- */

/* Counted up in every child.  A page that the kernel wipes in children covers those made by raw clone(), for
 * which no handler runs; the counter covers emulators that accept the advice and do nothing. */
static uint32_t fork_count;
static atomic_bool fork_watched;

static void in_child(void) {
    fork_count++;
}

/* Want of memory is no reason to fail for ever, so this is tried again until it worked once.  No lock: a child made
 * by another thread meanwhile would inherit it locked.  Two threads at once may both register, which only counts
 * every child twice. */
static int watch_fork(void) {
    int r = 0;
    if (!atomic_load(&fork_watched))
        r = -pthread_atfork(NULL, NULL, in_child);
    if (r == 0)
        atomic_store(&fork_watched, true);
    return r;
}

static int guard_new(glmd_conn *c) {
    size_t page = (size_t)sysconf(_SC_PAGESIZE);
    int r = watch_fork();
    if (r < 0)
        return r;
    void *p = mmap(NULL, page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (p == MAP_FAILED)
        return -errno;
    madvise(p, page, MADV_WIPEONFORK); /* not before Linux 4.14: then the counter alone tells */
    c->fork_guard = p;
    *c->fork_guard = 1;
    c->fork_count = fork_count;
    return 0;
}

int cl_check(const glmd_conn *c) {
    return c->fork_count == fork_count && *(volatile const uint32_t *)c->fork_guard ? 0 : -ECHILD;
}

/* ---- death ---- */

void cl_die(glmd_conn *c, int error, const char *fmt, ...) {
    if (error == -EPROTO && !(FAULT(client_spins_on_ruins) && c->error))
        c->ring_bad = true; /* also when the daemon was gone before: what comes after a broken rule means nothing */
    if (c->error)
        return;
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(c->error_text, sizeof c->error_text, fmt, ap);
    va_end(ap);
    c->error = error;
    if (error == -EPROTO) {
        /* tell the daemon, and make the descriptor readable */
        struct glmw_bye b = {.error = error};
        cl_packet_send(c, GLMW_PKT_BYE, &b, sizeof b);
    }
    shutdown(c->fd_sock, SHUT_RDWR);
    cl_log("connection lost: %s", c->error_text);
}

/* ---- opening ---- */

static int watch(glmd_conn *c, int fd, uint32_t edge) {
    struct epoll_event e = {.events = EPOLLIN | edge, .data.fd = fd};
    return epoll_ctl(c->fd_epoll, EPOLL_CTL_ADD, fd, &e) < 0 ? -errno : 0;
}

/* A foreign loop may poll our descriptor many times before it dispatches: it stays readable until then, because only
 * our own epoll_wait() takes an edge off the list. Bells come as edges, which saves a read() for each (clloop.c). */
static int open_loop(glmd_conn *c) {
    if ((c->fd_epoll = epoll_create1(EPOLL_CLOEXEC)) < 0)
        return -errno;
    if ((c->fd_wake = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) < 0)
        return -errno;
    if ((c->fd_timer = timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC | TFD_NONBLOCK)) < 0)
        return -errno;
    int r = watch(c, c->fd_sock, 0);
    if (r == 0)
        r = watch(c, c->fd_pipe, EPOLLET);
    if (r == 0)
        r = watch(c, c->fd_timer, 0);
    if (r == 0)
        r = watch(c, c->fd_wake, 0);
    return r;
}

static glmd_conn *blank(int fd_sock) {
    glmd_conn *c = calloc(1, sizeof *c);
    if (!c)
        return NULL;
    c->fd_sock = fd_sock;
    c->fd_bell = c->fd_pipe = c->fd_timer = c->fd_wake = c->fd_epoll = -1;
    c->need = 1;
    c->coalesce_at_ns = c->retry_at_ns = c->timer_at_ns = c->pulse.check_ns = CL_NEVER;
    pthread_mutex_init(&c->async.lock, NULL);
    cl_tags_init(&c->tags);
    return c;
}

static void close_fd(int *fd) {
    if (*fd >= 0)
        close(*fd);
    *fd = -1;
}

/* In a child the maps do not exist, and what lies at their addresses now belongs to somebody else. */
static void destroy(glmd_conn *c, bool is_child) {
    if (!is_child) {
        if (c->u)
            munmap(c->u, c->u_bytes);
        if (c->d)
            munmap(glmw_address(c->d), c->d_bytes);
    }
    if (c->fork_guard)
        munmap(c->fork_guard, (size_t)sysconf(_SC_PAGESIZE));
    if (!FAULT(client_epoll_leaked))
        close_fd(&c->fd_epoll);
    close_fd(&c->fd_timer);
    close_fd(&c->fd_wake);
    close_fd(&c->fd_bell);
    close_fd(&c->fd_pipe);
    close_fd(&c->fd_sock);
    cl_tags_done(&c->tags);
    cl_arena_done(&c->arena);
    if (!is_child) /* a lock copied by fork may be held by a thread that is not here */
        pthread_mutex_destroy(&c->async.lock);
    free(c->async.tags);
    free(c->alts);
    free(c);
}

static int setup(glmd_conn *c, const struct glmd_options *opt, uint64_t deadline_ns, struct cl_say *say) {
    int r = guard_new(c);
    if (r < 0)
        return cl_say(say, r, "%s: out of memory", say->where);
    r = cl_hello(c, opt, deadline_ns, say);
    if (r < 0)
        return r;
    cl_arena_init(&c->arena, (uint64_t)1 << c->hello.pay_log2);
    /* one alternative group may start in the last slot and run on: no wrap, so that it stays one array */
    size_t n = (((size_t)1 << c->hello.tq_log2) + GLMW_ALTS_MAX / GLMW_ALTS_PER_REC + 1) * GLMW_ALTS_PER_REC;
    if ((c->hello.features & GLMW_FEAT_ALTS) && !(c->alts = calloc(n, sizeof *c->alts)))
        return cl_say(say, -ENOMEM, "%s: out of memory", say->where);
    r = open_loop(c);
    if (r < 0)
        return cl_say(say, r, "%s: no more descriptors: %s", say->where, glmd_strerror(r));
    return 0;
}

/* The caller's structure, as far as it is known to both. */
static int take_options(const struct glmd_options *opt, struct glmd_options *ret) {
    *ret = (struct glmd_options){.size = sizeof *ret};
    if (!opt)
        return 0;
    if (opt->size < sizeof opt->size)
        return -EINVAL;
    memcpy(ret, opt, opt->size < sizeof *ret ? opt->size : sizeof *ret);
    if (!ret->socket_path)
        ret->socket_path_len = 0;
    if (!ret->client_name)
        ret->client_name_len = 0;
    return 0;
}

static int open_over(int fd, const struct glmd_options *o, uint64_t deadline_ns, struct cl_say *say,
                     glmd_conn **ret) {
    glmd_conn *c = blank(fd);
    if (!c) {
        close(fd);
        return cl_say(say, -ENOMEM, "%s: out of memory", say->where);
    }
    int r = setup(c, o, deadline_ns, say);
    if (r < 0) {
        destroy(c, false);
        return r;
    }
    cl_log("connected to %s, protocol %u, connection %llu", say->where, c->hello.wire,
           (unsigned long long)c->hello.conn_id);
    *ret = c;
    return 0;
}

static uint64_t deadline_of(const struct glmd_options *o) {
    return cl_now_ns() + (o->timeout_ms ? o->timeout_ms : DEFAULT_TIMEOUT_MS) * CL_NS_PER_MS;
}

int glmd_connect_fd(int fd, const struct glmd_options *opt, glmd_conn **ret) {
    struct glmd_options o;
    int type = 0, r = take_options(opt, &o);
    socklen_t len = sizeof type;
    struct cl_say say = {o.error, o.error_bytes, "passed socket"};
    if (r < 0) {
        close(fd);
        return r;
    }
    if (getsockopt(fd, SOL_SOCKET, SO_TYPE, &type, &len) < 0 || type != SOCK_SEQPACKET) {
        r = cl_say(&say, type ? -EPROTOTYPE : -errno,
                   "the passed descriptor %d is not a SOCK_SEQPACKET socket", fd);
        close(fd);
        return r;
    }
    return open_over(fd, &o, deadline_of(&o), &say, ret);
}

/* also: what a message about a missing socket adds to the path. */
static int explain(struct cl_say *say, const char *also, int r) {
    const char *p = say->where;
    struct stat st;
    switch (r) {
    case -ENOENT:
        return cl_say(say, r,
                      "no daemon at %s%s: the socket does not exist; start glmd, or name another socket "
                      "in $GLMD_SOCKET",
                      p, also);
    case -ECONNREFUSED:
        if (stat(p, &st) == 0 && !S_ISSOCK(st.st_mode))
            return cl_say(say, r, "%s is not a socket: name the daemon's socket, by default %s", p,
                          GLMD_DEFAULT_SOCKET);
        return cl_say(say, r,
                      "no daemon at %s: the socket is there but nobody listens; start glmd, or name another "
                      "socket in $GLMD_SOCKET",
                      p);
    case -EACCES:
    case -EPERM:
        return cl_say(say, r,
                      "no permission to use %s: it is open to the members of the group that owns it "
                      "(ls -l shows which); join it and log in again",
                      p);
    case -EPROTOTYPE:
        return cl_say(say, r, "%s is a socket of another program, not of glmd", p);
    case -ETIMEDOUT:
        return cl_say(say, r,
                      "the daemon at %s took no connection in time: it is overloaded or "
                      "stopped",
                      p);
    default:
        return cl_say(say, r, "cannot connect to %s: %s", p, glmd_strerror(r));
    }
}

static int dial(const struct sockaddr_un *a, uint64_t deadline_ns, int *ret) {
    int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    if (fd < 0)
        return -errno;
    for (;;) {
        uint64_t now = cl_now_ns();
        uint64_t left_ns = now < deadline_ns ? deadline_ns - now : 1000;
        struct timeval tv = {.tv_sec = (time_t)(left_ns / 1000000000u),
                             .tv_usec = (suseconds_t)(left_ns % 1000000000u / 1000u)};
        /* a full backlog blocks connect(); this timeout is the only bound it knows */
        setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &tv, sizeof tv);
        if (connect(fd, (const struct sockaddr *)a, sizeof *a) == 0)
            break;
        if (errno == EINTR && now < deadline_ns)
            continue;
        int r = errno == EAGAIN || errno == EINTR ? -ETIMEDOUT : -errno;
        close(fd);
        return r;
    }
    *ret = fd;
    return 0;
}

/* Where the daemon of this user listens, if it does; "" where no such place can be.  The socket has to be the
 * caller's own: a root shell that kept somebody's environment does not talk to that somebody's daemon. */
static bool user_socket(char ret[static SUN_PATH_BYTES]) {
    const char *dir = secure_getenv("XDG_RUNTIME_DIR");
    struct stat st;
    ret[0] = 0;
    if (!dir || dir[0] != '/' || strlen(dir) + sizeof GLMD_USER_SOCKET >= SUN_PATH_BYTES)
        return false;
    snprintf(ret, SUN_PATH_BYTES, "%s/%s", dir, GLMD_USER_SOCKET);
    return stat(ret, &st) == 0 && S_ISSOCK(st.st_mode) && st.st_uid == geteuid();
}

int glmd_connect(const struct glmd_options *opt, glmd_conn **ret) {
    struct glmd_options o;
    struct sockaddr_un a = {.sun_family = AF_UNIX};
    char where[sizeof a.sun_path + 1], user[SUN_PATH_BYTES], also[SUN_PATH_BYTES + 16] = "";
    int fd = -1, r = take_options(opt, &o);
    if (r < 0)
        return r;
    const char *path = o.socket_path;
    size_t len = o.socket_path_len;
    if (!path && (path = secure_getenv("GLMD_SOCKET")) && *path) {
        len = strlen(path);
    } else if (!path || !len) {
        path = user_socket(user) ? user : GLMD_DEFAULT_SOCKET;
        len = strlen(path);
        if (path != user && user[0])
            snprintf(also, sizeof also, ", nor at %s", user);
    }
    struct cl_say say = {o.error, o.error_bytes, where};
    if (o.socket_path && !o.socket_path_len)
        return cl_say(&say, -EINVAL, "the socket path is empty");
    if (len >= sizeof a.sun_path || memchr(path, 0, len))
        return cl_say(&say, -ENAMETOOLONG,
                      "the socket path has %zu bytes: it must be shorter than %zu and hold "
                      "no NUL",
                      len, sizeof a.sun_path);
    memcpy(a.sun_path, path, len);
    memcpy(where, path, len);
    where[len] = 0;
    uint64_t deadline_ns = deadline_of(&o);
    r = dial(&a, deadline_ns, &fd);
    if (r < 0)
        return explain(&say, also, r);
    return open_over(fd, &o, deadline_ns, &say, ret);
}

glmd_conn *glmd_close(glmd_conn *c) {
    if (!c)
        return NULL;
    bool is_child = cl_check(c) < 0;
    if (!is_child && !c->error) {
        struct glmw_bye b = {.error = 0};
        cl_packet_send(c, GLMW_PKT_BYE, &b, sizeof b);
    }
    destroy(c, is_child);
    return NULL;
}

int glmd_get_error(glmd_conn *c, const char **ret_text) {
    int r = cl_check(c);
    if (ret_text)
        *ret_text = r < 0 ? "" : c->error_text;
    return r < 0 ? r : c->error;
}
