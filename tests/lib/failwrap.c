/* SPDX-License-Identifier: MIT */
/* Linked into programs whose calls shall fail, with --wrap for every name in failwrap.syms. Each function
 * counts and either does its work or pretends that the system refused; errors are such as the system gives
 * for that call. Runs on any thread of the program, also before main. Writing to descriptor 2 never fails: it
 * is how a failure is told.
 *
 * What cannot fail for want of something (a lookup in memory, closing) is not taken;
 * tests/system/failcalls.sh holds the list of those and compares both with what the objects call. */
#include <errno.h>
#include <fcntl.h>
#include <jansson.h>
#include <liburing.h>
#include <poll.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/vfs.h>
#include <unistd.h>

#include "failctl.h"

#pragma GCC diagnostic ignored "-Wmissing-declarations"

static struct failctl own;
struct failctl *failctl_self = &own;
extern char __executable_start;
long __real_syscall(long number, ...);

enum { BURST_WHILE = 5, BURST_INTR = 20, BURST_SHORT = 4 };
enum { CAN_INTR = 1, CAN_SHORT = 2 };

static void *from_outside(const char *path) {
    int fd = (int)__real_syscall(SYS_openat, AT_FDCWD, path, O_RDWR | O_CLOEXEC);
    void *p = MAP_FAILED;

    if (fd >= 0) {
        p = (void *)__real_syscall(SYS_mmap, NULL, sizeof(struct failctl), PROT_READ | PROT_WRITE, MAP_SHARED,
                                   fd, 0);
        close(fd);
    }
    if (p == MAP_FAILED)
        abort();
    return p;
}

__attribute__((constructor(101))) static void attach(void) {
    const char *path = getenv("GLMD_FAIL");

    if (path)
        failctl_self = from_outside(path);
}

/* True: this call does not happen. once == 0: the system does not refuse this call. */
static bool fails(const char *name, unsigned can, int once, int ever, const void *caller) {
    struct failctl *c = failctl_self;
    uint32_t mode = atomic_load(&c->mode);
    uint64_t n, at;
    bool hit;

    if (mode == FAIL_OFF || (mode == FAIL_INTR && !(can & CAN_INTR)) ||
        (mode == FAIL_SHORT && !(can & CAN_SHORT)) || (mode <= FAIL_WHILE && !once) ||
        (c->only[0] && strcmp(c->only, name) != 0))
        return false;
    n = atomic_fetch_add(&c->calls, 1) + 1;
    at = atomic_load(&c->at);
    switch (mode) {
    case FAIL_ONCE:
        hit = n == at;
        break;
    case FAIL_EVER:
        hit = n >= at;
        break;
    case FAIL_WHILE:
        hit = n >= at && n < at + BURST_WHILE;
        break;
    case FAIL_INTR:
        hit = n >= at && n < at + BURST_INTR;
        break;
    default:
        hit = n >= at && n < at + BURST_SHORT;
    }
    if (!hit)
        return false;
    if (atomic_fetch_add(&c->failed, 1) == 0) {
        snprintf(c->name, sizeof c->name, "%s", name);
        atomic_store(&c->where, (uint64_t)((const char *)caller - &__executable_start));
    }
    errno = mode == FAIL_INTR ? EINTR : mode == FAIL_ONCE ? once : ever;
    return true;
}

#define FAILS(name, can, once, ever) fails(#name, can, once, ever, __builtin_return_address(0))
#define IS_SHORT()                   (atomic_load(&failctl_self->mode) == FAIL_SHORT)

static bool is_file(int fd) {
    struct stat st;

    return __real_syscall(SYS_newfstatat, fd, "", &st, AT_EMPTY_PATH) == 0 && S_ISREG(st.st_mode);
}

/* ---- memory
 * ----------------------------------------------------------------------------------------------------- */

static void *counted(void *p) {
    if (p)
        atomic_fetch_add(&failctl_self->blocks, 1);
    return p;
}

#define MEMORY(name, args, pass)                                                                             \
    void *__real_##name args;                                                                                \
    void *__wrap_##name args;                                                                                \
    void *__wrap_##name args {                                                                               \
        return FAILS(name, 0, ENOMEM, ENOMEM) ? NULL : counted(__real_##name pass);                          \
    }

