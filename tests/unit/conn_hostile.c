/* SPDX-License-Identifier: MIT */
/* Clients that break the rules of the protocol against a real daemon, on both event loops: each is cut off with
 * -EPROTO or gets its error, an honest client beside it is not disturbed, and nothing is left behind.
 *
 * The rules of the daemon against its clients, and the tests that break them (here unless another program is
 * named; client_death is the library against daemons):
 *
 *  1  one fetch, private copies   conn_rules: entry_changes_between_check_and_use, entry_flips_to_nonsense,
 *                                 payload_changes_while_it_is_read, payload_is_free_after_accepted
 *     holes                       payload_is_a_hole; conn_rules: holes_while_it_drains
 *  2  indices                     impossible_submission_tail, impossible_token_head; conn_rules:
 *                                 indices_go_back_and_forth, event_and_sleeping_take_any_value
 *     wrap at 2^32                ipc_ringops; every program on these rings with GLMD_FAULT=ring_starts_at_the_wrap
 *  3  offsets and lengths         malformed_entries
 *  4  bookkeeping is private      conn_rules: region_d_is_read_only; emit_publish: region_d_is_never_read_back
 *  5  numbers of the client       live_tag_twice, malformed_entries; conn_rules: cancel_reaches_only_own_tags;
 *                                 bulk ids: conn_bulk
 *  6  bells                       bell_flood; conn_floods: bells_cost_their_sender
 *     descriptors                 descriptors_with_hello; conn_floods: unasked_descriptors_are_closed,
 *                                 descriptors_close_in_every_order, half_closed_sockets; bulk: ipc_shm, conn_bulk
 *  7  quotas                      too_many_connections, ten_faults_refuse_the_user; daemon_errors:
 *                                 too_many_live_requests; daemon_quota; conn_bulk: quota_of_the_user;
 *                                 daemon_kept: quota; conn_floods: a_refused_user_is_refused_alone
 *  8  nothing about others        conn_rules: status_shows_only_own_use; daemon_kept: another_user, whose_it_is
 *  9  zeros in new memory         conn_rules: regions_hold_nothing_of_others, records_hold_no_leftovers; ipc_shm:
 *                                 regions_start_zeroed_with_headers
 * 10  pictures                    none are taken: future_version_is_rejected_with_words (IMAGES required)
 * 11  the library's checks        client_death: one_lie_ends_the_connection, socket_lies, random_garbage
 *     flow control                ring_full_of_requests, bell_gives_credit_when_the_ring_is_full; conn_floods:
 *                                 entries_without_end_stop_nobody; daemon_trouble: stopped_client_loses_its_place
 *     ends and cancellation       engine_bound, daemon_cancel; streams that are resumed: daemon_resume, daemon_kept
 *     all of it at random         conn_chaos, conn_mutation; deaths: daemon_death
 *     the log                     conn_floods: floods_of_faults_are_few_lines; daemon_life:
 *                                 log_holds_no_text_of_clients */
#include <check.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "hostilefix.h"

START_TEST(garbage_instead_of_hello) {
    static const char junk[64] = "GET / HTTP/1.1\r\nHost: localhost\r\n\r\n";
    int fd = raw_socket(hf.f.socket);

    ck_assert_int_eq(send(fd, junk, sizeof junk, 0), sizeof junk);
    ck_assert_int_eq(raw_expect_close(fd), -EPROTO);
    close(fd);
}
END_TEST

START_TEST(silence_instead_of_hello) {
    int fd = raw_socket(hf.f.socket);
    uint64_t begin = test_now_ms();

    ck_assert_int_eq(raw_expect_close(fd), -ETIMEDOUT);
    ck_assert_uint_ge(test_now_ms() - begin, 900);
    close(fd);
    daemonfix_expect_log(&hf.f, "no hello in time");
}
END_TEST

START_TEST(descriptors_with_hello) {
    struct hello_msg m = raw_hello();
    int fd = raw_socket(hf.f.socket), null = open("/dev/null", O_RDONLY | O_CLOEXEC);
    int fds[3] = {null, null, null};

    raw_send(fd, &m, fds, 3);
    ck_assert_int_eq(raw_expect_close(fd), -EPROTO);
    close(fd);
    close(null);
}
END_TEST

