/* SPDX-License-Identifier: MIT */
/* Handshake packets: round trip of every type, every malformed packet, every outcome of the negotiation. */
#include <check.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "hello.h"
#include "ipctest.h"
#include "leakcheck.h"
#include "utf8chk.h"

static uint8_t pkt[GLMW_PACKET_MAX + 64];

static struct hello_offer offer(void) {
    return (struct hello_offer){
        .wire_min = 1,
        .wire_max = 1,
        .features = GLMW_FEAT_LOGPROBS | GLMW_FEAT_ALTS | GLMW_FEAT_COALESCE,
        .sq_log2_max = 9,
        .tq_log2_max = 12,
        .pay_log2_max = 22,
        .txt_log2_max = 18,
        .state = GLMW_STATE_READY,
        .generation = 77,
        .conn_id = 3,
        .limits = ipc_limits(),
        .model = "nano",
    };
}

static struct hello_msg sample(uint16_t type) {
    struct hello_msg m = {.type = type, .serial = 40u + type};
    struct hello_offer o = offer();
    struct glmw_hello h = {.wire_min = 1, .wire_max = 1, .page_size = 4096};
    struct shm_geom g;
    struct glmw_reject rej;
    switch (type) {
    case GLMW_PKT_HELLO:
        m.u.hello = (struct glmw_hello){.wire_min = 1,
                                        .wire_max = 2,
                                        .features_wanted = 3,
                                        .features_required = 1,
                                        .sq_log2 = 6,
                                        .tq_log2 = 10,
                                        .pay_log2 = 18,
                                        .txt_log2 = 17,
                                        .page_size = 65536,
                                        .name = "a client of 32 bytes, all used!"};
        m.u.hello.name[31] = '.';
        break;
    case GLMW_PKT_WELCOME:
        ck_assert_int_eq(hello_negotiate(&o, &h, &m.u.welcome, &g, &rej), 0);
        break;
    case GLMW_PKT_REJECT:
        hello_reject(&m.u.reject, -EBUSY, 250, 1, 1, "too many connections of uid 1000");
        break;
    case GLMW_PKT_BULK:
        m.u.bulk = (struct glmw_bulk){.id = 5, .kind = GLMW_BULK_IMAGE, .bytes = 1 << 20};
        break;
    case GLMW_PKT_BULK_OK:
        m.u.bulk_answer = (struct glmw_bulk_answer){.id = 5};
        break;
    case GLMW_PKT_BULK_ERR:
        m.u.bulk_answer = (struct glmw_bulk_answer){.id = 5, .error = -EINVAL};
        break;
    case GLMW_PKT_NOTICE:
        m.u.notice = (struct glmw_notice_body){.what = GLMW_NOTICE_MODEL,
                                               .state = GLMW_STATE_READY,
                                               .limits = ipc_limits(),
                                               .model = "nano-\xc3\xa9"};
        break;
    case GLMW_PKT_PING:
    case GLMW_PKT_PONG:
        memcpy(m.u.ping.opaque, "\1\2\3\4\5\6\7\xff", 8);
        break;
    default:
        m.u.bye = (struct glmw_bye){.error = -EPROTO};
        hello_set_text(m.u.bye.text, sizeof(m.u.bye.text), "tq_head moved backwards");
        break;
    }
    return m;
}

static enum hello_phase phase_of(uint16_t type) {
    switch (type) {
    case GLMW_PKT_HELLO:
        return HELLO_SERVER_FIRST;
    case GLMW_PKT_WELCOME:
    case GLMW_PKT_REJECT:
        return HELLO_CLIENT_FIRST;
    case GLMW_PKT_BULK:
        return HELLO_SERVER_OPEN;
    default:
        return HELLO_CLIENT_OPEN;
    }
}

