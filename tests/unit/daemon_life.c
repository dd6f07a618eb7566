/* SPDX-License-Identifier: MIT */
/* The life of a real daemon: sockets and locks, draining, reloading, failing, and what the log may not hold.
 */
#include <check.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include "daemonfix.h"
#include "leakcheck.h"

static const char endless[] = "vocab 100\nstop 2\nstep-us 5000\nloop\nrequest\ntokens 10 11 12\nrepeat\n";
static const uint32_t prompt[] = {5};
static struct answer a[4];

static void backend(struct daemonfix *f, int i) {
    snprintf(f->backend, sizeof f->backend, "%s", i ? "uring" : "epoll");
}

static void until_tokens(glmd_conn *c, struct answer *ans, size_t n, uint32_t tokens) {
    struct glmd_event ev = {.size = sizeof ev};

    while (ans[0].n_tokens < tokens) {
        ck_assert_int_ge(glmd_wait(c, 2000000000), 1);
        while (glmd_next(c, &ev) == 1)
            answer_take(ans, n, &ev);
    }
}

static glmd_req *limited(glmd_conn *c, uint64_t max_tokens) {
    glmd_req *r = request_tokens(c, prompt, 1);

    if (max_tokens)
        ck_assert_int_eq(glmd_req_set_u64(r, GLMD_KEY_MAX_TOKENS, max_tokens), 0);
    return r;
}

START_TEST(drain_lets_streams_finish) {
    struct daemonfix f;
    glmd_conn *c;

    daemonfix_init(&f);
    backend(&f, _i);
    daemonfix_script(&f, endless);
    daemonfix_start(&f, NULL);
    c = daemonfix_connect(&f, NULL);
    answer_submit(c, &a[0], limited(c, 200));
    until_tokens(c, a, 1, 3);
    kill(f.pid, SIGTERM);
    daemonfix_expect_log(&f, "draining: 1 requests");
    answer_submit(c, &a[1], limited(c, 5));
    answers_wait(c, a, 2, 10000);
    ck_assert_int_eq(a[0].status, 0);
    ck_assert_uint_eq(a[0].n_tokens, 200);
    ck_assert_uint_eq(a[0].reason, GLMD_REASON_LENGTH);
    ck_assert_int_eq(a[1].status, -ESHUTDOWN);
    ck_assert_ptr_nonnull(strstr(a[1].error, "shutting down"));
    ck_assert_int_eq(daemonfix_wait(&f, 10000), 0);
    ck_assert_ptr_nonnull(strstr(daemonfix_log(&f), "stopped: 1 requests accepted, 1 ended"));
    ck_assert_int_ne(access(f.socket, F_OK), 0);
    glmd_close(c);
    daemonfix_done(&f);
}
END_TEST

START_TEST(drain_time_ends_streams) {
    struct daemonfix f;
    glmd_conn *c;

    daemonfix_init(&f);
    backend(&f, _i);
    daemonfix_script(&f, endless);
    daemonfix_start(&f, "[Service]\nDrainTimeoutSec=0\n");
    c = daemonfix_connect(&f, NULL);
    answer_submit(c, &a[0], limited(c, 0));
    until_tokens(c, a, 1, 3);
    kill(f.pid, SIGTERM);
    answers_wait(c, a, 1, 10000);
    ck_assert_int_eq(a[0].status, -ESHUTDOWN);
    ck_assert_int_eq(daemonfix_wait(&f, 10000), 0);
    glmd_close(c);
    daemonfix_done(&f);
}
END_TEST

START_TEST(second_signal_ends_at_once) {
    struct daemonfix f;
    glmd_conn *c;

    daemonfix_init(&f);
    backend(&f, _i);
    daemonfix_script(&f, endless);
    daemonfix_start(&f, NULL);
    c = daemonfix_connect(&f, NULL);
    answer_submit(c, &a[0], limited(c, 0));
    until_tokens(c, a, 1, 3);
    kill(f.pid, SIGTERM);
    daemonfix_expect_log(&f, "draining");
    kill(f.pid, SIGINT);
    ck_assert_int_eq(daemonfix_wait(&f, 5000), 0);
    answers_wait(c, a, 1, 1000);
    ck_assert_int_eq(a[0].status, -ESHUTDOWN);
    glmd_close(c);
    daemonfix_done(&f);
}
END_TEST