START_TEST(future_version_is_rejected_with_words) {
    struct hello_msg m = raw_hello();
    int fd = raw_socket(hf.f.socket);

    m.u.hello.wire_min = m.u.hello.wire_max = 77;
    raw_send(fd, &m, NULL, 0);
    raw_expect(fd, HELLO_CLIENT_FIRST, GLMW_PKT_REJECT, &m);
    ck_assert_int_eq(m.u.reject.error, -EPROTONOSUPPORT);
    ck_assert_ptr_nonnull(strstr(m.u.reject.text, "77"));
    close(fd);
    fd = raw_socket(hf.f.socket);
    m = raw_hello();
    m.u.hello.features_required = GLMW_FEAT_IMAGES;
    raw_send(fd, &m, NULL, 0);
    raw_expect(fd, HELLO_CLIENT_FIRST, GLMW_PKT_REJECT, &m);
    ck_assert_int_eq(m.u.reject.error, -EOPNOTSUPP);
    close(fd);
}
END_TEST

START_TEST(too_many_connections) {
    struct rawclient more[5];
    struct hello_msg m;
    int fd;

    for (int i = 0; i < 5; i++)
        raw_open(&more[i], hf.f.socket, NULL);
    fd = raw_socket(hf.f.socket);
    raw_expect(fd, HELLO_CLIENT_FIRST, GLMW_PKT_REJECT, &m);
    ck_assert_int_eq(m.u.reject.error, -EBUSY);
    ck_assert_uint_gt(m.u.reject.retry_after_ms, 0);
    ck_assert_ptr_nonnull(strstr(m.u.reject.text, "MaxConnections"));
    close(fd);
    for (int i = 0; i < 5; i++)
        raw_close(&more[i]);
}
END_TEST

/* A client greets before it is refused: its HELLO is never read, and it learns the reason all the same. */
START_TEST(refusal_is_read_after_a_greeting) {
    struct rawclient more[5];
    struct hello_msg m = raw_hello();
    int fd;

    for (int i = 0; i < 5; i++)
        raw_open(&more[i], hf.f.socket, NULL);
    kill(hf.f.pid, SIGSTOP);
    fd = raw_socket(hf.f.socket);
    raw_send(fd, &m, NULL, 0);
    kill(hf.f.pid, SIGCONT);
    raw_expect(fd, HELLO_CLIENT_FIRST, GLMW_PKT_REJECT, &m);
    ck_assert_int_eq(m.u.reject.error, -EBUSY);
    close(fd);
    for (int i = 0; i < 5; i++)
        raw_close(&more[i]);
}
END_TEST

START_TEST(second_hello) {
    struct hello_msg m = raw_hello();

    raw_open(&hf.c, hf.f.socket, NULL);
    raw_send(hf.c.fd, &m, NULL, 0);
    ck_assert_int_eq(raw_expect_close(hf.c.fd), -EPROTO);
    raw_close(&hf.c);
}
END_TEST

START_TEST(ping_is_answered) {
    struct hello_msg m = {.type = GLMW_PKT_PING, .u.ping = {"abcdefg"}};

    raw_open(&hf.c, hf.f.socket, NULL);
    raw_send(hf.c.fd, &m, NULL, 0);
    raw_expect(hf.c.fd, HELLO_CLIENT_OPEN, GLMW_PKT_PONG, &m);
    ck_assert_int_eq(memcmp(m.u.ping.opaque, "abcdefg", 8), 0);
    m = (struct hello_msg){.type = GLMW_PKT_BYE};
    raw_send(hf.c.fd, &m, NULL, 0);
    ck_assert_int_eq(raw_expect_close(hf.c.fd), 0);
    raw_close(&hf.c);
}
END_TEST

START_TEST(impossible_submission_tail) {
    static const uint32_t bad[] = {0x7fffffff, 0xffffffff, 257, 100000};

    for (size_t i = 0; i < 4; i++) {
        raw_open(&hf.c, hf.f.socket, NULL);
        __atomic_store_n(&hf.c.view.u->sq_tail, hf.c.sq.tail + bad[i], __ATOMIC_RELEASE);
        raw_bell(&hf.c);
        hostilefix_cut_off("an impossible tail of the submission ring");
    }
}
END_TEST

START_TEST(impossible_token_head) {
    static const uint32_t bad[] = {0x7fffffff, 0xffffffff, 4096};

    for (size_t i = 0; i < 3; i++) {
        struct glmw_entry e;

        raw_open(&hf.c, hf.f.socket, NULL);
        __atomic_store_n(&hf.c.view.u->tq_head, hf.c.tq.head + bad[i], __ATOMIC_RELEASE);
        e = raw_request(&hf.c, 1);
        raw_submit(&hf.c, &e);
        hostilefix_cut_off("an impossible head of the token ring");
    }
}
END_TEST