MEMORY(malloc, (size_t n), (n))
MEMORY(calloc, (size_t n, size_t size), (n, size))
MEMORY(aligned_alloc, (size_t align, size_t n), (align, n))
MEMORY(strdup, (const char *s), (s))
/* its text is freed as if it were of malloc() */
MEMORY(json_dumps, (const json_t *v, size_t flags), (v, flags))

void *__real_realloc(void *p, size_t n);
void *__wrap_realloc(void *p, size_t n);
void *__wrap_realloc(void *p, size_t n) {
    if (FAILS(realloc, 0, ENOMEM, ENOMEM))
        return NULL;
    return p ? __real_realloc(p, n) : counted(__real_realloc(p, n));
}

void *__real_reallocarray(void *p, size_t n, size_t size);
void *__wrap_reallocarray(void *p, size_t n, size_t size);
void *__wrap_reallocarray(void *p, size_t n, size_t size) {
    if (FAILS(reallocarray, 0, ENOMEM, ENOMEM))
        return NULL;
    return p ? __real_reallocarray(p, n, size) : counted(__real_reallocarray(p, n, size));
}

void __real_free(void *p);
void __wrap_free(void *p);
void __wrap_free(void *p) {
    if (p)
        atomic_fetch_sub(&failctl_self->blocks, 1);
    __real_free(p);
}

int __wrap_asprintf(char **ret, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
int __wrap_asprintf(char **ret, const char *fmt, ...) {
    va_list ap;
    int n;

    if (FAILS(asprintf, 0, ENOMEM, ENOMEM))
        return -1;
    va_start(ap, fmt);
    n = vasprintf(ret, fmt, ap);
    va_end(ap);
    if (n >= 0)
        counted(*ret);
    return n;
}

void *__real_mmap(void *addr, size_t len, int prot, int flags, int fd, off_t off);
void *__wrap_mmap(void *addr, size_t len, int prot, int flags, int fd, off_t off);
void *__wrap_mmap(void *addr, size_t len, int prot, int flags, int fd, off_t off) {
    void *p = FAILS(mmap, 0, ENOMEM, EAGAIN) ? MAP_FAILED : __real_mmap(addr, len, prot, flags, fd, off);

    if (p != MAP_FAILED)
        atomic_fetch_add(&failctl_self->maps, 1);
    return p;
}

int __real_munmap(void *p, size_t n);
int __wrap_munmap(void *p, size_t n);
int __wrap_munmap(void *p, size_t n) {
    atomic_fetch_sub(&failctl_self->maps, 1);
    return __real_munmap(p, n);
}

/* ---- calls that give 0 or a number, and -1
 * ---------------------------------------------------------------------- */

#define CALL(type, name, can, once, ever, args, pass)                                                        \
    type __real_##name args;                                                                                 \
    type __wrap_##name args;                                                                                 \
    type __wrap_##name args {                                                                                \
        return FAILS(name, can, once, ever) ? (type)-1 : __real_##name pass;                                 \
    }

CALL(int, madvise, 0, ENOMEM, EAGAIN, (void *p, size_t n, int advice), (p, n, advice))
CALL(int, memfd_create, 0, EMFILE, ENOMEM, (const char *name, unsigned flags), (name, flags))
CALL(int, ftruncate, CAN_INTR, ENOSPC, EIO, (int fd, off_t n), (fd, n))
CALL(int, fallocate, CAN_INTR, ENOSPC, ENOMEM, (int fd, int mode, off_t at, off_t n), (fd, mode, at, n))
CALL(int, flock, 0, ENOLCK, ENOLCK, (int fd, int op), (fd, op))
CALL(int, mkdir, 0, ENOSPC, EDQUOT, (const char *path, mode_t mode), (path, mode))
CALL(int, rename, 0, ENOSPC, EIO, (const char *from, const char *to), (from, to))
CALL(int, chown, 0, EPERM, EIO, (const char *path, uid_t uid, gid_t gid), (path, uid, gid))
CALL(int, stat, 0, ENOMEM, EIO, (const char *path, struct stat *st), (path, st))
CALL(int, lstat, 0, ENOMEM, EIO, (const char *path, struct stat *st), (path, st))
CALL(int, fstat, 0, ENOMEM, EIO, (int fd, struct stat *st), (fd, st))
CALL(int, fstatfs, CAN_INTR, ENOMEM, EIO, (int fd, struct statfs *st), (fd, st))
CALL(int, fstatvfs, CAN_INTR, ENOMEM, EIO, (int fd, struct statvfs *st), (fd, st))
CALL(int, fdatasync, 0, EIO, ENOSPC, (int fd), (fd))
CALL(int, fsync, 0, EIO, ENOSPC, (int fd), (fd))
CALL(off_t, lseek, 0, EOVERFLOW, EIO, (int fd, off_t at, int whence), (fd, at, whence))
CALL(int, eventfd, 0, EMFILE, ENOMEM, (unsigned n, int flags), (n, flags))
CALL(int, pipe2, 0, EMFILE, ENFILE, (int fds[2], int flags), (fds, flags))
CALL(int, epoll_create1, 0, EMFILE, ENOMEM, (int flags), (flags))
CALL(int, epoll_wait, CAN_INTR, 0, 0, (int fd, struct epoll_event *ev, int n, int ms), (fd, ev, n, ms))
CALL(int, poll, CAN_INTR, ENOMEM, EAGAIN, (struct pollfd * p, nfds_t n, int ms), (p, n, ms))
CALL(int, ppoll, CAN_INTR, ENOMEM, EAGAIN,
     (struct pollfd * p, nfds_t n, const struct timespec *t, const sigset_t *set), (p, n, t, set))
