/* SPDX-License-Identifier: MIT */
/* The listening socket: made and locked here, or taken from the service manager. The lock is a file beside
 * the socket that the daemon keeps open; the kernel lets go of it however the daemon ends, so a socket
 * without a locked file is a leftover. io thread. */
#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include "clock.h"
#include "conn_impl.h"

enum { BACKLOG = 64, DYING_LISTENER_MS = 2000 };

/* A directory that is missing is a path mistyped more often than a wish. The daemon's own goes with the boot, and what
 * made it (RuntimeDirectory=, tmpfiles) does not run for everybody. */
static int see_to_parent(const char *path, const char *own_dir, struct xerr *err) {
    char dir[CONF_PATH_MAX];
    struct stat st;
    char *slash;

    snprintf(dir, sizeof dir, "%s", path);
    slash = strrchr(dir, '/');
    if (!slash || slash == dir)
        return 0;
    *slash = 0;
    if (strcmp(dir, own_dir) != 0 && !FAULT(conn_makes_any_directory)) {
        if (stat(dir, &st) == 0 || errno == EACCES) /* the lock file tells what is wrong with it */
            return 0;
        return xerr_set(err, -errno,
                        "socket directory %s: %s; expected a directory: create it, or choose another with --socket "
                        "(only %s is made when it is missing)",
                        dir, strerror(errno), own_dir);
    }
    if (mkdir(dir, 0755) == 0) {
        log_notice("made the directory %s for the socket", dir);
        return 0;
    }
    if (errno == EEXIST)
        return 0;
    return xerr_set(err, -errno,
                    "socket directory %s cannot be made: %s; create it, or choose another with --socket", dir,
                    strerror(errno));
}

static int write_pid(int fd) {
    char pid[32];
    int n = snprintf(pid, sizeof pid, "%ld\n", (long)getpid()), done = 0;

    while (ftruncate(fd, 0) < 0)
        if (errno != EINTR)
            return -errno;
    while (done < n) {
        ssize_t w = pwrite(fd, pid + done, (size_t)(n - done), done);

        if (w < 0 && errno == EINTR)
            continue;
        if (w <= 0)
            return w < 0 ? -errno : -ENOSPC;
        done += (int)w;
    }
    return 0;
}

