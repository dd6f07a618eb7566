/* SPDX-License-Identifier: MIT */
/* The daemon dies, ends the connection, hangs, or writes nonsense: what was published arrives, every tag gets
 * exactly one END, the error stays, and nothing crashes. */
#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "clienttest.h"
#include "fakedaemon.h"

/* Two live tags; one has two tokens published and one END. */
START_TEST(records_before_the_error) {
    struct fake f;
    glmd_conn *c = fake_connect(&f, NULL);
    struct glmd_event e = {.size = sizeof e};
    uint64_t a = ct_submit(c, "a"), b = ct_submit(c, "b"), d = ct_submit(c, "d");
    for (int i = 0; i < 3; i++)
        fake_pop_submit(&f);
    fake_accept(&f, a);
    fake_accept(&f, b);
    fake_text(&f, a, 1, "one");
    fake_text(&f, a, 2, "a text that lies in the arena of the dead daemon");
    fake_end(&f, b, 0, GLMW_END_STOP);
    /* one more is written but not published: it does not exist */
    fake_flush(&f, true);
    fake_text(&f, a, 3, "lost");
    fake_die(&f);
    ck_assert_int_eq(ct_readable(c, 1000), 1);
    ck_assert_int_eq(glmd_dispatch(c), 1);
    ck_assert_int_eq(glmd_get_error(c, NULL), -EPIPE);
    ck_assert_int_eq(glmd_prepare(c), 0);
    ct_next(c, GLMD_EV_ACCEPTED, a);
    ct_next(c, GLMD_EV_ACCEPTED, b);
    ct_next_text(c, a, "one");
    ct_next_text(c, a, "a text that lies in the arena of the dead daemon");
    e = ct_next(c, GLMD_EV_END, b);
    ck_assert_int_eq(e.status, 0);
    int ends_a = 0, ends_d = 0, r;
    while ((r = glmd_next(c, &e)) == 1) {
        ck_assert_uint_eq(e.type, GLMD_EV_END);
        ck_assert_int_eq(e.status, -EPIPE);
        ends_a += e.tag == a;
        ends_d += e.tag == d;
        ck_assert(e.tag == a || e.tag == d);
    }
    ck_assert_int_eq(r, -EPIPE);
    ck_assert_int_eq(ends_a, 1);
    ck_assert_int_eq(ends_d, 1);
    /* sticky everywhere, and a foreign loop sees the descriptor readable */
    const char *why;
    ck_assert_int_eq(glmd_get_error(c, &why), -EPIPE);
    ck_assert_int_gt((int)strlen(why), 10);
    ck_assert_int_eq(glmd_dispatch(c), -EPIPE);
    ck_assert_int_eq(glmd_prepare(c), -EPIPE);
    ck_assert_int_eq(glmd_wait(c, -1), -EPIPE);
    ck_assert_int_eq(ct_readable(c, 0), 1);
    glmd_req *q;
    uint64_t tag;
    ck_assert_int_eq(glmd_req_new(c, &q), 0);
    ck_assert_int_eq(glmd_submit(c, q, &tag), -EPIPE);
    glmd_req_free(q);
    ck_assert_int_eq(glmd_cancel(c, a), 0);
    glmd_close(c);
    fake_close(&f);
}
END_TEST

/* The waiting call delivers everything by itself. */
START_TEST(death_during_wait) {
    struct fake f;
    glmd_conn *c = fake_connect(&f, NULL);
    struct glmd_event e = {.size = sizeof e};
    uint64_t tag = ct_submit(c, "a");
    fake_pop_submit(&f);
    fake_accept(&f, tag);
    fake_flush(&f, true);
    fake_die(&f);
    ck_assert_int_eq(glmd_wait(c, -1), 1);
    ct_next(c, GLMD_EV_ACCEPTED, tag);
    ck_assert_int_eq(glmd_wait(c, -1), 1);
    e = ct_next(c, GLMD_EV_END, tag);
    ck_assert_int_eq(e.status, -EPIPE);
    ck_assert_int_eq(glmd_next(c, &e), -EPIPE);
    ck_assert_int_eq(glmd_wait(c, -1), -EPIPE);
    glmd_close(c);
    fake_close(&f);
}
END_TEST

