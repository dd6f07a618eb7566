/* SPDX-License-Identifier: MIT */
/* Fixture of the hostile programs; see hostilefix.h. */
#include "hostilefix.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "leakcheck.h"

struct hostilefix hf;

static void setup_backend(const char *backend) {
    daemonfix_init(&hf.f);
    snprintf(hf.f.backend, sizeof hf.f.backend, "%s", backend);
    daemonfix_script(&hf.f, "vocab 100\nstop 2\nstep-us 500\nloop\n"
                            "request\ntokens 10 11 12 13 14 15 16 17 18 19 2\n"
                            "request first 90\ntokens 10 11 12\nrepeat\n"
                            "request first 91\ntokens 20 21 22 2\n");
    daemonfix_start(&hf.f, "[IPC]\nHandshakeTimeoutSec=1\nMaxConnections=6\n[Quota]\nSubmitRateLimit=1000000\n");
    raw_open(&hf.honest, hf.f.socket, NULL);
    struct glmw_entry e = raw_request(&hf.honest, 1);
    raw_submit(&hf.honest, &e);
    ck_assert_int_eq(raw_until_end(&hf.honest, 1, NULL), 0);
    hf.before = daemonfix_resources(&hf.f);
}

static void setup_epoll(void) {
    setup_backend("epoll");
}

static void setup_uring(void) {
    setup_backend("uring");
}

static void teardown(void) {
    struct glmw_entry e = raw_request(&hf.honest, 7777);
    uint32_t tokens = 0;

    raw_submit(&hf.honest, &e);
    ck_assert_int_eq(raw_until_end(&hf.honest, 7777, &tokens), 0);
    ck_assert_uint_eq(tokens, 10);
    daemonfix_expect_resources(&hf.f, hf.before);
    raw_close(&hf.honest);
    daemonfix_stop(&hf.f);
    daemonfix_done(&hf.f);
}

void hostilefix_cut_off(const char *rule) {
    ck_assert_int_eq(raw_expect_close(hf.c.fd), -EPROTO);
    raw_close(&hf.c);
    daemonfix_expect_log(&hf.f, rule);
}

struct glmw_entry hostilefix_request(struct rawclient *c, uint64_t tag, uint32_t first) {
    struct glmw_entry e = raw_request(c, tag);

    memcpy((uint8_t *)c->view.u + c->welcome.pay_off + sizeof(struct glmw_tlv), &first, sizeof first);
    return e;
}

static void add_case(Suite *s, const char *name, SFun setup, void (*add_tests)(TCase *tc)) {
    TCase *tc = tcase_create(name);

    tcase_set_timeout(tc, 60);
    tcase_add_checked_fixture(tc, leakcheck_setup, leakcheck_teardown);
    tcase_add_checked_fixture(tc, setup, teardown);
    add_tests(tc);
    suite_add_tcase(s, tc);
}

void hostilefix_cases(Suite *s, void (*add_tests)(TCase *tc)) {
    add_case(s, "epoll", setup_epoll, add_tests);
    if (daemonfix_loops() == 2)
        add_case(s, "uring", setup_uring, add_tests);
}