START_TEST(malformed_entries) {
    static const struct {
        struct glmw_entry e;
        const char *rule;
    } bad[] = {
        {{.opcode = 99, .tag = 1}, "unknown operation"},
        {{.opcode = GLMW_OP_SUBMIT, .flags = 0x80, .tag = 1}, "reserved bits"},
        {{.opcode = GLMW_OP_SUBMIT, .zero0 = 1, .tag = 1}, "reserved bits"},
        {{.opcode = GLMW_OP_SUBMIT, .zero1 = {[15] = 1}, .tag = 1}, "reserved bits"},
        {{.opcode = GLMW_OP_SUBMIT, .payload_len = 24}, "without a tag"},
        {{.opcode = GLMW_OP_CANCEL}, "without a tag"},
        {{.opcode = GLMW_OP_NOP, .tag = 1}, "where none belongs"},
        {{.opcode = GLMW_OP_NOP, .session = 1}, "its operation does not have"},
        {{.opcode = GLMW_OP_CANCEL, .tag = 1, .payload_len = 8}, "its operation does not have"},
        {{.opcode = GLMW_OP_CANCEL_ALL, .flags = GLMW_ENT_QUIET}, "its operation does not have"},
        {{.opcode = GLMW_OP_SUBMIT, .payload_len = 24, .payload_off = 1u << 20, .tag = 1},
         "outside the arena"},
        {{.opcode = GLMW_OP_SUBMIT, .payload_len = UINT32_MAX, .tag = 1}, "outside the arena"},
        {{.opcode = GLMW_OP_SUBMIT, .payload_len = 24, .payload_off = UINT64_MAX - 7, .tag = 1},
         "outside the arena"},
        {{.opcode = GLMW_OP_SUBMIT, .payload_len = 16, .payload_off = 4, .tag = 1}, "outside the arena"},
        {{.opcode = GLMW_OP_COUNT, .flags = GLMW_ENT_KEEP, .payload_len = 24, .tag = 1},
         "a flag that its operation does not have"},
        {{.opcode = GLMW_OP_RESUME, .payload_off = 1}, "without a tag"},
        {{.opcode = GLMW_OP_RESUME, .flags = GLMW_ENT_QUIET, .payload_off = 1, .tag = 1},
         "fields that its operation does not have"},
        {{.opcode = GLMW_OP_RESUME, .session = UINT64_C(1) << 32, .payload_off = 1, .tag = 1},
         "fields that its operation does not have"},
    };

    /* ten faults in a minute would refuse the user: this test is about each of them alone */
    raw_open(&hf.c, hf.f.socket, NULL);
    raw_submit(&hf.c, &bad[_i].e);
    hostilefix_cut_off(bad[_i].rule);
}
END_TEST

START_TEST(live_tag_twice) {
    struct glmw_entry e;

    raw_open(&hf.c, hf.f.socket, NULL);
    e = raw_request(&hf.c, 5);
    glmw_put(&hf.c.sq, &e);
    raw_submit(&hf.c, &e);
    hostilefix_cut_off("a tag that is live");
}
END_TEST

/* Not a fault: the tag is free again as soon as its END was seen. */
START_TEST(tag_is_reused_at_once) {
    raw_open(&hf.c, hf.f.socket, NULL);
    for (int i = 0; i < 200; i++) {
        struct glmw_entry e = raw_request(&hf.c, 5);

        raw_submit(&hf.c, &e);
        ck_assert_int_eq(raw_until_end(&hf.c, 5, NULL), 0);
    }
    raw_close(&hf.c);
}
END_TEST