/* The lock file stays when the daemon ends: removing it would race with a daemon that has just opened it. */
static int take_lock(struct server *s, struct xerr *err) {
    char pid[32] = "";
    ssize_t n;
    int fd, r;

    snprintf(s->lock_path, sizeof s->lock_path, "%s.lock", s->socket_path);
    fd = open(s->lock_path, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
    if (fd < 0)
        return xerr_set(
            err, -errno, "lock file %s cannot be opened: %s%s", s->lock_path, strerror(errno),
            errno == EACCES ? "; this user may not write there: choose another place with --socket" : "");
    if (flock(fd, LOCK_EX | LOCK_NB) < 0) {
        r = -errno;
        n = pread(fd, pid, sizeof pid - 1, 0);
        pid[n > 0 ? n : 0] = 0;
        pid[strcspn(pid, "\n")] = 0;
        close(fd);
        if (r == -EWOULDBLOCK)
            return xerr_set(err, -EADDRINUSE,
                            "another glmd%s%s serves %s; stop it or choose another [IPC] Socket",
                            *pid ? " with process id " : "", pid, s->socket_path);
        return xerr_set(err, r, "lock file %s cannot be locked: %s", s->lock_path, strerror(-r));
    }
    r = write_pid(fd);
    if (r < 0) {
        close(fd);
        return xerr_set(err, r, "lock file %s cannot be written: %s; is the disk full?", s->lock_path,
                        strerror(-r));
    }
    s->lock_fd = fd;
    return 0;
}

static int try_connect(const struct sockaddr_un *sa) {
    int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    int r;

    if (fd < 0)
        return -errno;
    r = connect(fd, (const struct sockaddr *)sa, sizeof *sa) < 0 ? -errno : 0;
    close(fd);
    return r;
}

/* We hold the lock, so no glmd is behind what lies at the path; but something else could be. The kernel takes
 * the ring of a glmd that was killed apart later than its lock, and the listener with it: that is waited for.
 */
static int remove_stale(const struct sockaddr_un *sa, struct xerr *err) {
    struct stat st;
    int r;

    if (lstat(sa->sun_path, &st) < 0)
        return errno == ENOENT ? 0 : xerr_set(err, -errno, "%s: %s", sa->sun_path, strerror(errno));
    if (!S_ISSOCK(st.st_mode))
        return xerr_set(err, -EEXIST,
                        "%s exists and is not a socket; move it away or choose another [IPC] Socket",
                        sa->sun_path);
    r = try_connect(sa);
    for (unsigned ms = 0;
         (r == 0 || r == -EAGAIN) && ms < DYING_LISTENER_MS && !FAULT(conn_no_patience_at_start); ms += 20) {
        usleep(20000);
        r = try_connect(sa);
    }
    if (r == 0 || r == -EPROTOTYPE || r == -EAGAIN)
        return xerr_set(err, -EADDRINUSE, "another program listens on %s; choose another [IPC] Socket",
                        sa->sun_path);
    /* only a refusal proves that nobody is behind it */
    if (r != -ECONNREFUSED)
        return xerr_set(
            err, r,
            "%s exists and cannot be tried: %s; remove it if no program uses it, or choose another "
            "[IPC] Socket",
            sa->sun_path, strerror(-r));
    if (unlink(sa->sun_path) < 0)
        return xerr_set(err, -errno, "the leftover socket %s cannot be removed: %s", sa->sun_path,
                        strerror(errno));
    log_notice("removed the leftover socket %s of a daemon that is gone", sa->sun_path);
    return 0;
}

/* The entry of a group holds the names of all its members, so its size has no bound worth trusting. */
static int find_group(const char *name, gid_t *ret) {
    struct group gr, *found = NULL;
    char *buf = NULL, *grown;
    int r = ERANGE;

    for (size_t n = 4096; r == ERANGE && n <= (16u << 20); n *= 4) {
        grown = realloc(buf, n);
        if (!grown) {
            free(buf);
            return -ENOMEM;
        }
        buf = grown;
        r = getgrnam_r(name, &gr, buf, n, &found);
    }
    if (r == 0 && found)
        *ret = gr.gr_gid;
    free(buf);
    return r ? -r : found ? 0 : -ENOENT;
}

static int set_group(const char *path, const char *group, struct xerr *err) {
    gid_t gid = 0;
    int r;

    if (!*group)
        return 0;
    r = find_group(group, &gid);
    if (r == -ENOENT)
        return xerr_set(err, -EINVAL, "[IPC] SocketGroup=%s: there is no such group", group);
    if (r < 0)
        return xerr_set(err, r, "[IPC] SocketGroup=%s cannot be looked up: %s", group, strerror(-r));
    if (chown(path, (uid_t)-1, gid) < 0)
        return xerr_set(err, -errno, "%s cannot be given to group %s: %s", path, group, strerror(errno));
    return 0;
}

static void on_accept(void *ctx, int res) {
    struct server *s = ctx;
    static struct log_rate rate;

    if (res >= 0) {
        conn_open(s, res);
        return;
    }
    log_full(LOG_LEVEL_WARNING, NULL, &rate, "a connection could not be accepted: %s", strerror(-res));
    listen_pause(s);
}

/* Out of descriptors or memory: accepting again at once would spin. */
void listen_pause(struct server *s) {
    if (!s->listener)
        return;
    /* fails when memory is short; what waits is then accepted with the next one that comes, or by the timer
     */
    loop_pause(s->opt.loop, s->listener, true);
    loop_timer_set(s->resume_listen, clock_now_ns() + 200 * CLOCK_NS_PER_MS);
}

static int start_listening(struct server *s, int fd, struct xerr *err) {
    int r;

    s->listen_fd = fd;
    r = loop_add_accept(s->opt.loop, fd, on_accept, s, &s->listener);
    if (r < 0)
        return xerr_set(err, r, "the event loop does not take the listening socket: %s", strerror(-r));
    return 0;
}

/* The name appears only when somebody listens behind it: a client that finds the socket is never refused. The
 * lock keeps the working name our own. */
static int bind_and_listen(const char *path, const char *group, int *ret_fd, struct xerr *err) {
    struct sockaddr_un sa = {.sun_family = AF_UNIX};
    mode_t old;
    int fd, r;

    fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0)
        return xerr_set(err, -errno, "no socket: %s", strerror(errno));
    snprintf(sa.sun_path, sizeof sa.sun_path, "%s~", path);
    unlink(sa.sun_path);
    /* owner and group may connect, from the moment the name exists */
    old = umask(0117);
    r = bind(fd, (const struct sockaddr *)&sa, sizeof sa) < 0 ? -errno : 0;
    umask(old);
    if (r < 0) {
        close(fd);
        return xerr_set(err, r, "socket %s cannot be made: %s", path, strerror(-r));
    }
    r = set_group(sa.sun_path, group, err);
    if (r == 0 && listen(fd, BACKLOG) < 0)
        r = xerr_set(err, -errno, "socket %s does not listen: %s", path, strerror(errno));
    if (r == 0 && rename(sa.sun_path, path) < 0)
        r = xerr_set(err, -errno, "socket %s cannot be put in place: %s", path, strerror(errno));
    if (r < 0) {
        close(fd);
        unlink(sa.sun_path);
        return r;
    }
    *ret_fd = fd;
    return 0;
}