START_TEST(every_packet_makes_the_round_trip) {
    for (uint16_t type = GLMW_PKT_HELLO; type <= GLMW_PKT_BYE; type++) {
        struct hello_msg m = sample(type), back;
        const char *reason = "";
        memset(&back, 0, sizeof(back));
        int n = hello_encode(&m, pkt, sizeof(pkt));
        ck_assert_int_eq(n, (int)(16 + hello_body_bytes(type)));
        struct glmw_packet_hdr h;
        memcpy(&h, pkt, sizeof(h));
        ck_assert_uint_eq(h.magic, 0x504d4c47);
        ck_assert_uint_eq(h.type, type);
        ck_assert_uint_eq(h.flags, 0);
        ck_assert_uint_eq(h.len, (uint32_t)n - 16);
        int r = hello_decode(pkt, (size_t)n, hello_fds(type), phase_of(type), &back, &reason);
        ck_assert_msg(r == 0, "type %u: %s", type, reason);
        ck_assert_uint_eq(back.serial, 40u + type);
        ck_assert_mem_eq(&back.u, &m.u, hello_body_bytes(type));
        ck_assert_int_eq(hello_encode(&m, pkt, (size_t)n - 1), -EMSGSIZE);
    }
    struct hello_msg m = {.type = 11};
    ck_assert_int_eq(hello_encode(&m, pkt, sizeof(pkt)), -EINVAL);
    m.type = 0;
    ck_assert_int_eq(hello_encode(&m, pkt, sizeof(pkt)), -EINVAL);
}
END_TEST

/* Exactly the table of PROTOCOL.md 2.1: who may send what when, with how many descriptors. */
START_TEST(only_expected_types_in_each_phase) {
    static const char allowed[4][11] = {"H", "WRY", "BIOY", "KENIOY"};
    static const char letter[] = "\0HWRBKENIOY";
    for (uint16_t type = 1; type <= 10; type++) {
        struct hello_msg m = sample(type), back;
        int n = hello_encode(&m, pkt, sizeof(pkt));
        unsigned fds = type == GLMW_PKT_WELCOME ? 4 : type == GLMW_PKT_BULK ? 1 : 0;
        ck_assert_uint_eq(hello_fds(type), fds);
        for (int phase = 0; phase < 4; phase++) {
            int want = strchr(allowed[phase], letter[type]) ? 0 : -EPROTO;
            ck_assert_msg(hello_decode(pkt, (size_t)n, fds, (enum hello_phase)phase, &back, NULL) == want,
                          "type %u in phase %d", type, phase);
        }
        for (unsigned k = 0; k < 6; k++) {
            if (k != fds)
                ck_assert_int_eq(hello_decode(pkt, (size_t)n, k, phase_of(type), &back, NULL), -EPROTO);
        }
    }
}
END_TEST

START_TEST(broken_headers) {
    struct hello_msg m = sample(GLMW_PKT_PING), back;
    const char *reason;
    struct glmw_packet_hdr h;
    int n = hello_encode(&m, pkt, sizeof(pkt));
    memset(&back, 0x5a, sizeof(back));
    for (size_t len = 0; len < (size_t)n; len++)
        ck_assert_int_eq(hello_decode(pkt, len, 0, HELLO_SERVER_OPEN, &back, &reason), -EPROTO);
    ck_assert_int_eq(hello_decode(pkt, (size_t)n + 1, 0, HELLO_SERVER_OPEN, &back, &reason), -EPROTO);
    memcpy(&h, pkt, sizeof(h));
    const struct glmw_packet_hdr good = h;
    struct {
        struct glmw_packet_hdr h;
        int want;
    } bad[] = {{good, -EPROTO}, {good, -EPROTO}, {good, -EPROTO},
               {good, -EPROTO}, {good, -EPROTO}, {good, 1}};
    bad[0].h.magic = 0x474c4d50; /* the other byte order */
    bad[1].h.len++;
    bad[2].h.flags = 2;
    bad[3].h.type = 0;
    bad[4].h.type = 11;
    bad[5].h.type = 500;
    bad[5].h.flags = GLMW_PKTF_IGNORABLE;
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        memcpy(pkt, &bad[i].h, sizeof(h));
        ck_assert_msg(hello_decode(pkt, (size_t)n, 0, HELLO_SERVER_OPEN, &back, &reason) == bad[i].want,
                      "header %zu", i);
    }
    /* nothing may be ignored before the handshake is done */
    ck_assert_int_eq(hello_decode(pkt, (size_t)n, 0, HELLO_SERVER_FIRST, &back, &reason), -EPROTO);
    ck_assert_uint_eq(back.type, 0x5a5a); /* never touched */
}
END_TEST

