/* SPDX-License-Identifier: MIT */
/* Bulk objects against a real daemon, from a client without scruples: what is refused with BULK_ERR, what ends
 * the connection, how long an object lives, what it counts for. Every test ends with an honest request and
 * with as many descriptors in the daemon as before. */
#include <check.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include "daemonfix.h"
#include "leakcheck.h"
#include "rawbulk.h"
#include "rawclient.h"
#include "seqsock.h"

enum { MAX_BYTES = 1 << 20, OBJECTS = 16 };

static struct daemonfix f;
static struct rawclient honest, c;
static int before;

static void setup_backend(const char *backend) {
    struct glmw_entry e;

    daemonfix_init(&f);
    snprintf(f.backend, sizeof f.backend, "%s", backend);
    daemonfix_script(&f, "vocab 100\nstop 2\nstep-us 500\nloop\nrequest\ntokens 10 11 12 13 14 2\n");
    daemonfix_start(&f, "[IPC]\nMaxBulkBytes=1M\n[Quota]\nMaxBulkBytesPerUid=4M\n");
    raw_open(&honest, f.socket, NULL);
    e = raw_request(&honest, 1);
    raw_submit(&honest, &e);
    ck_assert_int_eq(raw_until_end(&honest, 1, NULL), 0);
    before = daemonfix_resources(&f);
}

static void setup_epoll(void) {
    setup_backend("epoll");
}

static void setup_uring(void) {
    setup_backend("uring");
}

/* Objects whose requests ended and whose connections closed are in the daemon's memory no more. */
static bool is_mapped(void) {
    char path[64], line[400];
    bool found = false;
    FILE *o;

    snprintf(path, sizeof path, "/proc/%d/maps", (int)f.pid);
    o = fopen(path, "re");
    ck_assert_ptr_nonnull(o);
    while (fgets(line, sizeof line, o))
        found = found || strstr(line, "memfd:object");
    fclose(o);
    return found;
}

static void nothing_is_mapped(void) {
    uint64_t until = test_now_ms() + 10000;

    while (is_mapped()) {
        ck_assert_msg(test_now_ms() < until, "an object stays mapped");
        usleep(5000);
    }
}

static void teardown(void) {
    struct glmw_entry e = raw_request(&honest, 7777);
    uint32_t tokens = 0;

    raw_submit(&honest, &e);
    ck_assert_int_eq(raw_until_end(&honest, 7777, &tokens), 0);
    ck_assert_uint_eq(tokens, 5);
    daemonfix_expect_resources(&f, before);
    raw_close(&honest);
    daemonfix_stop(&f);
    daemonfix_done(&f);
}

static void cut_off(const char *rule) {
    ck_assert_int_eq(raw_expect_close(c.fd), -EPROTO);
    raw_close(&c);
    daemonfix_expect_log(&f, rule);
}

START_TEST(object_is_the_payload) {
    uint32_t tokens = 0;

    raw_open(&c, f.socket, NULL);
    ck_assert(c.welcome.features & GLMW_FEAT_BULK);
    ck_assert_uint_eq(c.welcome.limits.max_bulk, OBJECTS);
    ck_assert_uint_eq(c.welcome.limits.max_bulk_bytes, MAX_BYTES);
    /* the same id again and again: it is free as soon as the END was seen */
    for (uint64_t tag = 1; tag <= 60; tag++) {
        struct glmw_entry e = rawbulk_naming(tag, 9);

        ck_assert_int_eq(rawbulk_give(&c, 9, tag == 1 ? MAX_BYTES : 4096), 0);
        raw_submit(&c, &e);
        ck_assert_int_eq(raw_until_end(&c, tag, &tokens), 0);
        ck_assert_uint_eq(tokens, 5);
    }
    raw_close(&c);
}
END_TEST