int server_listen_path(struct server *s, const char *path, const char *own_dir, const char *group, struct xerr *err) {
    struct sockaddr_un sa = {.sun_family = AF_UNIX};
    struct stat st;
    int fd = -1, r;

    /* one byte for the working name, one for the NUL */
    if (strlen(path) + 2 > sizeof sa.sun_path)
        return xerr_set(err, -ENAMETOOLONG, "socket path %s is %zu bytes long, at most %zu are possible; choose a "
                        "shorter [IPC] Socket",
                        path, strlen(path), sizeof sa.sun_path - 2);
    snprintf(sa.sun_path, sizeof sa.sun_path, "%s", path);
    snprintf(s->socket_path, sizeof s->socket_path, "%s", path);
    r = see_to_parent(path, own_dir, err);
    if (r == 0)
        r = take_lock(s, err);
    if (r == 0)
        r = remove_stale(&sa, err);
    if (r == 0)
        r = bind_and_listen(path, group, &fd, err);
    if (r < 0) {
        s->socket_path[0] = 0;
        return r;
    }
    /* without knowing what we made we could never remove it again */
    if (lstat(path, &st) < 0) {
        r = xerr_set(err, -errno, "socket %s has been made and cannot be looked at: %s", path,
                     strerror(errno));
        unlink(path);
        close(fd);
        s->socket_path[0] = 0;
        return r;
    }
    s->socket_dev = st.st_dev;
    s->socket_ino = st.st_ino;
    return start_listening(s, fd, err);
}

int server_listen_fd(struct server *s, int fd, struct xerr *err) {
    int type = 0, listening = 0;
    socklen_t n = sizeof type;
    struct sockaddr_storage sa;
    socklen_t sa_len = sizeof sa;

    if (getsockopt(fd, SOL_SOCKET, SO_TYPE, &type, &n) < 0 ||
        (n = sizeof listening, getsockopt(fd, SOL_SOCKET, SO_ACCEPTCONN, &listening, &n)) < 0 ||
        getsockname(fd, (struct sockaddr *)&sa, &sa_len) < 0 || sa.ss_family != AF_UNIX ||
        type != SOCK_SEQPACKET || !listening) {
        close(fd);
        return xerr_set(
            err, -EINVAL,
            "the descriptor from the service manager is not a listening Unix socket of sequential "
            "packets; the socket unit needs ListenSequentialPacket=");
    }
    fcntl(fd, F_SETFL, O_NONBLOCK);
    fcntl(fd, F_SETFD, FD_CLOEXEC);
    return start_listening(s, fd, err);
}

void server_stop_listening(struct server *s) {
    struct stat st;

    /* The name goes before the listener. Somebody may have removed directory, socket and lock, and another
     * daemon may serve the path now. */
    if (s->socket_path[0] && lstat(s->socket_path, &st) == 0 &&
        ((st.st_dev == s->socket_dev && st.st_ino == s->socket_ino) || FAULT(conn_unlinks_any_socket)))
        unlink(s->socket_path);
    s->socket_path[0] = 0;
    loop_del(s->opt.loop, s->listener);
    s->listener = NULL;
    if (s->listen_fd >= 0)
        close(s->listen_fd);
    s->listen_fd = -1;
}