START_TEST(second_daemon_is_refused) {
    struct daemonfix f, g;
    char pid[32];
    glmd_conn *c;

    daemonfix_init(&f);
    backend(&f, _i);
    daemonfix_script(&f, endless);
    daemonfix_start(&f, NULL);
    g = f;
    daemonfix_spawn(&g, NULL);
    ck_assert_int_eq(daemonfix_wait(&g, 10000), 1);
    snprintf(pid, sizeof pid, "process id %d serves", (int)f.pid);
    ck_assert_ptr_nonnull(strstr(daemonfix_log(&f), pid));
    ck_assert_ptr_nonnull(strstr(daemonfix_log(&f), f.socket));
    c = daemonfix_connect(&f, NULL); /* the first one is not disturbed */
    answer_submit(c, &a[0], limited(c, 4));
    answers_wait(c, a, 1, 5000);
    glmd_close(c);
    daemonfix_stop(&f);
    daemonfix_done(&f);
}
END_TEST

START_TEST(killed_daemon_leaves_nothing_in_the_way) {
    struct daemonfix f;
    struct stat st;
    glmd_conn *c;

    daemonfix_init(&f);
    backend(&f, _i);
    daemonfix_script(&f, endless);
    daemonfix_start(&f, NULL);
    c = daemonfix_connect(&f, NULL);
    answer_submit(c, &a[0], limited(c, 0));
    until_tokens(c, a, 1, 3);
    kill(f.pid, SIGKILL);
    ck_assert_int_eq(daemonfix_wait(&f, 5000), 128 + SIGKILL);
    answers_wait(c, a, 1, 5000);
    ck_assert_int_eq(a[0].status, -EPIPE);
    glmd_close(c);
    ck_assert_int_eq(access(f.socket, F_OK), 0);
    unlink(f.log);
    daemonfix_start(&f, NULL);
    ck_assert_ptr_nonnull(strstr(daemonfix_log(&f), "removed the leftover socket"));
    ck_assert_int_eq(stat(f.socket, &st), 0);
    ck_assert_uint_eq(st.st_mode & 0777, 0660);
    c = daemonfix_connect(&f, NULL);
    answer_submit(c, &a[0], limited(c, 4));
    answers_wait(c, a, 1, 5000);
    glmd_close(c);
    daemonfix_stop(&f);
    daemonfix_done(&f);
}
END_TEST