/* Half of a group of records is published, then the daemon dies: the half is dropped. */
START_TEST(death_inside_a_group) {
    struct fake f;
    glmd_conn *c = fake_connect(&f, NULL);
    uint64_t tag = ct_submit(c, "a");
    fake_pop_submit(&f);
    fake_accept(&f, tag);
    struct glmw_rec r = fake_rec(&f, GLMW_REC_TOKEN, tag);
    r.flags = GLMW_RF_ALTS_FOLLOW;
    r.n_alts = 3;
    fake_put(&f, &r);
    fake_flush(&f, true);
    fake_die(&f);
    ck_assert_int_eq(glmd_dispatch(c), 1);
    ct_next(c, GLMD_EV_ACCEPTED, tag);
    struct glmd_event e = ct_next(c, GLMD_EV_END, tag);
    ck_assert_int_eq(e.status, -EPIPE);
    glmd_close(c);
    fake_close(&f);
}
END_TEST

START_TEST(bye_and_notices) {
    struct fake f;
    glmd_conn *c = fake_connect(&f, NULL);
    uint64_t tag = ct_submit(c, "a");
    struct hello_msg m = {.type = GLMW_PKT_NOTICE};
    m.u.notice.what = GLMW_NOTICE_STATE;
    m.u.notice.state = GLMW_STATE_DRAINING;
    m.u.notice.limits.max_live = 1;
    memcpy(m.u.notice.model, "other", 5);
    fake_packet(&f, &m);
    ck_assert_int_eq(glmd_wait(c, 1000000000), 1);
    struct glmd_event e = ct_next(c, GLMD_EV_NOTICE, 0);
    ck_assert_uint_eq(e.reason, GLMD_NOTICE_STATE);
    struct glmd_info i = {.size = sizeof i};
    ck_assert_int_eq(glmd_get_info(c, &i), 0);
    ck_assert_uint_eq(i.max_live, 1);
    ck_assert_str_eq(i.model, "other");
    glmd_req *q;
    uint64_t t2;
    ck_assert_int_eq(glmd_req_new(c, &q), 0);
    ck_assert_int_eq(glmd_submit(c, q, &t2), -EBUSY);
    glmd_req_free(q);
    /* a PING is answered */
    m = (struct hello_msg){.type = GLMW_PKT_PING, .u.ping = {{1, 2, 3, 4, 5, 6, 7, 8}}};
    fake_packet(&f, &m);
    ck_assert_int_eq(glmd_dispatch(c), 0);
    struct hello_msg got;
    fake_expect(&f, GLMW_PKT_PONG, &got);
    ck_assert_mem_eq(got.u.ping.opaque, m.u.ping.opaque, 8);
    m = (struct hello_msg){.type = GLMW_PKT_BYE};
    m.u.bye.error = -ESHUTDOWN;
    memcpy(m.u.bye.text, "stopping now", 12);
    fake_packet(&f, &m);
    ck_assert_int_eq(glmd_wait(c, 1000000000), 1);
    e = ct_next(c, GLMD_EV_END, tag);
    ck_assert_int_eq(e.status, -ESHUTDOWN);
    const char *why;
    ck_assert_int_eq(glmd_get_error(c, &why), -ESHUTDOWN);
    ck_assert_ptr_nonnull(strstr(why, "stopping now"));
    glmd_close(c);
    fake_close(&f);
}
END_TEST

/* ---- nonsense in the ring: one broken rule a case ---- */

struct lie {
    const char *name;
    void (*tell)(struct fake *f, uint64_t tag);
};