START_TEST(bodies_have_their_length) {
    for (uint16_t type = 1; type <= 10; type++) {
        struct hello_msg m = sample(type), back;
        memset(pkt, 0, sizeof(pkt));
        int n = hello_encode(&m, pkt, sizeof(pkt));
        bool grows = type == GLMW_PKT_HELLO || type == GLMW_PKT_REJECT;
        uint32_t len = (uint32_t)n - 16 + 8;
        memcpy(pkt + 8, &len, 4);
        memset(pkt + n, 0xee, 8);
        ck_assert_int_eq(hello_decode(pkt, (size_t)n + 8, hello_fds(type), phase_of(type), &back, NULL),
                         grows ? 0 : -EPROTO);
        len = (uint32_t)n - 16 - 1;
        memcpy(pkt + 8, &len, 4);
        ck_assert_int_eq(hello_decode(pkt, (size_t)n - 1, hello_fds(type), phase_of(type), &back, NULL),
                         -EPROTO);
    }
}
END_TEST

/* One byte or word of each body set to something that must be refused. */
START_TEST(bodies_are_checked) {
    static const struct {
        uint16_t type;
        uint16_t off;
        uint8_t bytes;
        uint64_t value;
    } bad[] = {
        {GLMW_PKT_HELLO, 0, 4, 0},
        {GLMW_PKT_HELLO, 0, 4, 3},
        {GLMW_PKT_HELLO, 28, 4, 0},
        {GLMW_PKT_HELLO, 28, 4, 2048},
        {GLMW_PKT_HELLO, 28, 4, 131072},
        {GLMW_PKT_HELLO, 28, 4, 5000},
        {GLMW_PKT_HELLO, 33, 1, 0},
        {GLMW_PKT_HELLO, 33, 1, 27},
        {GLMW_PKT_HELLO, 33, 1, 0xc3},
        {GLMW_PKT_HELLO, 33, 1, 0x7f},
        {GLMW_PKT_HELLO, 64, 1, 1},
        {GLMW_PKT_HELLO, 95, 1, 1},
        {GLMW_PKT_WELCOME, 0, 4, 0},
        {GLMW_PKT_WELCOME, 4, 4, 0},
        {GLMW_PKT_WELCOME, 4, 4, 5},
        {GLMW_PKT_WELCOME, 16, 8, 0},
        {GLMW_PKT_WELCOME, 32, 8, 65536},
        {GLMW_PKT_WELCOME, 40, 8, 65536},
        {GLMW_PKT_WELCOME, 48, 8, 0},
        {GLMW_PKT_WELCOME, 48, 8, 4096},
        {GLMW_PKT_WELCOME, 56, 8, UINT64_MAX - 65535},
        {GLMW_PKT_WELCOME, 64, 8, 1ull << 40},
        {GLMW_PKT_WELCOME, 72, 8, 65537},
        {GLMW_PKT_WELCOME, 80, 1, 3},
        {GLMW_PKT_WELCOME, 81, 1, 64},
        {GLMW_PKT_WELCOME, 82, 1, 63},
        {GLMW_PKT_WELCOME, 83, 1, 255},
        {GLMW_PKT_WELCOME, 84, 4, 1},
        {GLMW_PKT_WELCOME, 88 + 52, 4, 1},
        {GLMW_PKT_WELCOME, 152, 1, 0xff},
        {GLMW_PKT_WELCOME, 152 + 20, 1, 'x'},
        {GLMW_PKT_REJECT, 0, 4, 0},
        {GLMW_PKT_REJECT, 0, 4, 5},
        {GLMW_PKT_REJECT, 16, 1, '\n'},
        {GLMW_PKT_REJECT, 255, 1, 'x'},
        {GLMW_PKT_BULK, 4, 4, 0},
        {GLMW_PKT_BULK, 4, 4, 3},
        {GLMW_PKT_BULK, 8, 8, 0},
        {GLMW_PKT_BULK, 16, 1, 1},
        {GLMW_PKT_BULK, 31, 1, 1},
        {GLMW_PKT_BULK_OK, 4, 4, 0xffffffff},
        {GLMW_PKT_BULK_OK, 15, 1, 1},
        {GLMW_PKT_BULK_ERR, 4, 4, 0},
        {GLMW_PKT_BULK_ERR, 4, 4, 1},
        {GLMW_PKT_NOTICE, 0, 4, 0},
        {GLMW_PKT_NOTICE, 0, 4, 4},
        {GLMW_PKT_NOTICE, 4, 4, 9},
        {GLMW_PKT_NOTICE, 8 + 52, 4, 1},
        {GLMW_PKT_NOTICE, 72, 1, 0x1b},
        {GLMW_PKT_BYE, 0, 4, 1},
        {GLMW_PKT_BYE, 4, 4, 1},
        {GLMW_PKT_BYE, 8, 1, 0x80},
    };
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        struct hello_msg m = sample(bad[i].type), back;
        const char *reason = NULL;
        int n = hello_encode(&m, pkt, sizeof(pkt));
        memcpy(pkt + 16 + bad[i].off, &bad[i].value, bad[i].bytes);
        int r = hello_decode(pkt, (size_t)n, hello_fds(m.type), phase_of(m.type), &back, &reason);
        ck_assert_msg(r == -EPROTO && reason && strchr(reason, ' '),
                      "row %zu (type %u offset %u) was accepted", i, bad[i].type, bad[i].off);
    }
}
END_TEST