CALL(int, signalfd, 0, EMFILE, ENOMEM, (int fd, const sigset_t *set, int flags), (fd, set, flags))
CALL(int, timerfd_create, 0, EMFILE, ENOMEM, (int clock, int flags), (clock, flags))
CALL(int, socket, 0, EMFILE, ENOBUFS, (int domain, int type, int protocol), (domain, type, protocol))
CALL(int, bind, 0, ENOSPC, EACCES, (int fd, const struct sockaddr *sa, socklen_t n), (fd, sa, n))
CALL(int, listen, 0, EADDRINUSE, EADDRINUSE, (int fd, int n), (fd, n))
CALL(int, connect, CAN_INTR, EAGAIN, EAGAIN, (int fd, const struct sockaddr *sa, socklen_t n), (fd, sa, n))
CALL(int, accept4, CAN_INTR, ECONNABORTED, EMFILE, (int fd, struct sockaddr *sa, socklen_t *n, int flags),
     (fd, sa, n, flags))
CALL(int, getsockopt, 0, ENOBUFS, ENOBUFS, (int fd, int level, int name, void *v, socklen_t *n),
     (fd, level, name, v, n))
CALL(int, setsockopt, 0, ENOMEM, ENOBUFS, (int fd, int level, int name, const void *v, socklen_t n),
     (fd, level, name, v, n))
CALL(int, getsockname, 0, ENOBUFS, ENOBUFS, (int fd, struct sockaddr *sa, socklen_t *n), (fd, sa, n))
CALL(int, getrlimit, 0, EPERM, EPERM, (__rlimit_resource_t what, struct rlimit *rl), (what, rl))
CALL(int, setrlimit, 0, EPERM, EPERM, (__rlimit_resource_t what, const struct rlimit *rl), (what, rl))
CALL(ssize_t, recvmsg, CAN_INTR, ENOMEM, ENOBUFS, (int fd, struct msghdr *m, int flags), (fd, m, flags))
CALL(ssize_t, sendmsg, CAN_INTR, ENOBUFS, ENOMEM, (int fd, const struct msghdr *m, int flags), (fd, m, flags))
CALL(ssize_t, send, CAN_INTR, ENOBUFS, EAGAIN, (int fd, const void *p, size_t n, int flags),
     (fd, p, n, flags))
CALL(ssize_t, getrandom, CAN_INTR, ENOSYS, ENOSYS, (void *p, size_t n, unsigned flags), (p, n, flags))

int __real_epoll_ctl(int fd, int op, int to, struct epoll_event *ev);
int __wrap_epoll_ctl(int fd, int op, int to, struct epoll_event *ev);
int __wrap_epoll_ctl(int fd, int op, int to, struct epoll_event *ev) {
    /* taking out needs nothing, and the kernel never refuses it */
    return op != EPOLL_CTL_DEL && FAILS(epoll_ctl, 0, ENOMEM, ENOSPC) ? -1 : __real_epoll_ctl(fd, op, to, ev);
}

int __real_open(const char *path, int flags, ...);
int __wrap_open(const char *path, int flags, mode_t mode);
int __wrap_open(const char *path, int flags, mode_t mode) {
    return FAILS(open, 0, EMFILE, ENFILE) ? -1 : __real_open(path, flags, mode);
}