START_TEST(unwanted_operations_get_errors) {
    static const struct glmw_entry bad[] = {
        {.opcode = GLMW_OP_RESUME, .tag = 3},
        {.opcode = GLMW_OP_EMBED, .payload_len = 24, .tag = 3},
        {.opcode = GLMW_OP_SUBMIT, .flags = GLMW_ENT_BULK, .payload_off = 9, .tag = 3},
        {.opcode = GLMW_OP_SUBMIT, .flags = GLMW_ENT_KEEP, .payload_len = 24, .tag = 3},
    };
    struct hello_msg plain = raw_hello();
    struct glmw_rec r;

    plain.u.hello.features_wanted &= ~(uint64_t)(GLMW_FEAT_RESUME | GLMW_FEAT_BULK);
    raw_open(&hf.c, hf.f.socket, &plain);
    for (size_t i = 0; i < 4; i++) {
        raw_submit(&hf.c, &bad[i]);
        ck_assert(raw_record(&hf.c, &r, 5000, false));
        ck_assert_uint_eq(r.type, GLMW_REC_ERROR);
        ck_assert_int_eq((int32_t)r.token, -EOPNOTSUPP);
        ck_assert_uint_eq(r.seq, 0);
        ck_assert(raw_record(&hf.c, &r, 5000, false));
        ck_assert_uint_eq(r.type, GLMW_REC_END);
        ck_assert_uint_eq(r.seq, 1);
        ck_assert_int_eq(r.u.end.status, -EOPNOTSUPP);
    }
    raw_close(&hf.c);
}
END_TEST

/* A payload that changes while it is read, punched away, or was never written. */
START_TEST(payload_is_a_hole) {
    struct glmw_entry e;

    raw_open(&hf.c, hf.f.socket, NULL);
    e = raw_request(&hf.c, 5);
    ck_assert_int_eq(fallocate(hf.c.fds[GLMW_FD_U], FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE,
                               (off_t)hf.c.welcome.pay_off, 65536),
                     0);
    raw_submit(&hf.c, &e);
    ck_assert_int_lt(raw_until_end(&hf.c, 5, NULL), 0);
    /* the whole region gone: indices read as zero, which is possible, and nothing crashes */
    ck_assert_int_eq(fallocate(hf.c.fds[GLMW_FD_U], FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0,
                               (off_t)hf.c.welcome.u_bytes),
                     0);
    raw_bell(&hf.c);
    usleep(50000);
    raw_close(&hf.c);
}
END_TEST

START_TEST(bell_flood) {
    struct glmw_entry e;

    raw_open(&hf.c, hf.f.socket, NULL);
    for (int i = 0; i < 20000; i++)
        raw_bell(&hf.c);
    e = raw_request(&hf.c, 5); /* found by the timer at the latest */
    raw_submit(&hf.c, &e);
    ck_assert_int_eq(raw_until_end(&hf.c, 5, NULL), 0);
    raw_close(&hf.c);
}
END_TEST

/* Nobody reads: accepted requests keep their last words, further entries wait, and everything comes when the
 * client reads at last. */
START_TEST(ring_full_of_requests) {
    struct hello_msg h = raw_hello();
    struct glmw_entry e;
    uint32_t tokens;

    h.u.hello.tq_log2 = 6;
    raw_open(&hf.c, hf.f.socket, &h);
    e = raw_request(&hf.c, 0);
    for (uint64_t tag = 1; tag <= 40; tag++) {
        e.tag = tag;
        ck_assert_int_eq(glmw_put(&hf.c.sq, &e), 0);
    }
    glmw_publish(&hf.c.sq, true);
    raw_bell(&hf.c);
    usleep(300000);
    for (uint64_t ended = 0; ended < 40;) {
        struct glmw_rec r;

        ck_assert_msg(raw_record(&hf.c, &r, 10000, false), "only %llu ended", (unsigned long long)ended);
        ended += r.type == GLMW_REC_END;
        if (glmw_fetch32(&hf.c.view.d->credit_wanted)) {
            struct glmw_entry nop = {.opcode = GLMW_OP_NOP};

            glmw_refresh(&hf.c.sq);
            if (glmw_free_slots(&hf.c.sq))
                raw_submit(&hf.c, &nop);
        }
    }
    e.tag = 99;
    raw_submit(&hf.c, &e);
    ck_assert_int_eq(raw_until_end(&hf.c, 99, &tokens), 0);
    ck_assert_uint_eq(tokens, 10);
    raw_close(&hf.c);
}
END_TEST

/* With a full submission ring there is no slot for a NOP: the bell alone makes the daemon look at the room
 * that has come back, and its timer never has to find it. */
