/* SPDX-License-Identifier: MIT */
/* Opening, refusing, asking, closing: everything around the streams themselves. */
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

#include "clienttest.h"
#include "fakedaemon.h"

static char err[256];

static struct glmd_options options(const char *path) {
    err[0] = 0;
    struct glmd_options o = {.size = sizeof o, .error = err, .error_bytes = sizeof err, .timeout_ms = 300};
    o.socket_path = path;
    o.socket_path_len = path ? strlen(path) : 0;
    return o;
}

static void refuses(const char *path, int want, const char *word) {
    struct glmd_options o = options(path);
    glmd_conn *c = NULL;
    ck_assert_int_eq(glmd_connect(&o, &c), want);
    ck_assert_ptr_null(c);
    ck_assert_msg(strstr(err, word) != NULL, "\"%s\" does not say \"%s\"", err, word);
    if (path && *path && strlen(path) < 100)
        ck_assert_msg(strstr(err, path) != NULL, "\"%s\" does not name %s", err, path);
    ck_assert_ptr_null(strchr(err, '\n'));
}

static int listen_on(const char *path, int type) {
    struct sockaddr_un a = {.sun_family = AF_UNIX};
    int fd = socket(AF_UNIX, type | SOCK_CLOEXEC, 0);
    snprintf(a.sun_path, sizeof a.sun_path, "%s", path);
    ck_assert_int_eq(bind(fd, (struct sockaddr *)&a, sizeof a), 0);
    ck_assert_int_eq(listen(fd, 1), 0);
    return fd;
}

START_TEST(no_daemon) {
    char dir[] = "/tmp/glmd-api-XXXXXX", path[64], file[64], lng[200];
    ck_assert(mkdtemp(dir) != NULL);
    snprintf(path, sizeof path, "%s/sock", dir);
    snprintf(file, sizeof file, "%s/file", dir);
    refuses(path, -ENOENT, "start glmd");
    int fd = open(file, O_CREAT | O_RDWR | O_CLOEXEC, 0600);
    refuses(file, -ECONNREFUSED, "not a socket");
    fd = (close(fd), listen_on(path, SOCK_STREAM));
    refuses(path, -EPROTOTYPE, "another program");
    close(fd);
    unlink(path);
    /* a socket whose daemon died */
    fd = listen_on(path, SOCK_SEQPACKET);
    close(fd);
    refuses(path, -ECONNREFUSED, "nobody listens");
    unlink(path);
    /* a daemon that does not answer, and one that takes no connection at all */
    fd = listen_on(path, SOCK_SEQPACKET);
    refuses(path, -ETIMEDOUT, "did not answer");
    int more[8], n = 0;
    struct sockaddr_un a = {.sun_family = AF_UNIX};
    snprintf(a.sun_path, sizeof a.sun_path, "%s", path);
    while (n < 8) {
        more[n] = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
        if (connect(more[n++], (struct sockaddr *)&a, sizeof a) < 0)
            break;
    }
    refuses(path, -ETIMEDOUT, "overloaded");
    while (n)
        close(more[--n]);
    close(fd);
    unlink(path);
    memset(lng, 'a', sizeof lng - 1);
    lng[sizeof lng - 1] = 0;
    refuses(lng, -ENAMETOOLONG, "shorter than");
    refuses("", -EINVAL, "empty");
    unlink(file);
    rmdir(dir);
}
END_TEST

/* Root is never refused by a mode, so the test becomes somebody else for the call. */
START_TEST(no_permission) {
    char dir[] = "/tmp/glmd-api-XXXXXX", path[64];
    ck_assert(mkdtemp(dir) != NULL);
    ck_assert_int_eq(chmod(dir, 0755), 0);
    snprintf(path, sizeof path, "%s/sock", dir);
    int fd = listen_on(path, SOCK_SEQPACKET);
    ck_assert_int_eq(chmod(path, 0), 0);
    if (geteuid() == 0)
        ck_assert_int_eq(seteuid(65534), 0);
    refuses(path, -EACCES, "group");
    if (getuid() == 0)
        ck_assert_int_eq(seteuid(0), 0);
    close(fd);
    unlink(path);
    rmdir(dir);
}
END_TEST