static int bad_descriptor(int i, uint64_t *bytes) {
    static const int seals[] = {0, F_SEAL_WRITE, F_SEAL_SHRINK, F_SEAL_GROW, F_SEAL_SEAL};
    char path[64], tmp[] = "/tmp/conn_bulk.XXXXXX";
    int fd, ends[2];

    *bytes = 4096;
    if (i == 0)
        return rawbulk_object(4096, 0);
    if (i <= 4)
        return rawbulk_object(4096, RAWBULK_SEALS & ~seals[i]);
    switch (i) {
    case 5: /* sparse */
        fd = memfd_create("sparse", MFD_CLOEXEC | MFD_ALLOW_SEALING);
        *bytes = MAX_BYTES;
        ck_assert_int_eq(ftruncate(fd, MAX_BYTES), 0);
        ck_assert_int_eq(fcntl(fd, F_ADD_SEALS, RAWBULK_SEALS), 0);
        return fd;
    case 6: /* one page punched out */
        fd = rawbulk_object(MAX_BYTES, 0);
        *bytes = MAX_BYTES;
        ck_assert_int_eq(
            fallocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, MAX_BYTES / 2, 4096), 0);
        ck_assert_int_eq(fcntl(fd, F_ADD_SEALS, RAWBULK_SEALS), 0);
        return fd;
    case 7: /* huge pages: needs none until it is touched, and the daemon does not touch it */
        fd = memfd_create("huge", MFD_CLOEXEC | MFD_ALLOW_SEALING | MFD_HUGETLB);
        if (fd < 0) /* a kernel without: no client can make one either; the next best is another file */
            return open("/dev/zero", O_RDONLY | O_CLOEXEC);
        ck_assert_int_eq(ftruncate(fd, 2 << 20), 0);
        ck_assert_int_eq(fcntl(fd, F_ADD_SEALS, RAWBULK_SEALS), 0);
        *bytes = MAX_BYTES;
        return fd;
    case 8: /* O_PATH of a good one */
        fd = rawbulk_object(4096, RAWBULK_SEALS);
        snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
        ends[0] = open(path, O_PATH | O_CLOEXEC);
        close(fd);
        return ends[0];
    case 9: /* ordinary file */
        fd = mkostemp(tmp, O_CLOEXEC);
        unlink(tmp);
        ck_assert_int_eq(ftruncate(fd, 4096), 0);
        return fd;
    case 10:
        ck_assert_int_eq(pipe2(ends, O_CLOEXEC), 0);
        close(ends[1]);
        return ends[0];
    case 11:
        return open("/tmp", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    case 12: /* longer than said */
        return rawbulk_object(8192, RAWBULK_SEALS);
    default: /* shorter than said */
        *bytes = 8192;
        return rawbulk_object(4096, RAWBULK_SEALS);
    }
}

/* A refused object costs its sender nothing but the object. */
START_TEST(bad_objects_are_refused) {
    struct glmw_entry e;
    uint64_t bytes;
    int fd = bad_descriptor(_i, &bytes);

    ck_assert_int_ge(fd, 0);
    raw_open(&c, f.socket, NULL);
    rawbulk_send(&c, 3, GLMW_BULK_PAYLOAD, bytes, fd);
    ck_assert_int_eq(rawbulk_answer(&c, 3), -EINVAL);
    daemonfix_expect_log(&f, "bulk object refused: bulk ");
    ck_assert_int_eq(rawbulk_give(&c, 3, 4096), 0); /* the id is not alive */
    e = rawbulk_naming(1, 3);
    raw_submit(&c, &e);
    ck_assert_int_eq(raw_until_end(&c, 1, NULL), 0);
    raw_close(&c);
}
END_TEST

/* Each costs the daemon a walk over its pages. */
START_TEST(bad_objects_have_an_end) {
    uint64_t bytes;

    raw_open(&c, f.socket, NULL);
    for (int i = 0; i < 16; i++) {
        int fd = bad_descriptor(6, &bytes);

        rawbulk_send(&c, 3, GLMW_BULK_PAYLOAD, bytes, fd);
        ck_assert_int_eq(rawbulk_answer(&c, 3), -EINVAL);
    }
    rawbulk_send(&c, 3, GLMW_BULK_PAYLOAD, bytes, bad_descriptor(6, &bytes));
    cut_off("bulk objects that break the rules, again and again");
}
END_TEST

START_TEST(too_large_is_refused) {
    raw_open(&c, f.socket, NULL);
    rawbulk_send(&c, 3, GLMW_BULK_PAYLOAD, MAX_BYTES + 4096, rawbulk_object(MAX_BYTES + 4096, RAWBULK_SEALS));
    ck_assert_int_eq(rawbulk_answer(&c, 3), -EMSGSIZE);
    rawbulk_send(&c, 3, GLMW_BULK_PAYLOAD, UINT64_MAX, rawbulk_object(4096, RAWBULK_SEALS));
    ck_assert_int_eq(rawbulk_answer(&c, 3), -EMSGSIZE);
    raw_close(&c);
}
END_TEST