/* ---- negotiation --------------------------------------------------------------------------------------- */

START_TEST(versions) {
    static const struct {
        uint32_t smin, smax, cmin, cmax, want; /* 0: refused */
    } t[] = {{1, 1, 1, 1, 1},
             {1, 3, 2, 9, 3},
             {2, 5, 1, 3, 3},
             {1, 9, 4, 4, 4},
             {3, 4, 1, 2, 0},
             {1, 1, 2, 0xffffffff, 0},
             {1, 0xffffffff, 7, 0xffffffff, 0xffffffff}};
    for (size_t i = 0; i < sizeof(t) / sizeof(t[0]); i++) {
        struct hello_offer o = offer();
        struct glmw_hello h = {.wire_min = t[i].cmin, .wire_max = t[i].cmax, .page_size = 4096};
        struct glmw_welcome w = {0};
        struct glmw_reject rej = {0};
        struct shm_geom g;
        o.wire_min = t[i].smin;
        o.wire_max = t[i].smax;
        int r = hello_negotiate(&o, &h, &w, &g, &rej);
        ck_assert_int_eq(r, t[i].want ? 0 : -EPROTONOSUPPORT);
        ck_assert_uint_eq(w.wire, t[i].want);
        if (r < 0) {
            ck_assert_int_eq(rej.error, r);
            ck_assert_uint_eq(rej.wire_min, t[i].smin);
            ck_assert_uint_eq(rej.wire_max, t[i].smax);
            ck_assert(strstr(rej.text, "wire version"));
        }
    }
}
END_TEST