#define LIE(fn, stmts)                                                                                       \
    static void fn(struct fake *f, uint64_t tag) {                                                           \
        fake_accept(f, tag);                                                                                 \
        struct glmw_rec r = fake_rec(f, GLMW_REC_TOKEN, tag);                                                \
        stmts;                                                                                               \
        fake_put(f, &r);                                                                                     \
        fake_flush(f, true);                                                                                 \
    }

LIE(lie_type, r.type = 200)
LIE(lie_type_zero, r.type = 0)
LIE(lie_channel, r.channel = 4)
LIE(lie_tag, r.tag ^= 1u << 20)
LIE(lie_tag_slot, r.tag += 1)
LIE(lie_tag_zero, r.tag = 0)
LIE(lie_tag_high_slot, r.tag |= 0xfff)
LIE(lie_seq_gap, r.seq += 1)
LIE(lie_seq_repeat, r.seq = 0)
LIE(lie_text_off, r.text_off = (1u << GLMW_TXT_LOG2_DEFAULT) - 9; r.text_len = 10)
LIE(lie_text_off_wrap, r.text_off = UINT32_MAX; r.text_len = 2)
LIE(lie_text_len, r.text_len = GLMW_SPAN_MAX + 1)
LIE(lie_inline_len, r.flags = GLMW_RF_INLINE; r.text_len = 25)
LIE(lie_alts_none, r.flags = GLMW_RF_ALTS_FOLLOW; r.n_alts = 0)
LIE(lie_alts_many, r.flags = GLMW_RF_ALTS_FOLLOW; r.n_alts = 21)
LIE(lie_alts_max, r.flags = GLMW_RF_ALTS_FOLLOW; r.n_alts = 0xffff)
LIE(lie_alts_stray, r.type = GLMW_REC_ALTS)
LIE(lie_alts_other, r.flags = GLMW_RF_ALTS_FOLLOW; r.n_alts = 1; fake_put(f, &r); r.seq++;
    r.type = GLMW_REC_TEXT)
LIE(lie_alts_tag, r.flags = GLMW_RF_ALTS_FOLLOW; r.n_alts = 1; fake_put(f, &r); r.seq++;
    r.type = GLMW_REC_ALTS; r.tag += 4096)
LIE(lie_end_status, r.type = GLMW_REC_END; r.u.end.status = 5)
LIE(lie_end_status_low, r.type = GLMW_REC_END; r.u.end.status = INT32_MIN)
LIE(lie_error_status, r.type = GLMW_REC_ERROR; r.token = 0)
LIE(lie_error_text, r.type = GLMW_REC_ERROR; r.token = (uint32_t)-EINVAL; r.text_off = 1u << 30;
    r.text_len = 3)
LIE(lie_notice_text, r.type = GLMW_REC_NOTICE; r.tag = 0; r.text_off = 1u << 30; r.text_len = 3)
LIE(lie_tool_phase, r.type = GLMW_REC_TOOL; r.u.tool.phase = 9)
LIE(lie_ids_none, r.type = GLMW_REC_IDS; r.channel = 0)
LIE(lie_ids_many, r.type = GLMW_REC_IDS; r.channel = 13)
LIE(lie_accepted_twice, r.type = GLMW_REC_ACCEPTED)

static void lie_not_accepted(struct fake *f, uint64_t tag) {
    fake_text(f, tag, 1, "early");
    fake_flush(f, true);
}

static void lie_after_end(struct fake *f, uint64_t tag) {
    fake_accept(f, tag);
    fake_end(f, tag, 0, 1);
    fake_end(f, tag, 0, 1);
    fake_flush(f, true);
}

static void lie_tail_far(struct fake *f, uint64_t tag) {
    fake_accept(f, tag);
    fake_flush(f, true);
    __atomic_store_n(&f->shm.d->tq_tail, 1u << 20, __ATOMIC_RELEASE);
}

static void lie_tail_back(struct fake *f, uint64_t tag) {
    fake_accept(f, tag);
    fake_flush(f, true);
    __atomic_store_n(&f->shm.d->tq_tail, UINT32_MAX, __ATOMIC_RELEASE);
}