/* A place that cannot exist must not decide a test: this machine may have a daemon of its own. */
static bool system_daemon(void) {
    return access(GLMD_DEFAULT_SOCKET, F_OK) == 0;
}

static void finds(int want, const char *word) {
    struct glmd_options o = options(NULL);
    glmd_conn *c = NULL;
    ck_assert_int_eq(glmd_connect(&o, &c), want);
    ck_assert_msg(strstr(err, word) != NULL, "\"%s\" does not say \"%s\"", err, word);
}

START_TEST(search_order) {
    char dir[] = "/tmp/glmd-api-XXXXXX", sub[64], path[80], lng[200];
    ck_assert(mkdtemp(dir) != NULL);
    snprintf(sub, sizeof sub, "%s/glmd", dir);
    snprintf(path, sizeof path, "%s/%s", dir, GLMD_USER_SOCKET);
    ck_assert_int_eq(mkdir(sub, 0700), 0);
    ck_assert_int_eq(setenv("XDG_RUNTIME_DIR", dir, 1), 0);
    ck_assert_int_eq(unsetenv("GLMD_SOCKET"), 0);
    /* the user's own is not there: the system's is meant, and both are named */
    if (!system_daemon()) {
        finds(-ENOENT, GLMD_DEFAULT_SOCKET);
        ck_assert_ptr_nonnull(strstr(err, path));
        ck_assert_ptr_null(strchr(err, '\n'));
        glmd_conn *c;
        ck_assert_int_eq(glmd_connect(NULL, &c), -ENOENT);
    }
    /* it is there, and silent */
    int fd = listen_on(path, SOCK_SEQPACKET);
    finds(-ETIMEDOUT, path);
    /* the variable goes first unless it is empty, and the caller's word before that */
    ck_assert_int_eq(setenv("GLMD_SOCKET", "/nonexistent/from-env", 1), 0);
    finds(-ENOENT, "no daemon at /nonexistent/from-env:");
    refuses("/nonexistent/from-options", -ENOENT, "from-options");
    ck_assert_int_eq(setenv("GLMD_SOCKET", "", 1), 0);
    finds(-ETIMEDOUT, path);
    refuses("", -EINVAL, "empty");
    close(fd);
    /* a daemon of this user that died is not replaced by another daemon in silence */
    finds(-ECONNREFUSED, path);
    /* somebody else's socket, a plain file, a relative directory, one too long for an address: as if absent
     */
    if (!system_daemon()) {
        if (geteuid() == 0) {
            ck_assert_int_eq(chown(path, 65534, 65534), 0);
            finds(-ENOENT, "no daemon at " GLMD_DEFAULT_SOCKET);
        }
        unlink(path);
        close(open(path, O_CREAT | O_RDWR | O_CLOEXEC, 0600));
        finds(-ENOENT, "no daemon at " GLMD_DEFAULT_SOCKET);
        memset(lng, 'a', sizeof lng - 1);
        lng[0] = '/';
        lng[sizeof lng - 1] = 0;
        ck_assert_int_eq(setenv("XDG_RUNTIME_DIR", lng, 1), 0);
        finds(-ENOENT, "no daemon at " GLMD_DEFAULT_SOCKET ":");
        ck_assert_int_eq(setenv("XDG_RUNTIME_DIR", dir + 1, 1), 0);
        finds(-ENOENT, "no daemon at " GLMD_DEFAULT_SOCKET ":");
    }
    ck_assert_int_eq(unsetenv("XDG_RUNTIME_DIR"), 0);
    unlink(path);
    rmdir(sub);
    rmdir(dir);
}
END_TEST

/* ---- a wrong welcome ---- */

#define SPOIL(fn, stmt)                                                                                      \
    static void fn(struct glmw_welcome *w, struct glmw_d *d, void *arg) {                                    \
        (void)w, (void)d, (void)arg;                                                                         \
        stmt;                                                                                                \
    }