int __real_fcntl(int fd, int op, ...);
int __wrap_fcntl(int fd, int op, unsigned long arg);
int __wrap_fcntl(int fd, int op, unsigned long arg) {
    /* of the operations in use, those that the system may refuse */
    if ((op == F_ADD_SEALS || op == F_SETPIPE_SZ) && FAILS(fcntl, 0, EPERM, EBUSY))
        return -1;
    return __real_fcntl(fd, op, arg);
}

/* Only what the io_uring backend asks for by number, because its library has no function for it. */
long __wrap_syscall(long number, long a, long b, long c, long d, long e, long f);
long __wrap_syscall(long number, long a, long b, long c, long d, long e, long f) {
    if (number == SYS_io_uring_register && FAILS(syscall, 0, ENOMEM, EINVAL))
        return -1;
    return __real_syscall(number, a, b, c, d, e, f);
}

/* ---- bytes
 * ------------------------------------------------------------------------------------------------------ */

ssize_t __real_read(int fd, void *p, size_t n);
ssize_t __wrap_read(int fd, void *p, size_t n);
ssize_t __wrap_read(int fd, void *p, size_t n) {
    bool file = is_file(fd);

    if (FAILS(read, CAN_INTR | (file && n > 1 ? CAN_SHORT : 0), file ? EIO : 0, EIO)) {
        if (!IS_SHORT())
            return -1;
        n /= 2;
    }
    return __real_read(fd, p, n);
}

ssize_t __real_write(int fd, const void *p, size_t n);
ssize_t __wrap_write(int fd, const void *p, size_t n);
ssize_t __wrap_write(int fd, const void *p, size_t n) {
    struct stat st;
    bool pipe = __real_syscall(SYS_newfstatat, fd, "", &st, AT_EMPTY_PATH) == 0 && S_ISFIFO(st.st_mode);

    if (fd != 2 && FAILS(write, CAN_INTR, pipe ? ENOMEM : 0, ENOMEM))
        return -1;
    return __real_write(fd, p, n);
}

#define BYTES(name, once, ever, type, arg, many)                                                             \
    ssize_t __real_##name(int fd, type p, arg n, off_t at);                                                  \
    ssize_t __wrap_##name(int fd, type p, arg n, off_t at);                                                  \
    ssize_t __wrap_##name(int fd, type p, arg n, off_t at) {                                                 \
        if (FAILS(name, CAN_INTR | (many > 1 ? CAN_SHORT : 0), once, ever)) {                                \
            if (!IS_SHORT())                                                                                 \
                return -1;                                                                                   \
            n /= 2;                                                                                          \
        }                                                                                                    \
        return __real_##name(fd, p, n, at);                                                                  \
    }

BYTES(pread, EIO, EIO, void *, size_t, n)
BYTES(pwrite, ENOSPC, EIO, const void *, size_t, n)
BYTES(preadv, EIO, EIO, const struct iovec *, int, n)

/* ---- calls that give NULL
 * --------------------------------------------------------------------------------------- */

#define POINTER(type, name, once, ever, args, pass)                                                          \
    type __real_##name args;                                                                                 \
    type __wrap_##name args;                                                                                 \
    type __wrap_##name args {                                                                                \
        return FAILS(name, 0, once, ever) ? NULL : __real_##name pass;                                       \
    }

POINTER(FILE *, fopen, EMFILE, ENOMEM, (const char *path, const char *mode), (path, mode))
POINTER(FILE *, fdopen, ENOMEM, ENOMEM, (int fd, const char *mode), (fd, mode))
POINTER(void *, opendir, EMFILE, ENOMEM, (const char *path), (path))
POINTER(char *, getcwd, ENOMEM, ENOMEM, (char *p, size_t n), (p, n))

static void no_json(json_error_t *err) {
    if (err)
        snprintf(err->text, sizeof err->text, "out of memory");
}

json_t *__real_json_loadb(const char *p, size_t n, size_t flags, json_error_t *err);
json_t *__wrap_json_loadb(const char *p, size_t n, size_t flags, json_error_t *err);
json_t *__wrap_json_loadb(const char *p, size_t n, size_t flags, json_error_t *err) {
    if (FAILS(json_loadb, 0, ENOMEM, ENOMEM))
        return no_json(err), NULL;
    return __real_json_loadb(p, n, flags, err);
}