static const struct lie lies[] = {
    {"type", lie_type},
    {"type zero", lie_type_zero},
    {"channel", lie_channel},
    {"tag", lie_tag},
    {"tag slot", lie_tag_slot},
    {"tag zero", lie_tag_zero},
    {"tag high slot", lie_tag_high_slot},
    {"seq gap", lie_seq_gap},
    {"seq repeat", lie_seq_repeat},
    {"text off", lie_text_off},
    {"text off wrap", lie_text_off_wrap},
    {"text len", lie_text_len},
    {"inline len", lie_inline_len},
    {"alts none", lie_alts_none},
    {"alts many", lie_alts_many},
    {"alts max", lie_alts_max},
    {"alts stray", lie_alts_stray},
    {"alts other", lie_alts_other},
    {"alts tag", lie_alts_tag},
    {"end status", lie_end_status},
    {"end status low", lie_end_status_low},
    {"error status", lie_error_status},
    {"error text", lie_error_text},
    {"notice text", lie_notice_text},
    {"tool phase", lie_tool_phase},
    {"ids none", lie_ids_none},
    {"ids many", lie_ids_many},
    {"accepted twice", lie_accepted_twice},
    {"not accepted", lie_not_accepted},
    {"after end", lie_after_end},
    {"tail far", lie_tail_far},
    {"tail back", lie_tail_back},
};

START_TEST(one_lie_ends_the_connection) {
    struct fake f;
    glmd_conn *c = fake_connect(&f, NULL);
    struct glmd_event e = {.size = sizeof e};
    uint64_t a = ct_submit(c, "a"), b = ct_submit(c, "b");
    fake_pop_submit(&f);
    fake_pop_submit(&f);
    lies[_i].tell(&f, a);
    ck_assert_int_ge(glmd_dispatch(c), -EPROTO);
    int ends_a = 0, ends_b = 0, r;
    while ((r = glmd_next(c, &e)) == 1) {
        if (e.type != GLMD_EV_END)
            continue;
        ends_a += e.tag == a;
        ends_b += e.tag == b;
        if (e.tag == b)
            ck_assert_int_eq(e.status, -EPROTO);
    }
    ck_assert_msg(r == -EPROTO, "lie \"%s\": %d", lies[_i].name, r);
    ck_assert_msg(ends_a == 1 && ends_b == 1, "lie \"%s\": %d and %d ends", lies[_i].name, ends_a, ends_b);
    const char *why;
    ck_assert_int_eq(glmd_get_error(c, &why), -EPROTO);
    ck_assert_int_gt((int)strlen(why), 10);
    /* the daemon is told */
    struct hello_msg m;
    fake_expect(&f, GLMW_PKT_BYE, &m);
    ck_assert_int_eq(m.u.bye.error, -EPROTO);
    ck_assert_int_eq(ct_readable(c, 1000), 1);
    glmd_close(c);
    fake_close(&f);
}
END_TEST

START_TEST(entry_index_lies) {
    struct fake f;
    const struct fake_options o = {.sq_log2 = GLMW_SQ_LOG2_MIN};
    glmd_conn *c = fake_connect(&f, &o);
    glmd_req *q;
    uint64_t tag;
    for (int i = 0; i < 16; i++)
        ct_submit(c, "x");
    __atomic_store_n(&f.shm.d->sq_head, 17, __ATOMIC_RELEASE);
    ck_assert_int_eq(glmd_req_new(c, &q), 0);
    ck_assert_int_eq(glmd_submit(c, q, &tag), -EPROTO);
    glmd_req_free(q);
    int n = 0, r;
    struct glmd_event e = {.size = sizeof e};
    while ((r = glmd_next(c, &e)) == 1)
        n++;
    ck_assert_int_eq(r, -EPROTO);
    ck_assert_int_eq(n, 16);
    glmd_close(c);
    fake_close(&f);
}
END_TEST