START_TEST(features) {
    struct hello_offer o = offer();
    struct glmw_hello h = {.wire_min = 1, .wire_max = 1, .page_size = 4096};
    struct glmw_welcome w;
    struct glmw_reject rej;
    struct shm_geom g;
    h.features_wanted = GLMW_FEAT_LOGPROBS | GLMW_FEAT_BULK | 1ull << 63;
    h.features_required = GLMW_FEAT_ALTS;
    ck_assert_int_eq(hello_negotiate(&o, &h, &w, &g, &rej), 0);
    ck_assert_uint_eq(w.features, GLMW_FEAT_LOGPROBS | GLMW_FEAT_ALTS);
    h.features_required = GLMW_FEAT_ALTS | 1ull << 40;
    ck_assert_int_eq(hello_negotiate(&o, &h, &w, &g, &rej), -EOPNOTSUPP);
    ck_assert_int_eq(rej.error, -EOPNOTSUPP);
    ck_assert_msg(strstr(rej.text, "0x10000000000"), "%s", rej.text);
}
END_TEST

START_TEST(sizes_and_the_rest) {
    struct hello_offer o = offer();
    struct glmw_hello h = {.wire_min = 1, .wire_max = 1, .page_size = 4096};
    struct glmw_welcome w;
    struct glmw_reject rej;
    struct shm_geom g;
    ck_assert_int_eq(hello_negotiate(&o, &h, &w, &g, &rej), 0); /* defaults */
    ck_assert(w.sq_log2 == 8 && w.tq_log2 == 12 && w.pay_log2 == 20 && w.txt_log2 == 18);
    ck_assert(w.generation == 77 && w.conn_id == 3 && w.state == GLMW_STATE_READY);
    ck_assert_str_eq(w.model, "nano");
    ck_assert_uint_eq(w.limits.max_alts, 20);
    ck_assert(w.sq_off == g.sq_off && w.pay_off == g.pay_off && w.tq_off == g.tq_off &&
              w.txt_off == g.txt_off && w.u_bytes == g.u_bytes && w.d_bytes == g.d_bytes);
    /* too large is cut, too small is raised */
    h.sq_log2 = 200;
    h.tq_log2 = 1;
    h.pay_log2 = 16;
    h.txt_log2 = 17;
    o.limits.max_payload_bytes = 1 << 20;
    ck_assert_int_eq(hello_negotiate(&o, &h, &w, &g, &rej), 0);
    ck_assert(w.sq_log2 == 9 && w.tq_log2 == GLMW_TQ_LOG2_MIN && w.pay_log2 == 16 && w.txt_log2 == 17);
    ck_assert_uint_eq(w.limits.max_payload_bytes, 65536); /* never more than the arena */
    /* a daemon that offers nonsense refuses instead of crashing */
    o.sq_log2_max = 99;
    h.sq_log2 = 50;
    ck_assert_int_eq(hello_negotiate(&o, &h, &w, &g, &rej), -EINVAL);
}
END_TEST

START_TEST(texts_are_cut_between_characters) {
    struct glmw_reject rej;
    char text[400];
    memset(text, 'a', sizeof(text));
    text[399] = '\0';
    memcpy(text + 238, "\xe2\x82\xac", 3); /* would be cut in the middle */
    hello_reject(&rej, -EBUSY, 0, 1, 1, text);
    ck_assert_uint_eq(strnlen(rej.text, sizeof(rej.text)), 238);
    hello_reject(&rej, -EBUSY, 0, 1, 1, "line\nand \x1b[31mcolour");
    ck_assert_str_eq(rej.text, "line?and ?[31mcolour");
}
END_TEST