START_TEST(id_alive_twice) {
    raw_open(&c, f.socket, NULL);
    ck_assert_int_eq(rawbulk_give(&c, 3, 4096), 0);
    rawbulk_send(&c, 3, GLMW_BULK_PAYLOAD, 4096, rawbulk_object(4096, RAWBULK_SEALS));
    cut_off("a bulk object with an id that is alive");
}
END_TEST

START_TEST(seventeen_objects) {
    struct glmw_entry e;

    raw_open(&c, f.socket, NULL);
    for (uint32_t i = 0; i < OBJECTS; i++)
        ck_assert_int_eq(rawbulk_give(&c, 100 + i, 4096), 0);
    ck_assert_int_eq(rawbulk_give(&c, 500, 4096), -EBUSY);
    e = rawbulk_naming(1, 107);
    raw_submit(&c, &e);
    ck_assert_int_eq(raw_until_end(&c, 1, NULL), 0);
    ck_assert_int_eq(rawbulk_give(&c, 500, 4096), 0);
    ck_assert_int_eq(rawbulk_give(&c, 501, 4096), -EBUSY);
    raw_close(&c);
}
END_TEST

START_TEST(named_twice) {
    struct glmw_entry e = rawbulk_naming(1, 3), again = rawbulk_naming(2, 3);

    raw_open(&c, f.socket, NULL);
    ck_assert_int_eq(rawbulk_give(&c, 3, 4096), 0);
    glmw_put(&c.sq, &e);
    raw_submit(&c, &again);
    cut_off("the bulk object of another request");
}
END_TEST

START_TEST(ids_that_are_not_alive) {
    static const uint64_t ids[] = {4, 0, UINT64_MAX, UINT64_C(3) | UINT64_C(1) << 32};
    struct glmw_entry e = rawbulk_naming(1, ids[_i]);

    raw_open(&c, f.socket, NULL);
    ck_assert_int_eq(rawbulk_give(&c, 3, 4096), 0);
    raw_submit(&c, &e);
    cut_off("a bulk id that is not alive");
}
END_TEST

START_TEST(object_and_payload_in_one) {
    struct glmw_entry e = rawbulk_naming(1, 3);

    raw_open(&c, f.socket, NULL);
    ck_assert_int_eq(rawbulk_give(&c, 3, 4096), 0);
    e.payload_len = 24;
    raw_submit(&c, &e);
    cut_off("a bulk object and a payload in one");
}
END_TEST

/* The table takes pictures, requests do not yet; the object goes with the refusal. */
START_TEST(picture_is_no_payload) {
    struct glmw_entry e = rawbulk_naming(1, 3);

    raw_open(&c, f.socket, NULL);
    rawbulk_send(&c, 3, GLMW_BULK_IMAGE, 4096, rawbulk_object(4096, RAWBULK_SEALS));
    ck_assert_int_eq(rawbulk_answer(&c, 3), 0);
    raw_submit(&c, &e);
    ck_assert_int_eq(raw_until_end(&c, 1, NULL), -EINVAL);
    ck_assert_int_eq(rawbulk_give(&c, 3, 4096), 0);
    raw_close(&c);
}
END_TEST

/* Looked into by a text worker, so after ACCEPTED. */
START_TEST(malformed_payload_ends_the_request) {
    static const uint8_t types[] = {GLMW_REC_ACCEPTED, GLMW_REC_ERROR, GLMW_REC_USAGE, GLMW_REC_END};
    struct glmw_entry e = rawbulk_naming(1, 3);
    uint8_t junk[64];
    struct glmw_rec r;
    int fd = memfd_create("junk", MFD_CLOEXEC | MFD_ALLOW_SEALING);

    memset(junk, 0x5a, sizeof junk);
    ck_assert_int_eq(write(fd, junk, sizeof junk), sizeof junk);
    ck_assert_int_eq(fcntl(fd, F_ADD_SEALS, RAWBULK_SEALS), 0);
    raw_open(&c, f.socket, NULL);
    rawbulk_send(&c, 3, GLMW_BULK_PAYLOAD, sizeof junk, fd);
    ck_assert_int_eq(rawbulk_answer(&c, 3), 0);
    raw_submit(&c, &e);
    for (size_t i = 0; i < 4; i++) {
        ck_assert(raw_record(&c, &r, 10000, false));
        ck_assert_uint_eq(r.type, types[i]);
    }
    ck_assert_int_eq(r.u.end.status, -EBADMSG);
    raw_close(&c);
}
END_TEST