SPOIL(spoil_wire, w->wire = 9)
SPOIL(spoil_features, w->features |= GLMW_FEAT_EMBEDDINGS)
SPOIL(spoil_generation, w->generation = 0)
SPOIL(spoil_sq_small, w->sq_log2 = GLMW_SQ_LOG2_MIN - 1)
SPOIL(spoil_tq_big, w->tq_log2 = 31)
SPOIL(spoil_pay_big, w->pay_log2 = 63)
SPOIL(spoil_txt_big, w->txt_log2 = GLMW_TXT_LOG2_DEFAULT + 1)
SPOIL(spoil_u_bytes, w->u_bytes += 65536)
SPOIL(spoil_d_huge, w->d_bytes = UINT64_MAX)
SPOIL(spoil_sq_off, w->sq_off += 8)
SPOIL(spoil_sq_off_head, w->sq_off = 0)
SPOIL(spoil_pay_off_far, w->pay_off = w->u_bytes)
SPOIL(spoil_pay_on_sq, w->pay_off = w->sq_off)
SPOIL(spoil_tq_off_wrap, w->tq_off = UINT64_MAX - 65535)
SPOIL(spoil_txt_on_tq, w->txt_off = w->tq_off)
SPOIL(spoil_magic, d->magic = 1)
SPOIL(spoil_d_generation, d->generation ^= 1)
SPOIL(spoil_d_off, d->tq_off += 65536)

static void (*const spoils[])(struct glmw_welcome *, struct glmw_d *, void *) = {
    spoil_wire,        spoil_features,     spoil_generation, spoil_sq_small,    spoil_tq_big,
    spoil_pay_big,     spoil_txt_big,      spoil_u_bytes,    spoil_d_huge,      spoil_sq_off,
    spoil_sq_off_head, spoil_pay_off_far,  spoil_pay_on_sq,  spoil_tq_off_wrap, spoil_txt_on_tq,
    spoil_magic,       spoil_d_generation, spoil_d_off};

static void welcome_refused(const struct fake_options *fo) {
    struct fake f;
    struct glmd_options o = options(NULL);
    glmd_conn *c = NULL;
    int fd;
    fake_open(&f, fo, &fd);
    ck_assert_int_eq(glmd_connect_fd(fd, &o, &c), -EPROTO);
    ck_assert_ptr_null(c);
    ck_assert_uint_gt(strlen(err), 20);
    ck_assert_int_eq(fcntl(fd, F_GETFD), -1); /* taken although it failed */
    fake_close(&f);
}

START_TEST(wrong_welcome) {
    const struct fake_options o = {.spoil = spoils[_i]};
    welcome_refused(&o);
}
END_TEST

START_TEST(wrong_descriptors) {
    const struct fake_options cases[] = {
        {.n_fds = -1}, {.n_fds = 3}, {.swap_pipe = true}, {.unsealed = true}};
    welcome_refused(&cases[_i]);
}
END_TEST

/* The other end says something else than WELCOME. */
START_TEST(other_answers) {
    struct glmd_options o = options(NULL);
    struct hello_msg m = {.type = GLMW_PKT_REJECT};
    uint8_t p[GLMW_PACKET_MAX];
    glmd_conn *c;
    int sv[2], want = -EPROTO, len;
    ck_assert_int_eq(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, sv), 0);
    const char *word = "daemon";
    hello_reject(&m.u.reject, -EBUSY, 250, 1, 1, "too many connections of this user");
    switch (_i) {
    case 0:
        want = -EBUSY, word = "too many connections of this user; try again in 250 ms";
        break;
    case 1:
        want = -EPROTONOSUPPORT, word = "speaks protocol 4 to 7";
        hello_reject(&m.u.reject, want, 0, 4, 7, "");
        break;
    case 2:
        m.u.reject.error = 5;
        break;
    case 8:
        want = -ESHUTDOWN, word = "ended the connection: stopping";
        m = (struct hello_msg){.type = GLMW_PKT_BYE};
        m.u.bye.error = want;
        hello_set_text(m.u.bye.text, sizeof m.u.bye.text, "stopping");
        break;
    case 9:
        want = -ECONNRESET;
        m = (struct hello_msg){.type = GLMW_PKT_BYE};
        break;
    case 3:
        m = (struct hello_msg){.type = GLMW_PKT_PING};
        break;
    default:
        break;
    }
    len = hello_encode(&m, p, sizeof p);
    ck_assert_int_gt(len, 0);
    if (_i == 4)
        len = 3;
    if (_i == 5)
        p[0] ^= 1;
    if (_i == 6)
        len = 16 + 8; /* a REJECT that is too short, with a header that fits it */
    if (_i == 6)
        p[8] = 8, p[9] = 0;
    if (_i != 7)
        ck_assert_int_eq((int)send(sv[0], p, (size_t)len, 0), len);
    if (_i == 7)
        want = -ECONNRESET;
    close(sv[0]);
    ck_assert_int_eq(glmd_connect_fd(sv[1], &o, &c), want);
    ck_assert_msg(strstr(err, word) != NULL, "\"%s\" does not say \"%s\"", err, word);
}
END_TEST

