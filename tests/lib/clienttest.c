/* SPDX-License-Identifier: MIT */
/* Helpers of the client tests; see clienttest.h. */
#include "clienttest.h"

#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>

#include "leakcheck.h"

uint64_t ct_submit(glmd_conn *c, const char *text) {
    glmd_req *r;
    uint64_t tag = 0;
    ck_assert_int_eq(glmd_req_new(c, &r), 0);
    ck_assert_int_eq(glmd_req_message(r, GLMD_ROLE_USER, text, strlen(text)), 0);
    ck_assert_int_eq(glmd_submit(c, r, &tag), 0);
    ck_assert(tag != 0);
    return tag;
}

struct glmd_event ct_next(glmd_conn *c, uint32_t type, uint64_t tag) {
    struct glmd_event e = {.size = sizeof e};
    int r = glmd_next(c, &e);
    const char *why = "";
    glmd_get_error(c, &why);
    ck_assert_msg(r == 1, "no event: %d (%s)", r, why);
    ck_assert_uint_eq(e.type, type);
    ck_assert_uint_eq(e.tag, tag);
    return e;
}

void ct_next_text(glmd_conn *c, uint64_t tag, const char *text) {
    struct glmd_event e = ct_next(c, GLMD_EV_TOKEN, tag);
    ck_assert_uint_eq(e.text_len, strlen(text));
    ck_assert_mem_eq(e.text, text, e.text_len);
}

void ct_none(glmd_conn *c) {
    struct glmd_event e = {.size = sizeof e};
    ck_assert_int_eq(glmd_next(c, &e), 0);
}

int ct_readable(glmd_conn *c, int timeout_ms) {
    struct pollfd p = {.fd = glmd_get_fd(c), .events = POLLIN};
    return poll(&p, 1, timeout_ms);
}

TCase *ct_case(Suite *s, const char *name, double timeout_s) {
    TCase *t = tcase_create(name);
    tcase_set_timeout(t, timeout_s);
    tcase_add_checked_fixture(t, leakcheck_setup, leakcheck_teardown);
    suite_add_tcase(s, t);
    return t;
}

int ct_main(Suite *s) {
    signal(SIGPIPE, SIG_IGN);
    SRunner *r = srunner_create(s);
    srunner_run_all(r, CK_ENV);
    int failed = srunner_ntests_failed(r);
    srunner_free(r);
    return failed ? EXIT_FAILURE : EXIT_SUCCESS;
}
