/* SPDX-License-Identifier: MIT */
/* What fuzzers found, one named test each. The inputs themselves are in tests/fuzz/corpus and run in
 * fuzz_corpus. */
#include <check.h>
#include <errno.h>
#include <string.h>

#include "chattmpl.h"
#include "clienttest.h"
#include "fakedaemon.h"
#include "show.h"
#include "utf8.h"

/* client_ring: a record that no event can be made of was not stepped over, and nothing said that the ring is
 * bad when the connection had ended for another reason before: glmd_next() never returned. */
START_TEST(wrong_record_of_a_daemon_that_is_gone) {
    struct glmd_event e = {.size = sizeof e};
    struct fake f;
    glmd_conn *c = fake_connect(&f, NULL);
    uint64_t tag = ct_submit(c, "x");
    fake_accept(&f, tag);
    struct glmw_rec r = fake_rec(&f, GLMW_REC_TOKEN, tag);
    r.flags = GLMW_RF_ALTS_FOLLOW; /* and n_alts 0 */
    fake_put(&f, &r);
    fake_flush(&f, true);
    fake_die(&f);
    glmd_dispatch(c);
    int gone = glmd_get_error(c, NULL);
    ck_assert(gone < 0 && gone != -EPROTO);
    ct_next(c, GLMD_EV_ACCEPTED, tag);
    ck_assert_int_eq(ct_next(c, GLMD_EV_END, tag).status, gone);
    ck_assert_int_eq(glmd_next(c, &e), gone);
    glmd_close(c);
    fake_close(&f);
}
END_TEST

/* template_literals: an offset from the null pointer, which the undefined behaviour sanitizer sees. */
START_TEST(empty_template) {
    struct chattmpl t;

    ck_assert_int_eq(chattmpl_read("", 0, &t), 0);
    ck_assert_uint_eq(t.head.n, 0);
    ck_assert_uint_eq(t.tail.n, 0);
    ck_assert_uint_gt(t.warn.n, 0);
    chattmpl_done(&t);
}
END_TEST

/* safetensors_header: a name too long to show whose cut fell into a character lost the end of its text, and
 * what lay behind it on the stack was read and changed. For every length of name and place of the character.
 */
START_TEST(long_names_keep_their_end) {
    for (size_t len = 60; len < 120; len++) {
        for (size_t at = 0; at + 4 <= len; at++) {
            struct {
                struct show s;
                char behind[32];
            } x;
            char name[128];

            memset(name, 'x', len);
            memcpy(name + at, "\xf0\x9f\x98\x80", 4);
            memset(&x, 1, sizeof x); /* control characters: they would be made harmless */
            show_name(&x.s, name, len);
            ck_assert_ptr_nonnull(memchr(x.s.s, 0, sizeof x.s.s));
            ck_assert(utf8_is_valid(x.s.s, strlen(x.s.s)));
            for (size_t i = 0; i < sizeof x.behind; i++)
                ck_assert_int_eq(x.behind[i], 1);
        }
    }
}
END_TEST

/* client_ring: the number in a BYE was handed on whatever it was; errors of the library are above -4096. */
START_TEST(goodbye_with_an_impossible_number) {
    static const int32_t numbers[] = {INT32_MIN, -4096, -4095, 0, 7};
    for (size_t i = 0; i < sizeof numbers / sizeof numbers[0]; i++) {
        struct fake f;
        glmd_conn *c = fake_connect(&f, NULL);
        struct hello_msg m = {.type = GLMW_PKT_BYE, .u.bye.error = numbers[i]};
        fake_packet(&f, &m);
        ck_assert_int_eq(glmd_dispatch(c), numbers[i] == -4095 ? -4095 : -EPIPE);
        glmd_close(c);
        fake_close(&f);
    }
}
END_TEST

int main(void) {
    Suite *s = suite_create("fuzz_found");
    TCase *t = ct_case(s, "found", 20);

    tcase_add_test(t, wrong_record_of_a_daemon_that_is_gone);
    tcase_add_test(t, empty_template);
    tcase_add_test(t, long_names_keep_their_end);
    tcase_add_test(t, goodbye_with_an_impossible_number);
    return ct_main(s);
}