START_TEST(wrong_descriptor_given) {
    struct glmd_options o = options(NULL);
    glmd_conn *c;
    int sv[2];
    ck_assert_int_eq(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, sv), 0);
    ck_assert_int_eq(glmd_connect_fd(sv[0], &o, &c), -EPROTOTYPE);
    ck_assert_int_eq(fcntl(sv[0], F_GETFD), -1);
    close(sv[1]);
    ck_assert_int_eq(glmd_connect_fd(-1, &o, &c), -EBADF);
    o.size = 3;
    ck_assert_int_eq(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, sv), 0);
    ck_assert_int_eq(glmd_connect_fd(sv[0], &o, &c), -EINVAL);
    close(sv[1]);
}
END_TEST

START_TEST(greeting) {
    struct fake f;
    struct hello_msg m;
    struct glmd_options o = options(NULL);
    glmd_conn *c;
    int fd;
    o.client_name = "na\nme that is longer than thirty-two bytes";
    o.client_name_len = strlen(o.client_name);
    o.records_log2 = 9;
    o.payload_log2 = 22;
    fake_open(&f, NULL, &fd);
    ck_assert_int_eq(glmd_connect_fd(fd, &o, &c), 0);
    ck_assert_str_eq(err, "");
    fake_expect(&f, GLMW_PKT_HELLO, &m);
    ck_assert_uint_eq(m.u.hello.wire_min, GLMW_WIRE_MIN);
    ck_assert_uint_eq(m.u.hello.tq_log2, 9);
    ck_assert_uint_eq(m.u.hello.pay_log2, 22);
    ck_assert_uint_eq(m.u.hello.sq_log2, 0);
    ck_assert_mem_eq(m.u.hello.name, "na?me that is longer than thirty", 32);
    ck_assert_uint_eq(m.u.hello.page_size, (uint32_t)sysconf(_SC_PAGESIZE));
    glmd_close(c);
    fake_close(&f);
}
END_TEST

/* Programs built against an older or a newer header. */
START_TEST(structures_of_other_versions) {
    struct fake f;
    glmd_conn *c = fake_connect(&f, NULL);
    struct {
        struct glmd_info i;
        char behind[64];
    } big;
    memset(&big, 0x5a, sizeof big);
    big.i.size = sizeof big;
    ck_assert_int_eq(glmd_get_info(c, &big.i), 0);
    ck_assert_uint_eq(big.i.size, sizeof big);
    ck_assert_str_eq(big.i.model, "fake");
    ck_assert_uint_eq(big.i.state, GLMD_STATE_READY);
    ck_assert_uint_eq(big.i.wire, 1);
    ck_assert_uint_eq((uint8_t)big.behind[0], 0x5a);
    memset(&big, 0x5a, sizeof big);
    big.i.size = 12;
    ck_assert_int_eq(glmd_get_info(c, &big.i), 0);
    ck_assert_uint_eq(big.i.wire, 1);
    ck_assert_uint_eq(big.i.load_permille, 0x5a5a5a5a);
    big.i.size = 3;
    ck_assert_int_eq(glmd_get_info(c, &big.i), -EINVAL);
    struct glmd_event e;
    uint64_t tag = ct_submit(c, "x");
    fake_pop_submit(&f);
    fake_accept(&f, tag);
    fake_text(&f, tag, 5, "t");
    fake_flush(&f, true);
    ck_assert_int_eq(glmd_dispatch(c), 1);
    memset(&e, 0x5a, sizeof e);
    e.size = 4;
    ck_assert_int_eq(glmd_next(c, &e), -EINVAL);
    e.size = 48;
    ck_assert_int_eq(glmd_next(c, &e), 1);
    ck_assert_uint_eq(e.size, 48);
    ck_assert_uint_eq(e.type, GLMD_EV_ACCEPTED);
    ck_assert_uint_eq(e.detail, 0x5a5a5a5a);
    glmd_close(c);
    fake_close(&f);
}
END_TEST