#define MAKES(name, params, args)                                                                            \
    json_t *__real_##name params;                                                                            \
    json_t *__wrap_##name params;                                                                            \
    json_t *__wrap_##name params {                                                                           \
        return FAILS(name, 0, ENOMEM, ENOMEM) ? NULL : __real_##name args;                                   \
    }
MAKES(json_object, (void), ())
MAKES(json_array, (void), ())
MAKES(json_integer, (json_int_t v), (v))
MAKES(json_real, (double v), (v))
MAKES(json_string, (const char *s), (s))
MAKES(json_stringn_nocheck, (const char *s, size_t n), (s, n))

int __real_json_object_set_new(json_t *o, const char *key, json_t *v);
int __wrap_json_object_set_new(json_t *o, const char *key, json_t *v);
int __wrap_json_object_set_new(json_t *o, const char *key, json_t *v) {
    if (!FAILS(json_object_set_new, 0, ENOMEM, ENOMEM))
        return __real_json_object_set_new(o, key, v);
    json_decref(v);
    return -1;
}

int __real_json_array_append_new(json_t *a, json_t *v);
int __wrap_json_array_append_new(json_t *a, json_t *v);
int __wrap_json_array_append_new(json_t *a, json_t *v) {
    if (!FAILS(json_array_append_new, 0, ENOMEM, ENOMEM))
        return __real_json_array_append_new(a, v);
    json_decref(v);
    return -1;
}

/* What it was handed to keep is let go, as it does itself when it fails: the format is read for that. */
json_t *__wrap_json_pack(const char *fmt, ...);
json_t *__wrap_json_pack(const char *fmt, ...) {
    json_t *v;
    va_list ap;

    va_start(ap, fmt);
    v = json_vpack_ex(NULL, 0, fmt, ap);
    va_end(ap);
    if (v && FAILS(json_pack, 0, ENOMEM, ENOMEM)) {
        json_decref(v);
        v = NULL;
    }
    return v;
}

int __real_access(const char *path, int mode);
int __wrap_access(const char *path, int mode);
int __wrap_access(const char *path, int mode) {
    if (!FAILS(access, 0, ENOMEM, EACCES))
        return __real_access(path, mode);
    return -1;
}

json_t *__real_json_loadf(FILE *f, size_t flags, json_error_t *err);
json_t *__wrap_json_loadf(FILE *f, size_t flags, json_error_t *err);
json_t *__wrap_json_loadf(FILE *f, size_t flags, json_error_t *err) {
    if (FAILS(json_loadf, 0, ENOMEM, ENOMEM))
        return no_json(err), NULL;
    return __real_json_loadf(f, flags, err);
}

/* ---- calls that give the error itself
 * --------------------------------------------------------------------------- */

#define NUMBER(name, sign, can, once, ever, args, pass)                                                      \
    int __real_##name args;                                                                                  \
    int __wrap_##name args;                                                                                  \
    int __wrap_##name args {                                                                                 \
        return FAILS(name, can, once, ever) ? sign errno : __real_##name pass;                               \
    }

NUMBER(pthread_create, +, 0, EAGAIN, EAGAIN,
       (pthread_t * th, const pthread_attr_t *attr, void *(*fn)(void *), void *arg), (th, attr, fn, arg))
NUMBER(pthread_atfork, +, 0, ENOMEM, ENOMEM, (void (*a)(void), void (*b)(void), void (*c)(void)), (a, b, c))
NUMBER(sd_listen_fds, -, 0, ENOMEM, EINVAL, (int unset), (unset))
NUMBER(io_uring_queue_init_params, -, 0, ENOMEM, EPERM,
       (unsigned n, struct io_uring *r, struct io_uring_params *p), (n, r, p))
NUMBER(io_uring_submit, -, CAN_INTR, EAGAIN, EBUSY, (struct io_uring * r), (r))
NUMBER(io_uring_submit_and_get_events, -, CAN_INTR, EAGAIN, EBUSY, (struct io_uring * r), (r))
NUMBER(io_uring_submit_and_wait_timeout, -, CAN_INTR, EAGAIN, EBUSY,
       (struct io_uring * r, struct io_uring_cqe **cqe, unsigned n, struct __kernel_timespec *ts,
        sigset_t *set),
       (r, cqe, n, ts, set))