/* Worker and engine may be reading when the cancellation comes: the mapping stays until the END. */
START_TEST(cancelled_at_any_moment) {
    raw_open(&c, f.socket, NULL);
    for (uint64_t tag = 1; tag <= 40; tag++) {
        struct glmw_entry e = rawbulk_naming(tag, (uint32_t)tag), cancel = {.opcode = GLMW_OP_CANCEL, .tag = tag};
        int r;

        ck_assert_int_eq(rawbulk_give(&c, (uint32_t)tag, MAX_BYTES), 0);
        raw_submit(&c, &e);
        usleep((unsigned)(tag * 37 % 11) * 50);
        raw_submit(&c, &cancel);
        r = raw_until_end(&c, tag, NULL);
        ck_assert_msg(r == 0 || r == -ECANCELED, "END says %d", r);
    }
    raw_close(&c);
    nothing_is_mapped();
}
END_TEST

/* What a connection leaves behind is counted for nobody: four objects are the whole quota. */
START_TEST(disconnect_frees_objects) {
    for (int round = 0; round < 8; round++) {
        raw_open(&c, f.socket, NULL);
        for (uint32_t i = 0; i < 4; i++) {
            uint64_t until = test_now_ms() + 10000;
            int r;

            /* the daemon learns of the last hang-up in its own time */
            while ((r = rawbulk_give(&c, i, MAX_BYTES)) == -EDQUOT && test_now_ms() < until)
                usleep(1000);
            ck_assert_int_eq(r, 0);
        }
        if (round & 1) { /* some named, and the client gone before the answer */
            struct glmw_entry a = rawbulk_naming(1, 0), b = rawbulk_naming(2, 1);

            glmw_put(&c.sq, &a);
            raw_submit(&c, &b);
            usleep((unsigned)round * 100);
        }
        raw_close(&c);
    }
    nothing_is_mapped();
}
END_TEST

/* The object belongs to the request, which outlives its connection: it goes with the END, wherever that is. */
START_TEST(kept_stream_keeps_its_object) {
    struct glmw_entry e = rawbulk_naming(1, 0), resume = {.opcode = GLMW_OP_RESUME, .tag = 2};
    struct glmw_rec r;

    raw_open(&c, f.socket, NULL);
    ck_assert_int_eq(rawbulk_give(&c, 0, MAX_BYTES), 0);
    e.flags |= GLMW_ENT_KEEP;
    raw_submit(&c, &e);
    ck_assert(raw_record(&c, &r, 10000, false));
    ck_assert_uint_eq(r.type, GLMW_REC_ACCEPTED);
    resume.payload_off = r.u.accepted.stream_id;
    ck_assert_uint_ne(resume.payload_off, 0);
    raw_close(&c);
    raw_open(&c, f.socket, NULL);
    ck_assert_int_eq(rawbulk_give(&c, 0, MAX_BYTES), 0); /* the id was the other connection's */
    raw_submit(&c, &resume);
    do
        ck_assert_msg(raw_record(&c, &r, 10000, false), "no END of the resumed stream");
    while (r.type != GLMW_REC_END);
    ck_assert_int_eq(r.u.end.status, 0);
    for (uint32_t i = 1; i < 4; i++)
        ck_assert_int_eq(rawbulk_give(&c, i, MAX_BYTES), 0);
    ck_assert_int_eq(rawbulk_give(&c, 4, MAX_BYTES), -EDQUOT);
    raw_close(&c);
}
END_TEST

