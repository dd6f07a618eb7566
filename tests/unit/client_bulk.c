/* SPDX-License-Identifier: MIT */
/* What libglmd sends when a request is large, and what it makes of a daemon's answers: right, wrong and none. */
#include <check.h>
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "clienttest.h"
#include "fakedaemon.h"
#include "leakcheck.h"
#include "seqsock.h"

static struct fake f;
static glmd_conn *c;

static void open_with(uint32_t max_bulk, uint64_t max_bytes, uint8_t pay_log2) {
    struct fake_options o = {.features = FAKE_FEATURES | GLMW_FEAT_BULK, .pay_log2 = pay_log2};

    o.limits.max_bulk = max_bulk;
    o.limits.max_bulk_bytes = max_bytes;
    c = fake_connect(&f, &o);
}

static void done(void) {
    c = glmd_close(c);
    fake_close(&f);
}

static glmd_req *text(size_t bytes) {
    char *s = malloc(bytes);
    glmd_req *r;

    ck_assert_ptr_nonnull(s);
    for (size_t i = 0; i < bytes; i++)
        s[i] = (char)('a' + i % 26);
    ck_assert_int_eq(glmd_req_new(c, &r), 0);
    ck_assert_int_eq(glmd_req_message(r, GLMD_ROLE_USER, s, bytes), 0);
    free(s);
    return r;
}

static uint64_t submit(size_t bytes) {
    uint64_t tag = 0;

    ck_assert_int_eq(glmd_submit(c, text(bytes), &tag), 0);
    return tag;
}

/* The BULK that lies on the socket; its descriptor is the caller's. */
static struct glmw_bulk take_bulk(int *ret_fd) {
    static struct seqsock_rx rx;
    struct hello_msg m;
    const char *why = "";

    do /* the greeting was never read */
        ck_assert_int_eq(seqsock_recv(f.sock, &rx), 0);
    while (hello_decode(rx.buf, rx.len, rx.n_fds, HELLO_SERVER_FIRST, &m, &why) == 0);
    ck_assert_msg(hello_decode(rx.buf, rx.len, rx.n_fds, HELLO_SERVER_OPEN, &m, &why) == 0, "%s", why);
    ck_assert_uint_eq(m.type, GLMW_PKT_BULK);
    *ret_fd = rx.fds[0];
    return m.u.bulk;
}

static uint32_t take_id(void) {
    int fd;
    struct glmw_bulk b = take_bulk(&fd);

    close(fd);
    return b.id;
}

static void reply(uint32_t id, int error) {
    struct hello_msg m = {.type = error ? GLMW_PKT_BULK_ERR : GLMW_PKT_BULK_OK,
                          .u.bulk_answer = {.id = id, .error = error}};

    fake_packet(&f, &m);
    ck_assert_int_ge(glmd_dispatch(c), 0);
}

/* Sealed, of the length it says, without holes, and the payload that would else be in the arena. */
START_TEST(object_is_as_the_protocol_wants) {
    enum { BYTES = 300000 };
    const int want = F_SEAL_WRITE | F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL;
    struct shm_bulk map;
    struct glmw_entry e;
    struct glmw_tlv t;
    struct glmw_bulk b;
    const uint8_t *p;
    uint64_t tag;
    int fd;

    open_with(16, 1 << 20, 0);
    tag = submit(BYTES);
    b = take_bulk(&fd);
    ck_assert_int_eq(fcntl(fd, F_GET_SEALS) & want, want);
    ck_assert_uint_eq(b.kind, GLMW_BULK_PAYLOAD);
    ck_assert_int_eq(shm_bulk_map(fd, b.bytes, 1 << 20, &map, NULL), 0); /* the daemon's own check */
    close(fd);
    ck_assert(!fake_pop(&f, &e)); /* the entry waits for the answer */
    p = map.data;
    memcpy(&t, p, sizeof t);
    ck_assert_uint_eq(t.type, GLMW_TLV_MSG_BEGIN);
    memcpy(&t, p + 16, sizeof t);
    ck_assert_uint_eq(t.type, GLMW_TLV_PART_TEXT);
    ck_assert_uint_eq(t.len, BYTES);
    for (size_t i = 0; i < BYTES; i++)
        ck_assert(p[24 + i] == 'a' + i % 26);
    shm_bulk_done(&map);
    reply(b.id, 0);
    ck_assert(fake_pop(&f, &e));
    ck_assert_uint_eq(e.opcode, GLMW_OP_SUBMIT);
    ck_assert_uint_eq(e.flags & GLMW_ENT_BULK, GLMW_ENT_BULK);
    ck_assert_uint_eq(e.payload_off, b.id);
    ck_assert_uint_eq(e.payload_len, 0);
    ck_assert_uint_eq(e.tag, tag);
    done();
}
END_TEST

