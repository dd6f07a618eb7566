/* SPDX-License-Identifier: MIT */
/* Log lines. The destination is fixed by log_init before threads start; afterwards every function may be
 * called from any thread: a line is built on the stack and leaves in one system call. */
#include "log.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include "clock.h"

#define JOURNAL_SOCKET "/run/systemd/journal/socket"

static struct {
    int fd;
    int journal_fd; /* -1: plain lines */
    bool is_tty;    /* a person reads along: words in place of priorities */
    _Atomic int level;
    _Atomic uint32_t lost; /* lines for which there was no room */
} out = {.fd = 2, .journal_fd = -1, .level = LOG_LEVEL_INFO};

static const char *const message_ids[LOG_EV_COUNT] = {
    [LOG_EV_READY] = "b8830123394c8dd186412286d58cc0c8",
    [LOG_EV_DRAINING] = "d422a1dba30a6f1e2e17b47e0df7bc7a",
    [LOG_EV_CONN_REJECTED] = "395aa8bb46714c2a39533f8bcf204b9d",
    [LOG_EV_PROTOCOL] = "4ed20b116bf01453e2c54d87768ddf7b",
    [LOG_EV_QUOTA] = "e56007d5942466625b734f53b28d26ba",
    [LOG_EV_STALLED] = "0efe874f11b7808e43537fbf7ee2c427",
    [LOG_EV_DEVICE_LOST] = "65dd23b41c9a52ba6ea8ad4ab714aa7d",
    [LOG_EV_IO_FALLBACK] = "6e4c8f6681aa4003a130e1ba10a2b6bb",
};

/* $JOURNAL_STREAM holds "device:inode" of the stream the service manager connected; a shell that inherited
 * the variable but redirected standard error is told apart by comparing them. */
static bool is_journal_stream(int fd) {
    const char *s = getenv("JOURNAL_STREAM");
    unsigned long long dev, ino;
    struct stat st;
    char *end;

    if (!s)
        return false;
    errno = 0;
    dev = strtoull(s, &end, 10);
    if (errno || *end != ':')
        return false;
    ino = strtoull(end + 1, &end, 10);
    if (errno || *end)
        return false;
    return fstat(fd, &st) == 0 && st.st_dev == (dev_t)dev && st.st_ino == (ino_t)ino;
}

void log_init(int fd, const char *journal_path) {
    struct sockaddr_un sa = {.sun_family = AF_UNIX};
    const char *path = journal_path ? journal_path : JOURNAL_SOCKET;
    int s;

    if (out.journal_fd >= 0)
        close(out.journal_fd);
    out.journal_fd = -1;
    out.fd = fd;
    out.is_tty = isatty(fd);
    if (!is_journal_stream(fd) || strlen(path) >= sizeof sa.sun_path)
        return;
    memcpy(sa.sun_path, path, strlen(path) + 1);
    s = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    if (s < 0)
        return;
    if (connect(s, (struct sockaddr *)&sa, sizeof sa) < 0) {
        close(s);
        return;
    }
    out.journal_fd = s;
}

void log_set_level(enum log_level max) {
    atomic_store_explicit(&out.level, (int)max, memory_order_relaxed);
}

enum log_level log_get_level(void) {
    return (enum log_level)atomic_load_explicit(&out.level, memory_order_relaxed);
}

int log_level_from_name(const char *name, enum log_level *ret) {
    static const struct {
        const char *name;
        enum log_level level;
    } names[] = {
        {"error", LOG_LEVEL_ERROR}, {"warning", LOG_LEVEL_WARNING}, {"notice", LOG_LEVEL_NOTICE},
        {"info", LOG_LEVEL_INFO},   {"debug", LOG_LEVEL_DEBUG},
    };

    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++)
        if (strcmp(name, names[i].name) == 0) {
            *ret = names[i].level;
            return 0;
        }
    return -EINVAL;
}

struct line {
    char s[2048];
    size_t n;
};

__attribute__((format(printf, 2, 3))) static void put(struct line *l, const char *fmt, ...) {
    va_list ap;
    int n;

    va_start(ap, fmt);
    n = vsnprintf(l->s + l->n, sizeof l->s - l->n, fmt, ap);
    va_end(ap);
    if (n > 0)
        l->n += (size_t)n < sizeof l->s - l->n ? (size_t)n : sizeof l->s - l->n - 1;
}