static char log_lines[4096];

static void on_log(void *userdata, const char *line, size_t len) {
    ck_assert_ptr_eq(userdata, log_lines);
    ck_assert_uint_lt(strlen(log_lines) + len + 2, sizeof log_lines);
    strncat(log_lines, line, len);
    strcat(log_lines, "\n");
}

START_TEST(log_lines_without_content) {
    struct fake f;
    glmd_set_log(on_log, log_lines);
    glmd_conn *c = fake_connect(&f, NULL);
    uint64_t tag = ct_submit(c, "SECRET-PROMPT");
    fake_pop_submit(&f);
    fake_accept(&f, tag);
    fake_text(&f, tag, 5, "SECRET-ANSWER");
    fake_flush(&f, true);
    fake_die(&f);
    glmd_dispatch(c);
    glmd_close(c);
    fake_close(&f);
    glmd_set_log(NULL, NULL);
    ck_assert_ptr_nonnull(strstr(log_lines, "connected"));
    ck_assert_ptr_nonnull(strstr(log_lines, "lost"));
    ck_assert_ptr_null(strstr(log_lines, "SECRET"));
}
END_TEST

/* ---- one call ---- */

static const struct fake_token words[] = {{GLMW_CH_REASONING, "let me think"},
                                          {GLMW_CH_CONTENT, "Hello "},
                                          {GLMW_CH_CONTENT, "there, and a text that needs the arena"}};

static glmd_conn *connect_to(const struct fakeserver *s) {
    struct glmd_options o = options(s->path);
    glmd_conn *c;
    o.timeout_ms = 5000;
    int r = glmd_connect(&o, &c);
    ck_assert_msg(r == 0, "%d %s", r, err);
    return c;
}

static glmd_req *question(glmd_conn *c) {
    glmd_req *r;
    ck_assert_int_eq(glmd_req_new(c, &r), 0);
    ck_assert_int_eq(glmd_req_message(r, GLMD_ROLE_USER, "hi", 2), 0);
    return r;
}

START_TEST(complete) {
    struct fakeserver s;
    static const struct fake_script script = {.tokens = words, .n_tokens = 3, .progress_steps = 2};
    fakeserver_start(&s, &script, NULL);
    glmd_conn *c = connect_to(&s);
    struct glmd_usage u = {.size = sizeof u};
    char *text = NULL;
    size_t len = 0;
    for (int i = 0; i < 50; i++) {
        ck_assert_int_eq(glmd_complete(c, question(c), &text, &len, &u), 0);
        ck_assert_str_eq(text, "Hello there, and a text that needs the arena");
        ck_assert_uint_eq(len, strlen(text));
        ck_assert_uint_eq(u.completion_tokens, 3);
        ck_assert_uint_eq(u.prompt_tokens, 11);
        glmd_free(text);
    }
    ck_assert_int_eq(glmd_complete(c, question(c), &text, NULL, NULL), 0);
    glmd_free(text);
    uint64_t tag;
    ck_assert_int_eq(glmd_submit(c, question(c), &tag), 0);
    ck_assert_int_eq(glmd_complete(c, question(c), &text, NULL, NULL), -EBUSY);
    glmd_close(c);
    fakeserver_stop(&s);
    ck_assert_uint_ge(s.n_submits, 51); /* the last one may not have been read before the close */
}
END_TEST

START_TEST(complete_fails) {
    struct fakeserver s;
    static const struct fake_script refuse = {.error_text = "top_p is 7: expected more than 0 up to 1",
                                              .status = -EINVAL};
    static const struct fake_script die = {.tokens = words, .n_tokens = 3, .die_after = 2};
    char *text = NULL;
    fakeserver_start(&s, &refuse, NULL);
    glmd_conn *c = connect_to(&s);
    ck_assert_int_eq(glmd_complete(c, question(c), &text, NULL, NULL), -EINVAL);
    ck_assert_int_eq(glmd_complete(c, question(c), &text, NULL, NULL), -EINVAL);
    glmd_close(c);
    fakeserver_stop(&s);
    fakeserver_start(&s, &die, NULL);
    c = connect_to(&s);
    ck_assert_int_eq(glmd_complete(c, question(c), &text, NULL, NULL), -EPIPE);
    ck_assert_int_eq(glmd_complete(c, question(c), &text, NULL, NULL), -EPIPE);
    ck_assert_ptr_null(text);
    glmd_close(c);
    fakeserver_stop(&s);
}
END_TEST