START_TEST(foreign_file_at_the_path_is_kept) {
    struct daemonfix f;
    int fd;

    daemonfix_init(&f);
    daemonfix_script(&f, endless);
    fd = open(f.socket, O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
    ck_assert_int_ge(fd, 0);
    close(fd);
    daemonfix_spawn(&f, NULL);
    ck_assert_int_eq(daemonfix_wait(&f, 10000), 1);
    ck_assert_ptr_nonnull(strstr(daemonfix_log(&f), "exists and is not a socket"));
    ck_assert_int_eq(access(f.socket, F_OK), 0);
    daemonfix_done(&f);
}
END_TEST

START_TEST(foreign_listener_is_not_pushed_away) {
    struct sockaddr_un sa = {.sun_family = AF_UNIX};
    struct daemonfix f;
    int fd;

    daemonfix_init(&f);
    daemonfix_script(&f, endless);
    fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    snprintf(sa.sun_path, sizeof sa.sun_path, "%s", f.socket);
    ck_assert_int_eq(bind(fd, (struct sockaddr *)&sa, sizeof sa), 0);
    ck_assert_int_eq(listen(fd, 4), 0);
    daemonfix_spawn(&f, NULL);
    ck_assert_int_eq(daemonfix_wait(&f, 10000), 1);
    ck_assert_ptr_nonnull(strstr(daemonfix_log(&f), "another program listens"));
    close(fd);
    daemonfix_done(&f);
}
END_TEST

/* The directory of the socket is somebody else's, or nobody may write there. */
START_TEST(no_permission_for_the_socket) {
    struct daemonfix f;
    char text[200], sub[80];

    daemonfix_init(&f);
    daemonfix_script(&f, endless);
    if (geteuid() == 0)
        f.uid = 65534;
    ck_assert_int_eq(chmod(f.dir, 0755), 0);
    snprintf(sub, sizeof sub, "%s/sub", f.dir);
    ck_assert_int_eq(mkdir(sub, 0555), 0);
    snprintf(f.socket, sizeof f.socket, "%s/glmd.sock", sub);
    daemonfix_spawn(&f, NULL);
    ck_assert_int_eq(daemonfix_wait(&f, 10000), 1);
    snprintf(text, sizeof text, "lock file %s.lock cannot be opened: Permission denied", f.socket);
    ck_assert_msg(strstr(daemonfix_log(&f), text) != NULL, "%s", daemonfix_log(&f));
    ck_assert_int_eq(rmdir(sub), 0);
    daemonfix_done(&f);
}
END_TEST

START_TEST(missing_directory_is_named) {
    struct daemonfix f;

    daemonfix_init(&f);
    daemonfix_script(&f, endless);
    strcpy(f.socket, "/nonexistent-glmd/a/b/glmd.sock");
    daemonfix_spawn(&f, NULL);
    ck_assert_int_eq(daemonfix_wait(&f, 10000), 1);
    ck_assert_ptr_nonnull(strstr(daemonfix_log(&f), "socket directory /nonexistent-glmd/a/b: No such file"));
    daemonfix_done(&f);
}
END_TEST

/* No file can grow, as on a full disk: neither the lock beside the socket nor the log, so that the daemon
 * says it into a pipe. */
START_TEST(full_disk_is_reported) {
    struct daemonfix f;
    char text[2000];
    ssize_t n;
    int fd;

    daemonfix_init(&f);
    daemonfix_script(&f, endless);
    ck_assert_int_eq(mkfifo(f.log, 0600), 0);
    fd = open(f.log, O_RDWR | O_NONBLOCK | O_CLOEXEC);
    ck_assert_int_ge(fd, 0);
    f.file_limit = 1;
    daemonfix_spawn(&f, NULL);
    while (waitpid(f.pid, NULL, 0) < 0)
        ;
    f.pid = 0;
    n = read(fd, text, sizeof text - 1);
    ck_assert_int_gt(n, 0);
    text[n] = 0;
    /* the limit that stands for a full disk here has words of its own */
    ck_assert_msg(strstr(text, "glmd.sock.lock cannot be written: File too large; is the disk full?") != NULL,
                  "%s", text);
    ck_assert_int_eq(access(f.socket, F_OK), -1);
    close(fd);
    daemonfix_done(&f);
}
END_TEST

static void wait_for_socket(const struct daemonfix *f) {
    for (int i = 0; i < 5000 && access(f->socket, F_OK) != 0; i++)
        usleep(1000);
    ck_assert_int_eq(access(f->socket, F_OK), 0);
}

/* Clients may come before the model is there: their requests wait and are answered. */
START_TEST(requests_wait_for_the_model) {
    struct glmd_info info = {.size = sizeof info};
    struct daemonfix f;
    glmd_conn *c = NULL;
    glmd_req *r;

    daemonfix_init(&f);
    backend(&f, _i);
    snprintf(f.model, sizeof f.model, "%s/nano", daemonfix_models());
    /* a machine busy with other things may let the small model finish before we look: then once more */
    for (int i = 0; i < 10 && info.state != GLMD_STATE_LOADING; i++) {
        if (i) {
            glmd_close(c);
            daemonfix_stop(&f);
        }
        daemonfix_spawn(&f, "[Model]\nContextTokens=1024\n");
        wait_for_socket(&f);
        c = daemonfix_connect(&f, NULL);
        ck_assert_int_eq(glmd_get_info(c, &info), 0);
    }
    ck_assert_uint_eq(info.state, GLMD_STATE_LOADING);
    r = request_text(c, "Count from 1 to 3.");
    ck_assert_int_eq(glmd_req_set_u64(r, GLMD_KEY_MAX_TOKENS, 5), 0);
    answer_submit(c, &a[0], r);
    r = request_text(c, "x");
    ck_assert_int_eq(glmd_req_set_u64(r, GLMD_KEY_DEADLINE_MS, 1), 0);
    answer_submit(c, &a[1], r);
    answer_submit(c, &a[2], request_text(c, "x"));
    ck_assert_int_eq(glmd_cancel(c, a[2].tag), 0);
    answers_wait(c, a, 3, 60000);
    ck_assert_int_eq(a[0].status, 0);
    ck_assert_uint_eq(a[0].n_tokens, 5);
    ck_assert_int_eq(a[1].status, -ETIMEDOUT);
    ck_assert_int_eq(a[2].status, -ECANCELED);
    ck_assert_int_eq(glmd_get_info(c, &info), 0);
    ck_assert_uint_eq(info.state, GLMD_STATE_READY);
    glmd_close(c);
    daemonfix_stop(&f);
    daemonfix_done(&f);
}
END_TEST

START_TEST(stop_while_loading) {
    struct daemonfix f;
    glmd_conn *c;

    daemonfix_init(&f);
    backend(&f, _i);
    snprintf(f.model, sizeof f.model, "%s/nano", daemonfix_models());
    daemonfix_spawn(&f, "[Model]\nContextTokens=1024\n");
    wait_for_socket(&f);
    c = daemonfix_connect(&f, NULL);
    answer_submit(c, &a[0], request_text(c, "x"));
    kill(f.pid, SIGTERM);
    answers_wait(c, a, 1, 20000);
    ck_assert_int_eq(a[0].status, -ESHUTDOWN);
    ck_assert_int_eq(daemonfix_wait(&f, 20000), 0);
    ck_assert_int_ne(access(f.socket, F_OK), 0);
    glmd_close(c);
    daemonfix_done(&f);
}
END_TEST

static void expect_notify(int fd, const char *text) {
    char got[1000];

    for (int i = 0; i < 10000; i++) {
        ssize_t n = recv(fd, got, sizeof got - 1, MSG_DONTWAIT);

        if (n < 0) {
            usleep(1000);
            continue;
        }
        got[n] = 0;
        if (strstr(got, text))
            return;
    }
    ck_abort_msg("the service manager was never told %s", text);
}

/* As under a service manager: the socket is passed, readiness and the end are told. */
START_TEST(service_manager) {
    struct sockaddr_un sa = {.sun_family = AF_UNIX}, na = {.sun_family = AF_UNIX};
    struct daemonfix f;
    glmd_conn *c;
    int notify;

    daemonfix_init(&f);
    backend(&f, _i);
    daemonfix_script(&f, endless);
    f.listen_fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    snprintf(sa.sun_path, sizeof sa.sun_path, "%s/act.sock", f.dir);
    ck_assert_int_eq(bind(f.listen_fd, (struct sockaddr *)&sa, sizeof sa), 0);
    ck_assert_int_eq(listen(f.listen_fd, 8), 0);
    notify = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    snprintf(f.notify, sizeof f.notify, "%s/notify", f.dir);
    snprintf(na.sun_path, sizeof na.sun_path, "%s", f.notify);
    ck_assert_int_eq(bind(notify, (struct sockaddr *)&na, sizeof na), 0);
    daemonfix_start(&f, NULL);
    expect_notify(notify, "READY=1");
    ck_assert_int_ne(access(f.socket, F_OK), 0); /* its own path is not used */
    snprintf(f.socket, sizeof f.socket, "%s/act.sock", f.dir);
    c = daemonfix_connect(&f, NULL);
    answer_submit(c, &a[0], limited(c, 4));
    answers_wait(c, a, 1, 5000);
    ck_assert_int_eq(a[0].status, 0);
    glmd_close(c);
    kill(f.pid, SIGHUP);
    expect_notify(notify, "RELOADING=1");
    expect_notify(notify, "READY=1");
    kill(f.pid, SIGTERM);
    expect_notify(notify, "STOPPING=1");
    ck_assert_int_eq(daemonfix_wait(&f, 10000), 0);
    ck_assert_int_eq(access(sa.sun_path, F_OK), 0); /* the socket is the manager's */
    close(f.listen_fd);
    close(notify);
    daemonfix_done(&f);
}
END_TEST

START_TEST(wrong_socket_from_the_manager) {
    struct daemonfix f;

    daemonfix_init(&f);
    daemonfix_script(&f, endless);
    f.listen_fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    daemonfix_spawn(&f, NULL);
    ck_assert_int_eq(daemonfix_wait(&f, 10000), 1);
    ck_assert_ptr_nonnull(strstr(daemonfix_log(&f), "ListenSequentialPacket="));
    close(f.listen_fd);
    daemonfix_done(&f);
}
END_TEST

START_TEST(model_errors_are_named) {
    struct daemonfix f;

    daemonfix_init(&f);
    snprintf(f.model, sizeof f.model, "%s/no-such-model", f.dir);
    daemonfix_spawn(&f, NULL);
    ck_assert_int_eq(daemonfix_wait(&f, 20000), 1);
    ck_assert_ptr_nonnull(
        strstr(daemonfix_log(&f), "/no-such-model: No such file or directory; see --model"));
    ck_assert_int_lt(access(f.socket, F_OK), 0);
    unlink(f.log);
    snprintf(f.model, sizeof f.model, "%s/nano/tokenizer.json", daemonfix_models());
    daemonfix_spawn(&f, NULL);
    ck_assert_int_eq(daemonfix_wait(&f, 20000), 1);
    ck_assert_ptr_nonnull(strstr(daemonfix_log(&f), "is no directory; --model and [Model] Path name"));
    unlink(f.log);
    f.model[0] = 0;
    daemonfix_spawn(&f, NULL);
    ck_assert_int_eq(daemonfix_wait(&f, 20000), 2); /* a restart would not help */
    ck_assert_ptr_nonnull(strstr(daemonfix_log(&f), "no model is named; give --model DIR"));
    unlink(f.log);
    daemonfix_script(&f, "vocab 100\nnonsense\n");
    daemonfix_spawn(&f, NULL);
    ck_assert_int_eq(daemonfix_wait(&f, 20000), 1);
    ck_assert_ptr_nonnull(strstr(daemonfix_log(&f), "line 3"));
    daemonfix_done(&f);
}
END_TEST

START_TEST(config_errors_are_named) {
    struct daemonfix f;

    daemonfix_init(&f);
    daemonfix_script(&f, endless);
    daemonfix_spawn(&f, "[IPC]\nNoSuchKey=1\n");
    ck_assert_int_eq(daemonfix_wait(&f, 10000), 2);
    ck_assert_ptr_nonnull(strstr(daemonfix_log(&f), "glmd.conf:4: unknown key NoSuchKey in [IPC]"));
    daemonfix_done(&f);
}
END_TEST

START_TEST(reload_takes_what_it_can) {
    struct daemonfix f;
    FILE *o;

    daemonfix_init(&f);
    backend(&f, _i);
    daemonfix_script(&f, endless);
    daemonfix_start(&f, "[Quota]\nMaxRequestsPerUid=3\n");
    o = fopen(f.conf, "we");
    fputs("[Memory]\nKeepFreeBytes=0\nMaxSequences=4\n[Quota]\nMaxRequestsPerUid=5\n", o);
    fclose(o);
    kill(f.pid, SIGHUP);
    daemonfix_expect_log(&f, "configuration read again: 1 values changed");
    daemonfix_expect_log(&f, "need a restart to change: MaxSequences");
    o = fopen(f.conf, "we");
    fputs("[Memory]\nnonsense\n", o);
    fclose(o);
    kill(f.pid, SIGHUP);
    daemonfix_expect_log(&f, "configuration not taken over");
    daemonfix_stop(&f);
    daemonfix_done(&f);
}
END_TEST

START_TEST(device_lost_ends_everything) {
    struct daemonfix f;
    glmd_conn *c;

    daemonfix_init(&f);
    backend(&f, _i);
    daemonfix_script(
        &f, "vocab 100\nstop 2\nstep-us 1000\nfail-step 20 lost\nloop\nrequest\ntokens 10 11\nrepeat\n");
    daemonfix_start(&f, NULL);
    c = daemonfix_connect(&f, NULL);
    answer_submit(c, &a[0], limited(c, 0));
    answer_submit(c, &a[1], limited(c, 0));
    answers_wait(c, a, 2, 10000);
    ck_assert_int_eq(a[0].status, -EIO);
    ck_assert_int_eq(a[1].status, -EIO);
    ck_assert_ptr_nonnull(strstr(a[0].error, "device"));
    ck_assert_int_eq(daemonfix_wait(&f, 10000), 1);
    ck_assert_ptr_nonnull(strstr(daemonfix_log(&f), "the engine stopped"));
    glmd_close(c);
    daemonfix_done(&f);
}
END_TEST

START_TEST(log_holds_no_text_of_clients) {
    static const char secret[] = "Zanzibar-Xylophon";
    static const char bad[] = "Zanzibar-Xylophon \xff\xfe";
    char dir[300], script[1000];
    struct daemonfix f;
    const char *log;
    glmd_conn *c;
    glmd_req *r;

    daemonfix_init(&f);
    backend(&f, _i);
    snprintf(dir, sizeof dir, "%s", daemonfix_models());
    snprintf(script, sizeof script, "model %s/nano\nloop\nrequest\ntokens 300 301 302 303 304 305\nrepeat\n",
             dir);
    daemonfix_script(&f, script);
    daemonfix_start(&f, NULL);
    c = daemonfix_connect(&f, NULL);
    r = request_text(c, secret);
    ck_assert_int_eq(glmd_req_set_u64(r, GLMD_KEY_MAX_TOKENS, 20), 0);
    ck_assert_int_eq(glmd_req_set_str(r, GLMD_KEY_STOP, secret, strlen(secret)), 0);
    answer_submit(c, &a[0], r);
    answer_submit(c, &a[1], request_text(c, bad));
    answers_wait(c, a, 2, 10000);
    ck_assert_uint_eq(a[0].n_tokens, 20);
    ck_assert_int_lt(a[1].status, 0);
    glmd_close(c);
    daemonfix_stop(&f);
    log = daemonfix_log(&f);
    ck_assert_ptr_nonnull(strstr(log, "connection closed")); /* the level is debug: nothing is held back */
    ck_assert_ptr_null(strstr(log, "Zanzibar"));
    ck_assert_ptr_null(strstr(log, a[0].reasoning));
    daemonfix_done(&f);
}
END_TEST

START_TEST(descriptors_stay_flat) {
    struct daemonfix f;
    glmd_conn *c;
    int before;

    daemonfix_init(&f);
    backend(&f, _i);
    daemonfix_script(&f, "vocab 100\nstop 2\nrequest\ntokens 10 11 2\n");
    daemonfix_start(&f, NULL);
    before = daemonfix_resources(&f);
    for (int k = 0; k < 50; k++) {
        c = daemonfix_connect(&f, NULL);
        if (k % 2) {
            answer_submit(c, &a[0], limited(c, 0));
            answers_wait(c, a, 1, 5000);
        }
        glmd_close(c);
    }
    daemonfix_expect_resources(&f, before);
    daemonfix_stop(&f);
    daemonfix_done(&f);
}
END_TEST

int main(void) {
    Suite *s = suite_create("daemon_life");
    TCase *tc = tcase_create("life");
    SRunner *sr;
    int failed;

    tcase_set_timeout(tc, 60);
    tcase_add_checked_fixture(tc, leakcheck_setup, leakcheck_teardown);
    tcase_add_loop_test(tc, drain_lets_streams_finish, 0, daemonfix_loops());
    tcase_add_loop_test(tc, drain_time_ends_streams, 0, daemonfix_loops());
    tcase_add_loop_test(tc, second_signal_ends_at_once, 0, daemonfix_loops());
    tcase_add_loop_test(tc, second_daemon_is_refused, 0, daemonfix_loops());
    tcase_add_loop_test(tc, killed_daemon_leaves_nothing_in_the_way, 0, daemonfix_loops());
    tcase_add_test(tc, foreign_file_at_the_path_is_kept);
    tcase_add_test(tc, foreign_listener_is_not_pushed_away);
    tcase_add_test(tc, no_permission_for_the_socket);
    tcase_add_test(tc, missing_directory_is_named);
    tcase_add_test(tc, full_disk_is_reported);
    tcase_add_loop_test(tc, requests_wait_for_the_model, 0, daemonfix_loops());
    tcase_add_loop_test(tc, stop_while_loading, 0, daemonfix_loops());
    tcase_add_loop_test(tc, service_manager, 0, daemonfix_loops());
    tcase_add_test(tc, wrong_socket_from_the_manager);
    tcase_add_test(tc, model_errors_are_named);
    tcase_add_test(tc, config_errors_are_named);
    tcase_add_loop_test(tc, reload_takes_what_it_can, 0, daemonfix_loops());
    tcase_add_loop_test(tc, device_lost_ends_everything, 0, daemonfix_loops());
    tcase_add_loop_test(tc, log_holds_no_text_of_clients, 0, daemonfix_loops());
    tcase_add_loop_test(tc, descriptors_stay_flat, 0, daemonfix_loops());
    suite_add_tcase(s, tc);
    sr = srunner_create(s);
    srunner_run_all(sr, CK_ENV);
    failed = srunner_ntests_failed(sr);
    srunner_free(sr);
    return failed != 0;
}