START_TEST(quota_of_the_user) {
    struct rawclient other;
    struct glmw_entry e;
    char line[128];

    raw_open(&c, f.socket, NULL);
    raw_open(&other, f.socket, NULL);
    ck_assert_int_eq(rawbulk_give(&c, 1, MAX_BYTES), 0);
    ck_assert_int_eq(rawbulk_give(&c, 2, MAX_BYTES), 0);
    ck_assert_int_eq(rawbulk_give(&other, 1, MAX_BYTES), 0);
    ck_assert_int_eq(rawbulk_give(&other, 2, MAX_BYTES), 0);
    ck_assert_int_eq(rawbulk_give(&c, 3, 4096), -EDQUOT);
    ck_assert_int_eq(rawbulk_give(&other, 3, 4096), -EDQUOT);
    snprintf(line, sizeof line, "bulk object refused: [Quota] MaxBulkBytesPerUid conn=3 uid=%u",
             (unsigned)getuid());
    daemonfix_expect_log(&f, line);
    e = rawbulk_naming(1, 2);
    raw_submit(&other, &e);
    ck_assert_int_eq(raw_until_end(&other, 1, NULL), 0);
    ck_assert_int_eq(rawbulk_give(&c, 3, 4096), 0);
    raw_close(&other);
    raw_close(&c);
}
END_TEST

START_TEST(not_asked_for) {
    struct hello_msg h = raw_hello();
    struct glmw_entry e = rawbulk_naming(1, 3);

    h.u.hello.features_wanted &= ~GLMW_FEAT_BULK;
    raw_open(&c, f.socket, &h);
    ck_assert(!(c.welcome.features & GLMW_FEAT_BULK));
    ck_assert_uint_eq(c.welcome.limits.max_bulk, 0);
    raw_submit(&c, &e);
    ck_assert_int_eq(raw_until_end(&c, 1, NULL), -EOPNOTSUPP);
    rawbulk_send(&c, 3, GLMW_BULK_PAYLOAD, 4096, rawbulk_object(4096, RAWBULK_SEALS));
    cut_off("a feature that was not granted");
}
END_TEST

START_TEST(wrong_number_of_descriptors) {
    static const unsigned counts[] = {0, 2, 4};
    struct hello_msg m = {.type = GLMW_PKT_BULK, .u.bulk = {.id = 1, .kind = 1, .bytes = 4096}};
    int fd = rawbulk_object(4096, RAWBULK_SEALS);
    int fds[4] = {fd, fd, fd, fd};

    raw_open(&c, f.socket, NULL);
    raw_send(c.fd, &m, fds, counts[_i]);
    close(fd);
    cut_off("too many or too few descriptors");
}
END_TEST

/* The daemon's own lack of descriptors is nobody's fault: the client is told so and not counted as hostile. */
START_TEST(no_descriptor_for_an_object) {
    struct rlimit old, tight;

    raw_open(&c, f.socket, NULL);
    ck_assert_int_eq(rawbulk_give(&c, 1, 4096), 0);
    ck_assert_int_eq(prlimit(f.pid, RLIMIT_NOFILE, NULL, &old), 0);
    tight = (struct rlimit){.rlim_cur = 3, .rlim_max = old.rlim_max};
    ck_assert_int_eq(prlimit(f.pid, RLIMIT_NOFILE, &tight, NULL), 0);
    rawbulk_send(&c, 2, GLMW_BULK_PAYLOAD, 4096, rawbulk_object(4096, RAWBULK_SEALS));
    ck_assert_int_eq(raw_expect_close(c.fd), -EMFILE);
    ck_assert_int_eq(prlimit(f.pid, RLIMIT_NOFILE, &old, NULL), 0);
    raw_close(&c);
    daemonfix_expect_log(&f, "no descriptor left for what a client sent");
    ck_assert_ptr_null(strstr(daemonfix_log(&f), "too many descriptors"));
}
END_TEST

/* Objects without end and no look at the answers: the daemon neither blocks nor collects. */
START_TEST(answers_not_read) {
    struct hello_msg m = {.type = GLMW_PKT_BULK, .u.bulk = {.id = 1, .kind = 1, .bytes = 8}};
    uint8_t packet[GLMW_PACKET_MAX];
    int fd = rawbulk_object(4096, RAWBULK_SEALS), n = hello_encode(&m, packet, sizeof packet), r = 0;
    uint64_t until = test_now_ms() + 20000;

    raw_open(&c, f.socket, NULL);
    while (r == 0 || r == -EAGAIN) {
        ck_assert_msg(test_now_ms() < until, "the daemon goes on");
        r = seqsock_send(c.fd, packet, (size_t)n, &fd, 1);
        if (r == -EAGAIN)
            usleep(200);
    }
    ck_assert_int_eq(r, -EPIPE);
    close(fd);
    raw_close(&c);
}
END_TEST