/* A message is one line of printable text: a control byte in a path must not forge a second line. */
static void make_printable(char *s) {
    for (; *s; s++)
        if ((unsigned char)*s < 0x20 || *s == 0x7f)
            *s = '?';
}

/* A reader that stops must not stop the daemon with it: without room the line is lost, and counted. Room is
 * for at least a page, which is more than a line. */
static void write_line(enum log_level level, const struct line *l) {
    struct pollfd p = {.fd = out.fd, .events = POLLOUT};
    uint32_t lost;
    ssize_t r;

    if (poll(&p, 1, level == LOG_LEVEL_ERROR ? 100 : 0) == 0) {
        atomic_fetch_add_explicit(&out.lost, 1, memory_order_relaxed);
        return;
    }
    lost = atomic_exchange_explicit(&out.lost, 0, memory_order_relaxed);
    if (lost) {
        char msg[80];
        int n = snprintf(msg, sizeof msg, "%s%u log lines were lost: nobody read them\n",
                         out.is_tty ? "glmd: warning: " : "<4>", lost);

        do
            r = write(out.fd, msg, (size_t)n);
        while (r < 0 && errno == EINTR);
    }
    do
        r = write(out.fd, l->s, l->n);
    while (r < 0 && errno == EINTR);
}

static void emit_line(enum log_level level, const char *file, int line, const struct log_fields *f,
                      const char *msg) {
    struct line l = {.n = 0};
    ssize_t r;

    if (out.journal_fd >= 0) {
        put(&l, "MESSAGE=%s\nPRIORITY=%d\nSYSLOG_IDENTIFIER=glmd\nCODE_FILE=%s\nCODE_LINE=%d\n", msg,
            (int)level, file, line);
        if (f && f->event > LOG_EV_NONE && f->event < LOG_EV_COUNT)
            put(&l, "MESSAGE_ID=%s\n", message_ids[f->event]);
        if (f && f->conn)
            put(&l, "GLMD_CONN=%u\n", f->conn);
        if (f && f->uid != LOG_NO_UID)
            put(&l, "GLMD_UID=%llu\n", (unsigned long long)f->uid);
        if (f && f->tag)
            put(&l, "GLMD_TAG=%llu\n", (unsigned long long)f->tag);
        /* a full journal must not stop the daemon: the line is lost instead */
        r = send(out.journal_fd, l.s, l.n, MSG_DONTWAIT | MSG_NOSIGNAL);
        if (r >= 0)
            return;
        l.n = 0;
    }
    if (out.is_tty)
        put(&l, "glmd: %s%s",
            level <= LOG_LEVEL_ERROR     ? "error: "
            : level == LOG_LEVEL_WARNING ? "warning: "
                                         : "",
            msg);
    else
        put(&l, "<%d>%s", (int)level, msg);
    if (f && f->conn)
        put(&l, " conn=%u", f->conn);
    if (f && f->uid != LOG_NO_UID)
        put(&l, " uid=%llu", (unsigned long long)f->uid);
    if (f && f->tag)
        put(&l, " tag=%llu", (unsigned long long)f->tag);
    put(&l, "\n");
    if (l.s[l.n - 1] != '\n')
        l.s[l.n - 1] = '\n';
    write_line(level, &l);
}

/* True when the line may go out. */
static bool rate_allows(struct log_rate *r, enum log_level level, const char *file, int line,
                        const struct log_fields *f) {
    uint64_t now = clock_now_ns();

    if (!r)
        return true;
    if (r->since_ns == 0 || now - r->since_ns >= LOG_RATE_NS) {
        uint32_t dropped = r->dropped;

        r->since_ns = now;
        r->lines = 0;
        r->dropped = 0;
        if (dropped) {
            char msg[96];

            snprintf(msg, sizeof msg, "%u lines of this source were left out", dropped);
            emit_line(level, file, line, f, msg);
        }
    }
    if (r->lines >= LOG_RATE_BURST) {
        r->dropped++;
        return false;
    }
    r->lines++;
    return true;
}

void log_write(enum log_level level, const char *file, int line, const struct log_fields *f,
               struct log_rate *rate, const char *fmt, ...) {
    int saved = errno;
    char msg[1024];
    va_list ap;

    if ((int)level > atomic_load_explicit(&out.level, memory_order_relaxed))
        return;
    if (rate_allows(rate, level, file, line, f)) {
        va_start(ap, fmt);
        vsnprintf(msg, sizeof msg, fmt, ap);
        va_end(ap);
        make_printable(msg);
        emit_line(level, file, line, f, msg);
    }
    errno = saved;
}