/* Every boundary of the encoding, against a decoder written from the definition. */
static int valid_slow(const uint8_t *p, size_t n) {
    for (size_t i = 0; i < n;) {
        uint32_t cp, min;
        size_t k;
        if (p[i] < 0x80) {
            i++;
            continue;
        }
        if ((p[i] & 0xe0) == 0xc0)
            k = 1, cp = p[i] & 0x1f, min = 0x80;
        else if ((p[i] & 0xf0) == 0xe0)
            k = 2, cp = p[i] & 0x0f, min = 0x800;
        else if ((p[i] & 0xf8) == 0xf0)
            k = 3, cp = p[i] & 0x07, min = 0x10000;
        else
            return 0;
        if (k >= n - i)
            return 0;
        for (size_t j = 1; j <= k; j++) {
            if ((p[i + j] & 0xc0) != 0x80)
                return 0;
            cp = cp << 6 | (p[i + j] & 0x3f);
        }
        if (cp < min || cp > 0x10ffff || (cp >= 0xd800 && cp < 0xe000))
            return 0;
        i += k + 1;
    }
    return 1;
}

START_TEST(utf8_matches_the_definition) {
    struct ipc_rng r = {.s = 99};
    uint8_t b[24];
    unsigned valid = 0;
    /* all sequences of two bytes, and of three and four with interesting bytes */
    static const uint8_t e[] = {0x00, 0x7f, 0x80, 0x8f, 0x90, 0x9f, 0xa0, 0xbf, 0xc0, 0xc1, 0xc2, 0xdf,
                                0xe0, 0xe1, 0xec, 0xed, 0xee, 0xef, 0xf0, 0xf1, 0xf3, 0xf4, 0xf5, 0xff};
    for (unsigned v = 0; v < 65536; v++) {
        b[0] = (uint8_t)v;
        b[1] = (uint8_t)(v >> 8);
        ck_assert_int_eq(utf8chk_prefix(b, 2) == 2, valid_slow(b, 2));
    }
    for (unsigned v = 0; v < 24 * 24 * 24 * 24; v++) {
        b[0] = e[v % 24];
        b[1] = e[v / 24 % 24];
        b[2] = e[v / 576 % 24];
        b[3] = e[v / 13824];
        ck_assert_int_eq(utf8chk_prefix(b, 3) == 3, valid_slow(b, 3));
        ck_assert_int_eq(utf8chk_prefix(b, 4) == 4, valid_slow(b, 4));
    }
    for (unsigned i = 0; i < 200000;
         i++) { /* longer ones cross the fast path; the prefix is the longest valid */
        size_t n = ipc_below(&r, sizeof(b) + 1);
        for (size_t k = 0; k < n; k++)
            b[k] = ipc_below(&r, 3) ? (uint8_t)('a' + ipc_below(&r, 26)) : e[ipc_below(&r, 24)];
        size_t p = utf8chk_prefix(b, n);
        ck_assert_int_eq(p == n, valid_slow(b, n));
        ck_assert(valid_slow(b, p));
        valid += p == n;
    }
    ck_assert_uint_gt(valid, 1000);
}
END_TEST

int main(void) {
    Suite *s = suite_create("ipc_hello");
    TCase *tc = tcase_create("packets");
    tcase_set_timeout(tc, 60);
    tcase_add_checked_fixture(tc, leakcheck_setup, leakcheck_teardown);
    tcase_add_test(tc, every_packet_makes_the_round_trip);
    tcase_add_test(tc, only_expected_types_in_each_phase);
    tcase_add_test(tc, broken_headers);
    tcase_add_test(tc, bodies_have_their_length);
    tcase_add_test(tc, bodies_are_checked);
    tcase_add_test(tc, versions);
    tcase_add_test(tc, features);
    tcase_add_test(tc, sizes_and_the_rest);
    tcase_add_test(tc, texts_are_cut_between_characters);
    tcase_add_test(tc, utf8_matches_the_definition);
    suite_add_tcase(s, tc);
    SRunner *sr = srunner_create(s);
    srunner_run_all(sr, CK_ENV);
    int failed = srunner_ntests_failed(sr);
    srunner_free(sr);
    return failed ? 1 : 0;
}