static uint64_t peak_kib(void) {
    char path[64], line[200];
    unsigned long long v = 0;
    FILE *o;

    snprintf(path, sizeof path, "/proc/%d/status", (int)f.pid);
    o = fopen(path, "re");
    ck_assert_ptr_nonnull(o);
    while (fgets(line, sizeof line, o))
        if (sscanf(line, "VmHWM: %llu", &v) == 1)
            break;
    fclose(o);
    ck_assert_uint_gt(v, 0);
    return v;
}

/* 32 MiB of which the decoder looks at the first bytes: a private copy would show in the daemon's peak. */
START_TEST(object_is_not_copied) {
    enum { BYTES = 32 << 20 };
    struct glmw_entry e;
    uint64_t peak;

    daemonfix_init(&f);
    daemonfix_script(&f, "vocab 100\nstop 2\nloop\nrequest\ntokens 10 11 12 13 14 2\n");
    daemonfix_start(&f, NULL);
    raw_open(&c, f.socket, NULL);
    ck_assert_int_eq(rawbulk_give(&c, 1, 4096), 0);
    e = rawbulk_naming(1, 1);
    raw_submit(&c, &e);
    ck_assert_int_eq(raw_until_end(&c, 1, NULL), 0);
    peak = peak_kib();
    ck_assert_int_eq(rawbulk_give(&c, 2, BYTES), 0);
    e = rawbulk_naming(2, 2);
    raw_submit(&c, &e);
    ck_assert_int_eq(raw_until_end(&c, 2, NULL), 0);
    ck_assert_msg(peak_kib() - peak < BYTES / 1024 / 2, "the peak rose from %llu to %llu KiB",
                  (unsigned long long)peak, (unsigned long long)peak_kib());
    raw_close(&c);
    daemonfix_stop(&f);
    daemonfix_done(&f);
}
END_TEST

static void add_case(Suite *s, const char *name, SFun setup) {
    TCase *tc = tcase_create(name);

    tcase_set_timeout(tc, 60);
    tcase_add_checked_fixture(tc, leakcheck_setup, leakcheck_teardown);
    tcase_add_checked_fixture(tc, setup, teardown);
    tcase_add_test(tc, object_is_the_payload);
    tcase_add_loop_test(tc, bad_objects_are_refused, 0, 14);
    tcase_add_test(tc, bad_objects_have_an_end);
    tcase_add_test(tc, too_large_is_refused);
    tcase_add_test(tc, id_alive_twice);
    tcase_add_test(tc, seventeen_objects);
    tcase_add_test(tc, named_twice);
    tcase_add_loop_test(tc, ids_that_are_not_alive, 0, 4);
    tcase_add_test(tc, object_and_payload_in_one);
    tcase_add_test(tc, picture_is_no_payload);
    tcase_add_test(tc, malformed_payload_ends_the_request);
    tcase_add_test(tc, cancelled_at_any_moment);
    tcase_add_test(tc, disconnect_frees_objects);
    tcase_add_test(tc, kept_stream_keeps_its_object);
    tcase_add_test(tc, quota_of_the_user);
    tcase_add_test(tc, not_asked_for);
    tcase_add_loop_test(tc, wrong_number_of_descriptors, 0, 3);
    tcase_add_test(tc, no_descriptor_for_an_object);
    tcase_add_test(tc, answers_not_read);
    suite_add_tcase(s, tc);
}

int main(void) {
    Suite *s = suite_create("conn_bulk");
    TCase *tc = tcase_create("memory");
    SRunner *sr;
    int failed;

    add_case(s, "epoll", setup_epoll);
    if (daemonfix_loops() == 2)
        add_case(s, "uring", setup_uring);
    tcase_set_timeout(tc, 60);
    tcase_add_checked_fixture(tc, leakcheck_setup, leakcheck_teardown);
    tcase_add_test(tc, object_is_not_copied);
    suite_add_tcase(s, tc);
    sr = srunner_create(s);
    srunner_run_all(sr, CK_ENV);
    failed = srunner_ntests_failed(sr);
    srunner_free(sr);
    return failed != 0;
}