/* By the arena up to 256 KiB, beside it above and where the arena is too small. */
START_TEST(only_large_ones_go_beside) {
    struct glmw_entry e;
    int fd;

    open_with(16, 1 << 20, 16);
    submit(1000);
    ck_assert(fake_pop(&f, &e));
    ck_assert_uint_eq(e.flags & GLMW_ENT_BULK, 0);
    submit(70000); /* the arena has 64 KiB */
    ck_assert(!fake_pop(&f, &e));
    take_bulk(&fd);
    close(fd);
    done();
    open_with(16, 1 << 20, 20);
    submit(262000);
    ck_assert(fake_pop(&f, &e));
    submit(262144);
    ck_assert(!fake_pop(&f, &e));
    take_bulk(&fd);
    close(fd);
    done();
}
END_TEST

START_TEST(refusals_reach_the_caller) {
    static const struct {
        int error;
        const char *word;
    } of[] = {{-EDQUOT, "MaxBulkBytesPerUid"}, {-EBUSY, "as many large requests"},
              {-EMSGSIZE, "MaxBulkBytes"},     {-ENOMEM, "no room"},
              {-EINVAL, "the daemon's log"}};

    open_with(16, 1 << 20, 0);
    for (size_t i = 0; i < sizeof of / sizeof of[0]; i++) {
        uint64_t tag = submit(300000);
        struct glmd_event ev;

        reply(take_id(), of[i].error);
        ev = ct_next(c, GLMD_EV_ERROR, tag);
        ck_assert_int_eq(ev.status, of[i].error);
        ck_assert_msg(strstr(ev.text, of[i].word) != NULL, "%s", ev.text);
        ck_assert_uint_eq(ev.text_len, strlen(ev.text));
        ev = ct_next(c, GLMD_EV_END, tag);
        ck_assert_int_eq(ev.status, of[i].error);
        ck_assert_ptr_null(ev.usage);
        ct_none(c);
    }
    ck_assert_int_eq(glmd_get_error(c, NULL), 0);
    done();
}
END_TEST

START_TEST(impossible_answers_end_the_connection) {
    struct hello_msg m = {.type = GLMW_PKT_BULK_OK};
    uint64_t tag;

    open_with(16, 1 << 20, 0);
    tag = submit(300000);
    m.u.bulk_answer.id = take_id() + (_i == 0);
    if (_i == 1) { /* answered twice */
        fake_packet(&f, &m);
        ck_assert_int_ge(glmd_dispatch(c), 0);
    }
    if (_i == 2) { /* refused without a reason; the encoder does not mind */
        m.type = GLMW_PKT_BULK_ERR;
        m.u.bulk_answer.error = 5;
    }
    fake_packet(&f, &m);
    glmd_dispatch(c);
    ck_assert_int_eq(ct_next(c, GLMD_EV_END, tag).status, -EPROTO);
    ck_assert_int_eq(glmd_get_error(c, NULL), -EPROTO);
    done();
}
END_TEST