static void on_alarm(int sig) {
    (void)sig;
}

START_TEST(complete_interrupted) {
    struct fakeserver s;
    static const struct fake_script slow = {
        .tokens = words, .n_tokens = 3, .repeat = 1u << 20, .delay_us = 1000};
    fakeserver_start(&s, &slow, NULL);
    glmd_conn *c = connect_to(&s);
    char *text = NULL;
    struct sigaction sa = {.sa_handler = on_alarm};
    sigaction(SIGALRM, &sa, NULL);
    ualarm(60000, 20000); /* again and again: one alone could come outside the wait */
    ck_assert_int_eq(glmd_complete(c, question(c), &text, NULL, NULL), -EINTR);
    ualarm(0, 0);
    ck_assert_ptr_null(text);
    glmd_close(c);
    fakeserver_stop(&s);
    ck_assert_uint_eq(s.n_cancels, 1);
    ck_assert_uint_eq(s.n_ends, 1);
}
END_TEST

/* More than the rings hold, slowly read: no token is lost, and a daemon that waits for room is told. */
START_TEST(long_streams_through_small_rings) {
    struct fakeserver s;
    static const struct fake_token t[] = {{GLMW_CH_CONTENT, "a token whose text lies in the arena, always"}};
    static const struct fake_script script = {.tokens = t, .n_tokens = 1, .repeat = 3000};
    const struct fake_options o = {.tq_log2 = 7, .txt_log2 = GLMW_TXT_LOG2_MIN};
    fakeserver_start(&s, &script, &o);
    glmd_conn *c = connect_to(&s);
    enum { N = 4 };
    uint64_t tag[N];
    uint32_t got[N] = {0}, ends = 0;
    for (int i = 0; i < N; i++)
        ck_assert_int_eq(glmd_submit(c, question(c), &tag[i]), 0);
    while (ends < N) {
        struct glmd_event e = {.size = sizeof e};
        int r = glmd_wait(c, 10000000000);
        ck_assert_int_eq(r, 1);
        while (glmd_next(c, &e) == 1) {
            int i = 0;
            while (i < N && tag[i] != e.tag)
                i++;
            ck_assert_int_lt(i, N);
            if (e.type == GLMD_EV_TOKEN) {
                ck_assert_uint_eq(e.token, got[i]++);
                ck_assert_uint_eq(e.text_len, strlen(t[0].text));
                ck_assert_mem_eq(e.text, t[0].text, e.text_len);
            }
            ends += e.type == GLMD_EV_END;
        }
    }
    for (int i = 0; i < N; i++)
        ck_assert_uint_eq(got[i], 3000);
    glmd_close(c);
    fakeserver_stop(&s);
    ck_assert_uint_gt(s.n_nops, 0);
}
END_TEST

int main(void) {
    Suite *s = suite_create("client_api");
    TCase *t = ct_case(s, "connect", 20);
    tcase_add_test(t, no_daemon);
    tcase_add_test(t, no_permission);
    tcase_add_test(t, search_order);
    tcase_add_loop_test(t, wrong_welcome, 0, (int)(sizeof spoils / sizeof spoils[0]));
    tcase_add_loop_test(t, wrong_descriptors, 0, 4);
    tcase_add_loop_test(t, other_answers, 0, 10);
    tcase_add_test(t, wrong_descriptor_given);
    tcase_add_test(t, greeting);
    tcase_add_test(t, structures_of_other_versions);
    tcase_add_test(t, log_lines_without_content);
    t = ct_case(s, "complete", 60);
    tcase_add_test(t, complete);
    tcase_add_test(t, complete_fails);
    tcase_add_test(t, complete_interrupted);
    tcase_add_test(t, long_streams_through_small_rings);
    return ct_main(s);
}