START_TEST(bell_gives_credit_when_the_ring_is_full) {
    struct hello_msg h = raw_hello();
    struct glmw_status st;
    struct glmw_entry e;
    struct glmw_rec r;

    h.u.hello.tq_log2 = 6;
    h.u.hello.sq_log2 = 4;
    raw_open(&hf.c, hf.f.socket, &h);
    e = raw_request(&hf.c, 0);
    for (e.tag = 1; e.tag < 60; e.tag++) {
        for (int wait = 0; wait < 100; wait++) {
            glmw_refresh(&hf.c.sq);
            if (glmw_free_slots(&hf.c.sq))
                break;
            usleep(1000);
        }
        if (glmw_put(&hf.c.sq, &e) < 0)
            break;
        if (glmw_publish(&hf.c.sq, false))
            raw_bell(&hf.c);
    }
    ck_assert_uint_lt(e.tag, 60); /* it is full, and stays so */
    for (uint64_t ended = 0; ended + 1 < e.tag;) {
        ck_assert_msg(raw_record(&hf.c, &r, 10000, false), "only %llu ended", (unsigned long long)ended);
        ended += r.type == GLMW_REC_END;
        if (glmw_fetch32(&hf.c.view.d->credit_wanted))
            raw_bell(&hf.c);
    }
    usleep(1200000); /* the status block is renewed once a second */
    ck_assert_int_eq(glmw_status_read(&hf.c.view.d->status, &st), 0);
    ck_assert_uint_eq(st.my_live, 0);
    ck_assert_uint_eq(st.my_safety_wakes, 0);
    raw_close(&hf.c);
}
END_TEST

START_TEST(pipe_closed_by_its_reader) {
    struct glmw_entry e;

    raw_open(&hf.c, hf.f.socket, NULL);
    close(hf.c.fds[GLMW_FD_PIPE]);
    hf.c.fds[GLMW_FD_PIPE] = open("/dev/null", O_RDONLY | O_CLOEXEC);
    glmw_arm(&hf.c.tq, 1);
    e = raw_request(&hf.c, 5);
    raw_submit(&hf.c, &e);
    ck_assert_int_eq(raw_expect_close(hf.c.fd), -EPIPE);
    raw_close(&hf.c);
}
END_TEST

START_TEST(ten_faults_refuse_the_user) {
    struct hello_msg m;
    int fd;

    for (int i = 0; i < 10; i++) {
        raw_open(&hf.c, hf.f.socket, NULL);
        __atomic_store_n(&hf.c.view.u->sq_tail, 12345, __ATOMIC_RELEASE);
        raw_bell(&hf.c);
        ck_assert_int_eq(raw_expect_close(hf.c.fd), -EPROTO);
        raw_close(&hf.c);
    }
    fd = raw_socket(hf.f.socket);
    raw_expect(fd, HELLO_CLIENT_FIRST, GLMW_PKT_REJECT, &m);
    ck_assert_int_eq(m.u.reject.error, -EACCES);
    ck_assert_ptr_nonnull(strstr(m.u.reject.text, "refused for a minute"));
    close(fd);
    daemonfix_expect_log(&hf.f, "user refused for a minute");
}
END_TEST

static void add_tests(TCase *tc) {
    tcase_add_test(tc, garbage_instead_of_hello);
    tcase_add_test(tc, silence_instead_of_hello);
    tcase_add_test(tc, descriptors_with_hello);
    tcase_add_test(tc, future_version_is_rejected_with_words);
    tcase_add_test(tc, too_many_connections);
    tcase_add_test(tc, refusal_is_read_after_a_greeting);
    tcase_add_test(tc, second_hello);
    tcase_add_test(tc, ping_is_answered);
    tcase_add_test(tc, impossible_submission_tail);
    tcase_add_test(tc, impossible_token_head);
    tcase_add_loop_test(tc, malformed_entries, 0, 18);
    tcase_add_test(tc, live_tag_twice);
    tcase_add_test(tc, tag_is_reused_at_once);
    tcase_add_test(tc, unwanted_operations_get_errors);
    tcase_add_test(tc, payload_is_a_hole);
    tcase_add_test(tc, bell_flood);
    tcase_add_test(tc, ring_full_of_requests);
    tcase_add_test(tc, bell_gives_credit_when_the_ring_is_full);
    tcase_add_test(tc, pipe_closed_by_its_reader);
    tcase_add_test(tc, ten_faults_refuse_the_user);
}

int main(void) {
    Suite *s = suite_create("conn_hostile");
    SRunner *sr;
    int failed;

    hostilefix_cases(s, add_tests);
    sr = srunner_create(s);
    srunner_run_all(sr, CK_ENV);
    failed = srunner_ntests_failed(sr);
    srunner_free(sr);
    return failed != 0;
}