/* Packets that have no place after the handshake, and descriptors nobody asked for. */
START_TEST(socket_lies) {
    struct fake f;
    glmd_conn *c = fake_connect(&f, NULL);
    uint8_t p[GLMW_PACKET_MAX] = {0};
    struct glmw_packet_hdr h = {
        .magic = GLMW_MAGIC_PACKET, .type = 99, .flags = GLMW_PKTF_IGNORABLE, .len = 8};
    int fds[2] = {0, 1};
    memcpy(p, &h, sizeof h);
    if (_i == 0) {
        fake_packet_raw(&f, p, sizeof h + 8, NULL, 0);
        ck_assert_int_eq(glmd_dispatch(c), 0);
        glmd_close(c);
        fake_close(&f);
        return;
    }
    switch (_i) {
    case 1:
        h.flags = 0;
        break;
    case 2:
        h.magic = 1;
        break;
    case 3:
        h.len = 9;
        break;
    case 4:
        h.type = GLMW_PKT_NOTICE;
        break;
    case 5:
        h.type = GLMW_PKT_WELCOME;
        break;
    case 6:
        h.type = GLMW_PKT_BULK_OK;
        break;
    case 9:
        h.flags |= 2;
        break;
    default:
        break;
    }
    memcpy(p, &h, sizeof h);
    if (_i == 7)
        fake_packet_raw(&f, p, sizeof h + 8, fds, 2);
    else
        fake_packet_raw(&f, p, _i == 8 ? 7 : sizeof h + 8, NULL, 0);
    ck_assert_int_eq(glmd_dispatch(c), -EPROTO);
    glmd_close(c);
    fake_close(&f);
}
END_TEST

/* Random bytes over everything the daemon may write: any result, but no crash and one END a tag. */
START_TEST(random_garbage) {
    for (unsigned seed = 0; seed < 150; seed++) {
        struct fake f;
        const struct fake_options o = {
            .tq_log2 = GLMW_TQ_LOG2_MIN, .txt_log2 = GLMW_TXT_LOG2_MIN, .pay_log2 = GLMW_PAY_LOG2_MIN};
        glmd_conn *c = fake_connect(&f, &o);
        struct glmd_event e = {.size = sizeof e};
        uint64_t tag[3];
        int ends[3] = {0};
        srand(seed + 1);
        for (int i = 0; i < 3; i++)
            tag[i] = ct_submit(c, "x");
        for (int i = 0; i < 3; i++)
            fake_accept(&f, tag[i]);
        for (int round = 0; round < 40; round++) {
            struct glmw_rec r = fake_rec(&f, (uint8_t)(rand() % 13), tag[rand() % 3]);
            uint8_t raw[64];
            memcpy(raw, &r, sizeof raw);
            for (int k = rand() % 4; k > 0; k--)
                raw[rand() % 64] = (uint8_t)(rand() % 3 ? rand() % 8 : rand());
            if (glmw_refresh(&f.tq) == 0 && glmw_free_slots(&f.tq))
                fake_put(&f, raw);
            fake_flush(&f, rand() % 2);
            if (rand() % 50 == 0)
                __atomic_store_n(&f.shm.d->tq_tail, (uint32_t)rand(), __ATOMIC_RELEASE);
            if (rand() % 3 == 0)
                glmd_dispatch(c);
            while (glmd_next(c, &e) == 1) {
                uint8_t sum = 0;
                for (size_t i = 0; i < e.text_len; i++)
                    sum = (uint8_t)(sum + (uint8_t)e.text[i]);
                for (uint32_t i = 0; i < e.n_alts; i++)
                    sum = (uint8_t)(sum + (uint8_t)e.alts[i].token);
                for (uint32_t i = 0; i < e.n_ids; i++)
                    sum = (uint8_t)(sum + (uint8_t)e.ids[i]);
                if (e.usage)
                    sum = (uint8_t)(sum + (uint8_t)e.usage->prompt_tokens);
                __asm__ volatile("" : : "r"(sum)); /* the reads happen */
                for (int i = 0; i < 3; i++)
                    ends[i] += e.type == GLMD_EV_END && e.tag == tag[i];
            }
        }
        fake_die(&f);
        glmd_dispatch(c);
        while (glmd_next(c, &e) == 1)
            for (int i = 0; i < 3; i++)
                ends[i] += e.type == GLMD_EV_END && e.tag == tag[i];
        for (int i = 0; i < 3; i++)
            ck_assert_msg(ends[i] == 1, "seed %u: %d ends", seed, ends[i]);
        glmd_close(c);
        fake_close(&f);
    }
}
END_TEST