/* Not more than the daemon takes: the caller waits, as for a full ring. */
START_TEST(places_are_counted) {
    uint32_t ids[3];
    uint64_t tags[3], tag = 0;
    glmd_req *r;

    open_with(3, 1 << 20, 0);
    for (int i = 0; i < 3; i++) {
        tags[i] = submit(300000);
        ids[i] = take_id();
    }
    r = text(300000);
    ck_assert_int_eq(glmd_submit(c, r, &tag), -ENOBUFS);
    reply(ids[1], -EINVAL); /* a refused object has its place back at once */
    ck_assert_int_eq(ct_next(c, GLMD_EV_ERROR, tags[1]).status, -EINVAL);
    ck_assert_int_eq(glmd_submit(c, r, &tag), 0);
    ck_assert_uint_ne(take_id(), ids[1]); /* ids do not come back */
    ct_next(c, GLMD_EV_END, tags[1]);
    r = text(300000);
    ck_assert_int_eq(glmd_submit(c, r, &tag), -ENOBUFS);
    /* a taken one at the END of its request */
    reply(ids[0], 0);
    ck_assert_uint_eq(fake_pop_submit(&f), tags[0]);
    fake_accept(&f, tags[0]);
    fake_end(&f, tags[0], 0, GLMW_END_STOP);
    fake_flush(&f, true);
    ck_assert_int_eq(glmd_submit(c, r, &tag), -ENOBUFS);
    ct_next(c, GLMD_EV_ACCEPTED, tags[0]);
    ct_next(c, GLMD_EV_END, tags[0]);
    ck_assert_int_eq(glmd_submit(c, r, &tag), 0);
    done();
}
END_TEST

/* A cancel that came before the answer follows the entry, and only once. */
START_TEST(cancel_waits_for_the_entry) {
    struct glmw_entry e;
    uint64_t tag;

    open_with(16, 1 << 20, 0);
    tag = submit(300000);
    ck_assert_int_eq(glmd_cancel(c, tag), 0);
    ck_assert_int_eq(glmd_cancel(c, tag), 0);
    ck_assert(!fake_pop(&f, &e));
    reply(take_id(), 0);
    ck_assert_uint_eq(fake_pop_submit(&f), tag);
    ck_assert(fake_pop(&f, &e));
    ck_assert_uint_eq(e.opcode, GLMW_OP_CANCEL);
    ck_assert_uint_eq(e.tag, tag);
    ck_assert(!fake_pop(&f, &e));
    done();
}
END_TEST

/* The ring is full when the answer comes: the entry follows when there is room, without a word of the caller. */
START_TEST(entry_waits_for_room) {
    struct glmw_entry e;
    uint64_t tag;
    struct fake_options o = {.features = FAKE_FEATURES | GLMW_FEAT_BULK, .sq_log2 = 4};
    uint64_t other = 0;
    glmd_req *r;
    int n = 0, full;

    o.limits.max_bulk = 16;
    o.limits.max_bulk_bytes = 1 << 20;
    c = fake_connect(&f, &o);
    tag = submit(300000);
    do {
        r = text(10);
        full = glmd_submit(c, r, &other);
        n += full == 0;
    } while (full == 0);
    glmd_req_free(r);
    ck_assert_int_eq(full, -ENOBUFS);
    ck_assert_int_eq(n, 16);
    reply(take_id(), 0);
    for (int i = 0; i < n; i++) {
        ck_assert(fake_pop(&f, &e));
        ck_assert_uint_ne(e.tag, tag);
    }
    for (int i = 0; i < 200 && !fake_pop(&f, &e); i++)
        ck_assert_int_ge(glmd_wait(c, 10000000), 0);
    ck_assert_uint_eq(e.tag, tag);
    done();
}
END_TEST

START_TEST(death_with_a_question_open) {
    uint64_t tag;

    open_with(16, 1 << 20, 0);
    tag = submit(300000);
    fake_die(&f);
    glmd_dispatch(c);
    ck_assert_int_eq(ct_next(c, GLMD_EV_END, tag).status, -EPIPE);
    done();
    open_with(16, 1 << 20, 0);
    submit(300000); /* closed with the question open: the fixture counts descriptors */
    done();
}
END_TEST

int main(void) {
    Suite *s = suite_create("client_bulk");
    TCase *tc = ct_case(s, "bulk", 30);

    tcase_add_test(tc, object_is_as_the_protocol_wants);
    tcase_add_test(tc, only_large_ones_go_beside);
    tcase_add_test(tc, refusals_reach_the_caller);
    tcase_add_loop_test(tc, impossible_answers_end_the_connection, 0, 3);
    tcase_add_test(tc, places_are_counted);
    tcase_add_test(tc, cancel_waits_for_the_entry);
    tcase_add_test(tc, entry_waits_for_room);
    tcase_add_test(tc, death_with_a_question_open);
    return ct_main(s);
}