/* ---- hanging ---- */

static void beat(struct fake *f, int64_t age_ns) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    int64_t now = (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
    struct glmw_status s = {.state = GLMW_STATE_READY, .heartbeat_ns = (uint64_t)(now - age_ns)};
    glmw_status_write(&f->shm.d->status, &s);
}

/* Takes about eight seconds of waiting: five until the heartbeat is looked at, two for the answer to the
 * PING. */
START_TEST(hang_is_a_notice) {
    struct fake f;
    glmd_conn *c = fake_connect(&f, NULL);
    uint64_t tag = ct_submit(c, "x");
    struct hello_msg m;
    beat(&f, 20000000000);
    ck_assert_int_eq(glmd_wait(c, 5500000000), 0);
    fake_expect(&f, GLMW_PKT_PING, &m);
    ck_assert_int_eq(glmd_wait(c, 3000000000), 1);
    struct glmd_event e = ct_next(c, GLMD_EV_NOTICE, 0);
    ck_assert_uint_eq(e.reason, GLMD_NOTICE_HANG);
    ct_none(c);
    ck_assert_int_eq(glmd_get_error(c, NULL), 0);
    /* it comes back: the late answer is enough */
    m.type = GLMW_PKT_PONG;
    fake_packet(&f, &m);
    ck_assert_int_eq(glmd_wait(c, 1000000000), 1);
    e = ct_next(c, GLMD_EV_NOTICE, 0);
    ck_assert_uint_eq(e.reason, GLMD_NOTICE_ALIVE);
    fake_accept(&f, tag);
    fake_flush(&f, true);
    ck_assert_int_eq(glmd_dispatch(c), 1);
    ct_next(c, GLMD_EV_ACCEPTED, tag);
    glmd_close(c);
    fake_close(&f);
}
END_TEST

/* ---- fork ---- */

/* An emulator may accept the advice to wipe a page in children and do nothing: raw clone() is native only. */
#define CLONES (getenv("GLMD_TEST_RUN") ? 1 : 2)

START_TEST(fork_is_refused_in_the_child) {
    struct fake f;
    glmd_conn *c = fake_connect(&f, NULL);
    uint64_t tag = ct_submit(c, "x");
    fake_pop_submit(&f);
    fake_accept(&f, tag);
    fake_flush(&f, true);
    /* once by fork(), once behind the back of the C library */
    pid_t p = _i == 0 ? fork() : (pid_t)syscall(SYS_clone, SIGCHLD, 0, 0, 0, 0);
    if (p == 0) {
        struct glmd_event e = {.size = sizeof e};
        struct glmd_info i = {.size = sizeof i};
        glmd_req *q;
        uint64_t t;
        int bad = 0;
        bad += glmd_next(c, &e) != -ECHILD;
        bad += glmd_next_n(c, &e, 1) != -ECHILD;
        bad += glmd_dispatch(c) != -ECHILD;
        bad += glmd_prepare(c) != -ECHILD;
        bad += glmd_wait(c, 0) != -ECHILD;
        bad += glmd_wakeup(c) != -ECHILD;
        bad += glmd_cancel(c, tag) != -ECHILD;
        bad += glmd_cancel_async(c, tag) != -ECHILD;
        bad += glmd_req_new(c, &q) != -ECHILD;
        bad += glmd_get_info(c, &i) != -ECHILD;
        bad += glmd_get_fd(c) != -ECHILD;
        bad += glmd_get_timeout(c, &t) != -ECHILD;
        bad += glmd_set_coalesce(c, 2, 2) != -ECHILD;
        bad += glmd_get_error(c, NULL) != -ECHILD;
        glmd_release(c);
        bad += glmd_close(c) != NULL;
        _exit(bad);
    }
    ck_assert_int_ge(p, 0); /* not in the child of a raw clone: tests/lib/childcheck.h */
    int status;
    ck_assert_int_eq(waitpid(p, &status, 0), p);
    ck_assert(WIFEXITED(status));
    ck_assert_int_eq(WEXITSTATUS(status), 0);
    /* nothing of it reached the parent's connection */
    struct glmw_entry e;
    ck_assert(!fake_pop(&f, &e));
    ck_assert_int_eq(glmd_dispatch(c), 1);
    ct_next(c, GLMD_EV_ACCEPTED, tag);
    fake_end(&f, tag, 0, 1);
    fake_flush(&f, true);
    ck_assert_int_eq(glmd_wait(c, 1000000000), 1);
    ct_next(c, GLMD_EV_END, tag);
    ck_assert_int_eq(glmd_get_error(c, NULL), 0);
    glmd_close(c);
    fake_close(&f);
}
END_TEST

START_TEST(two_connections) {
    struct fake f, g;
    glmd_conn *c = fake_connect(&f, NULL), *d = fake_connect(&g, NULL);
    uint64_t a = ct_submit(c, "a"), b = ct_submit(d, "b");
    ck_assert_int_ne(glmd_get_fd(c), glmd_get_fd(d));
    fake_die(&f);
    fake_accept(&g, b);
    fake_text(&g, b, 1, "fine");
    fake_flush(&g, true);
    ck_assert_int_eq(glmd_wait(c, 1000000000), 1);
    ck_assert_int_eq(glmd_wait(d, 1000000000), 1);
    struct glmd_event e = ct_next(c, GLMD_EV_END, a);
    ck_assert_int_eq(e.status, -EPIPE);
    ct_next(d, GLMD_EV_ACCEPTED, b);
    ct_next_text(d, b, "fine");
    glmd_close(c);
    ct_none(d);
    ck_assert_int_eq(glmd_get_error(d, NULL), 0);
    glmd_close(d);
    fake_close(&f);
    fake_close(&g);
}
END_TEST

/* Closing with live requests is the caller's right; the daemon hears an orderly end. */
START_TEST(close_with_live_requests) {
    struct fake f;
    glmd_conn *c = fake_connect(&f, NULL);
    struct hello_msg m;
    ct_submit(c, "a");
    ct_submit(c, "b");
    ck_assert_ptr_null(glmd_close(c));
    ck_assert_ptr_null(glmd_close(NULL));
    fake_expect(&f, GLMW_PKT_BYE, &m);
    ck_assert_int_eq(m.u.bye.error, 0);
    fake_close(&f);
}
END_TEST

int main(void) {
    Suite *s = suite_create("client_death");
    TCase *t = ct_case(s, "death", 20);
    tcase_add_test(t, records_before_the_error);
    tcase_add_test(t, death_during_wait);
    tcase_add_test(t, death_inside_a_group);
    tcase_add_test(t, bye_and_notices);
    tcase_add_test(t, hang_is_a_notice);
    t = ct_case(s, "lies", 60);
    tcase_add_loop_test(t, one_lie_ends_the_connection, 0, (int)(sizeof lies / sizeof lies[0]));
    tcase_add_test(t, entry_index_lies);
    tcase_add_loop_test(t, socket_lies, 0, 10);
    tcase_add_test(t, random_garbage);
    t = ct_case(s, "life", 20);
    tcase_add_loop_test(t, fork_is_refused_in_the_child, 0, CLONES);
    tcase_add_test(t, two_connections);
    tcase_add_test(t, close_with_live_requests);
    return ct_main(s);
}
